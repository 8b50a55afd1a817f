"""Trees of files: packed, unpacked, watched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.files import FileEvent as FolderEvent
from sandlot.model.files import FileEventKind, FolderWatch, Watch
from sandlot.model.specs import User
from sandlot.server.v1.common import PROBLEM, EventTable, Problem, UserName, documented_response, only_events
from sandlot.server.v1.files import PathQuery
from sandlot.web import streaming
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import RequestModel, ResponseModel, Text, json_response


class WatchQuery(PathQuery):
    """A folder to watch."""

    recursive: bool = Field(default=False, description="Also the folders in it, those that come later included; 1,000 at most.")


class WatchStartedEvent(ResponseModel):
    """The folder is watched from now on."""

    path: str
    recursive: bool
    by: Literal["inotify", "scan"] = Field(description="Where it is scan, what comes and goes within a second may go unseen.")


class FileChangedEvent(ResponseModel):
    """Something happened to a file or a folder."""

    path: str
    kind: Literal["file", "directory"] = Field(description="Whatever is no folder is told as a file.")

    @classmethod
    def of(cls, event: FolderEvent) -> FileChangedEvent:
        """What is told of it."""
        return cls(path=event.path, kind="directory" if event.folder else "file")


class FileMovedEvent(FileChangedEvent):
    """Something has another name now."""

    source: str = Field(description="Its path before.")

    @classmethod
    def of(cls, event: FolderEvent) -> FileMovedEvent:
        """What is told of it."""
        return cls(path=event.path, kind="directory" if event.folder else "file", source=event.source or "")


class WatchOverflowEvent(ResponseModel):
    """More happened than could be told: list the folder to know what there is."""


class WatchEndedEvent(ResponseModel):
    """The folder itself was removed or moved; nothing follows."""

    path: str


class CreateWatcherRequest(RequestModel):
    """A folder to watch for whoever asks later."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace"])
    recursive: bool = Field(default=False, description="Also the folders in it, those that come later included; 1,000 at most.")
    user: UserName = Field(default="user", description="Who it is done as.")


class WatcherResponse(WatchStartedEvent):
    """A folder that is watched."""

    id: str

    @classmethod
    def of(cls, watch: Watch) -> WatcherResponse:
        """What is told of it."""
        by: Literal["inotify", "scan"] = "scan" if watch.by == "scan" else "inotify"
        return cls(id=watch.id, path=watch.path, recursive=watch.recursive, by=by)


class WatchersResponse(ResponseModel):
    """All of a sandbox's."""

    watchers: list[WatcherResponse]


class WatcherEventResponse(ResponseModel):
    """One thing that happened in a watched folder."""

    event: Literal["created", "modified", "removed", "moved", "overflow", "gone"]
    path: str = Field(description="Empty of ``overflow``.")
    kind: Literal["file", "directory"] = Field(description="Whatever is no folder is told as a file.")
    source: str | None = Field(description="Its path before, of what was moved.")

    @classmethod
    def of(cls, event: FolderEvent) -> WatcherEventResponse:
        """What is told of it."""
        told = {"event": event.kind, "path": event.path, "kind": "directory" if event.folder else "file", "source": event.source}
        return cls.model_validate(told)


class WatcherEventsResponse(ResponseModel):
    """What has happened since the last time, oldest first."""

    events: list[WatcherEventResponse]


WATCH_EVENTS: EventTable = {
    "watching": WatchStartedEvent,
    "created": FileChangedEvent,
    "modified": FileChangedEvent,
    "removed": FileChangedEvent,
    "moved": FileMovedEvent,
    "overflow": WatchOverflowEvent,
    "gone": WatchEndedEvent,
    "failure": Problem,
}

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/files", tags=["files"], route_class=SandboxRoute)


@router.get(
    "/watch", response_class=Response, responses=only_events(WATCH_EVENTS, "What happens in the folder, from the first event on, until it is gone.")
)
async def watch(sandbox: str, query: Annotated[WatchQuery, Query()], request: Request) -> Response:
    """Watch a folder."""
    beginning = get_node(request).watches.watch(get_principal(request), sandbox, query.path, recursive=query.recursive, user=User(query.user))
    watched = await cancel_on_disconnect(request, beginning)
    return streaming.event_response(request, _told(watched, query), watched.aclose)


@router.post("/watchers", status_code=201, responses=documented_response(WatcherResponse, "It is watched.", 201))
async def create_watcher(sandbox: str, body: CreateWatcherRequest, request: Request) -> Response:
    """Watch a folder for whoever asks later: what happens is kept, 4,096 events of it, until it is asked for."""
    making = get_node(request).watches.create(get_principal(request), sandbox, body.path, recursive=body.recursive, user=User(body.user))
    return json_response(WatcherResponse.of(await cancel_on_disconnect(request, making)), 201)


@router.get("/watchers", responses=documented_response(WatchersResponse, "Those that were not removed."))
async def list_watchers(sandbox: str, request: Request) -> Response:
    """List the watchers of a sandbox."""
    watches = await get_node(request).watches.list(get_principal(request), sandbox)
    return json_response(WatchersResponse(watchers=[WatcherResponse.of(each) for each in watches]))


@router.post("/watchers/{watcher}/events", responses=documented_response(WatcherEventsResponse, "What has happened since the last time."))
async def take_watcher_events(sandbox: str, watcher: str, request: Request) -> Response:
    """Take what has happened in a watched folder, oldest first; it is told once. After `gone` there is no such watcher any more."""
    happened = await get_node(request).watches.take(get_principal(request), sandbox, watcher)
    return json_response(WatcherEventsResponse(events=[WatcherEventResponse.of(event) for event in happened]))


@router.delete("/watchers/{watcher}", status_code=204, responses=PROBLEM)
async def delete_watcher(sandbox: str, watcher: str, request: Request) -> Response:
    """Watch no more."""
    await get_node(request).watches.delete(get_principal(request), sandbox, watcher)
    return Response(status_code=204)


async def _told(watched: FolderWatch, query: WatchQuery) -> AsyncIterator[streaming.StreamEvent]:
    begun = {"path": query.path, "recursive": query.recursive, "by": watched.by}
    yield streaming.StreamEvent("watching", WatchStartedEvent.model_validate(begun).model_dump())
    async for event in watched:
        match event.kind:
            case FileEventKind.GONE:
                told = WatchEndedEvent(path=event.path).model_dump()
            case FileEventKind.OVERFLOW:
                told = WatchOverflowEvent().model_dump()
            case FileEventKind.MOVED:
                told = FileMovedEvent.of(event).model_dump()
            case _:
                told = FileChangedEvent.of(event).model_dump()
        yield streaming.StreamEvent(event.kind, told)
