"""Sandboxes: schemas and routes of their creation, state, limits and usage."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field, model_validator

from sandlot.model.errors import InvalidRequestError
from sandlot.model.faults import Fault
from sandlot.model.ids import SandboxId
from sandlot.model.network import MAX_ENTRIES, NetworkMode, NetworkPolicy, network_entries
from sandlot.model.paths import WORKSPACE
from sandlot.model.ports import Exit
from sandlot.model.previews import DEFAULT_PREVIEW_LIFETIME_S
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
from sandlot.model.specs import (
    DEFAULT_TEMPLATE,
    DEFAULT_TIMEOUT_S,
    MAX_REQUEST_HOST_BYTES,
    MAX_VOLUMES,
    PORT_VARIABLE,
    Limits,
    OnTimeout,
    VolumeMount,
)
from sandlot.server.v1.common import PROBLEM, Cursor, documented_response
from sandlot.web import pagination
from sandlot.web.dependencies import SandboxNameRoute, cancel_on_disconnect, get_node, get_preview_address, get_principal
from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, Texts, json_response

MAX_FILE_IDS = 100
"""Maximum number of stored files that a create request copies into the sandbox."""

FIELDS_OF_SNAPSHOT = ("template", "isolation")
"""Fields of a create request that a snapshot determines."""

OnTimeoutName = Literal["kill", "pause", "hibernate", "hibernate_files"]

RestoredFrom = Literal["memory", "files"]

RESTORED: Mapping[str, RestoredFrom] = {"memory": "memory", "files": "files"}


class LimitsRequest(RequestModel):
    """Limits of a sandbox. An omitted limit is that of the template in a create request and does not change in an update."""

    cpus: float | None = Field(default=None, description="CPU cores; a fraction is a share of the time of one core.")
    memory_bytes: int | None = Field(default=None, description="Memory of the sandbox.")
    disk_bytes: int | None = Field(default=None, description="Disk space for changes to the root filesystem image.")
    pids: int | None = Field(default=None, description="Processes and threads.")

    def change(self) -> LimitsChange:
        """Return the limits that the request contains."""
        return LimitsChange(memory_bytes=self.memory_bytes, cpus=self.cpus, pids=self.pids, disk_bytes=self.disk_bytes)


class NetworkRequest(RequestModel):
    """Network policy of a sandbox. A string is the short form of an object with this `mode`, a list that of an allowlist with these rules.

    A rule is `[METHOD[,METHOD] ]host[:port][/path]`. The host is a name such as `api.example.com`, a name after `*.` (one label) or `**.` (one or
    more labels), an address, or a network such as `192.0.2.0/24`. Without a port, a name has the ports 80 and 443, and an address all ports; `*` is
    all ports. Methods and a path limit requests of plain HTTP.
    """

    mode: NetworkMode = Field(
        strict=False,
        description="`none`; `packages`: the package indexes of pip, npm and apt for which the host is configured; `allowlist`: what `allow` names; "
        "`internet`: all public destinations. A mode that the operator or the key does not allow is refused with 403.",
    )
    allow: Texts = Field(default_factory=list, description=f"Rules of destinations to allow. Both lists have at most {MAX_ENTRIES} rules together.")
    deny: Texts = Field(default_factory=list, description="Rules of destinations to deny; they take precedence over `allow`.")
    packages: bool | None = Field(
        default=None, description="For `allowlist` and `internet`: read access to the package indexes as well. Default: true."
    )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, network: object) -> object:
        if isinstance(network, str):
            return {"mode": network}
        return {"mode": NetworkMode.ALLOWLIST, "allow": network} if isinstance(network, list) else network

    def policy(self) -> NetworkPolicy:
        """Return the network policy of the operation."""
        return NetworkPolicy(self.mode, network_entries(self.allow, self.deny), packages=self.packages is not False)


def _add_short_forms(schema: dict[str, Any]) -> None:
    schema["anyOf"][:0] = [{"$ref": "#/components/schemas/NetworkMode"}, {"type": "array", "items": {"type": "string"}}]


class CreateSandboxRequest(RequestModel):
    """Options of a new sandbox."""

    template: Text = Field(default=DEFAULT_TEMPLATE, description="Template of the sandbox; `GET /v1/templates` lists all.")
    name: Text | None = Field(
        default=None, description="Name of the sandbox, which no other live sandbox of its owner may have. It must not have the form of a sandbox id."
    )
    if_exists: Literal["error", "return"] = Field(
        default="error",
        description="Action if a live sandbox of the caller has the name: `error` refuses the request with 409; `return`, which needs a name, "
        "returns the sandbox with 200. A suspended sandbox is resumed. The other fields have no effect then.",
    )
    env: Metadata = Field(default_factory=dict, description="Environment variables of all processes in the sandbox.")
    cwd: Text | None = Field(
        default=None,
        description="Absolute path of the working directory, in which programs start and relative paths begin. It is created if it does not "
        f"exist. Default: that of the snapshot, otherwise {WORKSPACE}.",
        examples=["/srv/app"],
        json_schema_extra={"pattern": "^/"},
    )
    metadata: Metadata = Field(default_factory=dict, description="Metadata of the user. Names that begin with `sandlot.` are reserved.")
    limits: LimitsRequest = Field(default_factory=LimitsRequest, description="Limits of the sandbox.")
    snapshot: Text | None = Field(
        default=None,
        description="Id or name of the snapshot to start from, which determines template and isolation. Omitted limits and an omitted network are "
        "those of the snapshot; `env` is added to its environment.",
    )
    timeout: float | None = Field(default=None, description=f"Seconds until the timeout of the sandbox. Default: {DEFAULT_TIMEOUT_S:g}.")
    on_timeout: OnTimeoutName = Field(
        default="kill",
        description="Action at the timeout: end the sandbox, freeze it (`pause`), write its memory to disk and free it (`hibernate`), or keep only "
        "its files, so that it boots at its next resume (`hibernate_files`).",
    )
    auto_resume: bool = Field(
        default=True, description="Let the next request resume the paused or hibernated sandbox. If false, such a request is refused with 409."
    )
    persistent: bool = Field(default=False, description="Create the sandbox without a timeout.")
    idle_timeout: float | None = Field(default=None, description="Seconds without activity after which `on_timeout` applies. Default: never.")
    file_ids: Annotated[list[Text], Field(max_length=MAX_FILE_IDS)] = Field(
        default_factory=list, description="Ids of stored files to copy into the working directory before the response."
    )
    isolation: Text = Field(default=AUTO, description="Driver that isolates the sandbox, or `auto` for the default of the service.")
    network: NetworkRequest | None = Field(
        default=None,
        description="Network policy, its mode as a string, or the rules of an allowlist as a list. Default: the policy of the snapshot, otherwise "
        "`packages`, or `none` if `packages` is not allowed.",
        json_schema_extra=_add_short_forms,
    )
    volumes: Annotated[list[AttachVolumeRequest], Field(max_length=MAX_VOLUMES)] = Field(
        default_factory=list, description="Volumes to mount. A missing volume is a 404 before the sandbox is created."
    )
    public_ports: bool = Field(
        default=False,
        description="Let everyone open the preview URLs of the ports without a token. If the quota of the key does not allow `public_ports`: 403.",
    )
    mask_request_host: Text | None = Field(
        default=None,
        description="`Host` header that programs see behind a preview URL: a host name with or without a port, at most "
        f"{MAX_REQUEST_HOST_BYTES} bytes, in which `{PORT_VARIABLE}` stands for the port. Default: `localhost:{PORT_VARIABLE}`.",
        examples=["${PORT}-app.example.com"],
    )

    def params(self) -> CreateSandboxParams:
        """Return the parameters of the operation."""
        if self.persistent and self.timeout is not None:
            raise InvalidRequestError(
                f"`timeout` is {self.timeout:g} and `persistent` is true.", hint="Omit `timeout` or `persistent`.", fields={"field": "timeout"}
            )
        if self.snapshot is not None and (given := [name for name in FIELDS_OF_SNAPSHOT if name in self.model_fields_set]):
            raise InvalidRequestError(
                f"`{given[0]}` is set, but the snapshot determines it.",
                hint=f"Omit `{given[0]}`, or create the sandbox without `snapshot`.",
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
            network=None if self.network is None else self.network.policy(),
            on_timeout=OnTimeout(self.on_timeout),
            auto_resume=self.auto_resume,
            volumes=tuple(mount.mount() for mount in self.volumes),
            cwd=self.cwd,
            public_ports=self.public_ports,
            mask_request_host=self.mask_request_host,
        )


class UpdateSandboxRequest(RequestModel):
    """Changes of a sandbox. Omitted fields do not change."""

    timeout: float | None = Field(
        default=None,
        description="Seconds from now until the timeout; of a suspended sandbox, from its resume. A persistent sandbox gets a timeout.",
    )
    on_timeout: OnTimeoutName | None = Field(default=None, description="Action at the timeout.")
    auto_resume: bool | None = Field(default=None, description="Let the next request resume the paused or hibernated sandbox.")
    persistent: Literal[True] | None = Field(default=None, description="`true` removes the timeout.")
    idle_timeout: float | None = Field(
        default=None, description="Seconds without activity after which `on_timeout` applies; 0 removes the idle timeout."
    )
    metadata: Metadata | None = Field(default=None, description="Replaces all metadata except names that begin with `sandlot.`.")
    limits: LimitsRequest | None = Field(default=None, description="New limits. `GET /v1/capabilities` tells which limits the host can change.")
    name: Text | None = Field(default=None, description="New name, which no other live sandbox of the owner may have.")
    network: NetworkRequest | None = Field(
        default=None,
        description="Network policy that replaces the present one as a whole; its mode as a string, or the rules of an allowlist as a list. "
        "Connections that it does not allow are reset.",
        json_schema_extra=_add_short_forms,
    )
    public_ports: bool | None = Field(
        default=None, description="Let everyone open the preview URLs of the ports without a token, or only with a token."
    )
    mask_request_host: Text | None = Field(
        default=None, description=f"`Host` header that programs see behind a preview URL; empty for `localhost:{PORT_VARIABLE}`."
    )

    def params(self) -> UpdateSandboxParams:
        """Return the parameters of the operation."""
        return UpdateSandboxParams(
            timeout_s=self.timeout,
            persistent=bool(self.persistent),
            idle_timeout_s=self.idle_timeout,
            metadata=self.metadata,
            limits=LimitsChange() if self.limits is None else self.limits.change(),
            on_timeout=None if self.on_timeout is None else OnTimeout(self.on_timeout),
            auto_resume=self.auto_resume,
            name=self.name,
            network=None if self.network is None else self.network.policy(),
            public_ports=self.public_ports,
            mask_request_host=self.mask_request_host,
        )


class LimitsResponse(ResponseModel):
    """Limits of a sandbox."""

    cpus: float
    memory_bytes: int
    disk_bytes: int
    pids: int

    @classmethod
    def of(cls, limits: Limits) -> LimitsResponse:
        """Return the response for the limits of a sandbox."""
        return cls(cpus=limits.cpus, memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes, pids=limits.pids)


class NetworkEntryResponse(ResponseModel):
    """One decision of a network policy."""

    allow: bool = Field(description="True to allow, false to deny the destinations of the rule.")
    rule: str = Field(description="Rule in its canonical form.")


class NetworkResponse(ResponseModel):
    """Network policy of a sandbox."""

    mode: NetworkMode
    entries: list[NetworkEntryResponse] = Field(description="Entries in order: the first one whose rule matches a destination decides.")
    packages: bool | None = Field(description="Read access to the package indexes; null for `none` and `packages`, which decide this themselves.")
    generation: int = Field(description="Number of earlier changes of the policy of this sandbox.")

    @classmethod
    def of(cls, policy: NetworkPolicy) -> NetworkResponse:
        """Return the response for a network policy."""
        return cls(
            mode=policy.mode,
            entries=[NetworkEntryResponse(allow=entry.allow, rule=entry.rule) for entry in policy.entries],
            packages=policy.packages if policy.mode.exceeds(NetworkMode.PACKAGES) else None,
            generation=policy.generation,
        )


class SandboxExitResponse(ResponseModel):
    """Reason and cause of the end of a sandbox."""

    reason: str
    detail: str
    fault: Fault | None = Field(description="Cause of a failure; null if the sandbox ended on request or at its timeout.")

    @classmethod
    def of(cls, end: Exit) -> SandboxExitResponse:
        """Return the response for the end of a sandbox."""
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
    on_timeout: OnTimeoutName
    auto_resume: bool
    idle_timeout: float | None
    snapshot: str | None = Field(description="Id of the snapshot that the sandbox started from; the snapshot may be deleted.")
    parent: str | None = Field(description="Id of the sandbox that this sandbox is a fork of.")
    restored: RestoredFrom | None = Field(
        description="Part of another sandbox that this one started with: `memory` means memory and files. Null if the sandbox booted "
        "from its template."
    )
    volumes: list[VolumeMountResponse]
    cwd: str = Field(description="Working directory, in which programs start and relative paths begin.")
    public_ports: bool = Field(description="True if the preview URLs of the ports need no token.")
    mask_request_host: str | None = Field(description=f"`Host` header behind a preview URL. Null: `localhost:{PORT_VARIABLE}`.")
    created_at: datetime
    expires_at: datetime | None
    ended_at: datetime | None
    node: str
    exit: SandboxExitResponse | None

    @classmethod
    def of(cls, sandbox: SandboxInfo) -> SandboxResponse:
        """Return the response for a sandbox."""
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
            cwd=spec.cwd,
            public_ports=spec.public_ports,
            mask_request_host=spec.mask_request_host,
            created_at=sandbox.created_at,
            expires_at=sandbox.expires_at,
            ended_at=sandbox.ended_at,
            node=sandbox.node,
            exit=None if sandbox.exit is None else SandboxExitResponse.of(sandbox.exit),
        )


class SandboxesResponse(ResponseModel):
    """A page of sandboxes, oldest first."""

    sandboxes: list[SandboxResponse]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class SandboxesQuery(QueryModel):
    """Filter and page of a list of sandboxes."""

    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number of sandboxes of the page.")
    ended: bool = Field(default=False, description="Include ended sandboxes while their records are kept.")
    state: Text | None = Field(default=None, description="State of the sandboxes, or several states separated by commas.")
    metadata: Annotated[list[Text], Field(max_length=MAX_METADATA_ENTRIES)] = Field(
        default_factory=list, description="Metadata entry NAME=VALUE that the sandboxes have; can be repeated."
    )
    name: Text | None = Field(default=None, description="Name of the sandboxes.")

    def filter(self) -> SandboxFilter:
        """Return the filter of the operation."""
        entries: dict[str, str] = {}
        for entry in self.metadata:
            name, mark, value = entry.partition("=")
            if not mark:
                raise InvalidRequestError(
                    f"`metadata` is {entry[:64]!r}, without `=`.",
                    hint="Pass NAME=VALUE, for example `metadata=user=alice`.",
                    fields={"field": "metadata"},
                )
            entries[name] = value
        states = LIVE
        if self.state is not None:
            states = states_of(name.strip() for name in self.state.split(","))
        elif self.ended:
            states = LIVE | ENDED
        return SandboxFilter(states=states, metadata=entries, name=self.name)


class UsageResponse(ResponseModel):
    """Resources that a sandbox has used, with its limits."""

    cpu_s: float = Field(description="CPU time, including that of the runtime.")
    memory_bytes: int = Field(description="Memory in use, including that of the runtime, without page cache that the kernel can drop.")
    memory_peak_bytes: int = Field(description="Largest memory use so far, including page cache.")
    disk_bytes: int = Field(description="Disk space of changes to the root filesystem image.")
    pids: int | None = Field(description="Processes and threads, as the limit counts them; null if the sandbox does not respond in time.")
    host_tasks: int = Field(description="Tasks of the host, including those of the runtime.")
    network_sent_bytes: int = Field(description="Bytes that programs have sent to other hosts; counted from 0 again after a restart of the service.")
    network_received_bytes: int = Field(description="Bytes that programs have received from other hosts; counted in the same way.")
    limits: LimitsResponse

    @classmethod
    def of(cls, used: SandboxUsage) -> UsageResponse:
        """Return the response for the usage of a sandbox."""
        usage = used.usage
        return cls(
            cpu_s=usage.cpu_s,
            memory_bytes=usage.memory_bytes,
            memory_peak_bytes=usage.memory_peak_bytes,
            disk_bytes=usage.disk_bytes,
            pids=used.pids,
            host_tasks=usage.pids,
            network_sent_bytes=used.network_sent_bytes,
            network_received_bytes=used.network_received_bytes,
            limits=LimitsResponse.of(used.limits),
        )


class PortResponse(ResponseModel):
    """TCP port on which a program listens."""

    port: int
    address: str = Field(description="Local address: 0.0.0.0 and :: are all addresses, 127.0.0.1 and ::1 only the loopback of the sandbox.")
    url: str | None = Field(default=None, description="URL of the preview, with a token that is valid for a day; null without previews.")


class PortsResponse(ResponseModel):
    """Listening ports of a sandbox, in ascending order."""

    ports: list[PortResponse]


class AttachVolumeRequest(RequestModel):
    """A volume to mount in a sandbox."""

    volume: Text = Field(description="Name or id of the volume.", examples=["datasets"])
    path: Text = Field(description="Absolute mount point in the sandbox, which is created if it does not exist.", examples=["/data"])
    read_only: bool = Field(default=False, description="Mount the volume read-only.")

    def mount(self) -> VolumeMount:
        """Return the mount of the operation."""
        return VolumeMount(volume=self.volume, path=self.path, read_only=self.read_only)


class VolumeMountResponse(ResponseModel):
    """A volume that is mounted in a sandbox."""

    volume: str = Field(description="Id of the volume.")
    path: str
    read_only: bool

    @classmethod
    def of(cls, mount: VolumeMount) -> VolumeMountResponse:
        """Return the response for a volume mount."""
        return cls(volume=mount.volume, path=mount.path, read_only=mount.read_only)


router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"], route_class=SandboxNameRoute)


_FOUND = documented_response(SandboxResponse, "The live sandbox that has the name; only with `if_exists` `return`.")


@router.post("", status_code=201, responses=_FOUND | documented_response(SandboxResponse, "The new sandbox.", 201))
async def create(
    body: CreateSandboxRequest,
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(description="Key of this request, for example a UUID. A request with the same key returns the same sandbox.")
    ] = None,
) -> Response:
    """Create a sandbox and wait until it runs. If the client disconnects before, the sandbox is ended.

    With `if_exists` `return`, the live sandbox of the caller that has the name is returned instead. If several such requests race, one of them
    creates the sandbox.
    """
    sandboxes, principal = get_node(request).sandboxes, get_principal(request)
    if body.if_exists == "return":
        work = sandboxes.get_or_create(principal, body.params(), idempotency_key=idempotency_key)
        sandbox, created = await cancel_on_disconnect(request, work)
        return json_response(SandboxResponse.of(sandbox), 201 if created else 200)
    sandbox = await cancel_on_disconnect(request, sandboxes.create(principal, body.params(), idempotency_key=idempotency_key))
    return json_response(SandboxResponse.of(sandbox), 201)


@router.get("", responses=documented_response(SandboxesResponse, "A page of sandboxes, oldest first."))
async def list_sandboxes(query: Annotated[SandboxesQuery, Query()], request: Request) -> Response:
    """List sandboxes of the caller; operators get those of all keys."""
    after = pagination.decode_cursor(query.cursor)
    page = await get_node(request).sandboxes.list(get_principal(request), query.filter(), after=after, limit=query.limit)
    return json_response(
        SandboxesResponse(sandboxes=[SandboxResponse.of(sandbox) for sandbox in page.items], next_cursor=pagination.next_cursor(page))
    )


@router.get("/{sandbox}", responses=documented_response(SandboxResponse, "The sandbox."))
async def get(sandbox: str, request: Request) -> Response:
    """Get a sandbox. Ended sandboxes are found while their records are kept."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.get(get_principal(request), sandbox)))


@router.patch("/{sandbox}", responses=documented_response(SandboxResponse, "The changed sandbox."))
async def update(sandbox: str, body: UpdateSandboxRequest, request: Request) -> Response:
    """Update a sandbox's timeouts, name, metadata, limits or network policy. All changes apply, or none."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.update(get_principal(request), sandbox, body.params())))


@router.delete("/{sandbox}", status_code=204, responses=PROBLEM)
async def delete(sandbox: str, request: Request) -> Response:
    """End a sandbox and delete everything in it. The response is sent when all processes are dead. A second call has no effect."""
    await get_node(request).sandboxes.kill(get_principal(request), sandbox)
    return Response(status_code=204)


@router.get("/{sandbox}/usage", responses=documented_response(UsageResponse, "Usage so far."))
async def get_usage(sandbox: str, request: Request) -> Response:
    """Get CPU time, memory, disk, processes and network bytes that a sandbox has used, with its limits."""
    return json_response(UsageResponse.of(await get_node(request).sandboxes.usage(get_principal(request), sandbox)))


@router.get("/{sandbox}/ports", responses=documented_response(PortsResponse, "The listening ports."))
async def list_ports(sandbox: str, request: Request) -> Response:
    """List TCP ports on which programs in a sandbox listen, with the URLs of their previews. Ports of Sandlot itself are left out."""
    node, principal = get_node(request), get_principal(request)
    found = await node.sandboxes.ports(principal, sandbox)
    address = await get_preview_address(request) if found else None

    def url(port: int) -> str | None:
        if address is None:
            return None
        signed = node.previews.sign(principal, sandbox, port, DEFAULT_PREVIEW_LIFETIME_S)
        return address.url(SandboxId(sandbox), port, None if signed.public else signed.value)

    return json_response(PortsResponse(ports=[PortResponse(port=each.port, address=each.address, url=url(each.port)) for each in found]))
