"""A service of its own for every test that asks for one, without HTTP; or a driver, for services that follow one another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.records import EVENT_TYPES
from sandlot.store.store import SqlStore, open_store
from sandlot.testing.memory.driver import MemoryDriver
from tests.support import marks
from tests.support.bare import BareDriver
from tests.support.clock import ManualClock
from tests.support.node import MemoryNode, NodeState, open_node
from tests.support.service import PLAIN_CAPABILITIES, Bench, bench


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    """A database of the test's own."""
    async with open_store(tmp_path / "own.db") as opened:
        yield opened


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    """The parts of an in-memory node that survive a restart of the service."""
    return NodeState(tmp_path)


@pytest.fixture
async def node(state: NodeState) -> AsyncIterator[MemoryNode]:
    """An in-memory node; in the end nothing may be left of its sandboxes, and every event has only documented fields."""
    async with open_node(state) as node:
        yield node
    assert state.driver.leftovers() == []
    for record in state.database.events:
        assert set(record.event.data) <= set(EVENT_TYPES[record.event.type].data), record.event


@pytest.fixture
async def at(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    async with bench(tmp_path, clock=clock) as here:
        yield here


@pytest.fixture
async def sandbox(at: Bench) -> Sandbox:
    return await at.sandbox()


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[MemoryDriver | BareDriver]:
    below = tmp_path / "driver"
    below.mkdir()
    made = BareDriver(below) if marks.real_guest else MemoryDriver(capabilities=PLAIN_CAPABILITIES)
    yield made
    for instance in made.booted:
        await instance.destroy()
    assert made.leftovers() == []


@pytest.fixture
def inline_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what core runs in threads in the event loop, so that only the test and the simulated clock decide what happens when."""

    async def inline(function: Callable[..., object], *args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    monkeypatch.setattr(asyncio, "to_thread", inline)
