"""Folders of a sandbox that are watched: as it happens, or for whoever asks later."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Self

from sandlot.sdk import requests
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.files import FileEvent, WatcherInfo
from sandlot.sdk.sse import Event


class AsyncFileWatch:
    """What happens in a folder, as it happens; iterate, and close it. It was watched before this was there.

    The iteration ends by itself once the folder is gone. After an event of the kind ``overflow`` something may be missing: list the folder then.
    """

    def __init__(self, events: AsyncIterator[Event], resources: AsyncExitStack, by: str) -> None:
        self._events = events
        self._resources = resources
        self.by = by
        """``inotify``, or ``scan`` where what comes and goes within a second may go unseen."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[FileEvent]:
        return self

    async def __anext__(self) -> FileEvent:
        try:
            event = await self._events.__anext__()
        except BaseException:
            await self.aclose()
            raise
        if event.name == "gone":
            await self.aclose()
            raise StopAsyncIteration
        return structure(FileEvent, {**event.data, "event": event.name})

    async def aclose(self) -> None:
        """Watch no more."""
        await self._resources.aclose()


class AsyncWatchers:
    """Folders of one sandbox that the service watches for whoever asks later: nothing is kept open meanwhile.

    A watcher ends with its sandbox, or with a service that is started anew.
    """

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/files/watchers"

    async def create(self, path: str = "/workspace", *, recursive: bool = False, user: str | None = None) -> WatcherInfo:
        """Watch a folder from now on.

        Args:
            path: The folder.
            recursive: Whether the folders in it are watched too, those that come later included; 1,000 at most.
            user: Whose permissions count.

        Raises:
            NotFoundError: There is no such folder.
            LimitError: The sandbox has 32 watchers, or there are too many folders.
        """
        body = {"path": path, "recursive": recursive, **requests.omit_none(user=user)}
        return structure(WatcherInfo, await self._transport.request("POST", self._path, body=body))

    async def list(self) -> builtins.list[WatcherInfo]:
        """Those that were not removed, oldest first."""
        return structure_list(WatcherInfo, await self._transport.request("GET", self._path), "watchers")

    async def take(self, id: str) -> builtins.list[FileEvent]:  # noqa: A002 - the word of the API
        """What has happened since the last time, oldest first; each is told once, and 4,096 are kept.

        After one of the kind ``overflow`` something may be missing: list the folder. After ``gone`` there is no such watcher any more.

        Raises:
            NotFoundError: There is none of this id.
        """
        answer = await self._transport.request("POST", f"{self._path}/{requests.path_segment(id)}/events")
        return structure_list(FileEvent, answer, "events")

    async def remove(self, id: str) -> None:  # noqa: A002 - the word of the API
        """Watch no more.

        Raises:
            NotFoundError: There is none of this id.
        """
        await self._transport.request("DELETE", f"{self._path}/{requests.path_segment(id)}")
