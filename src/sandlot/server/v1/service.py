"""The service itself: health, version, what it can do and hold, what it can start from, and its end."""

from __future__ import annotations

from typing import Any, Self

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot import __version__
from sandlot.model.errors import ErrorCode, ForbiddenError
from sandlot.model.ports import Resources
from sandlot.model.service import METRICS_MEDIA_TYPE, Capacity
from sandlot.server.v1.common import PROBLEM, documented_response, get_service
from sandlot.web.auth import is_local_owner
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import ResponseModel, json_response


class VersionResponse(ResponseModel):
    """Who answers."""

    version: str
    generation: int = Field(description="Of the protocol between service and guest.")
    node: str
    pid: int


class DriverCapabilityResponse(ResponseModel):
    """Yes, or no and why."""

    ok: bool
    reason: str


class DriverResponse(ResponseModel):
    """What a driver can do on this host."""

    driver: str
    runtime: str
    abilities: dict[str, DriverCapabilityResponse]


class CapabilitiesResponse(ResponseModel):
    """What this host can do."""

    drivers: list[DriverResponse]


class ResourcesResponse(ResponseModel):
    """An amount of what the host has."""

    memory_bytes: int
    disk_bytes: int
    pids: int = Field(description="Tasks of the host: a process inside may take several.")

    @classmethod
    def of(cls, amount: Resources) -> Self:
        """An amount, told."""
        return cls(memory_bytes=amount.memory_bytes, disk_bytes=amount.disk_bytes, pids=amount.pids)


class CapacityResponse(ResponseModel):
    """What this node may promise to sandboxes. A sandbox is promised the most that it can take, until its last trace is gone."""

    allocatable: ResourcesResponse = Field(description="All that may be promised now: what the host has less a reserve, times the ratios.")
    reserved: ResourcesResponse
    available: ResourcesResponse
    sandboxes: int = Field(description="How many hold a promise, those included that are being created or removed.")
    max_sandboxes: int

    @classmethod
    def of(cls, found: Capacity, max_sandboxes: int) -> Self:
        """The figures, told."""
        return cls(
            allocatable=ResourcesResponse.of(found.allocatable),
            reserved=ResourcesResponse.of(found.reserved),
            available=ResourcesResponse.of(found.available),
            sandboxes=found.sandboxes,
            max_sandboxes=max_sandboxes,
        )


class HealthResponse(ResponseModel):
    """It answers."""

    status: str
    version: str


class ServiceStopResponse(ResponseModel):
    """It is about to end."""

    pid: int
    sandboxes: int = Field(description="How many live on; the next start takes them over.")


router = APIRouter(tags=["service"])

_METRICS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."},
    **PROBLEM,
}


@router.get("/healthz", responses=documented_response(HealthResponse, "It answers."))
async def get_health() -> Response:
    """Whether the service answers; needs no key."""
    return json_response(HealthResponse(status="ok", version=__version__))


@router.get("/metrics", response_class=Response, responses=_METRICS)
async def get_metrics(request: Request) -> Response:
    """What the service counts and measures; only for its operators."""
    if not get_principal(request).operator:
        raise ForbiddenError(
            "Only an operator may see what the service counts.",
            code=ErrorCode.FORBIDDEN,
            hint="Ask on the service's unix socket, or with an operator's key ('sandlot keys create --operator').",
        )
    return Response(get_node(request).service.metrics(), media_type=METRICS_MEDIA_TYPE)


@router.get("/v1/version", responses=documented_response(VersionResponse, "Who answers."))
async def get_version(request: Request) -> Response:
    """Which service this is."""
    info = get_node(request).service.info()
    return json_response(VersionResponse(version=info.version, generation=info.generation, node=info.node, pid=info.pid))


@router.get("/v1/capabilities", responses=documented_response(CapabilitiesResponse, "Found by doing it."))
async def get_capabilities(request: Request) -> Response:
    """What this host can do: for every ability yes, or no and why."""
    found = await get_node(request).service.capabilities()
    return json_response(
        CapabilitiesResponse(
            drivers=[
                DriverResponse(
                    driver=each.driver,
                    runtime=each.runtime,
                    abilities={
                        str(ability): DriverCapabilityResponse(ok=verdict.ok, reason=verdict.reason) for ability, verdict in each.results.items()
                    },
                )
                for each in found
            ]
        )
    )


@router.get("/v1/capacity", responses=documented_response(CapacityResponse, "As of a second ago at most."))
async def get_capacity(request: Request) -> Response:
    """What this node may promise to sandboxes, what it has promised, and what is left."""
    service = get_node(request).service
    return json_response(CapacityResponse.of(await service.capacity(get_principal(request)), service.info().max_sandboxes))


@router.post("/v1/service/stop", status_code=202, responses=documented_response(ServiceStopResponse, "It ends; its sandboxes live on.", 202))
async def stop(request: Request) -> Response:
    """End this service; only on its unix socket. Its sandboxes live on, and the next start takes them over."""
    if not is_local_owner(request.scope):
        raise ForbiddenError(
            "The service can only be stopped by its owner, on its unix socket.", code=ErrorCode.FORBIDDEN, hint="Run 'sandlot stop' on the server."
        )
    get_service(request).stop.set()
    info = get_node(request).service.info()
    return json_response(ServiceStopResponse(pid=info.pid, sandboxes=info.sandboxes), 202)
