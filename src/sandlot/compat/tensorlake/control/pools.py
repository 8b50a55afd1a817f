"""Pools: made, changed, looked at, claimed of, removed.

Each key has its own (``core/pools``), and may claim a sandbox of one of the node's as well, whose id it knows. It comes out of the pool where one
waits there, and is made otherwise.
"""

from __future__ import annotations

from fastapi import Request, Response

from sandlot.compat.common import VENDOR_KEY, find_sandboxes
from sandlot.compat.tensorlake import translate
from sandlot.compat.tensorlake.addressing import CONTROL, NAMESPACE, url_of
from sandlot.compat.tensorlake.control.schemas import ClaimBody, ClaimedAnswer, Container, PoolAnswer, PoolBody, PoolMadeAnswer, PoolsAnswer
from sandlot.compat.tensorlake.translate import IMAGE_KEY, NAME, POOL_KEY
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.pools import PoolInfo, PoolSizes
from sandlot.model.sandboxes import AUTO, CreateSandboxParams, LimitsChange, SandboxFilter, SandboxInfo
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import json_response

_POOLS = "/sandbox-pools"
_ONE = "/sandbox-pools/{pool}"


@CONTROL.route("POST", _POOLS)
async def create(body: PoolBody, request: Request) -> Response:
    """Keep sandboxes of a kind ready."""
    pools, words = get_node(request).pools, translate.pool_words(body)
    asked = PoolSizes.with_defaults(body.warm_containers or 0, body.max_containers)
    told = await pools.create(get_principal(request), translate.template(body.image), AUTO, translate.limits(body.resources), asked, words)
    return json_response(PoolMadeAnswer(pool_id=told.id, namespace=NAMESPACE))


@CONTROL.route("GET", _POOLS)
async def list_pools(request: Request) -> Response:
    """One's own; an operator's are all of them."""
    return json_response(PoolsAnswer(pools=[translate.pool(told) for told in await get_node(request).pools.list(get_principal(request))]))


@CONTROL.route("GET", _ONE)
async def get(pool: str, request: Request) -> Response:
    """Look at a pool, at what waits in it, and at what was claimed of it and lives."""
    return json_response(await _answer(request, await get_node(request).pools.get(get_principal(request), pool)))


@CONTROL.route("PUT", _ONE)
async def change(pool: str, body: PoolBody, request: Request) -> Response:
    """Change how much a pool holds, and what is claimed of it from now on. What it holds is what it is."""
    pools, principal, words = get_node(request).pools, get_principal(request), translate.pool_words(body)
    there = await pools.get(principal, pool)
    if translate.template(body.image) != there.template.name or translate.limits(body.resources) != there.limits:
        raise translate.refuse("Another image or other resources", "They are what a pool is: make another pool, and delete this one.")
    if "network" not in body.model_fields_set and translate.NETWORK_KEY in there.metadata:
        words = {**words, translate.NETWORK_KEY: there.metadata[translate.NETWORK_KEY]}
    told = await pools.update(principal, pool, warm=body.warm_containers, max=body.max_containers, metadata=words)
    return json_response(await _answer(request, told))


@CONTROL.route("DELETE", _ONE)
async def remove(pool: str, request: Request) -> Response:
    """Have a pool no more. One of which sandboxes were claimed that live stays."""
    pools, principal = get_node(request).pools, get_principal(request)
    told = await pools.get(principal, pool)
    if claimed := await _claimed(request, told):
        raise ConflictError(
            f"{len(claimed)} sandboxes that were claimed of pool {told.id} live.",
            code=ErrorCode.CONFLICT,
            hint="End them first.",
            fields={"pool": told.id, "sandboxes": [sandbox.id for sandbox in claimed[:10]]},
        )
    await pools.delete(principal, pool)
    return Response(status_code=204)


@CONTROL.route("POST", f"{_ONE}/sandboxes")
async def claim(pool: str, request: Request, body: ClaimBody | None = None) -> Response:
    """Take a sandbox out of a pool. A client that goes away meanwhile leaves none behind."""
    node = get_node(request)
    told = await node.pools.get(get_principal(request), pool, claimable=True)
    params = CreateSandboxParams(
        template=told.template.name,
        isolation=told.isolation,
        limits=LimitsChange.to(told.limits),
        metadata={VENDOR_KEY: NAME, POOL_KEY: told.id, **{name: word for name, word in told.metadata.items() if name == IMAGE_KEY}},
        timeout_s=translate.pool_timeout_s(told.metadata),
        network=translate.pool_network(told.metadata),
        volumes=translate.volumes((body or ClaimBody()).file_systems),
    )
    sandbox = await cancel_on_disconnect(request, node.sandboxes.create(get_principal(request), params))
    return json_response(ClaimedAnswer(**dict(translate.made(sandbox, url_of(request, sandbox.id)))))


async def _claimed(request: Request, told: PoolInfo) -> list[SandboxInfo]:
    return await find_sandboxes(get_node(request), get_principal(request), SandboxFilter(metadata={POOL_KEY: told.id}))


async def _answer(request: Request, told: PoolInfo) -> PoolAnswer:
    node = get_node(request).id
    waiting = [Container(id=member, state="Idle", sandbox_id=None, executor_id=node) for member in told.ready]
    taken = [Container(id=sandbox.id, state="Running", sandbox_id=sandbox.id, executor_id=node) for sandbox in await _claimed(request, told)]
    return translate.pool(told).model_copy(update={"containers": [*waiting, *taken]})
