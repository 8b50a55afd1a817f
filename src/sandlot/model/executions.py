"""Output, events, parameters and results of cells and processes."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

from sandlot.model.errors import InvalidRequestError
from sandlot.model.faults import Fault
from sandlot.model.files import ChangedFile
from sandlot.model.ids import ProcessId
from sandlot.model.output_capture import OutputCapture

RUNNING: Final = "running"
KILLED: Final = "killed"
LOST: Final = "lost"
TIMEOUT_EXIT_CODE: Final = 124
"""Exit code of a run that its timeout ended, as that of timeout(1)."""
"""Status of an execution whose result cannot be determined."""


RUN_FAULTS: Final[Mapping[str, Fault | None]] = MappingProxyType(
    {
        RUNNING: None,
        "ok": None,
        "error": Fault.CODE,
        "timeout": Fault.CODE,
        KILLED: Fault.REQUEST,
        "died": Fault.CODE,
        "aborted": Fault.REQUEST,
        "exited": None,  # with an exit code other than 0: `code`
        "signalled": Fault.CODE,
        "oom": Fault.LIMIT,
        "pids": Fault.LIMIT,
        LOST: Fault.LOST,
    }
)
"""Status of a cell or of an execution, or reason of the end of a process -> fault class. A test checks that the table has every value."""


def run_fault(status: str, exit_code: int | None = None) -> Fault | None:
    """Return the fault class of a run; None if the run has not failed.

    Args:
        status: Key of ``RUN_FAULTS``.
        exit_code: Exit code of a process that has exited.
    """
    return RUN_FAULTS[status] or (Fault.CODE if exit_code else None)


class Channel(IntEnum):
    """Output channel of a process or a cell."""

    STDOUT = 1
    """Standard output, and all output of a process that runs on a terminal."""
    STDERR = 2
    """Standard error."""


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that a process or a cell has written to standard output or standard error.

    Args:
        channel: 1 is standard output, 2 is standard error.
        offset: Number of bytes that were written to the channel before ``data``. To continue after ``data``, attach from ``offset + len(data)``.
        data: Written bytes.
    """

    channel: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class OutputGap:
    """A part of the output that is missing, because it was dropped before a client read it.

    Args:
        channel: 1 is standard output, 2 is standard error.
        bytes: Number of missing bytes.
        offset: Number of bytes that were written to the channel before the first missing byte.
    """

    channel: int
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Display:
    """A result that a cell displays.

    Args:
        data: Representations of one object: text or bytes by MIME type.
        main: True if the object is the value of the cell's last expression.
        metadata: Metadata that the program passed with the object. A key is a MIME type, or a name that applies to all MIME types.
        display_id: Id that the program gave the display; None if the program gave none.
        update: True if this display replaces the display with the same id.
    """

    data: Mapping[str, str | bytes]
    main: bool
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False


@dataclass(frozen=True, slots=True)
class CellStarted:
    """Event: a cell has started.

    Args:
        count: Execution count of the kernel when the cell started.
    """

    count: int


KERNEL_DIED: Final = "KernelDied"
"""Name of the error of a cell whose kernel ended."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """Event: a cell requests that all its displays and its output so far be removed.

    Args:
        wait: True to remove them when the next display or output of the cell arrives; False to remove them at once.
    """

    wait: bool


@dataclass(frozen=True, slots=True)
class CellError:
    """Event: an exception ended a cell.

    Args:
        name: Name of the exception, such as ``NameError``.
        value: Message of the exception.
        traceback: Lines of the traceback.
    """

    name: str
    value: str
    traceback: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellResults:
    """Results and exception of a cell in the execution log.

    Args:
        results: Results as a notebook shows them at the end.
        omitted: Number of results that the log does not keep.
        error: Exception that ended the cell; None if no exception did.
    """

    results: Sequence[Display] = ()
    omitted: int = 0
    error: CellError | None = None


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """State of one process that the guest remembers. The process may be running or may have ended.

    Args:
        process: Id of the process.
        pid: Pid inside the sandbox.
        argv: Program and arguments; at most the first 64 items of the command line.
        running: True if the process has not ended.
        reason: Reason why the process ended: exited, signalled, timeout, pids or oom; None while the process runs.
        exit_code: Exit code; None while the process runs, or if a signal ended it.
        signal: Number of the signal that ended the process; None if no signal has ended the process.
        duration_s: Run time in seconds; for a running process, until now.
        pty: True if the process runs on a terminal.
        stdin: True if standard input is open.
        stdin_bytes: Number of bytes received for standard input, including bytes that the process has not read.
        stdout_bytes: Number of bytes that were written to standard output.
        stderr_bytes: Number of bytes that were written to standard error.
        tag: Name that the client gave to the process; None if the client gave no name, or if an earlier service started the process.
        cwd: Working directory; None if it is the default or unknown.
        env: Variables added to the environment; empty if they were too long to be kept or are unknown.
        started_at: Time of the start; None if an earlier service started the process.
    """

    process: ProcessId
    pid: int
    argv: tuple[str, ...]
    running: bool
    reason: str | None
    exit_code: int | None
    signal: int | None
    duration_s: float
    pty: bool
    stdin: bool
    stdin_bytes: int
    stdout_bytes: int
    stderr_bytes: int
    tag: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    started_at: datetime | None = None

    @property
    def fault(self) -> Fault | None:
        """Fault class of the end of the process; None while the process runs."""
        return None if self.reason is None else run_fault(self.reason, self.exit_code)


@dataclass(frozen=True, slots=True)
class CodeStatus:
    """Status of a cell.

    Args:
        execution: Id of the cell.
        status: ``running``, or how the cell ended: ``ok``, ``error``, ``timeout``, ``killed``, ``died``, ``oom`` or ``aborted``.
        execution_count: Number of the cell in its context.
        duration_s: Seconds from start to end, measured by the guest.
    """

    execution: ProcessId
    status: str
    execution_count: int
    duration_s: float

    @property
    def timed_out(self) -> bool:
        """True if the timeout of the cell ended it."""
        return self.status == "timeout"

    @property
    def fault(self) -> Fault | None:
        """Fault class of the end of the cell."""
        return run_fault(self.status)


@dataclass(frozen=True, slots=True)
class CodePosition:
    """Position in the events and the output of a cell.

    Args:
        events: Number of start, display, clear and error events before the position.
        stdout: Byte offset in standard output; None is the oldest byte that the guest keeps.
        stderr: The same in standard error.
    """

    events: int = 0
    stdout: int | None = None
    stderr: int | None = None


@dataclass(frozen=True, slots=True)
class CodeResult:
    """Status of a cell, and the output, results and error that were collected."""

    outcome: CodeStatus
    stdout: OutputCapture
    stderr: OutputCapture
    results: Sequence[Display]
    results_omitted: int
    error: CellError | None
    position: CodePosition = CodePosition()

    @property
    def has_lost_its_kernel(self) -> bool:
        """True if the kernel ended with the cell, so that the variables of the context are lost."""
        return self.error is not None and self.error.name == KERNEL_DIED


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """Outcome of a process that has ended.

    Args:
        process: Id of the process.
        exit_code: Exit code as in a shell: 128 + signal if a signal ended the process, 124 if its timeout ended the process.
        signal: Number of the signal that ended the process; None if the process exited.
        reason: ``exited``, ``signalled``, ``timeout``, ``pids`` or ``oom``.
        duration_s: Seconds from start to end, measured by the guest.
        cpu_s: Processor seconds of the process and of the child processes that it waited for; None if unknown.
        peak_bytes: Largest resident memory of the process or of one of these child processes; None if unknown.
    """

    process: ProcessId
    exit_code: int
    signal: int | None
    reason: str
    duration_s: float
    cpu_s: float | None = None
    peak_bytes: int | None = None

    @property
    def timed_out(self) -> bool:
        """True if the timeout of the process ended it."""
        return self.reason == "timeout"

    @property
    def fault(self) -> Fault | None:
        """Fault class of the end of the process."""
        return run_fault(self.reason, self.exit_code)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Outcome and output of a process that was run to its end.

    Args:
        files: Files that the process created or changed, and True if there may be more such files; None if no folders were tracked.
    """

    outcome: ProcessOutcome
    stdout: OutputCapture
    stderr: OutputCapture
    files: tuple[Sequence[ChangedFile], bool] | None = None


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """Event: a process has started, or a client was attached to it.

    Args:
        process: Id of the process.
        pid: Process number inside the sandbox.
    """

    process: ProcessId
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """Event: a process has ended. The last event of its stream.

    Args:
        files: See :class:`CommandResult`.
    """

    outcome: ProcessOutcome
    files: tuple[Sequence[ChangedFile], bool] | None = None


ProcessEvent = ProcessStarted | Output | OutputGap | ProcessEnded
"""Event of the stream of a process."""


@dataclass(frozen=True, slots=True)
class CodeAccepted:
    """Event: the guest has accepted a cell, which may wait for its context.

    Args:
        execution: Id of the cell.
    """

    execution: ProcessId


@dataclass(frozen=True, slots=True)
class CodeEnded:
    """Event: a cell has ended. The last event of its stream."""

    status: CodeStatus


CodeEvent = CodeAccepted | CellStarted | Output | OutputGap | Display | Cleared | CellError | CodeEnded
"""Event of the stream of a cell."""


def exit_code(code: int | None, signal: int | None, reason: str | None = None) -> int:
    """Return an exit code as in a shell: 128 + signal if a signal ended the process, and 124, as timeout(1), if its timeout ended the process."""
    if reason == "timeout":
        return TIMEOUT_EXIT_CODE
    return 128 + signal if signal is not None else code or 0


_EXIT_EXCEPTIONS: Final = frozenset({"SystemExit", "ExitStatus"})
"""Exceptions whose value is an exit code: of Python, and of a line of a shell."""
_MAX_EXIT_DIGITS: Final = 9


def exception_exit_code(name: str, value: str) -> int:
    """Return the exit code of a program that an exception ended: 3 for ``sys.exit(3)`` and for a failed shell command with status 3.

    ``sys.exit()`` raises SystemExit with an empty value (documentation of Python, sys.exit). All other exceptions have the exit code 1.

    Args:
        name: Name of the exception.
        value: Message of the exception, as the sandbox sent it.
    """
    if name not in _EXIT_EXCEPTIONS:
        return 1
    if value in {"", "None"}:
        return 0
    return int(value) & 0xFF if value.lstrip("-").isdecimal() and value.isascii() and len(value) <= _MAX_EXIT_DIGITS else 1


CODE_KILLED_EXIT_CODE: Final = 137
"""Exit code of code whose kernel ended: 128 + SIGKILL."""
CODE_ABORTED_EXIT_CODE: Final = 130
"""Exit code of code that was withdrawn before its turn: 128 + SIGINT."""


def code_exit_code(status: str, error: tuple[str, str] | None) -> int:
    """Return the exit code of a program with the outcome of a cell.

    Args:
        status: Status of the cell.
        error: Name and value of the exception that ended the cell.
    """
    match status:
        case "ok":
            return 0
        case "error":
            return 1 if error is None else exception_exit_code(*error)
        case "timeout":
            return TIMEOUT_EXIT_CODE
        case "aborted":
            return CODE_ABORTED_EXIT_CODE
        case _:
            return CODE_KILLED_EXIT_CODE


@dataclass(frozen=True, slots=True)
class Context:
    """One context.

    Args:
        id: Id of the context.
        language: ``python``, ``javascript``, ``typescript``, ``bash`` or ``r``.
        cwd: Working directory in which the kernel started.
        state: ``starting``, ``idle``, ``busy`` or ``stopped``. If the context is stopped, the next cell starts its kernel.
        execution_count: Number of cells that have run.
        pid: Process number of the kernel inside the sandbox; None if no kernel runs.
    """

    id: str
    language: str
    cwd: str
    state: str
    execution_count: int
    pid: int | None


def signal_number(signal: str | int) -> int:
    """Return the number of a signal.

    Args:
        signal: Name or number: ``SIGTERM``, ``TERM`` or 15.

    Raises:
        InvalidRequestError: There is no such signal.
    """
    if isinstance(signal, str):
        name = signal.upper() if signal.upper().startswith("SIG") else f"SIG{signal.upper()}"
        number = signals.Signals.__members__.get(name, 0)
    else:
        number = signal
    if not 1 <= number < signals.NSIG:
        raise InvalidRequestError(
            f"There is no signal {str(signal)[:32]!r}.", hint="Pass a name such as SIGTERM, or a number.", fields={"field": "signal"}
        )
    return int(number)


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """Identity of an execution, and its description for the execution log.

    Args:
        id: Id that the client chose; None lets the service choose an id.
        origin: API of the request: ``native`` or the name of a compatibility API.
        language: Language of the code that a command runs. None: the command itself is logged.
        code: Code that the command runs.
        argv: Command line to log instead of the real command line.
    """

    id: ProcessId | None = None
    origin: str = "native"
    language: str | None = None
    code: str | None = None
    argv: Sequence[str] | None = None


NATIVE: Final = ExecutionOptions()
"""Options of a request of the native API: the service chooses the id."""
