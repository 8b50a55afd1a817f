"""Verification of memory snapshots: it uses only memory that is free, is tried again, and marks what cannot be restored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from sandlot.core.files import overlay
from sandlot.core.sandbox import Sandbox
from sandlot.core.snapshots import verify
from sandlot.model.access import INTERNAL, OPERATOR, OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.pools import PoolSizes
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange, SandboxFilter, SandboxInfo
from sandlot.model.specs import MIB, Limits
from sandlot.model.states import State
from tests.support.node import MemoryNode, NodeState, open_node, settled
from tests.support.service import detach_when_announced
from tests.unit.core.pools.test_manager import new_key

LIMITS = Limits(memory_bytes=256 * MIB, disk_bytes=128 * MIB)
SMALL = replace(LIMITS, memory_bytes=128 * MIB)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryNode]:
    """A service with 1 GiB of memory for sandboxes, which tries a verification again at once."""
    monkeypatch.setattr(verify, "PAUSE_S", 0.0)
    async with open_node(NodeState(tmp_path), memory_bytes=1024 * MIB, memory_reserve_bytes=0) as node:
        yield node


async def create(node: MemoryNode, limits: Limits = LIMITS) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", limits=LimitsChange.to(limits)))
    return sandbox


async def fail_restores(node: MemoryNode, times: int) -> str:
    """Take a snapshot whose first restores fail, wait until it is verified, and return what is wrong with it."""
    source = await create(node)
    failure = ConflictError("The image is damaged.", code=ErrorCode.SNAPSHOT_UNUSABLE)
    node.driver.fail_next("restore", *[failure] * times)
    snapshot = await node.services.snapshots.create(OPERATOR, source.id)
    await node.services.snapshots.verifier.idle.wait()
    assert node.driver.faults.raises["restore"] == []
    return (await node.services.snapshots.get(OPERATOR, snapshot.id)).problem


async def test_verification_evicts_no_warm_sandbox(node: MemoryNode) -> None:
    pool = (await node.pools.create(OPERATOR, "base", "auto", LIMITS, PoolSizes(warm=2, max=2))).pool
    for _ in range(2):
        node.clock.advance(1.0)
        await node.pools.run_until_idle()
    warm = list(pool.ready)
    assert len(warm) == 2
    source = await create(node, SMALL)
    await create(node, replace(SMALL, memory_bytes=300 * MIB))  # leaves less than a copy of the source needs

    with structlog.testing.capture_logs() as logs:
        await node.services.snapshots.create(OPERATOR, source.id)
        await settled(lambda: "snapshot.not_verified_yet" in {entry["event"] for entry in logs})

    assert list(pool.ready) == warm


async def test_lack_of_room_does_not_mark_a_snapshot(node: MemoryNode) -> None:
    source = await create(node)
    large = await create(node, replace(LIMITS, memory_bytes=768 * MIB))
    snapshot = await node.services.snapshots.create(OPERATOR, source.id)

    with structlog.testing.capture_logs() as logs:
        node.services.snapshots.verifier.submit(snapshot.id, tries=1)
        await settled(lambda: len(logs) >= 2 * verify.TRIES)
    assert {entry["event"] for entry in logs} == {"snapshot.not_verified_yet"}

    await node.sandboxes.kill(OPERATOR, large.id)
    await node.services.snapshots.verifier.idle.wait()
    assert (await node.services.snapshots.get(OPERATOR, snapshot.id)).problem == ""
    assert len(node.driver.booted) > len({source.id, large.id}), "it was restored"


async def test_service_that_stops_when_the_copy_is_announced_ends_the_copy(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    source = await create(node)
    detached = detach_when_announced(monkeypatch)
    await node.services.snapshots.create(OPERATOR, source.id)
    await node.services.snapshots.verifier.idle.wait()
    (copy,) = detached
    assert not copy.detaching.is_set()
    await copy.ended.wait()
    assert copy.exit == Exit(ExitReason.KILLED, "the service was stopped")


async def test_snapshot_is_marked_after_its_third_failed_restore(node: MemoryNode) -> None:
    assert "The image is damaged." in await fail_restores(node, 3)


async def test_snapshot_that_can_be_restored_the_third_time_is_not_marked(node: MemoryNode) -> None:
    assert await fail_restores(node, 2) == ""


# Quotas ---------------------------------------------------------------------------------------------------------------

PACKED_BYTES = MIB


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The overlays that were packed. The scripted guest packs no files, so each overlay has ``PACKED_BYTES`` of zeros."""
    layers: list[Path] = []

    async def pack(_sandbox: Sandbox, layer: Path, _base: Path) -> int:
        layers.append(layer)
        layer.write_bytes(bytes(PACKED_BYTES))  # noqa: ASYNC240 - a short write
        return PACKED_BYTES

    monkeypatch.setattr(overlay, "pack_overlay", pack)
    return layers


async def verified_snapshot(node: MemoryNode, principal: Principal) -> SnapshotRecord:
    """Take a snapshot of a new sandbox, and wait until the snapshot is verified."""
    sandbox = await node.sandboxes.create(principal, CreateSandboxParams(template="base", limits=LimitsChange.to(SMALL)))
    snapshot = await node.services.snapshots.create(principal, sandbox.id)
    await node.services.snapshots.verifier.idle.wait()
    return await node.services.snapshots.get(principal, snapshot.id)


async def test_sandbox_of_a_verification_is_in_no_list_of_clients(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    source = await create(node)
    verifying: list[tuple[OwnerId, Sequence[SandboxInfo], Sequence[SandboxInfo]]] = []

    async def pack(sandbox: Sandbox, _layer: Path, _base: Path) -> int:
        listed, own = [await node.services.sandboxes.list(who, SandboxFilter(), after=None, limit=9) for who in (OPERATOR, INTERNAL)]
        verifying.append((sandbox.owner, listed.items, own.items))
        return 0

    monkeypatch.setattr(overlay, "pack_overlay", pack)
    await node.services.snapshots.create(OPERATOR, source.id)
    await node.services.snapshots.verifier.idle.wait()

    ((owner, listed, own),) = verifying
    assert owner == INTERNAL.owner
    assert [info.id for info in listed] == [source.id]
    assert [info.owner for info in own] == [INTERNAL.owner]


async def test_packed_files_count_against_the_quota(node: MemoryNode, packed: list[Path]) -> None:
    anne = await new_key(node, "anne", snapshot_bytes=2 * PACKED_BYTES)

    snapshot = await verified_snapshot(node, anne)

    assert (snapshot.has_overlay, len(packed)) == (True, 1)
    assert await node.store.snapshots.totals(anne.owner) == (1, snapshot.size_bytes)
    assert snapshot.size_bytes > PACKED_BYTES


async def test_packed_files_that_exceed_the_quota_are_removed_and_the_memory_stays_usable(node: MemoryNode, packed: list[Path]) -> None:
    anne = await new_key(node, "anne", snapshot_bytes=PACKED_BYTES)

    snapshot = await verified_snapshot(node, anne)

    assert (snapshot.has_overlay, snapshot.problem) == (False, "")
    assert [layer.exists() for layer in packed] == [False]
    _, total_bytes = await node.store.snapshots.totals(anne.owner)
    assert total_bytes == snapshot.size_bytes <= PACKED_BYTES
    copy = await node.sandboxes.create(anne, CreateSandboxParams(template="base", snapshot=snapshot.id))
    assert (copy.state, copy.spec.restored) == (State.RUNNING, "memory")


async def test_files_are_not_packed_while_the_quota_is_used_up(node: MemoryNode, packed: list[Path]) -> None:
    probe = await verified_snapshot(node, OPERATOR)
    anne = await new_key(node, "anne", snapshot_bytes=probe.size_bytes - PACKED_BYTES)  # exactly the memory

    snapshot = await verified_snapshot(node, anne)

    assert (snapshot.has_overlay, snapshot.problem, len(packed)) == (False, "", 1)


async def test_next_service_packs_the_files_that_exceeded_the_quota(tmp_path: Path, packed: list[Path]) -> None:
    state = NodeState(tmp_path)
    async with open_node(state) as node:
        anne = await new_key(node, "anne", snapshot_bytes=PACKED_BYTES + PACKED_BYTES // 2)
        extra, snapshot = [await verified_snapshot(node, anne) for _ in range(2)]
        assert (extra.has_overlay, snapshot.has_overlay) == (True, False)
        await node.services.snapshots.delete(anne, extra.id)

    async with open_node(state) as node:
        await node.services.snapshots.verifier.idle.wait()
        assert (await node.services.snapshots.get(anne, snapshot.id)).has_overlay
    assert packed[-1].name == packed[-2].name
