"""File store: schemas and routes, and copies from and to sandboxes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.errors import InvalidRequestError
from sandlot.model.files import INJECT_FOLDER, MAX_INJECTED
from sandlot.model.records import FileRecord
from sandlot.server.v1.common import PROBLEM, Cursor, SandboxPath, UserName, documented_response, parse_user, raw_body
from sandlot.server.v1.files import FileEntryResponse
from sandlot.web import multipart, pagination
from sandlot.web.body_limits import stores_request_body
from sandlot.web.dependencies import SandboxNameRoute, announced_bytes, cancel_on_disconnect, get_node, get_principal, iter_body
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response
from sandlot.web.streaming import KeepAliveStreamResponse


class UploadFileQuery(QueryModel):
    """Name and type of an uploaded file."""

    filename: Text | None = Field(default=None, description="Name without a directory. Not needed for forms, which contain it.")
    media_type: Text | None = Field(default=None, description="Media type, such as text/csv. Default: application/octet-stream.")


class StoredFileResponse(ResponseModel):
    """A stored file."""

    id: str
    filename: str
    media_type: str
    size_bytes: int
    sha256: str = Field(description="SHA-256 of the content in hexadecimal.")
    created_at: datetime
    sandbox: str | None = Field(description="Id of the sandbox that the file was exported from; null for an uploaded file.")

    @classmethod
    def of(cls, record: FileRecord) -> StoredFileResponse:
        """Return the response for a stored file."""
        return cls(
            id=record.id,
            filename=record.filename,
            media_type=record.media_type,
            size_bytes=record.size_bytes,
            sha256=record.sha256,
            created_at=record.created_at,
            sandbox=record.sandbox,
        )


class StoredFilesResponse(ResponseModel):
    """A page of stored files, newest first."""

    files: list[StoredFileResponse]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class StoredFilesQuery(QueryModel):
    """Page of a list of stored files."""

    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")
    limit: int = Field(default=50, ge=1, le=1000, description="Maximum number of files of the page.")


class ImportFilesRequest(RequestModel):
    """Stored files to copy into a sandbox."""

    file_ids: Annotated[list[Text], Field(min_length=1, max_length=MAX_INJECTED, fail_fast=True, description="Ids of the stored files.")]
    path: Text = Field(default=INJECT_FOLDER, description="Target directory, which is created if it does not exist.")
    user: UserName | None = Field(default=None, description="Owner of the copies. Default: the user of the sandbox.")


class ImportFilesResponse(ResponseModel):
    """Copied files, in the order of the request."""

    entries: list[FileEntryResponse]


class ExportFileRequest(RequestModel):
    """File of a sandbox to copy into the file store."""

    path: SandboxPath = Field(description="Path in the sandbox, relative to its working directory.", examples=["/workspace/chart.png"])
    filename: Text | None = Field(default=None, description="Name in the file store. Default: the last part of the path.")
    user: UserName | None = Field(default=None, description="User whose permissions apply. Default: the user of the sandbox.")


router = APIRouter(tags=["file_store"], route_class=SandboxNameRoute)

_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}, "description": "Content of the file with its media type."},
    **PROBLEM,
}

_UPLOAD = raw_body("Content of the file, or a form with the file in its field `file`.")

_UPLOAD["requestBody"]["content"][multipart.MULTIPART] = {
    "schema": {"type": "object", "required": ["file"], "properties": {"file": {"type": "string", "format": "binary"}}}
}


@router.post("/v1/files", status_code=201, responses=documented_response(StoredFileResponse, "The stored file.", 201), openapi_extra=_UPLOAD)
@stores_request_body
async def upload(query: Annotated[UploadFileQuery, Query()], request: Request) -> Response:
    """Upload a file. An interrupted upload stores nothing."""
    principal, files = get_principal(request), get_node(request).file_store
    if multipart.is_multipart(request):
        sent = await multipart.read_upload(request)
        filename, media_type = query.filename or sent.filename, query.media_type or sent.media_type
        record = await files.upload(principal, sent.chunks, filename=filename, media_type=media_type, announced_bytes=announced_bytes(request))
        return json_response(StoredFileResponse.of(record), 201)
    if query.filename is None:
        raise InvalidRequestError(
            "`filename` is missing.", hint="Add `?filename=` with a name, or upload a form with a file.", fields={"field": "filename"}
        )
    content = iter_body(request)
    record = await files.upload(principal, content, filename=query.filename, media_type=query.media_type, announced_bytes=announced_bytes(request))
    return json_response(StoredFileResponse.of(record), 201)


@router.get("/v1/files", responses=documented_response(StoredFilesResponse, "A page of stored files, newest first."))
async def list_files(query: Annotated[StoredFilesQuery, Query()], request: Request) -> Response:
    """List stored files of the caller, newest first; operators get those of all keys."""
    page = await get_node(request).file_store.page(get_principal(request), before=pagination.decode_cursor(query.cursor), limit=query.limit)
    return json_response(
        StoredFilesResponse(files=[StoredFileResponse.of(record) for record in page.items], next_cursor=pagination.next_cursor(page))
    )


@router.get("/v1/files/{file}", responses=documented_response(StoredFileResponse, "The stored file."))
async def get(file: str, request: Request) -> Response:
    """Get a stored file."""
    return json_response(StoredFileResponse.of(await get_node(request).file_store.get(get_principal(request), file)))


@router.get("/v1/files/{file}/content", response_class=Response, responses=_BYTES)
async def download(file: str, request: Request) -> Response:
    """Download a stored file. An error during the transfer ends the response early."""
    files = get_node(request).file_store
    record = await files.get(get_principal(request), file)
    content = await files.read(get_principal(request), file)
    # A browser saves the file and never shows it as a page of this service.
    headers = {"Content-Disposition": disposition(record.filename), "X-Content-Type-Options": "nosniff"}
    response = KeepAliveStreamResponse(content, content.aclose, media_type=record.media_type, headers=headers)
    response.headers["Content-Length"] = str(record.size_bytes)
    response.headers["Content-Type"] = record.media_type  # without a charset, because the encoding of a text is unknown
    return response


@router.delete("/v1/files/{file}", status_code=204, responses=PROBLEM)
async def delete(file: str, request: Request) -> Response:
    """Delete a stored file. Copies in sandboxes stay."""
    await get_node(request).file_store.delete(get_principal(request), file)
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox}/files/import", responses=documented_response(ImportFilesResponse, "The copied files."))
async def import_files(sandbox: str, body: ImportFilesRequest, request: Request) -> Response:
    """Copy stored files into a sandbox under their names. Existing files are replaced."""
    entries = await get_node(request).file_store.inject(get_principal(request), sandbox, body.file_ids, body.path, user=parse_user(body.user))
    return json_response(ImportFilesResponse(entries=[FileEntryResponse.of(entry) for entry in entries]))


@router.post("/v1/sandboxes/{sandbox}/files/export", status_code=201, responses=documented_response(StoredFileResponse, "The stored file.", 201))
async def export_file(sandbox: str, body: ExportFileRequest, request: Request) -> Response:
    """Copy a file of a sandbox into the file store, where it outlives the sandbox."""
    work = get_node(request).file_store.keep(get_principal(request), sandbox, body.path, filename=body.filename, user=parse_user(body.user))
    return json_response(StoredFileResponse.of(await cancel_on_disconnect(request, work)), 201)


def disposition(filename: str) -> str:
    """Return the Content-Disposition header of a download (RFC 6266), with the exact name and an ASCII form for old clients."""
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\%;' else "_" for char in filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"
