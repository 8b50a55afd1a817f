"""What this machine has for sandboxes, and what of it is free: read from the kernel, never estimated.

=======  ========================================================  =======================================================
what     has                                                       free
=======  ========================================================  =======================================================
memory   MemTotal, or the limit of the group that this process     MemAvailable (proc(5)): what can be had without swapping
         was started in
disk     the size of the file system of the state directory        what is not taken there, by whomever
pids     the least of kernel.pid_max, kernel.threads-max and       that, less the tasks that there are
         the groups' pids.max
=======  ========================================================  =======================================================

The limits of control groups are read once, at the start: they are what whoever started the service meant it to have, and the
service moves to a group of its own afterwards (``own.py``).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.hierarchies import Layout
from sandlot.model.ports import Reading, Resources

PROC = Path("/proc")
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, stat(2)."""
_UNLIMITED_BYTES = 1 << 60
"""Version 1 says "no limit" by a huge number."""


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """What control groups leave to a process and all that it starts; None is no bound."""

    memory_bytes: int | None = None
    pids: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """This machine, as sandboxes of one state directory find it.

    Args:
        data_dir: The state directory.
        sandboxes: The folder in it that the sandboxes' files are in; need not exist.
        bounds: Of the groups that the service was started in.
        proc: Where /proc is.
    """

    data_dir: Path
    sandboxes: Path
    bounds: GroupBounds
    proc: Path = PROC

    def read(self) -> Reading:
        """Look at it; blocks for some milliseconds.

        Raises:
            OSError: The kernel does not say.
        """
        memory = read_meminfo((self.proc / "meminfo").read_text(encoding="ascii"))
        most = most_tasks(self.proc, self.bounds.pids)
        disk = os.statvfs(self.data_dir)
        memory_total = memory["MemTotal"] if self.bounds.memory_bytes is None else min(memory["MemTotal"], self.bounds.memory_bytes)
        return Reading(
            has=Resources(memory_bytes=memory_total, disk_bytes=disk.f_blocks * disk.f_frsize, pids=most),
            free=Resources(
                memory_bytes=memory["MemAvailable"],
                disk_bytes=disk.f_bavail * disk.f_frsize,
                pids=max(0, most - tasks((self.proc / "loadavg").read_text(encoding="ascii"))),
            ),
            held_disk_bytes=held_bytes(self.sandboxes),
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


def most_tasks(proc: Path, bound: int | None) -> int:
    """How many tasks there may be."""
    limits = [int((proc / "sys/kernel" / name).read_text(encoding="ascii")) for name in ("pid_max", "threads-max")]
    return min([*limits, *([] if bound is None else [bound])])


def held_bytes(folder: Path) -> int:
    """What the files below a folder occupy. Files that come and go meanwhile do not matter; links are not followed."""
    held = 0
    for parent, _, files in os.walk(folder):
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
    memory_files = ("memory.limit_in_bytes",) if layout.version == 1 else ("memory.max",)
    text = (proc / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    return GroupBounds(
        memory_bytes=_least(layout, group_of(text, "memory"), "memory", memory_files[0]),
        pids=_least(layout, group_of(text, "pids"), "pids", "pids.max"),
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


def _least(layout: Layout, group: Path, controller: str, file: str) -> int | None:
    """The least number in a file of a group and of all above it."""
    found: list[int] = []
    mount = layout.home(controller)
    for level in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            value = int((mount / level / file).read_text(encoding="ascii"))  # "max" is no number
            if value < _UNLIMITED_BYTES:
                found.append(value)
    return min(found, default=None)
