"""A service of its own for every test that asks for one, without HTTP; or a driver, for services that follow one another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.ports import Ability
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.clock import ManualClock
from tests.support.service import Bench, bench


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def at(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    async with bench(tmp_path, clock=clock, real_guest=request.node.get_closest_marker("real_guest") is not None) as here:
        yield here


@pytest.fixture
async def box(at: Bench) -> Sandbox:
    return await at.sandbox()


@pytest.fixture
async def driver() -> AsyncIterator[MemoryDriver]:
    made = MemoryDriver(abilities=set(Ability) - {Ability.SNAPSHOT})
    yield made
    for instance in made.booted:
        await instance.destroy()
    assert made.leftovers() == []
