"""Logged runs of code and commands, and their output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ExecutionInfo:
    """One run of code or of a command, as the service's log has it.

    Args:
        id: Of the process or cell.
        sandbox: Where it ran.
        kind: ``code`` or ``command``.
        status: running, ok, error, timeout, killed, died, exited, signalled, pids, oom, or lost.
        created_at: When it was begun.
        language: Of code.
        code: The code; of what is longer than 64 KiB, the beginning and the end.
        argv: Of a command.
        exit_code: Of a command that ended.
        duration_s: None while it runs.
        stdout: Of what is longer than 64 KiB, the beginning and the end.
        stderr: The same.
        stdout_omitted: Bytes that are not there.
        stderr_omitted: The same.
        error: Of code that raised.
        files: How many files it made or changed, where that was asked for.
        origin: Which API it came by.
        owner: The id of the key whose it is, or ``local``.
    """

    id: str
    sandbox: str
    kind: str
    status: str
    created_at: datetime
    language: str | None = None
    code: str | None = None
    argv: tuple[str, ...] | None = None
    exit_code: int | None = None
    duration_s: float | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    error: str | None = None
    files: int | None = None
    origin: str = "native"
    owner: str = ""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        argv = raw.get("argv")
        return cls(
            id=str(raw["id"]),
            sandbox=str(raw["sandbox"]),
            kind=str(raw["kind"]),
            status=str(raw["status"]),
            created_at=datetime.fromisoformat(raw["created_at"]),
            language=raw.get("language"),
            code=raw.get("code"),
            argv=None if argv is None else tuple(argv),
            exit_code=raw.get("exit_code"),
            duration_s=raw.get("duration"),
            stdout=str(raw.get("stdout", "")),
            stderr=str(raw.get("stderr", "")),
            stdout_omitted=int(raw.get("stdout_omitted", 0)),
            stderr_omitted=int(raw.get("stderr_omitted", 0)),
            error=raw.get("error"),
            files=raw.get("files"),
            origin=str(raw.get("origin", "native")),
            owner=str(raw.get("owner", "")),
        )


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Something that a run wrote.

    Args:
        execution: The run: the id of the process or cell.
        stream: ``stdout`` or ``stderr``.
        text: It; what is not UTF-8 in it is U+FFFD.
        omitted_bytes: Bytes that are not there: the middle of what was long, or what was written faster than it was read.
        at: When the run was begun; None of what was written since one follows.
        running: Whether it may write more.
    """

    execution: str
    stream: str
    text: str
    omitted_bytes: int = 0
    at: datetime | None = None
    running: bool = True

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON: an entry, or an event of one who follows."""
        return cls(
            execution=str(raw["execution"]),
            stream=str(raw["stream"]),
            text=str(raw.get("text", "")),
            omitted_bytes=int(raw.get("omitted", raw.get("bytes", 0))),
            at=datetime.fromisoformat(raw["at"]) if "at" in raw else None,
            running=bool(raw.get("running", True)),
        )
