"""Operations of the stage, the process that starts runsc: they set up the mounts and limits of a gVisor sandbox. Pure."""

from __future__ import annotations

import os

from sandlot.drivers.oci.paths import (
    VIEW,
    VIEW_CGROUPS,
    VIEW_DISK,
    VIEW_FOLDER,
    VIEW_GROUP,
    VIEW_IMAGE,
    VIEW_MOUNT,
    VIEW_PROGRAM,
    VIEW_ROOT,
    VIEW_VOLUMES,
    volume_mounts,
)
from sandlot.drivers.oci.runtime import CORE_BYTES, RuntimePlanInputs
from sandlot.host.cgroup_layout import CPU_PERIOD_US, GroupLimits, cpu_quota_us
from sandlot.host.launcher import Operation
from sandlot.host.nat_table import nat_table
from sandlot.host.programs import date_of_version
from sandlot.model.specs import MAX_VOLUMES, Limits, RootFs, RootKind
from sandlot.protocol.schema import NETWORK_ADDRESS

KERNEL_OOM_SCORE = 1000
STUB_OOM_SCORE = 1
"""The host's kernel must kill the whole sandbox or no part of it. The sandbox's memory is mapped by gVisor's kernel and by the processes ("stubs") in
which the tenant's code runs, and the stubs look larger. A gVisor kernel that has lost a stub reports that the process exited with code 1, or the
process never ends (seen with 20240729). The stage gives all processes the lower score. gVisor's kernel gets the higher score once it runs and has
created the first stub, from which all others are forked."""

HOST_TASKS_BASE = 256
HOST_TASKS_PER_PROCESS = 4
"""Host tasks that runsc's systrap platform may use. Measured: runsc itself needs 21 tasks when idle and about 50 when busy, and 2 for each process
inside, however many threads it has. The limit is much higher, because the whole sandbox ends if the limit is reached ("failed to get clone"). The
guest enforces ``Limits.pids``, so this limit is normally not reached."""

LAZY_MEMBARRIER_DATE = "2026-08-01"
"""Earlier releases of runsc register for membarrier(2) whenever they start, seven times for each sandbox. Each registration waits 8 to 13 ms for the
host's kernel (RCU), and the platform systrap needs none. Later releases register when they first need it."""

SYSTEM_NETWORK = "/proc/sys/net"
"""Folder that is hidden from runsc. The release of July 2024 takes a namespace for that of the host if the folder has ``core/rmem_default``, and does
not run there. Linux 6.18 shows this file in every network namespace."""

_SHOWN_CONTROLLERS = (
    *("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb"),
    *("memory", "net_cls", "net_prio", "perf_event", "pids", "rdma", "systemd"),
)
"""Controllers that runsc looks for. It requires some of them, such as blkio, whether or not the host has them."""


def group_limits(limits: Limits) -> GroupLimits:
    """Return the limits of the control group that enforce a sandbox's limits."""
    return GroupLimits(
        memory_bytes=limits.memory_bytes,
        cpus=limits.cpus,
        pids=HOST_TASKS_PER_PROCESS * limits.pids + HOST_TASKS_BASE,
    )


def stage_plan(inputs: RuntimePlanInputs) -> tuple[Operation, ...]:
    """Return the operations that the stage carries out before it starts runsc."""
    shape, folder = inputs.shape, inputs.folder
    limits = group_limits(shape.limits)
    return (
        # The stage enters the control group first, so that the group counts and limits everything that the stage creates afterwards.
        *(("join", str(file)) for file in inputs.entry_files),
        ("oom_score", str(STUB_OOM_SCORE)),
        # A runtime that crashes must not write memory of tenants to a core file on the host.
        ("limit", "RLIMIT_CORE", CORE_BYTES, CORE_BYTES),
        # A network namespace of its own, without a way out, that runsc copies to its own network stack. Its processes enter the namespace.
        *([("private_network", ()), ("loopback_card", NETWORK_ADDRESS, nat_table())] if inputs.program.copies_network else []),
        ("private_mounts",),
        ("forget", str(volume_mounts(folder.path.parent.parent))),
        ("tmpfs", VIEW_MOUNT, "mode=0700,size=1m"),
        *([("tmpfs", SYSTEM_NETWORK, "mode=0555,size=4k")] if inputs.program.copies_network else []),
        ("hub", VIEW_VOLUMES, MAX_VOLUMES + 1),  # the last folder belongs to no volume (host/volume_disks.py, detach)
        *_shown_cgroups(limits),
        *(("mkdir", path) for path in (VIEW, VIEW_FOLDER, VIEW_PROGRAM, VIEW_ROOT, VIEW_DISK)),
        ("bind", str(folder.path), VIEW_FOLDER, "rw"),
        ("bind", str(inputs.program.path.parent), VIEW_PROGRAM, "ro"),
        # For a sandbox whose root is an image, VIEW_ROOT stays empty. Only the kernel of gVisor opens the image.
        *([("bind", str(shape.root.tree), VIEW_ROOT, "ro")] if shape.root.kind is RootKind.TREE else _image(shape.root)),
        *(
            [("bind", str(folder.tmp), f"{VIEW_ROOT}/tmp", "ro")]  # noqa: S108 - the sandbox's
            if inputs.has_tmp
            else []
        ),
        ("disk", str(folder.disk_image), VIEW_DISK) if inputs.has_image else ("bind", str(folder.disk), VIEW_DISK, "rw"),
        *([("skip_membarrier",)] if date_of_version(inputs.program.version) < LAZY_MEMBARRIER_DATE else []),
    )


def _image(root: RootFs) -> tuple[Operation, ...]:
    return ("file", VIEW_IMAGE, ""), ("bind", str(root.image), VIEW_IMAGE, "ro")


def _shown_cgroups(limits: GroupLimits) -> tuple[Operation, ...]:
    """Return operations that hide the host's control groups from runsc behind plain files, in the layout of cgroup version 1.

    The stage and everything that it starts are in the real group already. With access to the host's groups, runsc would move its own processes into
    the sandbox's group and back, and each move waits for an RCU grace period (measured: twice 10 to 20 ms, in a start of about 165 ms).
    The files contain the limits that runsc reads and that the sandbox sees as MemTotal and number of processors. They also make runsc independent
    of the host's layout, hybrid or version 2.
    """
    folders = {controller: f"{VIEW_CGROUPS}/{controller}{VIEW_GROUP}" for controller in _SHOWN_CONTROLLERS}
    online = os.cpu_count() or 1
    return (
        ("tmpfs", VIEW_CGROUPS, "mode=0700,size=1m"),
        *(("mkdir", folder) for folder in folders.values()),
        *(("file", f"{folder}/cgroup.procs", "") for folder in folders.values()),
        ("file", f"{folders['memory']}/memory.limit_in_bytes", f"{limits.memory_bytes}\n"),
        ("file", f"{folders['cpu']}/cpu.cfs_period_us", f"{CPU_PERIOD_US}\n"),
        ("file", f"{folders['cpu']}/cpu.cfs_quota_us", f"{cpu_quota_us(limits.cpus)}\n"),
        ("file", f"{folders['cpuset']}/cpuset.cpus", f"0-{online - 1}\n"),
    )
