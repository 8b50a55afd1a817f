"""Processes of a sandbox, their output and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Self

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that was started in a sandbox.

    Args:
        id: Its id, for ``commands.connect`` and ``commands.kill``.
        pid: Its process id inside the sandbox.
        argv: Program and arguments.
        running: Whether it lives.
        exit_code: As in :class:`CommandResult`, once it ended.
        reason: Why it ended.
        duration_s: Seconds that it ran, so far.
        pty: Whether it runs on a terminal.
        stdin_open: Whether it takes input, still.
        stdin_bytes: What has come for its input so far.
        stdout_bytes: What it wrote so far.
        stderr_bytes: The same to standard error.
        tag: The word that it was started with; None as well of one that an earlier service started.
        cwd: The folder that it was started in; None is the default one, or not known any more.
        envs: What was added to its environment when it was started, as far as that is known.
    """

    id: str
    pid: int | None
    argv: tuple[str, ...]
    running: bool
    exit_code: int | None = None
    reason: str | None = None
    duration_s: float = 0.0
    pty: bool = False
    stdin_open: bool = False
    stdin_bytes: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    tag: str | None = None
    cwd: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            id=str(raw["process"]),
            pid=raw.get("pid"),
            argv=tuple(raw.get("argv", ())),
            running=bool(raw["running"]),
            exit_code=raw.get("exit_code"),
            reason=raw.get("reason"),
            duration_s=float(raw.get("duration", 0.0)),
            pty=bool(raw.get("pty", False)),
            stdin_open=bool(raw.get("stdin_open", False)),
            stdin_bytes=int(raw.get("stdin_bytes", 0)),
            stdout_bytes=int(raw.get("stdout_bytes", 0)),
            stderr_bytes=int(raw.get("stderr_bytes", 0)),
            tag=raw.get("tag"),
            cwd=raw.get("cwd"),
            envs=dict(raw.get("env") or {}),
        )


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output as it arrived.

    Args:
        stream: Where it was written to.
        data: The bytes; a character may be cut at either end.
        lost_bytes: How many bytes went by before this piece while nobody read.
    """

    stream: Stream
    data: bytes
    lost_bytes: int = 0

    @property
    def text(self) -> str:
        """The bytes as text; what is no whole character of UTF-8 shows as U+FFFD."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that a command created or changed.

    Args:
        path: Its absolute path in the sandbox.
        created: Whether it was not there before.
        size_bytes: Its size afterwards.
        modified_at: When its content last changed.
    """

    path: str
    created: bool
    size_bytes: int
    modified_at: datetime

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(str(raw["path"]), bool(raw["created"]), int(raw["size_bytes"]), datetime.fromisoformat(raw["modified_at"]))


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command came to.

    Args:
        exit_code: As a shell has it: the program's own, or 128 + the signal that ended it.
        stdout: What it wrote: the first and the last MiB.
        stderr: The same for standard error.
        reason: ``exited``, ``signalled``, ``timeout`` (killed for running too long), ``pids`` (killed for too many processes),
            ``oom`` (killed for memory, where the sandbox itself lives on).
        signal: The signal that ended it.
        duration_s: Seconds inside the sandbox.
        stdout_omitted: Bytes left out between the first and the last MiB.
        stderr_omitted: The same for standard error.
        id: The process's id.
        files: What it created or changed below the folders that were tracked, by path; None where none were.
        files_more: Whether there may be others.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    reason: str = "exited"
    signal: int | None = None
    duration_s: float = 0.0
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    id: str = ""
    files: tuple[ChangedFile, ...] | None = None
    files_more: bool = False

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            exit_code=int(raw["exit_code"]),
            stdout=str(raw.get("stdout", "")),
            stderr=str(raw.get("stderr", "")),
            reason=str(raw.get("reason", "exited")),
            signal=raw.get("signal"),
            duration_s=float(raw.get("duration", 0.0)),
            stdout_omitted=int(raw.get("stdout_omitted", 0)),
            stderr_omitted=int(raw.get("stderr_omitted", 0)),
            id=str(raw.get("process", "")),
            files=None if raw.get("files") is None else tuple(ChangedFile.parse(file) for file in raw["files"]),
            files_more=bool(raw.get("files_more", False)),
        )

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        """Whether it was killed because it ran longer than allowed."""
        return self.reason == "timeout"
