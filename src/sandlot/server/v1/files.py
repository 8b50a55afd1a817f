"""Files of a sandbox: content, directories, archives and signed URLs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.errors import ErrorCode, SandlotError
from sandlot.model.files import Download, Entry, Unpacked
from sandlot.model.signed_urls import DEFAULT_URL_LIFETIME_S, Grant
from sandlot.model.specs import User
from sandlot.server.v1.common import PROBLEM, SandboxPath, UserName, documented_response, parse_user, raw_body
from sandlot.web import ranges, streaming
from sandlot.web.auth import OWNER, SIGNED_PATH
from sandlot.web.body_limits import streams_request_body
from sandlot.web.dependencies import SandboxNameRoute, cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, json_response
from sandlot.web.streaming import KeepAliveStreamResponse

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ABSENT = frozenset({ErrorCode.PATH_NOT_FOUND, ErrorCode.PATH_NOT_DIRECTORY, ErrorCode.PATH_LINK_LOOP})
"""Codes of a path that does not exist, as os.path.exists() defines it."""


class FileEntryResponse(ResponseModel):
    """Type, size and owner of a path."""

    name: str
    path: str
    kind: str
    size_bytes: int
    mode: int
    uid: int
    gid: int
    modified_at: datetime
    target: str | None

    @classmethod
    def of(cls, entry: Entry) -> FileEntryResponse:
        """Return the response for a file or directory."""
        return cls(
            name=entry.name,
            path=entry.path,
            kind=entry.kind,
            size_bytes=entry.size,
            mode=entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            modified_at=_EPOCH + timedelta(microseconds=entry.modified_ns // 1000),
            target=entry.target,
        )


class DirectoryResponse(ResponseModel):
    """A page of a directory, by name."""

    entries: list[FileEntryResponse]
    more: bool = Field(description="True if the directory has more entries.")


class PathQuery(QueryModel):
    """A path in the sandbox."""

    path: SandboxPath = Field(description="Path in the sandbox, relative to its working directory.", examples=["/workspace/data.csv"])
    user: UserName | None = Field(default=None, description="User whose permissions apply. Default: the user of the sandbox.")


class ListDirectoryQuery(PathQuery):
    """Directory and page."""

    offset: int = Field(default=0, description="Number of entries to skip; a page has up to 1,000.")


class StatQuery(PathQuery):
    """Path whose type and size are read."""

    follow: bool = Field(default=True, description="Follow a symbolic link at the end of the path.")


class ReadFileQuery(PathQuery):
    """File or part of a file to read."""

    offset: int = Field(default=0, description="Offset of the first byte.")
    length: int | None = Field(default=None, description="Maximum number of bytes. Default: to the end of the file.")


class WriteFileQuery(PathQuery):
    """File to write."""

    mode: int | None = Field(default=None, description="Permission bits as a decimal number.")
    append: bool = Field(default=False, description="Append to the file instead of replacing it.")
    in_place: bool = Field(
        default=False,
        description="Write into an existing file instead of replacing it: its inode, owner and mode stay, and `mode` is ignored. Not with `append`. "
        "A file with several hard links is always written in place, and gets `mode`.",
    )
    parents: bool = Field(default=True, description="Create missing parent directories.")


class DeleteFileQuery(PathQuery):
    """File or directory to delete."""

    recursive: bool = Field(default=False, description="Delete a directory with its content.")


class CreateDirectoryRequest(RequestModel):
    """Options of a new directory."""

    path: SandboxPath = Field(description="Path in the sandbox, relative to its working directory.", examples=["/workspace/out"])
    parents: bool = Field(default=True, description="Create missing parent directories, and accept an existing directory.")
    mode: int | None = Field(default=None, description="Permission bits as a decimal number.")
    user: UserName | None = Field(default=None, description="User whose permissions apply. Default: the user of the sandbox.")


class MoveFileRequest(RequestModel):
    """Old and new path."""

    path: SandboxPath = Field(description="Path in the sandbox, relative to its working directory.", examples=["/workspace/out"])
    to: SandboxPath = Field(description="New path.", examples=["/workspace/results"])
    overwrite: bool = Field(default=False, description="Replace an existing file.")
    user: UserName | None = Field(default=None, description="User whose permissions apply. Default: the user of the sandbox.")


class DeleteFileResponse(ResponseModel):
    """Result of a deletion."""

    removed: int = Field(description="Number of deleted files and directories.")


class PathExistsResponse(ResponseModel):
    """Existence of a path."""

    exists: bool


class DownloadArchiveQuery(PathQuery):
    """Directory or file to pack."""

    format: Literal["tar", "tar.gz"] = Field(default="tar", description="Plain archive, or an archive compressed by gzip.")


class UploadArchiveResponse(ResponseModel):
    """Content of an unpacked archive."""

    files: int
    directories: int = Field(description="Number of directories that the archive names.")
    links: int = Field(description="Number of symbolic and hard links.")
    size_bytes: int = Field(description="Size of all files together.")
    skipped_links: list[str] = Field(description="The first 100 symbolic links that were skipped because they may lead out of the directory.")

    @classmethod
    def of(cls, unpacked: Unpacked) -> UploadArchiveResponse:
        """Return the response for an archive that was unpacked."""
        return cls(
            files=unpacked.files,
            directories=unpacked.folders,
            links=unpacked.links,
            size_bytes=unpacked.size_bytes,
            skipped_links=list(unpacked.skipped_links),
        )


class CreateSignedUrlRequest(RequestModel):
    """Options of a signed URL."""

    path: SandboxPath = Field(description="Path in the sandbox, relative to its working directory.", examples=["/workspace/report.pdf"])
    method: Literal["GET", "PUT"] = Field(default="GET", description="`GET` reads the file, `PUT` writes it.")
    expires_in: float = Field(default=DEFAULT_URL_LIFETIME_S, description="Seconds for which the URL is valid, 1 to 604,800.")
    user: UserName | None = Field(default=None, description="User whose permissions apply. Default: the user of the sandbox.")


class SignedUrlResponse(ResponseModel):
    """A URL that works without a key."""

    url: str = Field(description="Absolute URL; a path if the request came over the unix socket.")
    method: str
    expires_at: datetime


class SignedUrlQuery(QueryModel):
    """Signed parameters. All are required, and none can be changed."""

    sandbox: str = Field(description="Id of the sandbox.")
    path: SandboxPath = Field(description="Path of the file, relative to the working directory of the sandbox.")
    user: UserName = Field(description="User whose permissions apply.")
    key: str = Field(description="Id of the key that created the URL.")
    expires: int = Field(description="End of validity in seconds since 1970 (UTC).")
    signature: str = Field(description="Signature of the other parameters.")


router = APIRouter(tags=["files"], route_class=SandboxNameRoute)
TAR, GZIP = "application/x-tar", "application/gzip"
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ARCHIVE: dict[int | str, dict[str, Any]] = {200: {"content": {TAR: _BINARY, GZIP: _BINARY}, "description": "The archive."}, **PROBLEM}

CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}, "description": "Content of the file."},
    206: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "description": "The requested range.",
    },
    **PROBLEM,
}


@router.get("/v1/sandboxes/{sandbox}/files/content", response_class=Response, responses=CONTENT)
async def read(sandbox: str, query: Annotated[ReadFileQuery, Query()], request: Request) -> Response:
    """Read a file or a part of it, by `offset` and `length` or by `Range`. An error during the transfer ends the response early."""
    user = parse_user(query.user)
    if not query.offset and query.length is None and (part := await range_response(request, sandbox, query.path, user)) is not None:
        return part
    files, principal = get_node(request).files, get_principal(request)
    return content_response(await files.read(principal, sandbox, query.path, offset=query.offset, length=query.length, user=user))


@router.put(
    "/v1/sandboxes/{sandbox}/files/content",
    responses=documented_response(FileEntryResponse, "The written file."),
    openapi_extra=raw_body("Content of the file."),
)
@streams_request_body
async def write(sandbox: str, query: Annotated[WriteFileQuery, Query()], request: Request) -> Response:
    """Write a file. An interrupted upload does not change an existing file, except with `append`, `in_place` or hard links: a part is written."""
    work = get_node(request).files.write(
        get_principal(request),
        sandbox,
        query.path,
        iter_body(request),
        mode=query.mode,
        parents=query.parents,
        append=query.append,
        in_place=query.in_place,
        user=parse_user(query.user),
    )
    return json_response(FileEntryResponse.of(await cancel_on_hangup(request, work)))


@router.get("/v1/sandboxes/{sandbox}/files", responses=documented_response(DirectoryResponse, "Up to 1,000 entries, by name."))
async def list_directory(sandbox: str, query: Annotated[ListDirectoryQuery, Query()], request: Request) -> Response:
    """List a directory."""
    listing = await get_node(request).files.list(get_principal(request), sandbox, query.path, offset=query.offset, user=parse_user(query.user))
    return json_response(DirectoryResponse(entries=[FileEntryResponse.of(entry) for entry in listing.entries], more=listing.more))


@router.get("/v1/sandboxes/{sandbox}/files/exists", responses=documented_response(PathExistsResponse, "Existence of the path."))
async def exists(sandbox: str, query: Annotated[StatQuery, Query()], request: Request) -> Response:
    """Check whether a path exists."""
    try:
        await get_node(request).files.stat(get_principal(request), sandbox, query.path, follow=query.follow, user=parse_user(query.user))
    except SandlotError as error:
        if error.code not in _ABSENT:
            raise
        return json_response(PathExistsResponse(exists=False))
    return json_response(PathExistsResponse(exists=True))


@router.get("/v1/sandboxes/{sandbox}/files/stat", responses=documented_response(FileEntryResponse, "The entry."))
async def stat(sandbox: str, query: Annotated[StatQuery, Query()], request: Request) -> Response:
    """Get type, size, mode and owner of a path."""
    entry = await get_node(request).files.stat(get_principal(request), sandbox, query.path, follow=query.follow, user=parse_user(query.user))
    return json_response(FileEntryResponse.of(entry))


@router.get("/v1/sandboxes/{sandbox}/files/realpath", responses=documented_response(FileEntryResponse, "The entry, with the resolved path."))
async def realpath(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Resolve all symbolic links of a path. The path must exist."""
    entry = await get_node(request).files.resolve(get_principal(request), sandbox, query.path, user=parse_user(query.user))
    return json_response(FileEntryResponse.of(entry))


@router.post("/v1/sandboxes/{sandbox}/files/directories", responses=documented_response(FileEntryResponse, "The directory."))
async def create_directory(sandbox: str, body: CreateDirectoryRequest, request: Request) -> Response:
    """Create a directory."""
    files, principal = get_node(request).files, get_principal(request)
    entry = await files.make_directory(principal, sandbox, body.path, parents=body.parents, mode=body.mode, user=parse_user(body.user))
    return json_response(FileEntryResponse.of(entry))


@router.post("/v1/sandboxes/{sandbox}/files/move", responses=documented_response(FileEntryResponse, "The entry at its new path."))
async def move(sandbox: str, body: MoveFileRequest, request: Request) -> Response:
    """Move or rename a file or directory."""
    files, principal = get_node(request).files, get_principal(request)
    return json_response(
        FileEntryResponse.of(await files.move(principal, sandbox, body.path, body.to, overwrite=body.overwrite, user=parse_user(body.user)))
    )


@router.delete("/v1/sandboxes/{sandbox}/files", responses=documented_response(DeleteFileResponse, "Number of deleted entries."))
async def delete(sandbox: str, query: Annotated[DeleteFileQuery, Query()], request: Request) -> Response:
    """Delete a file, or a directory with `recursive`."""
    files, principal = get_node(request).files, get_principal(request)
    return json_response(
        DeleteFileResponse(removed=await files.delete(principal, sandbox, query.path, recursive=query.recursive, user=parse_user(query.user)))
    )


@router.get("/v1/sandboxes/{sandbox}/files/archive", response_class=Response, responses=_ARCHIVE)
async def download_archive(sandbox: str, query: Annotated[DownloadArchiveQuery, Query()], request: Request) -> Response:
    """Download a directory or file as a tar archive with relative names. An error during the transfer ends the archive early."""
    compress = query.format == "tar.gz"
    packing = get_node(request).files.pack(get_principal(request), sandbox, query.path, compress=compress, user=parse_user(query.user))
    packed = await cancel_on_disconnect(request, packing)
    return streaming.KeepAliveStreamResponse(packed, packed.aclose, media_type=GZIP if compress else TAR)


@router.post(
    "/v1/sandboxes/{sandbox}/files/archive",
    responses=documented_response(UploadArchiveResponse, "Content of the archive."),
    openapi_extra=raw_body("Tar archive, plain or compressed by gzip.", TAR),
)
@streams_request_body
async def upload_archive(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Unpack a tar archive in a directory, which is created if it does not exist. Links that lead out are skipped. Files before an error stay."""
    work = get_node(request).files.unpack(get_principal(request), sandbox, query.path, iter_body(request), user=parse_user(query.user))
    return json_response(UploadArchiveResponse.of(await cancel_on_hangup(request, work)))


@router.post("/v1/sandboxes/{sandbox}/files/signed-urls", responses=documented_response(SignedUrlResponse, "The signed URL."))
async def create_signed_url(sandbox: str, body: CreateSignedUrlRequest, request: Request) -> Response:
    """Create a temporary URL for reading or writing one file without a key. It becomes invalid with the key that created it."""
    grant = Grant(body.method, sandbox, body.path, parse_user(body.user), body.expires_in)
    signed = get_node(request).tokens.sign_url(get_principal(request), grant)
    # The host name in a request over the unix socket is arbitrary, so the URL gets none.
    base = "" if request.scope["state"].get("peer") == OWNER else str(request.base_url).rstrip("/")
    return json_response(SignedUrlResponse(url=f"{base}{SIGNED_PATH}?{signed.query}", method=body.method, expires_at=signed.expires_at))


@router.get(SIGNED_PATH, response_class=Response, responses=CONTENT)
async def read_signed(query: Annotated[SignedUrlQuery, Query()], request: Request) -> Response:
    """Read the file of a signed URL."""
    user = User(query.user)
    # A browser must not show content of a sandbox as a page of this service.
    name = quote(query.path.rpartition("/")[2], safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}", "X-Content-Type-Options": "nosniff"}
    part = await range_response(request, query.sandbox, query.path, user, **headers)
    if part is not None:
        return part
    return content_response(await get_node(request).files.read(get_principal(request), query.sandbox, query.path, user=user), **headers)


@router.put(SIGNED_PATH, responses=documented_response(FileEntryResponse, "The written file."), openapi_extra=raw_body("Content of the file."))
@streams_request_body
async def write_signed(query: Annotated[SignedUrlQuery, Query()], request: Request) -> Response:
    """Write the file of a signed URL."""
    work = get_node(request).files.write(get_principal(request), query.sandbox, query.path, iter_body(request), user=User(query.user))
    return json_response(FileEntryResponse.of(await cancel_on_hangup(request, work)))


def content_response(download: Download, **headers: str) -> KeepAliveStreamResponse:
    """Return a response that streams a file."""
    return KeepAliveStreamResponse(download, download.aclose, media_type="application/octet-stream", headers={"Accept-Ranges": "bytes", **headers})


async def range_response(request: Request, sandbox: str, path: str, user: User | None, **headers: str) -> KeepAliveStreamResponse | None:
    """Return the requested range of a file; None if the whole file is requested. If the file becomes shorter, the response ends early."""
    if "range" not in request.headers:
        return None
    files, principal = get_node(request).files, get_principal(request)
    part = ranges.parse_range(request.headers["range"], (await files.stat(principal, sandbox, path, user=user)).size)
    if part is None:
        return None
    response = content_response(await files.read(principal, sandbox, path, offset=part.start, length=part.length, user=user), **headers)
    response.status_code = 206
    response.headers["Content-Range"] = part.content_range
    response.headers["Content-Length"] = str(part.length)
    return response
