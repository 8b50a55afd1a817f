"""The routes of the code interpreter."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.compat.e2b.access import sandbox_of
from sandlot.compat.e2b.interpreter import operations
from sandlot.compat.e2b_conventions import e2b_json_response
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import Metadata, RequestModel, Text
from sandlot.web.streaming import NDJSON_MEDIA_TYPE, KeepAliveStreamResponse, ndjson_line

BEAT = ndjson_line({"type": "keepalive"})
"""What is said when nothing else was for 15 s: clients pass over what they do not know, and cannot read an empty line."""

router = APIRouter()


class ExecuteBody(RequestModel):
    """Code to run."""

    code: Text
    context_id: Text | None = None
    language: Text | None = None
    env_vars: Metadata | None = None


class ContextBody(RequestModel):
    """A context to make."""

    language: Text | None = None
    cwd: Text | None = None


@router.post("/execute")
async def execute(body: ExecuteBody, request: Request) -> Response:
    """Run code, and tell what it gives as it comes: a line of JSON each."""
    sandbox = (await sandbox_of(request)).id
    context, default = operations.context_of(body.context_id, body.language)
    work = operations.start(get_node(request), get_principal(request), sandbox, body.code, context, default, body.env_vars or {})
    events = await cancel_on_disconnect(request, work)
    return KeepAliveStreamResponse(operations.lines(events), events.aclose, media_type=NDJSON_MEDIA_TYPE, keep_alive=BEAT)


@router.post("/contexts")
async def create_context(request: Request, body: ContextBody | None = None) -> Response:
    """Make a context. Where the client goes away meanwhile, there is none."""
    asked = body or ContextBody()
    sandbox, language = (await sandbox_of(request)).id, (asked.language or "python").lower()
    work = get_node(request).contexts.create(get_principal(request), sandbox, language, cwd=asked.cwd or operations.HOME)
    return e2b_json_response(operations.told(await cancel_on_disconnect(request, work)))


@router.get("/contexts")
async def list_contexts(request: Request) -> Response:
    """List the contexts of a sandbox."""
    sandbox = (await sandbox_of(request)).id
    return e2b_json_response([operations.told(each) for each in await get_node(request).contexts.list(get_principal(request), sandbox)])


@router.delete("/contexts/{context}")
async def remove_context(context: str, request: Request) -> Response:
    """End a context, and everything that runs in it."""
    sandbox = (await sandbox_of(request)).id
    await get_node(request).contexts.delete(get_principal(request), sandbox, operations.context_of(context, None)[0])
    return Response(status_code=204)


@router.post("/contexts/{context}/restart")
async def restart_context(context: str, request: Request) -> Response:
    """Let a context begin anew: its variables are gone, what ran in it is ended."""
    sandbox = (await sandbox_of(request)).id
    await get_node(request).contexts.restart(get_principal(request), sandbox, operations.context_of(context, None)[0])
    return Response(status_code=204)
