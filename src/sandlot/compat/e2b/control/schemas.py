"""Requests of E2B's control plane. A field without a meaning here accepts only the value that has no effect."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, Text, Texts

MAX_FORKS = 20
"""Maximum number of forks of one request, as at E2B."""
MAX_PAGE = 1000


class AutoResume(RequestModel):
    """Option to resume a paused sandbox by the next request."""

    enabled: bool


class NetworkOptions(RequestModel):
    """Network of a sandbox."""

    allow_out: Texts | None = Field(default=None, alias="allowOut")
    deny_out: Texts | None = Field(default=None, alias="denyOut")
    allow_public_traffic: bool | None = Field(default=None, alias="allowPublicTraffic", description="Public ports, where the key may have them.")
    dns_servers: Texts | None = Field(default=None, alias="dnsServers")
    egress_proxy: dict[str, Any] | None = Field(default=None, alias="egressProxy")
    https_ports: list[int] | None = Field(default=None, alias="httpsPorts")
    mask_request_host: Text | None = Field(default=None, alias="maskRequestHost")
    rules: dict[str, Any] | None = None

    def unsupported(self) -> dict[str, object]:
        """Return the values of options that Sandlot does not have."""
        values = {
            "dnsServers": self.dns_servers,
            "egressProxy": self.egress_proxy,
            "httpsPorts": self.https_ports,
            "rules": self.rules,
        }
        return {name: value for name, value in values.items() if value}


class UpdateNetworkRequest(NetworkOptions):
    """New network of a sandbox."""

    allow_internet_access: bool | None = None


class VolumeMountOptions(RequestModel):
    """A volume in a sandbox."""

    name: Text
    path: Text


class CreateSandboxRequest(RequestModel):
    """A sandbox to create."""

    template_id: Text = Field(alias="templateID")
    timeout: float | None = Field(default=None, ge=0)
    metadata: Metadata | None = None
    env_vars: Metadata | None = Field(default=None, alias="envVars")
    auto_pause: bool = Field(default=False, alias="autoPause")
    auto_pause_memory: bool = Field(default=True, alias="autoPauseMemory")
    auto_resume: AutoResume | None = Field(default=None, alias="autoResume")
    allow_internet_access: bool | None = None
    network: NetworkOptions | None = None
    secure: bool | None = Field(default=None, description="A token is always required.")
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[VolumeMountOptions] | None = Field(default=None, alias="volumeMounts")


class SetTimeoutRequest(RequestModel):
    """Seconds from now until a sandbox times out."""

    timeout: float = Field(ge=0)


class RefreshRequest(RequestModel):
    """Seconds for which a sandbox is needed at least."""

    duration: float | None = Field(default=None, ge=0, le=3600)


class PauseRequest(RequestModel):
    """Options of a pause. A guest that does not respond is never paused; ``requireHealthyGuest`` changes the error for it."""

    memory: bool = True
    require_healthy_guest: bool = Field(default=False, alias="requireHealthyGuest")


class ConnectRequest(RequestModel):
    """Options of a connection."""

    timeout: float | None = Field(default=None, ge=0)
    memory: bool = True


class ResumeRequest(ConnectRequest):
    """Options of a resumption, from older clients."""

    auto_pause: bool | None = Field(default=None, alias="autoPause")


class CreateSnapshotRequest(RequestModel):
    """A snapshot to create."""

    name: Text | None = None
    memory: bool = True


class ForkRequest(RequestModel):
    """Forks to create."""

    timeout: float | None = Field(default=None, ge=0)
    count: int = Field(default=1, ge=1, le=MAX_FORKS)


class PageQuery(QueryModel):
    """Page of a list."""

    limit: int = Field(default=100, ge=1, le=MAX_PAGE)
    next_token: Text | None = Field(default=None, alias="nextToken")


class FilterQuery(QueryModel):
    """Filter of a list of sandboxes, from older clients."""

    metadata: Text | None = None


class SandboxesQuery(PageQuery):
    """Filter and page of a list of sandboxes."""

    metadata: Text | None = None
    state: Text | None = None
    started_after: Annotated[datetime | None, Field(alias="startedAfter")] = None
    template: Text | None = None
    order: Literal["asc", "desc"] = "desc"


class SnapshotsQuery(PageQuery):
    """Filter and page of a list of snapshots."""

    sandbox_id: Text | None = Field(default=None, alias="sandboxID")
    name: Text | None = None


class TeamQuery(QueryModel):
    """Team of templates, from older clients; there are no teams."""

    team_id: Text | None = Field(default=None, alias="teamID")


class TemplatesQuery(TeamQuery, PageQuery):
    """Page of a list of templates."""


class MetricsQuery(QueryModel):
    """Period of metrics, in seconds since 1970."""

    start: int | None = Field(default=None, ge=0)
    end: int | None = Field(default=None, ge=0)


class ManyMetricsQuery(QueryModel):
    """Ids of the sandboxes of metrics."""

    sandbox_ids: Text


class LogsQuery(QueryModel):
    """Number of log lines and time of the first, in milliseconds since 1970."""

    start: int | None = Field(default=None, ge=0)
    limit: int = Field(default=1000, ge=1, le=1000)


class LogsV2Query(QueryModel):
    """Filter of log lines, and the time from which they are listed forward or backward."""

    cursor: int | None = Field(default=None, ge=0)
    limit: int = Field(default=1000, ge=1, le=1000)
    direction: Literal["forward", "backward"] = "forward"
    level: Literal["debug", "info", "warn", "error"] | None = None
    search: Text | None = None


class RequestBuildRequest(RequestModel):
    """A build to request. ``alias`` is the name of older clients."""

    name: Text | None = None
    alias: Text | None = None
    tags: Texts | None = None
    team_id: Text | None = Field(default=None, alias="teamID")
    cpu_count: int | None = Field(default=None, alias="cpuCount", ge=1, lt=1 << 24)
    memory_mb: int | None = Field(default=None, alias="memoryMB", ge=1, lt=1 << 24)
    min_free_disk_mb: int | None = Field(default=None, alias="minFreeDiskMb", ge=0, lt=1 << 24)


class BuildStep(RequestModel):
    """A step of a build. Whether files are uploaded again is up to the client."""

    type: Text
    args: Texts | None = None
    files_hash: Text | None = Field(default=None, alias="filesHash")
    force: bool = False
    force_upload: bool | None = Field(default=None, alias="forceUpload")


class StartBuildRequest(RequestModel):
    """Base, steps and commands of a build."""

    image: Text | None = Field(default=None, alias="fromImage")
    template: Text | None = Field(default=None, alias="fromTemplate")
    registry: dict[str, Any] | None = Field(default=None, alias="fromImageRegistry")
    force: bool = False
    steps: list[BuildStep] = Field(default_factory=list)
    start_command: Text | None = Field(default=None, alias="startCmd")
    ready_command: Text | None = Field(default=None, alias="readyCmd")


class BuildStatusQuery(QueryModel):
    """Page of the log of a build."""

    logs_offset: int = Field(default=0, alias="logsOffset", ge=0)
    limit: int = Field(default=100, ge=1, le=100)
    level: Literal["debug", "info", "warn", "error"] = "debug"


class AssignTagsRequest(RequestModel):
    """Tags to assign to the build of ``target``, a name with or without a tag."""

    target: Text
    tags: Texts


class DeleteTagsRequest(RequestModel):
    """Tags to remove from a template."""

    name: Text
    tags: Texts
