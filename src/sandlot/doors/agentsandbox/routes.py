"""The routes of AgentSandbox's API, below ``/agentsandbox``."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response

from sandlot.doors.agentsandbox import sessions, translate
from sandlot.doors.agentsandbox.wire import (
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
from sandlot.doors.door import refuse
from sandlot.web.asking import node_of, principal_of, unless_gone
from sandlot.web.bodies import reply
from sandlot.web.forms import upload_of
from sandlot.web.streams import Stream

RAW = frozenset({"/v1/files"})

router = APIRouter()


@router.post("/v1/execute")
async def execute(body: ExecuteBody, request: Request) -> Response:
    """Run code; it is killed when its client goes away."""
    return reply(await unless_gone(request, sessions.execute(node_of(request), principal_of(request), body)))


@router.post("/v1/sessions")
async def create_session(request: Request, body: SessionBody | None = None) -> Response:
    """Make a session. A client that goes away meanwhile leaves none behind."""
    asked = body or SessionBody()
    work = sessions.create(node_of(request), principal_of(request), asked.env_vars or {}, asked.file_ids or ())
    return reply(SessionAnswer(session_id=(await unless_gone(request, work)).id, created=True))


@router.get("/v1/sessions")
async def list_sessions(request: Request) -> Response:
    """The ids of all sessions, oldest first."""
    return reply(SessionsAnswer(sessions=[sandbox.id for sandbox in await sessions.listing(node_of(request), principal_of(request))]))


@router.get("/v1/sessions/{session}")
async def get_session(session: str, request: Request) -> Response:
    """Whether there is a session."""
    return reply(SessionAnswer(session_id=(await sessions.find(node_of(request), principal_of(request), session)).id, created=False))


@router.delete("/v1/sessions/{session}")
async def delete_session(session: str, request: Request) -> Response:
    """End a session, and all that is in it."""
    await sessions.delete(node_of(request), principal_of(request), session)
    return Response(status_code=204)


@router.post("/v1/sessions/{session}/files")
async def inject_files(session: str, body: InjectBody, request: Request) -> Response:
    """Put files into a session's /workspace."""
    sandbox = await unless_gone(request, sessions.inject(node_of(request), principal_of(request), session, body.file_ids))
    return reply(InjectedAnswer(session_id=sandbox.id, file_ids=body.file_ids))


@router.post("/v1/files")
async def upload(query: Annotated[UploadQuery, Query()], request: Request) -> Response:
    """Keep a file; with ``session_id`` it is put into that session as well."""
    node, principal = node_of(request), principal_of(request)
    sandbox = None if query.session_id is None else await sessions.find(node, principal, query.session_id)
    form = await upload_of(request)
    record = await node.file_store.upload(
        principal, form.chunks, filename=translate.filename(form.filename), media_type=translate.media_type(form.media_type)
    )
    if sandbox is not None:
        await node.file_store.inject(principal, sandbox.id, [record.id])
    told = translate.file(record)
    return reply(told if sandbox is None else told.model_copy(update={"session_id": sandbox.id}))


@router.get("/v1/files")
async def list_files(query: Annotated[FilesQuery, Query()], request: Request) -> Response:
    """A part of all files, newest first, and how many there are."""
    found, total = await node_of(request).file_store.list(principal_of(request), offset=query.offset, limit=query.limit)
    return reply(FilesAnswer(files=[translate.file(record) for record in found], total=total, limit=query.limit, offset=query.offset))


@router.get("/v1/files/{file}")
async def download(file: str, request: Request) -> Response:
    """A file's bytes."""
    files = node_of(request).file_store
    record = await files.get(principal_of(request), file)
    content = await files.read(principal_of(request), file)
    # It may say that it is a page; it is never shown as one under this address.
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}", "X-Content-Type-Options": "nosniff"}
    told = Stream(content, content.aclose, media_type=record.media_type, headers=headers)
    told.headers["Content-Length"] = str(record.size_bytes)
    return told


@router.delete("/v1/files/{file}")
async def delete_file(file: str, request: Request) -> Response:
    """Remove a file; what was put into sessions stays there."""
    await node_of(request).file_store.delete(principal_of(request), file)
    return Response(status_code=204)


@router.get("/v1/executions/{execution}")
async def get_execution(execution: str, request: Request) -> Response:
    """One run, as the log has it."""
    return reply(translate.execution(await node_of(request).history.execution(principal_of(request), execution)))


_KEYS = "Make keys where the service runs: sandlot keys create --name NAME."
refuse(router, "POST", "/v1/api-keys", _KEYS)
refuse(router, "GET", "/oauth/authorize", _KEYS)
refuse(router, "POST", "/oauth/token", _KEYS)
