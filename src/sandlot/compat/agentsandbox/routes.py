"""Routes of the AgentSandbox API, below ``/agentsandbox``."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.agentsandbox import operations, translate
from sandlot.compat.agentsandbox.schemas import (
    CreateSessionRequest,
    ExecuteRequest,
    FileListQuery,
    FileListResponse,
    InjectFilesRequest,
    InjectFilesResponse,
    SessionListResponse,
    SessionResponse,
    UploadQuery,
)
from sandlot.compat.common import CREATE_KEYS
from sandlot.compat.vendor import not_supported
from sandlot.web.body_limits import stores_request_body
from sandlot.web.dependencies import announced_bytes, cancel_on_disconnect, get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import json_response
from sandlot.web.multipart import read_upload
from sandlot.web.streaming import KeepAliveStreamResponse

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/execute")
async def execute(body: ExecuteRequest, request: Request) -> Response:
    """Run code in a new process. The run is killed if the client disconnects."""
    return json_response(await cancel_on_disconnect(request, operations.execute(get_node(request), get_principal(request), body)))


@router.post("/v1/sessions")
async def create_session(request: Request, body: CreateSessionRequest | None = None) -> Response:
    """Create a session. If the client disconnects before the response, the session is removed."""
    options = body or CreateSessionRequest()
    creating = operations.create_session(get_node(request), get_principal(request), options.env_vars or {}, options.file_ids or ())
    sandbox = await cancel_on_disconnect(request, creating)
    return json_response(SessionResponse(session_id=sandbox.id, created=True))


@router.get("/v1/sessions")
async def list_sessions(request: Request) -> Response:
    """List the ids of all sessions, oldest first."""
    sandboxes = await operations.list_sessions(get_node(request), get_principal(request))
    return json_response(SessionListResponse(sessions=[sandbox.id for sandbox in sandboxes]))


@router.get("/v1/sessions/{session}")
async def get_session(session: str, request: Request) -> Response:
    """Return a session."""
    sandbox = await operations.find_session(get_node(request), get_principal(request), session)
    return json_response(SessionResponse(session_id=sandbox.id, created=False))


@router.delete("/v1/sessions/{session}")
async def delete_session(session: str, request: Request) -> Response:
    """Kill a session and delete its files."""
    await operations.delete_session(get_node(request), get_principal(request), session)
    return Response(status_code=204)


@router.post("/v1/sessions/{session}/files")
async def inject_files(session: str, body: InjectFilesRequest, request: Request) -> Response:
    """Copy files from the file store into a session's ``/workspace``."""
    sandbox = await cancel_on_disconnect(request, operations.inject_files(get_node(request), get_principal(request), session, body.file_ids))
    return json_response(InjectFilesResponse(session_id=sandbox.id, file_ids=body.file_ids))


@router.post("/v1/files")
@stores_request_body
async def upload_file(query: Annotated[UploadQuery, Query()], request: Request) -> Response:
    """Store a file. With ``session_id``, also copy it into that session."""
    node, principal = get_node(request), get_principal(request)
    sandbox = None if query.session_id is None else await operations.find_session(node, principal, query.session_id)
    upload = await read_upload(request)
    record = await node.file_store.upload(
        principal,
        upload.chunks,
        filename=translate.upload_filename(upload.filename),
        media_type=translate.upload_media_type(upload.media_type),
        announced_bytes=announced_bytes(request),
    )
    response = translate.stored_file(record)
    if sandbox is not None:
        await node.file_store.inject(principal, sandbox.id, [record.id])
        response = response.model_copy(update={"session_id": sandbox.id})
    return json_response(response)


@router.get("/v1/files")
async def list_files(query: Annotated[FileListQuery, Query()], request: Request) -> Response:
    """List one page of all files, newest first, with the total number of files."""
    records, total = await get_node(request).file_store.list(get_principal(request), offset=query.offset, limit=query.limit)
    files = [translate.stored_file(record) for record in records]
    return json_response(FileListResponse(files=files, total=total, limit=query.limit, offset=query.offset))


@router.get("/v1/files/{file}")
async def download_file(file: str, request: Request) -> Response:
    """Send the content of a file."""
    store, principal = get_node(request).file_store, get_principal(request)
    record = await store.get(principal, file)
    content = await store.read(principal, file)
    # A tenant chose the media type. As an attachment without sniffing, an HTML file cannot run under this origin.
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    response = KeepAliveStreamResponse(content, content.aclose, media_type=record.media_type, headers=headers)
    response.headers["Content-Length"] = str(record.size_bytes)
    return response


@router.delete("/v1/files/{file}")
async def delete_file(file: str, request: Request) -> Response:
    """Delete a file from the file store. Copies in sessions stay."""
    await get_node(request).file_store.delete(get_principal(request), file)
    return Response(status_code=204)


@router.get("/v1/executions/{execution}")
async def get_execution(execution: str, request: Request) -> Response:
    """Return one run from the execution log."""
    return json_response(translate.logged_execution(await get_node(request).history.execution(get_principal(request), execution)))


not_supported(router, "POST", "/v1/api-keys", CREATE_KEYS)
not_supported(router, "GET", "/oauth/authorize", CREATE_KEYS)
not_supported(router, "POST", "/oauth/token", CREATE_KEYS)
