"""What the link tells its user, as frozen values. Those that come from a guest are made by :mod:`sandlot.link.parse` only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandlot.model.ids import ProcessId


class LostReason(StrEnum):
    """Why a link is over."""

    EOF = "eof"
    """The sandbox closed its end: it is gone, or going."""
    BROKEN = "broken"
    """Nobody reads the sandbox's end any more."""
    VIOLATION = "violation"
    """The guest broke a law of the link; the sandbox must be destroyed."""
    CLOSED = "closed"
    """This end closed it; the sandbox lives."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """How a link ended."""

    reason: LostReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that a process or a cell wrote.

    Args:
        channel: 1 standard output, 2 standard error.
        offset: Where they begin among all bytes of the channel; attach with ``offset + len(data)`` to go on after them.
        data: The bytes.
    """

    channel: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Bytes that are no longer kept, because nobody read them in time.

    Args:
        channel: 1 standard output, 2 standard error.
        bytes: How many.
        offset: Where they began.
    """

    channel: int
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Display:
    """Something that a cell showed.

    Args:
        data: MIME type -> text or bytes: representations of one thing.
        main: Whether it is the value of the cell's last expression.
        metadata: What the program said of them, by MIME type or as a whole: texts, numbers, lists and maps.
        display_id: Its name, where it has one.
        update: Whether it is to be shown in place of what had that name before.
    """

    data: Mapping[str, str | bytes]
    main: bool
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A cell's turn came: ``count`` is its number in its kernel."""

    count: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """A cell took back what it had shown; ``wait``: not before it shows the next thing."""

    wait: bool


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a process ended.

    Args:
        process: Its id.
        pid: Its pid inside.
        reason: exited, signalled, timeout, pids or oom; None where it was started without waiting and runs on.
        exit_code: Where it exited.
        signal: Where a signal ended it.
        duration_s: Seconds that it ran.
        cpu_s: Processor time in seconds of it and of the children that it waited for; None where nobody knows.
        peak_bytes: The largest resident memory that one of them had; None likewise.
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
    """How a cell ended.

    ok, error, timeout (interrupted), killed (the kernel had to die), died, oom (the kernel was killed for memory) or aborted (it never ran).
    """

    status: str
    execution_count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One context: a kernel with state.

    Args:
        kernel: Its id.
        language: python, bash or javascript.
        cwd: The folder that it started in.
        state: starting, idle, busy or stopped (it starts with the next cell).
        execution_count: How many cells it has run.
        pid: Its process inside; None where none runs.
    """

    kernel: str
    language: str
    cwd: str
    state: str
    execution_count: int
    pid: int | None


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process that the guest knows of, running or not.

    Args:
        process: Its id.
        pid: Its pid inside.
        argv: Program and arguments, the first 64 of them.
        running: Whether it has not ended.
        reason: Why it ended: exited, signalled, timeout, pids or oom.
        exit_code: Where it exited.
        signal: Where a signal ended it.
        duration_s: Seconds that it ran, so far.
        pty: Whether it runs on a terminal.
        stdin: Whether it takes input, still.
        stdin_bytes: What came for its input so far, taken or waiting.
        stdout_bytes: What it wrote so far.
        stderr_bytes: The same.
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
        name: The last part of the path.
        path: Absolute, inside the sandbox.
        kind: file, directory, symlink or other.
        size: Bytes.
        mode: Permission bits.
        uid: The owner.
        gid: The group.
        modified_ns: Since 1970, UTC.
        target: What a symlink points to.
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
    """What a folder holds, or its first part where ``more`` is true."""

    entries: tuple[Entry, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class GuestInfo:
    """What the guest says of itself.

    Args:
        generation: Of the protocol.
        identity: The sandbox's id.
        uptime_s: Seconds since it started.
        processes: Processes in the sandbox, its own included.
        tasks: Processes and threads, its own excepted: what the limit of pids counts.
        cpu_s: Processor time in seconds that they and those before them took.
        streams: Of the link, open now.
    """

    generation: int
    identity: str
    uptime_s: float
    processes: int
    tasks: int
    cpu_s: float
    streams: int


Item = Output | Lost | Display | CellError
"""What a process or a cell tells while it runs."""
