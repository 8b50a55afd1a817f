"""Pure: from what is known after the end of a sandbox to the reason why it ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from sandlot.model.ports import Exit, ExitReason

_FAULTS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP))
"""Signals that a process brings upon itself (signal(7)); SIGSYS is its own seccomp filter."""
_SIGNALLED = 128
_DETAIL_CHARS = 1500
DESTROYED, SAVED = "it was destroyed", "it was written to a snapshot"
"""Why the service ends one."""
_NO_TASK = "failed to get clone"
"""What gVisor says, and ends of, where the control group's limit of tasks refuses it a thread of the host."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known.

    Args:
        status: Exit code of the runtime's process, negative for a signal; None if its keeper was lost.
        ended_for: Why the service ended it; empty if it did not.
        oom_kills: How many of its tasks the kernel killed for the memory limit.
        panic: What the runtime wrote when it failed, from its beginning.
        disk_full: Whether its disk has no space left.
        memory_bytes: Its memory limit.
        oom_statuses: The codes that an end by that limit has with its runtime.
    """

    status: int | None
    ended_for: str
    oom_kills: int
    panic: str
    disk_full: bool
    memory_bytes: int
    oom_statuses: frozenset[int]


def explain(evidence: Evidence) -> Exit:  # noqa: PLR0911 - one row of a table each
    """Why it ended.

    What the kernel killed for the memory limit may have been a greedy process inside, long ago, while the sandbox went on: so it
    ended by that only where its code is one that such an end has, or nobody saw its code.
    """
    status, panic = evidence.status, evidence.panic[:_DETAIL_CHARS].strip()
    if status == 0:
        return Exit(ExitReason.EXITED)
    # All of it is killed at once: the runtime, or before that the guest under its eyes.
    if evidence.ended_for and status in {None, -signal.SIGKILL, _SIGNALLED + signal.SIGKILL}:
        return Exit(ExitReason.KILLED, evidence.ended_for)
    if evidence.oom_kills and (status is None or status in evidence.oom_statuses):
        return Exit(ExitReason.OOM, f"it reached its memory limit of {evidence.memory_bytes // 2**20} MiB")
    failed = bool(panic) or (status is not None and -status in _FAULTS)
    if failed and evidence.disk_full:
        return Exit(ExitReason.DISK, f"its disk is full and its runtime failed: {panic or status}")
    if _NO_TASK in panic:
        return Exit(ExitReason.CRASHED, f"it made processes faster than they could be ended, and its runtime had no thread left: {panic}")
    if failed:
        return Exit(ExitReason.CRASHED, panic or f"its runtime got signal {-(status or 0)} ({signal.Signals(-(status or 0)).name})")
    if status is None:
        return Exit(ExitReason.KILLED, "it is gone, and nobody saw how")
    if status < 0:
        return Exit(ExitReason.KILLED, f"its runtime got signal {-status}")
    if status > _SIGNALLED:
        # runsc passes signals on to the guest, and says like a shell how that ended.
        number = status - _SIGNALLED
        return Exit(ExitReason.CRASHED if number in _FAULTS else ExitReason.KILLED, f"the guest got signal {number}")
    return Exit(ExitReason.EXITED, f"the guest ended with code {status}")
