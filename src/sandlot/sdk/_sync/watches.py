# Made from src/sandlot/sdk/_async/watches.py by scripts/unasync.py; change that file, not this one.
"""Folders of a sandbox that are watched: as it happens, or for whoever asks later."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Self

from sandlot.sdk import requests
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.files import FileEvent, WatcherInfo
from sandlot.sdk.sse import Event


class FileWatch:
    """What happens in a folder, as it happens; iterate, and close it. It was watched before this was there.

    The iteration ends by itself once the folder is gone. After an event of the kind ``overflow`` something may be missing: list the folder then.
    """

    def __init__(self, events: Iterator[Event], resources: ExitStack, by: str) -> None:
        self._events = events
        self._resources = resources
        self.by = by
        """``inotify``, or ``scan`` where what comes and goes within a second may go unseen."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[FileEvent]:
        return self

    def __next__(self) -> FileEvent:
        try:
            event = self._events.__next__()
        except BaseException:
            self.close()
            raise
        if event.name == "gone":
            self.close()
            raise StopIteration
        return structure(FileEvent, {**event.data, "event": event.name})

    def close(self) -> None:
        """Watch no more."""
        self._resources.close()


class Watchers:
    """Folders of one sandbox that the service watches for whoever asks later: nothing is kept open meanwhile.

    A watcher ends with its sandbox, or with a service that is started anew.
    """

    def __init__(self, transport: Transport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/files/watchers"

    def create(self, path: str = "/workspace", *, recursive: bool = False, user: str | None = None) -> WatcherInfo:
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
        return structure(WatcherInfo, self._transport.request("POST", self._path, body=body))

    def list(self) -> builtins.list[WatcherInfo]:
        """Those that were not removed, oldest first."""
        return structure_list(WatcherInfo, self._transport.request("GET", self._path), "watchers")

    def take(self, id: str) -> builtins.list[FileEvent]:  # noqa: A002 - the word of the API
        """What has happened since the last time, oldest first; each is told once, and 4,096 are kept.

        After one of the kind ``overflow`` something may be missing: list the folder. After ``gone`` there is no such watcher any more.

        Raises:
            NotFoundError: There is none of this id.
        """
        answer = self._transport.request("POST", f"{self._path}/{requests.path_segment(id)}/events")
        return structure_list(FileEvent, answer, "events")

    def remove(self, id: str) -> None:  # noqa: A002 - the word of the API
        """Watch no more.

        Raises:
            NotFoundError: There is none of this id.
        """
        self._transport.request("DELETE", f"{self._path}/{requests.path_segment(id)}")
