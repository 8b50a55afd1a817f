"""Who a process is, beyond its pid, and when it ends.

Laws:
- A pid alone names nobody once its process may have ended: an identity is the pid **and** the moment it started, in clock
  ticks since boot (field 22 of ``/proc/PID/stat``, proc(5)). The pair is unique until the next boot.
- Ends are awaited through pidfds on the event loop, so that it does not matter whose child a process is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_START_FIELD = 22
_NAME_FIELDS = 2
"""Fields before the one that may contain spaces and parentheses end with it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for as long as the machine runs.

    Args:
        pid: Its id.
        start_ticks: When it started, in clock ticks since boot.
    """

    pid: int
    start_ticks: int


def read_start(stat: str) -> int:
    """The start time in the text of a ``/proc/PID/stat``.

    Raises:
        ValueError: It is not such a text.
    """
    fields = stat.rpartition(")")[2].split()
    try:
        return int(fields[_START_FIELD - _NAME_FIELDS - 1])
    except IndexError:
        raise ValueError(f"not the stat of a process: {stat!r}") from None


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None if there is none."""
    try:
        return Identity(pid, read_start(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError):
        return None


def open_process(identity: Identity) -> int | None:
    """A pidfd of exactly that process, for the caller to close; None if it has ended.

    The identity is compared after opening: from then on the descriptor cannot come to mean another process.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if identify(identity.pid) != identity:
        os.close(handle)
        return None
    return handle


async def ended(handle: int) -> None:
    """Return once the process of a pidfd has ended, reaped or not. The descriptor stays open, and is the caller's.

    Each waiter needs a descriptor of its own: an event loop knows one reader per descriptor.
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


async def ended_within(handle: int, seconds: float) -> bool:
    """Whether the process of a pidfd ended within that time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ended(handle)
        return True
    return False
