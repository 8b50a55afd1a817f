"""The routes of the code interpreter."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.doors.e2b.access import sandbox_of
from sandlot.doors.e2b.interpreter import running
from sandlot.doors.e2bwords import told
from sandlot.web.asking import node_of, principal_of, unless_gone
from sandlot.web.bodies import Body, Text, Words
from sandlot.web.streams import LINES, Stream, line

BEAT = line({"type": "keepalive"})
"""What is said when nothing else was for 15 s: clients pass over what they do not know, and cannot read an empty line."""

router = APIRouter()


class ExecuteBody(Body):
    """Code to run."""

    code: Text
    context_id: Text | None = None
    language: Text | None = None
    env_vars: Words | None = None


class ContextBody(Body):
    """A context to make."""

    language: Text | None = None
    cwd: Text | None = None


@router.post("/execute")
async def execute(body: ExecuteBody, request: Request) -> Response:
    """Run code, and tell what it gives as it comes: a line of JSON each."""
    sandbox = (await sandbox_of(request)).id
    context, default = running.context_of(body.context_id, body.language)
    work = running.start(node_of(request), principal_of(request), sandbox, body.code, context, default, body.env_vars or {})
    events = await unless_gone(request, work)
    return Stream(running.lines(events), events.aclose, media_type=LINES, beat=BEAT)


@router.post("/contexts")
async def create_context(request: Request, body: ContextBody | None = None) -> Response:
    """Make a context. Where the client goes away meanwhile, there is none."""
    asked = body or ContextBody()
    sandbox, language = (await sandbox_of(request)).id, (asked.language or "python").lower()
    work = node_of(request).contexts.create(principal_of(request), sandbox, language, cwd=asked.cwd or running.HOME)
    return told(running.told(await unless_gone(request, work)))


@router.get("/contexts")
async def list_contexts(request: Request) -> Response:
    """List the contexts of a sandbox."""
    sandbox = (await sandbox_of(request)).id
    return told([running.told(each) for each in await node_of(request).contexts.list(principal_of(request), sandbox)])


@router.delete("/contexts/{context}")
async def remove_context(context: str, request: Request) -> Response:
    """End a context, and everything that runs in it."""
    sandbox = (await sandbox_of(request)).id
    await node_of(request).contexts.delete(principal_of(request), sandbox, running.context_of(context, None)[0])
    return Response(status_code=204)


@router.post("/contexts/{context}/restart")
async def restart_context(context: str, request: Request) -> Response:
    """Let a context begin anew: its variables are gone, what ran in it is ended."""
    sandbox = (await sandbox_of(request)).id
    await node_of(request).contexts.restart(principal_of(request), sandbox, running.context_of(context, None)[0])
    return Response(status_code=204)
