"""Output, events and results of cells and processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandlot.model.ids import ProcessId


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


@dataclass(frozen=True, slots=True)
class Cleared:
    """Event: a cell requests that all its displays be removed.

    Args:
        wait: True to remove the displays when the next display of the cell arrives; False to remove the displays at once.
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
