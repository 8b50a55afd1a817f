"""A clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """It."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self._moved = asyncio.Event()

    def monotonic_s(self) -> float:
        return self.passed_s

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        while self.passed_s < moment_monotonic_s:
            await self._moved.wait()

    def advance(self, seconds: float) -> None:
        self.passed_s += seconds
        self._moved.set()
        self._moved = asyncio.Event()
