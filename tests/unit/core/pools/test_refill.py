"""Order of refills of shared and private pools, and the room that private pools give to shared ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.pools import policy, template_snapshots
from sandlot.core.pools.pool import Pool
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.specs import GIB, MIB
from tests.support.node import MemoryNode, NodeState, open_node, settled
from tests.unit.core.pools.test_manager import LIMITS, NO_SNAPSHOTS, create, create_pool, new_key, refill, reserved_gib


async def private_pool(node: MemoryNode, *, warm: int, gib: int = 1, principal: Principal | None = None) -> Pool:
    """Create a pool of a key that may have 20 sandboxes."""
    owner = principal or await new_key(node, "anne", sandboxes=20)
    return await create_pool(node, owner, warm=warm, grow_to=max(1, warm), limits=replace(LIMITS, memory_bytes=gib * GIB))


async def shared_pool(node: MemoryNode, *, warm: int, gib: int = 1) -> Pool:
    return await create_pool(node, OPERATOR, warm=warm, limits=replace(LIMITS, memory_bytes=gib * GIB))


async def refill_for_a_minute(node: MemoryNode) -> None:
    """Refill again and again: an eviction puts off refills by 10 s, and work is followed by a rest."""
    for _ in range(30):
        await refill(node)


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    """The parts of a node whose driver has no snapshots, so that warm sandboxes are booted."""
    return NodeState(tmp_path, capabilities=NO_SNAPSHOTS)


async def test_private_pool_gives_its_room_to_a_shared_one_and_no_more_of_it(state: NodeState) -> None:
    async with open_node(state, memory_bytes=5 * GIB, memory_reserve_bytes=0) as node:
        private = await private_pool(node, warm=9)
        await refill_for_a_minute(node)
        assert len(private.ready) == 4

        shared = await shared_pool(node, warm=1)
        await refill_for_a_minute(node)

        assert len(shared.ready) == 1
        assert len(private.ready) == 3  # room for one that waits, and for a sandbox of that size besides


async def test_private_warm_sandbox_stays_where_its_room_would_not_be_enough(state: NodeState) -> None:
    async with open_node(state, memory_bytes=6 * GIB, memory_reserve_bytes=0) as node:
        await create(node, limits=replace(LIMITS, memory_bytes=3 * GIB))
        private = await private_pool(node, warm=1)
        await refill_for_a_minute(node)
        (kept,) = private.ready

        shared = await shared_pool(node, warm=1, gib=2)
        await refill_for_a_minute(node)

        assert (list(shared.ready), list(private.ready)) == ([], [kept])


async def test_unfinished_private_warm_sandbox_gives_its_room_to_a_shared_one(state: NodeState) -> None:
    async with open_node(state, memory_bytes=2 * GIB + 512 * MIB, memory_reserve_bytes=0) as node:
        release = node.driver.hold("boot")
        private = await private_pool(node, warm=1)
        node.clock.advance(1.0)
        await node.driver.faults.reach("boot")

        shared = await shared_pool(node, warm=1)
        node.clock.advance(1.0)
        await settled(lambda: not private.filling)
        release.set()
        await refill_for_a_minute(node)

        assert len(shared.ready) == 1
        assert private.total_warm == 0


async def test_template_snapshot_of_a_shared_pool_gets_the_room_of_private_warm_sandboxes(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path), memory_bytes=3 * GIB, memory_reserve_bytes=0) as node:
        private = await private_pool(node, warm=1)
        await refill_for_a_minute(node)
        assert len(private.ready) == 1
        release = node.driver.hold("prepare")

        await shared_pool(node, warm=1, gib=3)
        node.clock.advance(1.0)
        await settled(lambda: len(private.ready) == 0)
        await node.pools.update(OPERATOR, private.id, warm=0)  # so that the next start is the shared pool's
        node.clock.advance(20.0)  # an eviction puts off refills by 10 s
        await node.driver.faults.reach("prepare")

        assert await reserved_gib(node) == 3
        release.set()


async def test_private_pools_are_filled_one_at_a_time_and_beside_the_shared_ones(state: NodeState) -> None:
    async with open_node(state) as node:
        release = node.driver.hold("boot")
        private = [await private_pool(node, warm=2, principal=await new_key(node, name, sandboxes=20)) for name in ("anne", "bob")]
        node.clock.advance(1.0)
        await node.driver.faults.reach("boot")

        shared = await shared_pool(node, warm=2)
        node.clock.advance(1.0)
        await settled(lambda: len(shared.filling) == 1)

        assert sum(len(pool.filling) for pool in private) == 1
        release.set()
        await refill_for_a_minute(node)
        assert len(shared.ready) == 2


async def test_pause_after_filling_a_private_pool_does_not_delay_shared_ones(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "rest_s", lambda _: 1000.0)
    async with open_node(state) as node:
        private = await private_pool(node, warm=2)
        await refill(node)
        shared = await shared_pool(node, warm=1)
        await refill(node)

        assert (len(private.ready), len(shared.ready)) == (1, 1)


async def test_next_fill_begins_when_the_pause_after_the_last_one_ends(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "rest_s", lambda _: 0.25)
    async with open_node(state) as node:
        pool = await shared_pool(node, warm=policy.MAX_FILLS + 1)
        node.clock.advance(1.0)
        await node.pools.run_until_idle()
        assert len(pool.ready) == policy.MAX_FILLS

        node.clock.advance(0.25)

        await settled(lambda: len(pool.ready) == policy.MAX_FILLS + 1)


async def test_unfinished_private_warm_sandbox_is_evicted_before_a_shared_one(state: NodeState) -> None:
    async with open_node(state, memory_bytes=5 * GIB, memory_reserve_bytes=0) as node:
        shared = await shared_pool(node, warm=1)
        await refill(node)
        (kept,) = shared.ready
        release = node.driver.hold("boot")
        private = await private_pool(node, warm=1)
        node.clock.advance(1.0)
        await node.driver.faults.reach("boot")

        creating = asyncio.create_task(create(node, limits=replace(LIMITS, memory_bytes=4 * GIB)))
        await settled(lambda: not private.filling)
        release.set()
        await creating

        assert list(shared.ready) == [kept]


async def test_template_snapshot_of_a_private_pool_is_made_only_for_warm_sandboxes_and_evicted_first(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        release = node.driver.hold("prepare")
        anne = await new_key(node, "anne", sandboxes=20)
        await private_pool(node, warm=0, gib=5, principal=anne)  # nothing waits there before a request
        await private_pool(node, warm=1, gib=3, principal=anne)
        node.clock.advance(1.0)
        await node.driver.faults.reach("prepare")
        assert await reserved_gib(node) == 3

        assert node.services.pools._refiller.evict_next() is not None  # noqa: SLF001
        await settled(lambda: not node.internals.reservations.leaving())

        assert await reserved_gib(node) == 0
        release.set()


async def test_template_snapshot_of_a_private_pool_does_not_delay_a_shared_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_snapshots, "PRIVATE_MAKE_S", 0.2)
    async with open_node(NodeState(tmp_path)) as node:
        node.driver.hold("prepare")
        private = await private_pool(node, warm=1, gib=6)
        node.clock.advance(1.0)
        await settled(lambda: node.pools.find(OPERATOR, private.id).error == "The time limit was exceeded.")

        shared = await shared_pool(node, warm=1, gib=7)
        node.clock.advance(1.0)
        pools = node.services.pools
        await settled(lambda: pools._snapshots.allocation is not None and not pools._refiller._snapshot_is_private)  # noqa: SLF001

        assert node.pools.find(OPERATOR, shared.id).error == ""
