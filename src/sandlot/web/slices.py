"""Feed received data to a parser in slices, so that many small parts do not block the event loop.

A read has up to 256 KiB, which can be 43,000 chunks of a body or frames of a WebSocket. Each costs microseconds of Python.

Invariant: Data is fed in order. While data waits here, nothing more is read from the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.004
"""Time after which the rest waits for the next turn of the event loop."""


class SlicedInput:
    """The received data of one connection.

    Args:
        loop: Event loop.
        feed: Passes one slice to the parser.
        slice_bytes: Returns the size of the next slice; 0 stops feeding until :meth:`resume`.
        hold: Pauses reading from the connection if its argument is True, and allows it otherwise.
    """

    __slots__ = ("_feed", "_hold", "_loop", "_next", "_rest", "_slice_bytes")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, feed: Callable[[bytes], None], slice_bytes: Callable[[], int], hold: Callable[[bool], None]
    ) -> None:
        self._loop = loop
        self._feed = feed
        self._slice_bytes = slice_bytes
        self._hold = hold
        self._rest = bytearray()
        self._next: asyncio.Handle | None = None

    def push(self, data: bytes) -> None:
        """Feed data, or a part of it now and the rest in later turns of the loop."""
        if not self._rest and len(data) <= self._slice_bytes():
            self._feed(data)
            return
        self._rest += data
        if self._next is None:
            self._run()

    def resume(self) -> None:
        """Continue, because the size of the next slice may have changed."""
        if self._rest and self._next is None:
            self._hold(True)
            self._next = self._loop.call_soon(self._run)

    def stop(self) -> None:
        """Drop what is left."""
        self._rest.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _run(self) -> None:
        self._next = None
        until_s = time.monotonic() + TURN_S
        while self._rest and (size := self._slice_bytes()):
            piece = bytes(memoryview(self._rest)[:size])
            del self._rest[:size]
            self._feed(piece)
            if time.monotonic() >= until_s:
                break
        self._hold(bool(self._rest))
        if self._rest and self._slice_bytes():
            self._next = self._loop.call_soon(self._run)
