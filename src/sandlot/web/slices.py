"""Feed received data to parsers in slices, so that many small parts do not block the event loop.

A read has up to 256 KiB, which can be 43,000 chunks of a body or frames of a WebSocket. Each costs microseconds of Python.

Invariants:
- The data of a connection is fed in order. While data of it waits here, nothing more is read from it.
- The waiting data of all connections together takes a millisecond of a turn of the event loop. The connections take turns.
- Data of many small parts takes half of the time. In the other half, threads get the interpreter's lock (GIL) at once: a query of the database
  takes it dozens of times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.001
"""Time after which what waits is left for a later turn of the event loop."""
MANY_PARTS_BYTES: Final = 64 * 1024
"""Fewer bytes than this in a turn are many small parts: a few large parts are fed in a fraction of the time."""


class SliceTurns:
    """Turns of the connections of a service whose data waits."""

    __slots__ = ("_loop", "_next", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[SlicedInput, None] = {}
        """An ordered set: the next connection comes first."""
        self._next: asyncio.Handle | None = None
        """Set from the first slice in a turn of the loop to the next turn, and while data waits."""

    def add(self, data: SlicedInput) -> None:
        """Feed the data of a connection: now if no slice was fed in this turn of the loop, otherwise after that of the connections that wait."""
        self._waiting[data] = None
        if self._next is None:
            self._run()

    def remove(self, data: SlicedInput) -> None:
        """Feed no further data of a connection."""
        self._waiting.pop(data, None)

    def _run(self) -> None:
        self._next = self._loop.call_soon(self._run) if self._waiting else None
        until_s, fed_bytes = time.monotonic() + TURN_S, 0
        while self._waiting:
            data = next(iter(self._waiting))
            del self._waiting[data]
            fed_bytes += data.waiting_bytes
            if data.feed_slice():
                self._waiting[data] = None
            fed_bytes -= data.waiting_bytes
            if time.monotonic() >= until_s:
                break
        if self._waiting and fed_bytes < MANY_PARTS_BYTES:
            if self._next is not None:
                self._next.cancel()
            self._next = self._loop.call_later(2 * TURN_S, self._run)  # from the beginning of this turn


class SlicedInput:
    """The received data of one connection.

    Args:
        turns: Turns of all connections.
        feed: Passes one slice to the parser.
        slice_bytes: Returns the size of the next slice; 0 stops feeding until :meth:`resume`.
        hold: Pauses reading from the connection if its argument is True, and allows it otherwise.
    """

    __slots__ = ("_feed", "_hold", "_rest", "_slice_bytes", "_turns")

    def __init__(self, turns: SliceTurns, feed: Callable[[bytes], None], slice_bytes: Callable[[], int], hold: Callable[[bool], None]) -> None:
        self._turns = turns
        self._feed = feed
        self._slice_bytes = slice_bytes
        self._hold = hold
        self._rest = bytearray()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not fed yet."""
        return len(self._rest)

    def push(self, data: bytes) -> None:
        """Feed data, or a part of it now and the rest in later turns of the loop."""
        if not self._rest and len(data) <= self._slice_bytes():
            self._feed(data)
            return
        self._rest += data
        self._turns.add(self)
        if self._rest:
            self._hold(True)

    def resume(self) -> None:
        """Continue, because the size of the next slice may have changed."""
        if self._rest:
            self._turns.add(self)

    def stop(self) -> None:
        """Drop what is left."""
        self._rest.clear()
        self._turns.remove(self)

    def feed_slice(self) -> bool:
        """Feed one slice. Return True if more can be fed."""
        if self._rest and (size := self._slice_bytes()):
            piece = bytes(memoryview(self._rest)[:size])
            del self._rest[:size]
            self._feed(piece)
        if not self._rest:
            self._hold(False)
            return False
        return self._slice_bytes() > 0
