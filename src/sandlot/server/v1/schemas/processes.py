"""Processes: started, told, signalled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import Field, model_validator

from sandlot.model.executions import CommandResult, ProcessInfo, ProcessOutcome, exit_code
from sandlot.model.files import MAX_TRACKED_FOLDERS, ChangedFile
from sandlot.model.output_capture import OutputCapture
from sandlot.model.packages import MAX_PACKAGES, InstallParams, Manager
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, DEFAULT_INSTALL_TIMEOUT_S, MAX_TAG_BYTES, MAX_TERMINAL_SIZE, ProcessSpec, User, shell_argv
from sandlot.server.v1.schemas.base import Metadata, QueryModel, RequestModel, ResponseModel, Text, Texts, UserName

WAIT_MOST_S = 300.0
"""Longer answers do not get through every proxy; who wants to wait longer asks again."""


class ScreenBody(RequestModel):
    """A terminal's size."""

    rows: int = Field(default=24, ge=1, le=MAX_TERMINAL_SIZE, description="Lines.")
    cols: int = Field(default=80, ge=1, le=MAX_TERMINAL_SIZE, description="Characters of a line.")


class ProcessBody(RequestModel):
    """A process to start: exactly one of ``command`` and ``argv``."""

    command: Text | None = Field(default=None, description="A command line for the image's shell (bash where there is one).")
    argv: Texts | None = Field(default=None, description="A program and its arguments.")
    env: Metadata = Field(default_factory=dict, description="Added to the sandbox's environment.")
    cwd: Text | None = Field(default=None, description="Absolute; /workspace where left out.")
    user: UserName = Field(default="user", description="Who it runs as.")
    stdin: Text | None = Field(default=None, description="All of its standard input.")
    stdin_open: bool = Field(default=False, description="Its input stays open, for POST .../stdin.")
    timeout: float | None = Field(
        default=DEFAULT_COMMAND_TIMEOUT_S, description="Seconds until its process group is killed; null is never, and the default in the background."
    )
    pty: ScreenBody | None = Field(
        default=None, description="It runs on a terminal of this size: all output is stdout, and there is always input. Only in the background."
    )
    track: Texts | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_TRACKED_FOLDERS,
        description="Folders: the files that it creates or changes below them are told at its end.",
    )
    tag: Text | None = Field(default=None, min_length=1, max_length=MAX_TAG_BYTES, description="A word of your own, told by the list of processes.")
    background: bool = Field(default=False, description="Answer as soon as it runs (201); it outlives the call and the connection.")

    @model_validator(mode="after")
    def _one_command(self) -> ProcessBody:
        if (self.command is None) == (self.argv is None):
            raise ValueError("Give exactly one of 'command' and 'argv'.")
        if self.stdin is not None and self.stdin_open:
            raise ValueError("Give 'stdin' or 'stdin_open', not both.")
        if self.pty is not None and (self.stdin is not None or not self.background):
            raise ValueError("A process with 'pty' runs in the background and takes no 'stdin': type on its terminal.")
        if self.track is not None and self.background:
            raise ValueError("'track' is for a process that is waited for: nobody would be told in the background.")
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
            rows=None if self.pty is None else self.pty.rows,
            cols=None if self.pty is None else self.pty.cols,
            tag=self.tag,
        )


class PackagesBody(RequestModel):
    """Packages to install."""

    manager: Literal["pip", "npm", "apt"] = Field(default="pip", description="By whom.")
    packages: Texts = Field(
        min_length=1,
        max_length=MAX_PACKAGES,
        description="Names, with or without versions, as the manager writes them; no options, paths or URLs.",
        examples=[["requests>=2.31", "tabulate"]],
    )
    user: UserName = Field(default="user", description="Who installs; apt always as root.")
    timeout: float | None = Field(default=DEFAULT_INSTALL_TIMEOUT_S, description="Seconds until it is ended; null is never.")

    def asked(self) -> InstallParams:
        """What core makes of it."""
        return InstallParams(Manager(self.manager), tuple(self.packages), user=User(self.user), timeout_s=self.timeout)


class StartedAnswer(ResponseModel):
    """A process that was started in the background."""

    process: str
    pid: int


class ExitedAnswer(ResponseModel):
    """How a process ended."""

    process: str
    exit_code: int
    signal: int | None
    reason: str
    duration: float = Field(description="Seconds.")

    @classmethod
    def of(cls, outcome: ProcessOutcome) -> ExitedAnswer:
        """What is told of it."""
        return cls(**_exited(outcome))


class ChangedFileAnswer(ResponseModel):
    """A file that a run created or changed."""

    path: str
    created: bool = Field(description="Whether it was not there before.")
    size_bytes: int
    modified_at: datetime


class EndedAnswer(ExitedAnswer):
    """How a process ended that was waited for."""

    files: list[ChangedFileAnswer] | None = Field(default=None, description="What it created or changed below the folders of ``track``, by path.")
    files_more: bool = Field(default=False, description="Whether there may be others; also where it could not be found out.")

    @classmethod
    def with_files(cls, outcome: ProcessOutcome, changed: tuple[Sequence[ChangedFile], bool] | None) -> EndedAnswer:
        """What is told of it."""
        return cls(**_exited(outcome), **changed_files(changed))


class FinishedAnswer(EndedAnswer):
    """A process that was run to its end, and what it wrote."""

    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int

    @classmethod
    def finished(cls, done: CommandResult) -> FinishedAnswer:
        """What is told of it."""
        return cls(**_exited(done.outcome), **captured(done.stdout, done.stderr), **changed_files(done.files))


class KeptAnswer(ResponseModel):
    """What there is of a process's output by now."""

    process: str
    exit: ExitedAnswer | None
    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int


class OutputQuery(QueryModel):
    """Where to go on in a process's output."""

    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset; the oldest that is kept where left out.")
    stderr_from: int | None = Field(default=None, ge=0, description="The same.")
    follow: bool = Field(default=True, description="As events: until it ends; otherwise only what there is by now.")


class WaitQuery(QueryModel):
    """How long to wait."""

    timeout: float = Field(default=60, ge=0, le=WAIT_MOST_S, description="Seconds at most; 0 only looks.")


class WaitAnswer(ResponseModel):
    """How a process ended, if it has."""

    process: str
    running: bool
    exit: ExitedAnswer | None


class StdinQuery(QueryModel):
    """Where in its input that belongs."""

    offset: int | None = Field(
        default=None, ge=0, description="Where in the whole input the body begins: what has come there before is not written twice."
    )


class StdinAnswer(ResponseModel):
    """What came of a write."""

    stdin_bytes: int = Field(description="What has come for its input so far: the offset of the next write.")


class TerminalQuery(QueryModel):
    """From where to show a terminal, and how large it is."""

    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset; the oldest that is kept where left out.")
    rows: int | None = Field(default=None, ge=1, le=MAX_TERMINAL_SIZE, description="With ``cols``: its size from now on.")
    cols: int | None = Field(default=None, ge=1, le=MAX_TERMINAL_SIZE, description="With ``rows``.")


class ProcessAnswer(ResponseModel):
    """One process."""

    process: str
    pid: int
    argv: list[str]
    running: bool
    reason: str | None
    exit_code: int | None
    signal: int | None
    duration: float = Field(description="Seconds, so far.")
    pty: bool = Field(description="Whether it runs on a terminal.")
    stdin_open: bool = Field(description="Whether it takes input, still.")
    stdin_bytes: int = Field(description="What has come for its input so far.")
    stdout_bytes: int
    stderr_bytes: int
    tag: str | None = Field(description="As it was started with; not known any more of one that an earlier service started.")
    cwd: str | None = Field(description="Where it was started; null is the default, or not known any more.")
    env: dict[str, str] = Field(description="What was added to its environment when it was started, as far as that is known.")

    @classmethod
    def of(cls, info: ProcessInfo) -> ProcessAnswer:
        """What is told of it."""
        code = exit_code(info.exit_code, info.signal) if not info.running else None
        return cls(
            process=info.process,
            pid=info.pid,
            argv=list(info.argv),
            running=info.running,
            reason=info.reason,
            exit_code=code,
            signal=info.signal,
            duration=info.duration_s,
            pty=info.pty,
            stdin_open=info.stdin,
            stdin_bytes=info.stdin_bytes,
            stdout_bytes=info.stdout_bytes,
            stderr_bytes=info.stderr_bytes,
            tag=info.tag,
            cwd=info.cwd,
            env=dict(info.env),
        )


class ProcessesAnswer(ResponseModel):
    """Processes that were started through the service."""

    processes: list[ProcessAnswer]


class SignalBody(RequestModel):
    """A signal to send."""

    signal: Text | int = Field(description="SIGTERM, TERM or 15.")


class SignalAnswer(ResponseModel):
    """What became of a signal."""

    running: bool = Field(description="Whether the process was still running.")


def changed_files(changed: tuple[Sequence[ChangedFile], bool] | None) -> dict[str, Any]:
    """The fields that tell what a run changed; none where that was not asked for."""
    if changed is None:
        return {}
    files, more = changed
    told = [
        ChangedFileAnswer(path=file.path, created=file.created, size_bytes=file.size_bytes, modified_at=_moment(file.modified_ns)) for file in files
    ]
    return {"files": told, "files_more": more}


def _moment(ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


def captured(stdout: OutputCapture, stderr: OutputCapture) -> dict[str, Any]:
    """The fields that tell collected output."""
    return {"stdout": stdout.text(), "stderr": stderr.text(), "stdout_omitted": stdout.omitted, "stderr_omitted": stderr.omitted}


def _exited(outcome: ProcessOutcome) -> dict[str, Any]:
    return {
        "process": outcome.process,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "reason": outcome.reason,
        "duration": outcome.duration_s,
    }
