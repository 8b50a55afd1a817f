"""Identify a process by its pid and its start time, and wait until a process has ended.

Invariants:
- Once a process has ended, another process may get its pid. An identity is therefore the pid **and** the start time in clock ticks since boot
  (field 22 of ``/proc/PID/stat``, proc(5)). This pair is unique until the next boot.
- The event loop waits through pidfds until processes end, so a process need not be a child of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_START_FIELD = 22
"""Number of the field of ``/proc/PID/stat`` with the start time, counted from 1."""
_FLAGS_FIELD = 9
"""Number of the field of ``/proc/PID/stat`` with the flags of the process, counted from 1."""
_EXITING = 0x4
"""PF_EXITING in the kernel's ``include/linux/sched.h``."""
_NAME_FIELDS = 2
"""Number of fields of ``/proc/PID/stat`` up to the name of the program, which may contain spaces and parentheses."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of one process, unique until the next boot.

    Args:
        pid: Process id.
        start_ticks: Start time of the process, in clock ticks since boot.
    """

    pid: int
    start_ticks: int


def read_start(stat: str) -> int:
    """Return the start time of a process in clock ticks since boot.

    Args:
        stat: Text of ``/proc/PID/stat``.

    Raises:
        ValueError: The text has no field with the start time.
    """
    fields = stat.rpartition(")")[2].split()
    try:
        return int(fields[_START_FIELD - _NAME_FIELDS - 1])
    except IndexError:
        raise ValueError(f"text of /proc/PID/stat without a start time: {stat!r}") from None


def is_exiting(stat: str) -> bool:
    """Return whether the kernel is ending a process or has ended it.

    Such a process has begun to close its files, but a pidfd reports its end only later: the kernel first frees the memory, which takes a while.

    Args:
        stat: Text of ``/proc/PID/stat``.

    Raises:
        ValueError: The text has no field with the flags.
    """
    fields = stat.rpartition(")")[2].split()
    try:
        return bool(int(fields[_FLAGS_FIELD - _NAME_FIELDS - 1]) & _EXITING)
    except IndexError:
        raise ValueError(f"text of /proc/PID/stat without flags: {stat!r}") from None


def is_ending(identity: Identity) -> bool:
    """Return whether a process has ended or is ending. It does not run any more."""
    try:
        stat = Path(f"/proc/{identity.pid}/stat").read_text(encoding="utf-8", errors="replace")
        return read_start(stat) != identity.start_ticks or is_exiting(stat)
    except (OSError, ValueError):
        return True


def identify(pid: int) -> Identity | None:
    """Return the identity of the process that has this pid now, or None if there is no such process."""
    try:
        return Identity(pid, read_start(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError):
        return None


def open_process(identity: Identity) -> int | None:
    """Return a pidfd of a process, or None if the process has ended. The caller must close the pidfd.

    The identity is compared after the pidfd was opened, because an open pidfd always refers to the same process.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if identify(identity.pid) != identity:
        os.close(handle)
        return None
    return handle


async def wait_ended(handle: int) -> None:
    """Wait until the process that a pidfd refers to has ended. The process need not have been reaped. The pidfd stays open.

    Concurrent calls need different pidfds, because an event loop has only one reader per descriptor.

    Args:
        handle: Pidfd of the process.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        if not done.done():
            done.set_result(None)

    loop.add_reader(handle, readable)
    try:
        await done
    finally:
        loop.remove_reader(handle)


async def wait_ended_within(handle: int, seconds: float) -> bool:
    """Wait at most ``seconds`` until the process of the pidfd ``handle`` has ended. Return whether the process has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wait_ended(handle)
        return True
    return False
