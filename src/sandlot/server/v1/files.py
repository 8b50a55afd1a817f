"""Files: read, write, list, stat, make folders, move, remove."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.files import Download
from sandlot.model.specs import User
from sandlot.server.v1.common import PROBLEM, cancel_on_hangup, documented_response, get_node, get_principal, iter_body, json_response, raw_body
from sandlot.server.v1.schemas.files import (
    DirectoryBody,
    EntryAnswer,
    ListingAnswer,
    ListQuery,
    MoveBody,
    ReadQuery,
    RemovedAnswer,
    RemoveQuery,
    StatQuery,
    WriteQuery,
)
from sandlot.server.v1.schemas.trees import ExistsAnswer
from sandlot.web import ranges
from sandlot.web.streaming import KeepAliveStreamResponse

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/files", tags=["files"])


CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}, "description": "Its bytes."},
    206: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "description": "The range that was asked for.",
    },
    **PROBLEM,
}


@router.get("/content", response_class=Response, responses=CONTENT)
async def read(sandbox: str, query: Annotated[ReadQuery, Query()], request: Request) -> Response:
    """Read a file, or a part of it by offset and length, or by 'Range: bytes=...'. An answer that breaks off was cut by an error."""
    user = User(query.user)
    if not query.offset and query.length is None and (part := await part_of(request, sandbox, query.path, user)) is not None:
        return part
    files, principal = get_node(request).files, get_principal(request)
    return streamed(await files.read(principal, sandbox, query.path, offset=query.offset, length=query.length, user=user))


@router.put("/content", responses=documented_response(EntryAnswer, "It was written."), openapi_extra=raw_body("The file's content."))
async def write(sandbox: str, query: Annotated[WriteQuery, Query()], request: Request) -> Response:
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
    return json_response(EntryAnswer.of(await cancel_on_hangup(request, work)))


@router.get("", responses=documented_response(ListingAnswer, "By name, at most 1,000 entries."))
async def list_directory(sandbox: str, query: Annotated[ListQuery, Query()], request: Request) -> Response:
    """List a folder."""
    listing = await get_node(request).files.list(get_principal(request), sandbox, query.path, offset=query.offset, user=User(query.user))
    return json_response(ListingAnswer(entries=[EntryAnswer.of(entry) for entry in listing.entries], more=listing.more))


@router.get("/exists", responses=documented_response(ExistsAnswer, "Whether there is."))
async def exists(sandbox: str, query: Annotated[StatQuery, Query()], request: Request) -> Response:
    """Whether there is something at a path."""
    try:
        await get_node(request).files.stat(get_principal(request), sandbox, query.path, follow=query.follow, user=User(query.user))
    except NotFoundError as error:
        if error.code is not ErrorCode.PATH_NOT_FOUND:
            raise
        return json_response(ExistsAnswer(exists=False))
    return json_response(ExistsAnswer(exists=True))


@router.get("/stat", responses=documented_response(EntryAnswer, "What is there."))
async def stat(sandbox: str, query: Annotated[StatQuery, Query()], request: Request) -> Response:
    """Look at a path."""
    entry = await get_node(request).files.stat(get_principal(request), sandbox, query.path, follow=query.follow, user=User(query.user))
    return json_response(EntryAnswer.of(entry))


@router.post("/directories", responses=documented_response(EntryAnswer, "It is there."))
async def make_directory(sandbox: str, body: DirectoryBody, request: Request) -> Response:
    """Make a folder."""
    files, principal = get_node(request).files, get_principal(request)
    entry = await files.make_directory(principal, sandbox, body.path, parents=body.parents, mode=body.mode, user=User(body.user))
    return json_response(EntryAnswer.of(entry))


@router.post("/move", responses=documented_response(EntryAnswer, "At its new place."))
async def move(sandbox: str, body: MoveBody, request: Request) -> Response:
    """Move or rename."""
    files, principal = get_node(request).files, get_principal(request)
    return json_response(EntryAnswer.of(await files.move(principal, sandbox, body.path, body.to, overwrite=body.overwrite, user=User(body.user))))


@router.delete("", responses=documented_response(RemovedAnswer, "They are gone."))
async def remove(sandbox: str, query: Annotated[RemoveQuery, Query()], request: Request) -> Response:
    """Remove a file, or with recursive=true a folder and what is in it."""
    files, principal = get_node(request).files, get_principal(request)
    return json_response(RemovedAnswer(removed=await files.delete(principal, sandbox, query.path, recursive=query.recursive, user=User(query.user))))


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
