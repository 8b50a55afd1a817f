"""Files: read, write, list, stat, make folders, move, remove."""

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
from sandlot.server.v1.common import PROBLEM, UserName, documented_response, raw_body
from sandlot.web import ranges, streaming
from sandlot.web.auth import OWNER, SIGNED_PATH
from sandlot.web.body_limits import streams_body
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response
from sandlot.web.streaming import KeepAliveStreamResponse

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ABSENT = frozenset({ErrorCode.PATH_NOT_FOUND, ErrorCode.PATH_NOT_DIRECTORY, ErrorCode.PATH_LINK_LOOP})
"""Codes of a path that does not exist, as os.path.exists() defines it."""


class FileEntryResponse(ResponseModel):
    """What is at a path."""

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
        """What is told of it."""
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
    """What is in a folder; ``more`` where it holds more than that."""

    entries: list[FileEntryResponse]
    more: bool


class PathQuery(QueryModel):
    """A path inside the sandbox."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/data.csv"])
    user: UserName = Field(default="user", description="Who it is done as.")


class ListDirectoryQuery(PathQuery):
    """A folder to list."""

    offset: int = Field(default=0, description="Names to skip; the next page is 1,000 further.")


class StatQuery(PathQuery):
    """A path to look at."""

    follow: bool = Field(default=True, description="Where it is a symbolic link: look at what it points to.")


class ReadFileQuery(PathQuery):
    """A file to read, or a part of it."""

    offset: int = Field(default=0, description="Of the first byte.")
    length: int | None = Field(default=None, description="Bytes at most; to its end where left out.")


class WriteFileQuery(PathQuery):
    """A file to write."""

    mode: int | None = Field(default=None, description="Permission bits, as a decimal number.")
    append: bool = Field(default=False, description="Add to what there is, instead of replacing it.")
    parents: bool = Field(default=True, description="Make the folders above it that are missing.")


class DeleteFileQuery(PathQuery):
    """What to remove."""

    recursive: bool = Field(default=False, description="Also a folder that is not empty.")


class CreateDirectoryRequest(RequestModel):
    """A folder to make."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/out"])
    parents: bool = Field(default=True, description="Make the folders above it that are missing; one that is there already is no error then.")
    mode: int | None = Field(default=None, description="Permission bits, as a decimal number.")
    user: UserName = Field(default="user", description="Who it is done as.")


class MoveFileRequest(RequestModel):
    """What to move where."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/out"])
    to: Text = Field(description="Its new path, likewise.", examples=["/workspace/results"])
    overwrite: bool = Field(default=False, description="Replace a file that is there.")
    user: UserName = Field(default="user", description="Who it is done as.")


class DeleteFileResponse(ResponseModel):
    """How many entries were removed."""

    removed: int


class FileExistsResponse(ResponseModel):
    """Whether there is something at a path."""

    exists: bool


class DownloadArchiveQuery(PathQuery):
    """A folder, or one file, to pack."""

    format: Literal["tar", "tar.gz"] = Field(default="tar", description="Plain, or compressed by gzip.")


class UploadArchiveResponse(ResponseModel):
    """What came of an archive."""

    files: int
    directories: int = Field(description="That the archive names.")
    links: int = Field(description="Symbolic and hard ones.")
    size_bytes: int = Field(description="Of all files together.")

    @classmethod
    def of(cls, unpacked: Unpacked) -> UploadArchiveResponse:
        """What is told of it."""
        return cls(files=unpacked.files, directories=unpacked.folders, links=unpacked.links, size_bytes=unpacked.size_bytes)


class CreateSignedUrlRequest(RequestModel):
    """What a URL is to allow."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/report.pdf"])
    method: Literal["GET", "PUT"] = Field(default="GET", description="GET reads the file, PUT writes it.")
    expires_in: float = Field(default=DEFAULT_URL_LIFETIME_S, description="Seconds that it holds, 1 to 604,800.")
    user: UserName = Field(default="user", description="Who it is done as.")


class SignedUrlResponse(ResponseModel):
    """A URL that needs no key."""

    url: str = Field(description="Absolute; of a request that came over the unix socket a path.")
    method: str
    expires_at: datetime


class SignedUrlQuery(QueryModel):
    """What was signed; each part of it is needed, and may not be changed."""

    sandbox: str = Field(description="The sandbox's id.")
    path: Text = Field(description="The file, absolute, inside the sandbox.")
    user: UserName = Field(description="Who it is done as.")
    key: str = Field(description="Whose it is.")
    expires: int = Field(description="Until when it holds; seconds since 1970, UTC.")
    signature: str = Field(description="Of all the others.")


router = APIRouter(tags=["files"], route_class=SandboxRoute)
TAR, GZIP = "application/x-tar", "application/gzip"
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ARCHIVE: dict[int | str, dict[str, Any]] = {200: {"content": {TAR: _BINARY, GZIP: _BINARY}, "description": "The archive."}, **PROBLEM}

CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}, "description": "Its bytes."},
    206: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "description": "The range that was asked for.",
    },
    **PROBLEM,
}


@router.get("/v1/sandboxes/{sandbox}/files/content", response_class=Response, responses=CONTENT)
async def read(sandbox: str, query: Annotated[ReadFileQuery, Query()], request: Request) -> Response:
    """Read a file, or a part of it by offset and length, or by 'Range: bytes=...'. An answer that breaks off was cut by an error."""
    user = User(query.user)
    if not query.offset and query.length is None and (part := await part_of(request, sandbox, query.path, user)) is not None:
        return part
    files, principal = get_node(request).files, get_principal(request)
    return streamed(await files.read(principal, sandbox, query.path, offset=query.offset, length=query.length, user=user))


@router.put(
    "/v1/sandboxes/{sandbox}/files/content",
    responses=documented_response(FileEntryResponse, "It was written."),
    openapi_extra=raw_body("The file's content."),
)
@streams_body
async def write(sandbox: str, query: Annotated[WriteFileQuery, Query()], request: Request) -> Response:
    """Write a file; the body is its content. Where the upload breaks off, the old file stays."""
    work = get_node(request).files.write(
        get_principal(request),
        sandbox,
        query.path,
        iter_body(request),
        mode=query.mode,
        parents=query.parents,
        append=query.append,
        user=User(query.user),
    )
    return json_response(FileEntryResponse.of(await cancel_on_hangup(request, work)))


@router.get("/v1/sandboxes/{sandbox}/files", responses=documented_response(DirectoryResponse, "By name, at most 1,000 entries."))
async def list_directory(sandbox: str, query: Annotated[ListDirectoryQuery, Query()], request: Request) -> Response:
    """List a folder."""
    listing = await get_node(request).files.list(get_principal(request), sandbox, query.path, offset=query.offset, user=User(query.user))
    return json_response(DirectoryResponse(entries=[FileEntryResponse.of(entry) for entry in listing.entries], more=listing.more))


@router.get("/v1/sandboxes/{sandbox}/files/exists", responses=documented_response(FileExistsResponse, "Whether there is."))
async def exists(sandbox: str, query: Annotated[StatQuery, Query()], request: Request) -> Response:
    """Whether there is something at a path."""
    try:
        await get_node(request).files.stat(get_principal(request), sandbox, query.path, follow=query.follow, user=User(query.user))
    except SandlotError as error:
        if error.code not in _ABSENT:
            raise
        return json_response(FileExistsResponse(exists=False))
    return json_response(FileExistsResponse(exists=True))


@router.get("/v1/sandboxes/{sandbox}/files/stat", responses=documented_response(FileEntryResponse, "What is there."))
async def stat(sandbox: str, query: Annotated[StatQuery, Query()], request: Request) -> Response:
    """Look at a path."""
    entry = await get_node(request).files.stat(get_principal(request), sandbox, query.path, follow=query.follow, user=User(query.user))
    return json_response(FileEntryResponse.of(entry))


@router.post("/v1/sandboxes/{sandbox}/files/directories", responses=documented_response(FileEntryResponse, "It is there."))
async def create_directory(sandbox: str, body: CreateDirectoryRequest, request: Request) -> Response:
    """Make a folder."""
    files, principal = get_node(request).files, get_principal(request)
    entry = await files.make_directory(principal, sandbox, body.path, parents=body.parents, mode=body.mode, user=User(body.user))
    return json_response(FileEntryResponse.of(entry))


@router.post("/v1/sandboxes/{sandbox}/files/move", responses=documented_response(FileEntryResponse, "At its new place."))
async def move(sandbox: str, body: MoveFileRequest, request: Request) -> Response:
    """Move or rename."""
    files, principal = get_node(request).files, get_principal(request)
    return json_response(
        FileEntryResponse.of(await files.move(principal, sandbox, body.path, body.to, overwrite=body.overwrite, user=User(body.user)))
    )


@router.delete("/v1/sandboxes/{sandbox}/files", responses=documented_response(DeleteFileResponse, "They are gone."))
async def delete(sandbox: str, query: Annotated[DeleteFileQuery, Query()], request: Request) -> Response:
    """Remove a file, or with recursive=true a folder and what is in it."""
    files, principal = get_node(request).files, get_principal(request)
    return json_response(
        DeleteFileResponse(removed=await files.delete(principal, sandbox, query.path, recursive=query.recursive, user=User(query.user)))
    )


@router.get("/v1/sandboxes/{sandbox}/files/archive", response_class=Response, responses=_ARCHIVE)
async def download_archive(sandbox: str, query: Annotated[DownloadArchiveQuery, Query()], request: Request) -> Response:
    """Read a folder as a tar archive, its names relative to it; or one file. An answer that breaks off before its end was cut by an error."""
    compress = query.format == "tar.gz"
    packing = get_node(request).files.pack(get_principal(request), sandbox, query.path, compress=compress, user=User(query.user))
    packed = await cancel_on_disconnect(request, packing)
    return streaming.KeepAliveStreamResponse(packed, packed.aclose, media_type=GZIP if compress else TAR)


@router.post(
    "/v1/sandboxes/{sandbox}/files/archive",
    responses=documented_response(UploadArchiveResponse, "It was unpacked."),
    openapi_extra=raw_body("A tar archive, plain or compressed by gzip.", TAR),
)
@streams_body
async def upload_archive(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Unpack a tar archive in a folder, which is made where it is not there. Where it breaks off, what came before stays."""
    work = get_node(request).files.unpack(get_principal(request), sandbox, query.path, iter_body(request), user=User(query.user))
    return json_response(UploadArchiveResponse.of(await cancel_on_hangup(request, work)))


@router.post("/v1/sandboxes/{sandbox}/files/signed-urls", responses=documented_response(SignedUrlResponse, "It holds from now on."))
async def create_signed_url(sandbox: str, body: CreateSignedUrlRequest, request: Request) -> Response:
    """Make a URL by which anybody can read, or write, one file for a while. It ends with the API key that made it."""
    grant = Grant(body.method, sandbox, body.path, User(body.user), body.expires_in)
    signed = get_node(request).tokens.sign_url(get_principal(request), grant)
    # Whoever came over the unix socket has no address that would mean anything elsewhere.
    base = "" if request.scope["state"].get("peer") == OWNER else str(request.base_url).rstrip("/")
    return json_response(SignedUrlResponse(url=f"{base}{SIGNED_PATH}?{signed.query}", method=body.method, expires_at=signed.expires_at))


@router.get(SIGNED_PATH, response_class=Response, responses=CONTENT)
async def read_signed(query: Annotated[SignedUrlQuery, Query()], request: Request) -> Response:
    """Read the file that a URL was signed for."""
    user = User(query.user)
    # A browser must not take what a sandbox wrote for a page of this service.
    name = quote(query.path.rpartition("/")[2], safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}", "X-Content-Type-Options": "nosniff"}
    part = await part_of(request, query.sandbox, query.path, user, **headers)
    if part is not None:
        return part
    return streamed(await get_node(request).files.read(get_principal(request), query.sandbox, query.path, user=user), **headers)


@router.put(SIGNED_PATH, responses=documented_response(FileEntryResponse, "It was written."), openapi_extra=raw_body("The file's content."))
@streams_body
async def write_signed(query: Annotated[SignedUrlQuery, Query()], request: Request) -> Response:
    """Write the file that a URL was signed for; the body is its content."""
    work = get_node(request).files.write(get_principal(request), query.sandbox, query.path, iter_body(request), user=User(query.user))
    return json_response(FileEntryResponse.of(await cancel_on_hangup(request, work)))


def streamed(download: Download, **headers: str) -> KeepAliveStreamResponse:
    """A file's content as an answer."""
    return KeepAliveStreamResponse(download, download.aclose, media_type="application/octet-stream", headers={"Accept-Ranges": "bytes", **headers})


async def part_of(request: Request, sandbox: str, path: str, user: User, **headers: str) -> KeepAliveStreamResponse | None:
    """The range of a file that was asked for, None where the whole is; a file that has become shorter meanwhile cuts the answer."""
    if "range" not in request.headers:
        return None
    files, principal = get_node(request).files, get_principal(request)
    part = ranges.parse_range(request.headers["range"], (await files.stat(principal, sandbox, path, user=user)).size)
    if part is None:
        return None
    answer = streamed(await files.read(principal, sandbox, path, offset=part.start, length=part.length, user=user), **headers)
    answer.status_code = 206
    answer.headers["Content-Range"] = part.content_range
    answer.headers["Content-Length"] = str(part.length)
    return answer
