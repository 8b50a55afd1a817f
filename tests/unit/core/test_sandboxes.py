"""Operations on sandboxes by id, which return values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sandlot.core.sandboxes import SandboxService
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.ports import DriverCapability, Exit, ExitReason
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams, LimitsChange, SandboxFilter, UpdateSandboxParams
from sandlot.model.specs import GIB, MIB, Limits
from sandlot.model.states import State
from tests.support.node import MemoryNode, NodeState, open_node, settled

ALICE, BOB = Principal(OwnerId("a" * 12), "alice"), Principal(OwnerId("b" * 12), "bob")
BASE = CreateSandboxParams(template="base", limits=LimitsChange(memory_bytes=GIB))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MemoryNode]:
    async with open_node(NodeState(tmp_path)) as node:
        yield node


@pytest.fixture
def sandboxes(node: MemoryNode) -> SandboxService:
    return node.services.sandboxes


async def test_create_request_without_properties_has_the_defaults(sandboxes: SandboxService) -> None:
    spec = (await sandboxes.create(ALICE, CreateSandboxParams())).spec
    assert (spec.limits, spec.network.mode, spec.isolation) == (Limits(), NetworkMode.PACKAGES, "gvisor")


async def test_snapshot_decides_what_the_create_request_leaves_out(node: MemoryNode, sandboxes: SandboxService) -> None:
    source = await sandboxes.create(
        ALICE, replace(BASE, limits=LimitsChange(memory_bytes=512 * MIB), network=NetworkPolicy(NetworkMode.NONE), env={"A": "1"})
    )
    snapshot = await node.services.snapshots.create(ALICE, source.id)
    copy = await sandboxes.create(ALICE, CreateSandboxParams(snapshot=snapshot.id), idempotency_key="k")
    assert (copy.spec.template.name, copy.spec.limits, copy.spec.network.mode, copy.spec.env) == (
        "base",
        source.spec.limits,
        NetworkMode.NONE,
        {"A": "1"},
    )
    larger = CreateSandboxParams(snapshot=snapshot.id, limits=LimitsChange(pids=1024))
    assert (await sandboxes.create(ALICE, larger)).spec.limits == replace(source.spec.limits, pids=1024)
    assert (await sandboxes.create(ALICE, CreateSandboxParams(snapshot=snapshot.id), idempotency_key="k")).id == copy.id
    with pytest.raises(ConflictError):
        await sandboxes.create(ALICE, larger, idempotency_key="k")


def test_limits_out_of_range_are_refused_when_the_parameters_are_made() -> None:
    with pytest.raises(InvalidRequestError):
        LimitsChange(memory_bytes=1)


async def test_get_finds_own_sandboxes_by_name_and_ended_ones_by_id(node: MemoryNode, sandboxes: SandboxService) -> None:
    first = await sandboxes.create(ALICE, replace(BASE, name="agent"))
    node.clock.advance(1)
    second = await sandboxes.create(ALICE, replace(BASE, name="agent"))
    assert (await sandboxes.get(ALICE, "agent")).id == second.id
    await sandboxes.kill(ALICE, second.id)
    assert (await sandboxes.get(ALICE, "agent")).id == first.id
    ended = await sandboxes.get(ALICE, second.id)
    assert (ended.is_over, ended.state, ended.exit is not None) == (True, State.STOPPED, True)
    for principal, word in ((BOB, "agent"), (BOB, first.id), (OPERATOR, "agent")):
        with pytest.raises(NotFoundError):
            await sandboxes.get(principal, word)


async def test_sandbox_shows_as_stopping_once_its_end_is_requested(node: MemoryNode, sandboxes: SandboxService) -> None:
    sandbox = await sandboxes.create(ALICE, BASE)
    release = node.driver.hold("destroy")
    await sandboxes.kill(ALICE, sandbox.id, wait=False)
    shown = await sandboxes.get(ALICE, sandbox.id)
    running = await sandboxes.list(ALICE, SandboxFilter(states=frozenset({State.RUNNING})), after=None, limit=9)
    release.set()
    assert (shown.state, shown.is_over, running.items) == (State.STOPPING, False, [])
    await sandboxes.kill(ALICE, sandbox.id)
    assert (await sandboxes.get(ALICE, sandbox.id)).is_over


async def test_single_use_sandbox_ends_when_the_service_stops(node: MemoryNode, sandboxes: SandboxService) -> None:
    source = await sandboxes.create(ALICE, BASE)
    snapshot = await node.services.snapshots.create(ALICE, source.id)
    for params in (BASE, CreateSandboxParams(snapshot=snapshot.id)):
        sandbox = await sandboxes.create(ALICE, params, single_use=True)
        node.internals.registry.find(sandbox.id, ALICE).detach()
        await sandboxes.kill(ALICE, sandbox.id)
        ended = await sandboxes.get(ALICE, sandbox.id)
        assert ended.exit == Exit(ExitReason.KILLED, "the service was stopped")
        assert ended.ended_error().fields == {"sandbox": sandbox.id, "reason": "killed", "detail": "the service was stopped"}


async def test_value_describes_the_moment_of_the_call(node: MemoryNode, sandboxes: SandboxService) -> None:
    created = await sandboxes.create(ALICE, replace(BASE, timeout_s=600, idle_timeout_s=60, metadata={"a": "b"}))
    node.clock.advance(20)
    shown = await sandboxes.get(ALICE, created.id)
    assert shown.idle_since is not None
    assert shown.expires_at is not None
    assert (shown.as_of - created.as_of, shown.as_of - shown.idle_since) == (timedelta(seconds=20), timedelta(seconds=20))
    assert (shown.expires_at - shown.as_of, shown.idle_timeout_s) == (timedelta(seconds=580), 60)
    await sandboxes.update(ALICE, created.id, UpdateSandboxParams(name="new", metadata={"c": "d"}))
    assert (shown.name, shown.metadata) == (None, {"a": "b"})
    async with node.internals.registry.find(created.id, ALICE).connection():
        assert (await sandboxes.get(ALICE, created.id)).idle_since is None


async def test_pages_follow_each_other(node: MemoryNode, sandboxes: SandboxService) -> None:
    created = []
    for _ in range(3):
        created.append((await sandboxes.create(ALICE, BASE)).id)
        node.clock.advance(1)
    first = await sandboxes.list(ALICE, SandboxFilter(), after=None, limit=2)
    rest = await sandboxes.list(ALICE, SandboxFilter(), after=Position(first.items[-1].created_at, first.items[-1].id), limit=2)
    assert [each.id for each in (*first.items, *rest.items)] == created
    assert (first.more, rest.more) == (True, False)


async def test_operation_goes_on_after_the_wait(node: MemoryNode, sandboxes: SandboxService) -> None:
    sandbox = await sandboxes.create(ALICE, BASE)
    release = node.driver.hold("pause")
    assert (await sandboxes.pause(ALICE, sandbox.id, wait_s=0)).state is State.RUNNING
    release.set()
    live = node.internals.registry.find(sandbox.id, ALICE)
    await settled(lambda: live.state is State.PAUSED)
    assert (await sandboxes.resume(ALICE, sandbox.id, wait_s=60)).state is State.RUNNING


@pytest.mark.parametrize("missing, state", [((), State.HIBERNATED), ((DriverCapability.SNAPSHOT,), State.PAUSED)])
async def test_suspend_hibernates_where_the_isolation_can(tmp_path: Path, missing: tuple[DriverCapability, ...], state: State) -> None:
    async with open_node(NodeState(tmp_path, capabilities=set(DriverCapability) - set(missing))) as node:
        sandbox = await node.services.sandboxes.create(ALICE, BASE)
        assert (await node.services.sandboxes.suspend(ALICE, sandbox.id)).state is state


async def test_ensure_running_resumes_only_with_auto_resume(sandboxes: SandboxService) -> None:
    sandbox = await sandboxes.create(ALICE, BASE)
    await sandboxes.pause(ALICE, sandbox.id)
    assert (await sandboxes.ensure_running(ALICE, sandbox.id)).state is State.RUNNING
    await sandboxes.update(ALICE, sandbox.id, UpdateSandboxParams(auto_resume=False))
    await sandboxes.pause(ALICE, sandbox.id)
    with pytest.raises(ConflictError) as refused:
        await sandboxes.ensure_running(ALICE, sandbox.id)
    assert refused.value.code is ErrorCode.SANDBOX_PAUSED


async def test_check_asks_the_guest(sandboxes: SandboxService) -> None:
    sandbox = await sandboxes.create(ALICE, BASE)
    assert (await sandboxes.check(ALICE, sandbox.id, timeout_s=5)).identity == sandbox.id


async def test_fork_and_tree_give_values(sandboxes: SandboxService) -> None:
    parent = await sandboxes.create(ALICE, replace(BASE, limits=LimitsChange(memory_bytes=512 * MIB)))
    children = await sandboxes.fork(ALICE, parent.id, ForkParams(count=2))
    tree = await sandboxes.tree(ALICE, children[0].id)
    assert (tree.root, {each.id for each in tree.sandboxes}) == (parent.id, {parent.id, *(child.id for child in children)})
    assert {child.spec.parent for child in children} == {parent.id}


async def test_sandbox_of_another_owner_is_not_found(sandboxes: SandboxService) -> None:
    sandbox = await sandboxes.create(ALICE, BASE)
    for operation in (
        sandboxes.pause(BOB, sandbox.id),
        sandboxes.suspend(BOB, sandbox.id),
        sandboxes.resume(BOB, sandbox.id, wait_s=1),
        sandboxes.kill(BOB, sandbox.id, wait=False),
        sandboxes.ensure_running(BOB, sandbox.id),
        sandboxes.check(BOB, sandbox.id, timeout_s=1),
        sandboxes.ports(BOB, sandbox.id),
    ):
        with pytest.raises(NotFoundError):
            await operation
    assert (await sandboxes.get(ALICE, sandbox.id)).state is State.RUNNING
