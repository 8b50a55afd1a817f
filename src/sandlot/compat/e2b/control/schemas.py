"""What E2B's clients send to the control plane, field by field. A field that means nothing here has the one value that does nothing."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, Text, Texts

MOST_FORKS = 20
"""As E2B has it."""
MOST_PAGE = 1000


class AutoResumeBody(RequestModel):
    """Whether what is asked of a paused sandbox resumes it."""

    enabled: bool


class NetworkBody(RequestModel):
    """What a sandbox may reach, and who may reach it."""

    allow_out: Texts | None = Field(default=None, alias="allowOut")
    deny_out: Texts | None = Field(default=None, alias="denyOut")
    allow_public_traffic: bool | None = Field(default=None, alias="allowPublicTraffic")
    dns_servers: Texts | None = Field(default=None, alias="dnsServers")
    egress_proxy: dict[str, Any] | None = Field(default=None, alias="egressProxy")
    https_ports: list[int] | None = Field(default=None, alias="httpsPorts")
    mask_request_host: Text | None = Field(default=None, alias="maskRequestHost")
    rules: dict[str, Any] | None = None

    def beyond(self) -> dict[str, object]:
        """What is said of what there is not: ports have no public address (tunnels reach them, with a key), no request is rewritten."""
        said = {
            "allowPublicTraffic": self.allow_public_traffic,
            "dnsServers": self.dns_servers,
            "egressProxy": self.egress_proxy,
            "httpsPorts": self.https_ports,
            "maskRequestHost": self.mask_request_host,
            "rules": self.rules,
        }
        return {name: value for name, value in said.items() if value}


class NetworkUpdateBody(NetworkBody):
    """What a sandbox is to reach from now on."""

    allow_internet_access: bool | None = None


class VolumeMountBody(RequestModel):
    """A volume in a sandbox."""

    name: Text
    path: Text


class CreateBody(RequestModel):
    """A sandbox to create."""

    template_id: Text = Field(alias="templateID")
    timeout: float | None = Field(default=None, ge=0)
    metadata: Metadata | None = None
    env_vars: Metadata | None = Field(default=None, alias="envVars")
    auto_pause: bool = Field(default=False, alias="autoPause")
    auto_pause_memory: bool = Field(default=True, alias="autoPauseMemory")
    auto_resume: AutoResumeBody | None = Field(default=None, alias="autoResume")
    allow_internet_access: bool | None = None
    network: NetworkBody | None = None
    secure: bool | None = Field(default=None, description="A token is always asked for.")
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[VolumeMountBody] | None = Field(default=None, alias="volumeMounts")


class TimeoutBody(RequestModel):
    """When a sandbox is to time out, from now on."""

    timeout: float = Field(ge=0)


class RefreshBody(RequestModel):
    """How much longer a sandbox is needed at least."""

    duration: float | None = Field(default=None, ge=0, le=3600)


class PauseBody(RequestModel):
    """How to pause: its memory is always kept. A guest that does not answer is never paused; ``requireHealthyGuest`` says how that is told."""

    memory: bool = True
    require_healthy_guest: bool = Field(default=False, alias="requireHealthyGuest")


class ConnectBody(RequestModel):
    """How a sandbox is to go on."""

    timeout: float | None = Field(default=None, ge=0)
    memory: bool = True


class ResumeBody(ConnectBody):
    """The same, of older clients."""

    auto_pause: bool | None = Field(default=None, alias="autoPause")


class SnapshotBody(RequestModel):
    """A snapshot to take."""

    name: Text | None = None
    memory: bool = True


class ForkBody(RequestModel):
    """Forks to make."""

    timeout: float | None = Field(default=None, ge=0)
    count: int = Field(default=1, ge=1, le=MOST_FORKS)


class PageQuery(QueryModel):
    """Which part of a list."""

    limit: int = Field(default=100, ge=1, le=MOST_PAGE)
    next_token: Text | None = Field(default=None, alias="nextToken")


class FilterQuery(QueryModel):
    """Which sandboxes, for older clients."""

    metadata: Text | None = None


class SandboxesQuery(PageQuery):
    """Which sandboxes."""

    metadata: Text | None = None
    state: Text | None = None
    started_after: Annotated[datetime | None, Field(alias="startedAfter")] = None
    template: Text | None = None
    order: Literal["asc", "desc"] = "desc"


class SnapshotsQuery(PageQuery):
    """Which snapshots."""

    sandbox_id: Text | None = Field(default=None, alias="sandboxID")
    name: Text | None = None


class TeamQuery(QueryModel):
    """Whose templates, for older clients; there are no teams."""

    team_id: Text | None = Field(default=None, alias="teamID")


class TemplatesQuery(TeamQuery, PageQuery):
    """Which templates."""


class MetricsQuery(QueryModel):
    """From when until when, in seconds since 1970."""

    start: int | None = Field(default=None, ge=0)
    end: int | None = Field(default=None, ge=0)


class ManyMetricsQuery(QueryModel):
    """Which sandboxes' metrics."""

    sandbox_ids: Text


class LogsQuery(QueryModel):
    """Which lines, from when on, in milliseconds since 1970."""

    start: int | None = Field(default=None, ge=0)
    limit: int = Field(default=1000, ge=1, le=1000)


class LogsV2Query(QueryModel):
    """Which lines, from when on, or backward from then."""

    cursor: int | None = Field(default=None, ge=0)
    limit: int = Field(default=1000, ge=1, le=1000)
    direction: Literal["forward", "backward"] = "forward"
    level: Literal["debug", "info", "warn", "error"] | None = None
    search: Text | None = None
