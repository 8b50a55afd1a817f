"""The step cache: owners neither see its snapshots nor pay for them, and it is bounded whoever builds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.builds.limits import BuildLimits
from sandlot.builds.step_cache import StepCache, base_key
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import INTERNAL, OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import NotFoundError
from sandlot.model.sandboxes import CreateSandboxParams
from tests.support.node import MemoryNode, NodeState, open_node

ALICE = Principal(OwnerId("a11ce0a11ce0"), "alice", quota=Quota(snapshots=0))
BOB = Principal(OwnerId("b0bb0bb0bb0b"), "bob")
KEYS = [base_key(ALICE.owner, str(number)) for number in range(4)]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MemoryNode]:
    async with open_node(NodeState(tmp_path / "node")) as opened:
        yield opened


@pytest.fixture
async def sandbox(node: MemoryNode) -> Sandbox:
    """A sandbox of a build of Alice."""
    return await node.sandboxes.create(ALICE, CreateSandboxParams(template="base"))


def cache(node: MemoryNode, folder: Path, **limits: float) -> StepCache:
    return StepCache(node.service.node, folder, BuildLimits(**limits), node.clock)  # type: ignore[arg-type]


async def kept(node: MemoryNode) -> list[str]:
    """Return the names of all snapshots, the oldest first, without the prefix and the node."""
    records = await node.store.snapshots.list_by_node(node.service.node.id)
    return [(record.name or "").split("-", 2)[2] for record in records]


async def test_saved_step_is_found_again_and_is_internal(node: MemoryNode, sandbox: Sandbox, tmp_path: Path) -> None:
    steps = cache(node, tmp_path)
    await steps.save(ALICE, sandbox.id, ALICE.owner, KEYS[0])
    found = await steps.find(ALICE.owner, KEYS[0])
    assert found is not None
    assert await steps.find(BOB.owner, KEYS[0]) is None
    for principal in (ALICE, OPERATOR):
        assert (await node.services.snapshots.list(principal, after=None, limit=9)).items == []
        for name in (found.id, found.name or ""):
            with pytest.raises(NotFoundError):
                await node.services.snapshots.get(principal, name)
            with pytest.raises(NotFoundError):
                await node.services.snapshots.delete(principal, name)
    assert await node.store.snapshots.totals(ALICE.owner) == (0, 0)
    page = await node.store.events.page(owner=None, sandbox=None, after=0, limit=99)
    assert not [each for each in page if each.event.type.startswith("snapshot.")]


async def test_only_builds_start_from_a_saved_step(node: MemoryNode, sandbox: Sandbox, tmp_path: Path) -> None:
    steps = cache(node, tmp_path)
    await steps.save(ALICE, sandbox.id, ALICE.owner, KEYS[0])
    found = await steps.find(ALICE.owner, KEYS[0])
    assert found is not None
    params = CreateSandboxParams(snapshot=found.id)
    for principal in (ALICE, OPERATOR):
        with pytest.raises(NotFoundError):
            await node.sandboxes.create(principal, params)
    info = await node.service.node.sandboxes.create(ALICE, params, snapshot_owner=INTERNAL)
    assert node.sandboxes.find(info.id, OPERATOR).owner == ALICE.owner
    assert (info.spec.snapshot, info.spec.restored) == (None, "memory")
    page = await node.store.events.page(owner=None, sandbox=None, after=0, limit=99)
    assert found.id not in str(page)
    await steps.forget(found)
    await steps.forget(found)
    assert await steps.find(ALICE.owner, KEYS[0]) is None


async def test_oldest_steps_of_each_owner_make_room_for_new_ones(node: MemoryNode, sandbox: Sandbox, tmp_path: Path) -> None:
    await cache(node, tmp_path).save(ALICE, sandbox.id, ALICE.owner, KEYS[0])
    size_bytes = (await node.store.snapshots.list_by_node(node.service.node.id))[0].size_bytes
    assert size_bytes
    steps = cache(node, tmp_path, cache_bytes=2 * size_bytes)
    for key in KEYS[1:3]:
        node.clock.advance(1)
        await steps.save(ALICE, sandbox.id, ALICE.owner, key)
    node.clock.advance(1)
    await steps.save(OPERATOR, sandbox.id, BOB.owner, KEYS[0])
    assert await kept(node) == [f"{ALICE.owner}-{KEYS[1][:32]}", f"{ALICE.owner}-{KEYS[2][:32]}", f"{BOB.owner}-{KEYS[0][:32]}"]


async def test_oldest_steps_of_the_node_make_room_for_new_ones(node: MemoryNode, sandbox: Sandbox, tmp_path: Path) -> None:
    await cache(node, tmp_path).save(ALICE, sandbox.id, ALICE.owner, KEYS[0])
    size_bytes = (await node.store.snapshots.list_by_node(node.service.node.id))[0].size_bytes
    steps = cache(node, tmp_path, cache_bytes=2 * size_bytes, node_cache_bytes=3 * size_bytes)
    for owner, key in ((BOB, KEYS[0]), (ALICE, KEYS[1]), (ALICE, KEYS[2]), (ALICE, KEYS[3])):
        node.clock.advance(1)
        await steps.save(OPERATOR, sandbox.id, owner.owner, key)
    assert await kept(node) == [f"{BOB.owner}-{KEYS[0][:32]}", f"{ALICE.owner}-{KEYS[2][:32]}", f"{ALICE.owner}-{KEYS[3][:32]}"]
    node.clock.advance(1)
    await steps.save(OPERATOR, sandbox.id, BOB.owner, KEYS[1])
    assert len(await kept(node)) == 3
    assert f"{BOB.owner}-{KEYS[0][:32]}" not in await kept(node)


async def test_steps_of_all_owners_are_removed_when_they_are_old(node: MemoryNode, sandbox: Sandbox, tmp_path: Path) -> None:
    steps = cache(node, tmp_path, cache_s=60.0)
    await steps.save(ALICE, sandbox.id, ALICE.owner, KEYS[0])
    node.clock.advance(61)
    await steps.save(OPERATOR, sandbox.id, BOB.owner, KEYS[1])
    assert await kept(node) == [f"{BOB.owner}-{KEYS[1][:32]}"]
    node.clock.advance(61)
    await steps.evict()
    assert await kept(node) == []


async def test_snapshots_of_users_are_never_evicted(node: MemoryNode, sandbox: Sandbox, tmp_path: Path) -> None:
    await node.services.snapshots.create(OPERATOR, sandbox.id, name="build-mine-and-old")
    await cache(node, tmp_path, cache_s=0.0, cache_bytes=1).save(ALICE, sandbox.id, ALICE.owner, KEYS[0])
    assert await kept(node) == ["and-old"]
