"""Processes, as the service tells them: frozen values, read from the API's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from sandlot.sdk.info import Json


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that was started in a sandbox.

    Args:
        id: Its id, for ``commands.connect`` and ``commands.kill``.
        pid: Its process id inside the sandbox.
        argv: Program and arguments.
        running: Whether it lives.
        exit_code: As in :class:`~sandlot.sdk.results.CommandResult`, once it ended.
        reason: Why it ended.
        duration_s: Seconds that it ran, so far.
        pty: Whether it runs on a terminal.
        stdin_open: Whether it takes input, still.
        stdin_bytes: What has come for its input so far.
        stdout_bytes: What it wrote so far.
        stderr_bytes: The same to standard error.
        tag: The word that it was started with; None as well of one that an earlier service started.
        cwd: The folder that it was started in; None is the default one, or not known any more.
        env: What was added to its environment when it was started, as far as that is known.
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
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Json) -> Self:
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
            env=dict(raw.get("env") or {}),
        )
