"""Waiting for something that tells nobody when it happens: files, processes, counters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PAUSE_S = 0.02


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Return once a condition holds. Bounded by the test's own limit only: no test asserts a time."""
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return
        await asyncio.sleep(PAUSE_S)
