"""Operations of the stage, the process that starts crun: they set up the mounts and limits of a container. Pure.

The root file system is an overlay. The lower layer is the shared root, read-only, with its owners mapped to the sandbox's own ids (an idmapped mount,
mount_setattr(2)). The upper layer is on the sandbox's own disk. All sandboxes therefore share the page cache of the lower layer, and the disk limit
covers everything that is written.
"""

from __future__ import annotations

from sandlot.drivers.oci.paths import (
    VIEW,
    VIEW_BOOT_ID,
    VIEW_CGROUPS,
    VIEW_DISK,
    VIEW_FOLDER,
    VIEW_IDS,
    VIEW_LOWER,
    VIEW_MOUNT,
    VIEW_ROOT,
    VIEW_VOLUMES,
    volume_mounts,
)
from sandlot.drivers.oci.runtime import CORE_BYTES, OOM_SCORE, RuntimePlanInputs
from sandlot.host.cgroup_layout import GroupLimits
from sandlot.host.id_ranges import IDS
from sandlot.host.launcher import Operation
from sandlot.host.nat_table import nat_table
from sandlot.model.errors import InternalError
from sandlot.model.specs import MAX_VOLUMES, Limits
from sandlot.protocol.schema import NETWORK_ADDRESS, most_pids

OPEN_FILES = 65536
"""Limit of open files per process. The host's kernel counts the memory of open files against the sandbox's memory limit."""
OWN_TASKS = 48
"""Host tasks in addition to those that the guest allows: the guest, the keeper, crun while it starts, and a margin. The guest counts
the existing tasks. Without the margin, the host would refuse a new task before the guest notices that the limit is reached."""

NETWORK_SETTINGS = {
    # Connections in TIME-WAIT count against no limit of memory; by default there can be 262,144 (tcp(7)). Beyond the setting, a connection is closed
    # without the wait, which connections within the sandbox do not need. The NAT table forgets such connections after seconds instead of minutes.
    "ipv4/tcp_max_tw_buckets": "4096",
    "netfilter/nf_conntrack_tcp_timeout_time_wait": "5",
    # The network namespace belongs to the user namespace of the host, in which root inside has no capability to bind to ports below 1024.
    "ipv4/ip_unprivileged_port_start": "0",
}
"""Settings of the sandbox's network namespace, by their names below ``/proc/sys/net``."""
CARD = "eth0"

_PASSABLE = 0o711
"""Mode of folders that crun enters as the root user of the sandbox, who has no rights on the host. Only the host's root user can list them."""


def group_limits(limits: Limits) -> GroupLimits:
    """Return the limits of the control group that enforce a sandbox's limits. Each process and thread inside counts as one task of the host."""
    return GroupLimits(memory_bytes=limits.memory_bytes, cpus=limits.cpus, pids=most_pids(limits.pids) + OWN_TASKS)


def stage_plan(inputs: RuntimePlanInputs) -> tuple[Operation, ...]:
    """Return the operations that the stage carries out before it starts crun."""
    if inputs.first_id is None:
        raise InternalError("The container was prepared without a range of user ids.")
    shape, folder = inputs.shape, inputs.folder
    return (
        # The stage enters the control group first, so that the group counts and limits everything that the stage creates afterwards.
        *(("join", str(file)) for file in inputs.entry_files),
        ("oom_score", str(OOM_SCORE)),
        # Neither crun nor a program inside may write a core file on the host.
        ("limit", "RLIMIT_CORE", CORE_BYTES, CORE_BYTES),
        # The limit is set here, because a limit that is inherited from the service could not be raised in a user namespace.
        ("limit", "RLIMIT_NOFILE", OPEN_FILES, OPEN_FILES),
        ("private_network", tuple(NETWORK_SETTINGS.items())),
        *([("card", CARD, NETWORK_ADDRESS, nat_table())] if inputs.has_card else []),
        ("private_mounts",),
        ("forget", str(volume_mounts(folder.path.parent.parent))),
        ("tmpfs", VIEW_MOUNT, f"mode={_PASSABLE:o},size=1m"),
        # The stage is already in the sandbox's control group, so crun must not manage control groups. crun refuses hosts that mount cgroup v1 and v2
        # together. An empty folder is therefore mounted over the host's groups.
        ("tmpfs", VIEW_CGROUPS, "mode=0700,size=4k"),
        *(("mkdir", path, _PASSABLE) for path in (VIEW, VIEW_ROOT)),
        ("hub", VIEW_VOLUMES, MAX_VOLUMES),
        *(("mkdir", path) for path in (VIEW_FOLDER, VIEW_LOWER, VIEW_DISK)),
        ("file", VIEW_BOOT_ID, f"{inputs.boot_id}\n", 0o444),
        ("bind", str(folder.path), VIEW_FOLDER, "rw"),
        ("ids", VIEW_IDS, inputs.first_id, IDS),
        ("idmapped", str(shape.root.require_tree()), VIEW_LOWER, VIEW_IDS),
        ("disk", str(folder.disk_image), VIEW_DISK),
        # crun creates the mount points of volumes. Users inside must be able to pass through them, whatever the service's own umask is.
        ("umask", 0o022),
        ("overlay", VIEW_LOWER, VIEW_DISK, VIEW_ROOT, inputs.first_id),
    )
