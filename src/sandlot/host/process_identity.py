"""Identity of a process beyond its pid, and waiting for its end.

Invariants:
- A pid is ambiguous once its process may have ended. An identity is the pid **and** the start time in clock ticks since boot (field 22 of
  ``/proc/PID/stat``, proc(5)). The pair is unique until the next boot.
- The event loop waits for ends through pidfds, so the process need not be a child of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_START_FIELD = 22
_NAME_FIELDS = 2
"""Number of fields up to the name, which may contain spaces and parentheses."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of one process, unique until the next boot.

    Args:
        pid: Process id.
        start_ticks: Start time, in clock ticks since boot.
    """

    pid: int
    start_ticks: int


def read_start(stat: str) -> int:
    """Return the start time in the text of a ``/proc/PID/stat``.

    Raises:
        ValueError: The text has another format.
    """
    fields = stat.rpartition(")")[2].split()
    try:
        return int(fields[_START_FIELD - _NAME_FIELDS - 1])
    except IndexError:
        raise ValueError(f"not the stat of a process: {stat!r}") from None


def identify(pid: int) -> Identity | None:
    """Return the identity of the process that has this pid now, or None if there is none."""
    try:
        return Identity(pid, read_start(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError):
        return None


def open_process(identity: Identity) -> int | None:
    """Return a pidfd of the process, which the caller closes, or None if the process has ended.

    The identity is compared after the descriptor was opened. From then on the descriptor cannot refer to another process.
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
    """Wait until the process of a pidfd has ended, whether or not it was reaped. The descriptor stays open.

    Each waiter needs its own descriptor, because an event loop has one reader per descriptor.
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
    """Wait until the process of a pidfd has ended. Return False if it has not ended after ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wait_ended(handle)
        return True
    return False
