"""Runs of a month: counted in memory, given back where nothing began, written behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from sandlot.core.records import write_behind
from sandlot.core.records.usage import MonthlyExecutionCounter, left_s
from sandlot.model.access import LOCAL, UNBOUNDED, OwnerId, Quota
from sandlot.model.errors import ErrorCode, LimitError, UnavailableError
from sandlot.store.store import SqlStore
from tests.support.clock import START, ManualClock
from tests.support.until import until

DAY_S = 86_400
OWNER = OwnerId("0123456789ab")


def monthly(store: SqlStore, clock: ManualClock, quota: int | None = None) -> MonthlyExecutionCounter:
    return MonthlyExecutionCounter(store.executions, clock, lambda _owner: UNBOUNDED if quota is None else Quota(executions_per_month=quota))


def begin(counts: MonthlyExecutionCounter, owner: OwnerId = OWNER, times: int = 1) -> None:
    for _ in range(times):
        counts.count(owner)


async def test_executions_count_up_to_the_quota_of_each_month(store: SqlStore, clock: ManualClock) -> None:
    counts = monthly(store, clock, quota=3)
    begin(counts, times=3)
    with pytest.raises(LimitError) as refused:
        begin(counts)
    assert refused.value.code is ErrorCode.QUOTA_EXCEEDED
    assert refused.value.status == 429
    assert dict(refused.value.fields) == {"quota": "executions_per_month", "limit": 3, "used": 3, "requested": 1, "retry_after_s": 31 * DAY_S}
    begin(counts, LOCAL)  # everybody's is their own
    clock.advance(31 * DAY_S)
    assert counts.used(OWNER) == 0
    begin(counts)
    assert counts.used(OWNER) == 1
    await counts.writer.flush()
    assert await store.executions.monthly_counts("2026-01") == {OWNER: 3, LOCAL: 1}
    assert await store.executions.monthly_counts("2026-02") == {OWNER: 1}


async def test_quota_of_zero_has_no_retry_after(store: SqlStore, clock: ManualClock) -> None:
    with pytest.raises(LimitError) as refused:
        begin(monthly(store, clock, quota=0))
    assert "retry_after_s" not in refused.value.fields


async def test_execution_that_cannot_start_does_not_count_even_during_a_write(store: SqlStore, clock: ManualClock) -> None:
    counts = monthly(store, clock, quota=1)
    counted = counts.count(OWNER)
    assert counts.used(OWNER) == 1
    counts.uncount(counted)
    assert counts.used(OWNER) == 0
    counted = counts.count(OWNER)
    await counts.writer.flush()
    assert await store.executions.monthly_counts("2026-01") == {OWNER: 1}
    counts.uncount(counted)
    assert counts.used(OWNER) == 0
    await counts.writer.flush()
    assert await store.executions.monthly_counts("2026-01") == {OWNER: 0}
    begin(counts)


async def test_counts_continue_after_a_restart_and_include_other_nodes(store: SqlStore, clock: ManualClock) -> None:
    first = monthly(store, clock)
    begin(first, times=2)
    await first.writer.close()
    second = monthly(store, clock, quota=3)
    await second.refresh()
    assert second.used(OWNER) == 2
    begin(first)  # another node of the same database
    await first.writer.flush()
    await second.writer.flush()
    assert second.used(OWNER) == 3
    with pytest.raises(LimitError):
        begin(second)


async def test_counts_are_written_within_a_second(store: SqlStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_behind.FLUSH_S <= 0.5, "gathering and writing take less than a second"
    monkeypatch.setattr(write_behind, "FLUSH_S", 0.001)
    counts = monthly(store, clock)
    running = asyncio.create_task(counts.writer.run())
    try:
        begin(counts, times=5)
        while await store.executions.monthly_counts("2026-01") != {OWNER: 5}:  # noqa: ASYNC110 - another task's doing
            await asyncio.sleep(0.001)
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_counts_that_the_store_refuses_stay_pending(store: SqlStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_month: str, _more: Mapping[OwnerId, int]) -> None:
        raise UnavailableError("The database does not answer.", code=ErrorCode.SERVICE_UNAVAILABLE)

    counts = monthly(store, clock, quota=3)
    with monkeypatch.context() as refusing:
        refusing.setattr(store.executions, "add_monthly_counts", refuse)
        begin(counts)
        assert not await counts.writer.flush()
        begin(counts)
        assert counts.used(OWNER) == 2
        assert not await counts.writer.flush()
    monkeypatch.setattr(write_behind, "FLUSH_S", 0.001)
    running = asyncio.create_task(counts.writer.run())
    try:
        await until(lambda: written(store))
    finally:
        running.cancel()
        await asyncio.wait({running})
    assert counts.used(OWNER) == 2


async def test_stop_during_a_commit_counts_nothing_twice(store: SqlStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    committed, told = asyncio.Event(), asyncio.Event()
    count = store.executions.add_monthly_counts

    async def slow(month: str, more: Mapping[OwnerId, int]) -> None:
        await count(month, more)
        committed.set()
        await told.wait()

    monkeypatch.setattr(write_behind, "FLUSH_S", 0.001)
    monkeypatch.setattr(store.executions, "add_monthly_counts", slow)
    counts = monthly(store, clock)
    running = asyncio.create_task(counts.writer.run())
    begin(counts)
    await committed.wait()
    running.cancel()
    closing = asyncio.create_task(counts.writer.close())
    await asyncio.sleep(0)
    told.set()
    await asyncio.wait({running, closing})
    assert await store.executions.monthly_counts("2026-01") == {OWNER: 1}


async def written(store: SqlStore) -> bool:
    return await store.executions.monthly_counts("2026-01") == {OWNER: 2}


@pytest.mark.parametrize(
    "moment, left",
    [
        (START, 31 * DAY_S),
        (datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 1),
        (datetime(2028, 2, 1, tzinfo=UTC), 29 * DAY_S),
        (datetime(2026, 11, 30, 23, 30, tzinfo=UTC), 1800),
    ],
)
def test_retry_after_lasts_until_the_next_month(moment: datetime, left: int) -> None:
    assert left_s(moment) == left
