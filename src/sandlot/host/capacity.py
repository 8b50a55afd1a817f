"""The machine's capacity for sandboxes, and the part of this capacity that is free. Both are read from the kernel.

=======  =======================================================  =======================================================================
         capacity: the least of                                   free: the least of
=======  =======================================================  =======================================================================
memory   MemTotal; the memory limits of the control groups        MemAvailable (proc(5)); for each control group, its memory limit minus
                                                                  its use without file cache
disk     size of the file system of the state directory           free blocks of the same file system
pids     kernel.pid_max; kernel.threads-max; pids.max of the      kernel.pid_max or kernel.threads-max, minus all tasks of the machine;
         control groups                                           for each control group, its pids.max minus its tasks
=======  =======================================================  =======================================================================

The control groups are those in which the service was started, and their parents. Their limits, which the operator set for the service, are read once
at the start, because the service moves to its own group afterwards (``service_cgroup.py``). The use of these groups is read each time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.cgroup_layout import Layout
from sandlot.model.ports import HostReading, Resources
from sandlot.model.specs import MIB

PROC = Path("/proc")
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, stat(2)."""
_SAME_FREE_BYTES = 16 * MIB
"""Less than the smallest disk of a sandbox."""
_DISK_READINGS = 4
_UNLIMITED_BYTES = 1 << 60
"""If a control group of version 1 has no memory limit, its limit file contains a number above this value."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Memory or task limit of one control group.

    Args:
        limit: Limit in bytes of memory, or number of tasks.
        group: Folder of the control group. The current use is read from files in this folder.
    """

    limit: int
    group: Path


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Limits of the control groups that contain this process: its own groups and their parents.

    Args:
        memory: Memory limits in bytes; empty if no group has one.
        pids: Limits of the number of tasks; empty if no group has one.
    """

    memory: tuple[Bound, ...] = ()
    pids: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """This machine and one state directory.

    Args:
        data_dir: The state directory.
        sandboxes: Folder of the state directory with the files of sandboxes; may not exist.
        bounds: Limits of the control groups in which the service was started.
        proc: Path of /proc.
        volumes: Folder of the state directory with the files of volumes; may not exist. None: files of volumes are not counted.
    """

    data_dir: Path
    sandboxes: Path
    bounds: GroupBounds
    proc: Path = PROC
    volumes: Path | None = None

    def read(self) -> HostReading:
        """Read the machine's capacity for sandboxes and the free part of the capacity. Blocks for some milliseconds.

        Raises:
            OSError: A file below /proc, or the state of the file system, cannot be read.
        """
        memory = read_meminfo((self.proc / "meminfo").read_text(encoding="ascii"))
        max_count = max_tasks(self.proc)
        disk, sandbox_disk_bytes = self._read_disk()
        free_tasks = max_count - count_tasks((self.proc / "loadavg").read_text(encoding="ascii"))
        return HostReading(
            total=Resources(
                memory_bytes=min([memory["MemTotal"], *(bound.limit for bound in self.bounds.memory)]),
                disk_bytes=disk.f_blocks * disk.f_frsize,
                pids=min([max_count, *(bound.limit for bound in self.bounds.pids)]),
            ),
            free=Resources(
                memory_bytes=max(0, min([memory["MemAvailable"], *_left(self.bounds.memory, used_memory)])),
                disk_bytes=disk.f_bavail * disk.f_frsize,
                pids=max(0, min([free_tasks, *_left(self.bounds.pids, used_tasks)])),
            ),
            sandbox_disk_bytes=sandbox_disk_bytes,
        )

    def free_disk_bytes(self) -> int:
        """Return the free bytes of the file system of the state directory. Blocks for less than a millisecond."""
        disk = os.statvfs(self.data_dir)
        return disk.f_bavail * disk.f_frsize

    def _read_disk(self) -> tuple[os.statvfs_result, int]:
        """Return the state of the file system and the bytes that sandboxes and volumes hold there.

        A disk that is allocated between the two readings would count twice, as free and as held. The files are therefore counted again if the free
        space has changed by :data:`_SAME_FREE_BYTES`, and the smaller of the last two readings counts.
        """
        disk = os.statvfs(self.data_dir)
        tries = _DISK_READINGS
        while True:
            held = held_bytes(self.sandboxes) + (0 if self.volumes is None else held_bytes(self.volumes, deep=False))
            before, disk, tries = disk, os.statvfs(self.data_dir), tries - 1
            if not tries or abs(before.f_bavail - disk.f_bavail) * disk.f_frsize < _SAME_FREE_BYTES:
                return min(before, disk, key=lambda each: each.f_bavail), held


def read_meminfo(text: str) -> dict[str, int]:
    """Parse the text of ``/proc/meminfo`` (proc(5)): name of the field -> bytes."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def count_tasks(loadavg: str) -> int:
    """Return the number of all tasks of the machine from the text of ``/proc/loadavg``, whose fourth field is ``RUNNING/ALL`` (proc(5))."""
    return int(loadavg.split()[3].partition("/")[2])


def max_tasks(proc: Path) -> int:
    """Return the largest number of tasks that the kernel allows on the machine. ``proc`` is the path of /proc."""
    return min(int((proc / "sys/kernel" / name).read_text(encoding="ascii")) for name in ("pid_max", "threads-max"))


def used_memory(group: Path) -> int:
    """Return the bytes of memory that a control group uses, without its file cache, which the kernel can reclaim (memory.rst, cgroup-v2.rst).

    Raises:
        OSError: The group does not exist.
    """
    old = group / "memory.usage_in_bytes"
    usage, prefix = (old, "total_") if old.exists() else (group / "memory.current", "")
    used = int(usage.read_text(encoding="ascii"))
    stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    return max(0, used - int(stat.get(f"{prefix}active_file", 0)) - int(stat.get(f"{prefix}inactive_file", 0)))


def used_tasks(group: Path) -> int:
    """Return the number of tasks in a control group.

    Raises:
        OSError: The group does not exist.
    """
    return int((group / "pids.current").read_text(encoding="ascii"))


def held_bytes(folder: Path, *, deep: bool = True) -> int:
    """Return the bytes of disk space that the files below a folder occupy. Files that disappear meanwhile are ignored. Links are not followed.

    Args:
        folder: The folder.
        deep: If true, files in subfolders are included.
    """
    held = 0
    for parent, folders, files in os.walk(folder):
        if not deep:
            folders.clear()
        for name in files:
            with contextlib.suppress(OSError):
                held += os.stat(os.path.join(parent, name), follow_symlinks=False).st_blocks * _BLOCK_BYTES  # noqa: PTH116, PTH118 - speed
    return held


def own_bounds(layout: Layout | None, proc: Path = PROC) -> GroupBounds:
    """Return the memory and task limits of this process's control groups and of their parents.

    Args:
        layout: Layout of the host's control groups. None: the host has no control groups.
        proc: Path of /proc.
    """
    if layout is None:
        return GroupBounds()
    memory_file = "memory.limit_in_bytes" if layout.version == 1 else "memory.max"
    text = (proc / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    return GroupBounds(
        memory=_bounds(layout, group_of(text, "memory"), "memory", memory_file),
        pids=_bounds(layout, group_of(text, "pids"), "pids", "pids.max"),
    )


def group_of(cgroup: str, controller: str) -> Path:
    """Return the path of a process's control group, relative to the mount point of the hierarchy.

    Args:
        cgroup: Text of ``/proc/PID/cgroup`` (cgroups(7)).
        controller: Name of a controller. The path is in the hierarchy of this controller. If the text names no such hierarchy, the path is in the
            unified hierarchy.
    """
    unified = Path()
    for line in cgroup.splitlines():
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            return Path(group.lstrip("/"))
        if not controllers:
            unified = Path(group.lstrip("/"))
    return unified


def _bounds(layout: Layout, group: Path, controller: str, file: str) -> tuple[Bound, ...]:
    """Read one limit file in a control group and in each group above it. Groups without a limit are omitted."""
    found: list[Bound] = []
    mount = layout.home(controller)
    for level in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            value = int((mount / level / file).read_text(encoding="ascii"))  # "max" means no limit
            if value < _UNLIMITED_BYTES:
                found.append(Bound(value, mount / level))
    return tuple(found)


def _left(bounds: tuple[Bound, ...], used: Callable[[Path], int]) -> list[int]:
    """Return each limit minus the current use of its group, which ``used`` returns. Groups that were removed contain no processes and are omitted."""
    left: list[int] = []
    for bound in bounds:
        with contextlib.suppress(OSError, ValueError):
            left.append(bound.limit - used(bound.group))
    return left
