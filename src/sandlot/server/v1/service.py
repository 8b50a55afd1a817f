"""The service: health, metrics, version, capabilities, capacity and stop."""

from __future__ import annotations

from typing import Any, Self

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot import __version__
from sandlot.model.errors import ErrorCode, ForbiddenError
from sandlot.model.ports import Resources, RuntimeInfo
from sandlot.model.service import METRICS_MEDIA_TYPE, Capacity
from sandlot.server.v1.common import PROBLEM, documented_response, get_service
from sandlot.web.auth import is_local_owner
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import ResponseModel, json_response


class VersionResponse(ResponseModel):
    """Version and identity of the service."""

    version: str
    generation: int = Field(description="Generation of the protocol between service and guest.")
    node: str
    pid: int


class DriverCapabilityResponse(ResponseModel):
    """Availability of one ability of a driver."""

    ok: bool
    reason: str


class RuntimeResponse(ResponseModel):
    """Build of the runtime of a driver."""

    name: str
    version: str
    build_date: str = Field(description="Date in the version, such as `2024-07-29`; empty if the version has none.")
    source: str = Field(description="Origin, such as a Debian package with its version.")

    @classmethod
    def of(cls, found: RuntimeInfo) -> Self:
        """Return the response for a build of a runtime."""
        return cls(name=found.name, version=found.version, build_date=found.build_date, source=found.source)


class DriverResponse(ResponseModel):
    """Abilities of a driver on this host."""

    driver: str
    runtime: RuntimeResponse | None = Field(description="Build of its runtime; null if no usable build is installed.")
    abilities: dict[str, DriverCapabilityResponse]


class CapabilitiesResponse(ResponseModel):
    """Abilities of all drivers on this host."""

    drivers: list[DriverResponse]


class ResourcesResponse(ResponseModel):
    """Amounts of the resources of a node."""

    memory_bytes: int
    disk_bytes: int
    pids: int = Field(description="Tasks of the host. A process in a sandbox may use several.")

    @classmethod
    def of(cls, amount: Resources) -> Self:
        """Return the response for amounts of resources."""
        return cls(memory_bytes=amount.memory_bytes, disk_bytes=amount.disk_bytes, pids=amount.pids)


class CapacityResponse(ResponseModel):
    """Resources of the node. A sandbox reserves its limits until it is removed completely."""

    allocatable: ResourcesResponse = Field(
        description="Resources for all sandboxes: those of the host without the reserve, multiplied by the overcommit ratios."
    )
    reserved: ResourcesResponse
    available: ResourcesResponse
    sandboxes: int = Field(description="Number of sandboxes with reservations, including those that are being created or removed.")
    max_sandboxes: int

    @classmethod
    def of(cls, found: Capacity, max_sandboxes: int) -> Self:
        """Return the response for the capacity of the node."""
        return cls(
            allocatable=ResourcesResponse.of(found.allocatable),
            reserved=ResourcesResponse.of(found.reserved),
            available=ResourcesResponse.of(found.available),
            sandboxes=found.sandboxes,
            max_sandboxes=max_sandboxes,
        )


class HealthResponse(ResponseModel):
    """State of the service."""

    status: str
    version: str


class ServiceStopResponse(ResponseModel):
    """A service that is stopping."""

    pid: int
    sandboxes: int = Field(description="Number of sandboxes that keep running; the next service adopts them.")


router = APIRouter(tags=["service"], route_class=JsonRoute)

_METRICS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics in the text format of Prometheus."},
    **PROBLEM,
}


@router.get("/healthz", responses=documented_response(HealthResponse, "The service responds."))
async def get_health() -> Response:
    """Check that the service responds. No key is needed."""
    return json_response(HealthResponse(status="ok", version=__version__))


@router.get("/metrics", response_class=Response, responses=_METRICS)
async def get_metrics(request: Request) -> Response:
    """Get metrics for Prometheus. Operators only."""
    if not get_principal(request).operator:
        raise ForbiddenError(
            "Metrics are for operators only.",
            code=ErrorCode.FORBIDDEN,
            hint="Use the unix socket of the service, or the key of an operator.",
        )
    return Response(get_node(request).service.metrics(), media_type=METRICS_MEDIA_TYPE)


@router.get("/v1/version", responses=documented_response(VersionResponse, "Version and identity of the service."))
async def get_version(request: Request) -> Response:
    """Get version and identity of the service."""
    info = get_node(request).service.info()
    return json_response(VersionResponse(version=info.version, generation=info.generation, node=info.node, pid=info.pid))


@router.get("/v1/capabilities", responses=documented_response(CapabilitiesResponse, "Abilities, as found by probes."))
async def get_capabilities(request: Request) -> Response:
    """Get the abilities of all drivers on this host, with the reason for each missing one and the restrictions of the others."""
    found = await get_node(request).service.capabilities()
    return json_response(
        CapabilitiesResponse(
            drivers=[
                DriverResponse(
                    driver=each.driver,
                    runtime=RuntimeResponse.of(each.runtime) if each.runtime is not None else None,
                    abilities={
                        str(ability): DriverCapabilityResponse(ok=verdict.ok, reason=verdict.reason) for ability, verdict in each.results.items()
                    },
                )
                for each in found
            ]
        )
    )


@router.get("/v1/capacity", responses=documented_response(CapacityResponse, "Resources, at most one second old."))
async def get_capacity(request: Request) -> Response:
    """Get allocatable, reserved and available resources of the node."""
    service = get_node(request).service
    return json_response(CapacityResponse.of(await service.capacity(get_principal(request)), service.info().max_sandboxes))


@router.post("/v1/service/stop", status_code=202, responses=documented_response(ServiceStopResponse, "The service that is stopping.", 202))
async def stop(request: Request) -> Response:
    """Stop the service. Only possible over its unix socket. Sandboxes keep running, and the next service adopts them."""
    if not is_local_owner(request.scope):
        raise ForbiddenError(
            "The service can be stopped only over its unix socket.",
            code=ErrorCode.FORBIDDEN,
            hint="Run `sandlot service stop` on the machine of the service.",
        )
    get_service(request).stop.set()
    info = get_node(request).service.info()
    return json_response(ServiceStopResponse(pid=info.pid, sandboxes=info.sandboxes), 202)
