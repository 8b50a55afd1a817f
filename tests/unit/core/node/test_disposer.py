"""Resources that cannot be destroyed are destroyed again later."""

from __future__ import annotations

import asyncio

from sandlot.core.node.disposer import Disposer
from tests.support.clock import ManualClock


class Resource:
    """A resource whose first attempts to be destroyed fail."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.attempts = 0

    async def destroy(self) -> None:
        self.attempts += 1
        if self.attempts <= self.failures:
            raise OSError(16, "Device or resource busy")


async def test_attempts_continue_with_doubling_pauses_up_to_a_minute() -> None:
    clock, resource, reported = ManualClock(), Resource(failures=8), []
    destroying = asyncio.create_task(Disposer(clock).destroy(resource, on_failure=lambda: reported.append(resource.attempts)))
    await asyncio.sleep(0)
    for attempts, pause_s in enumerate((1, 2, 4, 8, 16, 32, 60, 60), start=1):
        await clock.pass_s(pause_s - 0.5, 0.5)
        assert resource.attempts == attempts
        await clock.pass_s(0.5, 0.5)
    await destroying
    assert reported == [1, 2, 3, 4, 5, 6, 7, 8]
