"""Tests of the repositories of sandboxes, keys, files, executions and events: saved values, order, pages, filters and separation of owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType

import pytest

from sandlot.model.access import INTERNAL, LOCAL, Quota
from sandlot.model.errors import ConflictError
from sandlot.model.ids import SandboxId, new_file_id, new_node_id, new_process_id, new_sandbox_id
from sandlot.model.records import ExecutionId, KeyChange, SandboxRecord
from sandlot.model.repositories import Position, Store, Stored
from sandlot.model.specs import GIB, Limits, SandboxSpec, TemplateRef
from sandlot.model.states import State, is_terminal
from sandlot.testing.stores.harness import (
    ALICE,
    BOB,
    HOSTILE_TEXT,
    NODE,
    StoreOpener,
    ended,
    event,
    every_event,
    execution,
    file,
    key,
    moment,
    sandbox,
)

_MANY, _PAGE = 2400, 600
"""Number of rows that a test saves, which is more than a store deletes in one transaction; number of rows in one page."""


class RowsSuite:
    """Tests of the repositories of sandboxes, keys, files, executions and events. Needs a fixture ``harness``."""

    @pytest.fixture
    async def store(self, harness: StoreOpener) -> AsyncIterator[Store]:
        """Open the store for one test, and close the store after the test."""
        async with harness.open() as store:
            yield store

    # -- sandboxes --------------------------------------------------------------------------------------------------
    async def test_sandbox_is_read_as_it_was_saved(self, store: Store) -> None:
        spec = SandboxSpec(
            id=new_sandbox_id(NODE),
            template=TemplateRef(LOCAL, "base"),
            env=MappingProxyType({"PATH": "/bin", "ÜNI": "🐢\n'\"\\"}),
            metadata={"": "", "a.b[0]": "x", "🐢" * 63: "x" * 15_000, '"quoted"': "'"},
            limits=Limits(cpus=0.1, memory_bytes=3 * GIB, disk_bytes=7 * GIB, pids=99),
            timeout_s=0.1 + 1,
            isolation="container",
            public_ports=True,
            mask_request_host="${PORT}.example.com",
        )
        full = sandbox(
            spec=spec,
            name="n" * 63,
            state=State.FAILED,
            created_at=moment(0.000001),
            expires_at=moment(1e9),
            idle_timeout_s=0.3,
            waits_for_disk=True,
            ref=HOSTILE_TEXT,
            exit_reason="crashed",
            exit_detail=HOSTILE_TEXT,
            ended_at=moment(1.999999),
            idempotency_key=HOSTILE_TEXT,
            request_digest="0f" * 32,
        )
        bare = sandbox()
        for record in (full, bare):
            await store.sandboxes.save(record)
            assert await store.sandboxes.get(record.id) == record
        assert await store.sandboxes.get(new_sandbox_id(NODE)) is None

    async def test_saving_again_replaces_the_sandbox(self, store: Store) -> None:
        first = sandbox(name="mine", metadata={"team": "red", "old": "x"})
        await store.sandboxes.save(first)
        now = replace(first, state=State.STOPPED, ended_at=moment(9), spec=replace(first.spec, env={}, metadata={"team": "blue"}))
        await store.sandboxes.save(now)
        assert await store.sandboxes.get(first.id) == now
        assert await self._ended_page(store, metadata={"team": "blue"}) == [now]
        assert await self._ended_page(store, metadata={"team": "red"}) == await self._ended_page(store, metadata={"old": "x"}) == []
        assert await self._ended_page(store, name="mine") == [now]

    async def test_stopping_or_ended_sandbox_is_not_replaced_by_a_live_one(self, store: Store) -> None:
        live = sandbox(metadata={"team": "red"})
        late = replace(live, spec=replace(live.spec, metadata={"team": "blue"}))
        stopping, stopped = replace(live, state=State.STOPPING), replace(live, state=State.STOPPED, ended_at=moment(9))
        await store.sandboxes.save(live, event(type="sandbox.created"))
        for now, then in ((stopping, stopping), (stopped, stopped), (replace(stopped, state=State.FAILED), stopped)):
            await store.sandboxes.save(now)
            await store.sandboxes.save(late, event(type="sandbox.never"))
            assert await store.sandboxes.get(live.id) == then
        assert await self._ended_page(store, metadata={"team": "red"}) == [stopped]
        assert await self._ended_page(store, metadata={"team": "blue"}) == []
        assert [each.event.type for each in await every_event(store)] == ["sandbox.created"], "a save that was ignored adds no event"

    async def test_unfinished_sandboxes_are_found_by_node(self, store: Store) -> None:
        node = new_node_id()
        mine = [sandbox(node=node, state=state, created_at=moment(number)) for number, state in enumerate(State)]
        for record in [*mine, sandbox()]:
            await store.sandboxes.save(record)
        assert list(await store.sandboxes.list_unfinished(node)) == [record for record in mine if not is_terminal(record.state)]
        assert await store.sandboxes.list_unfinished(new_node_id()) == []

    async def test_last_ended_sandboxes_are_found_by_node(self, store: Store) -> None:
        node = new_node_id()
        mine = [ended(at, node=node) for at in (3, 1, 2)]
        for record in [*mine, ended(9), sandbox(node=node)]:
            await store.sandboxes.save(record)
        assert list(await store.sandboxes.list_last_ended(node, limit=2)) == [mine[0], mine[2]]

    async def test_idempotency_key_is_unique_per_owner(self, store: Store) -> None:
        first, again, others = sandbox(idempotency_key="k"), sandbox(idempotency_key="k"), sandbox(idempotency_key="k", owner=BOB)
        for record in (first, others, sandbox(), sandbox()):  # any number of records have no key
            await store.sandboxes.save(record)
        with pytest.raises(ConflictError):
            await store.sandboxes.save(again, event(type="sandbox.never"))
        assert await store.sandboxes.get_by_idempotency_key(ALICE, "k") == first
        assert await store.sandboxes.get_by_idempotency_key(BOB, "k") == others
        assert await store.sandboxes.get_by_idempotency_key(BOB, "K") is None
        assert await store.sandboxes.get(again.id) is None
        assert await every_event(store) == [], "a refused save adds no event"

    async def test_ended_sandboxes_are_paged_and_filtered(self, store: Store) -> None:
        records = [ended(at // 2, owner=BOB if at % 3 else ALICE, metadata={"n": str(at % 2)}) for at in range(9)]  # two records for each time
        records.append(ended(4, state=State.FAILED, metadata={"n": "0", "x": "y"}))
        internal = ended(3, owner=INTERNAL.owner, metadata={"n": "0"})
        for record in [*records, sandbox(metadata={"n": "0"}), internal]:
            await store.sandboxes.save(record)
        whole = sorted(records, key=lambda record: (record.created_at, record.id))
        paged: list[SandboxRecord] = []
        while page := await self._ended_page(store, after=Position(paged[-1].created_at, paged[-1].id) if paged else None, limit=3):
            assert len(page) <= 3
            paged += page
        assert paged == whole
        assert await self._ended_page(store, owner=BOB) == [record for record in whole if record.owner == BOB]
        assert await self._ended_page(store, owner=INTERNAL.owner) == [internal]
        assert await self._ended_page(store, metadata={"n": "0"}) == [record for record in whole if record.spec.metadata["n"] == "0"]
        assert await self._ended_page(store, metadata={"n": "0", "x": "y"}) == [records[-1]]
        assert await self._ended_page(store, states=[State.FAILED]) == [records[-1]]
        assert await self._ended_page(store, states=[State.RUNNING]) == []
        assert await self._ended_page(store, name="nobody") == []

    async def test_old_ended_sandboxes_are_deleted(self, store: Store) -> None:
        old, new, live = ended(1, metadata={"a": "b"}), ended(100), sandbox(created_at=moment(0))
        for record in (old, new, live):
            await store.sandboxes.save(record)
        assert await store.sandboxes.delete_ended(moment(50)) == 1
        assert await store.sandboxes.delete_ended(moment(50)) == 0
        assert [await store.sandboxes.get(record.id) for record in (old, new, live)] == [None, new, live]
        assert await self._ended_page(store, metadata={"a": "b"}) == []

    async def test_surplus_ended_sandboxes_of_one_owner_are_deleted(self, store: Store) -> None:
        own = [ended(at // 2, metadata={"a": "\x01ä" * at}) for at in range(6)]
        others = [ended(0, owner=BOB), sandbox(created_at=moment(0))]
        for record in (*own, *others):
            await store.sandboxes.save(record)
        newest = sorted(own, key=lambda record: (record.ended_at, record.spec.id), reverse=True)
        size = sum(record.size_bytes for record in own)
        assert await store.sandboxes.ended_totals() == {ALICE: Stored(6, size), BOB: Stored(1, others[0].size_bytes)}
        assert await store.sandboxes.trim_ended(ALICE, keep=Stored(6, size)) == 0
        assert await store.sandboxes.trim_ended(ALICE, keep=Stored(5, size)) == 1
        assert await store.sandboxes.trim_ended(ALICE, keep=Stored(9, sum(record.size_bytes for record in newest[:3]))) == 2
        kept = [record for record in own if await store.sandboxes.get(record.id)]
        assert sorted(record.id for record in kept) == sorted(record.id for record in newest[:3])
        assert [await store.sandboxes.get(record.id) for record in others] == others
        assert await store.sandboxes.trim_ended(ALICE, keep=Stored(0, size)) == 3

    async def _ended_page(self, store: Store, **filters: object) -> list[SandboxRecord]:
        """Return a page of ended sandboxes. ``filters`` are arguments of ``list_ended``; by default all ended sandboxes match."""
        values = {"owner": None, "metadata": {}, "states": (), "after": None, "limit": 100, **filters}
        return list(await store.sandboxes.list_ended(**values))  # type: ignore[arg-type]

    # -- keys -------------------------------------------------------------------------------------------------------
    async def test_key_is_listed_until_it_is_revoked(self, store: Store) -> None:
        quota = Quota(sandboxes=0, lifetime_s=0.5, cpus=1.5, memory_bytes=1 << 50, disk_bytes=1, upload_bytes=2, executions_per_month=10**12)
        first, second = key("first", quota=quota, operator=True), key("second", created_at=moment(0.5))
        for record in (second, first):
            await store.keys.add(record)
        assert list(await store.keys.list()) == [first, second]
        assert await store.keys.revoke("first", moment(1)) == replace(first, revoked_at=moment(1))
        assert await store.keys.revoke("first", moment(2)) is None
        assert await store.keys.revoke(second.id, moment(3)) == replace(second, revoked_at=moment(3))
        assert await store.keys.list() == []

    async def test_key_name_is_unique_among_valid_keys(self, store: Store) -> None:
        await store.keys.add(key("name"))
        with pytest.raises(ConflictError):
            await store.keys.add(key("name"))
        await store.keys.revoke("name", moment(1))
        again = key("name")
        await store.keys.add(again)
        assert list(await store.keys.list()) == [again]

    async def test_key_with_this_id_is_preferred_to_the_key_with_this_name(self, store: Store) -> None:
        target = key("target")
        await store.keys.add(key(target.id))
        await store.keys.add(target)
        for changed in (await store.keys.update(target.id, KeyChange(name="renamed")), await store.keys.revoke(target.id, moment(1))):
            assert changed is not None
            assert changed.id == target.id

    async def test_key_update_changes_only_the_given_fields(self, store: Store) -> None:
        first = key("first", expires_at=moment(60))
        await store.keys.add(first)
        assert await store.keys.update("first", KeyChange()) == first
        for change in (KeyChange(name="other"), KeyChange(quota=Quota(cpus=1.5)), KeyChange(expires_at=moment(0.25)), KeyChange(removes_expiry=True)):
            expected = change.apply((await store.keys.list())[0])
            assert await store.keys.update(first.id, change) == expected
            assert list(await store.keys.list()) == [expected]
        assert (await store.keys.list())[0].expires_at is None
        assert await store.keys.update("first", KeyChange(name="third")) is None

    async def test_key_cannot_be_renamed_to_a_name_in_use(self, store: Store) -> None:
        first, second = key("first"), key("second", created_at=moment(1))
        for record in (first, second):
            await store.keys.add(record)
        with pytest.raises(ConflictError):
            await store.keys.update("second", KeyChange(name="first", quota=Quota(cpus=1)))
        assert list(await store.keys.list()) == [first, second]
        await store.keys.revoke("first", moment(2))
        assert await store.keys.update(second.id, KeyChange(name="first")) == replace(second, name="first")
        assert await store.keys.update(first.id, KeyChange(name="second")) is None

    # -- files ------------------------------------------------------------------------------------------------------
    async def test_file_is_found_until_it_is_removed(self, store: Store) -> None:
        record = file(filename=HOSTILE_TEXT, media_type="x/y", sandbox=SandboxId("sb-node-aaaaaaaaaaaaaaaa"))
        await store.files.add(record)
        assert await store.files.get(record.id) == record
        assert await store.files.ids() == {record.id}
        assert await store.files.remove(record.id)
        assert not await store.files.remove(record.id)
        assert await store.files.get(record.id) is None
        assert await store.files.get(new_file_id()) is None

    async def test_files_of_an_owner_are_added_up(self, store: Store) -> None:
        assert await store.files.totals(ALICE) == (0, 0)
        records = [file(size_bytes=size, owner=owner) for size, owner in ((1, ALICE), (1 << 40, ALICE), (7, BOB))]
        for record in records:
            await store.files.add(record)
        assert await store.files.totals(ALICE) == (2, (1 << 40) + 1)
        await store.files.remove(records[1].id)
        assert await store.files.totals(ALICE) == (1, 1)

    async def test_files_are_paged_with_their_total(self, store: Store) -> None:
        records = [file(at // 2, owner=BOB if at == 4 else ALICE) for at in range(7)]
        for record in records:
            await store.files.add(record)
        newest = sorted(records, key=lambda record: (record.created_at, record.id), reverse=True)
        own = [record for record in newest if record.owner == ALICE]
        assert await store.files.page_by_offset(owner=ALICE, offset=0, limit=4) == (own[:4], 6)
        assert await store.files.page_by_offset(owner=ALICE, offset=4, limit=4) == (own[4:], 6)
        assert await store.files.page_by_offset(owner=ALICE, offset=99, limit=4) == ([], 6)
        assert await store.files.page_by_offset(owner=None, offset=0, limit=99) == (newest, 7)

    async def test_files_are_paged_by_position(self, store: Store) -> None:
        records = [file(at // 2, owner=BOB if at == 4 else ALICE) for at in range(7)]
        for record in records:
            await store.files.add(record)
        newest = sorted(records, key=lambda record: (record.created_at, record.id), reverse=True)
        own = [record for record in newest if record.owner == ALICE]
        for index, record in enumerate(own):
            page = await store.files.page(owner=ALICE, before=Position(record.created_at, record.id), limit=2)
            assert list(page) == own[index + 1 : index + 3]
        assert list(await store.files.page(owner=ALICE, before=None, limit=2)) == own[:2]
        assert list(await store.files.page(owner=None, before=None, limit=99)) == newest

    # -- executions -------------------------------------------------------------------------------------------------
    async def test_execution_is_read_as_it_was_saved(self, store: Store) -> None:
        full = execution(
            kind="command",
            language=HOSTILE_TEXT,
            code=HOSTILE_TEXT,
            argv=("sh", "-c", HOSTILE_TEXT, ""),
            exit_code=-9,
            stdout=HOSTILE_TEXT,
            stderr="x" * 300_000,
            stdout_omitted_bytes=1 << 45,
            stderr_omitted_bytes=1,
            duration_s=0.1,
            error=HOSTILE_TEXT,
            origin="somewhere",
            files=3,
            mode="background",
        )
        bare = execution(status="running", argv=None)
        await store.executions.save([full, bare])
        assert await store.executions.get(full.id) == full
        assert await store.executions.get(bare.id) == bare
        done = replace(bare, status="ok", duration_s=1.0)
        await store.executions.save([done])
        await store.executions.save([])
        assert await store.executions.get(bare.id) == done
        assert await store.executions.get(ExecutionId(new_process_id())) is None

    async def test_results_of_executions_are_kept_apart_and_deleted_with_them(self, store: Store) -> None:
        old, new, bare = execution(0, results_bytes=3, execution_count=2**63 - 1), execution(1, results_bytes=2), execution(2)
        await store.executions.save([new, old, bare], {new.id: b"n\xff", old.id: b"o\x00l"})
        assert await store.executions.get(old.id) == old
        assert [await store.executions.results(each.id) for each in (old, new, bare)] == [b"o\x00l", b"n\xff", None]
        await store.executions.save([new])
        assert await store.executions.results(new.id) == b"n\xff"
        await store.executions.save([new], {new.id: b"again"})
        assert await store.executions.results(new.id) == b"again"
        assert await store.executions.delete_before(moment(1)) == 1
        assert [await store.executions.results(each.id) for each in (old, new)] == [None, b"again"]
        await store.executions.trim(ALICE, keep=Stored(0, 0))
        assert await store.executions.results(new.id) is None

    async def test_executions_are_paged_and_filtered(self, store: Store) -> None:
        other = SandboxId("sb-node-bbbbbbbbbbbbbbbb")
        records = [execution(at // 2, owner=BOB if at % 3 else ALICE, **({"sandbox": other} if at % 2 else {})) for at in range(9)]
        await store.executions.save(records)
        newest = sorted(records, key=lambda record: (record.created_at, record.id), reverse=True)
        first = await store.executions.page(owner=None, sandbox=None, before=None, limit=4)
        rest = await store.executions.page(owner=None, sandbox=None, before=Position(first[-1].created_at, first[-1].id), limit=99)
        assert [*first, *rest] == newest
        assert list(await store.executions.page(owner=BOB, sandbox=other, before=None, limit=99)) == [
            record for record in newest if record.owner == BOB and record.sandbox == other
        ]

    async def test_running_executions_are_found(self, store: Store) -> None:
        records = [execution(at, status="running" if at % 2 else "ok") for at in range(6)]
        await store.executions.save(records)
        assert list(await store.executions.list_running(limit=2)) == [records[5], records[3]]

    async def test_old_and_surplus_executions_are_deleted(self, store: Store) -> None:
        records = [execution(at) for at in range(10)]
        await store.executions.save(records)
        other = execution(1, owner=BOB)
        await store.executions.save([other])
        assert await store.executions.delete_before(moment(1)) == 1
        assert await store.executions.trim(ALICE, keep=Stored(9, 1 << 40)) == 0
        assert await store.executions.trim(ALICE, keep=Stored(2, 1 << 40)) == 7
        assert list(await store.executions.page(owner=None, sandbox=None, before=None, limit=99)) == [records[9], records[8], other]

    async def test_executions_are_trimmed_to_a_size_for_one_owner(self, store: Store) -> None:
        records = [execution(at // 2, owner=ALICE if at % 2 else BOB, stdout="ä" * 100 * at, code="\ud800") for at in range(10)]
        await store.executions.save(records)
        await store.executions.save(records[3:5])
        own = [record for record in records if record.owner == ALICE]
        sizes = [record.size_bytes for record in own]
        assert await store.executions.totals(owner=ALICE) == {ALICE: Stored(5, sum(sizes))}
        assert await store.executions.totals() == {
            ALICE: Stored(5, sum(sizes)),
            BOB: Stored(5, sum(record.size_bytes for record in records) - sum(sizes)),
        }
        assert await store.executions.trim(ALICE, keep=Stored(5, sum(sizes))) == 0
        assert await store.executions.trim(ALICE, keep=Stored(5, sum(sizes[3:]) + 1)) == 3
        assert list(await store.executions.page(owner=ALICE, sandbox=None, before=None, limit=9)) == [own[4], own[3]]
        assert await store.executions.trim(ALICE, keep=Stored(1, 0)) == 2
        assert [*await store.executions.totals()] == [BOB]
        assert (await store.executions.totals())[BOB].rows == 5

    async def test_executions_of_a_month_are_counted_by_concurrent_writers(self, store: Store) -> None:
        assert await store.executions.monthly_counts("2026-11") == {}
        await asyncio.gather(*(store.executions.add_monthly_counts("2026-11", {ALICE: 1, BOB: 2}) for _ in range(20)))
        await store.executions.add_monthly_counts("2026-12", {ALICE: 7})
        await store.executions.add_monthly_counts("2026-11", {ALICE: -1})
        await store.executions.add_monthly_counts("2026-11", {})
        await store.executions.save([execution()])
        await store.executions.delete_before(moment(1e6))
        assert await store.executions.monthly_counts("2026-11") == {ALICE: 19, BOB: 40}
        assert await store.executions.monthly_counts("2026-12") == {ALICE: 7}

    async def test_many_rows_are_paged_without_a_gap_and_trimmed(self, store: Store) -> None:
        for begin in range(0, _MANY, _PAGE):
            await store.executions.save([execution(number // 3) for number in range(begin, begin + _PAGE)])
            await store.events.add([event(number) for number in range(_PAGE)])
        seen: list[Position] = []
        while page := await store.executions.page(owner=ALICE, sandbox=None, before=seen[-1] if seen else None, limit=_PAGE):
            assert len(page) <= _PAGE
            seen += [Position(record.created_at, record.id) for record in page]
        assert len({position.id for position in seen}) == _MANY
        positions = [(position.at, position.id) for position in seen]
        assert positions == sorted(positions, reverse=True)
        assert [record.sequence for record in await every_event(store, _PAGE)] == list(range(1, _MANY + 1))
        assert await store.executions.trim(ALICE, keep=Stored(10, 1 << 40)) == _MANY - 10
        assert await store.events.trim(ALICE, keep=10) == _MANY - 10
        assert [record.sequence for record in await every_event(store)] == list(range(_MANY - 9, _MANY + 1))

    # -- events -----------------------------------------------------------------------------------------------------
    async def test_events_are_numbered_from_one_and_filtered(self, store: Store) -> None:
        assert await store.events.last_sequence() == 0
        record = sandbox()
        created = event(1, sandbox=record.id, data={"text": HOSTILE_TEXT, "number": 0.1, "none": None, "list": [1, {"a": True}]})
        await store.sandboxes.save(record, created)
        others = [event(2, owner=BOB), event(3, type="key.revoked")]
        await store.events.add(others)
        await store.events.add([])
        assert [(one.sequence, one.event) for one in await every_event(store, 2)] == list(enumerate([created, *others], 1))
        assert [one.sequence for one in await store.events.page(owner=ALICE, sandbox=None, after=0, limit=9)] == [1, 3]
        assert [one.sequence for one in await store.events.page(owner=ALICE, sandbox=record.id, after=0, limit=9)] == [1]
        assert [one.sequence for one in await store.events.page(owner=None, sandbox=None, after=1, limit=1)] == [2]
        assert await store.events.last_sequence() == 3

    async def test_sequence_number_is_never_assigned_twice(self, store: Store) -> None:
        await store.events.add([event(at) for at in range(5)])
        assert await store.events.trim(ALICE, keep=5) == 0
        assert await store.events.trim(BOB, keep=0) == 0
        assert await store.events.trim(ALICE, keep=3) == 2
        assert await store.events.counts() == {ALICE: 3}
        assert [one.sequence for one in await every_event(store)] == [3, 4, 5]
        assert await store.events.delete_before(moment(99)) == 3
        assert await store.events.last_sequence() == 5
        await store.events.add([event()])
        assert [one.sequence for one in await every_event(store)] == [6]
