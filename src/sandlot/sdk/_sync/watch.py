# Made from src/sandlot/sdk/_async/watch.py by scripts/unasync.py; change that file, not this one.
"""A folder of a sandbox that is watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Self

from sandlot.sdk.info import FileEvent
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
        return FileEvent.parse(event.name, event.data)

    def close(self) -> None:
        """Watch no more."""
        self._resources.close()
