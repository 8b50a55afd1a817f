"""Rate limit of a sandbox, with a clock of the test."""

from __future__ import annotations

import asyncio

from sandlot.egress.gateway.rate import RateLimit


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now(self) -> float:
        return self.time_s

    async def sleep(self, time_s: float) -> None:
        until_s = self.time_s + time_s
        await asyncio.sleep(0)
        self.time_s = max(self.time_s, until_s)


async def test_bytes_pass_at_the_rate_after_a_burst() -> None:
    clock = Clock()
    rate = RateLimit(1000, burst_s=0.5, now=clock.now, sleep=clock.sleep)
    for _ in range(10):
        await rate.take(1000)
    assert abs(clock.time_s - 109.5) < 0.001


async def test_connections_of_a_sandbox_share_the_rate() -> None:
    clock = Clock()
    rate = RateLimit(1000, burst_s=0, now=clock.now, sleep=clock.sleep)
    await asyncio.gather(*(rate.take(1000) for _ in range(5)))
    assert abs(clock.time_s - 105) < 0.001


async def test_refused_units_are_not_taken() -> None:
    clock = Clock()
    rate = RateLimit(10, burst_s=1, now=clock.now, sleep=clock.sleep)
    assert [rate.try_take(5) for _ in range(3)] == [True, True, False]
    clock.time_s += 0.5
    assert rate.try_take(5)
