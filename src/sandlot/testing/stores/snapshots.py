"""Tests of the repository of snapshots: saved values, unique names, pages and separation of owners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandlot.model.access import INTERNAL, LOCAL
from sandlot.model.errors import ConflictError
from sandlot.model.ids import SandboxId, SnapshotId, new_node_id, new_sandbox_id
from sandlot.model.network import NetworkEntry, NetworkMode, NetworkPolicy
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position, Store
from sandlot.model.specs import GIB, Limits, OnTimeout, SandboxSpec, SnapshotKind, TemplateRef
from sandlot.testing.stores.harness import ALICE, BOB, HOSTILE_TEXT, NODE, StoreOpener, event, every_event, snapshot


class SnapshotsSuite:
    """Tests of the repository of snapshots. Needs a fixture ``harness``."""

    @pytest.fixture
    async def store(self, harness: StoreOpener) -> AsyncIterator[Store]:
        """Open the store for one test, and close the store after the test."""
        async with harness.open() as store:
            yield store

    async def test_snapshot_is_read_as_it_was_saved(self, store: Store) -> None:
        spec = SandboxSpec(
            id=new_sandbox_id(NODE),
            template=TemplateRef(LOCAL, "base", "ab" * 32),
            env={"PATH": "/bin", "ÜNI": "🐢\n'\"\\"},
            metadata={"": "", "a.b[0]": "x"},
            limits=Limits(cpus=0.1, memory_bytes=3 * GIB, disk_bytes=7 * GIB, pids=99),
            timeout_s=None,
            network=NetworkPolicy(
                NetworkMode.ALLOWLIST, entries=(NetworkEntry(allow=False, rule="GET *.example.com:443/v1"),), unknown="ask", generation=3
            ),
            isolation="container",
            on_timeout=OnTimeout.HIBERNATE,
            auto_resume=False,
            snapshot=SnapshotId("snap-node-aaaaaaaaaaaaaaaa"),
            parent=SandboxId("sb-node-aaaaaaaaaaaaaaaa"),
        )
        full = snapshot(
            0.000001,
            spec=spec,
            name="n" * 63,
            kind=SnapshotKind.FILES,
            size_bytes=1 << 50,
            has_overlay=True,
            problem=HOSTILE_TEXT,
            idempotency_key=HOSTILE_TEXT,
            request_digest="0f" * 32,
        )
        bare = snapshot(ready=False)
        for record in (full, bare):
            await store.snapshots.save(record)
            assert await store.snapshots.get(record.id) == record
        assert await store.snapshots.get(snapshot().id) is None

    async def test_saving_again_replaces_the_snapshot_and_adds_the_event(self, store: Store) -> None:
        intent = snapshot(name="set-up", ready=False)
        await store.snapshots.save(intent)
        done = replace(intent, ready=True, size_bytes=7)
        await store.snapshots.save(done, event(type="snapshot.created"))
        assert await store.snapshots.get(intent.id) == done
        assert [each.event.type for each in await every_event(store)] == ["snapshot.created"]

    async def test_update_does_not_restore_a_removed_snapshot(self, store: Store) -> None:
        record = snapshot(name="set-up")
        assert not await store.snapshots.update(record, event(type="snapshot.never"))
        await store.snapshots.save(record)
        verified = replace(record, has_overlay=True, size_bytes=9)
        assert await store.snapshots.update(verified, event(type="snapshot.verified"))
        assert await store.snapshots.get(record.id) == verified
        assert await store.snapshots.remove(record.id, event(type="snapshot.deleted"))
        assert not await store.snapshots.remove(record.id, event(type="snapshot.never"))
        assert not await store.snapshots.update(record, event(type="snapshot.never"))
        assert await store.snapshots.get(record.id) is None
        assert [each.event.type for each in await every_event(store)] == ["snapshot.verified", "snapshot.deleted"]

    async def test_snapshot_name_is_unique_per_owner(self, store: Store) -> None:
        first, others = snapshot(name="set-up", ready=False), snapshot(name="set-up", owner=BOB)
        for record in (first, others, snapshot(), snapshot()):  # any number of records have no name
            await store.snapshots.save(record)
        again = snapshot(name="set-up")
        with pytest.raises(ConflictError):
            await store.snapshots.save(again, event(type="snapshot.never"))
        assert await store.snapshots.get_by_name(ALICE, "set-up") == first
        assert await store.snapshots.get_by_name(BOB, "set-up") == others
        assert await store.snapshots.get_by_name(BOB, "Set-up") is None
        assert await store.snapshots.get(again.id) is None
        assert await every_event(store) == [], "a refused save adds no event"
        await store.snapshots.remove(first.id)
        await store.snapshots.save(again)
        assert await store.snapshots.get_by_name(ALICE, "set-up") == again

    async def test_idempotency_key_of_a_snapshot_is_unique_per_owner(self, store: Store) -> None:
        first, others = snapshot(idempotency_key="k"), snapshot(idempotency_key="k", owner=BOB)
        for record in (first, others):
            await store.snapshots.save(record)
        with pytest.raises(ConflictError):
            await store.snapshots.save(snapshot(idempotency_key="k"))
        assert await store.snapshots.get_by_idempotency_key(ALICE, "k") == first
        assert await store.snapshots.get_by_idempotency_key(BOB, "k") == others
        assert await store.snapshots.get_by_idempotency_key(ALICE, "K") is None

    async def test_ready_snapshots_are_paged(self, store: Store) -> None:
        records = [snapshot(at // 2, owner=BOB if at % 3 else ALICE) for at in range(9)]  # two records for each time
        internal = snapshot(3, owner=INTERNAL.owner)
        for record in [*records, snapshot(3, ready=False), internal]:
            await store.snapshots.save(record)
        whole = sorted(records, key=lambda record: (record.created_at, record.id))
        paged: list[SnapshotRecord] = []
        while page := await store.snapshots.page(owner=None, after=Position(paged[-1].created_at, paged[-1].id) if paged else None, limit=4):
            assert len(page) <= 4
            paged += page
        assert paged == whole
        assert list(await store.snapshots.page(owner=BOB, after=None, limit=99)) == [record for record in whole if record.owner == BOB]
        assert list(await store.snapshots.page(owner=INTERNAL.owner, after=None, limit=99)) == [internal]

    async def test_snapshots_are_totalled_by_owner_and_found_by_node(self, store: Store) -> None:
        node = new_node_id()
        mine = [snapshot(at, node=node, size_bytes=1 << 45, ready=at != 1) for at in range(3)]
        for record in [*mine, snapshot(owner=BOB, size_bytes=5)]:
            await store.snapshots.save(record)
        assert list(await store.snapshots.list_by_node(node)) == mine
        assert await store.snapshots.totals(ALICE) == (3, 3 << 45)
        assert await store.snapshots.totals(BOB) == (1, 5)
        assert await store.snapshots.list_by_node(new_node_id()) == []
