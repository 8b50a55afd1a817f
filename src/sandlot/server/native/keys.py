"""Keys: made, listed and revoked by operators; and who it is that asks."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.core.access.quotas import taken
from sandlot.core.pools.ownership import pool_owner
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, ForbiddenError
from sandlot.model.repositories import Position
from sandlot.server.native.common import PROBLEM, also, node_of, principal_of, reply
from sandlot.server.native.schemas.keys import KeyAnswer, KeyBody, KeysAnswer, KeysQuery, NewKeyAnswer, SelfAnswer
from sandlot.web import cursors

router = APIRouter(prefix="/v1/keys", tags=["keys"])


@router.post("", status_code=201, responses=also(NewKeyAnswer, "It is valid from now on.", 201))
async def create(body: KeyBody, request: Request) -> Response:
    """Make a key. Operators only; its secret is in this answer and nowhere else."""
    _operator(request)
    record, secret = await node_of(request).api_keys.create(body.name, operator=body.operator, quota=body.quota_asked())
    return reply(NewKeyAnswer.made(record, secret), 201)


@router.get("", responses=also(KeysAnswer, "A page of them, oldest first."))
async def list_keys(query: Annotated[KeysQuery, Query()], request: Request) -> Response:
    """List the keys that are valid, without their secrets. Operators only."""
    _operator(request)
    after = cursors.understood(query.cursor)
    known = await node_of(request).api_keys.list()
    later = (record for record in known if after is None or (record.created_at, record.id) > (after.at, after.id))
    page = list(islice(later, query.limit + 1))
    shown = page[: query.limit]
    following = cursors.told(Position(shown[-1].created_at, shown[-1].id)) if len(page) > len(shown) else None
    return reply(KeysAnswer(keys=[KeyAnswer.of(record) for record in shown], next_cursor=following))


@router.get("/self", responses=also(SelfAnswer, "You."))
async def who_am_i(request: Request) -> Response:
    """Tell who sends this request, what they may take, and what of it is taken."""
    principal, node = principal_of(request), node_of(request)
    live = [sandbox.spec.limits for sandbox in node.registry.list(principal) if sandbox.owner == principal.owner]
    snapshots, volumes = await node.snapshots.totals(principal), await node.volumes.totals(principal)
    pools = node.pools.count(pool_owner(principal))
    return reply(SelfAnswer.of(principal, taken(live), node.execution_counter.used(principal.owner), snapshots, volumes, pools))


@router.delete("/{key}", status_code=204, responses=PROBLEM)
async def revoke(key: str, request: Request) -> Response:
    """Take a key away, by its name or its id: requests with it are refused from now on. Operators only; its sandboxes live on, its pools go."""
    _operator(request)
    await node_of(request).api_keys.revoke(key)
    return Response(status_code=204)


def _operator(request: Request) -> Principal:
    principal = principal_of(request)
    if not principal.operator:
        raise ForbiddenError(
            "Only an operator may see, make and revoke keys.",
            code=ErrorCode.FORBIDDEN,
            hint="Use an operator's key, or 'sandlot keys' on the server; GET /v1/keys/self tells about your own.",
        )
    return principal
