"""Reason why a sandbox ended, decided from the evidence on the host. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from sandlot.model.ports import Exit, ExitReason

_FAULTS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP))
"""Signals that a process causes itself (signal(7)). SIGSYS comes from its own seccomp filter."""
_SIGNALLED = 128
_DETAIL_CHARS = 1500
DESTROYED, SAVED = "the sandbox was destroyed", "the sandbox was written to a snapshot"
"""Reasons for which the service itself ends a sandbox."""
_NO_TASK = "failed to get clone"
"""Part of gVisor's last message if gVisor ends because the task limit of its control group does not allow another thread on the host."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence about the end of a sandbox.

    Args:
        status: Exit code of the sandbox's process on the host; negative: the signal that killed the process. None: no exit code was recorded,
            because the keeper, the process that receives the exit code, was killed.
        kept_headroom: True if the service ended the sandbox, because the sandbox did not return the headroom of a snapshot or restore.
        ended_for: Reason for which the service ended the sandbox. Empty: the service did not end the sandbox.
        oom_kills: Number of tasks of the sandbox that the kernel killed because of the memory limit.
        panic: First part of the runtime's output about its crash. Empty: the runtime did not crash.
        disk_full: True if the sandbox has written its whole disk. Read only for a runtime that has failed.
        memory_bytes: Memory limit of the sandbox.
        oom_statuses: Exit codes that the sandbox's process can have after an out-of-memory kill in the sandbox.
    """

    status: int | None
    kept_headroom: bool
    ended_for: str
    oom_kills: int
    panic: str
    disk_full: bool
    memory_bytes: int
    oom_statuses: frozenset[int]


def has_failed(status: int | None, panic: str) -> bool:
    """Return whether the runtime itself has failed."""
    return bool(panic) or (status is not None and -status in _FAULTS)


def explain(evidence: Evidence) -> Exit:  # noqa: C901, PLR0911 - each return is one row of a table
    """Return the reason why a sandbox ended.

    A task that the kernel killed because of the memory limit may have been any process inside, and it may have died long before the sandbox ended. So
    the reason is OOM only if such a task was killed and the exit code is one of ``oom_statuses`` or is unknown.
    """
    status, panic = evidence.status, evidence.panic[:_DETAIL_CHARS].strip()
    if status == 0:
        return Exit(ExitReason.EXITED)
    if evidence.kept_headroom:
        limit = f"{evidence.memory_bytes // 2**20} MiB"
        return Exit(ExitReason.OOM, f"the sandbox did not return the memory that it was lent for a snapshot or restore, and used more than {limit}")
    # The service kills the runtime and the guest at the same time. If the guest dies first, the runtime may exit with 128 + SIGKILL, which
    # means that the guest was killed.
    if evidence.ended_for and status in {None, -signal.SIGKILL, _SIGNALLED + signal.SIGKILL}:
        return Exit(ExitReason.KILLED, evidence.ended_for)
    if evidence.oom_kills and (status is None or status in evidence.oom_statuses):
        return Exit(ExitReason.OOM, f"the sandbox reached its memory limit of {evidence.memory_bytes // 2**20} MiB")
    failed = has_failed(status, panic)
    if failed and evidence.disk_full:
        return Exit(ExitReason.DISK, f"the disk is full and the runtime failed: {panic or status}")
    if _NO_TASK in panic:
        return Exit(
            ExitReason.CRASHED,
            f"the sandbox started processes faster than they could be ended, and the runtime could not start another thread: {panic}",
        )
    if failed:
        return Exit(ExitReason.CRASHED, panic or f"the runtime received signal {-(status or 0)} ({signal.Signals(-(status or 0)).name})")
    if status is None:
        return Exit(ExitReason.CRASHED, "the sandbox has ended, and its exit code is unknown")
    if status < 0:
        return Exit(ExitReason.CRASHED, f"the runtime received signal {-status}")
    if status > _SIGNALLED:
        # If a signal ended the guest, runsc ends with the code 128 plus the number of the signal, as a shell does.
        return Exit(ExitReason.CRASHED, f"the guest received signal {status - _SIGNALLED}")
    return Exit(ExitReason.EXITED, f"the guest ended with code {status}")
