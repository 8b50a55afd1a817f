"""A service of its own for every test that asks for one, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from tests.support.clock import ManualClock
from tests.support.service import Bench, bench


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def at(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    async with bench(tmp_path, clock=clock) as here:
        yield here


@pytest.fixture
async def box(at: Bench) -> Sandbox:
    return await at.sandbox()
