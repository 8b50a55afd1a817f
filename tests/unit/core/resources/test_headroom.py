"""Headroom: the memory that a snapshot or restore uses above the limit is reserved before it is granted and until it is withdrawn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.model.ports import HeadroomRange
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, MIB, OnTimeout
from sandlot.model.states import State
from tests.support.node import MemoryNode, NodeState, open_node, run_pending, settled

pytestmark = pytest.mark.usefixtures("inline_threads")

BASE = CreateSandboxParams(template="base", limits=LimitsChange(memory_bytes=GIB))
LEAST, MOST = 256 * MIB, 512 * MIB


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    state = NodeState(tmp_path)
    state.driver.headroom = HeadroomRange(LEAST, MOST)
    return state


async def create(node: MemoryNode, params: CreateSandboxParams = BASE) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, params)
    return sandbox


async def reserved_mib(node: MemoryNode) -> int:
    return (await node.reservations.reserved()).memory_bytes // MIB


async def test_headroom_is_reserved_until_it_is_withdrawn(state: NodeState) -> None:
    async with open_node(state, memory_bytes=GIB + MOST, memory_reserve_bytes=0) as node:  # no room to verify the snapshot
        sandbox = await create(node)
        writing, withdrawing = node.driver.hold("snapshot"), node.driver.hold("withdraw")
        snapshot = asyncio.create_task(node.services.snapshots.create(OPERATOR, sandbox.id))
        await node.driver.faults.reach("snapshot")
        assert await reserved_mib(node) == 1024 + 512
        writing.set()
        await snapshot
        await node.driver.faults.reach("withdraw")
        assert await reserved_mib(node) == 1024 + 512
        withdrawing.set()
        await node.instance(sandbox).wait_headroom_withdrawn()
        await settled(lambda: not node.internals.reservations.leaving())
        assert await reserved_mib(node) == 1024


async def test_concurrent_snapshots_are_granted_no_more_than_the_node_has(state: NodeState) -> None:
    async with open_node(state, memory_bytes=4 * GIB + LEAST + LEAST // 2, memory_reserve_bytes=0) as node:
        sandboxes = [await create(node) for _ in range(4)]
        for sandbox in sandboxes:
            node.instance(sandbox).granted.clear()
        writing = node.driver.hold("snapshot")
        tasks = [asyncio.create_task(node.services.snapshots.create(OPERATOR, sandbox.id)) for sandbox in sandboxes]
        await node.driver.faults.reach("snapshot")
        await run_pending()
        granted = [bytes_ for sandbox in sandboxes for bytes_ in node.instance(sandbox).granted]
        assert sum(granted) == LEAST + LEAST // 2
        refused = [task for task in tasks if task.done()]
        for task in refused:
            with pytest.raises(UnavailableError) as busy:
                await task
            assert busy.value.code is ErrorCode.BUSY
        assert len(refused) == len(tasks) - len(granted)
        assert all(sandbox.state in {State.RUNNING, State.SNAPSHOTTING} for sandbox in sandboxes)
        writing.set()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_snapshot_of_a_full_node_is_busy_and_changes_nothing(state: NodeState) -> None:
    async with open_node(state, memory_bytes=GIB, memory_reserve_bytes=0) as node:
        sandbox = await create(node)
        with pytest.raises(UnavailableError) as busy:
            await node.services.snapshots.create(OPERATOR, sandbox.id)
        assert (busy.value.code, sandbox.state, node.instance(sandbox).granted) == (ErrorCode.BUSY, State.RUNNING, [])
        assert await reserved_mib(node) == 1024


async def test_hibernation_on_a_full_node_uses_the_suspend_reserve_one_at_a_time(state: NodeState) -> None:
    async with open_node(state, memory_bytes=2 * GIB + LEAST, memory_reserve_bytes=0, suspend_reserve=LEAST) as node:
        first, second = await create(node), await create(node)
        assert (await node.reservations.capacity()).available.memory_bytes == 0
        writing = node.driver.hold("snapshot")
        hibernating = [asyncio.create_task(node.sandboxes.hibernate(OPERATOR, sandbox.id)) for sandbox in (first, second)]
        await node.driver.faults.reach("snapshot")
        await run_pending()
        assert [node.instance(sandbox).granted for sandbox in (first, second)] == [[LEAST], []]
        assert (first.state, second.state) == (State.HIBERNATING, State.RUNNING)
        writing.set()
        await asyncio.gather(*hibernating)
        assert (first.state, second.state) == (State.HIBERNATED, State.HIBERNATED)
        await settled(lambda: node.driver.leftovers() == [])
        await run_pending()
        assert await reserved_mib(node) == 0


async def test_hibernation_that_needs_more_than_the_suspend_reserve_changes_nothing(state: NodeState) -> None:
    async with open_node(state, memory_bytes=GIB + LEAST // 2, memory_reserve_bytes=0, suspend_reserve=LEAST // 2) as node:
        sandbox = await create(node)
        with pytest.raises(UnavailableError) as busy:
            await node.sandboxes.hibernate(OPERATOR, sandbox.id)
        assert (busy.value.code, sandbox.state, node.instance(sandbox).granted) == (ErrorCode.BUSY, State.RUNNING, [])


async def test_sandbox_that_cannot_be_hibernated_at_its_deadline_is_paused(state: NodeState) -> None:
    async with open_node(state, memory_bytes=GIB + LEAST // 2, memory_reserve_bytes=0, suspend_reserve=LEAST // 2) as node:
        sandbox = await create(node, replace(BASE, timeout_s=60.0, on_timeout=OnTimeout.HIBERNATE))
        node.clock.advance(61.0)
        await settled(lambda: sandbox.state is State.PAUSED)


async def test_wake_without_room_for_its_headroom_is_busy_and_stays_hibernated(state: NodeState) -> None:
    async with open_node(state, memory_bytes=GIB + LEAST, memory_reserve_bytes=0, suspend_reserve=LEAST) as node:
        sandbox = await create(node)
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)
        await settled(lambda: node.driver.leftovers() == [])
        with pytest.raises(UnavailableError):
            await node.sandboxes.resume(OPERATOR, sandbox.id)
        assert sandbox.state is State.HIBERNATED
        await settled(lambda: node.driver.leftovers() == [])
        await run_pending()
        assert await reserved_mib(node) == 0


async def test_second_snapshot_keeps_the_headroom_that_the_first_has_left(state: NodeState) -> None:
    async with open_node(state, memory_bytes=GIB + MOST, memory_reserve_bytes=0) as node:
        sandbox = await create(node)
        withdrawing = node.driver.hold("withdraw")
        await node.services.snapshots.create(OPERATOR, sandbox.id)
        await node.driver.faults.reach("withdraw")
        await node.services.snapshots.create(OPERATOR, sandbox.id)
        assert node.instance(sandbox).granted == [MOST, MOST]
        assert await reserved_mib(node) == 1024 + 512
        withdrawing.set()
        await node.instance(sandbox).wait_headroom_withdrawn()
        await run_pending()
        assert await reserved_mib(node) == 1024


async def test_headroom_that_an_earlier_service_has_granted_is_reserved_until_it_is_withdrawn(state: NodeState) -> None:
    withdrawing = state.driver.hold("withdraw")
    async with open_node(state, keep_sandboxes=True, memory_bytes=4 * GIB, memory_reserve_bytes=0) as node:
        sandbox = await create(node)
        await node.services.snapshots.create(OPERATOR, sandbox.id)
        await node.driver.faults.reach("withdraw")
    async with open_node(state, memory_bytes=4 * GIB, memory_reserve_bytes=0) as node:
        recovered = node.sandboxes.find(sandbox.id, OPERATOR)
        await recovered.recovered.wait()
        assert await reserved_mib(node) >= 1024 + 512
        withdrawing.set()
        await node.instance(recovered).wait_headroom_withdrawn()
        await settled(lambda: not node.internals.reservations.leaving())


async def test_headroom_of_a_killed_sandbox_is_released_with_it(state: NodeState) -> None:
    async with open_node(state, memory_bytes=GIB + MOST, memory_reserve_bytes=0) as node:
        sandbox = await create(node)
        node.driver.hold("withdraw")
        await node.services.snapshots.create(OPERATOR, sandbox.id)
        await node.driver.faults.reach("withdraw")
        await node.sandboxes.kill(OPERATOR, sandbox.id)
        await settled(lambda: node.driver.leftovers() == [])
        await run_pending()
        assert await reserved_mib(node) == 0
