"""A clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.until import until

START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """It."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self._moved = asyncio.Event()
        self._asleep: dict[asyncio.Task[Any], float] = {}
        self._woken: set[asyncio.Task[Any]] = set()
        """By the last steps; they are at work."""

    def monotonic_s(self) -> float:
        return self.passed_s

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)

    @property
    def sleepers(self) -> frozenset[asyncio.Task[Any]]:
        """Tasks that wait for this clock now."""
        return frozenset(self._asleep)

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        sleeper = asyncio.current_task()
        assert sleeper is not None
        try:
            while self.passed_s < moment_monotonic_s:
                self._asleep[sleeper] = moment_monotonic_s
                self._woken.discard(sleeper)
                await self._moved.wait()
        finally:
            self._asleep.pop(sleeper, None)

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once; whoever it wakes gets to work when the caller waits for something."""
        self.passed_s += seconds
        self._woken |= {sleeper for sleeper, until_s in self._asleep.items() if until_s <= self.passed_s}
        self._moved.set()
        self._moved = asyncio.Event()

    async def pass_s(self, seconds: float, step_s: float) -> None:
        """Let time pass step by step; after each, whatever it wakes has done its work: it sleeps again, or has ended."""
        for _ in range(int(seconds / step_s)):
            self.advance(step_s)
            await until(lambda: all(sleeper.done() for sleeper in self._woken))
