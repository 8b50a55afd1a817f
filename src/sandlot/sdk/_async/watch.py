"""A folder of a sandbox that is watched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Self

from sandlot.sdk.info import FileEvent
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
        return FileEvent.parse(event.name, event.data)

    async def aclose(self) -> None:
        """Watch no more."""
        await self._resources.aclose()
