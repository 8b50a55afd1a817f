"""Requests and responses of the PandaStack API.

Invariant: ``cpu`` and ``memory_mb`` are integers and never null, because the client converts them unchecked.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text

MAX_CHILDREN = 16
MAX_VOLUME_MB = 65536

Seconds = Annotated[float, Field(ge=0)]


class VolumeMountRequest(RequestModel):
    """A volume to attach."""

    name: Text
    read_only: bool = False


class CreateSandboxRequest(RequestModel):
    """A sandbox to create."""

    template: Text | None = None
    ttl_seconds: int | None = None
    persistent: bool = False
    metadata: Metadata = Field(default_factory=dict)
    from_snapshot: Text | None = None
    volumes: list[VolumeMountRequest] = Field(default_factory=list)


class UpdateLifecycleRequest(RequestModel):
    """A change of the timeout of a sandbox."""

    ttl_seconds: int | None = None
    persistent: bool | None = None


class ForkRequest(RequestModel):
    """A fork to create."""

    metadata: Metadata | None = None


class ForkTreeRequest(ForkRequest):
    """Forks to create."""

    count: int = Field(default=2, ge=1, le=MAX_CHILDREN)


class PromoteRequest(RequestModel):
    """A fork to keep."""

    cleanup_siblings: bool = False
    tree_id: Text | None = None


class ExecRequest(RequestModel):
    """A command line to run."""

    cmd: Text
    timeout_seconds: Seconds | None = None


class CreateSessionRequest(RequestModel):
    """A session to create."""

    language: Text = "python"


class RunCodeRequest(RequestModel):
    """Code to run in a session."""

    code: Text
    timeout_ms: Annotated[int, Field(ge=0)] | None = None


class CreateVolumeRequest(RequestModel):
    """A volume to create."""

    name: Text
    size_mb: int = Field(default=256, ge=1, le=MAX_VOLUME_MB)


class PathQuery(QueryModel):
    """A path in the sandbox."""

    path: Text


class DirectoryQuery(QueryModel):
    """A directory in the sandbox."""

    path: Text = "/"


class LogsQuery(QueryModel):
    """Output to return or follow."""

    stream: Literal["stdout", "stderr", "both"] = "both"
    follow: bool = False


class SnapshotsQuery(QueryModel):
    """Snapshots to list."""

    sandbox_id: Text | None = None


class SandboxResponse(ResponseModel):
    """One sandbox."""

    id: str
    template: str
    cpu: int
    memory_mb: int
    status: str
    created_at: str
    metadata: dict[str, str]
    persistent: bool
    ttl_seconds: int
    guest_ip: None = None
    from_snapshot: str | None = None
    boot_ms: int | None = None


class SandboxListResponse(ResponseModel):
    """All sandboxes, oldest first."""

    items: list[SandboxResponse]


class LifecycleResponse(ResponseModel):
    """Timeout and idle time of a sandbox."""

    ttl_seconds: int
    persistent: bool
    idle_seconds: int


class StatusResponse(ResponseModel):
    """State of a sandbox."""

    status: str


class ForkTreeResponse(ResponseModel):
    """The children of one fork."""

    tree_id: str
    parent_id: str
    children: list[SandboxResponse]


class PromoteResponse(ResponseModel):
    """Result of keeping a fork."""

    winner: str
    tree_id: str
    deleted: list[str]
    failures: dict[str, str]


class ExecResponse(ResponseModel):
    """Result of a command."""

    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int


class SessionResponse(ResponseModel):
    """One session."""

    id: str
    sandbox_id: str
    language: str


class SessionListResponse(ResponseModel):
    """All sessions of a sandbox."""

    items: list[SessionResponse]


class CodeResponse(ResponseModel):
    """Result of code."""

    stdout: str
    stderr: str
    exit: int
    duration_ms: int
    results: list[dict[str, str]]
    error: str | None


class WriteFileResponse(ResponseModel):
    """A file that was written."""

    path: str
    bytes: int


class FileEntryResponse(ResponseModel):
    """A file, directory or symbolic link."""

    name: str
    is_dir: bool
    size: int
    mode: str
    mtime: int


class DirectoryResponse(ResponseModel):
    """Entries of a directory."""

    path: str
    entries: list[FileEntryResponse]


class PortListResponse(ResponseModel):
    """TCP ports with a listener."""

    ports: list[int]


class SnapshotResponse(ResponseModel):
    """One snapshot."""

    id: str
    snapshot_id: str
    sandbox_id: str
    template: str
    size_bytes: int
    created_at: str


class SnapshotListResponse(ResponseModel):
    """All snapshots, newest first."""

    snapshots: list[SnapshotResponse]


class VolumeResponse(ResponseModel):
    """One volume."""

    id: str
    name: str
    size_mb: int
    size_bytes: int
    created_at: str


class VolumeListResponse(ResponseModel):
    """All volumes."""

    items: list[VolumeResponse]


class TemplateResponse(ResponseModel):
    """One template."""

    name: str
    description: str
    cpu: int
    memory_mb: int
    is_global: bool = True
    size_bytes: int | None = None


class TemplateListResponse(ResponseModel):
    """All templates."""

    items: list[TemplateResponse]


class BuildResponse(ResponseModel):
    """One build of a template."""

    id: str
    name: str
    status: str
    error: str | None
    started_at: str | None
    ended_at: str | None
    created_at: str
    bytes: int | None


class BuildListResponse(ResponseModel):
    """Builds of templates, newest first."""

    items: list[BuildResponse]


class BuildLogsQuery(QueryModel):
    """Lines to return, or to follow until the build ends."""

    follow: bool = False


class UserResponse(ResponseModel):
    """Owner of the API key."""

    id: str
    user_id: str
    name: str
    auth_method: str = "api_key"
