"""Verification of memory snapshots: it uses only memory that is free, is tried again, and marks what cannot be restored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from sandlot.core.admission import CreateSandboxParams
from sandlot.core.pools.models import PoolSizes
from sandlot.core.sandbox import Sandbox
from sandlot.core.snapshots import verify
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.specs import MIB, Limits
from tests.support.node import Node, NodeState, open_node, settled
from tests.support.service import detach_when_announced

LIMITS = Limits(memory_bytes=256 * MIB, disk_bytes=128 * MIB)
SMALL = replace(LIMITS, memory_bytes=128 * MIB)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A service with 1 GiB of memory for sandboxes, which tries a verification again at once."""
    monkeypatch.setattr(verify, "PAUSE_S", 0.0)
    async with open_node(NodeState(tmp_path), memory_bytes=1024 * MIB, memory_reserve_bytes=0) as node:
        yield node


async def create(node: Node, limits: Limits = LIMITS) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(CreateSandboxParams(template="base", limits=limits), OPERATOR)
    return sandbox


async def fail_restores(node: Node, times: int) -> str:
    """Take a snapshot whose first restores fail, wait until it is verified, and return what is wrong with it."""
    source = await create(node)
    failure = ConflictError("The image is damaged.", code=ErrorCode.SNAPSHOT_UNUSABLE)
    node.driver.fail_next("restore", *[failure] * times)
    snapshot = await node.core.snapshots.create(source.id, OPERATOR)
    await node.core.snapshots.verifier.idle.wait()
    assert node.driver.faults.raises["restore"] == []
    return (await node.core.snapshots.get(snapshot.id, OPERATOR)).problem


async def test_verification_evicts_no_warm_sandbox(node: Node) -> None:
    pool = (await node.pools.create(OPERATOR, "base", "auto", LIMITS, PoolSizes(warm=2, max=2))).pool
    for _ in range(2):
        node.clock.advance(1.0)
        await node.pools.run_until_idle()
    warm = list(pool.ready)
    assert len(warm) == 2
    source = await create(node, SMALL)
    await create(node, replace(SMALL, memory_bytes=300 * MIB))  # leaves less than a copy of the source needs

    with structlog.testing.capture_logs() as logs:
        await node.core.snapshots.create(source.id, OPERATOR)
        await settled(lambda: "snapshot.not_verified_yet" in {entry["event"] for entry in logs})

    assert list(pool.ready) == warm


async def test_lack_of_room_does_not_mark_a_snapshot(node: Node) -> None:
    source = await create(node)
    large = await create(node, replace(LIMITS, memory_bytes=768 * MIB))
    snapshot = await node.core.snapshots.create(source.id, OPERATOR)

    with structlog.testing.capture_logs() as logs:
        node.core.snapshots.verifier.submit(snapshot.id, tries=1)
        await settled(lambda: len(logs) >= 2 * verify.TRIES)
    assert {entry["event"] for entry in logs} == {"snapshot.not_verified_yet"}

    await node.sandboxes.kill(large.id, OPERATOR)
    await node.core.snapshots.verifier.idle.wait()
    assert (await node.core.snapshots.get(snapshot.id, OPERATOR)).problem == ""
    assert len(node.driver.booted) > len({source.id, large.id}), "it was restored"


async def test_service_that_stops_when_the_copy_is_announced_ends_the_copy(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    source = await create(node)
    detached = detach_when_announced(monkeypatch)
    await node.core.snapshots.create(source.id, OPERATOR)
    await node.core.snapshots.verifier.idle.wait()
    (copy,) = detached
    assert not copy.detaching.is_set()
    await copy.ended.wait()
    assert copy.exit == Exit(ExitReason.KILLED, "the service was stopped")


async def test_snapshot_is_marked_after_its_third_failed_restore(node: Node) -> None:
    assert "The image is damaged." in await fail_restores(node, 3)


async def test_snapshot_that_can_be_restored_the_third_time_is_not_marked(node: Node) -> None:
    assert await fail_restores(node, 2) == ""
