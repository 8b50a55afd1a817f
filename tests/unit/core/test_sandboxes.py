"""Operations on sandboxes by id, which return values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sandlot.core.sandboxes import SandboxService
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, NotFoundError, UnavailableError, UnsupportedError
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.pools import PoolSizes
from sandlot.model.ports import DriverCapability, Exit, ExitReason
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams, LimitsChange, SandboxFilter, SandboxInfo, UpdateSandboxParams
from sandlot.model.specs import GIB, MIB, Limits
from sandlot.model.states import State
from tests.support.node import MemoryNode, NodeState, open_node, run_pending, settled

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


async def test_get_finds_own_sandboxes_by_name_and_ended_ones_by_id(sandboxes: SandboxService) -> None:
    first = await sandboxes.create(ALICE, replace(BASE, name="agent"))
    assert (await sandboxes.get(ALICE, "agent")).id == first.id
    await sandboxes.kill(ALICE, first.id)
    second = await sandboxes.create(ALICE, replace(BASE, name="agent"))
    assert (await sandboxes.get(ALICE, "agent")).id == second.id
    ended = await sandboxes.get(ALICE, first.id)
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


async def test_template_of_an_image_makes_nothing_with_a_driver_that_starts_only_folders(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path, capabilities=set(DriverCapability) - {DriverCapability.BOOT_IMAGE})) as node:
        node.state.templates.images.add("base")
        with pytest.raises(UnsupportedError, match="'base'"):
            await node.services.sandboxes.create(ALICE, BASE)
        with pytest.raises(UnsupportedError, match="'base'"):
            await node.pools.create(OPERATOR, "base", "auto", Limits(), PoolSizes(warm=1, max=1))
        assert list((await node.services.sandboxes.list(ALICE, SandboxFilter(), after=None, limit=1)).items) == []
        assert (await node.services.sandboxes.create(ALICE, replace(BASE, template="code-interpreter"))).state is State.RUNNING


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


# Get or create ----------------------------------------------------------------------------------------------------------

AGENT = replace(BASE, name="agent")


def race(sandboxes: SandboxService, count: int, *, key: str | None = None) -> list[asyncio.Task[tuple[SandboxInfo, bool]]]:
    return [asyncio.create_task(sandboxes.get_or_create(ALICE, AGENT, idempotency_key=key)) for _ in range(count)]


async def test_one_of_a_hundred_racing_calls_creates_the_sandbox(node: MemoryNode, sandboxes: SandboxService) -> None:
    results = await asyncio.gather(*race(sandboxes, 100))
    assert len({info.id for info, _ in results}) == 1
    assert [created for _, created in results].count(True) == 1
    assert all(info.state is State.RUNNING for info, _ in results)
    assert [sandbox.id for sandbox in node.sandboxes.list(OPERATOR)] == [results[0][0].id]


async def test_racing_calls_meet_creates_renames_and_ends_of_other_clients(sandboxes: SandboxService) -> None:
    other = await sandboxes.create(ALICE, BASE)
    for other_call in (
        sandboxes.create(ALICE, AGENT),
        sandboxes.update(ALICE, other.id, UpdateSandboxParams(name="agent")),
        sandboxes.create(ALICE, AGENT),
    ):
        other_task = asyncio.create_task(other_call)
        results = await asyncio.gather(*race(sandboxes, 30))
        (winner,) = await asyncio.gather(other_task, return_exceptions=True)
        found = {info.id for info, _ in results}
        if isinstance(winner, SandboxInfo):
            assert (found, {created for _, created in results}) == ({winner.id}, {False})
        else:
            assert isinstance(winner, ConflictError)
            assert (len(found), [created for _, created in results].count(True)) == (1, 1)
        ended = found.pop()
        await sandboxes.kill(ALICE, ended, wait=False)
        info, created = await sandboxes.get_or_create(ALICE, AGENT)
        assert (info.id != ended, created, info.state) == (True, True, State.RUNNING)
        await sandboxes.kill(ALICE, info.id)


async def test_another_call_creates_the_sandbox_after_failed_creates(node: MemoryNode, sandboxes: SandboxService) -> None:
    node.driver.fail_next("boot", *[HostError("The host failed to boot.")] * 3)
    results = await asyncio.gather(*race(sandboxes, 100), return_exceptions=True)
    failed = [each for each in results if isinstance(each, HostError)]
    infos = [each for each in results if not isinstance(each, BaseException)]
    assert (len(failed), len(infos), len({info.id for info, _ in infos})) == (3, 97, 1)
    assert [created for _, created in infos].count(True) == 1


async def test_cancelled_creator_leaves_every_other_call_a_running_sandbox(node: MemoryNode, sandboxes: SandboxService) -> None:
    outcomes = set()
    for turns in range(60):  # of the event loop, from the first response of the guest until the creator has its result
        release = node.driver.hold("connect")
        creator, *others = race(sandboxes, 10)
        await node.driver.faults.reach("connect")
        release.set()
        node.driver.faults.release("connect")
        for _ in range(turns):
            await asyncio.sleep(0)
        others += race(sandboxes, 1)
        await asyncio.sleep(0)
        creator.cancel()
        results = await asyncio.gather(*others)
        await asyncio.wait({creator})
        await run_pending()
        (sandbox,) = node.sandboxes.list(OPERATOR)
        assert ({info.id for info, _ in results}, sandbox.state) == ({sandbox.id}, State.RUNNING)
        outcomes.add((creator.cancelled(), [created for _, created in results].count(True)))
        await sandboxes.kill(ALICE, sandbox.id)
    assert outcomes == {(True, 1), (True, 0), (False, 0)}, "created again, kept for the others, or created before the cancellation"


async def test_existing_sandbox_is_resumed_and_keeps_its_properties(node: MemoryNode, sandboxes: SandboxService) -> None:
    sandbox = await sandboxes.create(ALICE, replace(AGENT, auto_resume=False, timeout_s=600))
    other = replace(AGENT, template="no-such-template", snapshot="no-such-snapshot", timeout_s=5, metadata={"a": "b"})
    for suspend in (sandboxes.pause, sandboxes.hibernate):
        await suspend(ALICE, sandbox.id)
        info, created = await sandboxes.get_or_create(ALICE, other)
        assert (info.id, created, info.state, info.spec.timeout_s, dict(info.metadata)) == (sandbox.id, False, State.RUNNING, 600, {})
    suspending = asyncio.create_task(sandboxes.hibernate(ALICE, sandbox.id))
    await settled(lambda: node.sandboxes.find(sandbox.id, ALICE).state is State.HIBERNATING)
    info, created = await sandboxes.get_or_create(ALICE, other)
    await suspending
    assert (info.id, created, info.state) == (sandbox.id, False, State.RUNNING)
    assert [mine for _, mine in await asyncio.gather(*(sandboxes.get_or_create(who, AGENT) for who in (BOB, OPERATOR)))] == [True, True]


async def test_sandbox_that_does_not_exist_is_created_from_its_snapshot(node: MemoryNode, sandboxes: SandboxService) -> None:
    source = await sandboxes.create(ALICE, BASE)
    snapshot = await node.services.snapshots.create(ALICE, source.id)
    results = await asyncio.gather(*(sandboxes.get_or_create(ALICE, replace(AGENT, template=None, snapshot=snapshot.id)) for _ in range(9)))
    assert [created for _, created in results].count(True) == 1
    assert {(info.id, info.spec.snapshot) for info, _ in results} == {(results[0][0].id, snapshot.id)}
    with pytest.raises(NotFoundError):
        await sandboxes.get_or_create(ALICE, CreateSandboxParams(name="other", snapshot="no-such-snapshot"))


async def test_repeated_get_or_create_says_again_that_it_created_the_sandbox(node: MemoryNode, sandboxes: SandboxService) -> None:
    hold = node.state.database.faults.hold("sandboxes.save")
    calls = race(sandboxes, 20, key="k")
    await hold.reached()
    calls += [*race(sandboxes, 20), *race(sandboxes, 1, key="k")]  # while no record has the key
    await run_pending()
    hold.release()
    results = await asyncio.gather(*calls)
    first = results[0][0]
    assert {info.id for info, _ in results} == {first.id}
    assert [created for _, created in results] == [True] * 20 + [False] * 20 + [True]
    with pytest.raises(ConflictError):
        await sandboxes.get_or_create(ALICE, replace(AGENT, env={"A": "1"}), idempotency_key="k")
    assert (await sandboxes.get_or_create(ALICE, AGENT, idempotency_key="other"))[1] is False
    await sandboxes.kill(ALICE, first.id)
    info, created = await sandboxes.get_or_create(ALICE, AGENT, idempotency_key="k")
    assert (info.id, info.is_over, created) == (first.id, True, True), "as for a repeated create"
    info, created = await sandboxes.get_or_create(ALICE, AGENT, idempotency_key="other")
    assert (info.id != first.id, created) == (True, True), "the first request with this key has created nothing"
    with pytest.raises(InvalidRequestError):
        await sandboxes.get_or_create(ALICE, AGENT, idempotency_key="no key")


async def test_get_or_create_needs_a_name(sandboxes: SandboxService) -> None:
    with pytest.raises(InvalidRequestError):
        await sandboxes.get_or_create(ALICE, BASE)


async def test_sandbox_is_found_by_its_name_after_a_restart_of_the_service(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    async with open_node(state, keep_sandboxes=True) as node:
        running = await node.services.sandboxes.create(ALICE, AGENT)
        hibernated = await node.services.sandboxes.create(ALICE, replace(AGENT, name="hibernated"))
        await node.services.sandboxes.hibernate(ALICE, hibernated.id)
    hold = state.driver.hold("adopt")
    async with open_node(state) as node:
        sandboxes = node.services.sandboxes
        calls = race(sandboxes, 10)
        with pytest.raises(ConflictError):
            await sandboxes.create(ALICE, AGENT)
        hold.set()
        assert {(info.id, created) for info, created in await asyncio.gather(*calls)} == {(running.id, False)}
        info, created = await sandboxes.get_or_create(ALICE, replace(AGENT, name="hibernated"))
        assert (info.id, created, info.state) == (hibernated.id, False, State.RUNNING)


async def test_waiting_calls_are_answered_when_the_service_stops(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    async with open_node(state, keep_sandboxes=True) as node:
        hold = node.driver.hold("connect")
        calls = race(node.services.sandboxes, 10)
        await node.driver.faults.reach("connect")
        closing = asyncio.create_task(node.internals.manager.aclose(keep=True))
        await run_pending()
        hold.set()
        await closing
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in results} == {UnavailableError}
    assert state.driver.leftovers() == []
