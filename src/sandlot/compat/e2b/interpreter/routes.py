"""Routes of the code interpreter."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.compat.e2b.access import find_requested_sandbox
from sandlot.compat.e2b.interpreter import operations
from sandlot.compat.e2b_conventions import e2b_json_response
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import Metadata, RequestModel, Text
from sandlot.web.streaming import NDJSON_MEDIA_TYPE, KeepAliveStreamResponse, ndjson_line

KEEP_ALIVE = ndjson_line({"type": "keepalive"})
"""Line that is sent while there is no other: clients ignore unknown events, and cannot parse an empty line."""

router = APIRouter(route_class=JsonRoute)


class ExecuteRequest(RequestModel):
    """Code to run."""

    code: Text
    context_id: Text | None = None
    language: Text | None = None
    env_vars: Metadata | None = None


class CreateContextRequest(RequestModel):
    """A context to create."""

    language: Text | None = None
    cwd: Text | None = None


@router.post("/execute")
async def execute(body: ExecuteRequest, request: Request) -> Response:
    """Run code, and stream its events as lines of JSON."""
    sandbox = (await find_requested_sandbox(request)).id
    context, default = operations.select_context(body.context_id, body.language)
    starting = operations.start(get_node(request), get_principal(request), sandbox, body.code, context, default, body.env_vars or {})
    events = await cancel_on_disconnect(request, starting)
    return KeepAliveStreamResponse(operations.lines(events), events.aclose, media_type=NDJSON_MEDIA_TYPE, keep_alive=KEEP_ALIVE)


@router.post("/contexts")
async def create_context(request: Request, body: CreateContextRequest | None = None) -> Response:
    """Create a context. If the client disconnects before the response, the context is removed."""
    options = body or CreateContextRequest()
    sandbox, language = (await find_requested_sandbox(request)).id, (options.language or "python").lower()
    creating = get_node(request).contexts.create(get_principal(request), sandbox, language, cwd=options.cwd or operations.HOME)
    return e2b_json_response(operations.context_object(await cancel_on_disconnect(request, creating)))


@router.get("/contexts")
async def list_contexts(request: Request) -> Response:
    """List the contexts of a sandbox."""
    sandbox = (await find_requested_sandbox(request)).id
    return e2b_json_response(operations.listed_contexts(await get_node(request).contexts.list(get_principal(request), sandbox)))


@router.delete("/contexts/{context}")
async def delete_context(context: str, request: Request) -> Response:
    """Delete a context and kill its processes."""
    sandbox = (await find_requested_sandbox(request)).id
    id_, _ = operations.select_context(context, None)
    with operations.unused_default(id_):
        await get_node(request).contexts.delete(get_principal(request), sandbox, id_)
    return Response(status_code=204)


@router.post("/contexts/{context}/restart")
async def restart_context(context: str, request: Request) -> Response:
    """Restart a context: its variables are gone, and its processes are killed."""
    sandbox = (await find_requested_sandbox(request)).id
    id_, _ = operations.select_context(context, None)
    with operations.unused_default(id_):
        await get_node(request).contexts.restart(get_principal(request), sandbox, id_)
    return Response(status_code=204)
