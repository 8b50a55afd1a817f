"""What the table of snapshots keeps and gives back: exactly, by id and by name, page by page, and to its owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandlot.model.errors import ConflictError
from sandlot.model.ids import SandboxId, SnapshotId, new_sandbox_id
from sandlot.model.records import SnapshotRecord
from sandlot.model.specs import GIB, Limits, Network, OnTimeout, SandboxSpec, SnapshotKind
from sandlot.model.storage import Position, Store
from sandlot.testing.stores.bench import ALICE, BOB, NASTY, NODE, StoreOpener, event, every_event, fresh_node, snapshot


class SavedSuite:
    """See the module."""

    @pytest.fixture
    async def store(self, bench: StoreOpener) -> AsyncIterator[Store]:
        """The bench's, open."""
        async with bench.open() as store:
            yield store

    async def test_a_snapshot_comes_back_as_it_was(self, store: Store) -> None:
        spec = SandboxSpec(
            id=new_sandbox_id(NODE),
            template="base",
            env={"PATH": "/bin", "ÜNI": "🐢\n'\"\\"},
            metadata={"": "", "a.b[0]": "x"},
            limits=Limits(cpus=0.1, memory_bytes=3 * GIB, disk_bytes=7 * GIB, pids=99),
            timeout_s=None,
            network=Network.NONE,
            isolation="container",
            on_timeout=OnTimeout.HIBERNATE,
            auto_resume=False,
            snapshot=SnapshotId("snap-node-aaaaaaaaaaaaaaaa"),
            parent=SandboxId("sb-node-aaaaaaaaaaaaaaaa"),
            root="ab" * 32,
        )
        full = snapshot(
            0.000001,
            spec=spec,
            name="n" * 63,
            kind=SnapshotKind.FILES,
            size_bytes=1 << 50,
            layer=True,
            problem=NASTY,
            idempotency_key=NASTY,
            request_digest="0f" * 32,
        )
        bare = snapshot(ready=False)
        for record in (full, bare):
            await store.snapshots.save(record)
            assert await store.snapshots.get(record.id) == record
        assert await store.snapshots.get(snapshot().id) is None

    async def test_saving_a_snapshot_again_replaces_it_and_tells(self, store: Store) -> None:
        intent = snapshot(name="set-up", ready=False)
        await store.snapshots.save(intent)
        done = replace(intent, ready=True, size_bytes=7)
        await store.snapshots.save(done, event(type="snapshot.created"))
        assert await store.snapshots.get(intent.id) == done
        assert [each.event.type for each in await every_event(store)] == ["snapshot.created"]

    async def test_what_was_removed_is_not_brought_back_by_an_update(self, store: Store) -> None:
        record = snapshot(name="set-up")
        assert not await store.snapshots.update(record, event(type="snapshot.never"))
        await store.snapshots.save(record)
        verified = replace(record, layer=True, size_bytes=9)
        assert await store.snapshots.update(verified, event(type="snapshot.verified"))
        assert await store.snapshots.get(record.id) == verified
        assert await store.snapshots.remove(record.id, event(type="snapshot.deleted"))
        assert not await store.snapshots.remove(record.id, event(type="snapshot.never"))
        assert not await store.snapshots.update(record, event(type="snapshot.never"))
        assert await store.snapshots.get(record.id) is None
        assert [each.event.type for each in await every_event(store)] == ["snapshot.verified", "snapshot.deleted"]

    async def test_a_snapshots_name_is_an_owners_once(self, store: Store) -> None:
        first, others = snapshot(name="set-up", ready=False), snapshot(name="set-up", owner=BOB)
        for record in (first, others, snapshot(), snapshot()):  # any number have none
            await store.snapshots.save(record)
        again = snapshot(name="set-up")
        with pytest.raises(ConflictError):
            await store.snapshots.save(again, event(type="snapshot.never"))
        assert await store.snapshots.named(ALICE, "set-up") == first
        assert await store.snapshots.named(BOB, "set-up") == others
        assert await store.snapshots.named(BOB, "Set-up") is None
        assert await store.snapshots.get(again.id) is None
        assert await every_event(store) == [], "the event of what was refused is refused too"
        await store.snapshots.remove(first.id)
        await store.snapshots.save(again)
        assert await store.snapshots.named(ALICE, "set-up") == again

    async def test_a_snapshots_idempotency_key_is_an_owners_once(self, store: Store) -> None:
        first, others = snapshot(idempotency_key="k"), snapshot(idempotency_key="k", owner=BOB)
        for record in (first, others):
            await store.snapshots.save(record)
        with pytest.raises(ConflictError):
            await store.snapshots.save(snapshot(idempotency_key="k"))
        assert await store.snapshots.by_idempotency_key(ALICE, "k") == first
        assert await store.snapshots.by_idempotency_key(BOB, "k") == others
        assert await store.snapshots.by_idempotency_key(ALICE, "K") is None

    async def test_snapshots_that_are_ready_are_paged(self, store: Store) -> None:
        records = [snapshot(at // 2, owner=BOB if at % 3 else ALICE) for at in range(9)]  # two of one moment each
        for record in [*records, snapshot(3, ready=False)]:
            await store.snapshots.save(record)
        whole = sorted(records, key=lambda record: (record.created_at, record.id))
        paged: list[SnapshotRecord] = []
        while page := await store.snapshots.page(owner=None, after=Position(paged[-1].created_at, paged[-1].id) if paged else None, limit=4):
            assert len(page) <= 4
            paged += page
        assert paged == whole
        assert list(await store.snapshots.page(owner=BOB, after=None, limit=99)) == [record for record in whole if record.owner == BOB]

    async def test_snapshots_are_counted_and_found_by_their_node(self, store: Store) -> None:
        node = fresh_node()
        mine = [snapshot(at, node=node, size_bytes=1 << 45, ready=at != 1) for at in range(3)]
        for record in [*mine, snapshot(owner=BOB, size_bytes=5)]:
            await store.snapshots.save(record)
        assert list(await store.snapshots.of_node(node)) == mine
        assert await store.snapshots.totals(ALICE) == (3, 3 << 45)
        assert await store.snapshots.totals(BOB) == (1, 5)
        assert await store.snapshots.of_node(fresh_node()) == []
