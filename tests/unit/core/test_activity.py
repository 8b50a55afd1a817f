"""Presence of the clients that follow a run."""

from __future__ import annotations

import asyncio

from sandlot.core.sandbox import ExecutionFollowers

TURNS = 20
"""Turns of the event loop after which a wait of 0 s is over."""


async def test_only_the_first_absence_may_last_for_first_s() -> None:
    followers = ExecutionFollowers()
    followers.enter()
    followers.leave()
    away = asyncio.create_task(followers.away(0.0, first_s=3600.0))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not away.done()

    followers.enter()
    followers.leave()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert away.done()
    await away
