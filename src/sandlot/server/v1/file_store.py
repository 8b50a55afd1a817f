"""The file store: upload, list, look, download, remove; into a sandbox and out of one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.errors import InvalidRequestError
from sandlot.model.files import INJECT_FOLDER, MAX_INJECTED
from sandlot.model.records import FileRecord
from sandlot.model.repositories import Position
from sandlot.model.specs import User
from sandlot.server.v1.common import PROBLEM, UserName, documented_response, raw_body
from sandlot.server.v1.files import FileEntryResponse
from sandlot.web import multipart, pagination
from sandlot.web.body_limits import streams_body
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, get_node, get_principal, iter_body
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response
from sandlot.web.streaming import KeepAliveStreamResponse


class UploadFileQuery(QueryModel):
    """What a file is, whose body is sent as it is."""

    filename: Text | None = Field(default=None, description="What it is called: one path component. Not needed where a form names it.")
    media_type: Text | None = Field(default=None, description="Such as text/csv; application/octet-stream where left out.")


class StoredFileResponse(ResponseModel):
    """A file of the file store."""

    id: str
    filename: str
    media_type: str
    size_bytes: int
    sha256: str = Field(description="Of its bytes, in hexadecimal.")
    created_at: datetime
    sandbox: str | None = Field(description="The sandbox that it came out of; null where it was uploaded.")

    @classmethod
    def of(cls, record: FileRecord) -> StoredFileResponse:
        """What is told of it."""
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
    """A page of files, newest first."""

    files: list[StoredFileResponse]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class StoredFilesQuery(QueryModel):
    """Page of the list of files."""

    cursor: Text | None = Field(default=None, description="The next_cursor of the previous page.")
    limit: int = Field(default=50, ge=1, le=1000, description="Largest number of files.")


class ImportFilesRequest(RequestModel):
    """Files to put into a sandbox."""

    file_ids: Annotated[list[Text], Field(min_length=1, max_length=MAX_INJECTED, fail_fast=True, description="Which ones.")]
    path: Text = Field(default=INJECT_FOLDER, description="The folder that they are put into; made where it is not there.")
    user: UserName = Field(default="user", description="Whose they are there.")


class ImportFilesResponse(ResponseModel):
    """Where they are now, in the order of the request."""

    entries: list[FileEntryResponse]


class ExportFileRequest(RequestModel):
    """A file of a sandbox to keep."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/chart.png"])
    filename: Text | None = Field(default=None, description="What it is called in the file store; the last part of its path where left out.")
    user: UserName = Field(default="user", description="Who it is read as.")


router = APIRouter(tags=["file_store"], route_class=SandboxRoute)

_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}, "description": "Its bytes, under its own media type."},
    **PROBLEM,
}

_UPLOAD = raw_body("The file's bytes, or a form whose field 'file' has it.")

_UPLOAD["requestBody"]["content"][multipart.MULTIPART] = {
    "schema": {"type": "object", "required": ["file"], "properties": {"file": {"type": "string", "format": "binary"}}}
}


@router.post("/v1/files", status_code=201, responses=documented_response(StoredFileResponse, "It is kept.", 201), openapi_extra=_UPLOAD)
@streams_body
async def upload(query: Annotated[UploadFileQuery, Query()], request: Request) -> Response:
    """Keep a file. Where the upload breaks off, nothing is left of it."""
    principal, files = get_principal(request), get_node(request).file_store
    if multipart.is_multipart(request):
        sent = await multipart.read_upload(request)
        filename, media_type = query.filename or sent.filename, query.media_type or sent.media_type
        return json_response(StoredFileResponse.of(await files.upload(principal, sent.chunks, filename=filename, media_type=media_type)), 201)
    if query.filename is None:
        raise InvalidRequestError(
            "The file has no name.", hint="Add ?filename=data.csv, or send a form as curl -F file=@data.csv does.", fields={"field": "filename"}
        )
    record = await files.upload(principal, iter_body(request), filename=query.filename, media_type=query.media_type)
    return json_response(StoredFileResponse.of(record), 201)


@router.get("/v1/files", responses=documented_response(StoredFilesResponse, "A page of them, newest first."))
async def list_files(query: Annotated[StoredFilesQuery, Query()], request: Request) -> Response:
    """List the files of the file store: your own; for an operator everybody's."""
    page = await get_node(request).file_store.page(get_principal(request), before=pagination.decode_cursor(query.cursor), limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(StoredFilesResponse(files=[StoredFileResponse.of(record) for record in page.items], next_cursor=following))


@router.get("/v1/files/{file}", responses=documented_response(StoredFileResponse, "It."))
async def get(file: str, request: Request) -> Response:
    """Look at a file of the file store."""
    return json_response(StoredFileResponse.of(await get_node(request).file_store.get(get_principal(request), file)))


@router.get("/v1/files/{file}/content", response_class=Response, responses=_BYTES)
async def download(file: str, request: Request) -> Response:
    """Download a file of the file store. An answer that breaks off before its end was cut by an error."""
    files = get_node(request).file_store
    record = await files.get(get_principal(request), file)
    content = await files.read(get_principal(request), file)
    # Whatever it is, a browser saves it, and does not run it as a page of this service.
    headers = {"Content-Disposition": disposition(record.filename), "X-Content-Type-Options": "nosniff"}
    answer = KeepAliveStreamResponse(content, content.aclose, media_type=record.media_type, headers=headers)
    answer.headers["Content-Length"] = str(record.size_bytes)
    answer.headers["Content-Type"] = record.media_type  # as it was given: of a text nobody knows the encoding
    return answer


@router.delete("/v1/files/{file}", status_code=204, responses=PROBLEM)
async def delete(file: str, request: Request) -> Response:
    """Remove a file from the file store; copies of it in sandboxes stay."""
    await get_node(request).file_store.delete(get_principal(request), file)
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox}/files/import", responses=documented_response(ImportFilesResponse, "They are there."))
async def import_files(sandbox: str, body: ImportFilesRequest, request: Request) -> Response:
    """Put files of the file store into a sandbox, each under its own name; one that is there already is replaced."""
    entries = await get_node(request).file_store.inject(get_principal(request), sandbox, body.file_ids, body.path, user=User(body.user))
    return json_response(ImportFilesResponse(entries=[FileEntryResponse.of(entry) for entry in entries]))


@router.post("/v1/sandboxes/{sandbox}/files/export", status_code=201, responses=documented_response(StoredFileResponse, "It is kept.", 201))
async def export_file(sandbox: str, body: ExportFileRequest, request: Request) -> Response:
    """Copy a file out of a sandbox into the file store, where it outlives the sandbox."""
    work = get_node(request).file_store.keep(get_principal(request), sandbox, body.path, filename=body.filename, user=User(body.user))
    return json_response(StoredFileResponse.of(await cancel_on_disconnect(request, work)), 201)


def disposition(filename: str) -> str:
    """The header that names a download (RFC 6266): for old readers in ASCII, for all others exactly. Pure."""
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\%;' else "_" for char in filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"
