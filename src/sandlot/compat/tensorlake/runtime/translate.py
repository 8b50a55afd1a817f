"""Tensorlake's words for processes, files and terminals into ours and back. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sandlot.compat.tensorlake.runtime.schemas import EntryAnswer, Managed, ProcessAnswer, ProcessBody, ProcessStatus, RunBody, TerminalBody
from sandlot.compat.tensorlake.translate import milliseconds, refuse, user
from sandlot.model.errors import InvalidRequestError
from sandlot.model.executions import Channel, ProcessInfo, ProcessOutcome
from sandlot.model.files import Entry
from sandlot.model.specs import ProcessSpec

CHANNELS: Mapping[str, frozenset[int]] = {
    "stdout": frozenset({Channel.STDOUT}),
    "stderr": frozenset({Channel.STDERR}),
    "output": frozenset(Channel),
}
"""A word of a path -> the channels that it means."""
STREAMS: Mapping[int, str] = {Channel.STDOUT: "stdout", Channel.STDERR: "stderr"}

DATA, RESIZE, READY, EXIT = range(4)
"""What a message on a terminal's WebSocket begins with."""

_KILLED = {"timeout": "timed_out", "oom": "oom_killed"}
_SIGKILL = 9
_RESIZED = struct.Struct(">HH")
_EXITED = struct.Struct(">i")
_MOST_PID = 1 << 31


def run(body: RunBody) -> ProcessSpec:
    """A program that is run to its end.

    Raises:
        InvalidRequestError: It cannot be.
    """
    if body.timeout is not None and body.timeout_secs is not None:
        raise refuse("timeout_secs beside timeout", "They say the same: give one of the two.")
    timeout_s = body.timeout_secs if body.timeout is None else body.timeout
    return ProcessSpec(argv=_argv(body), env=body.env or {}, cwd=body.working_dir, user=user(body.user), timeout_s=timeout_s)


def start(body: ProcessBody) -> ProcessSpec:
    """A program that is started and left.

    Raises:
        InvalidRequestError: It cannot be.
    """
    for field in ("stdout_mode", "stderr_mode"):
        if getattr(body, field) == "discard":
            raise refuse(f"{field}='discard'", "Output is kept within bounds whoever reads it: leave it out.")
    if body.restart is not None:
        raise refuse("restart", "Nothing starts a process again by itself: restart_process does, or a loop in a shell.")
    if body.health_check is not None:
        raise refuse("health_check", "Nobody asks a process how it is: get_process tells whether it runs.")
    if body.name is not None and (not body.name or body.name.isdigit() or "/" in body.name):
        raise InvalidRequestError(
            f"{body.name[:64]!r} is no name for a process.",
            hint="Use one that is no number and has no '/'.",
            fields={"field": "name"},
        )
    return ProcessSpec(
        argv=_argv(body),
        env=body.env or {},
        cwd=body.working_dir,
        user=user(body.user),
        stdin=body.stdin_mode == "pipe",
        timeout_s=None,
        tag=body.name,
    )


def terminal(body: TerminalBody) -> ProcessSpec:
    """A program on a terminal.

    Raises:
        InvalidRequestError: It cannot be.
    """
    return ProcessSpec(
        argv=_argv(body),
        env=body.env or {},
        cwd=body.working_dir,
        user=user(body.user),
        timeout_s=None,
        rows=body.rows,
        cols=body.cols,
    )


def _argv(body: RunBody | ProcessBody | TerminalBody) -> tuple[str, ...]:
    return (body.command, *(body.args or ()))


def pid_of(word: str) -> int | None:
    """The pid that a word of a path is; None where it is a name."""
    number = int(word) if word.isascii() and word.isdecimal() and len(word) <= len(str(_MOST_PID)) else None
    return number if number is not None or not word.isdecimal() else _MOST_PID


def ended(outcome: ProcessOutcome) -> dict[str, Any]:
    """The event that tells how a run ended."""
    if outcome.reason in _KILLED:
        return {"signal": outcome.signal or _SIGKILL, "reason": _KILLED[outcome.reason], "oom_killed": outcome.reason == "oom"}
    if outcome.signal is not None:
        return {"signal": outcome.signal, "reason": "signaled", "oom_killed": False}
    return {"exit_code": outcome.exit_code, "reason": "exited"}


OUT_OF_MEMORY: Mapping[str, Any] = {"signal": _SIGKILL, "reason": "oom_killed", "oom_killed": True}
"""How a run ends whose whole sandbox was killed for want of memory."""


def process(info: ProcessInfo, logged_at: datetime | None, now: datetime) -> ProcessAnswer:
    """One process.

    Args:
        info: What is known of it.
        logged_at: When it was started, where the log of runs says it and nothing else does.
        now: The time.
    """
    took_ms = round(info.duration_s * 1000)
    began_at = info.started_at or logged_at
    started = milliseconds(now) - took_ms if began_at is None else milliseconds(began_at)
    return ProcessAnswer(
        handle=info.pid,
        pid=info.pid,
        status=_status(info),
        exit_code=info.exit_code,
        signal=info.signal,
        stdin_writable=info.stdin and info.running,
        command=info.argv[0] if info.argv else "",
        args=list(info.argv[1:]),
        started_at=started,
        ended_at=None if info.running else started + took_ms,
        managed=None if info.tag is None else Managed(id=info.tag, name=info.tag, status="running" if info.running else "stopped"),
    )


def _status(info: ProcessInfo) -> ProcessStatus:
    if info.running:
        return "running"
    if info.reason == "oom":
        return "oom_killed"
    return "exited" if info.signal is None else "signaled"


def entry(found: Entry) -> EntryAnswer:
    """What is in a folder."""
    folder = found.kind == "directory"
    return EntryAnswer(name=found.name, is_dir=folder, size=None if folder else found.size, modified_at=max(0, found.modified_ns) // 1_000_000)


def resized(message: bytes) -> tuple[int, int]:
    """Rows and columns that a client says its terminal has.

    Raises:
        InvalidRequestError: It says none.
    """
    if len(message) != 1 + _RESIZED.size:
        raise InvalidRequestError("The message is no change of size.", hint="Send 0x01, columns and rows, two bytes each.")
    cols, rows = _RESIZED.unpack_from(message, 1)
    return rows, cols


def exited(code: int) -> bytes:
    """The message that tells how a program on a terminal ended."""
    return bytes([EXIT]) + _EXITED.pack(code)
