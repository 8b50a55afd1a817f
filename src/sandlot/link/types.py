"""Values that the link returns. Values from a guest are created only by :mod:`sandlot.link.parse`, which checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

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
        language: python, bash or javascript.
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


@dataclass(frozen=True, slots=True)
class Entry:
    """Properties of one file, folder, symbolic link or other entry of the file system.

    Args:
        name: Last part of the path.
        path: Absolute path inside the sandbox.
        kind: file, directory, symlink or other.
        size: Size in bytes.
        mode: Permission bits.
        uid: User id of the owner.
        gid: Group id of the file.
        modified_ns: Time of the last change in nanoseconds since 1970, UTC.
        target: Target of a symbolic link; None for every other kind.
    """

    name: str
    path: str
    kind: str
    size: int
    mode: int
    uid: int
    gid: int
    modified_ns: int
    target: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of the entries of a folder.

    Args:
        entries: Entries of the page, sorted by name.
        more: True if the folder has further entries after this page.
    """

    entries: tuple[Entry, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class GuestInfo:
    """State and resource use of the guest.

    Args:
        generation: Generation of the protocol.
        identity: Id of the sandbox.
        uptime_s: Seconds since the guest started.
        processes: Number of processes in the sandbox, the guest included.
        tasks: Number of processes and threads in the sandbox without the guest. The limit ``pids`` applies to this number.
        cpu_s: CPU time in seconds of all processes, including processes that have ended.
        streams: Number of open streams of the link.
    """

    generation: int
    identity: str
    uptime_s: float
    processes: int
    tasks: int
    cpu_s: float
    streams: int


Item = Output | OutputGap | Display | CellError
"""One item that a caller receives from a process or a cell."""
