"""Tests of the repository of webhooks: saved values, changes, and leases that only one node has at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandlot.model.access import OwnerId
from sandlot.model.ids import new_node_id, new_webhook_id
from sandlot.model.records import NATIVE_FORMAT, DeliveryProgress, WebhookChange, WebhookRecord
from sandlot.model.repositories import Store
from sandlot.testing.stores.harness import ALICE, BOB, HOSTILE_TEXT, StoreOpener, moment


def webhook(at_s: float = 0, owner: OwnerId = ALICE) -> WebhookRecord:
    """Return the record of a webhook that was created ``at_s`` seconds after ``BEGINNING``."""
    return WebhookRecord(
        id=new_webhook_id(),
        owner=owner,
        name=None,
        url="https://example.com/",
        events=(),
        secret="whsec_" + "a" * 43,
        payload_format=NATIVE_FORMAT,
        created_at=moment(at_s),
        progress=DeliveryProgress(cursor=0),
    )


class WebhooksSuite:
    """Tests of the repository of webhooks. Needs a fixture ``harness``."""

    @pytest.fixture
    async def store(self, harness: StoreOpener) -> AsyncIterator[Store]:
        """Open the store for one test, and close the store after the test."""
        async with harness.open() as store:
            yield store

    async def test_webhook_is_read_as_it_was_added(self, store: Store) -> None:
        progress = DeliveryProgress(1 << 50, 3, moment(1), 1 << 40, 5, moment(2), HOSTILE_TEXT)
        full = replace(
            webhook(),
            name=HOSTILE_TEXT,
            url=HOSTILE_TEXT,
            events=("sandbox.created", "a.b"),
            secret=HOSTILE_TEXT,
            payload_format="a-vendor",
            progress=progress,
            enabled=False,
        )
        for record in (full, webhook()):
            assert await store.webhooks.add(record, max_per_owner=9)
            assert await store.webhooks.get(record.id) == record
        assert await store.webhooks.get(webhook().id) is None

    async def test_number_of_webhooks_per_owner_is_limited(self, store: Store) -> None:
        mine = [webhook(at) for at in (2, 1, 1)]
        assert [await store.webhooks.add(record, max_per_owner=3) for record in mine] == [True] * 3
        assert not await store.webhooks.add(refused := webhook(9), max_per_owner=3)
        assert await store.webhooks.add(theirs := webhook(0, BOB), max_per_owner=3)
        assert await store.webhooks.get(refused.id) is None
        ordered = sorted(mine, key=lambda record: (record.created_at, record.id))
        assert list(await store.webhooks.list(ALICE)) == ordered
        assert list(await store.webhooks.list(None)) == [theirs, *ordered]
        assert await store.webhooks.remove(mine[0].id)
        assert not await store.webhooks.remove(mine[0].id)
        assert await store.webhooks.add(refused, max_per_owner=3)

    async def test_update_changes_only_the_given_fields_of_a_webhook(self, store: Store) -> None:
        progress = DeliveryProgress(7, 3, moment(9), 4, 5, moment(2), "It answered 500.")
        record = replace(webhook(), name="n", events=("sandbox.created",), progress=progress)
        await store.webhooks.add(record, max_per_owner=1)
        assert await store.webhooks.update(record.id, WebhookChange()) == record
        asleep = replace(record, name=HOSTILE_TEXT, secret=HOSTILE_TEXT, events=(), enabled=False)
        assert await store.webhooks.update(record.id, WebhookChange(events=(), secret=HOSTILE_TEXT, name=HOSTILE_TEXT, enabled=False)) == asleep
        moved = replace(asleep, url=HOSTILE_TEXT, enabled=True, progress=replace(progress, failed_attempts=0, next_attempt_at=None))
        assert await store.webhooks.update(record.id, WebhookChange(url=HOSTILE_TEXT, enabled=True)) == moved
        assert await store.webhooks.get(record.id) == moved
        assert await store.webhooks.update(webhook().id, WebhookChange(name="x")) is None
        assert await store.webhooks.update(webhook().id, WebhookChange()) is None

    async def test_one_node_at_a_time_has_the_lease_of_a_webhook(self, store: Store) -> None:
        record, one, other = webhook(), new_node_id(), new_node_id()
        assert await store.webhooks.lease(record.id, one, now=moment(0), until=moment(60)) is None, "there is no such webhook"
        await store.webhooks.add(record, max_per_owner=1)
        assert await store.webhooks.lease(record.id, one, now=moment(0), until=moment(60)) == record
        assert await store.webhooks.lease(record.id, other, now=moment(59), until=moment(120)) is None
        assert await store.webhooks.lease(record.id, one, now=moment(59), until=moment(90)) == record, "the node may renew its lease"
        assert await store.webhooks.lease(record.id, other, now=moment(90), until=moment(120)) == record
        assert await store.webhooks.lease(record.id, one, now=moment(91), until=moment(120)) is None

    async def test_only_the_node_with_the_lease_saves_progress(self, store: Store) -> None:
        record, one, other = webhook(), new_node_id(), new_node_id()
        await store.webhooks.add(record, max_per_owner=1)
        moved = DeliveryProgress(7, delivered_events=1, last_attempt_at=moment(3))
        assert not await store.webhooks.save_progress(record.id, one, moved)
        await store.webhooks.lease(record.id, one, now=moment(0), until=moment(60))
        assert not await store.webhooks.save_progress(record.id, other, DeliveryProgress(9))
        assert await store.webhooks.save_progress(record.id, one, moved)
        assert await store.webhooks.get(record.id) == replace(record, progress=moved)
        await store.webhooks.remove(record.id)
        assert not await store.webhooks.save_progress(record.id, one, moved)
