"""What the table of webhooks keeps and gives back, and that one node at a time holds one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandlot.model.access import OwnerId
from sandlot.model.ids import new_webhook_id
from sandlot.model.storage import Store
from sandlot.model.webhooks import NATIVE, Progress, WebhookChange, WebhookRecord
from sandlot.testing.stores.bench import ALICE, BOB, NASTY, StoreOpener, fresh_node, moment


def webhook(at_s: float = 0, owner: OwnerId = ALICE) -> WebhookRecord:
    """One that was made then."""
    return WebhookRecord(
        id=new_webhook_id(),
        owner=owner,
        name=None,
        url="https://example.com/",
        events=(),
        secret="whsec_" + "a" * 43,
        shape=NATIVE,
        created_at=moment(at_s),
        progress=Progress(cursor=0),
    )


class HooksSuite:
    """See the module."""

    @pytest.fixture
    async def store(self, bench: StoreOpener) -> AsyncIterator[Store]:
        """The bench's, open."""
        async with bench.open() as store:
            yield store

    async def test_a_webhook_comes_back_as_it_was(self, store: Store) -> None:
        progress = Progress(1 << 50, 3, moment(1), 1 << 40, 5, moment(2), NASTY)
        full = replace(
            webhook(), name=NASTY, url=NASTY, events=("sandbox.created", "a.b"), secret=NASTY, shape="a-door", progress=progress, enabled=False
        )
        for record in (full, webhook()):
            assert await store.webhooks.add(record, most=9)
            assert await store.webhooks.get(record.id) == record
        assert await store.webhooks.get(webhook().id) is None

    async def test_an_owner_has_so_many_webhooks_and_no_more(self, store: Store) -> None:
        mine = [webhook(at) for at in (2, 1, 1)]
        assert [await store.webhooks.add(record, most=3) for record in mine] == [True] * 3
        assert not await store.webhooks.add(refused := webhook(9), most=3)
        assert await store.webhooks.add(theirs := webhook(0, BOB), most=3)
        assert await store.webhooks.get(refused.id) is None
        ordered = sorted(mine, key=lambda record: (record.created_at, record.id))
        assert list(await store.webhooks.all(ALICE)) == ordered
        assert list(await store.webhooks.all(None)) == [theirs, *ordered]
        assert await store.webhooks.remove(mine[0].id)
        assert not await store.webhooks.remove(mine[0].id)
        assert await store.webhooks.add(refused, most=3)

    async def test_a_webhook_is_changed_in_what_is_given_and_in_nothing_else(self, store: Store) -> None:
        progress = Progress(7, 3, moment(9), 4, 5, moment(2), "It answered 500.")
        record = replace(webhook(), name="n", events=("sandbox.created",), progress=progress)
        await store.webhooks.add(record, most=1)
        assert await store.webhooks.change(record.id, WebhookChange()) == record
        asleep = replace(record, name=NASTY, secret=NASTY, events=(), enabled=False)
        assert await store.webhooks.change(record.id, WebhookChange(events=(), secret=NASTY, name=NASTY, enabled=False)) == asleep
        moved = replace(asleep, url=NASTY, enabled=True, progress=replace(progress, tries=0, next_at=None))
        assert await store.webhooks.change(record.id, WebhookChange(url=NASTY, enabled=True)) == moved
        assert await store.webhooks.get(record.id) == moved
        assert await store.webhooks.change(webhook().id, WebhookChange(name="x")) is None
        assert await store.webhooks.change(webhook().id, WebhookChange()) is None

    async def test_one_node_at_a_time_holds_a_webhook(self, store: Store) -> None:
        record, one, other = webhook(), fresh_node(), fresh_node()
        assert await store.webhooks.hold(record.id, one, now=moment(0), until=moment(60)) is None, "it is not there"
        await store.webhooks.add(record, most=1)
        assert await store.webhooks.hold(record.id, one, now=moment(0), until=moment(60)) == record
        assert await store.webhooks.hold(record.id, other, now=moment(59), until=moment(120)) is None
        assert await store.webhooks.hold(record.id, one, now=moment(59), until=moment(90)) == record, "who holds it may go on"
        assert await store.webhooks.hold(record.id, other, now=moment(90), until=moment(120)) == record
        assert await store.webhooks.hold(record.id, one, now=moment(91), until=moment(120)) is None

    async def test_only_who_holds_a_webhook_moves_it(self, store: Store) -> None:
        record, one, other = webhook(), fresh_node(), fresh_node()
        await store.webhooks.add(record, most=1)
        moved = Progress(7, delivered=1, last_at=moment(3))
        assert not await store.webhooks.move(record.id, one, moved)
        await store.webhooks.hold(record.id, one, now=moment(0), until=moment(60))
        assert not await store.webhooks.move(record.id, other, Progress(9))
        assert await store.webhooks.move(record.id, one, moved)
        assert await store.webhooks.get(record.id) == replace(record, progress=moved)
        await store.webhooks.remove(record.id)
        assert not await store.webhooks.move(record.id, one, moved)
