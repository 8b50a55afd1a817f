"""What E2B's client asks for at this door in another way than Sandbase's programs do: Sandbase's pages give it to their readers, with ``api_url=``.

Laws:
- Both are answered by the same sandboxes. Where one path has two meanings, the client's name for itself (``User-Agent: e2b-...``) decides.
- To E2B's client there are sandboxes that run or are paused, and no others; connecting prolongs, and never shortens.
- What goes on inside it asks of the address that it has for that (``sandbox_url``): the door /e2b.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import find_live_sandboxes
from sandlot.compat.e2b_conventions import NEXT, e2b_json_response, metadata_filter
from sandlot.compat.sandbase import translate
from sandlot.compat.sandbase.sandboxes import live, made, opened
from sandlot.compat.sandbase.schemas import E2bListQuery, E2bSandboxBody, ResumeBody
from sandlot.model.errors import InvalidRequestError
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import UpdateSandboxParams
from sandlot.web import pagination
from sandlot.web.dependencies import get_node, get_principal

router = APIRouter()


@router.post("/v2/sandboxes")
async def create(body: E2bSandboxBody, request: Request) -> Response:
    """Create a sandbox. A client that goes away meanwhile leaves none behind."""
    return await made(body, request)


@router.get("/v2/sandboxes")
async def list_sandboxes(query: Annotated[E2bListQuery, Query()], request: Request) -> Response:
    """List sandboxes, newest first, page by page."""
    states = translate.E2B_STATES if query.state is None else frozenset(query.state.split(","))
    if unknown := states - translate.E2B_STATES:
        raise InvalidRequestError(f"There is no state {min(unknown)[:50]!r}.", hint="There are: running, paused.", fields={"field": "state"})
    wanted = metadata_filter(query.metadata or "")
    found = [
        sandbox
        for sandbox in reversed(await find_live_sandboxes(get_node(request), get_principal(request), wanted))
        if translate.status(sandbox) in states
    ]
    if (after := pagination.decode_cursor(query.next_token)) is not None:
        found = [sandbox for sandbox in found if (sandbox.created_at, sandbox.id) < (after.at, after.id)]
    page = found[: query.limit]
    headers = {NEXT: pagination.encode_cursor(Position(page[-1].created_at, page[-1].id))} if len(found) > len(page) else {}
    return e2b_json_response([translate.sandbox(sandbox) for sandbox in page], headers=headers)


@router.post("/v2/sandboxes/{sandbox}/connect")
async def connect(sandbox: str, request: Request, body: ResumeBody | None = None) -> Response:
    """Let a sandbox go on where it is paused; one that runs lives for so many seconds at least."""
    sandboxes, principal = get_node(request).sandboxes, get_principal(request)
    found = await live(request, sandbox)
    seconds = translate.timeout(None if body is None else body.timeout)
    paused = translate.status(found) == translate.PAUSED
    if paused:
        found = await sandboxes.resume(principal, found.id, timeout_s=seconds)
    elif found.expires_at is not None and (found.expires_at - found.as_of).total_seconds() < seconds:
        found = await sandboxes.update(principal, found.id, UpdateSandboxParams(timeout_s=seconds))
    return e2b_json_response(opened(request, found), 201 if paused else 200)
