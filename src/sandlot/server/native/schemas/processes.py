"""Processes: started, told, signalled."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from sandlot.core.runs import outcomes
from sandlot.link.types import ProcessInfo
from sandlot.model.capture import Capture
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, ProcessSpec, User, shell_argv
from sandlot.server.native.schemas.base import Answer, Body, Query, Text, Texts, UserName, Words


class ProcessBody(Body):
    """A process to start: exactly one of ``command`` and ``argv``."""

    command: Text | None = Field(default=None, description="A command line for the image's shell (bash where there is one).")
    argv: Texts | None = Field(default=None, description="A program and its arguments.")
    env: Words = Field(default_factory=dict, description="Added to the sandbox's environment.")
    cwd: Text | None = Field(default=None, description="Absolute; /workspace where left out.")
    user: UserName = Field(default="user", description="Who it runs as.")
    stdin: Text | None = Field(default=None, description="All of its standard input.")
    stdin_open: bool = Field(default=False, description="Its input stays open, for POST .../stdin.")
    timeout: float | None = Field(
        default=DEFAULT_COMMAND_TIMEOUT_S, description="Seconds until its process group is killed; null is never, and the default in the background."
    )
    background: bool = Field(default=False, description="Answer as soon as it runs (201); it outlives the call and the connection.")

    @model_validator(mode="after")
    def _one_command(self) -> ProcessBody:
        if (self.command is None) == (self.argv is None):
            raise ValueError("Give exactly one of 'command' and 'argv'.")
        if self.stdin is not None and self.stdin_open:
            raise ValueError("Give 'stdin' or 'stdin_open', not both.")
        return self

    def spec(self) -> ProcessSpec:
        """What core makes of it."""
        unless_asked = None if self.background and "timeout" not in self.model_fields_set else self.timeout
        return ProcessSpec(
            argv=shell_argv(self.command) if self.command is not None else tuple(self.argv or ()),
            env=self.env,
            cwd=self.cwd,
            user=User(self.user),
            stdin=self.stdin_open or self.stdin is not None,
            timeout_s=unless_asked,
        )


class StartedAnswer(Answer):
    """A process that was started in the background."""

    process: str
    pid: int


class ExitedAnswer(Answer):
    """How a process ended."""

    process: str
    exit_code: int
    signal: int | None
    reason: str
    duration: float = Field(description="Seconds.")

    @classmethod
    def of(cls, outcome: outcomes.Outcome) -> ExitedAnswer:
        """What is told of it."""
        return cls(**_exited(outcome))


class FinishedAnswer(ExitedAnswer):
    """A process that was run to its end, and what it wrote."""

    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int

    @classmethod
    def finished(cls, done: outcomes.Finished) -> FinishedAnswer:
        """What is told of it."""
        return cls(**_exited(done.outcome), **captured(done.stdout, done.stderr))


class KeptAnswer(Answer):
    """What there is of a process's output by now."""

    process: str
    exit: ExitedAnswer | None
    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int


class OutputQuery(Query):
    """Where to go on in a process's output."""

    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset; the oldest that is kept where left out.")
    stderr_from: int | None = Field(default=None, ge=0, description="The same.")
    follow: bool = Field(default=True, description="As events: until it ends; otherwise only what there is by now.")


class ProcessAnswer(Answer):
    """One process."""

    process: str
    pid: int
    argv: list[str]
    running: bool
    reason: str | None
    exit_code: int | None
    signal: int | None
    stdout_bytes: int
    stderr_bytes: int

    @classmethod
    def of(cls, info: ProcessInfo) -> ProcessAnswer:
        """What is told of it."""
        code = outcomes.exit_code(info.exit_code, info.signal) if not info.running else None
        return cls(
            process=info.process,
            pid=info.pid,
            argv=list(info.argv),
            running=info.running,
            reason=info.reason,
            exit_code=code,
            signal=info.signal,
            stdout_bytes=info.stdout_bytes,
            stderr_bytes=info.stderr_bytes,
        )


class ProcessesAnswer(Answer):
    """Processes that were started through the service."""

    processes: list[ProcessAnswer]


class SignalBody(Body):
    """A signal to send."""

    signal: Text | int = Field(description="SIGTERM, TERM or 15.")


class SignalAnswer(Answer):
    """What became of a signal."""

    running: bool = Field(description="Whether the process was still running.")


def captured(stdout: Capture, stderr: Capture) -> dict[str, Any]:
    """The fields that tell collected output."""
    return {"stdout": stdout.text(), "stderr": stderr.text(), "stdout_omitted": stdout.omitted, "stderr_omitted": stderr.omitted}


def _exited(outcome: outcomes.Outcome) -> dict[str, Any]:
    return {
        "process": outcome.process,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "reason": outcome.reason,
        "duration": outcome.duration_s,
    }
