"""Keys: made, listed and revoked by operators; and who it is that asks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.model.repositories import Position
from sandlot.server.v1.common import PROBLEM, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.keys import KeyAnswer, KeyBody, KeysAnswer, KeysQuery, NewKeyAnswer, SelfAnswer
from sandlot.web import pagination

router = APIRouter(prefix="/v1/keys", tags=["keys"])


@router.post("", status_code=201, responses=documented_response(NewKeyAnswer, "It is valid from now on.", 201))
async def create(body: KeyBody, request: Request) -> Response:
    """Make a key. Operators only; its secret is in this answer and nowhere else."""
    record, secret = await get_node(request).keys.create(get_principal(request), body.name, operator=body.operator, quota=body.quota_asked())
    return json_response(NewKeyAnswer.made(record, secret), 201)


@router.get("", responses=documented_response(KeysAnswer, "A page of them, oldest first."))
async def list_keys(query: Annotated[KeysQuery, Query()], request: Request) -> Response:
    """List the keys that are valid, without their secrets. Operators only."""
    page = await get_node(request).keys.list(get_principal(request), after=pagination.decode_cursor(query.cursor), limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(KeysAnswer(keys=[KeyAnswer.of(record) for record in page.items], next_cursor=following))


@router.get("/self", responses=documented_response(SelfAnswer, "You."))
async def who_am_i(request: Request) -> Response:
    """Tell who sends this request, what they may take, and what of it is taken."""
    principal = get_principal(request)
    return json_response(SelfAnswer.of(principal, await get_node(request).keys.usage(principal)))


@router.delete("/{key}", status_code=204, responses=PROBLEM)
async def revoke(key: str, request: Request) -> Response:
    """Take a key away, by its name or its id: requests with it are refused from now on. Operators only; its sandboxes live on, its pools go."""
    await get_node(request).keys.revoke(get_principal(request), key)
    return Response(status_code=204)
