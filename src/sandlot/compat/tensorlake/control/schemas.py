"""Requests and responses of Tensorlake's control plane.

Invariant: Every sandbox has a status, and a reachable sandbox has a ``sandbox_url``, because the client rejects responses without them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sandlot.model.network import MAX_PORT
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, Texts

Status = Literal["pending", "running", "snapshotting", "suspending", "suspended", "terminated"]
_Number = Annotated[int, Field(ge=0, lt=1 << 31)]
_Megabytes = Annotated[int, Field(lt=1 << 24)]
_Port = Annotated[int, Field(ge=1, le=MAX_PORT)]
_Ports = Annotated[list[_Port], Field(max_length=1000)]


class ResourceOptions(RequestModel):
    """Limits of a sandbox."""

    cpus: float | None = None
    memory_mb: _Megabytes | None = None
    disk_mb: _Megabytes | None = None
    gpus: list[dict[str, Any]] | None = None


class NetworkOptions(RequestModel):
    """Network of a sandbox."""

    allow_internet_access: bool = True
    allow_out: Texts = Field(default_factory=list)
    deny_out: Texts = Field(default_factory=list)


class MountRequest(RequestModel):
    """A file system to attach."""

    file_system_id: Text
    mount_path: Text
    read_only: bool = False
    prefetch: bool = False
    snapshot_id: Text | None = None
    owner: Text | None = None


class DetachRequest(RequestModel):
    """A file system to detach."""

    mount_path: Text


class CreateSandboxRequest(RequestModel):
    """A sandbox to create."""

    image: Text | None = None
    resources: ResourceOptions | None = None
    timeout_secs: _Number | None = None
    entrypoint: Texts | None = None
    network: NetworkOptions | None = None
    snapshot_id: Text | None = None
    allow_unauthenticated_access: bool | None = None
    exposed_ports: _Ports | None = None
    name: Text | None = None
    file_systems: list[MountRequest] | None = None
    wait: bool | None = None
    max_pending_secs: int | None = None
    auto_resume: bool | None = None


class ClaimRequest(RequestModel):
    """Options of a claimed sandbox."""

    file_systems: list[MountRequest] | None = None


class UpdateSandboxRequest(RequestModel):
    """Changes of a sandbox. A network of null clears the policy; an omitted network keeps it."""

    name: Text | None = None
    resources: ResourceOptions | None = None
    allow_unauthenticated_access: bool | None = None
    exposed_ports: _Ports | None = None
    auto_resume: bool | None = None
    network: NetworkOptions | None = None


class PoolRequest(RequestModel):
    """A pool to create, or its new state."""

    image: Text
    resources: ResourceOptions
    timeout_secs: _Number = 0
    entrypoint: Texts | None = None
    max_containers: int | None = None
    warm_containers: int | None = None
    network: NetworkOptions | None = None


class CreateSnapshotRequest(RequestModel):
    """A snapshot to create."""

    snapshot_type: Literal["memory", "filesystem"] | None = None


class WaitQuery(QueryModel):
    """Waiting time of the client; by default unlimited. A longer operation continues."""

    wait_ms: _Number | None = None


class CopyQuery(QueryModel):
    """Number of copies."""

    times: Annotated[int, Field(ge=0, lt=1 << 31)] = 1


class ArchivedQuery(QueryModel):
    """Page of the ended sandboxes."""

    limit: int = Field(default=100, ge=1, le=1000)
    cursor: Text | None = None
    direction: Literal["forward", "backward"] = "forward"


class LogsQuery(QueryModel):
    """Filter of log lines."""

    level: list[int] = Field(default_factory=list, max_length=16)
    processId: Texts = Field(default_factory=list, max_length=100)  # noqa: N815 - name in the API
    tail: int | None = Field(default=None, ge=0, le=100_000)
    head: int | None = Field(default=None, ge=0, le=100_000)
    body: Text | None = None
    nextToken: Text | None = None  # noqa: N815


class Resources(ResponseModel):
    """Limits of a sandbox."""

    cpus: float
    memory_mb: int
    disk_mb: int


class Resize(ResponseModel):
    """Result of a change of limits, which always succeeds immediately."""

    generation: int = 1
    requested: Resources
    status: Literal["succeeded"] = "succeeded"


class Network(ResponseModel):
    """Network of a sandbox or pool."""

    allow_internet_access: bool = False
    allow_out: list[str] = Field(default_factory=list)
    deny_out: list[str] = Field(default_factory=list)


class Mount(ResponseModel):
    """A file system in a sandbox."""

    file_system_id: str
    mount_path: str
    read_only: bool


class CreatedSandboxResponse(ResponseModel):
    """A sandbox that was created, claimed or copied."""

    sandbox_id: str
    status: Status
    sandbox_url: str | None
    name: str | None


class ClaimResponse(CreatedSandboxResponse):
    """A claimed sandbox. The client deletes the sandbox unless the response confirms its file systems."""

    claim_configuration_applied: Literal[True] = True


class CopyResponse(ResponseModel):
    """Copies of a sandbox."""

    source_sandbox_id: str
    sandboxes: list[CreatedSandboxResponse]


class SandboxResponse(ResponseModel):
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
    ingress_endpoint: str | None
    sandbox_url: str | None
    file_systems: list[Mount]
    exposed_ports: list[int]
    allow_unauthenticated_access: bool


class ArchivedSandboxResponse(SandboxResponse):
    """An ended sandbox."""

    archived_at: int


class SandboxListResponse(ResponseModel):
    """All live sandboxes."""

    sandboxes: list[SandboxResponse]


class ArchivedListResponse(ResponseModel):
    """Page of the ended sandboxes."""

    sandboxes: list[ArchivedSandboxResponse]
    prev_cursor: str | None = None
    next_cursor: str | None = None


class CreatedSnapshotResponse(ResponseModel):
    """A snapshot that was created."""

    snapshot_id: str
    status: Literal["completed"] = "completed"


class SnapshotResponse(ResponseModel):
    """A snapshot. It is complete before it is listed."""

    id: str
    namespace: str
    sandbox_id: str
    base_image: str
    status: Literal["completed", "failed"]
    snapshot_type: Literal["memory", "filesystem"]
    error: str | None
    size_bytes: int
    created_at: int


class SnapshotListResponse(ResponseModel):
    """Snapshots."""

    snapshots: list[SnapshotResponse]


class CreatedPoolResponse(ResponseModel):
    """A pool that was created."""

    pool_id: str
    namespace: str


class Container(ResponseModel):
    """A warm sandbox of a pool, or a sandbox that was claimed."""

    id: str
    state: Literal["Idle", "Running"]
    sandbox_id: str | None
    executor_id: str


class PoolResponse(ResponseModel):
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


class PoolListResponse(ResponseModel):
    """All pools."""

    pools: list[PoolResponse]


class LogLine(ResponseModel):
    """One line of output."""

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


class LogListResponse(ResponseModel):
    """Lines, oldest first."""

    logs: list[LogLine]
    nextToken: str | None  # noqa: N815


class LogProcess(ResponseModel):
    """A process that has written output."""

    processId: str  # noqa: N815
    processPid: str  # noqa: N815
    processCommand: str  # noqa: N815
    processManagedId: str  # noqa: N815
    processManagedName: str  # noqa: N815
    firstSeen: int  # noqa: N815
    lastSeen: int  # noqa: N815
    logCount: int  # noqa: N815


class LogProcessListResponse(ResponseModel):
    """Processes that have written output."""

    processes: list[LogProcess]


class BuilderResources(RequestModel):
    """Resources of the machine that builds an image at Tensorlake. Builds have the limits of the operator here."""

    cpus: float | None = None
    memory_mb: _Megabytes | None = None


class ParentImage(RequestModel):
    """An image of the key in a FROM of the Dockerfile. The names in the Dockerfile decide."""

    public_id: Text
    reference: Text


class BuildImageRequest(RequestModel):
    """A build or import of an image."""

    kind: Literal["dockerfile", "import"]
    name: Text
    dockerfile_path: Text = "Dockerfile"
    build_args: dict[str, str] = Field(default_factory=dict)
    builder_resources: BuilderResources | None = None
    disk_mb: Annotated[int, Field(ge=1, lt=1 << 24)] | None = None
    parents: list[ParentImage] = Field(default_factory=list)
    image_ref: Text | None = None
    image_scope: Text | None = None
    registry_credentials_json: Text | None = None


class SealRequest(RequestModel):
    """SHA-256 of an uploaded context, in hexadecimal."""

    digest: Text


class CancelBuildRequest(RequestModel):
    """A build to cancel."""

    build_id: Text | None = None
    client_request_id: Text | None = None


class ImagesQuery(QueryModel):
    """Page of a list of images."""

    page_size: int = Field(default=100, ge=1, le=1000)
    cursor: Text | None = None


class LegacyImagesQuery(QueryModel):
    """Page of a list of images of the older client; always empty."""

    page_size: int = Field(default=100, ge=1, alias="pageSize")
