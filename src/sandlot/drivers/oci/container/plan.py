"""Pure: from a place to the operations that turn a stage into the place where its container runs.

The root file system is an overlay: below, the shared root, read-only and with its owners moved to the sandbox's own ids
(an idmapped mount, mount_setattr(2)); above, what is written, on the sandbox's own disk. So the host's pages of the shared
root are shared by all sandboxes, and the disk limit holds for everything.
"""

from __future__ import annotations

from sandlot.drivers.oci.places import (
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
from sandlot.drivers.oci.runtime import CORE_BYTES, OOM_SCORE, Place
from sandlot.host.hierarchies import GroupLimits
from sandlot.host.idranges import IDS
from sandlot.host.launch import Operation
from sandlot.model.errors import InternalError
from sandlot.model.specs import MOST_MOUNTS, Limits
from sandlot.protocol.schema import most_pids

OPEN_FILES = 65536
"""For each process. They are the host kernel's, and paid from the memory limit."""
OWN_TASKS = 48
"""Host tasks beside those that the guest lets live: itself, the keeper, crun while it starts, and room for the guest to see that
there are too many: it counts what is there, and what the host refuses is not."""

_PASSABLE = 0o711
"""Entered by crun after it has become the sandbox's root, which is nobody here; listed by nobody."""


def group_limits(limits: Limits) -> GroupLimits:
    """What the whole sandbox may use on the host. A process inside is a process of the host."""
    return GroupLimits(memory_bytes=limits.memory_bytes, cpus=limits.cpus, pids=most_pids(limits.pids) + OWN_TASKS)


def stage_plan(place: Place) -> tuple[Operation, ...]:
    """What the stage does before it starts the runtime."""
    if place.first_id is None:
        raise InternalError("A container needs ids of its own.")
    shape, folder = place.shape, place.folder
    return (
        # First of all: whatever follows is counted, limited and found by the group's name.
        *(("join", str(door)) for door in place.doors),
        ("oom_score", str(OOM_SCORE)),
        # Neither the runtime nor a program inside may leave a memory image on the host (``runtime.py``).
        ("limit", "RLIMIT_CORE", CORE_BYTES, CORE_BYTES),
        # Here, because in a user namespace nobody may raise what the service happened to have.
        ("limit", "RLIMIT_NOFILE", OPEN_FILES, OPEN_FILES),
        ("private_mounts",),
        ("forget", str(volume_mounts(folder.path.parent.parent))),
        ("tmpfs", VIEW_MOUNT, f"mode={_PASSABLE:o},size=1m"),
        # The stage is in the group already, and crun is told to leave groups alone; an empty folder is all that it looks at,
        # whatever the host's arrangement (it refuses hybrid hosts).
        ("tmpfs", VIEW_CGROUPS, "mode=0700,size=4k"),
        *(("mkdir", path, _PASSABLE) for path in (VIEW, VIEW_ROOT)),
        ("hub", VIEW_VOLUMES, MOST_MOUNTS),
        *(("mkdir", path) for path in (VIEW_FOLDER, VIEW_LOWER, VIEW_DISK)),
        ("file", VIEW_BOOT_ID, f"{place.boot_id}\n", 0o444),
        ("bind", str(folder.path), VIEW_FOLDER, "rw"),
        ("ids", VIEW_IDS, place.first_id, IDS),
        ("idmapped", str(shape.root.path), VIEW_LOWER, VIEW_IDS),
        ("disk", str(folder.disk_image), VIEW_DISK),
        # crun makes the folders that volumes are put at; those inside are to pass through them, whatever the service's own mask.
        ("umask", 0o022),
        ("overlay", VIEW_LOWER, VIEW_DISK, VIEW_ROOT, place.first_id),
    )
