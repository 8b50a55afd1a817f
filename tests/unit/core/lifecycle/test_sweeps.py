"""Hourly sweeps of the drivers: what they remove, what they spare, and what a sweep that fails or hangs delays."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sandlot.core.lifecycle import recovery
from sandlot.core.lifecycle.recovery import SWEEP_INTERVAL_S, SWEEP_RETRY_S
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import InternalError
from sandlot.model.pools import PoolSizes
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, Limits, RootFs, Shape
from sandlot.model.states import State
from sandlot.server.composition import open_service
from sandlot.testing.memory.driver import MemoryDriver
from sandlot.testing.memory.store import MemoryBlobs, MemoryStore
from tests.support.node import MemoryNode, NodeState, NoPackages, open_node, run_pending, settings_of, settled

SHAPE = Shape(root=RootFs("0" * 64, Path("/nonexistent")), limits=Limits())
PERSISTENT = CreateSandboxParams(template="base", limits=LimitsChange(memory_bytes=GIB, cpus=0.5), timeout_s=None)
"""A sandbox without a deadline that no pool has."""


async def leave_stray(driver: MemoryDriver) -> str:
    """Leave a prepared sandbox on the host that the driver no longer holds, and return its reference."""
    ref = (await driver.prepare(SHAPE)).ref
    driver.abandon(ref)
    return ref


async def swept(driver: MemoryDriver, count: int) -> None:
    """Wait until a driver has been swept so many times, and until the last sweep has ended."""
    await settled(lambda: len(driver.kept_in_sweeps) == count)
    await run_pending()


async def test_stray_that_appears_after_the_start_is_removed_within_an_hour(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        await swept(node.driver, 1)
        await leave_stray(node.driver)

        node.clock.advance(SWEEP_INTERVAL_S - 1.0)
        await run_pending()
        assert len(node.driver.kept_in_sweeps) == 1
        node.clock.advance(1.0)
        await swept(node.driver, 2)

        assert node.driver.leftovers() == []


async def test_sweep_that_failed_is_repeated_after_a_minute(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    stray = await leave_stray(state.driver)
    state.driver.fail_next("sweep", InternalError("a process does not end"))
    async with open_node(state) as node:
        await swept(node.driver, 1)
        assert node.driver.leftovers() == [stray]

        node.clock.advance(SWEEP_RETRY_S)
        await swept(node.driver, 2)
        assert node.driver.leftovers() == []

        node.clock.advance(SWEEP_RETRY_S)
        await run_pending()
        assert len(node.driver.kept_in_sweeps) == 2, "the next sweep is due in an hour"


async def test_sweep_spares_live_starting_hibernated_warm_and_prepared_sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SWEEP_INTERVAL_S", 20.0)  # in an hour, the pool would replace its sandboxes
    async with open_node(NodeState(tmp_path)) as node:
        running, paused, hibernated = [await node.sandboxes.create(OPERATOR, PERSISTENT) for _ in range(3)]
        await node.sandboxes.pause(OPERATOR, paused.id)
        await node.sandboxes.hibernate(OPERATOR, hibernated.id)
        pool = (await node.pools.create(OPERATOR, "base", "auto", Limits(), PoolSizes(warm=1, max=1, prepared=1))).pool
        for _ in range(3):
            node.clock.advance(1.0)
            await node.pools.run_until_idle()
        assert (len(pool.ready), len(pool.prepared)) == (1, 1)
        boot = node.driver.hold("boot")
        starting = asyncio.create_task(node.sandboxes.create(OPERATOR, PERSISTENT))
        await node.driver.faults.reach("boot")
        held = node.driver.leftovers()
        assert len(held) == 5

        await swept(node.driver, 1)
        node.clock.advance(20.0)
        await swept(node.driver, 2)

        assert node.driver.leftovers() == held
        boot.set()
        assert [each.state for each in (running, paused, hibernated, await starting)] == [
            State.RUNNING,
            State.PAUSED,
            State.HIBERNATED,
            State.RUNNING,
        ]
        await node.sandboxes.resume(OPERATOR, hibernated.id)
        assert (await create_default(node)).id not in {running.id, paused.id, hibernated.id}


async def create_default(node: MemoryNode) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    return sandbox


@pytest.mark.parametrize("problem", ["fails", "hangs"])
async def test_sweep_that_fails_or_hangs_delays_neither_other_drivers_nor_the_stop(tmp_path: Path, problem: str) -> None:
    state = NodeState(tmp_path)
    drivers = {name: MemoryDriver(name, clock=state.clock) for name in ("broken", "gvisor")}
    if problem == "fails":
        drivers["broken"].fail_next("sweep", *[OSError("no such device")] * 3)
    else:
        drivers["broken"].hold("sweep")
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(MemoryStore(state.database))
        service = open_service(
            settings_of(state),
            drivers=drivers,
            templates=state.templates,
            clock=state.clock,
            read_host=lambda: state.host,
            packages=NoPackages(),
            store=store,
            blobs=MemoryBlobs(state.database),
        )
        await stack.enter_async_context(service)
        for count in (1, 2):
            await leave_stray(drivers["gvisor"])
            state.clock.advance(SWEEP_INTERVAL_S)
            await swept(drivers["gvisor"], count + 1)
            assert drivers["gvisor"].leftovers() == []
        async with asyncio.timeout(30):
            await stack.aclose()
    assert len(drivers["broken"].kept_in_sweeps) == (3 if problem == "fails" else 1)
