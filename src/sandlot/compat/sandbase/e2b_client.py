"""Routes of the Sandbase API that only E2B's client calls: Sandbase's documentation recommends this client with ``api_url=``.

Invariants:
- If a path has two meanings, the ``User-Agent`` of the request (``e2b-...``) decides.
- E2B's client sees running and paused sandboxes only. To connect extends a timeout and never shortens it.
- Calls to the inside of a sandbox go to the address of the client's ``sandbox_url``, which is the E2B API of this service, ``/e2b``.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import extend_timeout, find_live_sandbox, find_live_sandboxes
from sandlot.compat.e2b_conventions import e2b_json_response, metadata_filter, page_response, parse_states, sandbox_position
from sandlot.compat.sandbase import operations, translate
from sandlot.compat.sandbase.schemas import E2bCreateSandboxRequest, E2bListQuery, ResumeRequest
from sandlot.web import pagination
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.json_body import JsonRoute

_USER_AGENT: Final = "e2b-"
"""Start of the ``User-Agent`` of E2B's clients, such as ``e2b-python-sdk/2.63.0``."""

router = APIRouter(route_class=JsonRoute)


def is_sender(request: Request) -> bool:
    """Return whether E2B's client has sent a request."""
    return request.headers.get("user-agent", "").startswith(_USER_AGENT)


@router.post("/v2/sandboxes")
async def create_sandbox(body: E2bCreateSandboxRequest, request: Request) -> Response:
    """Create a sandbox. If the client disconnects before the response, the sandbox is removed."""
    node, principal = get_node(request), get_principal(request)
    sandbox = await cancel_on_disconnect(request, operations.create_sandbox(node, principal, body))
    return e2b_json_response(await operations.with_token(request, sandbox), 201)


@router.get("/v2/sandboxes")
async def list_sandboxes(query: Annotated[E2bListQuery, Query()], request: Request) -> Response:
    """List one page of the sandboxes, newest first."""
    states = parse_states(query.state)
    live = await find_live_sandboxes(get_node(request), get_principal(request), metadata_filter(query.metadata or ""))
    sandboxes = [sandbox for sandbox in reversed(live) if translate.status(sandbox) in states]
    if (after := pagination.decode_cursor(query.next_token)) is not None:
        sandboxes = [sandbox for sandbox in sandboxes if (sandbox.created_at, sandbox.id) < (after.at, after.id)]
    return page_response(sandboxes, query.limit, translate.sandbox_object, sandbox_position)


@router.post("/v2/sandboxes/{sandbox}/connect")
async def connect(sandbox: str, request: Request, body: ResumeRequest | None = None) -> Response:
    """Resume a paused sandbox, or extend the timeout of a running sandbox."""
    node, principal = get_node(request), get_principal(request)
    found = await find_live_sandbox(node, principal, sandbox)
    timeout_s = translate.timeout_s(None if body is None else body.timeout)
    if translate.is_paused(found):
        resumed = await node.sandboxes.resume(principal, found.id, timeout_s=timeout_s)
        return e2b_json_response(await operations.with_token(request, resumed), 201)
    return e2b_json_response(await operations.with_token(request, await extend_timeout(node, principal, found, timeout_s)))
