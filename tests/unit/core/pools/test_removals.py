"""Warm sandboxes whose removal fails or takes long: nobody waits for it without end, and what is left stays reserved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sandlot.core.resources.allocation import LAST_PAUSE_S
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, HostError, InternalError, UnavailableError
from sandlot.model.ports import HostReading, PreparedSandbox
from sandlot.model.specs import GIB, Shape
from sandlot.model.states import State
from tests.support.node import MemoryNode, NodeState, open_node, run_pending, settled
from tests.unit.core.pools.test_manager import LIMITS, NO_SNAPSHOTS, create, create_pool, filled_pool, refill, reserved_gib

pytestmark = pytest.mark.usefixtures("inline_threads")

STUCK = InternalError("Sandbox x could not be ended: processes remain in state D.")


class StuckRemoval:
    """Makes every attempt to destroy a resource hang or fail until :meth:`repair` is called."""

    def __init__(self, resource: Any, how: str) -> None:  # noqa: ANN401 - an instance or a prepared sandbox in memory
        self._real, self._how = resource.destroy, how
        self._repaired = asyncio.Event()
        self.attempts = 0
        resource.destroy = self._destroy

    async def _destroy(self) -> None:
        self.attempts += 1
        if not self._repaired.is_set():
            if self._how == "fails":
                raise STUCK
            await self._repaired.wait()
        await self._real()

    def repair(self, node: MemoryNode) -> None:
        """Let the next attempt succeed, and move the clock to it."""
        self._repaired.set()
        node.clock.advance(2 * LAST_PAUSE_S)


async def pass_until(node: MemoryNode, condition: Callable[[], bool], minutes: int = 60) -> None:
    """Let time pass in steps of 5 s until a condition holds, at most for some minutes."""
    for _ in range(minutes * 12):
        await run_pending()
        if condition():
            return
        node.clock.advance(5.0)
    raise AssertionError(f"the condition does not hold after {minutes} minutes")


@pytest.mark.parametrize("how", ["hangs", "fails"])
async def test_create_is_busy_while_the_only_warm_sandbox_cannot_be_removed(tmp_path: Path, how: str) -> None:
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS), memory_bytes=3 * GIB, memory_reserve_bytes=0) as node:
        (warm,) = (await filled_pool(node, warm=1)).ready
        stuck = StuckRemoval(warm.instance, how)
        creating = asyncio.create_task(create(node, limits=replace(LIMITS, memory_bytes=3 * GIB)))
        await pass_until(node, creating.done, minutes=1)
        with pytest.raises(UnavailableError) as busy:
            await creating
        assert busy.value.code is ErrorCode.BUSY
        assert await reserved_gib(node) == 1
        stuck.repair(node)


@pytest.mark.parametrize("how", ["hangs", "fails"])
async def test_create_evicts_another_warm_sandbox_if_the_first_cannot_be_removed(tmp_path: Path, how: str) -> None:
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS), memory_bytes=4 * GIB, memory_reserve_bytes=0) as node:
        first, _second = (await filled_pool(node, warm=2)).ready
        stuck = StuckRemoval(first.instance, how)
        creating = asyncio.create_task(create(node, limits=replace(LIMITS, memory_bytes=3 * GIB)))
        await pass_until(node, creating.done, minutes=1)
        await creating
        assert await reserved_gib(node) == 4
        stuck.repair(node)


async def test_suspended_sandbox_whose_wake_waits_for_room_can_be_killed(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path), memory_bytes=3 * GIB, memory_reserve_bytes=0) as node:
        sandbox = await create(node, limits=replace(LIMITS, memory_bytes=3 * GIB))
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)
        await settled(lambda: node.driver.leftovers() == [])
        pool = await create_pool(node, warm=1)
        await refill(node)
        (warm,) = pool.ready
        stuck = StuckRemoval(warm.instance, "hangs")
        waking = asyncio.create_task(node.sandboxes.resume(OPERATOR, sandbox.id))
        await settled(lambda: stuck.attempts > 0)
        killing = asyncio.create_task(node.sandboxes.kill(OPERATOR, sandbox.id))
        await pass_until(node, killing.done, minutes=1)
        await killing
        assert sandbox.state is State.STOPPED
        stuck.repair(node)
        await asyncio.gather(waking, return_exceptions=True)


async def test_other_pools_are_filled_while_a_warm_sandbox_cannot_be_removed(tmp_path: Path) -> None:
    state = NodeState(tmp_path, capabilities=NO_SNAPSHOTS)
    async with open_node(state, memory_bytes=8 * GIB, memory_reserve_bytes=GIB) as node:
        pool = await filled_pool(node, warm=1)
        (warm,) = pool.ready
        stuck = StuckRemoval(warm.instance, "hangs")
        calm: HostReading = state.host
        state.host = replace(calm, free=replace(calm.free, memory_bytes=GIB // 4))  # pressure: below half of the reserve
        await pass_until(node, lambda: stuck.attempts > 0, minutes=1)
        state.host = calm
        other = await create_pool(node, warm=1, limits=replace(LIMITS, cpus=0.5))
        await pass_until(node, lambda: len(other.ready) == 1, minutes=2)
        stuck.repair(node)


async def test_failed_fill_that_cannot_be_removed_stays_reserved_and_is_removed_later(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS), memory_bytes=8 * GIB, memory_reserve_bytes=0) as node:
        node.driver.fail_next("pause", HostError("it did not freeze"))
        node.driver.fail_next("destroy", STUCK)
        with capture_logs() as logs:
            pool = await create_pool(node, warm=1)
            node.clock.advance(1.0)
            await settled(lambda: pool.failures == 1)
            await run_pending()
            assert (len(node.driver.leftovers()), await reserved_gib(node)) == (1, 1)
            await pass_until(node, lambda: len(pool.ready) == 1)
        (failure,) = [entry["error"] for entry in logs if entry["event"] == "pool.not_filled"]
        assert "did not freeze" in failure
        assert (len(node.driver.leftovers()), await reserved_gib(node)) == (1, 1)


async def test_source_of_a_template_snapshot_that_cannot_be_removed_is_removed_later(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path), memory_bytes=8 * GIB, memory_reserve_bytes=0) as node:
        node.driver.fail_next("destroy", STUCK)
        pool = await create_pool(node, warm=1)
        await pass_until(node, lambda: len(pool.ready) == 1)
        await pass_until(node, lambda: len(node.driver.leftovers()) == 1, minutes=2)
        assert await reserved_gib(node) == 1


async def test_stop_of_the_service_waits_until_a_cancelled_fill_is_removed(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS), memory_bytes=8 * GIB, memory_reserve_bytes=0) as node:
        pausing = node.driver.hold("pause")
        await create_pool(node, warm=1)
        node.clock.advance(1.0)
        await node.driver.faults.reach("pause")
        destroying = node.driver.hold("destroy")
        refiller = node.services.pools._refiller  # noqa: SLF001 - the part that stops first
        evicted = refiller.evict_next()
        assert evicted is not None
        await node.driver.faults.reach("destroy")
        closing = asyncio.create_task(refiller.aclose())
        await run_pending()
        assert not closing.done()
        assert await reserved_gib(node) == 1
        pausing.set()
        destroying.set()
        await closing
        assert (await reserved_gib(node), node.driver.leftovers()) == (0, [])


async def test_each_failed_start_strategy_has_a_reservation_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_node(NodeState(tmp_path), memory_bytes=16 * GIB, memory_reserve_bytes=0) as node:
        pool = await create_pool(node, warm=1)
        await refill(node)
        (warm,) = pool.ready
        claimed = StuckRemoval(warm.instance, "hangs")
        node.guest(warm.id).fail_next("guest.wake", message="no")  # the claim fails
        prepare = node.driver.prepare
        restored: list[StuckRemoval] = []

        async def prepare_and_fail(shape: Shape, *, snapshot: Path | None = None) -> PreparedSandbox:
            prepared = await prepare(shape, snapshot=snapshot)
            if not restored:
                restored.append(StuckRemoval(prepared, "fails"))
                node.driver.fail_next("restore", HostError("runsc could not restore the sandbox"))
            return prepared

        monkeypatch.setattr(node.driver, "prepare", prepare_and_fail)
        await create(node)
        await node.pools.delete(OPERATOR, pool.id)  # so that nothing is refilled
        assert await reserved_gib(node) == 3, "the sandbox, the claimed one and the restored one"
        claimed.repair(node)
        await settled(lambda: len(node.driver.leftovers()) == 2)
        await run_pending()
        assert await reserved_gib(node) == 2
        restored[0].repair(node)
        await settled(lambda: len(node.driver.leftovers()) == 1)
        await run_pending()
        assert await reserved_gib(node) == 1
