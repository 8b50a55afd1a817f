"""Frozen values that the link returns. Values that come from a guest are made only by :mod:`sandlot.link.parse`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandlot.model.ids import ProcessId


class LinkClosedReason(StrEnum):
    """Why a link has ended."""

    EOF = "eof"
    """The sandbox closed its end: it has ended, or is ending."""
    BROKEN = "broken"
    """The sandbox no longer reads its end."""
    VIOLATION = "violation"
    """The guest violated the protocol; the sandbox must be destroyed."""
    CLOSED = "closed"
    """The host closed its end; the sandbox lives on."""


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
        offset: Position of the first byte among all bytes of the channel. To continue after them, attach with ``offset + len(data)``.
        data: The bytes.
    """

    channel: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class OutputGap:
    """Bytes of the output that are no longer kept, because no reader took them in time.

    Args:
        channel: 1 is standard output, 2 is standard error.
        bytes: Number of bytes.
        offset: Position of the first of them.
    """

    channel: int
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Display:
    """A result that a cell displays.

    Args:
        data: Representations of one object: text or bytes by MIME type.
        main: The object is the value of the cell's last expression.
        metadata: Metadata of the program, by MIME type or for all: texts, numbers, lists and maps.
        display_id: Id of the display, if the program gave it one.
        update: Replace the display that has the same id.
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
    """A cell removes its displays; with ``wait`` only when it shows the next one."""

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
        reason: exited, signalled, timeout, pids or oom. None if it was started without waiting and still runs.
        exit_code: Exit code, if it exited.
        signal: Number of the signal that ended it, if one did.
        duration_s: Seconds that it ran.
        cpu_s: Processor time in seconds of the process and the children that it waited for; None if unknown.
        peak_bytes: Largest resident memory of one of them in bytes; None if unknown.
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
        state: starting, idle, busy or stopped (the next cell starts it).
        execution_count: Number of cells that the kernel has run.
        pid: Pid of the kernel inside the sandbox; None if none runs.
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
        argv: Program and arguments, the first 64 of them.
        running: The process has not ended.
        reason: Why it ended: exited, signalled, timeout, pids or oom.
        exit_code: Exit code, if it exited.
        signal: Number of the signal that ended it, if one did.
        duration_s: Seconds that it has run.
        pty: The process runs on a terminal.
        stdin: The process still takes input.
        stdin_bytes: Bytes received for its input so far, read by the process or waiting.
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
        gid: Group id.
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
    """Entries of a folder; ``more`` says that there are more of them."""

    entries: tuple[Entry, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class GuestInfo:
    """Facts about the guest.

    Args:
        generation: Generation of the protocol.
        identity: Id of the sandbox.
        uptime_s: Seconds since the guest started.
        processes: Number of processes in the sandbox, the guest included.
        tasks: Number of processes and threads without the guest's own, as the pid limit counts them.
        cpu_s: Processor time in seconds of all processes so far, ended ones included.
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
"""An item that a process or a cell sends while it runs."""
