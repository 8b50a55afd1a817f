"""Pure: from a shape to the operations that turn a stage into the place where its sandbox runs."""

from __future__ import annotations

import os

from sandlot.drivers.oci.places import (
    VIEW,
    VIEW_CGROUPS,
    VIEW_DISK,
    VIEW_FOLDER,
    VIEW_GROUP,
    VIEW_MOUNT,
    VIEW_PROGRAM,
    VIEW_ROOT,
    VIEW_VOLUMES,
    volume_mounts,
)
from sandlot.drivers.oci.runtime import CORE_BYTES, Place
from sandlot.host.hierarchies import CPU_PERIOD_US, GroupLimits, cpu_quota_us
from sandlot.host.launch import Operation
from sandlot.model.specs import MOST_MOUNTS, Limits

KERNEL_OOM_SCORE = 1000
STUB_OOM_SCORE = 1
"""The kernel must kill the whole sandbox or nothing of it: what holds its memory is mapped by gVisor's kernel and by the
empty processes ("stubs") that the tenant's code runs in alike, and those look larger. A gVisor that has lost a stub says that the
process exited with code 1, or never ends it (seen with 20240729). The stage gives everything the lower score and the runtime gives
the higher one to gVisor's kernel, once that runs and has made the first stub, which all others are made from."""

HOST_TASKS_BASE = 256
HOST_TASKS_PER_PROCESS = 4
"""Host tasks that runsc's systrap needs. Measured: 21 idle and about 50 busy for itself, then 2 per guest process and none
per thread. Doubled, because reaching this limit takes the whole sandbox down ("failed to get clone"): the guest enforces
``Limits.pids`` itself, this is the backstop."""


_SHOWN_CONTROLLERS = (
    *("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb"),
    *("memory", "net_cls", "net_prio", "perf_event", "pids", "rdma", "systemd"),
)
"""All that runsc looks for; it insists on some, blkio for one, whether the host has them or not."""


def group_limits(limits: Limits) -> GroupLimits:
    """What the whole sandbox may use on the host."""
    return GroupLimits(
        memory_bytes=limits.memory_bytes,
        cpus=limits.cpus,
        pids=HOST_TASKS_PER_PROCESS * limits.pids + HOST_TASKS_BASE,
    )


def stage_plan(place: Place) -> tuple[Operation, ...]:
    """What the stage does before it starts the runtime."""
    shape, folder = place.shape, place.folder
    limits = group_limits(shape.limits)
    return (
        # First of all: whatever follows is counted, limited and found by the group's name.
        *(("join", str(door)) for door in place.doors),
        ("oom_score", str(STUB_OOM_SCORE)),
        # A runtime that crashes must not leave a memory image of tenants on the host.
        ("limit", "RLIMIT_CORE", CORE_BYTES, CORE_BYTES),
        ("private_mounts",),
        ("forget", str(volume_mounts(folder.path.parent.parent))),
        ("tmpfs", VIEW_MOUNT, "mode=0700,size=1m"),
        ("hub", VIEW_VOLUMES, MOST_MOUNTS + 1),  # the last is nobody's (host/volumes.py, detach)
        *_shown_cgroups(limits),
        *(("mkdir", path) for path in (VIEW, VIEW_FOLDER, VIEW_PROGRAM, VIEW_ROOT, VIEW_DISK)),
        ("bind", str(folder.path), VIEW_FOLDER, "rw"),
        ("bind", str(place.program.path.parent), VIEW_PROGRAM, "ro"),
        ("bind", str(shape.root.path), VIEW_ROOT, "ro"),
        *(
            [("bind", str(folder.tmp), f"{VIEW_ROOT}/tmp", "ro")]  # noqa: S108 - the sandbox's
            if place.has_tmp
            else []
        ),
        ("disk", str(folder.disk_image), VIEW_DISK) if place.has_image else ("bind", str(folder.disk), VIEW_DISK, "rw"),
    )


def _shown_cgroups(limits: GroupLimits) -> tuple[Operation, ...]:
    """A tree of plain files in place of the host's control groups, laid out like version 1.

    The stage is in the real group already, and so is all that it starts. What the runtime would do itself is move its own
    processes there and back: each move waits for an RCU grace period (two of 10 to 20 ms measured, of about 165 for a whole
    start). What it needs to read, the limits that the sandbox is to see as MemTotal and number of processors, is here.
    It also makes a host's own arrangement, hybrid or version 2, nothing that the runtime has to cope with.
    """
    places = {controller: f"{VIEW_CGROUPS}/{controller}{VIEW_GROUP}" for controller in _SHOWN_CONTROLLERS}
    online = os.cpu_count() or 1
    return (
        ("tmpfs", VIEW_CGROUPS, "mode=0700,size=1m"),
        *(("mkdir", place) for place in places.values()),
        *(("file", f"{place}/cgroup.procs", "") for place in places.values()),
        ("file", f"{places['memory']}/memory.limit_in_bytes", f"{limits.memory_bytes}\n"),
        ("file", f"{places['cpu']}/cpu.cfs_period_us", f"{CPU_PERIOD_US}\n"),
        ("file", f"{places['cpu']}/cpu.cfs_quota_us", f"{cpu_quota_us(limits.cpus)}\n"),
        ("file", f"{places['cpuset']}/cpuset.cpus", f"0-{online - 1}\n"),
    )
