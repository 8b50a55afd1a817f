"""Trees of files: packed, unpacked, watched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sandlot.model.files import FileEventKind, FolderWatch
from sandlot.model.specs import User
from sandlot.server.v1.common import (
    PROBLEM,
    cancel_on_disconnect,
    cancel_on_hangup,
    documented_response,
    get_node,
    get_principal,
    iter_body,
    json_response,
    only_events,
    raw_body,
)
from sandlot.server.v1.schemas.files import PathQuery
from sandlot.server.v1.schemas.trees import (
    FileEvent,
    GoneEvent,
    HappenedAnswer,
    HappenedEventAnswer,
    MovedEvent,
    OverflowEvent,
    PackQuery,
    UnpackedAnswer,
    WatcherAnswer,
    WatcherBody,
    WatchersAnswer,
    WatchingEvent,
    WatchQuery,
)
from sandlot.web import streaming

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/files", tags=["files"])

TAR, GZIP = "application/x-tar", "application/gzip"
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ARCHIVE: dict[int | str, dict[str, Any]] = {200: {"content": {TAR: _BINARY, GZIP: _BINARY}, "description": "The archive."}, **PROBLEM}


@router.get("/archive", response_class=Response, responses=_ARCHIVE)
async def pack(sandbox: str, query: Annotated[PackQuery, Query()], request: Request) -> Response:
    """Read a folder as a tar archive, its names relative to it; or one file. An answer that breaks off before its end was cut by an error."""
    compress = query.format == "tar.gz"
    packing = get_node(request).files.pack(get_principal(request), sandbox, query.path, compress=compress, user=User(query.user))
    packed = await cancel_on_disconnect(request, packing)
    return streaming.KeepAliveStreamResponse(packed, packed.aclose, media_type=GZIP if compress else TAR)


@router.post(
    "/archive",
    responses=documented_response(UnpackedAnswer, "It was unpacked."),
    openapi_extra=raw_body("A tar archive, plain or compressed by gzip.", TAR),
)
async def unpack(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Unpack a tar archive in a folder, which is made where it is not there. Where it breaks off, what came before stays."""
    work = get_node(request).files.unpack(get_principal(request), sandbox, query.path, iter_body(request), user=User(query.user))
    return json_response(UnpackedAnswer.of(await cancel_on_hangup(request, work)))


@router.get(
    "/watch", response_class=Response, responses=only_events("watch", "What happens in the folder, from the first event on, until it is gone.")
)
async def watch(sandbox: str, query: Annotated[WatchQuery, Query()], request: Request) -> Response:
    """Watch a folder."""
    beginning = get_node(request).watches.watch(get_principal(request), sandbox, query.path, recursive=query.recursive, user=User(query.user))
    watched = await cancel_on_disconnect(request, beginning)
    return streaming.event_response(request, _told(watched, query), watched.aclose)


@router.post("/watchers", status_code=201, responses=documented_response(WatcherAnswer, "It is watched.", 201))
async def create_watcher(sandbox: str, body: WatcherBody, request: Request) -> Response:
    """Watch a folder for whoever asks later: what happens is kept, 4,096 events of it, until it is asked for."""
    making = get_node(request).watches.create(get_principal(request), sandbox, body.path, recursive=body.recursive, user=User(body.user))
    return json_response(WatcherAnswer.of(await cancel_on_disconnect(request, making)), 201)


@router.get("/watchers", responses=documented_response(WatchersAnswer, "Those that were not removed."))
async def list_watchers(sandbox: str, request: Request) -> Response:
    """List the watchers of a sandbox."""
    watches = await get_node(request).watches.list(get_principal(request), sandbox)
    return json_response(WatchersAnswer(watchers=[WatcherAnswer.of(each) for each in watches]))


@router.post("/watchers/{watcher}/events", responses=documented_response(HappenedAnswer, "What has happened since the last time."))
async def take_watcher_events(sandbox: str, watcher: str, request: Request) -> Response:
    """Take what has happened in a watched folder, oldest first; it is told once. After `gone` there is no such watcher any more."""
    happened = await get_node(request).watches.take(get_principal(request), sandbox, watcher)
    return json_response(HappenedAnswer(events=[HappenedEventAnswer.of(event) for event in happened]))


@router.delete("/watchers/{watcher}", status_code=204, responses=PROBLEM)
async def remove_watcher(sandbox: str, watcher: str, request: Request) -> Response:
    """Watch no more."""
    await get_node(request).watches.delete(get_principal(request), sandbox, watcher)
    return Response(status_code=204)


async def _told(watched: FolderWatch, query: WatchQuery) -> AsyncIterator[streaming.StreamEvent]:
    begun = {"path": query.path, "recursive": query.recursive, "by": watched.by}
    yield streaming.StreamEvent("watching", WatchingEvent.model_validate(begun).model_dump())
    async for event in watched:
        match event.kind:
            case FileEventKind.GONE:
                told = GoneEvent(path=event.path).model_dump()
            case FileEventKind.OVERFLOW:
                told = OverflowEvent().model_dump()
            case FileEventKind.MOVED:
                told = MovedEvent.of(event).model_dump()
            case _:
                told = FileEvent.of(event).model_dump()
        yield streaming.StreamEvent(event.kind, told)
