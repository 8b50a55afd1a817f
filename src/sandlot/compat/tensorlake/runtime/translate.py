"""Translation of processes, files and terminals between Tensorlake's runtime API and the node. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sandlot.compat.tensorlake.runtime.schemas import (
    FileEntryResponse,
    Managed,
    OpenTerminalRequest,
    ProcessResponse,
    ProcessStatus,
    RunRequest,
    StartProcessRequest,
)
from sandlot.compat.tensorlake.translate import milliseconds, not_possible, user
from sandlot.model.errors import InvalidRequestError
from sandlot.model.executions import Channel, ProcessInfo, ProcessOutcome
from sandlot.model.files import Entry
from sandlot.model.specs import ProcessSpec

CHANNELS: Mapping[str, frozenset[int]] = {
    "stdout": frozenset({Channel.STDOUT}),
    "stderr": frozenset({Channel.STDERR}),
    "output": frozenset(Channel),
}
"""Last segment of a path -> channels."""
STREAMS: Mapping[int, str] = {Channel.STDOUT: "stdout", Channel.STDERR: "stderr"}

DATA, RESIZE, READY, EXIT = range(4)
"""First byte of a message on the WebSocket of a terminal."""

_KILLED = {"timeout": "timed_out", "oom": "oom_killed"}
_SIGKILL = 9
_SIZE = struct.Struct(">HH")
_EXIT_CODE = struct.Struct(">i")
_UNUSED_PID: Final = 1 << 31
"""Larger than any pid."""


def run_spec(body: RunRequest) -> ProcessSpec:
    """Return the process of a program that is run to its end.

    Raises:
        InvalidRequestError: The request has two timeouts, or an invalid value.
    """
    if body.timeout is not None and body.timeout_secs is not None:
        raise not_possible("timeout_secs with timeout", "Pass one of the two.")
    timeout_s = body.timeout_secs if body.timeout is None else body.timeout
    return ProcessSpec(argv=_argv(body), env=body.env or {}, cwd=body.working_dir, user=user(body.user), timeout_s=timeout_s)


def start_spec(body: StartProcessRequest) -> ProcessSpec:
    """Return the process of a program that is started in the background.

    Raises:
        InvalidRequestError: The request has an option that Sandlot does not have, or an invalid value.
    """
    for field in ("stdout_mode", "stderr_mode"):
        if getattr(body, field) == "discard":
            raise not_possible(f"{field}='discard'", "Omit it: the size of kept output is limited anyway.")
    if body.restart is not None:
        raise not_possible("restart", "Call restart_process, or use a loop in a shell.")
    if body.health_check is not None:
        raise not_possible("health_check", "Call get_process, which returns whether the process is running.")
    if body.name is not None and (not body.name or body.name.isdigit() or "/" in body.name):
        raise InvalidRequestError(
            f"{body.name[:64]!r} is not a valid name of a process.",
            hint="Use a name that is not a number and has no '/'.",
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


def terminal_spec(body: OpenTerminalRequest) -> ProcessSpec:
    """Return the process of a program on a terminal.

    Raises:
        InvalidRequestError: A value is invalid.
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


def _argv(body: RunRequest | StartProcessRequest | OpenTerminalRequest) -> tuple[str, ...]:
    return (body.command, *(body.args or ()))


def parse_pid(selector: str) -> int | None:
    """Return the pid of a selector; None if the selector is a name."""
    number = int(selector) if selector.isascii() and selector.isdecimal() and len(selector) <= len(str(_UNUSED_PID)) else None
    return number if number is not None or not selector.isdecimal() else _UNUSED_PID


def ended(outcome: ProcessOutcome) -> dict[str, Any]:
    """Return the event of the end of a run."""
    if outcome.reason in _KILLED:
        return {"signal": outcome.signal or _SIGKILL, "reason": _KILLED[outcome.reason], "oom_killed": outcome.reason == "oom"}
    if outcome.signal is not None:
        return {"signal": outcome.signal, "reason": "signaled", "oom_killed": False}
    return {"exit_code": outcome.exit_code, "reason": "exited"}


OUT_OF_MEMORY: Mapping[str, Any] = {"signal": _SIGKILL, "reason": "oom_killed", "oom_killed": True}
"""Event of the end of a run whose sandbox was killed because its memory was used up."""


def process_response(info: ProcessInfo, logged_at: datetime | None, now: datetime) -> ProcessResponse:
    """Return the response for a process.

    Args:
        info: The process.
        logged_at: Start time in the execution log, which is used if the process has none. None: the log has none.
        now: Current time.
    """
    duration_ms = round(info.duration_s * 1000)
    started_at = info.started_at or logged_at
    started_ms = milliseconds(now) - duration_ms if started_at is None else milliseconds(started_at)
    return ProcessResponse(
        handle=info.pid,
        pid=info.pid,
        status=_status(info),
        exit_code=info.exit_code,
        signal=info.signal,
        stdin_writable=info.stdin and info.running,
        command=info.argv[0] if info.argv else "",
        args=list(info.argv[1:]),
        started_at=started_ms,
        ended_at=None if info.running else started_ms + duration_ms,
        managed=None if info.tag is None else Managed(id=info.tag, name=info.tag, status="running" if info.running else "stopped"),
    )


def _status(info: ProcessInfo) -> ProcessStatus:
    if info.running:
        return "running"
    if info.reason == "oom":
        return "oom_killed"
    return "exited" if info.signal is None else "signaled"


def file_entry(entry: Entry) -> FileEntryResponse:
    """Return the response for an entry of a directory."""
    is_directory = entry.kind == "directory"
    modified_ms = max(0, entry.modified_ns) // 1_000_000
    return FileEntryResponse(name=entry.name, is_dir=is_directory, size=None if is_directory else entry.size, modified_at=modified_ms)


def parse_size(message: bytes) -> tuple[int, int]:
    """Return rows and columns of a message that resizes a terminal.

    Raises:
        InvalidRequestError: The message has another length.
    """
    if len(message) != 1 + _SIZE.size:
        raise InvalidRequestError("The message to resize the terminal is malformed.", hint="Send 0x01, columns and rows, two bytes each.")
    cols, rows = _SIZE.unpack_from(message, 1)
    return rows, cols


def exit_message(code: int) -> bytes:
    """Return the message with the exit code of the program on a terminal."""
    return bytes([EXIT]) + _EXIT_CODE.pack(code)
