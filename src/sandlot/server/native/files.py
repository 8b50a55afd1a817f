"""Files: read, write, list, stat, make folders, move, remove."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sandlot.core.files import files
from sandlot.core.files.files import FileDownload
from sandlot.core.sandbox import Sandbox
from sandlot.model.specs import User
from sandlot.server.native.common import PROBLEM, also, body_of, raw_body, reply, sandbox_of, while_connected
from sandlot.server.native.schemas.files import (
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
from sandlot.server.native.schemas.trees import ExistsAnswer
from sandlot.web import ranges
from sandlot.web.streams import Stream

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
    box = sandbox_of(request, sandbox)
    if not query.offset and query.length is None and (part := await part_of(request, box, query.path, User(query.user))) is not None:
        return part
    return streamed(await files.read(box, query.path, user=User(query.user), offset=query.offset, length=query.length))


@router.put("/content", responses=also(EntryAnswer, "It was written."), openapi_extra=raw_body("The file's content."))
async def write(sandbox: str, query: Annotated[WriteQuery, Query()], request: Request) -> Response:
    """Write a file; the body is its content. Where the upload breaks off, the old file stays."""
    box = sandbox_of(request, sandbox)
    work = files.write(box, query.path, body_of(request), user=User(query.user), mode=query.mode, parents=query.parents, append=query.append)
    return reply(EntryAnswer.of(await while_connected(request, work)))


@router.get("", responses=also(ListingAnswer, "By name, at most 1,000 entries."))
async def list_directory(sandbox: str, query: Annotated[ListQuery, Query()], request: Request) -> Response:
    """List a folder."""
    listing = await files.listing(sandbox_of(request, sandbox), query.path, user=User(query.user), offset=query.offset)
    return reply(ListingAnswer(entries=[EntryAnswer.of(entry) for entry in listing.entries], more=listing.more))


@router.get("/exists", responses=also(ExistsAnswer, "Whether there is."))
async def exists(sandbox: str, query: Annotated[StatQuery, Query()], request: Request) -> Response:
    """Whether there is something at a path."""
    box = sandbox_of(request, sandbox)
    return reply(ExistsAnswer(exists=await files.exists(box, query.path, user=User(query.user), follow=query.follow)))


@router.get("/stat", responses=also(EntryAnswer, "What is there."))
async def stat(sandbox: str, query: Annotated[StatQuery, Query()], request: Request) -> Response:
    """Look at a path."""
    return reply(EntryAnswer.of(await files.stat(sandbox_of(request, sandbox), query.path, user=User(query.user), follow=query.follow)))


@router.post("/directories", responses=also(EntryAnswer, "It is there."))
async def make_directory(sandbox: str, body: DirectoryBody, request: Request) -> Response:
    """Make a folder."""
    box = sandbox_of(request, sandbox)
    return reply(EntryAnswer.of(await files.make_directory(box, body.path, user=User(body.user), parents=body.parents, mode=body.mode)))


@router.post("/move", responses=also(EntryAnswer, "At its new place."))
async def move(sandbox: str, body: MoveBody, request: Request) -> Response:
    """Move or rename."""
    box = sandbox_of(request, sandbox)
    return reply(EntryAnswer.of(await files.move(box, body.path, body.to, user=User(body.user), overwrite=body.overwrite)))


@router.delete("", responses=also(RemovedAnswer, "They are gone."))
async def remove(sandbox: str, query: Annotated[RemoveQuery, Query()], request: Request) -> Response:
    """Remove a file, or with recursive=true a folder and what is in it."""
    box = sandbox_of(request, sandbox)
    return reply(RemovedAnswer(removed=await files.remove(box, query.path, user=User(query.user), recursive=query.recursive)))


def streamed(reading: FileDownload, **headers: str) -> Stream:
    """A file's content as an answer."""

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in reading:
            yield piece

    return Stream(pieces(), reading.aclose, media_type="application/octet-stream", headers={"Accept-Ranges": "bytes", **headers})


async def part_of(request: Request, sandbox: Sandbox, path: str, user: User, **headers: str) -> Stream | None:
    """The range of a file that was asked for, None where the whole is; a file that has become shorter meanwhile cuts the answer."""
    if "range" not in request.headers:
        return None
    part = ranges.wanted(request.headers["range"], (await files.stat(sandbox, path, user=user)).size)
    if part is None:
        return None
    answer = streamed(await files.read(sandbox, path, user=user, offset=part.start, length=part.length), **headers)
    answer.status_code = 206
    answer.headers["Content-Range"] = part.said
    answer.headers["Content-Length"] = str(part.length)
    return answer
