"""The routes of PandaStack's API that reach inside a sandbox: commands, sessions, files, ports, logs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.pandastack import inside, translate
from sandlot.compat.pandastack.schemas import (
    ExecBody,
    FolderAnswer,
    FolderQuery,
    LogsQuery,
    PathQuery,
    PortsAnswer,
    RunBody,
    SessionAnswer,
    SessionBody,
    SessionsAnswer,
    WrittenAnswer,
)
from sandlot.model.specs import User
from sandlot.web.body_limits import streams_body
from sandlot.web.dependencies import cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import json_response
from sandlot.web.streaming import KeepAliveStreamResponse

router = APIRouter()


@router.post("/v1/sandboxes/{sandbox}/exec")
async def execute(sandbox: str, body: ExecBody, request: Request) -> Response:
    """Run a command; it is killed when its client goes away."""
    return json_response(await cancel_on_disconnect(request, inside.execute(get_node(request), get_principal(request), sandbox, body)))


@router.post("/v1/sandboxes/{sandbox}/exec/stream")
async def stream(sandbox: str, body: ExecBody, request: Request) -> Response:
    """Run a command and tell what it writes as it writes it; it is killed when its client goes away."""
    return await cancel_on_disconnect(request, inside.stream(request, sandbox, body))


@router.post("/v1/sandboxes/{sandbox}/repl/sessions")
async def create_session(sandbox: str, request: Request, body: SessionBody | None = None) -> Response:
    """Begin a session, in which variables stay."""
    made = await cancel_on_disconnect(
        request, get_node(request).contexts.create(get_principal(request), sandbox, (body or SessionBody()).language.lower())
    )
    return json_response(SessionAnswer(id=made.id, sandbox_id=sandbox, language=made.language), 201)


@router.get("/v1/sandboxes/{sandbox}/repl/sessions")
async def list_sessions(sandbox: str, request: Request) -> Response:
    """All sessions."""
    found = await get_node(request).contexts.list(get_principal(request), sandbox)
    return json_response(SessionsAnswer(items=[SessionAnswer(id=each.id, sandbox_id=sandbox, language=each.language) for each in found]))


@router.post("/v1/sandboxes/{sandbox}/repl/sessions/{context}/run")
async def run(sandbox: str, context: str, body: RunBody, request: Request) -> Response:
    """Run code in a session; it is interrupted when its client goes away, and its variables stay."""
    return json_response(await cancel_on_disconnect(request, inside.run_cell(get_node(request), get_principal(request), sandbox, context, body)))


@router.delete("/v1/sandboxes/{sandbox}/repl/sessions/{context}")
async def delete_session(sandbox: str, context: str, request: Request) -> Response:
    """End a session and what runs in it."""
    await get_node(request).contexts.delete(get_principal(request), sandbox, context)
    return Response(status_code=204)


@router.get("/v1/sandboxes/{sandbox}/logs")
async def logs(sandbox: str, query: Annotated[LogsQuery, Query()], request: Request) -> Response:
    """What its runs wrote, or follow what they write; it may have ended."""
    node, principal = get_node(request), get_principal(request)
    if query.follow:
        return await inside.follow(node, principal, sandbox, query.stream)
    return Response(await inside.logs(node, principal, sandbox, query.stream), media_type="text/plain; charset=utf-8")


@router.get("/v1/sandboxes/{sandbox}/ports")
async def ports(sandbox: str, request: Request) -> Response:
    """On which TCP ports something listens inside."""
    found = await get_node(request).sandboxes.ports(get_principal(request), sandbox)
    return json_response(PortsAnswer(ports=sorted({each.port for each in found})))


@router.get("/v1/sandboxes/{sandbox}/fs")
async def read(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """A file's bytes."""
    reading = await get_node(request).files.read(get_principal(request), sandbox, query.path, user=User.ROOT)
    return KeepAliveStreamResponse(reading, reading.aclose, media_type="application/octet-stream")


@router.put("/v1/sandboxes/{sandbox}/fs")
@streams_body
async def write(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Write a file, and the folders above it. Where the upload breaks off, the old file stays."""
    work = get_node(request).files.write(get_principal(request), sandbox, query.path, iter_body(request), user=User.ROOT)
    return json_response(WrittenAnswer(path=query.path, bytes=(await cancel_on_hangup(request, work)).size))


@router.delete("/v1/sandboxes/{sandbox}/fs")
async def remove(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Remove a file, or a folder and what is in it."""
    await get_node(request).files.delete(get_principal(request), sandbox, query.path, user=User.ROOT, recursive=True)
    return Response(status_code=204)


@router.get("/v1/sandboxes/{sandbox}/fs/dir")
async def list_folder(sandbox: str, query: Annotated[FolderQuery, Query()], request: Request) -> Response:
    """What is in a folder."""
    entries = await cancel_on_disconnect(request, inside.folder(get_node(request), get_principal(request), sandbox, query.path))
    return json_response(FolderAnswer(path=query.path, entries=entries))


@router.get("/v1/sandboxes/{sandbox}/fs/stat")
async def stat(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """What is at a path; a link is told as itself."""
    found = await get_node(request).files.stat(get_principal(request), sandbox, query.path, user=User.ROOT, follow=False)
    return json_response(translate.entry(found))
