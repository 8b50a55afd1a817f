"""Retention: rows are removed by age, number and size, live sandboxes stay, and no owner's rows make room for another owner's."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import structlog

from sandlot.core.records.execution_log import BATCH, ExecutionLog
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.retention import TRIM_BYTES, TRIM_ROWS, Keep, Retention, equal_share
from sandlot.model.access import LOCAL, UNBOUNDED, OwnerId, Quota
from sandlot.model.errors import ErrorCode, HostError
from sandlot.model.ids import NodeId, new_process_id, new_sandbox_id
from sandlot.model.records import ENTRY_BYTES, ExecutionId, ExecutionRecord, NewEvent, SandboxRecord
from sandlot.model.specs import SandboxSpec, TemplateRef
from sandlot.model.states import State
from sandlot.store.store import SqlStore
from tests.support.clock import START, ManualClock

NODE = NodeId("aaaa")
ALICE, BOB = (OwnerId(name * 12) for name in "ab")
KEEP = Keep(executions_s=100, executions=3, events_s=100, events=2, sandboxes_s=100)


def run(seconds: float, owner: OwnerId = LOCAL, stdout: str = "") -> ExecutionRecord:
    at = START + timedelta(seconds=seconds)
    return ExecutionRecord(ExecutionId(new_process_id()), owner, new_sandbox_id(NODE), "command", created_at=at, status="exited", stdout=stdout)


def quota_of(_owner: OwnerId) -> Quota:
    return UNBOUNDED


def retention_of(store: SqlStore, clock: ManualClock, keep: Keep = KEEP, quota: Quota = UNBOUNDED) -> Retention:
    return Retention(store, keep, lambda _: quota, clock, Metrics())


async def rows_of(store: SqlStore, owner: OwnerId) -> list[ExecutionRecord]:
    return list(await store.executions.page(owner=owner, sandbox=None, before=None, limit=10_000))


def sandbox(seconds: float | None, owner: OwnerId = LOCAL) -> SandboxRecord:
    ended = None if seconds is None else START + timedelta(seconds=seconds)
    spec = SandboxSpec(id=new_sandbox_id(NODE), template=TemplateRef(LOCAL, "base"))
    state = State.RUNNING if ended is None else State.STOPPED
    return SandboxRecord(spec, NODE, owner, None, state, created_at=START, ended_at=ended)


async def test_old_rows_are_removed(store: SqlStore, clock: ManualClock) -> None:
    old, young = run(0), run(50)
    await store.executions.save([old, young])
    ended, lives = sandbox(0), sandbox(None)
    for record in (ended, lives):
        await store.sandboxes.save(record)
    await store.events.add([NewEvent("sandbox.created", START + timedelta(seconds=at), LOCAL) for at in (0, 50)])
    retention = retention_of(store, clock)
    clock.advance(99)
    assert await retention.remove_old() == 0
    clock.advance(2)
    assert await retention.remove_old() == 3
    assert await store.executions.get(old.id) is None
    assert await store.executions.get(young.id) == young
    assert await store.sandboxes.get(ended.id) is None
    assert await store.sandboxes.get(lives.id) == lives
    assert [record.sequence for record in await store.events.page(owner=None, sandbox=None, after=0, limit=9)] == [2]


async def test_rows_beyond_the_limit_are_removed_oldest_first(store: SqlStore, clock: ManualClock) -> None:
    runs = [run(at) for at in range(5)]
    await store.executions.save(runs)
    await store.events.add([NewEvent("sandbox.created", START, LOCAL) for _ in range(5)])
    assert await retention_of(store, clock).remove_old() == 5
    assert await store.executions.page(owner=None, sandbox=None, before=None, limit=9) == [*reversed(runs[2:])]
    assert [record.sequence for record in await store.events.page(owner=None, sandbox=None, after=0, limit=9)] == [4, 5]


async def test_limit_of_the_node_removes_only_rows_of_the_owner_that_has_the_most(store: SqlStore, clock: ManualClock) -> None:
    own = [run(at, ALICE) for at in range(4)]
    await store.executions.save([*own, *(run(at, BOB) for at in range(10, 200))])
    await store.events.add([NewEvent("sandbox.created", START, owner) for owner in (ALICE, *[BOB] * 50)])
    ended = [sandbox(at, ALICE if at < 2 else BOB) for at in range(40)]
    for record in ended:
        await store.sandboxes.save(record)
    await retention_of(store, clock, Keep(executions=10, events=5, sandboxes=6)).remove_old()
    assert await rows_of(store, ALICE) == [*reversed(own)]
    assert [record.created_at for record in await rows_of(store, BOB)] == [START + timedelta(seconds=at) for at in range(199, 193, -1)]
    assert await store.events.counts() == {ALICE: 1, BOB: 4}
    assert {owner: each.rows for owner, each in (await store.sandboxes.ended_totals()).items()} == {ALICE: 2, BOB: 4}
    assert await store.sandboxes.get(ended[-1].id) == ended[-1]


async def test_size_limit_of_the_node_removes_only_rows_of_the_owner_that_has_the_most(store: SqlStore, clock: ManualClock) -> None:
    own = [run(at, ALICE) for at in range(4)]
    await store.executions.save([*own, *(run(at, BOB, stdout="x" * 100_000) for at in range(20))])
    await retention_of(store, clock, Keep(executions_bytes=500_000)).remove_old()
    assert await rows_of(store, ALICE) == [*reversed(own)]
    assert len(await rows_of(store, BOB)) == 4


@pytest.mark.parametrize("quota", [Quota(stored_executions=3), Quota(stored_execution_bytes=3 * (ENTRY_BYTES + 10))])
async def test_quota_removes_the_oldest_log_entries_of_its_owner(store: SqlStore, clock: ManualClock, quota: Quota) -> None:
    runs = [run(at, BOB, stdout="x" * 10) for at in range(9)]
    await store.executions.save(runs)
    await retention_of(store, clock, Keep(), quota).remove_old()
    assert await rows_of(store, BOB) == [*reversed(runs[-3:])]


async def test_log_never_exceeds_its_limit_by_more_than_the_new_entries_of_one_removal(store: SqlStore, clock: ManualClock) -> None:
    """A flood of entries is removed by the writer, which does not wait for the next regular removal."""
    retention = retention_of(store, clock, Keep(executions=100))
    log = ExecutionLog(store.executions, NODE, clock, Metrics(), retention)
    most = 0
    for _ in range(12):
        for at in range(500):
            log.put(run(at, BOB))
        assert await log.writer.flush()
        most = max(most, (await store.executions.totals())[BOB].rows)
    assert most <= 100 + TRIM_ROWS
    for _ in range(3):
        for at in range(100):
            log.put(run(at, BOB, stdout="x" * 100_000))
        assert await log.writer.flush()
        assert (await store.executions.totals())[BOB].bytes <= 100 * 101_000 + TRIM_BYTES + BATCH * 101_000


@pytest.mark.parametrize(
    "amounts, most, share",
    [([], 5, 5), ([5], 5, 5), ([1, 2, 100], 50, 47), ([30, 30], 50, 25), ([0, 0, 9], 6, 6), ([7, 8, 9], 3, 1), ([7, 8], 1, 0)],
)
def test_equal_share_cuts_the_largest_amounts(amounts: list[int], most: int, share: int) -> None:
    assert equal_share(amounts, most) == share
    assert sum(min(amount, share) for amount in amounts) <= most


async def test_failed_removal_does_not_stop_the_others_and_is_repeated(store: SqlStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(**_: object) -> int:
        raise HostError("The disk is full.", code=ErrorCode.HOST_NOT_READY)

    metrics = Metrics()
    retention = Retention(store, replace(KEEP, events=1), quota_of, clock, metrics)
    await store.events.add([NewEvent("sandbox.created", START, LOCAL) for _ in range(2)])
    with monkeypatch.context() as broken, structlog.testing.capture_logs() as said:
        broken.setattr(store.executions, "delete_before", fail)
        assert await retention.remove_old() == 1
    assert [entry["event"] for entry in said] == ["retention.failed", "retention.dropped"]
    assert b'sandlot_store_failures_total{what="retention"} 1.0' in metrics.text()
