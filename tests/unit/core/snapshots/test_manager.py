"""Named snapshots: names, owners, idempotency, quotas, deletion while in use, and a restart. Their content is tested in ``tests/service``."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, LimitError, NotFoundError
from sandlot.model.ids import SnapshotId
from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams, LimitsChange
from sandlot.model.specs import MIB, ProcessSpec
from sandlot.model.states import State
from sandlot.model.streams import Page
from sandlot.model.templates import TemplateDefaults
from tests.support.node import MemoryNode, NodeState, open_node, settled

ALICE = Principal(owner=OwnerId("a11ce0a11ce0"), name="alice")
BOB = Principal(owner=OwnerId("b0bb0bb0bb0b"), name="bob")
BASE = CreateSandboxParams(template="base", limits=LimitsChange(memory_bytes=256 * MIB, disk_bytes=128 * MIB))


@pytest.fixture
async def source(node: MemoryNode) -> Sandbox:
    """A sandbox from which snapshots are taken."""
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, env={"FIRST": "1"}))
    return sandbox


async def start(node: MemoryNode, snapshot: str, principal: Principal = OPERATOR, **fields: Any) -> Sandbox:  # noqa: ANN401
    return await node.sandboxes.create(principal, CreateSandboxParams(snapshot=snapshot, **fields))


async def events(node: MemoryNode, type_: str) -> list[dict[str, object]]:
    page = await node.store.events.page(owner=None, sandbox=None, after=0, limit=1000)
    return [dict(each.event.data) for each in page if each.event.type == type_]


async def kept(node: MemoryNode) -> list[SnapshotRecord]:
    return list(await node.store.snapshots.list_by_node(node.service.node.id))


async def test_snapshot_starts_sandboxes_by_name_and_by_id(node: MemoryNode, source: Sandbox) -> None:
    taken = await node.services.snapshots.create(OPERATOR, source.id, name="set-up")
    page = await node.services.snapshots.list(OPERATOR, after=None, limit=1)
    assert ([each.id for each in page.items], page.more) == ([taken.id], False)
    assert {(await node.services.snapshots.get(OPERATOR, word)).id for word in ("set-up", taken.id)} == {taken.id}
    (event,) = await events(node, "snapshot.created")
    assert event == {"snapshot": taken.id, "name": "set-up", "kind": "memory", "size_bytes": taken.size_bytes}
    for word in ("set-up", taken.id):
        sandbox = await start(node, word)
        assert (sandbox.spec.snapshot, sandbox.spec.restored, sandbox.spec.parent) == (taken.id, "memory", None)
        assert sandbox.spec.limits == source.spec.limits
    assert source.state is State.RUNNING


async def test_creates_are_counted_by_their_source(node: MemoryNode, source: Sandbox) -> None:
    taken = await node.services.snapshots.create(OPERATOR, source.id)
    await node.services.snapshots.verifier.idle.wait()
    await start(node, taken.id)
    await node.internals.forks.create(OPERATOR, source.id, ForkParams())

    counted = node.metrics.text().decode().splitlines()
    for origin, creates in (("template", 1), ("snapshot", 2), ("fork", 1)):  # one sandbox from the snapshot verified it
        assert f'sandlot_creates_total{{isolation="gvisor",outcome="ok",source="{origin}"}} {creates}.0' in counted


async def test_name_is_used_once_per_owner(node: MemoryNode, source: Sandbox) -> None:
    taken = await node.services.snapshots.create(OPERATOR, source.id, name="set-up")
    with pytest.raises(ConflictError, match=f"already: {taken.id}") as refused:
        await node.services.snapshots.create(OPERATOR, source.id, name="set-up")
    assert refused.value.hint
    for name in ("", "-x", "a b", "snap-node-aaaaaaaaaaaaaaaa", "x" * 64):
        with pytest.raises(InvalidRequestError, match=r"snapshot name .* is not valid"):
            await node.services.snapshots.create(OPERATOR, source.id, name=name)
    assert (await node.services.snapshots.create(OPERATOR, source.id, name="snap-mine")).name == "snap-mine"
    hers = await node.sandboxes.create(ALICE, BASE)
    assert (await node.services.snapshots.create(ALICE, hers.id, name="set-up")).id != taken.id


async def test_snapshot_belongs_to_the_owner_of_its_sandbox(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(ALICE, BASE)
    record = await node.services.snapshots.create(OPERATOR, sandbox.id, name="hers")
    assert record.owner == ALICE.owner
    for word in (record.id, "hers"):
        with pytest.raises(NotFoundError):
            await node.services.snapshots.get(BOB, word)
        with pytest.raises(NotFoundError):
            await node.services.snapshots.delete(BOB, word)
        with pytest.raises(NotFoundError):
            await start(node, word, BOB)
    with pytest.raises(NotFoundError):
        await node.services.snapshots.create(BOB, sandbox.id)
    assert await node.services.snapshots.list(BOB, after=None, limit=9) == Page([], more=False)
    await node.services.snapshots.delete(ALICE, "hers")
    assert await kept(node) == []


async def test_repeated_request_takes_one_snapshot_and_creates_one_sandbox(node: MemoryNode, source: Sandbox) -> None:
    snapshots = node.services.snapshots
    first, again = await asyncio.gather(*(snapshots.create(OPERATOR, source.id, name="once", idempotency_key="k") for _ in range(2)))
    assert first.id == again.id == (await snapshots.create(OPERATOR, source.id, name="once", idempotency_key="k")).id
    with pytest.raises(ConflictError, match="A different request"):
        await snapshots.create(OPERATOR, source.id, name="twice", idempotency_key="k")
    params = CreateSandboxParams(snapshot="once")
    made = await node.sandboxes.create(OPERATOR, params, key="create")
    await snapshots.delete(OPERATOR, "once")
    assert (await node.sandboxes.create(OPERATOR, params, key="create")).id == made.id, "also when the snapshot is deleted"
    with pytest.raises(ConflictError, match="A different request"):
        await node.sandboxes.create(OPERATOR, replace(params, env={"A": "B"}), key="create")
    with pytest.raises(NotFoundError):
        await node.sandboxes.create(OPERATOR, params, key="another")


async def test_quotas_limit_number_and_size_of_snapshots(node: MemoryNode, source: Sandbox) -> None:
    await node.services.snapshots.create(OPERATOR, source.id)
    number, size_bytes = await node.store.snapshots.totals(OPERATOR.owner)
    assert number == 1
    for quota in (Quota(snapshots=number), Quota(snapshot_bytes=1), Quota(snapshot_bytes=size_bytes + 1)):
        with pytest.raises(LimitError) as refused:
            await node.services.snapshots.create(replace(OPERATOR, quota=quota), source.id)
        assert refused.value.code is ErrorCode.QUOTA_EXCEEDED
    assert len(await kept(node)) == number
    assert source.state is State.RUNNING


async def test_deleted_snapshot_is_removed_after_the_last_sandbox_has_started(node: MemoryNode, source: Sandbox) -> None:
    record = await node.services.snapshots.create(OPERATOR, source.id)
    await node.services.snapshots.verifier.idle.wait()
    folder = node.state.data_dir / "saved" / record.id
    node.driver.hold("restore")
    starting = [asyncio.create_task(start(node, record.id)) for _ in range(3)]
    await settled(lambda: sum(sandbox.state is State.CREATING for sandbox in node.sandboxes.list(OPERATOR)) == 3)
    await node.services.snapshots.delete(OPERATOR, record.id)
    with pytest.raises(NotFoundError):
        await start(node, record.id)
    assert folder.is_dir()
    node.driver.faults.release("restore")
    assert {sandbox.state for sandbox in await asyncio.gather(*starting)} == {State.RUNNING}
    await settled(lambda: not folder.exists())
    assert {"snapshot": record.id, "name": None, "kind": "memory"} in await events(node, "snapshot.deleted")


async def test_snapshot_of_a_paused_sandbox_leaves_its_guest_armed_and_frozen(node: MemoryNode, source: Sandbox) -> None:
    await node.sandboxes.pause(OPERATOR, source.id)
    guest = node.guest(source)

    await node.services.snapshots.create(OPERATOR, source.id)

    assert [call["armed"] for call in guest.requests("guest.checkpoint")] == [True, True], "by the pause and by the snapshot"
    assert guest.is_frozen
    assert source.state is State.PAUSED


async def test_paused_sandbox_is_frozen_again_after_its_snapshot_failed(node: MemoryNode, source: Sandbox) -> None:
    await node.sandboxes.pause(OPERATOR, source.id)
    node.driver.fail_next("snapshot", HostError("the disk is broken"))

    with pytest.raises(HostError):
        await node.services.snapshots.create(OPERATOR, source.id)

    assert node.guest(source).is_frozen
    assert source.state is State.PAUSED


@pytest.mark.parametrize("fails", [False, True])
async def test_paused_sandbox_that_cannot_be_frozen_again_runs_with_its_timeout_anew(
    node: MemoryNode,
    fails: bool,  # noqa: FBT001 - a parameter
) -> None:
    source = await node.sandboxes.create(OPERATOR, replace(BASE, timeout_s=100))
    await node.sandboxes.pause(OPERATOR, source.id)
    guest = node.guest(source)
    node.driver.fail_next("pause", HostError("cannot freeze"))

    if fails:
        node.driver.fail_next("snapshot", HostError("the disk is broken"))
        with pytest.raises(HostError, match="the disk is broken"):
            await node.services.snapshots.create(OPERATOR, source.id)
    else:
        await node.services.snapshots.create(OPERATOR, source.id)
        assert len(await kept(node)) == 1

    assert source.state is State.RUNNING
    assert not guest.is_frozen
    assert guest.requests("guest.checkpoint")[-1]["armed"] is False
    assert source.deadline.monotonic_s == node.clock.monotonic_s() + 100
    record = await node.store.sandboxes.get(source.id)
    assert record is not None
    assert record.state is State.RUNNING
    assert len(await events(node, "sandbox.resumed")) == 1


async def test_restart_removes_unfinished_snapshots_and_keeps_the_others(state: NodeState) -> None:
    async with open_node(state) as first:
        sandbox = await first.sandboxes.create(OPERATOR, BASE)
        record = await first.services.snapshots.create(OPERATOR, sandbox.id, name="kept")
        await first.store.snapshots.save(replace(record, id=SnapshotId("snap-aaaa-aaaaaaaaaaaaaaaa"), name=None, ready=False))
    saved = state.data_dir / "saved"
    (saved / "snap-half").mkdir()
    async with open_node(state) as second:
        assert [each.id for each in await kept(second)] == [record.id]
        assert [path.name for path in saved.iterdir()] == [record.id]
        assert (await start(second, "kept")).spec.snapshot == record.id


async def test_sandboxes_and_snapshots_keep_the_environment_of_a_deleted_build(node: MemoryNode) -> None:
    templates = node.state.templates
    templates.defaults_of["base"] = TemplateDefaults(build="first")
    templates.envs["first"] = {"MODE": "first"}
    sandbox = await node.sandboxes.create(OPERATOR, BASE)
    taken = await node.services.snapshots.create(OPERATOR, sandbox.id)
    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    del templates.envs["first"]
    await node.sandboxes.resume(OPERATOR, sandbox.id)
    for each in (sandbox, await start(node, taken.id)):
        result = await node.services.processes.run(OPERATOR, each.id, ProcessSpec(("printenv", "MODE")))
        assert result.stdout.text() == "first\n"
