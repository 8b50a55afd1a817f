"""Forks as a whole: what children inherit, idempotency, all or none, and the trees that they grow into."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.admission_controller import AdmissionController
from sandlot.core.lifecycle import memory_images
from sandlot.core.resources.reservations import Reservation
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandboxEndedError, UnavailableError
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams, LimitsChange
from sandlot.model.specs import MIB, Limits, OnTimeout
from sandlot.model.states import State
from tests.support.node import MemoryNode, NodeState, open_node, settled

ALICE = Principal(owner=OwnerId("a11ce0a11ce0"), name="alice")
LIMITS = Limits(memory_bytes=256 * MIB, disk_bytes=128 * MIB)
BASE = CreateSandboxParams(template="base", limits=LimitsChange.to(LIMITS), network=NetworkPolicy(NetworkMode.NONE))
PARENT = replace(
    BASE,
    name="root",
    env={"FIRST": "1", "BOTH": "1"},
    metadata={"a": "b", "sandlot.api": "x"},
    on_timeout=OnTimeout.PAUSE,
    idle_timeout_s=1000.0,
)


@pytest.fixture
async def parent(node: MemoryNode) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, PARENT)
    return sandbox


async def fork(
    node: MemoryNode,
    sandbox: Sandbox,
    count: int = 1,
    principal: Principal = OPERATOR,
    key: str | None = None,
    **fields: Any,  # noqa: ANN401
) -> list[Sandbox]:
    return list(await node.internals.forks.create(principal, sandbox.id, ForkParams(count, **fields), key=key))


async def kill(node: MemoryNode, *sandboxes: Sandbox) -> None:
    await asyncio.gather(*(node.sandboxes.kill(OPERATOR, sandbox.id) for sandbox in sandboxes))


def live(node: MemoryNode) -> set[str]:
    return {sandbox.id for sandbox in node.sandboxes.list(OPERATOR)}


async def no_image_is_left(state: NodeState) -> None:
    saved = state.data_dir / "saved"
    await settled(lambda: not saved.is_dir() or not list(saved.iterdir()))


async def test_children_inherit_from_their_parent_and_get_what_the_request_names(node: MemoryNode, state: NodeState, parent: Sandbox) -> None:
    children = await fork(node, parent, 3, env={"BOTH": "2"}, name="child", timeout_s=77.0)
    for number, child in enumerate(children, 1):
        assert (child.spec.parent, child.spec.restored, child.spec.snapshot, child.name) == (parent.id, "memory", None, f"child-{number}")
        assert (child.spec.limits, child.spec.network.mode, child.spec.on_timeout) == (LIMITS, NetworkMode.NONE, OnTimeout.PAUSE)
        assert child.idle_timeout_s == 1000.0
        assert dict(child.metadata) == {"a": "b"}, "the service's own metadata is not copied"
        assert (child.owner, child.spec.timeout_s, child.state) == (parent.owner, 77.0, State.RUNNING)
        assert dict(child.spec.env).items() >= {"FIRST": "1", "BOTH": "2"}.items()
    assert parent.state is State.RUNNING
    await no_image_is_left(state)


async def test_fork_leaves_a_resting_parent_at_rest(node: MemoryNode, parent: Sandbox) -> None:
    for rest, state in ((node.sandboxes.pause, State.PAUSED), (node.sandboxes.hibernate, State.HIBERNATED)):
        await rest(OPERATOR, parent.id)
        (child,) = await fork(node, parent)
        assert (parent.state, child.state) == (state, State.RUNNING)
        assert child.spec.timeout_s == parent.spec.timeout_s


async def test_repeated_request_forks_once(node: MemoryNode, parent: Sandbox) -> None:
    first, again = await asyncio.gather(*(fork(node, parent, 2, key="k") for _ in range(2)))
    assert [each.id for each in first] == [each.id for each in again]
    assert live(node) == {parent.id, *(each.id for each in first)}
    with pytest.raises(ConflictError, match="A different request"):
        await fork(node, parent, 3, key="k")
    await kill(node, *first)
    assert [each.id for each in await fork(node, parent, 2, key="k")] == [each.id for each in first], "also when they have ended"
    await kill(node, parent)
    assert [each.id for each in await fork(node, parent, 2, key="k")] == [each.id for each in first], "also when their parent has"


async def test_incomplete_batch_of_an_earlier_service_is_replaced_when_the_request_is_repeated(node: MemoryNode, parent: Sandbox) -> None:
    made = await fork(node, parent, 3, key="half")
    await kill(node, made[1])
    await settled(lambda: made[1].id not in live(node))
    await node.store.sandboxes.delete_ended(node.internals.clock.now().replace(year=9999))  # as if it had never been recorded
    again = await fork(node, parent, 3, key="half")
    assert {each.id for each in made} & {each.id for each in again} == set()
    assert live(node) == {parent.id, *(each.id for each in again)}


async def test_fork_above_a_quota_or_the_capacity_makes_no_child(state: NodeState) -> None:
    async with open_node(state, memory_bytes=2048 * MIB) as node:
        parent = await node.sandboxes.create(OPERATOR, PARENT)
        with pytest.raises(LimitError) as over:
            await fork(node, parent, 3, replace(OPERATOR, quota=Quota(sandboxes=3)))
        assert dict(over.value.fields) == {"quota": "sandboxes", "limit": 3, "used": 1, "requested": 3, "retry_after_s": 5}
        # The node can give 1536 MiB to its sandboxes, of which the parent has 256.
        with pytest.raises(UnavailableError) as full:
            await fork(node, parent, 6)
        assert full.value.code is ErrorCode.BUSY
        assert full.value.fields["needed"] > full.value.fields["free"]
        with pytest.raises(InvalidRequestError, match="7 sandboxes with these limits can never fit on this node together") as never:
            await fork(node, parent, 7)
        assert never.value.fields["field"] == "count"
        assert never.value.fields["needed"] > never.value.fields["capacity"]
        assert (await node.reservations.reserved()).memory_bytes == 256 * MIB, "nothing is reserved for what was refused"
        assert live(node) == {parent.id}
        await no_image_is_left(state)
        assert parent.state is State.RUNNING


async def test_create_that_comes_between_takes_no_room_of_the_children(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    admit_batch, creates = AdmissionController.admit_batch, []
    async with open_node(state, memory_bytes=768 * MIB, memory_reserve_bytes=0) as node:
        parent = await node.sandboxes.create(OPERATOR, PARENT)

        async def admit_then_create(self: AdmissionController, *args: Any) -> list[Reservation]:  # noqa: ANN401
            reservations = await admit_batch(self, *args)
            creates.append(asyncio.create_task(node.sandboxes.create(OPERATOR, BASE)))
            return reservations

        monkeypatch.setattr(AdmissionController, "admit_batch", admit_then_create)
        children = await fork(node, parent, 2)

        with pytest.raises(UnavailableError) as full:
            await creates[0]
        assert full.value.code is ErrorCode.BUSY
        assert live(node) == {parent.id, *(child.id for child in children)}
        assert (await node.reservations.reserved()).memory_bytes == 768 * MIB


async def test_child_that_cannot_start_ends_its_siblings(node: MemoryNode, state: NodeState, parent: Sandbox) -> None:
    node.driver.fail_next("restore", UnavailableError("The host is short of memory.", code=ErrorCode.BUSY))
    with pytest.raises(UnavailableError, match="memory"):
        await fork(node, parent, 3)
    await settled(lambda: live(node) == {parent.id})
    await no_image_is_left(state)
    assert parent.state is State.RUNNING
    assert len(await fork(node, parent, 3)) == 3


async def test_cancelled_fork_leaves_no_child(node: MemoryNode, state: NodeState, parent: Sandbox) -> None:
    for step in ("snapshot", "prepare", "restore"):
        node.driver.hold(step)
        forking = asyncio.create_task(fork(node, parent, 3))
        await node.driver.faults.reach(step)
        forking.cancel()
        await asyncio.sleep(0)
        node.driver.faults.release(step)
        with pytest.raises(asyncio.CancelledError):
            await forking
        await settled(lambda: live(node) == {parent.id})
        await no_image_is_left(state)
    assert parent.state is State.RUNNING


async def test_fork_that_is_cancelled_while_its_folder_is_made_leaves_no_folder(
    node: MemoryNode, state: NodeState, parent: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, released, make = asyncio.Event(), threading.Event(), memory_images._make
    loop = asyncio.get_running_loop()

    def make_later(folder: Path) -> None:
        loop.call_soon_threadsafe(reached.set)
        released.wait()
        make(folder)

    monkeypatch.setattr(memory_images, "_make", make_later)
    forking = asyncio.create_task(fork(node, parent, 2))
    await reached.wait()
    forking.cancel()
    await asyncio.sleep(0)
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await forking
    await node.internals.forks.tasks.wait()
    await no_image_is_left(state)
    assert live(node) == {parent.id}


async def test_tree_has_all_generations_and_promote_ends_the_siblings(node: MemoryNode) -> None:
    forks, root, lone = node.internals.forks, await node.sandboxes.create(OPERATOR, BASE), await node.sandboxes.create(OPERATOR, BASE)
    node.clock.advance(1.0)  # the tree is listed by age
    a, b, c = await fork(node, root, 3)
    (a1, a2), (b1,) = await fork(node, a, 2), await fork(node, b, 1, metadata={"set": "2"})
    (b11,) = await fork(node, b1)
    family = {each.id for each in (root, a, b, c, a1, a2, b1, b11)}
    for member in (root, b11, c):
        tree = await forks.get_tree(OPERATOR, member.id)
        assert (tree.root, tree.sandboxes[0].id, {each.id for each in tree.sandboxes}) == (root.id, root.id, family)
    assert [each.id for each in (await forks.get_tree(OPERATOR, lone.id)).sandboxes] == [lone.id]

    await kill(node, b)  # its own forks keep running, and end with its siblings
    with pytest.raises(SandboxEndedError):
        await forks.promote(OPERATOR, b.id)
    assert (await forks.promote(OPERATOR, a.id, among={"set": "none"})).ended == ()
    promoted = await forks.promote(OPERATOR, a.id)
    assert (promoted.kept, set(promoted.ended), promoted.failed) == (a.id, {c.id, b1.id, b11.id}, {})
    assert (await forks.promote(OPERATOR, a.id)).ended == ()
    assert live(node) == {root.id, lone.id, a.id, a1.id, a2.id}
    states = {each.id: each.state for each in (await forks.get_tree(OPERATOR, a2.id)).sandboxes}
    assert {id_ for id_, each in states.items() if each is State.RUNNING} == {root.id, a.id, a1.id, a2.id}
    assert {id_ for id_, each in states.items() if each is State.STOPPED} == {b.id, c.id, b1.id, b11.id}, "ended ones are remembered"
    for stranger in (root, lone):
        with pytest.raises(ConflictError, match="is not a child of a fork"):
            await forks.promote(OPERATOR, stranger.id)
    with pytest.raises(NotFoundError):
        await forks.get_tree(ALICE, root.id)
    with pytest.raises(NotFoundError):
        await forks.promote(ALICE, a.id)
