"""Warm pools: schemas and routes. The pools of operators are shared pools."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.access import LOCAL
from sandlot.model.pools import DEFAULT_MAX, MAX_SIZE, PoolInfo, PoolSizes, StartPath
from sandlot.model.sandboxes import AUTO, RESERVED_PREFIX, check_reserved_names
from sandlot.model.specs import DEFAULT_TEMPLATE
from sandlot.server.v1.common import PROBLEM, documented_response
from sandlot.server.v1.sandboxes import LimitsRequest, LimitsResponse
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import Metadata, RequestModel, ResponseModel, Text, json_response

_WARM = "Number of warm sandboxes that are kept ready."

_MAX = "Maximum number of warm sandboxes, including those that are being started. The pool grows while requests find no warm sandbox."

_PREPARED = "Number of prepared sandboxes that are kept ready, which restore the template snapshot faster than new sandboxes. Operators only."


class CreatePoolRequest(RequestModel):
    """Options of a new pool."""

    template: Text = Field(
        default=DEFAULT_TEMPLATE, description="Template of the sandboxes, as `NAME` or `NAME:TAG`. They start from its current build."
    )
    isolation: Text = Field(default=AUTO, description="Driver that isolates the sandboxes, or `auto` for the default of the service.")
    limits: LimitsRequest = Field(
        default_factory=LimitsRequest,
        description="Limits of each sandbox; by default those of the template. Requests with other limits do not use the pool.",
    )
    warm: int = Field(default=1, ge=0, le=MAX_SIZE, description=_WARM)
    max: int | None = Field(default=None, ge=0, le=MAX_SIZE, description=f"{_MAX} Default: {DEFAULT_MAX}, or `warm` if larger.")
    prepared: int = Field(default=0, ge=0, le=MAX_SIZE, description=_PREPARED)
    metadata: Metadata = Field(default_factory=dict, description="Metadata of the user. Names that begin with `sandlot.` are reserved.")

    def checked_metadata(self) -> Mapping[str, str]:
        """Return the metadata.

        Raises:
            InvalidRequestError: A name is reserved.
        """
        check_reserved_names(self.metadata)
        return self.metadata

    def sizes(self) -> PoolSizes:
        """Return the sizes of the pool."""
        return PoolSizes.with_defaults(self.warm, self.max, self.prepared)


class UpdatePoolRequest(RequestModel):
    """Changes of a pool. Omitted fields do not change."""

    warm: int | None = Field(default=None, ge=0, le=MAX_SIZE, description=_WARM)
    max: int | None = Field(default=None, ge=0, le=MAX_SIZE, description=_MAX)
    prepared: int | None = Field(default=None, ge=0, le=MAX_SIZE, description=_PREPARED)
    metadata: Metadata | None = Field(default=None, description="Replaces all metadata except names that begin with `sandlot.`.")

    def merged_metadata(self, current: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the new metadata, with the reserved entries of the current metadata; None if it does not change."""
        if self.metadata is None:
            return None
        check_reserved_names(self.metadata, current)
        return {**{name: value for name, value in current.items() if name.startswith(RESERVED_PREFIX)}, **self.metadata}


class TemplateSnapshotResponse(ResponseModel):
    """Snapshot that warm sandboxes of a pool are restored from."""

    size_bytes: int = Field(description="Size on disk.")
    created_at: datetime | None


class PoolClaimsResponse(ResponseModel):
    """Number of create requests that match the pool, by how their sandbox started, since the start of the service."""

    warm: int = Field(description="Requests that claimed a warm sandbox.")
    prepared: int = Field(description="Requests for which a prepared sandbox was restored from the template snapshot.")
    restored: int = Field(description="Requests for which a new sandbox was restored from the template snapshot.")
    booted: int = Field(description="Requests for which a new sandbox booted.")


class PoolResponse(ResponseModel):
    """A warm pool."""

    id: str
    owner: str | None = Field(description="Id of the key that owns a private pool; null for a shared pool.")
    template: str
    isolation: str
    limits: LimitsResponse
    metadata: dict[str, str]
    warm: int
    max: int
    prepared: int
    ready: int = Field(description="Number of warm sandboxes that are ready.")
    filling: int = Field(description="Number of warm sandboxes that are being started.")
    prepared_ready: int = Field(description="Number of prepared sandboxes that are ready.")
    claims: PoolClaimsResponse
    hit_rate: float | None = Field(description="Share of the requests that claimed a warm sandbox; null before the first request.")
    snapshot: TemplateSnapshotResponse | None = Field(description="Template snapshot; null if there is none yet.")
    error: str = Field(description="Reason why the last sandbox could not be started; empty if none failed.")

    @classmethod
    def of(cls, pool: PoolInfo) -> PoolResponse:
        """Return the response for a pool."""
        held = pool.snapshot
        return cls(
            id=pool.id,
            owner=None if pool.owner == LOCAL else pool.owner,
            template=pool.template.full_name,
            isolation=pool.isolation,
            limits=LimitsResponse.of(pool.limits),
            metadata=dict(pool.metadata),
            warm=pool.sizes.warm,
            max=pool.sizes.max,
            prepared=pool.sizes.prepared,
            ready=len(pool.ready),
            filling=pool.filling,
            prepared_ready=pool.prepared_ready,
            claims=PoolClaimsResponse(**{path.value: pool.claims.get(path, 0) for path in StartPath}),
            hit_rate=pool.hit_rate,
            snapshot=None if held is None else TemplateSnapshotResponse(size_bytes=held.size_bytes, created_at=held.made_at),
            error=pool.error,
        )


class PoolsResponse(ResponseModel):
    """All pools of the caller."""

    pools: list[PoolResponse]


router = APIRouter(prefix="/v1/pools", tags=["pools"], route_class=JsonRoute)


@router.post("", status_code=201, responses=documented_response(PoolResponse, "The new pool.", 201))
async def create(body: CreatePoolRequest, request: Request) -> Response:
    """Create a warm pool, which persists across restarts. The pool of an operator is shared by all keys."""
    pools, principal = get_node(request).pools, get_principal(request)
    pool = await pools.create(principal, body.template, body.isolation, body.limits.change(), body.sizes(), body.checked_metadata())
    return json_response(PoolResponse.of(pool), 201)


@router.get("", responses=documented_response(PoolsResponse, "The pools."))
async def list_pools(request: Request) -> Response:
    """List pools of the caller with their state and use; operators get all pools."""
    return json_response(PoolsResponse(pools=[PoolResponse.of(pool) for pool in await get_node(request).pools.list(get_principal(request))]))


@router.get("/{pool}", responses=documented_response(PoolResponse, "The pool."))
async def get(pool: str, request: Request) -> Response:
    """Get a pool with its state and use."""
    return json_response(PoolResponse.of(await get_node(request).pools.get(get_principal(request), pool)))


@router.patch("/{pool}", responses=documented_response(PoolResponse, "The changed pool."))
async def update(pool: str, body: UpdatePoolRequest, request: Request) -> Response:
    """Update the sizes or metadata of a pool."""
    pools, principal = get_node(request).pools, get_principal(request)
    metadata = body.merged_metadata((await pools.get(principal, pool)).metadata)
    return json_response(
        PoolResponse.of(await pools.update(principal, pool, warm=body.warm, max=body.max, prepared=body.prepared, metadata=metadata))
    )


@router.delete("/{pool}", status_code=204, responses=PROBLEM)
async def delete(pool: str, request: Request) -> Response:
    """Delete a pool and its unused sandboxes."""
    await get_node(request).pools.delete(get_principal(request), pool)
    return Response(status_code=204)
