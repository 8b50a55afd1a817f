"""Pools: sandboxes that are made before anybody asks. Each key has its own; those of operators are the node's."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.server.v1.common import PROBLEM, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.pools import PoolAnswer, PoolBody, PoolChange, PoolsAnswer

router = APIRouter(prefix="/v1/pools", tags=["pools"])


@router.post("", status_code=201, responses=documented_response(PoolAnswer, "It is filled from now on.", 201))
async def create(body: PoolBody, request: Request) -> Response:
    """Keep sandboxes of a kind ready for yourself, also after a restart; an operator keeps them ready for everybody."""
    pools, principal = get_node(request).pools, get_principal(request)
    told = await pools.create(principal, body.template, body.isolation, body.limits_asked(), body.sizes_asked(), body.words())
    return json_response(PoolAnswer.of(told), 201)


@router.get("", responses=documented_response(PoolsAnswer, "Yours; an operator's are all of them."))
async def list_pools(request: Request) -> Response:
    """List your pools, what waits in them, and how they have fared; an operator's are all of the service."""
    return json_response(PoolsAnswer(pools=[PoolAnswer.of(told) for told in await get_node(request).pools.list(get_principal(request))]))


@router.get("/{pool}", responses=documented_response(PoolAnswer, "It."))
async def get(pool: str, request: Request) -> Response:
    """Look at a pool, by its id, or by its template where you have one pool only of that."""
    return json_response(PoolAnswer.of(await get_node(request).pools.get(get_principal(request), pool)))


@router.patch("/{pool}", responses=documented_response(PoolAnswer, "As it is from now on."))
async def change(pool: str, body: PoolChange, request: Request) -> Response:
    """Change how much a pool holds, also after a restart."""
    pools, principal = get_node(request).pools, get_principal(request)
    words = body.words((await pools.get(principal, pool)).metadata)
    return json_response(PoolAnswer.of(await pools.update(principal, pool, warm=body.warm, max=body.max, prepared=body.blank, metadata=words)))


@router.delete("/{pool}", status_code=204, responses=PROBLEM)
async def remove(pool: str, request: Request) -> Response:
    """Have a pool no more, also after a restart; what waits in it is removed."""
    await get_node(request).pools.delete(get_principal(request), pool)
    return Response(status_code=204)
