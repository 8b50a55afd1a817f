"""Watches of directories: event streams, and watchers that collect events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.files import FileEvent as DirectoryEvent
from sandlot.model.files import FileEventKind, FolderWatch, Watch
from sandlot.server.v1.common import PROBLEM, EventTable, Problem, SandboxPath, UserName, documented_response, only_events, parse_user
from sandlot.server.v1.files import PathQuery
from sandlot.web import streaming
from sandlot.web.dependencies import SandboxNameRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import RequestModel, ResponseModel, json_response


class WatchQuery(PathQuery):
    """Directory to watch."""

    recursive: bool = Field(default=False, description="Watch directories below it too, including new ones, up to 1,000.")


class WatchStartedEvent(ResponseModel):
    """The directory is watched from now on."""

    path: str
    recursive: bool
    by: Literal["inotify", "scan"] = Field(description="Method. `scan` misses files that exist for less than a second.")


class FileChangedEvent(ResponseModel):
    """A file or directory changed."""

    path: str
    kind: Literal["file", "directory"] = Field(description="`file` for everything except directories.")

    @classmethod
    def of(cls, event: DirectoryEvent) -> FileChangedEvent:
        """Return the event for a directory event."""
        return cls(path=event.path, kind="directory" if event.folder else "file")


class FileMovedEvent(FileChangedEvent):
    """A file or directory was moved."""

    source: str = Field(description="Former path.")

    @classmethod
    def of(cls, event: DirectoryEvent) -> FileMovedEvent:
        """Return the event for a directory event."""
        return cls(path=event.path, kind="directory" if event.folder else "file", source=event.source or "")


class WatchOverflowEvent(ResponseModel):
    """Events were dropped. List the directory to see its content."""


class WatchEndedEvent(ResponseModel):
    """The watched directory was removed or moved. No event follows."""

    path: str


class CreateWatcherRequest(RequestModel):
    """Options of a new watcher."""

    path: SandboxPath = Field(description="Path in the sandbox, relative to its working directory.", examples=["/workspace"])
    recursive: bool = Field(default=False, description="Watch directories below it too, including new ones, up to 1,000.")
    user: UserName | None = Field(default=None, description="User whose permissions apply. Default: the user of the sandbox.")


class WatcherResponse(WatchStartedEvent):
    """A watcher."""

    id: str

    @classmethod
    def of(cls, watch: Watch) -> WatcherResponse:
        """Return the response for a watch."""
        by: Literal["inotify", "scan"] = "scan" if watch.by == "scan" else "inotify"
        return cls(id=watch.id, path=watch.path, recursive=watch.recursive, by=by)


class WatchersResponse(ResponseModel):
    """All watchers of a sandbox."""

    watchers: list[WatcherResponse]


class WatcherEventResponse(ResponseModel):
    """An event of a watcher."""

    event: Literal["created", "modified", "removed", "moved", "overflow", "gone"]
    path: str = Field(description="Absolute path; empty for `overflow`.")
    kind: Literal["file", "directory"] = Field(description="`file` for everything except directories.")
    source: str | None = Field(description="Former path of a moved file or directory.")

    @classmethod
    def of(cls, event: DirectoryEvent) -> WatcherEventResponse:
        """Return the response for a directory event."""
        values = {"event": event.kind, "path": event.path, "kind": "directory" if event.folder else "file", "source": event.source}
        return cls.model_validate(values)


class WatcherEventsResponse(ResponseModel):
    """New events, oldest first."""

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

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/files", tags=["files"], route_class=SandboxNameRoute)


@router.get("/watch", response_class=Response, responses=only_events(WATCH_EVENTS, "Events of the directory."))
async def watch(sandbox: str, query: Annotated[WatchQuery, Query()], request: Request) -> Response:
    """Watch a directory and stream its events until the directory is removed."""
    beginning = get_node(request).watches.watch(get_principal(request), sandbox, query.path, recursive=query.recursive, user=parse_user(query.user))
    watched = await cancel_on_disconnect(request, beginning)
    return streaming.event_response(request, _events(watched, query), watched.aclose)


@router.post("/watchers", status_code=201, responses=documented_response(WatcherResponse, "The new watcher.", 201))
async def create_watcher(sandbox: str, body: CreateWatcherRequest, request: Request) -> Response:
    """Create a watcher, which collects up to 4,096 events of a directory until a client takes them."""
    making = get_node(request).watches.create(get_principal(request), sandbox, body.path, recursive=body.recursive, user=parse_user(body.user))
    return json_response(WatcherResponse.of(await cancel_on_disconnect(request, making)), 201)


@router.get("/watchers", responses=documented_response(WatchersResponse, "All watchers."))
async def list_watchers(sandbox: str, request: Request) -> Response:
    """List watchers of a sandbox."""
    watches = await get_node(request).watches.list(get_principal(request), sandbox)
    return json_response(WatchersResponse(watchers=[WatcherResponse.of(each) for each in watches]))


@router.post("/watchers/{watcher}/events", responses=documented_response(WatcherEventsResponse, "New events, oldest first."))
async def take_watcher_events(sandbox: str, watcher: str, request: Request) -> Response:
    """Take the new events of a watcher. Each event is returned once. The watcher ends with the event `gone`."""
    happened = await get_node(request).watches.take(get_principal(request), sandbox, watcher)
    return json_response(WatcherEventsResponse(events=[WatcherEventResponse.of(event) for event in happened]))


@router.delete("/watchers/{watcher}", status_code=204, responses=PROBLEM)
async def delete_watcher(sandbox: str, watcher: str, request: Request) -> Response:
    """Delete a watcher."""
    await get_node(request).watches.delete(get_principal(request), sandbox, watcher)
    return Response(status_code=204)


async def _events(watched: FolderWatch, query: WatchQuery) -> AsyncIterator[streaming.StreamEvent]:
    begun = {"path": query.path, "recursive": query.recursive, "by": watched.by}
    yield streaming.StreamEvent("watching", WatchStartedEvent.model_validate(begun).model_dump())
    async for event in watched:
        match event.kind:
            case FileEventKind.GONE:
                data = WatchEndedEvent(path=event.path).model_dump()
            case FileEventKind.OVERFLOW:
                data = WatchOverflowEvent().model_dump()
            case FileEventKind.MOVED:
                data = FileMovedEvent.of(event).model_dump()
            case _:
                data = FileChangedEvent.of(event).model_dump()
        yield streaming.StreamEvent(event.kind, data)
