"""Values that the link returns. Values from a guest are created only by :mod:`sandlot.link.parse`, which checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandlot.model.ids import ProcessId


class LinkClosedReason(StrEnum):
    """Reason of the end of a link."""

    EOF = "eof"
    """The sandbox closed its end, because it has ended or is about to end."""
    BROKEN = "broken"
    """The sandbox no longer reads its end."""
    VIOLATION = "violation"
    """The guest violated the protocol; the sandbox must be destroyed."""
    CLOSED = "closed"
    """The host closed its end. The sandbox keeps running."""


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The end of a link."""

    reason: LinkClosedReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that a process or a cell has written.

    Args:
        channel: 1 is standard output, 2 is standard error.
        offset: Position of the first byte in the output of the channel. To continue after these bytes, attach with ``offset + len(data)``.
        data: The bytes.
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
        offset: Position of the first missing byte in the output of the channel.
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
        metadata: Metadata that the program gave: texts, numbers, lists and maps, by MIME type or for all types.
        display_id: Id of the display, if the program gave it one.
        update: True if this display replaces the display with the same id.
    """

    data: Mapping[str, str | bytes]
    main: bool
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A cell has started. ``count`` is its number in its kernel."""

    count: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cell removes its displays: now, or if ``wait`` is true, when its next display arrives."""

    wait: bool


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """The result of a process.

    Args:
        process: Id of the process.
        pid: Pid inside the sandbox.
        reason: exited, signalled, timeout, pids or oom. None for a process that was started without waiting for its end.
        exit_code: Exit code; None if a signal ended the process.
        signal: Number of the signal that ended the process; None if the process exited.
        duration_s: Run time in seconds.
        cpu_s: CPU time in seconds of the process and the children that it waited for; None if unknown.
        peak_bytes: Largest resident memory of one of these processes in bytes; None if unknown.
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
    """The result of a cell.

    The status is ok, error, timeout (interrupted), killed (the kernel was killed), died, oom (the kernel was killed for lack of memory) or
    aborted (the cell never ran).
    """

    status: str
    execution_count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One context: a language with a kernel that keeps its state.

    Args:
        kernel: Id of the context.
        language: python, bash or javascript.
        cwd: Folder in which the kernel starts.
        state: starting, idle, busy, or stopped if no kernel runs; the next cell then starts one.
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
    """One process that the guest remembers, running or not.

    Args:
        process: Id of the process.
        pid: Pid inside the sandbox.
        argv: The first 64 of program and arguments.
        running: True if the process has not ended.
        reason: Reason of the end: exited, signalled, timeout, pids or oom; None while it runs.
        exit_code: Exit code; None while the process runs, or if a signal ended it.
        signal: Number of the signal that ended the process; None otherwise.
        duration_s: Run time so far in seconds.
        pty: True if the process runs on a terminal.
        stdin: True if standard input is open.
        stdin_bytes: Bytes received for standard input so far, including those that the process has not read.
        stdout_bytes: Bytes written to standard output so far.
        stderr_bytes: Bytes written to standard error so far.
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
    """One file, folder or link.

    Args:
        name: Last part of the path.
        path: Absolute path inside the sandbox.
        kind: file, directory, symlink or other.
        size: Size in bytes.
        mode: Permission bits.
        uid: User id of the owner.
        gid: Group id of the file.
        modified_ns: Time of the last change in nanoseconds since 1970, UTC.
        target: Target of a symbolic link.
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
    """A page of the entries of a folder. ``more`` is true if further entries follow."""

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
        tasks: Number of processes and threads, as the limit ``pids`` counts them: without the guest itself.
        cpu_s: CPU time in seconds of all processes so far, including those that have ended.
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
"""An item of the output of a process or a cell."""
