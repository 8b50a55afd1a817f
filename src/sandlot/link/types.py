"""Values that the link returns. Values from a guest are created only by :mod:`sandlot.link.parse`, which checks them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sandlot.model.executions import CellError, Display, Output, OutputGap
from sandlot.model.ids import ProcessId


class LinkClosedReason(StrEnum):
    """Reason why a link ended."""

    EOF = "eof"
    """The sandbox closed its end of the byte stream. The sandbox has ended or is about to end."""
    BROKEN = "broken"
    """Reading from or writing to the byte stream failed, because the sandbox no longer uses its end."""
    VIOLATION = "violation"
    """The guest violated the protocol; the sandbox must be destroyed."""
    CLOSED = "closed"
    """The host closed its end of the byte stream. The sandbox keeps running."""


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """Description of how a link ended.

    Args:
        reason: Reason why the link ended.
        detail: Details for people; may be empty.
    """

    reason: LinkClosedReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """Result of a call that starts a process, attaches to a process or waits for a process.

    Args:
        process: Id of the process.
        pid: Pid inside the sandbox.
        reason: Reason why the process ended: exited, signalled, timeout, pids or oom. None if the call did not wait until the process ended.
        exit_code: Exit code; None if a signal ended the process or if ``reason`` is None.
        signal: Number of the signal that ended the process; None if no signal ended the process.
        duration_s: Run time in seconds.
        cpu_s: CPU time in seconds of the process and of the children that the process waited for; None if unknown.
        peak_bytes: Largest resident memory in bytes that the process, or a child that the process waited for, has used; None if unknown.
    """

    process: ProcessId
    pid: int
    reason: str | None
    exit_code: int | None
    signal: int | None
    duration_s: float
    cpu_s: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CellResult:
    """Result of a cell.

    Args:
        status: ``ok``, ``error``, ``timeout`` (the cell was interrupted at its timeout), ``killed`` (the kernel was killed), ``died`` (the kernel
            ended by itself), ``oom`` (the kernel was killed for lack of memory), ``aborted`` (the cell never ran) or ``running`` (not ended yet).
        execution_count: Execution count of the kernel when the cell started.
        duration_s: Run time in seconds.
    """

    status: str
    execution_count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """Description of one context. A context runs cells of one language in a kernel that keeps variables between cells.

    Args:
        kernel: Id of the context.
        language: python, javascript, typescript, bash or r.
        cwd: Folder in which the kernel starts.
        state: State of the kernel: starting, idle, busy or stopped. The next cell of a stopped context starts a new kernel.
        execution_count: Number of cells that the kernel has run.
        pid: Pid of the kernel inside the sandbox; None if no kernel runs.
    """

    kernel: str
    language: str
    cwd: str
    state: str
    execution_count: int
    pid: int | None


Item = Output | OutputGap | Display | CellError
"""One item that a caller receives from a process or a cell."""
