"""Sandboxes: create, list, look, change, kill."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from sandlot.core.forwarding import listening
from sandlot.model.repositories import Position
from sandlot.server.native.common import PROBLEM, also, node_of, principal_of, reply, sandbox_of, unless_gone
from sandlot.server.native.schemas.sandboxes import (
    CreateBody,
    PortAnswer,
    PortsAnswer,
    SandboxAnswer,
    SandboxesAnswer,
    SandboxesQuery,
    UpdateBody,
    UsageAnswer,
)
from sandlot.web import cursors

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])


@router.post("", status_code=201, responses=also(SandboxAnswer, "It runs.", 201))
async def create(
    body: CreateBody,
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(description="Your own name for this request, for example a UUID: sent again, it gives the sandbox that it gave.")
    ] = None,
) -> Response:
    """Create a sandbox and wait until it runs. A client that goes away meanwhile leaves none behind."""
    node, principal, params = node_of(request), principal_of(request), body.asked()
    if body.snapshot is None:
        work = node.manager.create(principal, params, key=idempotency_key)
    else:
        work = node.snapshots.create_sandbox(principal, params, key=idempotency_key)
    return reply(SandboxAnswer.of(await unless_gone(request, work)), 201)


@router.get("", responses=also(SandboxesAnswer, "A page of them, oldest first."))
async def list_sandboxes(query: Annotated[SandboxesQuery, Query()], request: Request) -> Response:
    """List sandboxes: your own; for an operator everybody's."""
    after = cursors.understood(query.cursor)
    page, more = await node_of(request).registry.page(principal_of(request), query.wanted(), after=after, limit=query.limit)
    following = cursors.told(Position(page[-1].created_at, page[-1].id)) if more else None
    return reply(SandboxesAnswer(sandboxes=[SandboxAnswer.of(sandbox) for sandbox in page], next_cursor=following))


@router.get("/{sandbox}", responses=also(SandboxAnswer, "It."))
async def get(sandbox: str, request: Request) -> Response:
    """Look at a sandbox; also at one that ended, for as long as its record is kept."""
    return reply(SandboxAnswer.of(await node_of(request).registry.load(sandbox, principal_of(request))))


@router.patch("/{sandbox}", responses=also(SandboxAnswer, "It, changed."))
async def update(sandbox: str, body: UpdateBody, request: Request) -> Response:
    """Change a sandbox's deadline and what that does, idle timeout, metadata or limits: all of what is asked, or nothing."""
    return reply(SandboxAnswer.of(await node_of(request).manager.update(principal_of(request), sandbox, body.asked())))


@router.delete("/{sandbox}", status_code=204, responses=PROBLEM)
async def kill(sandbox: str, request: Request) -> Response:
    """End a sandbox and remove it. Answered when its processes are dead; again and again the same."""
    await node_of(request).manager.kill(principal_of(request), sandbox)
    return Response(status_code=204)


@router.get("/{sandbox}/usage", responses=also(UsageAnswer, "So far."))
async def usage(sandbox: str, request: Request) -> Response:
    """What a sandbox has used, and of how much."""
    return reply(UsageAnswer.of(await node_of(request).manager.usage(principal_of(request), sandbox)))


@router.get("/{sandbox}/ports", responses=also(PortsAnswer, "At this moment."))
async def ports(sandbox: str, request: Request) -> Response:
    """Tell on which TCP ports something listens inside a sandbox; none of Sandlot's own."""
    found = await listening.ports(sandbox_of(request, sandbox))
    return reply(PortsAnswer(ports=[PortAnswer(port=each.port, address=each.address) for each in found]))
