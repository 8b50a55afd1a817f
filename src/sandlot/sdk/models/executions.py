"""Executions: the log of runs of code and commands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sandlot.model.faults import Fault
from sandlot.sdk.models.values import short_repr


class ExecutionStatus(StrEnum):
    """Outcome of a run of code or of a command."""

    RUNNING = "running"
    OK = "ok"
    """The code ran to its end."""
    ERROR = "error"
    """The code raised an exception or was interrupted."""
    TIMEOUT = "timeout"
    """The timeout passed."""
    KILLED = "killed"
    """The kernel was killed by request: its context was restarted or deleted, the code ignored an interrupt, or the sandbox was killed."""
    DIED = "died"
    """The kernel ended."""
    OOM = "oom"
    """The kernel or the command was killed at the memory limit."""
    ABORTED = "aborted"
    """The code was withdrawn before its turn."""
    EXITED = "exited"
    """The command exited by itself."""
    SIGNALLED = "signalled"
    """A signal ended the command."""
    PIDS = "pids"
    """The command was killed because it started too many processes."""
    LOST = "lost"
    """The outcome is unknown, because the sandbox or the service ended."""


@dataclass(frozen=True, slots=True, repr=False)
class ExecutionInfo:
    """One run of code or of a command in the execution log.

    Args:
        id: Id of the process or of the run of code.
        sandbox: Id of the sandbox.
        kind: ``code`` or ``command``.
        status: Outcome, or ``running``.
        created_at: Start time.
        language: Language of code.
        code: Code; the beginning and the end if it is longer than 64 KiB.
        argv: Program and arguments of a command.
        exit_code: Exit code of a command that ended, as in ``CommandResult``.
        duration_s: Duration in seconds; None while it runs.
        stdout: Standard output; the beginning and the end if it is longer than 64 KiB.
        stderr: Standard error, shortened likewise.
        stdout_omitted_bytes: Bytes left out of ``stdout``.
        stderr_omitted_bytes: Bytes left out of ``stderr``.
        error: Exception of code that failed.
        fault: Fault class if the run failed: ``code``, ``request``, ``limit``, ``capacity``, ``platform`` or ``lost``; otherwise None.
        files: Number of files created or changed; None if they were not tracked.
        origin: API that started the run.
        owner: Id of the API key that owns the sandbox, or ``local``.
        execution_count: Number of code in its context; None for a command.
        results_bytes: Size of the rich results and the exception of code, which ``client.executions.results`` returns.
    """

    id: str
    sandbox: str
    kind: str
    status: ExecutionStatus | str
    created_at: datetime
    language: str | None = None
    code: str | None = None
    argv: tuple[str, ...] | None = None
    exit_code: int | None = None
    duration_s: float | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_omitted_bytes: int = 0
    stderr_omitted_bytes: int = 0
    error: str | None = None
    fault: Fault | str | None = None
    files: int | None = None
    origin: str = "native"
    owner: str = ""
    execution_count: int | None = None
    results_bytes: int = 0

    __repr__ = short_repr("id", "kind", "status", "sandbox")

    @property
    def timed_out(self) -> bool:
        """True if the run was ended at its timeout."""
        return self.status == "timeout"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A piece of output in the log of a sandbox.

    Args:
        execution: Id of the process or of the run of code that wrote it.
        stream: ``stdout`` or ``stderr``.
        text: Text; bytes that are not UTF-8 are U+FFFD.
        omitted_bytes: Bytes left out: the middle of long output, or output that was written faster than it was read.
        at: Start time of the run; None for output that was followed live.
        running: True if the run may write more.
    """

    execution: str
    stream: str
    text: str = ""
    omitted_bytes: int = 0
    at: datetime | None = None
    running: bool = True
