"""Changes in directories of a sandbox: a stream of events, and watchers whose events the service collects."""

from __future__ import annotations

import builtins
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Self

from sandlot.model.errors import SandlotError
from sandlot.sdk import requests
from sandlot.sdk._async.transport import AsyncEventStream, AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.files import FileEvent, WatcherInfo
from sandlot.sdk.sse import Event


class AsyncFileWatch:
    """Changes in a directory as they happen. Iterate over it and close it, or use it as a context manager.

    The iteration ends when the directory is removed or the watch is closed. After an event of kind ``overflow``, list the directory: events were
    dropped.
    """

    def __init__(self, stream: AsyncEventStream, events: AsyncIterator[Event], resources: AsyncExitStack, by: str) -> None:
        self._stream = stream
        self._events = events
        self._resources = resources
        self._lock = threading.Lock()
        """Guards the state below. Never held while an event is read or the connection is closed."""
        self._is_reading = self._is_closed = self._is_released = False
        self.by = by
        """``inotify``, or ``scan``, which misses files that exist for less than a second."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[FileEvent]:
        return self

    async def __anext__(self) -> FileEvent:
        with self._lock:
            if self._is_reading:
                raise RuntimeError("Another thread or task iterates over this watch.")
            self._is_reading = True
        event: Event | None = None
        try:
            if not self._is_closed:
                event = await anext(self._events)
        except SandlotError:
            if not self._is_closed:
                raise
            # The watch was closed during the read, which ends with an error of the connection.
        finally:
            with self._lock:
                self._is_reading = False
                self._is_closed |= event is None or event.name == "gone"
            await self._release()
        if event is None or event.name == "gone":
            raise StopAsyncIteration
        return structure(FileEvent, {**event.data, "event": event.name})

    async def aclose(self) -> None:
        """Stop watching. An iteration that waits, also in another thread or task, ends at once."""
        with self._lock:
            self._is_closed = True
            if self._is_reading:
                self._stream.interrupt()
        await self._release()

    async def _release(self) -> None:
        """Close the connection once, if the watch is closed and no event is being read; else the reader closes it."""
        with self._lock:
            release = self._is_closed and not self._is_reading and not self._is_released
            self._is_released |= release
        if release:
            await self._resources.aclose()


class AsyncWatchers:
    """Watched directories of one sandbox whose events the service collects until they are taken, as ``sandbox.files.watchers``.

    A watcher needs no open connection. It ends with its sandbox, or when the service restarts.
    """

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/files/watchers"

    async def create(self, path: str = ".", *, recursive: bool = False, user: str | None = None) -> WatcherInfo:
        """Watch a directory from now on.

        Args:
            path: Absolute path of the directory.
            recursive: Also watch directories below it, including new ones; at most 1,000.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.

        Raises:
            NotFoundError: ``path_not_found``.
            LimitError: The sandbox has 32 watchers, or there are too many directories.
        """
        body = {"path": path, "recursive": recursive, **requests.omit_none(user=user)}
        return structure(WatcherInfo, await self._transport.request("POST", self._path, body=body))

    async def list(self) -> builtins.list[WatcherInfo]:
        """List the watchers, oldest first."""
        return structure_list(WatcherInfo, await self._transport.request("GET", self._path), "watchers")

    async def take(self, id: str) -> builtins.list[FileEvent]:  # noqa: A002 - the word of the API
        """Return the events since the last call, oldest first. The service keeps at most 4,096.

        After an event of kind ``overflow``, list the directory: events were dropped. After ``gone``, the watcher no longer exists.

        Raises:
            NotFoundError: ``watcher_not_found``.
        """
        response = await self._transport.request("POST", f"{self._path}/{requests.path_segment(id)}/events")
        return structure_list(FileEvent, response, "events")

    async def delete(self, id: str) -> None:  # noqa: A002 - the word of the API
        """Delete a watcher.

        Raises:
            NotFoundError: ``watcher_not_found``.
        """
        await self._transport.request("DELETE", f"{self._path}/{requests.path_segment(id)}")
