"""Tests of the repository of volumes: saved values, unique names, and separation of nodes and owners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from sandlot.model.errors import ConflictError
from sandlot.model.ids import new_node_id, new_volume_id
from sandlot.model.records import VolumeRecord
from sandlot.model.repositories import Store
from sandlot.testing.stores.harness import ALICE, BOB, NODE, StoreOpener, event, every_event, moment


class VolumesSuite:
    """Tests of the repository of volumes. Needs a fixture ``harness``."""

    @pytest.fixture
    async def store(self, harness: StoreOpener) -> AsyncIterator[Store]:
        """Open the store for one test, and close the store after the test."""
        async with harness.open() as store:
            yield store

    async def test_volumes_of_a_node_are_read_as_they_were_saved(self, store: Store) -> None:
        node = new_node_id()
        second, first = volume(2, node=node, ready=False), volume(1, node=node, size_bytes=1 << 44, used_bytes=1 << 43, name="n" * 63)
        for record in (second, first, volume()):
            await store.volumes.save(record)
        assert await store.volumes.list_by_node(node) == [first, second]
        await store.volumes.save(ready := replace(second, ready=True, used_bytes=5))
        assert await store.volumes.list_by_node(node) == [first, ready]

    async def test_volume_name_is_unique_per_owner_and_a_refused_save_adds_no_event(self, store: Store) -> None:
        one = volume(name="data")
        await store.volumes.save(one)
        before = await every_event(store)
        with pytest.raises(ConflictError):
            await store.volumes.save(volume(name="data"), event())
        assert await every_event(store) == before
        await store.volumes.save(volume(name="data", owner=BOB))
        assert await store.volumes.remove(one.id)
        await store.volumes.save(volume(name="data"))

    async def test_removal_of_a_volume_adds_one_event(self, store: Store) -> None:
        record = volume()
        await store.volumes.save(record, event())
        before = len(await every_event(store))
        assert await store.volumes.remove(record.id, event())
        assert not await store.volumes.remove(record.id, event())
        assert len(await every_event(store)) == before + 1

    async def test_volumes_are_totalled_by_owner(self, store: Store) -> None:
        number, size = await store.volumes.totals(ALICE)
        for record in (volume(size_bytes=3, ready=False), volume(size_bytes=4), volume(size_bytes=5, owner=BOB)):
            await store.volumes.save(record)
        assert await store.volumes.totals(ALICE) == (number + 2, size + 7)


def volume(at_s: float = 0, **changes: Any) -> VolumeRecord:  # noqa: ANN401
    """Return the record of a volume that was created ``at_s`` seconds after ``BEGINNING``. ``changes`` replaces fields of the record."""
    id_ = new_volume_id(changes.get("node", NODE))
    values = {
        "id": id_,
        "node": NODE,
        "owner": ALICE,
        "name": id_.replace("vol-", "v"),
        "size_bytes": 1 << 30,
        "created_at": moment(at_s),
        "ready": True,
    }
    return VolumeRecord(**{**values, **changes})
