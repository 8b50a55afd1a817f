"""Requests and responses of Tensorlake's runtime API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, Texts

UserValue = Text | dict[Text, Text | int | None]
ProcessStatus = Literal["running", "exited", "signaled", "oom_killed"]


class _CommandRequest(RequestModel):
    """A program."""

    command: Text
    args: Texts | None = None
    env: Metadata | None = None
    working_dir: Text | None = None


class RunRequest(_CommandRequest):
    """A program to run to its end, by default without a timeout. The client's desktop helper sends ``timeout_secs``."""

    timeout: float | None = None
    timeout_secs: float | None = None
    user: UserValue | None = None


class StartProcessRequest(_CommandRequest):
    """A program to start in the background. ``restart`` and ``health_check`` are refused."""

    stdin_mode: Literal["closed", "pipe"] = "closed"
    stdout_mode: Literal["capture", "discard"] = "capture"
    stderr_mode: Literal["capture", "discard"] = "capture"
    user: UserValue | None = None
    name: Text | None = None
    restart: dict[str, Any] | None = None
    health_check: dict[str, Any] | None = None


class OpenTerminalRequest(_CommandRequest):
    """A program to start on a terminal."""

    rows: int = 24
    cols: int = 80
    user: UserValue | None = None


class SignalRequest(RequestModel):
    """A signal, by its number."""

    signal: int


class TunnelQuery(QueryModel):
    """Port of a tunnel."""

    port: int


class PathQuery(QueryModel):
    """A path in the sandbox."""

    path: Text


class Managed(ResponseModel):
    """Properties of a process with a name."""

    id: str
    name: str
    status: Literal["running", "stopped"]
    restart_count: int = 0
    restart: dict[str, str] = Field(default_factory=lambda: {"policy": "never"})
    health_status: Literal["disabled"] = "disabled"
    consecutive_health_failures: int = 0


class ProcessResponse(ResponseModel):
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


class ProcessListResponse(ResponseModel):
    """Processes that the service has started."""

    processes: list[ProcessResponse]


class SignalResponse(ResponseModel):
    """Result of sending a signal."""

    success: bool


class OutputResponse(ResponseModel):
    """Output of a process until now."""

    pid: int
    lines: list[str]
    line_count: int


class FileEntryResponse(ResponseModel):
    """An entry of a directory."""

    name: str
    is_dir: bool
    size: int | None
    modified_at: int


class DirectoryResponse(ResponseModel):
    """A directory."""

    path: str
    entries: list[FileEntryResponse]


class TerminalResponse(ResponseModel):
    """A terminal and the token for its WebSocket."""

    session_id: str
    token: str


class HealthResponse(ResponseModel):
    """Health of a sandbox."""

    healthy: bool


class InfoResponse(ResponseModel):
    """State of a sandbox."""

    version: str
    uptime_secs: int
    running_processes: int
    total_processes: int


Port = Annotated[int, Field(ge=1, le=65535)]
