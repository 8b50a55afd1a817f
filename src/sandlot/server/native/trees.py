"""Trees of files: packed, unpacked, watched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sandlot.core.content import archives, watching
from sandlot.core.content.watching import Watch
from sandlot.model.specs import User
from sandlot.server.native.common import PROBLEM, also, body_of, only_events, raw_body, reply, sandbox_of, unless_gone, while_connected
from sandlot.server.native.schemas.files import PathQuery
from sandlot.server.native.schemas.trees import FileEvent, GoneEvent, MovedEvent, OverflowEvent, PackQuery, UnpackedAnswer, WatchingEvent, WatchQuery
from sandlot.web import streams

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/files", tags=["files"])

TAR, GZIP = "application/x-tar", "application/gzip"
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ARCHIVE: dict[int | str, dict[str, Any]] = {200: {"content": {TAR: _BINARY, GZIP: _BINARY}, "description": "The archive."}, **PROBLEM}


@router.get("/archive", response_class=Response, responses=_ARCHIVE)
async def pack(sandbox: str, query: Annotated[PackQuery, Query()], request: Request) -> Response:
    """Read a folder as a tar archive, its names relative to it; or one file. An answer that breaks off before its end was cut by an error."""
    compress = query.format == "tar.gz"
    packing = archives.pack(sandbox_of(request, sandbox), query.path, user=User(query.user), compress=compress)
    packed = await unless_gone(request, packing)
    return streams.Stream(aiter(packed), packed.aclose, media_type=GZIP if compress else TAR)


@router.post(
    "/archive", responses=also(UnpackedAnswer, "It was unpacked."), openapi_extra=raw_body("A tar archive, plain or compressed by gzip.", TAR)
)
async def unpack(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Unpack a tar archive in a folder, which is made where it is not there. Where it breaks off, what came before stays."""
    work = archives.unpack(sandbox_of(request, sandbox), query.path, body_of(request), user=User(query.user))
    return reply(UnpackedAnswer.of(await while_connected(request, work)))


@router.get(
    "/watch", response_class=Response, responses=only_events("watch", "What happens in the folder, from the first event on, until it is gone.")
)
async def watch(sandbox: str, query: Annotated[WatchQuery, Query()], request: Request) -> Response:
    """Watch a folder."""
    beginning = watching.watch(sandbox_of(request, sandbox), query.path, user=User(query.user), recursive=query.recursive)
    watched = await unless_gone(request, beginning)
    return streams.events(request, _told(watched, query), watched.aclose)


async def _told(watched: Watch, query: WatchQuery) -> AsyncIterator[streams.Event]:
    begun = {"path": query.path, "recursive": query.recursive, "by": watched.by}
    yield streams.event("watching", WatchingEvent.model_validate(begun).model_dump())
    async for event in watched:
        match event.kind:
            case watching.GONE:
                told = GoneEvent(path=event.path).model_dump()
            case watching.OVERFLOW:
                told = OverflowEvent().model_dump()
            case watching.MOVED:
                told = MovedEvent.of(event).model_dump()
            case _:
                told = FileEvent.of(event).model_dump()
        yield streams.event(event.kind, told)
