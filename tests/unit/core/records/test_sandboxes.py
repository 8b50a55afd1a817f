"""Records of sandboxes: their order, and the behaviour while the store refuses them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.records import sandboxes
from sandlot.core.records.sandboxes import from_record, to_record
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ErrorCode, HostError, InternalError
from sandlot.model.records import NewEvent, SandboxRecord
from sandlot.model.sandboxes import UpdateSandboxParams
from sandlot.model.states import State
from sandlot.testing.memory.store import MemorySandboxRepository as Table
from tests.support.clock import ManualClock
from tests.support.service import BASE, Bench, bench
from tests.support.until import until

ALICE = Principal(OwnerId("a" * 12), "alice")
Fails = Callable[[SandboxRecord], bool]


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> tuple[list[SandboxRecord], list[Fails]]:
    """Saved records, and predicates of the records that a full disk refuses."""
    done: list[SandboxRecord] = []
    fails: list[Fails] = []
    really = Table.save

    async def save(table: Table, record: SandboxRecord, event: NewEvent | None = None) -> None:
        if any(each(record) for each in fails):
            raise HostError("The disk is full.", code=ErrorCode.HOST_NOT_READY)
        await really(table, record, event)
        done.append(record)

    monkeypatch.setattr(Table, "save", save)
    return done, fails


async def test_every_state_is_recorded_before_the_response(at: Bench, saved: tuple[list[SandboxRecord], list[Fails]]) -> None:
    sandbox = await at.sandboxes.create(ALICE, replace(BASE, env={"TOKEN": "secret"}))
    assert [record.state for record in saved[0]] == [State.CREATING, State.RUNNING]
    assert saved[0][-1].ref == at.driver.booted[0].ref
    await at.sandboxes.kill(ALICE, sandbox.id)
    assert [record.state for record in saved[0]][2:] == [State.STOPPING, State.STOPPED]
    assert [record.spec.env for record in saved[0]] == [{"TOKEN": "secret"}] * 3 + [{}]


@pytest.mark.parametrize("state", [State.CREATING, State.RUNNING])
async def test_create_that_cannot_be_recorded_fails(at: Bench, saved: tuple[list[SandboxRecord], list[Fails]], state: State) -> None:
    saved[1].append(lambda record: record.state is state)
    with pytest.raises(HostError):
        await at.sandboxes.create(ALICE, BASE)
    assert at.sandboxes.list(ALICE) == []
    assert at.driver.leftovers() == []
    saved[1].clear()
    assert (await at.sandboxes.create(ALICE, BASE)).state is State.RUNNING


async def test_record_whose_state_cannot_follow_the_recorded_one_is_refused(at: Bench, saved: tuple[list[SandboxRecord], list[Fails]]) -> None:
    sandbox, recorder = await at.sandboxes.create(ALICE, BASE), at.service.internals.manager._recorder  # noqa: SLF001 - no caller does this
    with pytest.raises(InternalError, match="recorded as running and cannot be recorded as creating"):
        await recorder.save(sandbox, state=State.CREATING)
    assert [record.state for record in saved[0]] == [State.CREATING, State.RUNNING]


async def test_kill_that_cannot_be_recorded_succeeds(at: Bench, saved: tuple[list[SandboxRecord], list[Fails]]) -> None:
    sandbox = await at.sandboxes.create(ALICE, BASE)
    saved[1].append(lambda _record: True)
    await at.sandboxes.kill(ALICE, sandbox.id)
    assert at.sandboxes.find(sandbox.id, ALICE).state is State.STOPPED


async def test_slow_store_does_not_delay_a_kill(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await at.sandboxes.create(ALICE, BASE)
    really, answers = Table.save, asyncio.Event()

    async def save(table: Table, record: SandboxRecord, event: NewEvent | None = None) -> None:
        await answers.wait()
        await really(table, record, event)

    monkeypatch.setattr(Table, "save", save)
    monkeypatch.setattr("sandlot.core.lifecycle.supervisor.RECORD_TIMEOUT_S", 0.05)
    await at.sandboxes.kill(ALICE, sandbox.id)
    assert at.driver.leftovers() == []
    answers.set()
    while (record := await at.service.store.sandboxes.get(sandbox.id)) is None or record.state is not State.STOPPED:  # noqa: ASYNC110 - it is asked
        await asyncio.sleep(0.01)


async def test_end_that_the_store_refused_is_recorded_later(
    at: Bench, saved: tuple[list[SandboxRecord], list[Fails]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "RETRY_S", 0.05)
    sandbox = await at.sandboxes.create(ALICE, replace(BASE, env={"TOKEN": "secret"}))
    tries: list[State] = []

    def fails(record: SandboxRecord) -> bool:
        tries.append(record.state)
        return True

    saved[1].append(fails)
    await at.sandboxes.kill(ALICE, sandbox.id)
    await until(lambda: tries.count(State.STOPPED) > 2)
    kept = await at.service.store.sandboxes.get(sandbox.id)
    assert kept is not None
    assert kept.state is State.RUNNING
    saved[1].clear()
    await until(lambda: saved[0][-1].state is State.STOPPED)
    ended = await at.service.store.sandboxes.get(sandbox.id)
    assert ended is not None
    assert (ended.state, ended.spec.env, ended.exit_detail) == (State.STOPPED, {}, "it was killed by request")
    events = await at.service.store.events.page(owner=None, sandbox=sandbox.id, after=0, limit=10)
    assert [each.event.type for each in events] == ["sandbox.created", "sandbox.ended"]


async def test_stopping_service_writes_refused_records_once_more(tmp_path: Path, saved: tuple[list[SandboxRecord], list[Fails]]) -> None:
    async with bench(tmp_path) as at:
        sandbox = await at.sandboxes.create(ALICE, BASE)
        saved[1].append(lambda _record: True)
        await at.sandboxes.kill(ALICE, sandbox.id)
        saved[1].clear()
    assert [(record.id, record.state) for record in saved[0][2:]] == [(sandbox.id, State.STOPPED)]


async def test_records_of_one_sandbox_are_written_in_order(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await at.sandboxes.create(ALICE, BASE)
    really, slow, began = Table.save, asyncio.Event(), asyncio.Event()

    async def save(table: Table, record: SandboxRecord, event: NewEvent | None = None) -> None:
        if event is not None and event.type == "sandbox.updated":
            began.set()
            while not slow.is_set():  # as a write in a thread, which no cancellation interrupts
                with contextlib.suppress(asyncio.CancelledError):
                    await slow.wait()
        await really(table, record, event)

    monkeypatch.setattr(Table, "save", save)
    changing = asyncio.create_task(at.sandboxes.update(ALICE, sandbox.id, UpdateSandboxParams(metadata={"a": "1"})))
    await began.wait()
    killing = asyncio.create_task(at.sandboxes.kill(ALICE, sandbox.id))
    await until(sandbox.end_requested.is_set)
    slow.set()
    async with asyncio.timeout(60):
        await changing
        await killing
    record = await at.service.store.sandboxes.get(sandbox.id)
    assert record is not None
    assert (record.state, record.spec.metadata) == (State.STOPPED, {"a": "1"})
    events = await at.service.store.events.page(owner=None, sandbox=sandbox.id, after=0, limit=10)
    assert [each.event.type for each in events] == ["sandbox.created", "sandbox.updated", "sandbox.ended"]


async def test_sandbox_read_from_a_record_has_the_same_record(at: Bench, sandbox: Sandbox, clock: ManualClock) -> None:
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(idle_timeout_s=60, metadata={"k": "v"}))
    record = to_record(sandbox, at.service.node.id)
    assert await at.service.store.sandboxes.get(sandbox.id) == record
    again = from_record(record, sandbox.buffers, clock)
    assert to_record(again, at.service.node.id) == record
    assert again.deadline.monotonic_s == sandbox.deadline.monotonic_s
