"""Pools of warm sandboxes: claims, refills, evictions, quotas and restarts.

Core runs on the driver and the store of ``sandlot.testing.memory`` and on a manual clock. The guest is scripted: it stands behind
a ``ByteStream``, is reached through the real ``Link``, responds to every request at once and records it. No process is started and
no time passes: a test advances the clock and calls :func:`refill`.

``tests/conformance`` runs the in-memory driver, guest and store through the same suites as the real ones.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.pools import policy
from sandlot.core.pools.config_file import POOLS_FILE
from sandlot.core.pools.models import PoolSpec
from sandlot.core.pools.pool import Pool
from sandlot.core.pools.warm import NEUTRAL_IDENTITY
from sandlot.core.resources.reservations import READING_MAX_AGE_S
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import LOCAL, OPERATOR, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, ForbiddenError, HostError, InvalidRequestError, LimitError, NotFoundError, UnavailableError
from sandlot.model.pools import PoolSizes, StartPath
from sandlot.model.ports import DriverCapability
from sandlot.model.records import NewEvent, SandboxRecord
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, MIB, Limits, TemplateRef
from sandlot.model.states import State
from sandlot.testing.memory.store import MemoryStore
from tests.support.node import MemoryNode, NodeState, open_node, run_pending, settled

LIMITS = Limits(memory_bytes=GIB)
LARGE = replace(LIMITS, memory_bytes=2 * GIB)
OTHER_CPUS = replace(LIMITS, cpus=0.5)
"""Limits that no pool of these tests has: such a request always boots."""
NO_SNAPSHOTS = set(DriverCapability) - {DriverCapability.SNAPSHOT}


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    """The parts that survive a restart of the service. The driver has no snapshots, so warm sandboxes are booted."""
    return NodeState(tmp_path, capabilities=NO_SNAPSHOTS)


async def refill(node: MemoryNode) -> None:
    """Run the refill task until it has nothing left to start. One second passes first: a request delays refills by half a second.

    The second run sees the resources of a sandbox that has just ended: they are released after the response to its kill.
    """
    for _ in range(2):
        node.clock.advance(1.0)
        await node.pools.run_until_idle()


async def create(node: MemoryNode, principal: Principal = OPERATOR, limits: Limits = LIMITS, env: Mapping[str, str] | None = None) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(principal, CreateSandboxParams(template="base", limits=LimitsChange.to(limits), env=env or {}))
    return sandbox


async def create_pool(node: MemoryNode, principal: Principal = OPERATOR, *, warm: int, grow_to: int | None = None, limits: Limits = LIMITS) -> Pool:
    sizes = PoolSizes(warm=warm, max=warm if grow_to is None else grow_to)
    return (await node.pools.create(principal, "base", "auto", limits, sizes)).pool


async def filled_pool(node: MemoryNode, principal: Principal = OPERATOR, *, warm: int, limits: Limits = LIMITS) -> Pool:
    pool = await create_pool(node, principal, warm=warm, limits=limits)
    await refill(node)
    assert len(pool.ready) == warm
    return pool


async def new_key(node: MemoryNode, name: str, **quota: Any) -> Principal:  # noqa: ANN401 - any field of Quota
    record, _secret = await node.keys.create(name, quota=Quota(**quota))
    principal = node.keys.principal_of(record.id)
    assert principal is not None
    return principal


async def reserved_gib(node: MemoryNode) -> float:
    return (await node.reservations.reserved()).memory_bytes / GIB


# Claims ---------------------------------------------------------------------------------------------------------------


async def test_create_claims_a_warm_sandbox_and_records_it_as_running(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=2)
    warm_ids = {warm.id for warm in pool.ready}

    sandbox = await create(node, env={"MINE": "yes"})

    assert sandbox.id in warm_ids
    assert sandbox.state is State.RUNNING
    assert pool.claims == {StartPath.WARM: 1}
    record = await node.store.sandboxes.get(sandbox.id)
    assert record is not None
    assert (record.state, record.ref, record.spec.template.digest) == (State.RUNNING, sandbox.ref, pool.ready[0].template.root.digest)


async def test_warm_sandbox_is_asleep_and_has_had_only_the_neutral_identity(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=1)

    guest = node.guest(pool.ready[0].id)

    assert guest.is_asleep
    assert {wake["identity"] for wake in guest.requests("guest.wake")} == {NEUTRAL_IDENTITY}


async def test_claim_wakes_the_sandbox_with_its_own_identity_and_environment(node: MemoryNode) -> None:
    await filled_pool(node, warm=1)

    sandbox = await create(node, env={"MINE": "yes"})

    wake = node.guest(sandbox.id).requests("guest.wake")[-1]
    assert (wake["identity"], wake["env"]["MINE"]) == (sandbox.id, "yes")


async def test_concurrent_creates_never_share_a_warm_sandbox(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=3)

    sandboxes = await asyncio.gather(*(create(node) for _ in range(5)))

    assert len({sandbox.ref for sandbox in sandboxes}) == 5
    assert pool.claims == {StartPath.WARM: 3, StartPath.BOOTED: 2}
    wakes = [node.guest(sandbox.id).requests("guest.wake")[-1] for sandbox in sandboxes]
    assert len({wake["entropy"] for wake in wakes}) == 5


async def test_create_with_other_limits_does_not_use_the_pool(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=1)

    await create(node, limits=LARGE)

    assert len(pool.ready) == 1
    assert pool.claims == {}


async def test_create_with_fewer_pids_claims_and_lowers_the_limit(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=1)

    sandbox = await create(node, limits=replace(LIMITS, pids=LIMITS.pids - 1))

    assert pool.claims == {StartPath.WARM: 1}
    assert sandbox.instance is not None
    assert sandbox.instance.limits.pids == LIMITS.pids - 1


async def test_create_succeeds_after_all_warm_sandboxes_died(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=2)
    dead_ids = {warm.id for warm in pool.ready}
    for instance in list(node.driver.instances):
        instance.crash()

    sandbox = await create(node)
    await refill(node)

    assert sandbox.state is State.RUNNING
    assert len(pool.ready) == 2
    assert not {warm.id for warm in pool.ready} & dead_ids


async def test_create_boots_if_the_claimed_sandbox_does_not_resume(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=1)
    (broken,) = pool.ready
    node.driver.fail_next("resume", HostError("cannot thaw"))

    sandbox = await create(node)
    await refill(node)

    assert sandbox.id == broken.id, "the id of the request does not change"
    assert sandbox.instance is not broken.instance
    assert pool.claims == {StartPath.BOOTED: 1}
    assert broken.instance not in node.driver.instances
    assert (await node.reservations.capacity()).sandboxes == 2, "the new sandbox and the refilled one"


async def test_create_fails_without_another_attempt_if_the_store_refuses_its_record(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=1)
    node.state.database.faults.fail_next("sandboxes.save", HostError("the database cannot be written"))

    with pytest.raises(HostError, match="cannot be written"):
        await create(node)

    assert len(node.driver.prepared) == 1, "the warm sandbox; nothing was booted in its place"
    assert pool.claims == {}


async def test_create_that_the_store_refuses_keeps_the_template_snapshot_and_boots_nothing(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        pool = await filled_pool(node, warm=1)
        snapshot = node.pools.find(OPERATOR, pool.id).snapshot
        assert snapshot is not None
        await create(node)  # claims the warm sandbox, so that the next create is restored
        prepared = len(node.driver.prepared)
        node.state.database.faults.fail_next("sandboxes.save", HostError("the database cannot be written"))

        with pytest.raises(HostError, match="cannot be written"):
            await create(node)

        assert len(node.driver.prepared) == prepared
        assert node.pools.find(OPERATOR, pool.id).snapshot is snapshot
        await create(node)
        assert pool.claims == {StartPath.WARM: 1, StartPath.RESTORED: 1}


async def test_failed_claim_waits_for_its_own_save(node: MemoryNode) -> None:
    await filled_pool(node, warm=1)
    faults = node.state.database.faults
    save = faults.hold("sandboxes.save")
    faults.fail_next("sandboxes.save", HostError("the database cannot be written"))
    node.driver.fail_next("resume", HostError("cannot thaw"))

    creating = asyncio.create_task(create(node))
    await save.reached()
    await run_pending()
    assert node.driver.faults.raises["resume"] == [], "the claim has failed"
    save.release()

    with pytest.raises(HostError):
        await creating
    assert len(node.driver.prepared) == 1, "the warm sandbox; nothing was booted in its place"


async def refuse_wake(node: MemoryNode) -> None:
    """Fill a pool with one warm sandbox whose guest refuses to wake."""
    pool = await filled_pool(node, warm=1)
    node.guest(pool.ready[0].id).fail_next("guest.wake", message="no")


@pytest.fixture
def saved(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> list[SandboxRecord]:
    """The records that the store is given, in their order."""
    records: list[SandboxRecord] = []
    save = node.store.sandboxes.save

    async def spy(record: SandboxRecord, event: NewEvent | None = None) -> None:
        records.append(record)
        await save(record, event)

    monkeypatch.setattr(node.store.sandboxes, "save", spy)
    return records


async def event_types(node: MemoryNode) -> list[str]:
    return [each.event.type for each in await node.store.events.page(owner=None, sandbox=None, after=0, limit=100)]


def creates(node: MemoryNode) -> dict[str, float]:
    """Return the number of create requests by outcome."""
    found = re.findall(rb'sandlot_creates_total{.*outcome="(.*?)".*} (.*)', node.metrics.text())
    return {outcome.decode(): float(number) for outcome, number in found}


async def test_sandbox_is_announced_once_if_its_claim_fails_and_it_boots(node: MemoryNode, saved: list[SandboxRecord]) -> None:
    await refuse_wake(node)

    sandbox = await create(node)

    assert await event_types(node) == ["sandbox.created"]
    assert creates(node) == {"ok": 1}
    assert {record.state for record in saved} == {State.RUNNING}, "a sandbox that was recorded as running is not recorded as creating again"
    assert (saved[-1].ref, saved[-1].expires_at) == (sandbox.ref, sandbox.deadline.expires_at)


async def test_failed_create_is_announced_as_ended_and_counted_once_if_claim_and_boot_fail(node: MemoryNode, saved: list[SandboxRecord]) -> None:
    await refuse_wake(node)
    node.driver.fail_next("prepare", HostError("no loop device is free"))

    with pytest.raises(HostError, match="no loop device"):
        await create(node)

    await settled(lambda: bool(saved) and saved[-1].state is State.FAILED)
    assert await event_types(node) == ["sandbox.created", "sandbox.ended"]
    assert creates(node) == {"crashed": 1}
    assert [record.state for record in saved] == [State.RUNNING, State.RUNNING, State.STOPPING, State.FAILED]


async def test_create_that_fails_without_a_claim_is_announced_as_ended_only(node: MemoryNode) -> None:
    node.driver.fail_next("prepare", HostError("no loop device is free"))

    with pytest.raises(HostError, match="no loop device"):
        await create(node)

    assert await event_types(node) == ["sandbox.ended"]
    assert creates(node) == {"crashed": 1}


async def test_service_that_is_killed_after_a_failed_claim_leaves_an_unfinished_start(node: MemoryNode, saved: list[SandboxRecord]) -> None:
    """The next service must not take the sandbox for one that a client knows."""
    await refuse_wake(node)
    preparing = node.driver.hold("prepare")
    creating = asyncio.create_task(create(node))
    await node.driver.faults.reach("prepare")

    assert (saved[-1].state, saved[-1].ref, saved[-1].is_unfinished_start) == (State.RUNNING, None, True)

    preparing.set()
    assert not (await creating).end_requested.is_set()
    assert not saved[-1].is_unfinished_start


async def test_claim_is_recorded_in_one_commit(node: MemoryNode, saved: list[SandboxRecord]) -> None:
    await filled_pool(node, warm=1)

    await create(node)

    assert [record.state for record in saved] == [State.RUNNING]


# Refills --------------------------------------------------------------------------------------------------------------


async def test_refill_replaces_a_claimed_sandbox(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=2)
    sandbox = await create(node)

    await refill(node)

    assert len(pool.ready) == 2
    assert sandbox.id not in {warm.id for warm in pool.ready}


async def test_miss_grows_an_empty_pool(node: MemoryNode) -> None:
    pool = await create_pool(node, warm=0, grow_to=2)
    await create(node)
    assert pool.claims == {StartPath.BOOTED: 1}

    await refill(node)
    await create(node)

    assert pool.claims == {StartPath.BOOTED: 1, StartPath.WARM: 1}


async def test_failed_fill_is_reported_counted_and_retried(node: MemoryNode) -> None:
    node.driver.fail_next("boot", HostError("cannot boot"))
    pool = await create_pool(node, warm=1)

    node.clock.advance(1.0)
    await node.pools.run_until_idle()
    assert node.pools.find(OPERATOR, pool.id).error == "cannot boot"
    assert b'sandlot_pool_failures_total{isolation="gvisor"} 1.0' in node.metrics.text()

    node.clock.advance(policy.back_off_s(1))
    await refill(node)
    assert len(pool.ready) == 1
    assert node.pools.find(OPERATOR, pool.id).error == ""


@pytest.mark.parametrize(
    "free",
    [
        pytest.param({"disk_bytes": GIB}, id="disk"),
        pytest.param({"memory_bytes": 0}, id="memory"),
        pytest.param({"pids": 0}, id="tasks"),
    ],
)
async def test_pool_that_cannot_refill_for_want_of_room_gives_the_reason(state: NodeState, free: dict[str, int]) -> None:
    async with open_node(state) as node:
        pool = await filled_pool(node, warm=1)
        room = state.host
        state.host = replace(room, free=replace(room.free, **free))
        node.clock.advance(READING_MAX_AGE_S)
        await create(node)
        for _ in range(10):
            await refill(node)
        assert len(pool.ready) == 0
        assert {"disk_bytes": "disk space", "memory_bytes": "memory", "pids": "tasks"}[next(iter(free))] in node.pools.find(OPERATOR, pool.id).error

        state.host = room
        for _ in range(30):
            await refill(node)
        assert len(pool.ready) == 1
        assert node.pools.find(OPERATOR, pool.id).error == ""


async def test_template_snapshot_is_kept_when_a_start_fails_on_a_full_disk(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        pool = await create_pool(node, warm=1)
        await refill(node)
        assert (before := node.pools.find(OPERATOR, pool.id).snapshot) is not None
        await create(node)
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        node.driver.fail_next("prepare", *[full] * 4)
        for _ in range(2):
            with pytest.raises(LimitError) as refused:
                await create(node)
            assert refused.value.code is ErrorCode.NODE_DISK_FULL
        for _ in range(30):
            await refill(node)
        assert node.pools.find(OPERATOR, pool.id).snapshot == before
        assert len(pool.ready) >= 1


async def test_refill_leaves_room_for_one_more_sandbox(state: NodeState) -> None:
    async with open_node(state, memory_bytes=3 * GIB, memory_reserve_bytes=0) as node:
        pool = await create_pool(node, warm=5)

        await refill(node)

        assert len(pool.ready) == 2
        assert await reserved_gib(node) == 2


async def test_refill_waits_half_a_second_after_a_request(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=1)
    await create(node)

    node.clock.advance(0.25)
    await node.pools.run_until_idle()
    assert len(pool.ready) == 0

    node.clock.advance(0.25)
    await node.pools.run_until_idle()
    assert len(pool.ready) == 1


async def test_request_causes_no_pass_over_the_pools_before_its_client_can_use_the_sandbox(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled_pool(node, warm=1)
    passes = 0

    def counted(*given: Any) -> policy.RefillStep:  # noqa: ANN401 - passed on
        nonlocal passes
        passes += 1
        return next_step(*given)

    next_step = policy.next_step
    monkeypatch.setattr(policy, "next_step", counted)
    await create(node)
    await run_pending()
    assert passes == 0

    node.clock.advance(policy.QUIET_S)
    await settled(lambda: passes > 0)


async def test_refill_waits_while_creates_wait(state: NodeState) -> None:
    async with open_node(state, max_creates=1) as node:
        pool = await filled_pool(node, warm=1)
        node.driver.hold("boot")
        creating = asyncio.create_task(create(node, limits=OTHER_CPUS))
        await node.driver.faults.reach("boot")
        await node.pools.update(OPERATOR, pool.id, warm=2, max=2)

        await refill(node)
        assert len(pool.ready) == 1

        node.driver.faults.release("boot")
        await creating
        await refill(node)
        assert len(pool.ready) == 2


async def test_refill_waits_ten_seconds_after_an_eviction(state: NodeState) -> None:
    async with open_node(state, memory_bytes=4 * GIB, memory_reserve_bytes=0) as node:
        pool = await filled_pool(node, warm=2)
        large = await create(node, limits=replace(LIMITS, memory_bytes=3 * GIB))
        assert len(pool.ready) == 1
        await node.sandboxes.kill(OPERATOR, large.id)

        node.clock.advance(7)
        await refill(node)  # 9 s after the eviction
        assert len(pool.ready) == 1

        await refill(node)
        assert len(pool.ready) == 2


async def test_template_snapshot_is_discarded_after_its_second_failed_restore(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        pool = await filled_pool(node, warm=1)
        snapshot = node.pools.find(OPERATOR, pool.id).snapshot
        assert snapshot is not None
        node.driver.fail_next("restore", HostError("cannot restore"), HostError("cannot restore"))
        await create(node)

        node.clock.advance(policy.QUIET_S)
        await node.pools.run_until_idle()
        assert pool.failures == 1
        assert node.pools.find(OPERATOR, pool.id).snapshot is snapshot

        node.clock.advance(policy.back_off_s(1))
        await node.pools.run_until_idle()
        assert pool.failures == 2
        assert node.pools.find(OPERATOR, pool.id).snapshot is None

        node.clock.advance(policy.back_off_s(2))
        await node.pools.run_until_idle()
        assert len(pool.ready) == 1
        assert node.pools.find(OPERATOR, pool.id).snapshot is not None


# Reservations and limits of the node -----------------------------------------------------------------------------------


async def test_warm_sandboxes_hold_reservations_but_do_not_count_as_sandboxes(node: MemoryNode) -> None:
    pool = await filled_pool(node, warm=2)

    assert await reserved_gib(node) == 2
    assert node.sandboxes.count == 0
    assert node.sandboxes.list(OPERATOR) == []
    assert len(pool.ready) == 2


async def test_create_evicts_as_many_warm_sandboxes_as_it_needs(state: NodeState) -> None:
    async with open_node(state, memory_bytes=6 * GIB, memory_reserve_bytes=512 * MIB) as node:
        pool = await filled_pool(node, warm=3)

        await create(node, limits=replace(LIMITS, memory_bytes=4 * GIB))

        assert len(pool.ready) == 1
        assert await reserved_gib(node) == 5


async def test_claim_transfers_the_reservation(state: NodeState) -> None:
    async with open_node(state, memory_bytes=3 * GIB, memory_reserve_bytes=0) as node:
        await filled_pool(node, warm=2)

        await asyncio.gather(create(node), create(node), create(node))

        assert await reserved_gib(node) == 3, "two claims took over 1 GiB each; the sandbox that booted reserved the rest"


async def test_create_is_busy_if_evicting_everything_is_not_enough(state: NodeState) -> None:
    async with open_node(state, memory_bytes=3 * GIB, memory_reserve_bytes=0) as node:
        await filled_pool(node, warm=1)
        await create(node, limits=LARGE)

        with pytest.raises(UnavailableError) as error:
            await create(node, limits=LARGE)

        assert error.value.fields["retry_after_s"] > 0


async def test_create_that_can_never_fit_is_invalid(state: NodeState) -> None:
    async with open_node(state, memory_bytes=3 * GIB) as node:
        with pytest.raises(InvalidRequestError):
            await create(node, limits=replace(LIMITS, memory_bytes=64 * GIB))


async def test_create_that_waited_for_an_eviction_is_checked_again(state: NodeState) -> None:
    async with open_node(state, memory_bytes=6 * GIB, memory_reserve_bytes=512 * MIB, max_sandboxes=1) as node:
        await filled_pool(node, warm=3)
        release = node.driver.hold("destroy")
        waiting = asyncio.create_task(create(node, limits=replace(LIMITS, memory_bytes=4 * GIB)))
        await node.driver.faults.reach("destroy")

        await create(node)
        release.set()

        with pytest.raises(UnavailableError) as error:
            await waiting
        assert error.value.fields["max_sandboxes"] == 1


async def test_eviction_takes_private_pools_before_shared_ones(state: NodeState) -> None:
    async with open_node(state, memory_bytes=6 * GIB, memory_reserve_bytes=512 * MIB) as node:
        anne = await new_key(node, "anne")
        shared, private = await create_pool(node, OPERATOR, warm=1), await create_pool(node, anne, warm=2)
        await refill(node)
        (kept,) = shared.ready

        await create(node, limits=replace(LIMITS, memory_bytes=4 * GIB))

        assert (list(shared.ready), list(private.ready)) == ([kept], [])


# Private and shared pools ----------------------------------------------------------------------------------------------


async def test_create_prefers_the_private_pool_then_the_shared_one_and_never_another_keys(node: MemoryNode) -> None:
    anne, bob = await new_key(node, "anne"), await new_key(node, "bob")
    shared, annes, bobs = [await create_pool(node, principal, warm=1) for principal in (OPERATOR, anne, bob)]
    await refill(node)
    assert [pool.owner for pool in (shared, annes, bobs)] == [LOCAL, anne.owner, bob.owner]
    shared_id, annes_id, bobs_id = [pool.ready[0].id for pool in (shared, annes, bobs)]

    first, second, third = [await create(node, anne) for _ in range(3)]  # nothing is refilled in between

    assert (first.id, second.id) == (annes_id, shared_id)
    assert third.id != bobs_id
    assert [warm.id for warm in bobs.ready] == [bobs_id]
    assert [pool.claims for pool in (shared, annes, bobs)] == [{StartPath.WARM: 1, StartPath.BOOTED: 1}, {StartPath.WARM: 2, StartPath.BOOTED: 1}, {}]


async def test_private_pools_shrink_as_live_sandboxes_use_the_quota(node: MemoryNode) -> None:
    anne = await new_key(node, "anne", sandboxes=3)
    pools = [await create_pool(node, anne, warm=2), await create_pool(node, anne, warm=2, limits=LARGE)]

    def ready() -> set[str]:
        return {warm.id for pool in pools for warm in pool.ready}

    await refill(node)
    before = ready()
    assert len(before) == 3, "the quota allows three of the four"
    for expected in (2, 1, 0):
        await create(node, anne, OTHER_CPUS)
        await refill(node)
        assert len(ready()) == expected
        assert ready() < before
    with pytest.raises(LimitError):
        await create(node, anne, OTHER_CPUS)


async def test_claim_from_a_private_pool_does_not_use_more_quota(node: MemoryNode) -> None:
    anne = await new_key(node, "anne", sandboxes=2)
    pool = await filled_pool(node, anne, warm=2)
    warm_ids = {warm.id for warm in pool.ready}

    sandboxes = await asyncio.gather(create(node, anne), create(node, anne))

    assert {sandbox.id for sandbox in sandboxes} == warm_ids
    with pytest.raises(LimitError):
        await create(node, anne)


async def test_private_pool_refills_when_a_live_sandbox_frees_quota(node: MemoryNode) -> None:
    anne = await new_key(node, "anne", sandboxes=1)
    pool = await create_pool(node, anne, warm=1)
    sandbox = await create(node, anne, OTHER_CPUS)
    await refill(node)
    assert len(pool.ready) == 0

    await node.sandboxes.kill(anne, sandbox.id)
    await refill(node)

    assert len(pool.ready) == 1


async def test_pool_larger_than_the_quota_is_refused(node: MemoryNode) -> None:
    anne = await new_key(node, "anne", sandboxes=3)

    with pytest.raises(LimitError) as error:
        await create_pool(node, anne, warm=4)
    assert error.value.fields == {"quota": "sandboxes", "limit": 3, "used": 0, "requested": 4}

    pool = await create_pool(node, anne, warm=0)
    with pytest.raises(LimitError):
        await node.pools.update(anne, pool.id, warm=4)
    assert pool.sizes == PoolSizes(warm=0, max=0)


async def test_prepared_sandboxes_are_refused_for_private_pools(node: MemoryNode) -> None:
    anne = await new_key(node, "anne")

    with pytest.raises(ForbiddenError):
        await node.pools.create(anne, "base", "auto", LIMITS, PoolSizes(warm=0, max=0, prepared=1))
    pool = await create_pool(node, anne, warm=0)
    with pytest.raises(ForbiddenError):
        await node.pools.update(anne, pool.id, prepared=1)


async def test_concurrent_pool_creates_stay_within_the_quota(node: MemoryNode) -> None:
    anne = await new_key(node, "anne", pools=2)
    creates = [create_pool(node, anne, warm=0, limits=replace(LIMITS, memory_bytes=GIB + extra * MIB)) for extra in range(5)]

    results = await asyncio.gather(*creates, return_exceptions=True)

    errors = [error for error in results if isinstance(error, LimitError)]
    assert len(errors) == 3
    assert errors[0].fields == {"quota": "pools", "limit": 2, "used": 2, "requested": 1}
    assert node.pools.count(anne.owner) == 2


async def test_second_pool_of_the_default_isolation_conflicts_under_its_driver_name(node: MemoryNode) -> None:
    await create_pool(node, warm=0)  # isolation "auto", which is gvisor here

    with pytest.raises(ConflictError):
        await node.pools.create(OPERATOR, "base", "gvisor", LIMITS, PoolSizes(warm=2, max=2))


# Names ----------------------------------------------------------------------------------------------------------------


async def test_template_name_finds_the_only_pool_of_that_template(node: MemoryNode) -> None:
    pool = await create_pool(node, warm=0)

    assert node.pools.find(OPERATOR, "base").pool is pool
    with pytest.raises(NotFoundError):
        node.pools.find(OPERATOR, "code-interpreter")


async def test_template_name_is_ambiguous_if_two_pools_have_it(node: MemoryNode) -> None:
    await create_pool(node, warm=0)
    await create_pool(node, warm=0, limits=LARGE)

    with pytest.raises(ConflictError):
        node.pools.find(OPERATOR, "base")


# Restarts -------------------------------------------------------------------------------------------------------------


async def test_pools_and_their_updates_survive_a_restart(state: NodeState) -> None:
    async with open_node(state) as node:
        first = await filled_pool(node, warm=1)
        second = await create_pool(node, warm=0, limits=LARGE)
        await node.pools.update(OPERATOR, second.id, max=3)
    assert state.driver.leftovers() == [], "warm sandboxes end with the service"

    async with open_node(state) as node:
        assert {status.pool.spec: status.pool.sizes for status in node.pools.list(OPERATOR)} == {
            PoolSpec(TemplateRef(LOCAL, "base"), "gvisor", LIMITS): PoolSizes(warm=1, max=1),
            PoolSpec(TemplateRef(LOCAL, "base"), "gvisor", LARGE): PoolSizes(warm=0, max=3),
        }
        await refill(node)
        assert len(node.pools.find(OPERATOR, first.id).pool.ready) == 1


async def test_deleted_pools_stay_deleted_after_a_restart(state: NodeState) -> None:
    async with open_node(state) as node:
        pool = await filled_pool(node, warm=1)
        await node.pools.delete(OPERATOR, pool.id)
        await refill(node)
        assert state.driver.leftovers() == []

    async with open_node(state) as node:
        assert node.pools.list(OPERATOR) == []
    assert pools_in_file(state) == []


async def test_private_pool_keeps_owner_sizes_and_metadata_after_a_restart(state: NodeState) -> None:
    async with open_node(state) as node:
        anne = await new_key(node, "anne")
        created = await node.pools.create(anne, "base", "auto", LIMITS, PoolSizes(warm=1, max=1), {"team": "blue"})

    async with open_node(state) as node:
        (status,) = node.pools.list(anne)
        assert status.pool.id == created.pool.id
        assert (status.pool.owner, status.pool.sizes, status.pool.metadata) == (anne.owner, PoolSizes(warm=1, max=1), {"team": "blue"})
        await refill(node)
        (warm,) = status.pool.ready
        assert (await create(node, anne)).id == warm.id


async def test_shutdown_that_keeps_sandboxes_removes_warm_ones_only(state: NodeState) -> None:
    async with open_node(state, keep_sandboxes=True) as node:
        await filled_pool(node, warm=2)
        sandbox = await create(node)
    assert [instance.ref for instance in state.driver.instances] == [sandbox.ref]

    async with open_node(state) as node:
        recovered = node.sandboxes.find(sandbox.id, OPERATOR)
        await recovered.wait_reachable()
        assert recovered.state is State.RUNNING
    assert state.driver.leftovers() == []


async def test_revoking_a_key_removes_its_pools(state: NodeState) -> None:
    async with open_node(state) as node:
        anne, bob = await new_key(node, "anne"), await new_key(node, "bob")
        annes, bobs = await filled_pool(node, anne, warm=1), await filled_pool(node, bob, warm=1)

        await node.keys.revoke(anne.owner)
        await refill(node)

        assert [status.pool for status in node.pools.list(OPERATOR)] == [bobs]
        assert len(annes.ready) == 0
        assert [entry["owner"] for entry in pools_in_file(state)] == [bob.owner]


async def test_start_removes_pools_of_keys_that_were_revoked_while_no_service_ran(state: NodeState) -> None:
    async with open_node(state) as node:
        anne = await new_key(node, "anne")
        await filled_pool(node, anne, warm=1)
    async with MemoryStore(state.database) as store:
        await store.keys.revoke(anne.owner, state.clock.now())

    async with open_node(state) as node:
        await refill(node)
        assert node.pools.list(OPERATOR) == []
    assert pools_in_file(state) == []
    assert state.driver.leftovers() == []


def pools_in_file(state: NodeState) -> list[dict[str, Any]]:
    return list(json.loads((state.data_dir / POOLS_FILE).read_text("utf-8"))["pools"])
