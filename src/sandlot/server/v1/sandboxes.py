"""Sandboxes: create, list, look, change, kill."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from sandlot.model.repositories import Position
from sandlot.server.v1.common import PROBLEM, cancel_on_disconnect, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.sandboxes import (
    CreateBody,
    PortAnswer,
    PortsAnswer,
    SandboxAnswer,
    SandboxesAnswer,
    SandboxesQuery,
    UpdateBody,
    UsageAnswer,
)
from sandlot.web import pagination

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])


@router.post("", status_code=201, responses=documented_response(SandboxAnswer, "It runs.", 201))
async def create(
    body: CreateBody,
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(description="Your own name for this request, for example a UUID: sent again, it gives the sandbox that it gave.")
    ] = None,
) -> Response:
    """Create a sandbox and wait until it runs. A client that goes away meanwhile leaves none behind."""
    work = get_node(request).sandboxes.create(get_principal(request), body.asked(), idempotency_key=idempotency_key)
    return json_response(SandboxAnswer.of(await cancel_on_disconnect(request, work)), 201)


@router.get("", responses=documented_response(SandboxesAnswer, "A page of them, oldest first."))
async def list_sandboxes(query: Annotated[SandboxesQuery, Query()], request: Request) -> Response:
    """List sandboxes: your own; for an operator everybody's."""
    after = pagination.decode_cursor(query.cursor)
    page = await get_node(request).sandboxes.list(get_principal(request), query.wanted(), after=after, limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(SandboxesAnswer(sandboxes=[SandboxAnswer.of(sandbox) for sandbox in page.items], next_cursor=following))


@router.get("/{sandbox}", responses=documented_response(SandboxAnswer, "It."))
async def get(sandbox: str, request: Request) -> Response:
    """Look at a sandbox; also at one that ended, for as long as its record is kept."""
    return json_response(SandboxAnswer.of(await get_node(request).sandboxes.get(get_principal(request), sandbox)))


@router.patch("/{sandbox}", responses=documented_response(SandboxAnswer, "It, changed."))
async def update(sandbox: str, body: UpdateBody, request: Request) -> Response:
    """Change a sandbox's deadline and what that does, idle timeout, metadata or limits: all of what is asked, or nothing."""
    return json_response(SandboxAnswer.of(await get_node(request).sandboxes.update(get_principal(request), sandbox, body.asked())))


@router.delete("/{sandbox}", status_code=204, responses=PROBLEM)
async def kill(sandbox: str, request: Request) -> Response:
    """End a sandbox and remove it. Answered when its processes are dead; again and again the same."""
    await get_node(request).sandboxes.kill(get_principal(request), sandbox)
    return Response(status_code=204)


@router.get("/{sandbox}/usage", responses=documented_response(UsageAnswer, "So far."))
async def usage(sandbox: str, request: Request) -> Response:
    """What a sandbox has used, and of how much."""
    return json_response(UsageAnswer.of(await get_node(request).sandboxes.usage(get_principal(request), sandbox)))


@router.get("/{sandbox}/ports", responses=documented_response(PortsAnswer, "At this moment."))
async def ports(sandbox: str, request: Request) -> Response:
    """Tell on which TCP ports something listens inside a sandbox; none of Sandlot's own."""
    found = await get_node(request).sandboxes.ports(get_principal(request), sandbox)
    return json_response(PortsAnswer(ports=[PortAnswer(port=each.port, address=each.address) for each in found]))
