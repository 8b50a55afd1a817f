"""What PandaStack's client sends, and what it has to be given: bodies, queries and answers, field by field.

Law: ``cpu`` and ``memory_mb`` are whole numbers and never null: its client converts them without looking.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text

MOST_CHILDREN = 16
MOST_VOLUME_MB = 65536

Seconds = Annotated[float, Field(ge=0)]


class VolumeUse(RequestModel):
    """A volume that a sandbox is to have."""

    name: Text
    read_only: bool = False


class CreateBody(RequestModel):
    """A sandbox to create."""

    template: Text | None = None
    ttl_seconds: int | None = None
    persistent: bool = False
    metadata: Metadata = Field(default_factory=dict)
    from_snapshot: Text | None = None
    volumes: list[VolumeUse] = Field(default_factory=list)


class LifecycleBody(RequestModel):
    """A change of how long a sandbox lives."""

    ttl_seconds: int | None = None
    persistent: bool | None = None


class ForkBody(RequestModel):
    """One fork to make."""

    metadata: Metadata | None = None


class ForkTreeBody(ForkBody):
    """Several of them."""

    count: int = Field(default=2, ge=1, le=MOST_CHILDREN)


class PromoteBody(RequestModel):
    """A fork to keep."""

    cleanup_siblings: bool = False
    tree_id: Text | None = None


class ExecBody(RequestModel):
    """A command line to run."""

    cmd: Text
    timeout_seconds: Seconds | None = None


class SessionBody(RequestModel):
    """A session to begin."""

    language: Text = "python"


class RunBody(RequestModel):
    """Code to run in a session."""

    code: Text
    timeout_ms: Annotated[int, Field(ge=0)] | None = None


class VolumeBody(RequestModel):
    """A volume to make."""

    name: Text
    size_mb: int = Field(default=256, ge=1, le=MOST_VOLUME_MB)


class PathQuery(QueryModel):
    """A path inside."""

    path: Text


class FolderQuery(QueryModel):
    """A folder inside."""

    path: Text = "/"


class LogsQuery(QueryModel):
    """Which output to tell."""

    stream: Literal["stdout", "stderr", "both"] = "both"
    follow: bool = False


class SnapshotsQuery(QueryModel):
    """Which snapshots to list."""

    sandbox_id: Text | None = None


class SandboxAnswer(ResponseModel):
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


class SandboxesAnswer(ResponseModel):
    """All sandboxes, oldest first."""

    items: list[SandboxAnswer]


class LifecycleAnswer(ResponseModel):
    """How long a sandbox lives."""

    ttl_seconds: int
    persistent: bool
    idle_seconds: int


class StatusAnswer(ResponseModel):
    """What a sandbox is now."""

    status: str


class TreeAnswer(ResponseModel):
    """The children of one fork."""

    tree_id: str
    parent_id: str
    children: list[SandboxAnswer]


class PromotedAnswer(ResponseModel):
    """What a fork was kept over."""

    winner: str
    tree_id: str
    deleted: list[str]
    failures: dict[str, str]


class ExecAnswer(ResponseModel):
    """What a command came to."""

    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int


class SessionAnswer(ResponseModel):
    """One session."""

    id: str
    sandbox_id: str
    language: str


class SessionsAnswer(ResponseModel):
    """All sessions of a sandbox."""

    items: list[SessionAnswer]


class RunAnswer(ResponseModel):
    """What a cell came to."""

    stdout: str
    stderr: str
    exit: int
    duration_ms: int
    results: list[dict[str, str]]
    error: str | None


class WrittenAnswer(ResponseModel):
    """A file that was written."""

    path: str
    bytes: int


class EntryAnswer(ResponseModel):
    """What is at a path."""

    name: str
    is_dir: bool
    size: int
    mode: str
    mtime: int


class FolderAnswer(ResponseModel):
    """What is in a folder."""

    path: str
    entries: list[EntryAnswer]


class PortsAnswer(ResponseModel):
    """What listens inside."""

    ports: list[int]


class SnapshotAnswer(ResponseModel):
    """One snapshot."""

    id: str
    snapshot_id: str
    sandbox_id: str
    template: str
    size_bytes: int
    created_at: str


class SnapshotsAnswer(ResponseModel):
    """All snapshots, newest first."""

    snapshots: list[SnapshotAnswer]


class VolumeAnswer(ResponseModel):
    """One volume."""

    id: str
    name: str
    size_mb: int
    size_bytes: int
    created_at: str


class VolumesAnswer(ResponseModel):
    """All volumes."""

    items: list[VolumeAnswer]


class TemplateAnswer(ResponseModel):
    """Something that a sandbox can be started from."""

    name: str
    description: str
    cpu: int
    memory_mb: int
    is_global: bool = True


class TemplatesAnswer(ResponseModel):
    """All of them."""

    items: list[TemplateAnswer]


class BuildsAnswer(ResponseModel):
    """Builds of templates that were asked for: there are none."""

    items: list[dict[str, Any]] = Field(default_factory=list)


class MeAnswer(ResponseModel):
    """Whose key it is."""

    id: str
    user_id: str
    name: str
    auth_method: str = "api_key"
