"""Tests of a store's transactions: concurrent tasks, cancelled writes, and records that are still there when the store is opened again."""

from __future__ import annotations

import asyncio

from sandlot.testing.stores.harness import StoreOpener, event, every_event, key, sandbox


class TransactionsSuite:
    """Tests of transactions. Needs a fixture ``harness``."""

    async def test_records_are_kept_when_the_store_is_closed_and_opened_again(self, harness: StoreOpener) -> None:
        record, made = sandbox(), key("name")
        async with harness.open() as store:
            await store.sandboxes.save(record, event(sandbox=record.id))
            await store.keys.add(made)

        async with harness.open() as store:
            assert await store.sandboxes.get(record.id) == record
            assert list(await store.keys.list()) == [made]
            assert await store.events.last_sequence() == 1

    async def test_concurrent_tasks_write_and_read(self, harness: StoreOpener) -> None:
        async with harness.open() as store:
            records = [sandbox(metadata={"n": "1"}) for _ in range(60)]
            await asyncio.gather(
                *(store.sandboxes.save(record, event(sandbox=record.id)) for record in records),
                *(store.events.page(owner=None, sandbox=None, after=0, limit=10) for _ in range(60)),
            )

            assert {record.id for record in await store.sandboxes.list_unfinished(records[0].node)} == {record.id for record in records}
            assert [record.sequence for record in await every_event(store)] == list(range(1, 61))

    async def test_cancelled_writes_happen_as_a_whole_or_not_at_all(self, harness: StoreOpener) -> None:
        async with harness.open() as store:
            records = [sandbox() for _ in range(30)]
            tasks = [asyncio.create_task(store.sandboxes.save(record, event(sandbox=record.id))) for record in records]
            for number, task in enumerate(tasks):
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)

            saved = {record.id for record in await store.sandboxes.list_unfinished(records[0].node)}
            assert saved == {record.event.sandbox for record in await every_event(store)}
            assert saved >= {record.id for record, outcome in zip(records, outcomes, strict=True) if outcome is None}
            await store.sandboxes.save(late := sandbox())
            assert await store.sandboxes.get(late.id) == late
