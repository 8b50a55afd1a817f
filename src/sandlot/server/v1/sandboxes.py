"""Sandboxes: create, list, look, change, kill."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from sandlot.model.errors import InvalidRequestError
from sandlot.model.faults import Fault
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.ports import Exit
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import (
    AUTO,
    ENDED,
    LIVE,
    MAX_METADATA_ENTRIES,
    CreateSandboxParams,
    LimitsChange,
    SandboxFilter,
    SandboxInfo,
    SandboxUsage,
    UpdateSandboxParams,
    check_reserved_names,
    states_of,
)
from sandlot.model.specs import DEFAULT_TEMPLATE, DEFAULT_TIMEOUT_S, MAX_VOLUMES, Limits, OnTimeout, VolumeMount
from sandlot.server.v1.common import PROBLEM, documented_response
from sandlot.web import pagination
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, json_response

MOST_FILES = 100
"""That one request puts into a new sandbox."""

OF_SNAPSHOT = ("template", "isolation")
"""What a snapshot decides of a sandbox that starts from it."""

Rest = Literal["kill", "pause", "hibernate"]

Restored = Literal["memory", "files"]

RESTORED: Mapping[str, Restored] = {"memory": "memory", "files": "files"}


class LimitsRequest(RequestModel):
    """What a sandbox may use; what is left out has its default, or stays as it is."""

    cpus: float | None = Field(default=None, description="Cores; fractions are a share of one core's time.")
    memory_bytes: int | None = Field(default=None, description="Memory of the whole sandbox.")
    disk_bytes: int | None = Field(default=None, description="What may be written on top of the image.")
    pids: int | None = Field(default=None, description="Processes and threads.")

    def over(self, limits: Limits) -> Limits:
        """These limits, the rest from others."""
        return Limits(
            cpus=limits.cpus if self.cpus is None else self.cpus,
            memory_bytes=limits.memory_bytes if self.memory_bytes is None else self.memory_bytes,
            disk_bytes=limits.disk_bytes if self.disk_bytes is None else self.disk_bytes,
            pids=limits.pids if self.pids is None else self.pids,
        )

    def change(self) -> LimitsChange:
        """Those that are given."""
        return LimitsChange(memory_bytes=self.memory_bytes, cpus=self.cpus, pids=self.pids, disk_bytes=self.disk_bytes)


class NetworkRequest(RequestModel):
    """Network policy of a sandbox."""

    mode: NetworkMode = Field(
        strict=False,
        description="'none', or 'packages': the package indexes of the service's host, for pip, npm and apt. A mode that cannot be enforced is "
        "refused.",
    )


class CreateSandboxRequest(RequestModel):
    """A sandbox to create."""

    template: Text = Field(default=DEFAULT_TEMPLATE, description="What it starts from; GET /v1/templates lists them.")
    name: Text | None = Field(
        default=None, description="Name of the sandbox, which no other live sandbox of its owner may have. It must not have the form of a sandbox id."
    )
    if_exists: Literal["error", "return"] = Field(
        default="error",
        description="What to do if a live sandbox of your own has the name: `error` refuses the request with 409; `return`, which needs a name, "
        "returns the sandbox with 200. A suspended sandbox is resumed. The other fields have no effect then.",
    )
    env: Metadata = Field(default_factory=dict, description="Environment of every process in it.")
    metadata: Metadata = Field(default_factory=dict, description="Your own words, kept and given back; no name may begin with 'sandlot.'.")
    limits: LimitsRequest = Field(default_factory=LimitsRequest, description="What it may use.")
    snapshot: Text | None = Field(
        default=None,
        description="A snapshot to start from, by its id or its name. Template and isolation are the snapshot's then, and not to be given; limits "
        "and network are, where they are not given; env is added to its environment.",
    )
    timeout: float | None = Field(default=None, description=f"Seconds until its timeout; {DEFAULT_TIMEOUT_S:g} where nothing is said.")
    on_timeout: Rest = Field(
        default="kill",
        description="What its timeout does: end it; freeze it, with its memory where it is; or write its memory to the disk and give it back.",
    )
    auto_resume: bool = Field(
        default=True, description="Whether the next request to it resumes it while it is paused or hibernated; otherwise such a request is refused."
    )
    persistent: bool = Field(default=False, description="It has no timeout: it lives until it is deleted.")
    idle_timeout: float | None = Field(default=None, description="Seconds of doing nothing after which it is ended; without it, never.")
    file_ids: Annotated[list[Text], Field(max_length=MOST_FILES)] = Field(
        default_factory=list, description="Ids of files of the file store that are put into /workspace before it is answered."
    )
    isolation: Text = Field(default=AUTO, description="A driver that the operator allows, or auto: the one that is the service's default.")
    network: NetworkRequest | None = Field(
        default=None, description="What it may reach. Left out: what the snapshot may; else 'packages', or 'none' where that is not allowed."
    )

    volumes: Annotated[list[AttachVolumeRequest], Field(max_length=MAX_VOLUMES)] = Field(
        default_factory=list, description="Volumes that it has. One that is not there is 404, before anything is made."
    )

    def asked(self) -> CreateSandboxParams:
        """What core makes of it."""
        if self.persistent and self.timeout is not None:
            raise InvalidRequestError("A persistent sandbox has no timeout.", hint="Give one of the two.", fields={"field": "timeout"})
        if self.snapshot is not None and (given := [name for name in OF_SNAPSHOT if name in self.model_fields_set]):
            raise InvalidRequestError(
                f"A snapshot decides the {given[0]} of what starts from it.",
                hint=f"Leave out '{given[0]}'.",
                fields={"field": given[0]},
            )
        check_reserved_names(self.metadata)
        timeout_s = DEFAULT_TIMEOUT_S if self.timeout is None else self.timeout
        return CreateSandboxParams(
            snapshot=self.snapshot,
            file_ids=tuple(self.file_ids),
            idle_timeout_s=self.idle_timeout,
            template=self.template if self.snapshot is None else None,
            name=self.name,
            env=self.env,
            metadata=self.metadata,
            limits=self.limits.change(),
            timeout_s=None if self.persistent else timeout_s,
            isolation=self.isolation,
            network=None if self.network is None else NetworkPolicy(self.network.mode),
            on_timeout=OnTimeout(self.on_timeout),
            auto_resume=self.auto_resume,
            volumes=tuple(mount.asked() for mount in self.volumes),
        )


class UpdateSandboxRequest(RequestModel):
    """What to change of a sandbox; what is left out stays as it is."""

    timeout: float | None = Field(
        default=None,
        description="Seconds from now until its timeout, of one that rests from when it is resumed; one that was persistent is so no more.",
    )
    on_timeout: Rest | None = Field(default=None, description="What its timeout does.")
    auto_resume: bool | None = Field(default=None, description="Whether the next request to it resumes it while it is paused or hibernated.")
    persistent: Literal[True] | None = Field(default=None, description="true takes its timeout away; a timeout gives it one again.")
    idle_timeout: float | None = Field(default=None, description="Seconds of doing nothing after which it is ended; 0 is never.")
    metadata: Metadata | None = Field(default=None, description="Replaces what there is, but for names that begin with 'sandlot.'.")
    limits: LimitsRequest | None = Field(default=None, description="From now on. What a host cannot change is told by /v1/capabilities.")
    name: Text | None = Field(default=None, description="New name, which no other live sandbox of the owner may have.")

    def asked(self) -> UpdateSandboxParams:
        """What core makes of it."""
        return UpdateSandboxParams(
            timeout_s=self.timeout,
            persistent=bool(self.persistent),
            idle_timeout_s=self.idle_timeout,
            metadata=self.metadata,
            limits=LimitsChange() if self.limits is None else self.limits.change(),
            on_timeout=None if self.on_timeout is None else OnTimeout(self.on_timeout),
            auto_resume=self.auto_resume,
            name=self.name,
        )


class LimitsResponse(ResponseModel):
    """What a sandbox may use."""

    cpus: float
    memory_bytes: int
    disk_bytes: int
    pids: int

    @classmethod
    def of(cls, limits: Limits) -> LimitsResponse:
        """They, told."""
        return cls(cpus=limits.cpus, memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes, pids=limits.pids)


class NetworkResponse(ResponseModel):
    """Network policy of a sandbox."""

    mode: NetworkMode

    @classmethod
    def of(cls, policy: NetworkPolicy) -> NetworkResponse:
        """Describe a policy."""
        return cls(mode=policy.mode)


class SandboxExitResponse(ResponseModel):
    """How a sandbox ended."""

    reason: str
    detail: str
    fault: Fault | None = Field(description="Cause of a failure; null if the sandbox ended on request or at its timeout.")

    @classmethod
    def of(cls, end: Exit) -> SandboxExitResponse:
        """Describe the end of a sandbox."""
        return cls(reason=str(end.reason), detail=end.detail, fault=end.fault)


class SandboxResponse(ResponseModel):
    """A sandbox."""

    id: str
    state: str
    template: str
    name: str | None
    metadata: dict[str, str]
    isolation: str
    network: NetworkResponse
    limits: LimitsResponse
    timeout: float | None
    persistent: bool
    on_timeout: Rest
    auto_resume: bool
    idle_timeout: float | None
    snapshot: str | None = Field(description="The id of the snapshot that it was started from, which may be gone.")
    parent: str | None = Field(description="The id of the sandbox whose fork it is.")
    restored: Restored | None = Field(
        description="What it began with: memory and files of another one, or its files alone. null: it booted from its template."
    )
    volumes: list[VolumeMountResponse]
    created_at: datetime
    expires_at: datetime | None
    ended_at: datetime | None
    node: str
    exit: SandboxExitResponse | None

    @classmethod
    def of(cls, sandbox: SandboxInfo) -> SandboxResponse:
        """What is told of a sandbox."""
        spec = sandbox.spec
        return cls(
            id=sandbox.id,
            state=str(sandbox.state),
            template=spec.template.name,
            name=sandbox.name,
            metadata=dict(sandbox.metadata),
            isolation=spec.isolation,
            network=NetworkResponse.of(spec.network),
            limits=LimitsResponse.of(spec.limits),
            timeout=spec.timeout_s,
            persistent=spec.timeout_s is None,
            on_timeout=spec.on_timeout.value,
            auto_resume=spec.auto_resume,
            idle_timeout=sandbox.idle_timeout_s,
            snapshot=spec.snapshot,
            parent=spec.parent,
            restored=RESTORED.get(spec.restored),
            volumes=[VolumeMountResponse.of(mount) for mount in spec.volumes],
            created_at=sandbox.created_at,
            expires_at=sandbox.expires_at,
            ended_at=sandbox.ended_at,
            node=sandbox.node,
            exit=None if sandbox.exit is None else SandboxExitResponse.of(sandbox.exit),
        )


class SandboxesResponse(ResponseModel):
    """A page of sandboxes, oldest first."""

    sandboxes: list[SandboxResponse]
    next_cursor: str | None


class SandboxesQuery(QueryModel):
    """Which sandboxes to list."""

    cursor: Text | None = Field(default=None, description="The next_cursor of the page before.")
    limit: int = Field(default=100, ge=1, le=1000, description="Sandboxes on one page, at most.")
    ended: bool = Field(default=False, description="Also those that have ended, for as long as their records are kept.")
    state: Text | None = Field(default=None, description="Only those in this state, or in one of these, separated by commas.")
    metadata: Annotated[list[Text], Field(max_length=MAX_METADATA_ENTRIES)] = Field(
        default_factory=list, description="NAME=VALUE: only those that have this entry; may be given several times."
    )
    name: Text | None = Field(default=None, description="Only those of this name.")

    def wanted(self) -> SandboxFilter:
        """What core makes of it."""
        entries: dict[str, str] = {}
        for entry in self.metadata:
            name, mark, value = entry.partition("=")
            if not mark:
                raise InvalidRequestError("A metadata filter is NAME=VALUE.", hint="For example metadata=user=alice.", fields={"field": "metadata"})
            entries[name] = value
        states = LIVE
        if self.state is not None:
            states = states_of(name.strip() for name in self.state.split(","))
        elif self.ended:
            states = LIVE | ENDED
        return SandboxFilter(states=states, metadata=entries, name=self.name)


class UsageResponse(ResponseModel):
    """What a sandbox has used, and of how much."""

    cpu_s: float = Field(description="Seconds of processor time, its runtime's included.")
    memory_bytes: int = Field(description="Now, its runtime's included; without the page cache that the kernel can drop at once.")
    memory_peak_bytes: int = Field(description="The most that it ever held, page cache included.")
    disk_bytes: int = Field(description="What was written on top of the image.")
    pids: int | None = Field(description="Processes and threads, as the limit counts them; null where the sandbox does not answer in time.")
    host_tasks: int = Field(description="Tasks of the host, its runtime's own included.")
    limits: LimitsResponse

    @classmethod
    def of(cls, used: SandboxUsage) -> UsageResponse:
        """What is told of it."""
        usage = used.usage
        return cls(
            cpu_s=usage.cpu_s,
            memory_bytes=usage.memory_bytes,
            memory_peak_bytes=usage.memory_peak_bytes,
            disk_bytes=usage.disk_bytes,
            pids=used.pids,
            host_tasks=usage.pids,
            limits=LimitsResponse.of(used.limits),
        )


class PortResponse(ResponseModel):
    """A TCP port on which something listens."""

    port: int
    address: str = Field(description="What it is bound to: 0.0.0.0 and :: are every address, 127.0.0.1 and ::1 the sandbox itself only.")


class PortsResponse(ResponseModel):
    """What listens inside a sandbox, by number."""

    ports: list[PortResponse]


class AttachVolumeRequest(RequestModel):
    """A volume that a sandbox is to have."""

    volume: Text = Field(description="Its name or its id.", examples=["datasets"])
    path: Text = Field(description="The folder that it is: absolute, made where it is not there.", examples=["/data"])
    read_only: bool = Field(default=False, description="Whether nothing can be written to it from this sandbox.")

    def asked(self) -> VolumeMount:
        """What core makes of it."""
        return VolumeMount(volume=self.volume, path=self.path, read_only=self.read_only)


class VolumeMountResponse(ResponseModel):
    """A volume that a sandbox has."""

    volume: str = Field(description="Its id.")
    path: str
    read_only: bool

    @classmethod
    def of(cls, mount: VolumeMount) -> VolumeMountResponse:
        """What is told of it."""
        return cls(volume=mount.volume, path=mount.path, read_only=mount.read_only)


router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"], route_class=SandboxRoute)


_FOUND = documented_response(SandboxResponse, "The live sandbox that has the name; only with `if_exists` `return`.")


@router.post("", status_code=201, responses=_FOUND | documented_response(SandboxResponse, "The new sandbox.", 201))
async def create(
    body: CreateSandboxRequest,
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(description="Your own name for this request, for example a UUID: sent again, it gives the sandbox that it gave.")
    ] = None,
) -> Response:
    """Create a sandbox and wait until it runs. If the client disconnects before, the sandbox is ended.

    With `if_exists` `return`, the live sandbox of your own that has the name is returned instead. If several such requests race, one of them creates
    the sandbox.
    """
    sandboxes, principal = get_node(request).sandboxes, get_principal(request)
    if body.if_exists == "return":
        work = sandboxes.get_or_create(principal, body.asked(), idempotency_key=idempotency_key)
        sandbox, created = await cancel_on_disconnect(request, work)
        return json_response(SandboxResponse.of(sandbox), 201 if created else 200)
    sandbox = await cancel_on_disconnect(request, sandboxes.create(principal, body.asked(), idempotency_key=idempotency_key))
    return json_response(SandboxResponse.of(sandbox), 201)


@router.get("", responses=documented_response(SandboxesResponse, "A page of them, oldest first."))
async def list_sandboxes(query: Annotated[SandboxesQuery, Query()], request: Request) -> Response:
    """List sandboxes: your own; for an operator everybody's."""
    after = pagination.decode_cursor(query.cursor)
    page = await get_node(request).sandboxes.list(get_principal(request), query.wanted(), after=after, limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(SandboxesResponse(sandboxes=[SandboxResponse.of(sandbox) for sandbox in page.items], next_cursor=following))


@router.get("/{sandbox}", responses=documented_response(SandboxResponse, "It."))
async def get(sandbox: str, request: Request) -> Response:
    """Look at a sandbox; also at one that ended, for as long as its record is kept."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.get(get_principal(request), sandbox)))


@router.patch("/{sandbox}", responses=documented_response(SandboxResponse, "It, changed."))
async def update(sandbox: str, body: UpdateSandboxRequest, request: Request) -> Response:
    """Change a sandbox's deadline and what that does, idle timeout, metadata or limits: all of what is asked, or nothing."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.update(get_principal(request), sandbox, body.asked())))


@router.delete("/{sandbox}", status_code=204, responses=PROBLEM)
async def delete(sandbox: str, request: Request) -> Response:
    """End a sandbox and remove it. Answered when its processes are dead; again and again the same."""
    await get_node(request).sandboxes.kill(get_principal(request), sandbox)
    return Response(status_code=204)


@router.get("/{sandbox}/usage", responses=documented_response(UsageResponse, "So far."))
async def get_usage(sandbox: str, request: Request) -> Response:
    """What a sandbox has used, and of how much."""
    return json_response(UsageResponse.of(await get_node(request).sandboxes.usage(get_principal(request), sandbox)))


@router.get("/{sandbox}/ports", responses=documented_response(PortsResponse, "At this moment."))
async def list_ports(sandbox: str, request: Request) -> Response:
    """Tell on which TCP ports something listens inside a sandbox; none of Sandlot's own."""
    found = await get_node(request).sandboxes.ports(get_principal(request), sandbox)
    return json_response(PortsResponse(ports=[PortResponse(port=each.port, address=each.address) for each in found]))
