"""Share of the event loop's time that the links of a service have together.

Most chunks of bytes are handled in a fraction of a millisecond. A chunk of the smallest frames that a guest can send takes 25 times as long,
so guests that send nothing else would use up the time of the event loop.

Invariants:
- The time of handling that exceeds what ordinary output of the same size takes is added up for each link. A twentieth of the passing time is free,
  for calls with small messages. When 2 ms are exceeded, the link is not read for four times the excess. Such pauses of all links come one after the
  other: guests that flood their links take about a fifth of the event loop's time together beside their free times, and not a fifth of it each.
- A link that had such a pause lately reads small chunks, so that other tasks wait about a millisecond at most.
- Times of handling are processor times of the event loop's thread: a busy host causes no pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

READ_BYTES: Final = 64 * 1024
"""Maximum number of bytes that are read and handled at once. Equals the default capacity of a pipe (pipe(7))."""
SLOW_READ_BYTES: Final = 4 * 1024
"""The same after a pause. The smallest frames of so many bytes are handled in 1.3 ms (measured)."""
ORDINARY_BYTE_S: Final = 0.001 / READ_BYTES
"""Time of handling for each byte that never counts. Ordinary output takes a fifth of it, and the smallest frames five times as much (measured)."""
FREE_SHARE: Final = 0.05
MAX_EXCESS_S: Final = 0.002
PAUSE: Final = 4
"""Length of a pause in relation to the excess before it."""
SLOW_FOR_S: Final = 1.0


class LinkTurns:
    """Pauses of all links of a service.

    Args:
        processor_s: Clock of the processor time of the event loop's thread, in seconds. None: that of the system.
    """

    __slots__ = ("_pausing", "processor_s")

    def __init__(self, processor_s: Callable[[], float] | None = None) -> None:
        self._pausing = asyncio.Lock()
        self.processor_s = processor_s or time.thread_time

    async def pause(self, time_s: float) -> None:
        """Wait until the earlier pauses are over, and then for ``time_s`` seconds."""
        async with self._pausing:
            await asyncio.sleep(time_s)


class LinkReader:
    """Handles the bytes of one link in turns.

    Args:
        turns: Pauses of all links.
        handle: Handles a chunk of bytes.
    """

    __slots__ = ("_counted_s", "_excess_s", "_handle", "_now_s", "_slow_until_s", "_turns")

    def __init__(self, turns: LinkTurns, handle: Callable[[bytes], None]) -> None:
        self._turns = turns
        self._handle = handle
        self._now_s = asyncio.get_running_loop().time
        self._slow_until_s = 0.0
        self._excess_s = 0.0
        self._counted_s = self._now_s()

    @property
    def read_bytes(self) -> int:
        """Maximum number of bytes of the next chunk."""
        return SLOW_READ_BYTES if self._is_slow() else READ_BYTES

    async def handle(self, data: bytes) -> None:
        """Handle a chunk of bytes, and let other tasks run."""
        began_s = self._turns.processor_s()
        self._handle(data)
        spent_s, now_s = self._turns.processor_s() - began_s, self._now_s()
        left_s = max(0.0, self._excess_s - FREE_SHARE * (now_s - self._counted_s))
        self._excess_s, self._counted_s = max(0.0, left_s + spent_s - ORDINARY_BYTE_S * len(data)), now_s
        if self._excess_s <= MAX_EXCESS_S:
            await asyncio.sleep(0)
            return
        excess_s, self._excess_s = self._excess_s, 0.0
        self._slow_until_s = now_s + SLOW_FOR_S
        await self._turns.pause(PAUSE * excess_s)

    def _is_slow(self) -> bool:
        return self._slow_until_s > 0 and self._now_s() < self._slow_until_s
