"""Pools: sandboxes that are made before anybody asks. Each key has its own; those of operators are the node's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.access import LOCAL
from sandlot.model.pools import DEFAULT_MAX, MAX_SIZE, PoolInfo, PoolSizes, StartPath
from sandlot.model.sandboxes import AUTO, RESERVED_PREFIX, check_reserved_names
from sandlot.model.specs import DEFAULT_TEMPLATE, Limits
from sandlot.server.v1.common import PROBLEM, documented_response
from sandlot.server.v1.sandboxes import LimitsRequest, LimitsResponse
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import Metadata, RequestModel, ResponseModel, Text, json_response

_WARM = "Sandboxes that are always kept ready."

_MAX = "The most that there are, those in the making included: it grows towards that while requests find it empty, and shrinks again."

_BLANK = (
    "Prepared ones with nothing in them, which take a template's snapshot, or any other of these limits, quicker than one that is made for it; "
    "operators only."
)


class CreatePoolRequest(RequestModel):
    """A pool to have."""

    template: Text = Field(default=DEFAULT_TEMPLATE, description="What its sandboxes are made from.")
    isolation: Text = Field(default=AUTO, description="A driver that the operator allows, or auto: the one that is the service's default.")
    limits: LimitsRequest = Field(default_factory=LimitsRequest, description="What each may use; a request that differs is not answered from it.")
    warm: int = Field(default=1, ge=0, le=MAX_SIZE, description=_WARM)
    max: int | None = Field(default=None, ge=0, le=MAX_SIZE, description=f"{_MAX} {DEFAULT_MAX} where nothing is said, or 'warm' where that is more.")
    prepared: int = Field(default=0, ge=0, le=MAX_SIZE, description=_BLANK)
    metadata: Metadata = Field(default_factory=dict, description="Your own words, kept and given back; no name may begin with 'sandlot.'.")

    def words(self) -> Mapping[str, str]:
        """What is said of it beside what it holds."""
        check_reserved_names(self.metadata)
        return self.metadata

    def limits_asked(self) -> Limits:
        """What each may use."""
        return self.limits.merged(Limits())

    def sizes_asked(self) -> PoolSizes:
        """How much it holds."""
        return PoolSizes.with_defaults(self.warm, self.max, self.prepared)


class UpdatePoolRequest(RequestModel):
    """What to change of a pool; what is left out stays as it is."""

    warm: int | None = Field(default=None, ge=0, le=MAX_SIZE, description=_WARM)
    max: int | None = Field(default=None, ge=0, le=MAX_SIZE, description=_MAX)
    prepared: int | None = Field(default=None, ge=0, le=MAX_SIZE, description=_BLANK)
    metadata: Metadata | None = Field(default=None, description="Replaces what there is, but for names that begin with 'sandlot.'.")

    def words(self, there: Mapping[str, str]) -> Mapping[str, str] | None:
        """What is said of it from now on; None where that stays."""
        if self.metadata is None:
            return None
        check_reserved_names(self.metadata, there)
        return {**{name: word for name, word in there.items() if name.startswith(RESERVED_PREFIX)}, **self.metadata}


class TemplateSnapshotResponse(ResponseModel):
    """What the sandboxes of a pool are restored from."""

    size_bytes: int = Field(description="On the disk.")
    created_at: datetime | None


class PoolClaimsResponse(ResponseModel):
    """How requests for sandboxes of a pool's kind were answered since the service started."""

    warm: int = Field(description="By one that waited.")
    prepared: int = Field(description="By a prepared one, restored from the template's snapshot.")
    restored: int = Field(description="By one that was made and restored from the template's snapshot.")
    booted: int = Field(description="By one that was booted.")


class PoolResponse(ResponseModel):
    """A pool."""

    id: str
    owner: str | None = Field(description="The id of the key that has it; null for the node's, which operators make and which serves everybody.")
    template: str
    isolation: str
    limits: LimitsResponse
    metadata: dict[str, str]
    warm: int
    max: int
    prepared: int
    ready: int = Field(description="How many wait now.")
    filling: int = Field(description="How many are in the making.")
    prepared_ready: int = Field(description="Prepared ones that wait now.")
    claims: PoolClaimsResponse
    hit_rate: float | None = Field(description="The part of the requests that one that waited answered; null where there was none.")
    snapshot: TemplateSnapshotResponse | None = Field(description="null where there is none (yet).")
    error: str = Field(description="Why something could not be made; empty where nothing failed.")

    @classmethod
    def of(cls, pool: PoolInfo) -> PoolResponse:
        """It, told."""
        held = pool.snapshot
        return cls(
            id=pool.id,
            owner=None if pool.owner == LOCAL else pool.owner,
            template=pool.template.name,
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
    """Pools."""

    pools: list[PoolResponse]


router = APIRouter(prefix="/v1/pools", tags=["pools"])


@router.post("", status_code=201, responses=documented_response(PoolResponse, "It is filled from now on.", 201))
async def create(body: CreatePoolRequest, request: Request) -> Response:
    """Keep sandboxes of a kind ready for yourself, also after a restart; an operator keeps them ready for everybody."""
    pools, principal = get_node(request).pools, get_principal(request)
    told = await pools.create(principal, body.template, body.isolation, body.limits_asked(), body.sizes_asked(), body.words())
    return json_response(PoolResponse.of(told), 201)


@router.get("", responses=documented_response(PoolsResponse, "Yours; an operator's are all of them."))
async def list_pools(request: Request) -> Response:
    """List your pools, what waits in them, and how they have fared; an operator's are all of the service."""
    return json_response(PoolsResponse(pools=[PoolResponse.of(told) for told in await get_node(request).pools.list(get_principal(request))]))


@router.get("/{pool}", responses=documented_response(PoolResponse, "It."))
async def get(pool: str, request: Request) -> Response:
    """Look at a pool, by its id, or by its template where you have one pool only of that."""
    return json_response(PoolResponse.of(await get_node(request).pools.get(get_principal(request), pool)))


@router.patch("/{pool}", responses=documented_response(PoolResponse, "As it is from now on."))
async def update(pool: str, body: UpdatePoolRequest, request: Request) -> Response:
    """Change how much a pool holds, also after a restart."""
    pools, principal = get_node(request).pools, get_principal(request)
    words = body.words((await pools.get(principal, pool)).metadata)
    return json_response(PoolResponse.of(await pools.update(principal, pool, warm=body.warm, max=body.max, prepared=body.prepared, metadata=words)))


@router.delete("/{pool}", status_code=204, responses=PROBLEM)
async def delete(pool: str, request: Request) -> Response:
    """Have a pool no more, also after a restart; what waits in it is removed."""
    await get_node(request).pools.delete(get_principal(request), pool)
    return Response(status_code=204)
