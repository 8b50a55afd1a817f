"""Routes for pools.

Each key has its own pools (``core/pools``), and may claim a sandbox of a pool of the node if it knows the id. A claim takes a warm sandbox out of the
pool, or creates one if none is ready.
"""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response

from sandlot.compat.common import VENDOR_KEY, find_sandboxes
from sandlot.compat.tensorlake import translate
from sandlot.compat.tensorlake.addressing import CONTROL, NAMESPACE, sandbox_url
from sandlot.compat.tensorlake.control.schemas import (
    ClaimRequest,
    ClaimResponse,
    Container,
    CreatedPoolResponse,
    PoolListResponse,
    PoolRequest,
    PoolResponse,
)
from sandlot.compat.tensorlake.translate import IMAGE_KEY, POOL_KEY, VENDOR
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.pools import PoolInfo, PoolSizes
from sandlot.model.sandboxes import AUTO, CreateSandboxParams, LimitsChange, SandboxFilter, SandboxInfo
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import json_response

_POOLS: Final = "/sandbox-pools"
_POOL: Final = "/sandbox-pools/{pool}"


@CONTROL.route("POST", _POOLS)
async def create_pool(body: PoolRequest, request: Request) -> Response:
    """Create a pool."""
    pools, labels = get_node(request).pools, translate.pool_labels(body)
    sizes = PoolSizes.with_defaults(body.warm_containers or 0, body.max_containers)
    pool = await pools.create(get_principal(request), translate.template(body.image), AUTO, translate.limits_change(body.resources), sizes, labels)
    return json_response(CreatedPoolResponse(pool_id=pool.id, namespace=NAMESPACE))


@CONTROL.route("GET", _POOLS)
async def list_pools(request: Request) -> Response:
    """List the pools of the key; for an operator, all pools."""
    pools = await get_node(request).pools.list(get_principal(request))
    return json_response(PoolListResponse(pools=[translate.pool_response(pool) for pool in pools]))


@CONTROL.route("GET", _POOL)
async def get_pool(pool: str, request: Request) -> Response:
    """Return a pool with its warm sandboxes and the live sandboxes that were claimed from it."""
    return json_response(await _with_containers(request, await get_node(request).pools.get(get_principal(request), pool)))


@CONTROL.route("PUT", _POOL)
async def update_pool(pool: str, body: PoolRequest, request: Request) -> Response:
    """Change the sizes of a pool, and the options of sandboxes that are claimed from now on."""
    pools, principal, labels = get_node(request).pools, get_principal(request), translate.pool_labels(body)
    current = await pools.get(principal, pool)
    limits = translate.limits_change(body.resources).over(current.limits)
    name = translate.template(body.image)
    is_same = name == current.template.full_name or await get_node(request).templates.find(principal, name) == current.template
    if not is_same or limits != current.limits:
        raise translate.not_possible("Another image or other resources", "Create another pool and delete this one: image and resources are fixed.")
    if "network" not in body.model_fields_set and translate.NETWORK_KEY in current.metadata:
        labels = {**labels, translate.NETWORK_KEY: current.metadata[translate.NETWORK_KEY]}
    updated = await pools.update(principal, pool, warm=body.warm_containers, max=body.max_containers, metadata=labels)
    return json_response(await _with_containers(request, updated))


@CONTROL.route("DELETE", _POOL)
async def delete_pool(pool: str, request: Request) -> Response:
    """Delete a pool without live claimed sandboxes."""
    pools, principal = get_node(request).pools, get_principal(request)
    found = await pools.get(principal, pool)
    if claimed := await _find_claimed(request, found):
        raise ConflictError(
            f"{len(claimed)} sandboxes that were claimed from pool {found.id} are live.",
            code=ErrorCode.CONFLICT,
            hint="Delete these sandboxes first.",
            fields={"pool": found.id, "sandboxes": [sandbox.id for sandbox in claimed[:10]]},
        )
    await pools.delete(principal, pool)
    return Response(status_code=204)


@CONTROL.route("POST", f"{_POOL}/sandboxes")
async def claim_sandbox(pool: str, request: Request, body: ClaimRequest | None = None) -> Response:
    """Claim a sandbox from a pool. If the client disconnects before the response, the sandbox is removed."""
    node, principal = get_node(request), get_principal(request)
    found = await node.pools.get(principal, pool, claimable=True)
    if await node.templates.find(principal, found.template.full_name) != found.template:
        raise ConflictError(
            f"The image {found.template.full_name} of this key is not that of pool {found.id}.",
            code=ErrorCode.CONFLICT,
            hint="Create a pool of your image, or delete your image.",
            fields={"pool": found.id},
        )
    params = CreateSandboxParams(
        template=found.template.full_name,
        isolation=found.isolation,
        limits=LimitsChange.to(found.limits),
        metadata={VENDOR_KEY: VENDOR, POOL_KEY: found.id, **{name: value for name, value in found.metadata.items() if name == IMAGE_KEY}},
        timeout_s=translate.pool_timeout_s(found.metadata),
        network=translate.network_policy(translate.pool_network(found.metadata)),
        volumes=translate.volumes((body or ClaimRequest()).file_systems),
    )
    sandbox = await cancel_on_disconnect(request, node.sandboxes.create(principal, params))
    return json_response(ClaimResponse(**dict(translate.created_sandbox(sandbox, sandbox_url(request, sandbox.id)))))


async def _find_claimed(request: Request, pool: PoolInfo) -> list[SandboxInfo]:
    return await find_sandboxes(get_node(request), get_principal(request), SandboxFilter(metadata={POOL_KEY: pool.id}))


async def _with_containers(request: Request, pool: PoolInfo) -> PoolResponse:
    node = get_node(request).id
    idle = [Container(id=member, state="Idle", sandbox_id=None, executor_id=node) for member in pool.ready]
    claimed = await _find_claimed(request, pool)
    running = [Container(id=sandbox.id, state="Running", sandbox_id=sandbox.id, executor_id=node) for sandbox in claimed]
    return translate.pool_response(pool).model_copy(update={"containers": [*idle, *running]})
