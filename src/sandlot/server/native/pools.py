"""Pools: sandboxes that are made before anybody asks. Operators only."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.core.pools.pools import Pools
from sandlot.model.errors import ErrorCode, ForbiddenError
from sandlot.server.native.common import PROBLEM, also, core_of, principal_of, reply
from sandlot.server.native.schemas.pools import PoolAnswer, PoolBody, PoolChange, PoolsAnswer

router = APIRouter(prefix="/v1/pools", tags=["pools"])


@router.post("", status_code=201, responses=also(PoolAnswer, "It is filled from now on.", 201))
async def create(body: PoolBody, request: Request) -> Response:
    """Keep sandboxes of a kind ready, also after a restart. Operators only."""
    told = await _pools(request).create(body.template, body.isolation, body.limits_asked(), body.sizes_asked(), body.words())
    return reply(PoolAnswer.of(told), 201)


@router.get("", responses=also(PoolsAnswer, "All of them."))
async def list_pools(request: Request) -> Response:
    """List the pools, what waits in them, and how they have fared. Operators only."""
    return reply(PoolsAnswer(pools=[PoolAnswer.of(told) for told in _pools(request).all()]))


@router.get("/{pool}", responses=also(PoolAnswer, "It."))
async def get(pool: str, request: Request) -> Response:
    """Look at a pool, by its id, or by its template where that has one pool only. Operators only."""
    return reply(PoolAnswer.of(_pools(request).find(pool)))


@router.patch("/{pool}", responses=also(PoolAnswer, "As it is from now on."))
async def change(pool: str, body: PoolChange, request: Request) -> Response:
    """Change how much a pool holds, also after a restart. Operators only."""
    pools = _pools(request)
    words = body.words(pools.find(pool).pool.metadata)
    return reply(PoolAnswer.of(await pools.change(pool, warm=body.warm, most=body.max, blank=body.blank, metadata=words)))


@router.delete("/{pool}", status_code=204, responses=PROBLEM)
async def remove(pool: str, request: Request) -> Response:
    """Have a pool no more, also after a restart; what waits in it is removed. Operators only."""
    await _pools(request).remove(pool)
    return Response(status_code=204)


def _pools(request: Request) -> Pools:
    if not principal_of(request).operator:
        raise ForbiddenError(
            "Only an operator may see, make and change pools.",
            code=ErrorCode.FORBIDDEN,
            hint="Use an operator's key, or 'sandlot pool' on the server. Sandboxes come from pools by themselves, whoever asks.",
        )
    return core_of(request).sandboxes.pools
