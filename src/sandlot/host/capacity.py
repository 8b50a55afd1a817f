"""Capacity of the machine for sandboxes and its free part, read from the kernel.

=======  =========================================================  ============================================================
         capacity                                                   free
=======  =========================================================  ============================================================
memory   MemTotal, or the limit of the group in which this process  MemAvailable (proc(5)), which needs no swapping; or the rest
         was started                                                of the group's limit without its file cache, if that is less
disk     size of the file system of the state directory             free blocks of this file system
pids     the least of kernel.pid_max, kernel.threads-max and the    the first two, minus all tasks; or the rest of the group's
         groups' pids.max                                           pids.max, if that is less
=======  =========================================================  ============================================================

The limits of control groups are read once at the start: they are the limits that the operator set for the service, and the service moves to its own
group afterwards (``service_cgroup.py``). Their use is read each time. The limit of a group is compared with the use of that group only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.cgroup_layout import Layout
from sandlot.model.ports import HostReading, Resources

PROC = Path("/proc")
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, stat(2)."""
_UNLIMITED_BYTES = 1 << 60
"""Version 1 of control groups reports a number above this if there is no limit."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit of a control group.

    Args:
        limit: The limit.
        group: Folder of the group, in which its use is read.
    """

    limit: int
    group: Path


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Limits of the control groups that contain this process: its own and their parents."""

    memory: tuple[Bound, ...] = ()
    pids: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """This machine and one state directory.

    Args:
        data_dir: The state directory.
        sandboxes: Its folder with the files of sandboxes; may not exist.
        bounds: Limits of the groups in which the service was started.
        proc: Path of /proc.
        volumes: Its folder with volumes; may not exist.
    """

    data_dir: Path
    sandboxes: Path
    bounds: GroupBounds
    proc: Path = PROC
    volumes: Path | None = None

    def read(self) -> HostReading:
        """Read the capacity and its free part. Blocks for some milliseconds.

        Raises:
            OSError: A file of the kernel cannot be read.
        """
        memory = read_meminfo((self.proc / "meminfo").read_text(encoding="ascii"))
        max_count = max_tasks(self.proc)
        disk = os.statvfs(self.data_dir)
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
            sandbox_disk_bytes=held_bytes(self.sandboxes) + (0 if self.volumes is None else held_bytes(self.volumes, deep=False)),
        )


def read_meminfo(text: str) -> dict[str, int]:
    """Parse ``/proc/meminfo`` (proc(5)): name -> bytes."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def count_tasks(loadavg: str) -> int:
    """Return the number of tasks in the text of ``/proc/loadavg``: the fourth field is running/all (proc(5))."""
    return int(loadavg.split()[3].partition("/")[2])


def max_tasks(proc: Path) -> int:
    """Return the largest number of tasks on the machine."""
    return min(int((proc / "sys/kernel" / name).read_text(encoding="ascii")) for name in ("pid_max", "threads-max"))


def used_memory(group: Path) -> int:
    """Return the memory of a group without its file cache, which the kernel can reclaim (memory.rst, cgroup-v2.rst).

    Raises:
        OSError: The group does not exist.
    """
    old = group / "memory.usage_in_bytes"
    usage, prefix = (old, "total_") if old.exists() else (group / "memory.current", "")
    used = int(usage.read_text(encoding="ascii"))
    stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    return max(0, used - int(stat.get(f"{prefix}active_file", 0)) - int(stat.get(f"{prefix}inactive_file", 0)))


def used_tasks(group: Path) -> int:
    """Return the number of tasks of a group.

    Raises:
        OSError: The group does not exist.
    """
    return int((group / "pids.current").read_text(encoding="ascii"))


def held_bytes(folder: Path, *, deep: bool = True) -> int:
    """Return the disk space of the files below a folder. Files that disappear meanwhile are ignored, links are not followed.

    Args:
        folder: The folder.
        deep: True: include subfolders.
    """
    held = 0
    for parent, folders, files in os.walk(folder):
        if not deep:
            folders.clear()
        for name in files:
            with contextlib.suppress(OSError):
                held += os.stat(os.path.join(parent, name), follow_symlinks=False).st_blocks * _BLOCK_BYTES  # noqa: PTH116, PTH118 - many
    return held


def own_bounds(layout: Layout | None, proc: Path = PROC) -> GroupBounds:
    """Return the limits of the control groups of this process and of their parents.

    Args:
        layout: Layout of the host's control groups. None: the host has none.
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
    """Return the group of a process, relative to the mount point of the hierarchy.

    Args:
        cgroup: Text of ``/proc/PID/cgroup`` (cgroups(7)).
        controller: Controller of the hierarchy. If no hierarchy has it, the unified hierarchy is used.
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
    """Return the limits in a file of a group and of all groups above it."""
    found: list[Bound] = []
    mount = layout.home(controller)
    for level in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            value = int((mount / level / file).read_text(encoding="ascii"))  # "max" means no limit
            if value < _UNLIMITED_BYTES:
                found.append(Bound(value, mount / level))
    return tuple(found)


def _left(bounds: tuple[Bound, ...], used: Callable[[Path], int]) -> list[int]:
    """Return the unused part of each limit. Groups that are gone are ignored, because their processes are in other groups."""
    left: list[int] = []
    for bound in bounds:
        with contextlib.suppress(OSError, ValueError):
            left.append(bound.limit - used(bound.group))
    return left
