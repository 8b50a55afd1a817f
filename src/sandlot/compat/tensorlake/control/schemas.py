"""What Tensorlake's client sends about sandboxes, snapshots and pools, and what it has to be given: field by field.

Law: A status is never missing, and a sandbox that can be spoken to has a ``sandbox_url``: its client refuses what has none.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, Texts

Status = Literal["pending", "running", "snapshotting", "suspending", "suspended", "terminated"]
_MOST = Annotated[int, Field(ge=0, lt=1 << 31)]


class ResourcesBody(RequestModel):
    """What a sandbox may use."""

    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    gpus: list[dict[str, Any]] | None = None


class NetworkBody(RequestModel):
    """What a sandbox may reach."""

    allow_internet_access: bool = True
    allow_out: Texts = Field(default_factory=list)
    deny_out: Texts = Field(default_factory=list)


class MountBody(RequestModel):
    """A file system to put into a sandbox."""

    file_system_id: Text
    mount_path: Text
    read_only: bool = False
    prefetch: bool = False
    snapshot_id: Text | None = None
    owner: Text | None = None


class DetachBody(RequestModel):
    """A file system to take out of a sandbox."""

    mount_path: Text


class CreateBody(RequestModel):
    """A sandbox to make."""

    image: Text | None = None
    resources: ResourcesBody | None = None
    timeout_secs: _MOST | None = None
    entrypoint: Texts | None = None
    network: NetworkBody | None = None
    snapshot_id: Text | None = None
    allow_unauthenticated_access: bool | None = None
    exposed_ports: list[int] | None = None
    name: Text | None = None
    file_systems: list[MountBody] | None = None
    wait: bool | None = None
    max_pending_secs: int | None = None
    auto_resume: bool | None = None


class ClaimBody(RequestModel):
    """What a sandbox that is claimed of a pool gets."""

    file_systems: list[MountBody] | None = None


class UpdateBody(RequestModel):
    """What to change of a sandbox. A network that is null is cleared; one that is left out stays."""

    name: Text | None = None
    resources: ResourcesBody | None = None
    allow_unauthenticated_access: bool | None = None
    exposed_ports: list[int] | None = None
    auto_resume: bool | None = None
    network: NetworkBody | None = None


class PoolBody(RequestModel):
    """A pool to have, or how one is to be from now on."""

    image: Text
    resources: ResourcesBody
    timeout_secs: _MOST = 0
    entrypoint: Texts | None = None
    max_containers: int | None = None
    warm_containers: int | None = None
    network: NetworkBody | None = None


class SnapshotBody(RequestModel):
    """A snapshot to take."""

    snapshot_type: Literal["memory", "filesystem"] | None = None


class WaitQuery(QueryModel):
    """How long its client waits until something is done: without it, for as long as that takes. What takes longer goes on."""

    wait_ms: _MOST | None = None


class CopyQuery(QueryModel):
    """How many copies."""

    times: Annotated[int, Field(ge=0, lt=1 << 31)] = 1


class ArchivedQuery(QueryModel):
    """Which of those that have ended."""

    limit: int = Field(default=100, ge=1, le=1000)
    cursor: Text | None = None
    direction: Literal["forward", "backward"] = "forward"


class LogsQuery(QueryModel):
    """Which lines of what ran."""

    level: list[int] = Field(default_factory=list, max_length=16)
    processId: Texts = Field(default_factory=list, max_length=100)  # noqa: N815 - the wire's
    tail: int | None = Field(default=None, ge=0, le=100_000)
    head: int | None = Field(default=None, ge=0, le=100_000)
    body: Text | None = None
    nextToken: Text | None = None  # noqa: N815


class Resources(ResponseModel):
    """What a sandbox may use."""

    cpus: float
    memory_mb: int
    disk_mb: int


class Resize(ResponseModel):
    """How changing what it may use has ended: it is always done."""

    generation: int = 1
    requested: Resources
    status: Literal["succeeded"] = "succeeded"


class Network(ResponseModel):
    """What a sandbox may reach, where that was said."""

    allow_internet_access: bool = False
    allow_out: list[str] = Field(default_factory=list)
    deny_out: list[str] = Field(default_factory=list)


class Mount(ResponseModel):
    """A file system in a sandbox."""

    file_system_id: str
    mount_path: str
    read_only: bool


class MadeAnswer(ResponseModel):
    """A sandbox that was made, claimed or copied."""

    sandbox_id: str
    status: Status
    sandbox_url: str | None
    name: str | None


class ClaimedAnswer(MadeAnswer):
    """One that was claimed. Its client ends one of which it is not told that the file systems that it asked for are there."""

    claim_configuration_applied: Literal[True] = True


class CopiesAnswer(ResponseModel):
    """Copies of a sandbox."""

    source_sandbox_id: str
    sandboxes: list[MadeAnswer]


class SandboxAnswer(ResponseModel):
    """A sandbox. Times are milliseconds since 1970."""

    id: str
    namespace: str
    status: Status
    image: str
    runtime: str
    resources: Resources
    resource_resize: Resize
    timeout_secs: int
    name: str | None
    auto_resume: bool
    network_policy: Network | None
    pool_id: str | None
    termination_reason: str | None
    error_details: str | None
    created_at: int
    terminated_at: int | None
    sandbox_url: str | None
    file_systems: list[Mount]
    exposed_ports: list[int] = Field(default_factory=list)
    allow_unauthenticated_access: bool = False


class ArchivedAnswer(SandboxAnswer):
    """One that has ended."""

    archived_at: int


class SandboxesAnswer(ResponseModel):
    """All of them."""

    sandboxes: list[SandboxAnswer]


class ArchiveAnswer(ResponseModel):
    """A page of those that have ended."""

    sandboxes: list[ArchivedAnswer]
    prev_cursor: str | None = None
    next_cursor: str | None = None


class TakenAnswer(ResponseModel):
    """A snapshot that was taken."""

    snapshot_id: str
    status: Literal["completed"] = "completed"


class SnapshotAnswer(ResponseModel):
    """A snapshot. It is whole before its client hears of it."""

    id: str
    namespace: str
    sandbox_id: str
    base_image: str
    status: Literal["completed", "failed"]
    snapshot_type: Literal["memory", "filesystem"]
    error: str | None
    size_bytes: int
    created_at: int


class SnapshotsAnswer(ResponseModel):
    """Some of them."""

    snapshots: list[SnapshotAnswer]


class PoolMadeAnswer(ResponseModel):
    """A pool that was made."""

    pool_id: str
    namespace: str


class Container(ResponseModel):
    """One sandbox of a pool: one that waits, or one that was claimed."""

    id: str
    state: Literal["Idle", "Running"]
    sandbox_id: str | None
    executor_id: str


class PoolAnswer(ResponseModel):
    """A pool."""

    id: str
    namespace: str
    image: str
    resources: Resources
    timeout_secs: int
    max_containers: int
    warm_containers: int
    network_policy: Network | None
    containers: list[Container] | None = None


class PoolsAnswer(ResponseModel):
    """All of them."""

    pools: list[PoolAnswer]


class LogLine(ResponseModel):
    """One line that was written."""

    timestamp: int = Field(description="Nanoseconds since 1970.")
    uuid: str
    namespace: str
    sandboxId: str  # noqa: N815
    body: str
    logAttributes: str  # noqa: N815
    level: int
    application: str = ""
    resourceAttributes: list[tuple[str, str]] = Field(default_factory=list)  # noqa: N815
    allocations: list[str] = Field(default_factory=list)
    functionRuns: list[str] = Field(default_factory=list)  # noqa: N815


class LogsAnswer(ResponseModel):
    """Lines, oldest first."""

    logs: list[LogLine]
    nextToken: str | None  # noqa: N815


class LogProcess(ResponseModel):
    """One process that has written."""

    processId: str  # noqa: N815
    processPid: str  # noqa: N815
    processCommand: str  # noqa: N815
    processManagedId: str  # noqa: N815
    processManagedName: str  # noqa: N815
    firstSeen: int  # noqa: N815
    lastSeen: int  # noqa: N815
    logCount: int  # noqa: N815


class LogProcessesAnswer(ResponseModel):
    """Processes that have written."""

    processes: list[LogProcess]
