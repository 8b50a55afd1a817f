"""The routes of AgentSandbox's API, below ``/agentsandbox``."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.agentsandbox import operations, translate
from sandlot.compat.agentsandbox.schemas import (
    ExecuteBody,
    FilesAnswer,
    FilesQuery,
    InjectBody,
    InjectedAnswer,
    SessionAnswer,
    SessionBody,
    SessionsAnswer,
    UploadQuery,
)
from sandlot.compat.vendor import not_supported
from sandlot.web.body_limits import streams_body
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import json_response
from sandlot.web.multipart import read_upload
from sandlot.web.streaming import KeepAliveStreamResponse

router = APIRouter()


@router.post("/v1/execute")
async def execute(body: ExecuteBody, request: Request) -> Response:
    """Run code; it is killed when its client goes away."""
    return json_response(await cancel_on_disconnect(request, operations.execute(get_node(request), get_principal(request), body)))


@router.post("/v1/sessions")
async def create_session(request: Request, body: SessionBody | None = None) -> Response:
    """Make a session. A client that goes away meanwhile leaves none behind."""
    asked = body or SessionBody()
    work = operations.create(get_node(request), get_principal(request), asked.env_vars or {}, asked.file_ids or ())
    return json_response(SessionAnswer(session_id=(await cancel_on_disconnect(request, work)).id, created=True))


@router.get("/v1/sessions")
async def list_sessions(request: Request) -> Response:
    """The ids of all sessions, oldest first."""
    return json_response(SessionsAnswer(sessions=[sandbox.id for sandbox in await operations.listing(get_node(request), get_principal(request))]))


@router.get("/v1/sessions/{session}")
async def get_session(session: str, request: Request) -> Response:
    """Whether there is a session."""
    return json_response(SessionAnswer(session_id=(await operations.find(get_node(request), get_principal(request), session)).id, created=False))


@router.delete("/v1/sessions/{session}")
async def delete_session(session: str, request: Request) -> Response:
    """End a session, and all that is in it."""
    await operations.delete(get_node(request), get_principal(request), session)
    return Response(status_code=204)


@router.post("/v1/sessions/{session}/files")
async def inject_files(session: str, body: InjectBody, request: Request) -> Response:
    """Put files into a session's /workspace."""
    sandbox = await cancel_on_disconnect(request, operations.inject(get_node(request), get_principal(request), session, body.file_ids))
    return json_response(InjectedAnswer(session_id=sandbox.id, file_ids=body.file_ids))


@router.post("/v1/files")
@streams_body
async def upload(query: Annotated[UploadQuery, Query()], request: Request) -> Response:
    """Keep a file; with ``session_id`` it is put into that session as well."""
    node, principal = get_node(request), get_principal(request)
    sandbox = None if query.session_id is None else await operations.find(node, principal, query.session_id)
    form = await read_upload(request)
    record = await node.file_store.upload(
        principal, form.chunks, filename=translate.filename(form.filename), media_type=translate.media_type(form.media_type)
    )
    if sandbox is not None:
        await node.file_store.inject(principal, sandbox.id, [record.id])
    told = translate.file(record)
    return json_response(told if sandbox is None else told.model_copy(update={"session_id": sandbox.id}))


@router.get("/v1/files")
async def list_files(query: Annotated[FilesQuery, Query()], request: Request) -> Response:
    """A part of all files, newest first, and how many there are."""
    found, total = await get_node(request).file_store.list(get_principal(request), offset=query.offset, limit=query.limit)
    return json_response(FilesAnswer(files=[translate.file(record) for record in found], total=total, limit=query.limit, offset=query.offset))


@router.get("/v1/files/{file}")
async def download(file: str, request: Request) -> Response:
    """A file's bytes."""
    files = get_node(request).file_store
    record = await files.get(get_principal(request), file)
    content = await files.read(get_principal(request), file)
    # It may say that it is a page; it is never shown as one under this address.
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}", "X-Content-Type-Options": "nosniff"}
    told = KeepAliveStreamResponse(content, content.aclose, media_type=record.media_type, headers=headers)
    told.headers["Content-Length"] = str(record.size_bytes)
    return told


@router.delete("/v1/files/{file}")
async def delete_file(file: str, request: Request) -> Response:
    """Remove a file; what was put into sessions stays there."""
    await get_node(request).file_store.delete(get_principal(request), file)
    return Response(status_code=204)


@router.get("/v1/executions/{execution}")
async def get_execution(execution: str, request: Request) -> Response:
    """One run, as the log has it."""
    return json_response(translate.execution(await get_node(request).history.execution(get_principal(request), execution)))


_KEYS = "Make keys where the service runs: sandlot keys create --name NAME."
not_supported(router, "POST", "/v1/api-keys", _KEYS)
not_supported(router, "GET", "/oauth/authorize", _KEYS)
not_supported(router, "POST", "/oauth/token", _KEYS)
