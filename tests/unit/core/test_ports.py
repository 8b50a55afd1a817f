"""The machine's own clock."""

from __future__ import annotations

import time
from datetime import UTC

from sandlot.core.ports import SystemClock


async def test_it_goes_on_and_waits() -> None:
    clock = SystemClock()
    before = clock.monotonic_s()
    await clock.sleep_until(before + 0.05)
    assert clock.monotonic_s() >= before + 0.049
    await clock.sleep_until(before)
    assert clock.now().tzinfo is UTC
    assert abs(clock.now().timestamp() - time.time()) < 60
