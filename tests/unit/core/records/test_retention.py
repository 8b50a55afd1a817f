"""Retention: rows are removed by age and number, and live sandboxes stay."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import structlog

from sandlot.core.records.metrics import Metrics
from sandlot.core.records.retention import Keep, Retention
from sandlot.model.access import LOCAL
from sandlot.model.errors import ErrorCode, HostError
from sandlot.model.ids import NodeId, new_process_id, new_sandbox_id
from sandlot.model.records import ExecutionId, ExecutionRecord, NewEvent, SandboxRecord
from sandlot.model.specs import SandboxSpec, TemplateRef
from sandlot.model.states import State
from sandlot.store.store import SqlStore
from tests.support.clock import START, ManualClock

NODE = NodeId("aaaa")
KEEP = Keep(executions_s=100, executions=3, events_s=100, events=2, sandboxes_s=100)


def run(seconds: float) -> ExecutionRecord:
    at = START + timedelta(seconds=seconds)
    return ExecutionRecord(ExecutionId(new_process_id()), LOCAL, new_sandbox_id(NODE), "command", created_at=at, status="exited")


def sandbox(seconds: float | None) -> SandboxRecord:
    ended = None if seconds is None else START + timedelta(seconds=seconds)
    spec = SandboxSpec(id=new_sandbox_id(NODE), template=TemplateRef(LOCAL, "base"))
    state = State.RUNNING if ended is None else State.STOPPED
    return SandboxRecord(spec, NODE, LOCAL, None, state, created_at=START, ended_at=ended)


async def test_old_rows_are_removed(store: SqlStore, clock: ManualClock) -> None:
    old, young = run(0), run(50)
    await store.executions.save([old, young])
    ended, lives = sandbox(0), sandbox(None)
    for record in (ended, lives):
        await store.sandboxes.save(record)
    await store.events.add([NewEvent("sandbox.created", START + timedelta(seconds=at), LOCAL) for at in (0, 50)])
    retention = Retention(store, KEEP, clock, Metrics())
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
    assert await Retention(store, KEEP, clock, Metrics()).remove_old() == 5
    assert await store.executions.page(owner=None, sandbox=None, before=None, limit=9) == [*reversed(runs[2:])]
    assert [record.sequence for record in await store.events.page(owner=None, sandbox=None, after=0, limit=9)] == [4, 5]


async def test_failed_removal_does_not_stop_the_others_and_is_repeated(store: SqlStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(**_: object) -> int:
        raise HostError("The disk is full.", code=ErrorCode.HOST_NOT_READY)

    metrics = Metrics()
    retention = Retention(store, replace(KEEP, events=1), clock, metrics)
    await store.events.add([NewEvent("sandbox.created", START, LOCAL) for _ in range(2)])
    with monkeypatch.context() as broken, structlog.testing.capture_logs() as said:
        broken.setattr(store.executions, "delete_before", fail)
        assert await retention.remove_old() == 1
    assert [entry["event"] for entry in said] == ["retention.failed", "retention.dropped"]
    assert b'sandlot_store_failures_total{what="retention"} 1.0' in metrics.text()
