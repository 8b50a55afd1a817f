"""What this machine has for sandboxes, and what of it is free: read from the kernel, never estimated.

=======  ========================================================  =======================================================
what     has                                                       free
=======  ========================================================  =======================================================
memory   MemTotal, or the limit of the group that this process     MemAvailable (proc(5)): what can be had without swapping;
         was started in                                            or what the limit leaves to the group, its files' cache
                                                                   not counted, where that is less
disk     the size of the file system of the state directory        what is not taken there, by whomever
pids     the least of kernel.pid_max, kernel.threads-max and       the first two, less the tasks that there are; or what
         the groups' pids.max                                      pids.max leaves to the group, where that is less
=======  ========================================================  =======================================================

The limits of control groups are read once, at the start: they are what whoever started the service meant it to have, and the
service moves to a group of its own afterwards (``own.py``). What is used of them is read with everything else: a bound group is
compared with its own use, and the machine's tasks are not held against a group that has few.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.hierarchies import Layout
from sandlot.model.ports import HostReading, Resources

PROC = Path("/proc")
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, stat(2)."""
_UNLIMITED_BYTES = 1 << 60
"""Version 1 says "no limit" by a huge number."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit of a control group.

    Args:
        most: It.
        group: The group's folder, where what it uses is read.
    """

    most: int
    group: Path


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """What control groups leave to a process and all that it starts; none is no bound."""

    memory: tuple[Bound, ...] = ()
    pids: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """This machine, as sandboxes of one state directory find it.

    Args:
        data_dir: The state directory.
        sandboxes: The folder in it that the sandboxes' files are in; need not exist.
        bounds: Of the groups that the service was started in.
        proc: Where /proc is.
        volumes: The folder in it that volumes are in; need not exist.
    """

    data_dir: Path
    sandboxes: Path
    bounds: GroupBounds
    proc: Path = PROC
    volumes: Path | None = None

    def read(self) -> HostReading:
        """Look at it; blocks for some milliseconds.

        Raises:
            OSError: The kernel does not say.
        """
        memory = read_meminfo((self.proc / "meminfo").read_text(encoding="ascii"))
        most = most_tasks(self.proc)
        disk = os.statvfs(self.data_dir)
        free_tasks = most - tasks((self.proc / "loadavg").read_text(encoding="ascii"))
        return HostReading(
            total=Resources(
                memory_bytes=min([memory["MemTotal"], *(bound.most for bound in self.bounds.memory)]),
                disk_bytes=disk.f_blocks * disk.f_frsize,
                pids=min([most, *(bound.most for bound in self.bounds.pids)]),
            ),
            free=Resources(
                memory_bytes=max(0, min([memory["MemAvailable"], *_left(self.bounds.memory, used_memory)])),
                disk_bytes=disk.f_bavail * disk.f_frsize,
                pids=max(0, min([free_tasks, *_left(self.bounds.pids, used_tasks)])),
            ),
            sandbox_disk_bytes=held_bytes(self.sandboxes) + (0 if self.volumes is None else held_bytes(self.volumes, deep=False)),
        )


def read_meminfo(text: str) -> dict[str, int]:
    """``/proc/meminfo`` in bytes: name -> amount (proc(5))."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def tasks(loadavg: str) -> int:
    """How many tasks there are, by the text of ``/proc/loadavg``: the fourth field is running/all (proc(5))."""
    return int(loadavg.split()[3].partition("/")[2])


def most_tasks(proc: Path) -> int:
    """How many tasks there may be on the machine."""
    return min(int((proc / "sys/kernel" / name).read_text(encoding="ascii")) for name in ("pid_max", "threads-max"))


def used_memory(group: Path) -> int:
    """What a group has of memory that cannot simply be had back: without its files' cache (memory.rst, cgroup-v2.rst).

    Raises:
        OSError: There is no such group.
    """
    old = group / "memory.usage_in_bytes"
    usage, prefix = (old, "total_") if old.exists() else (group / "memory.current", "")
    used = int(usage.read_text(encoding="ascii"))
    stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    return max(0, used - int(stat.get(f"{prefix}active_file", 0)) - int(stat.get(f"{prefix}inactive_file", 0)))


def used_tasks(group: Path) -> int:
    """How many tasks a group has.

    Raises:
        OSError: There is no such group.
    """
    return int((group / "pids.current").read_text(encoding="ascii"))


def held_bytes(folder: Path, *, deep: bool = True) -> int:
    """What the files below a folder occupy. Files that come and go meanwhile do not matter; links are not followed.

    Args:
        folder: Which.
        deep: Whether those in folders below it count as well.
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
    """What the control groups that this process is in leave to it, their parents included.

    Args:
        layout: Where the controllers are; None where the host has none.
        proc: Where /proc is.
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
    """The group that a process is in, by the text of its ``/proc/PID/cgroup`` (cgroups(7)): relative to the mount.

    Args:
        cgroup: The text.
        controller: Whose hierarchy; the unified one's where no other has it.
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
    """The numbers in a file of a group and of all above it."""
    found: list[Bound] = []
    mount = layout.home(controller)
    for level in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            value = int((mount / level / file).read_text(encoding="ascii"))  # "max" is no number
            if value < _UNLIMITED_BYTES:
                found.append(Bound(value, mount / level))
    return tuple(found)


def _left(bounds: tuple[Bound, ...], used: Callable[[Path], int]) -> list[int]:
    """What bounds leave; nothing is said of a group that is gone since, because whoever was in it is elsewhere."""
    left: list[int] = []
    for bound in bounds:
        with contextlib.suppress(OSError, ValueError):
            left.append(bound.most - used(bound.group))
    return left
