"""Rate limit of the traffic of a sandbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

BURST_S: Final = 0.25
"""Seconds of traffic at the full rate that pass at once after a pause."""


class RateLimit:
    """Token bucket. Its users wait in the order in which they arrive.

    Args:
        per_second: Number of units, such as bytes, that may pass in a second.
        burst_s: Seconds of traffic at the full rate that pass at once after a pause.
        now: Clock in seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        per_second: float,
        *,
        burst_s: float = BURST_S,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._unit_s = 1 / per_second
        self._burst_s = burst_s
        self._now = now
        self._sleep = sleep
        self._paid_until_s = now() - burst_s

    async def take(self, units: int) -> None:
        """Wait until a number of units may pass."""
        wait_s = self._reserve(units)
        if wait_s > 0:
            await self._sleep(wait_s)

    def try_take(self, units: int) -> bool:
        """Return True if a number of units may pass now. Otherwise, take none."""
        now_s = self._now()
        if max(self._paid_until_s, now_s - self._burst_s) + units * self._unit_s > now_s:
            return False
        self._reserve(units)
        return True

    def _reserve(self, units: int) -> float:
        """Take units, and return the seconds after which they may pass."""
        now_s = self._now()
        self._paid_until_s = max(self._paid_until_s, now_s - self._burst_s) + units * self._unit_s
        return self._paid_until_s - now_s
