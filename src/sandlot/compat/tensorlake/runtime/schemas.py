"""What Tensorlake's client sends to the inside of a sandbox, and what it has to be given: field by field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, Texts

UserBody = Text | dict[Text, Text | int | None]
ProcessStatus = Literal["running", "exited", "signaled", "oom_killed"]


class _CommandBody(RequestModel):
    """A program."""

    command: Text
    args: Texts | None = None
    env: Metadata | None = None
    working_dir: Text | None = None


class RunBody(_CommandBody):
    """A program to run to its end. Without a timeout it may take as long as its client waits; its client's desktop says ``timeout_secs``."""

    timeout: float | None = None
    timeout_secs: float | None = None
    user: UserBody | None = None


class ProcessBody(_CommandBody):
    """A program to start and leave. ``restart`` and ``health_check`` are refused, whatever they say."""

    stdin_mode: Literal["closed", "pipe"] = "closed"
    stdout_mode: Literal["capture", "discard"] = "capture"
    stderr_mode: Literal["capture", "discard"] = "capture"
    user: UserBody | None = None
    name: Text | None = None
    restart: dict[str, Any] | None = None
    health_check: dict[str, Any] | None = None


class TerminalBody(_CommandBody):
    """A program to start on a terminal."""

    rows: int = 24
    cols: int = 80
    user: UserBody | None = None


class SignalBody(RequestModel):
    """A signal, by its number."""

    signal: int


class TunnelQuery(QueryModel):
    """Where a tunnel leads."""

    port: int


class PathQuery(QueryModel):
    """A path inside."""

    path: Text


class Managed(ResponseModel):
    """What is told of a process that has a name."""

    id: str
    name: str
    status: Literal["running", "stopped"]
    restart_count: int = 0
    restart: dict[str, str] = Field(default_factory=lambda: {"policy": "never"})
    health_status: Literal["disabled"] = "disabled"
    consecutive_health_failures: int = 0


class ProcessAnswer(ResponseModel):
    """One process. Times are milliseconds since 1970."""

    handle: int
    pid: int
    status: ProcessStatus
    exit_code: int | None
    signal: int | None
    stdin_writable: bool
    command: str
    args: list[str]
    started_at: int
    ended_at: int | None
    managed: Managed | None


class ProcessesAnswer(ResponseModel):
    """Those that were started through the service."""

    processes: list[ProcessAnswer]


class SignalAnswer(ResponseModel):
    """Whether there was somebody to send a signal to."""

    success: bool


class OutputAnswer(ResponseModel):
    """What a process wrote by now."""

    pid: int
    lines: list[str]
    line_count: int


class EntryAnswer(ResponseModel):
    """What is in a folder."""

    name: str
    is_dir: bool
    size: int | None
    modified_at: int


class ListingAnswer(ResponseModel):
    """A folder."""

    path: str
    entries: list[EntryAnswer]


class TerminalAnswer(ResponseModel):
    """A terminal, and what lets its client look at it."""

    session_id: str
    token: str


class HealthAnswer(ResponseModel):
    """Whether a sandbox answers."""

    healthy: bool


class InfoAnswer(ResponseModel):
    """A sandbox as it sees itself."""

    version: str
    uptime_secs: int
    running_processes: int
    total_processes: int


Port = Annotated[int, Field(ge=1, le=65535)]
