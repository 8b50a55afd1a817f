"""Webhooks on a real store, without a network: order, retries, restarts, several nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.records.events import EventFeed
from sandlot.core.webhooks import delivery
from sandlot.core.webhooks.delivery import WebhookDispatcher
from sandlot.core.webhooks.manager import WebhookManager
from sandlot.core.webhooks.payload import MAX_ATTEMPTS, signature
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, UnavailableError
from sandlot.model.ids import NodeId
from sandlot.model.records import KeyRecord, NewEvent, WebhookChange, WebhookRecord
from sandlot.store.store import SqlStore
from tests.support.clock import START, ManualClock
from tests.support.until import until

ALICE, BOB = (Principal(OwnerId(name * 12), name) for name in "ab")
URL = "https://one.example/"
SIGNS = "another one"
NODE, OTHER = NodeId("aaaa"), NodeId("bbbb")


@dataclass
class Calls:
    """Records the requests, and responds with the status that ``answers`` returns; 0 is no response."""

    got: list[tuple[str, bytes, Mapping[str, str]]] = field(default_factory=list)
    answers: Callable[[str, int], int] = lambda _url, _number: 200
    slow: dict[str, asyncio.Event] = field(default_factory=dict)

    def check(self, url: str) -> None:
        if "inside" in url:
            raise InvalidRequestError("It is inside.")

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        self.got.append((url, body, headers))
        if url in self.slow:
            await self.slow[url].wait()
        status = self.answers(url, len(self.got))
        if not status:
            raise UnavailableError("Nobody is there.", code=ErrorCode.SERVICE_UNAVAILABLE)
        return status

    def heard(self, url: str = URL) -> list[int]:
        return [json.loads(body)["sequence"] for where, body, _ in self.got if where == url]


@dataclass
class Place:
    """A service's part of them."""

    feed: EventFeed
    calls: Calls
    hooks: WebhookManager
    keys: ApiKeys

    async def happens(self, *kinds: str, principal: Principal = ALICE) -> None:
        await self.feed.publish(*(NewEvent(f"sandbox.{kind}", START, principal.owner) for kind in kinds))

    async def now(self, hook: WebhookRecord) -> WebhookRecord:
        return await self.hooks.get(OPERATOR, hook.id)


@asynccontextmanager
async def service(store: SqlStore, clock: ManualClock, node: NodeId = NODE, calls: Calls | None = None) -> AsyncIterator[Place]:
    feed, sent = EventFeed(store.events), calls or Calls()
    keys = ApiKeys(store.keys, clock)
    await keys.refresh()
    dispatcher = WebhookDispatcher(
        webhooks=store.webhooks,
        events=feed,
        sender=sent,
        api_keys=keys,
        formats={"vendor": lambda record: {"sequence": record.sequence, "shaped": True}},
        node=node,
        clock=clock,
    )
    hooks = WebhookManager(webhooks=store.webhooks, dispatcher=dispatcher, sender=sent, events=feed, clock=clock)
    earlier = clock.sleepers
    hooks.start()
    # Wait for the first read of all webhooks: otherwise, this node could also find a webhook that the test creates at another node.
    await until(lambda: any(task.get_name() == "webhooks" for task in clock.sleepers - earlier))
    try:
        yield Place(feed, sent, hooks, keys)
    finally:
        await hooks.aclose()


@pytest.fixture(autouse=True)
async def keys_of_alice_and_bob(store: SqlStore) -> None:
    for principal in (ALICE, BOB):
        await store.keys.add(
            KeyRecord(id=principal.owner, name=principal.name, sha256=64 * principal.name, operator=False, quota=Quota(), created_at=START)
        )


@pytest.fixture
async def at(store: SqlStore, clock: ManualClock) -> AsyncIterator[Place]:
    async with service(store, clock) as place:
        yield place


async def test_webhook_gets_signed_events_in_order_from_its_creation_on(at: Place) -> None:
    await at.happens("created")
    hook = await at.hooks.create(ALICE, url=URL)
    await at.happens("paused", "resumed")
    await at.happens("created", principal=BOB)
    await at.happens("ended")
    await until(lambda: at.calls.heard() == [2, 3, 5])
    for _, body, headers in at.calls.got:
        assert headers["X-Signature"] == signature(hook.secret, body)
        assert headers["X-Event-ID"] == f"evt-{json.loads(body)['sequence']}"

    async def recorded() -> bool:
        progress = (await at.now(hook)).progress
        return (progress.cursor, progress.delivered_events, progress.failed_events, progress.last_error) == (5, 3, 0, "")

    await until(recorded)


async def test_webhook_gets_only_its_event_types_in_its_format(at: Place) -> None:
    await at.hooks.create(ALICE, url=URL, events=["sandbox.ended", "sandbox.paused"], payload_format="vendor")
    await at.happens("created", "paused", "resumed", "ended")
    await until(lambda: at.calls.heard() == [2, 4])
    assert [json.loads(body)["shaped"] for _, body, _ in at.calls.got] == [True, True]


async def test_webhook_of_an_operator_gets_events_of_all_owners(at: Place) -> None:
    await at.hooks.create(OPERATOR, url=URL)
    await at.happens("created")
    await at.happens("created", principal=BOB)
    await until(lambda: at.calls.heard() == [1, 2])


async def test_failed_event_is_retried_with_doubling_pauses_and_then_given_up(at: Place, clock: ManualClock) -> None:
    hook = await at.hooks.create(ALICE, url=URL)
    at.calls.answers = lambda _url, number: (0 if number % 2 else 500) if number <= MAX_ATTEMPTS else 200
    await at.happens("created", "ended")
    for number in range(1, MAX_ATTEMPTS):
        await until(lambda number=number: len(at.calls.got) == number)  # type: ignore[misc]
        await until(lambda number=number: tried(at, hook, number))  # type: ignore[misc]
        await asyncio.sleep(0.01)  # it goes to sleep
        clock.advance(2.0 ** (number - 1) - 0.01)
        await asyncio.sleep(0.01)
        assert len(at.calls.got) == number
        clock.advance(0.02)
    await until(lambda: at.calls.heard() == [1] * MAX_ATTEMPTS + [2])

    async def recorded() -> bool:
        progress = (await at.now(hook)).progress
        return (progress.cursor, progress.delivered_events, progress.failed_events, progress.failed_attempts) == (2, 1, 1, 0)

    await until(recorded)


async def tried(at: Place, hook: WebhookRecord, number: int) -> bool:
    progress = (await at.now(hook)).progress
    return progress.failed_attempts == number and progress.last_error != "" and progress.next_attempt_at is not None


async def done_with(at: Place, hook: WebhookRecord, sequence: int) -> bool:
    return (await at.now(hook)).progress.cursor == sequence


async def test_webhook_without_a_response_delays_no_other_webhook(at: Place) -> None:
    slow = "https://slow.example/"
    at.calls.slow[slow] = asyncio.Event()
    for principal, url in ((ALICE, slow), (ALICE, URL), (BOB, "https://bob.example/")):
        await at.hooks.create(principal, url=url)
    for _ in range(3):
        await at.happens("created")
    await at.happens("created", principal=BOB)
    await until(lambda: at.calls.heard() == [1, 2, 3] and at.calls.heard("https://bob.example/") == [4])
    assert at.calls.heard(slow) == [1]
    at.calls.slow[slow].set()
    await until(lambda: at.calls.heard(slow) == [1, 2, 3])


async def test_concurrent_calls_are_limited(store: SqlStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_CONCURRENT_CALLS", 2)
    async with service(store, clock) as at:
        urls = [f"https://{number}.example/" for number in range(4)]
        at.calls.slow = {url: asyncio.Event() for url in urls}
        for url in urls:
            await at.hooks.create(ALICE, url=url)
        await at.happens("created")
        await until(lambda: len(at.calls.got) == 2)
        await asyncio.sleep(0.1)
        assert len(at.calls.got) == 2
        for waits in at.calls.slow.values():
            waits.set()
        await until(lambda: len(at.calls.got) == 4)


async def test_next_service_repeats_the_interrupted_call_and_continues(store: SqlStore, clock: ManualClock) -> None:
    async with service(store, clock) as at:
        hook = await at.hooks.create(ALICE, url=URL)
        await at.happens("created")

        async def taken() -> bool:
            return (await at.now(hook)).progress.delivered_events == 1

        await until(taken)
        at.calls.slow[URL] = asyncio.Event()
        await at.happens("paused", "resumed")
        await until(lambda: at.calls.heard() == [1, 2])
    await EventFeed(store.events).publish(NewEvent("sandbox.ended", START, ALICE.owner))  # while nobody delivers
    async with service(store, clock) as at:
        await until(lambda: at.calls.heard() == [2, 3, 4])


async def test_attempts_are_counted_over_a_restart(store: SqlStore, clock: ManualClock) -> None:
    refusing = Calls(answers=lambda _url, _number: 503)
    async with service(store, clock, calls=refusing) as at:
        hook = await at.hooks.create(ALICE, url=URL)
        await at.happens("created")
        await until(lambda: tried(at, hook, 1))
    async with service(store, clock, calls=refusing) as at:
        await asyncio.sleep(0.05)
        assert len(refusing.got) == 1, "it is not yet time"
        clock.advance(1)
        await until(lambda: tried(at, hook, 2))


async def test_another_node_delivers_after_the_lease_of_a_dead_node(store: SqlStore, clock: ManualClock) -> None:
    async with service(store, clock, NODE) as one, service(store, clock, OTHER) as other:
        await one.hooks.create(ALICE, url=URL)
        await one.happens("created")
        await until(lambda: one.calls.heard() == [1])
        await other.happens("paused")  # committed by the other one: nobody tells the first
        await clock.pass_s(delivery.POLL_S, delivery.POLL_S)
        await until(lambda: one.calls.heard() == [1, 2])
        await clock.pass_s(delivery.RESCAN_S, delivery.POLL_S)
        assert other.calls.heard() == []
        await one.hooks.aclose()
        await other.happens("ended")

        async def passes() -> bool:
            await clock.pass_s(delivery.POLL_S, delivery.POLL_S)
            return other.calls.heard()[-1:] == [3]

        await until(passes)
        assert one.calls.heard() == [1, 2]


async def test_webhook_of_a_revoked_key_gets_nothing_more(at: Place) -> None:
    hook = await at.hooks.create(ALICE, url=URL)
    await at.keys.revoke(ALICE.owner)
    await at.happens("created")
    await at.hooks.create(BOB, url="https://bob.example/")
    await at.happens("created", principal=BOB)
    await until(lambda: at.calls.heard("https://bob.example/") == [2])
    assert at.calls.heard() == []
    assert (await at.now(hook)).progress.delivered_events == 0


async def test_deleted_webhook_gets_nothing_more(at: Place) -> None:
    hook = await at.hooks.create(ALICE, url=URL)
    await at.hooks.delete(ALICE, hook.id)
    await at.happens("created")
    await at.hooks.create(ALICE, url="https://two.example/")
    await at.happens("created")
    await until(lambda: at.calls.heard("https://two.example/") == [2])
    assert at.calls.heard() == []
    assert await at.hooks.list(ALICE) != []
    with pytest.raises(NotFoundError):
        await at.hooks.get(ALICE, hook.id)


async def test_disabled_webhook_gets_missed_events_after_it_is_enabled(at: Place, store: SqlStore, clock: ManualClock) -> None:
    hook = await at.hooks.create(ALICE, url=URL)
    await at.happens("created")
    await until(lambda: done_with(at, hook, 1))
    told = await at.hooks.update(ALICE, hook.id, WebhookChange(enabled=False))
    assert not told.enabled
    asleep = await at.hooks.create(ALICE, url="https://asleep.example/", enabled=False)
    await at.happens("paused", "resumed")
    await at.hooks.create(BOB, url="https://bob.example/")
    await at.happens("ended", principal=BOB)
    await until(lambda: at.calls.heard("https://bob.example/") == [4])
    assert at.calls.heard() == [1]
    await at.hooks.aclose()
    async with service(store, clock, calls=at.calls) as again:  # it is not forgotten over a restart
        await again.happens("ended", principal=BOB)
        await until(lambda: at.calls.heard("https://bob.example/")[-1] == 5)
        assert at.calls.heard() == [1]
        for each in (hook, asleep):
            await again.hooks.update(ALICE, each.id, WebhookChange(enabled=True))
        await until(lambda: at.calls.heard() == [1, 2, 3] and at.calls.heard("https://asleep.example/") == [2, 3])


async def test_new_url_gets_the_pending_event_at_once(at: Place, clock: ManualClock) -> None:
    hook = await at.hooks.create(ALICE, url=URL)
    at.calls.answers = lambda url, _number: 500 if url == URL else 200
    await at.happens("created")
    await until(lambda: tried(at, hook, 1))
    clock.advance(1)
    await until(lambda: tried(at, hook, 2))
    changed = await at.hooks.update(ALICE, hook.id, WebhookChange(url="https://two.example/", secret=SIGNS, name="two"))
    assert (changed.url, changed.name, changed.progress.failed_attempts, changed.progress.next_attempt_at) == ("https://two.example/", "two", 0, None)
    await until(lambda: at.calls.heard("https://two.example/") == [1])
    _, body, headers = at.calls.got[-1]
    assert headers["X-Signature"] == signature(SIGNS, body)
    assert body == at.calls.got[0][1], "the same event is the same bytes"
    assert at.calls.heard() == [1, 1]


async def test_new_event_types_apply_to_undelivered_events(at: Place) -> None:
    hook = await at.hooks.create(ALICE, url=URL, events=["sandbox.ended"])
    await at.happens("created", "paused", "ended")
    await until(lambda: done_with(at, hook, 3))
    changed = await at.hooks.update(ALICE, hook.id, WebhookChange(events=("sandbox.created", "sandbox.paused", "sandbox.created")))
    assert changed.events == ("sandbox.created", "sandbox.paused")
    await at.happens("created", "ended", "paused")
    await until(lambda: done_with(at, hook, 6))
    assert at.calls.heard() == [3, 4, 6]
    await at.hooks.update(ALICE, hook.id, WebhookChange(events=()))
    await at.happens("woken")
    await until(lambda: at.calls.heard() == [3, 4, 6, 7])


async def test_change_made_on_another_node_applies_to_the_delivering_node(store: SqlStore, clock: ManualClock) -> None:
    async with service(store, clock, NODE) as one, service(store, clock, OTHER) as other:
        hook = await one.hooks.create(ALICE, url=URL)
        await one.happens("created")
        await until(lambda: done_with(one, hook, 1))
        await other.hooks.update(ALICE, hook.id, WebhookChange(url="https://two.example/", events=("sandbox.ended",)))
        await one.happens("paused", "ended")
        await until(lambda: done_with(one, hook, 3))
        await other.hooks.update(ALICE, hook.id, WebhookChange(enabled=False))
        await one.happens("ended")
        await other.hooks.create(BOB, url="https://bob.example/")
        await other.happens("ended", principal=BOB)
        await until(lambda: other.calls.heard("https://bob.example/") == [5])
        assert (one.calls.heard(), one.calls.heard("https://two.example/"), other.calls.heard("https://two.example/")) == ([1], [3], [])


async def test_url_changed_on_another_node_is_called_within_seconds_during_a_retry(store: SqlStore, clock: ManualClock) -> None:
    async with service(store, clock, NODE) as one, service(store, clock, OTHER) as other:
        hook = await one.hooks.create(ALICE, url=URL)
        one.calls.answers = lambda url, _number: 500 if url == URL else 200
        await one.happens("created")
        for number in range(1, 5):
            await until(lambda number=number: tried(one, hook, number))  # type: ignore[misc]
            clock.advance(2.0 ** (number - 1))
        await until(lambda: tried(one, hook, 5))
        waits_s = (await _next_at(one, hook) - clock.now()).total_seconds()
        assert waits_s > 2 * delivery.POLL_S
        await clock.pass_s(delivery.POLL_S, delivery.POLL_S)
        assert one.calls.heard() == [1] * 5, "it is not yet time"
        await other.hooks.update(ALICE, hook.id, WebhookChange(url="https://two.example/"))
        clock.advance(delivery.POLL_S)
        await until(lambda: one.calls.heard("https://two.example/") == [1])
        assert (one.calls.heard(), other.calls.got) == ([1] * 5, [])


async def _next_at(at: Place, hook: WebhookRecord) -> datetime:
    next_at = (await at.now(hook)).progress.next_attempt_at
    assert next_at is not None
    return next_at


async def test_generated_secret_is_long_and_hidden_in_repr(at: Place) -> None:
    one, other = [await at.hooks.create(ALICE, url=URL) for _ in range(2)]
    assert one.secret.startswith("whsec_")
    assert one.secret != other.secret
    assert len(one.secret) > 40
    assert one.secret not in repr(one)
    assert (await at.hooks.create(ALICE, url=URL, secret=one.secret[:8])).secret == one.secret[:8]
