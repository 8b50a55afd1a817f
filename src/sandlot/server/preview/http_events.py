"""Events of an HTTP connection, read from a stream of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import h11

EVENTS_PER_TURN: Final = 64
"""Events after which other tasks run. A peer may send each byte in a separate chunk."""


class HttpEvents:
    """Events of an HTTP connection.

    Args:
        http: State of the connection.
        read: Function that returns the next bytes of the peer; empty at the end.
    """

    __slots__ = ("_count", "_http", "_read")

    def __init__(self, http: h11.Connection, read: Callable[[], Awaitable[bytes]]) -> None:
        self._http = http
        self._read = read
        self._count = 0

    async def next(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: The peer has sent something else than HTTP.
        """
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._read())
        self._count += 1
        if self._count % EVENTS_PER_TURN == 0:
            await asyncio.sleep(0)
        return event  # type: ignore[return-value] # NEED_DATA is excluded
