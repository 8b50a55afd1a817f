"""Deliveries: every webhook is told of every event that it asked for, in order, at least once, or given up on.

Laws:
- One task for each webhook reads its owner's events from the store, behind the one that the store says it is done with: nothing is kept for it in
  memory, and a service that dies loses nothing. What it was told of is recorded after its answer, so the last one may be told again.
- What a webhook is, is read before every call, after every page of events, and every few seconds while it waits to be called again: another node may
  have changed it. One that is not enabled has no task.
- One that is slow, or fails, holds up itself alone: each waits by itself, and so many are called at once.
- Only the node that holds a webhook calls it (``model/webhooks.py``).
- A key that was taken away is told nothing more.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, Protocol

import structlog

from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.webhooks import payload
from sandlot.core.webhooks.payload import Shape
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import SandlotError
from sandlot.model.ids import NodeId, WebhookId
from sandlot.model.records import EventRecord
from sandlot.model.webhooks import WebhookRecord, WebhookTable

AT_ONCE: Final = 256
"""Webhooks that are called at a time."""
HELD_S: Final = 60.0
"""How long a node holds a webhook without saying so again: four times as long as a call may take, and it says so before each."""
LOOK_S: Final = 5.0
"""How often it is looked for what other processes committed: events, and what has become of a webhook that waits to be called again."""
TABLE_S: Final = 60.0
"""How often it is looked for webhooks that nobody here knows: of nodes that died."""
SKIPPED: Final = 1000
"""Events that nobody wanted, after which that is recorded."""
AGAIN_S: Final = 5.0
"""After the store failed."""

_log = structlog.get_logger("sandlot.core")


class Outgoing(Protocol):
    """Calls to addresses that tenants chose."""

    def check(self, url: str) -> None:
        """Refuse a URL that would never be called; ``invalid_request``."""
        ...

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send something; the status of the answer.

        Raises:
            SandlotError: There was none; the message says why, and holds nothing of this machine.
        """
        ...


class WebhookDispatcher:
    """The tasks that deliver.

    Args:
        table: Where webhooks are.
        feed: What happens.
        calls: What they are called with.
        clock: The time.
        node: This one.
        principal_of: Who has a key; None where it was taken away.
        shapes: What events look like, by the webhook's shape.
    """

    def __init__(
        self,
        table: WebhookTable,
        feed: EventFeed,
        calls: Outgoing,
        clock: Clock,
        node: NodeId,
        principal_of: Callable[[OwnerId], Principal | None],
        shapes: Mapping[str, Shape],
    ) -> None:
        self._table = table
        self._feed = feed
        self._calls = calls
        self._clock = clock
        self._node = node
        self._principal_of = principal_of
        self._shapes = shapes
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[WebhookId, asyncio.Task[None]] = {}
        self._looks: set[asyncio.Event] = set()
        self._reached: dict[WebhookId, int] = {}

    async def run(self) -> None:
        """Deliver until it is cancelled."""
        last, table_s = -1, -math.inf
        while True:
            with suppress(SandlotError):  # the store does not answer: the next look may find it
                if self._clock.monotonic_s() >= table_s:
                    for record in await self._table.all(None):
                        self.begin(record)
                    table_s = self._clock.monotonic_s() + TABLE_S
                if self._tasks and (now := await self._feed.last()) != last:
                    last = now
                    for look in self._looks:
                        look.set()
            await self._clock.sleep_until(self._clock.monotonic_s() + LOOK_S)

    def begin(self, record: WebhookRecord) -> None:
        """Deliver to a webhook from now on, where it is enabled. Idempotent."""
        if record.enabled and record.id not in self._tasks:
            task = self._tasks[record.id] = asyncio.create_task(self._lasting(record), name=f"webhook {record.id}")
            task.add_done_callback(lambda _: self._tasks.pop(record.id, None))

    def end(self, webhook: WebhookId) -> None:
        """Deliver to a webhook no more. Idempotent."""
        self._reached.pop(webhook, None)
        if task := self._tasks.get(webhook):
            task.cancel()

    async def rest(self, webhook: WebhookId) -> None:
        """Deliver to a webhook no more until it is begun again; what is being sent is sent again then. Idempotent."""
        if task := self._tasks.get(webhook):
            task.cancel()
            await asyncio.wait({task})

    async def aclose(self) -> None:
        """Deliver to none any more; what is being sent is sent again by the next service. Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _lasting(self, record: WebhookRecord) -> None:
        """Deliver to one webhook for as long as there is it, whatever fails."""
        while True:
            try:
                return await self._deliver(record)
            except SandlotError as error:
                _log.warning("webhook.store_failed", webhook=record.id, error=str(error))
            except Exception:  # noqa: BLE001 - it is in the log, and the others go on
                _log.exception("webhook.defect", webhook=record.id)
            await self._sleep(AGAIN_S)

    async def _deliver(self, record: WebhookRecord) -> None:
        """Deliver to one webhook, until it is there no more, or is not enabled.

        Raises:
            SandlotError: The store failed.
        """
        cursor = max(record.progress.cursor, self._reached.get(record.id, 0))
        while (principal := self._principal_of(record.owner)) is not None:
            with self._feed.listening(principal) as told:
                self._looks.add(told)
                try:
                    following = await self._page(record, principal, cursor, told)
                finally:
                    self._looks.discard(told)
            if following is None:
                return
            cursor = self._reached[record.id] = following

    async def _page(self, record: WebhookRecord, principal: Principal, cursor: int, told: asyncio.Event) -> int | None:
        """Tell a webhook of a page of events, or wait until there is one; where it goes on. None where it is told nothing more."""
        page = await self._feed.page(principal, after=cursor)
        if not page:
            await told.wait()  # whatever was committed since this listens has set it
            return cursor
        current = await self._table.get(record.id)  # after the page: what it asks for now has been asked for before whatever comes later
        if current is None or not current.enabled:
            return None
        wanted = [event for event in page if payload.is_wanted(current, event)]
        held = await self._held(record.id) if wanted or page[-1].sequence // SKIPPED != cursor // SKIPPED else current
        for event in wanted:
            if held is not None and event.sequence > held.progress.cursor:
                held = await self._told(held, event)
        if held is None:
            return None
        behind = max(page[-1].sequence, held.progress.cursor)
        if held is not current and behind > held.progress.cursor:
            await self._table.move(record.id, self._node, replace(held.progress, cursor=behind))
        return behind

    async def _told(self, held: WebhookRecord, event: EventRecord) -> WebhookRecord | None:
        """Tell a webhook of one event, as often as it takes; the webhook after that. None where it is told nothing more."""
        while True:
            await self._until_due(held)
            again = await self._held(held.id)
            if again is None or self._principal_of(again.owner) is None:
                return None
            if again.progress.cursor >= event.sequence:
                return again  # another node was faster
            body, headers = payload.message(again, event, self._shapes.get(again.shape, payload.native))
            async with self._slots:
                problem = await self._try(again, body, headers)
            if problem and (held := await self._table.get(held.id) or again).url != again.url:
                continue  # another node took another address meanwhile: nothing was tried in vain there yet
            progress = payload.after_answer(again.progress, event.sequence, problem, self._clock.now())
            await self._table.move(held.id, self._node, progress)
            held = replace(again, progress=progress)
            if progress.cursor >= event.sequence:
                if problem:
                    _log.warning("webhook.given_up", webhook=held.id, sequence=event.sequence, why=problem)
                return held

    async def _until_due(self, webhook: WebhookRecord) -> None:
        """Return once it is time to call it again, by what is recorded of it meanwhile; or once it is there no more, or is not enabled."""
        now: WebhookRecord | None = webhook
        while now is not None and now.enabled and now.progress.next_at is not None:
            left_s = (now.progress.next_at - self._clock.now()).total_seconds()
            if left_s <= 0:
                return
            await self._sleep(min(left_s, LOOK_S))
            now = await self._table.get(webhook.id)

    async def _try(self, webhook: WebhookRecord, body: bytes, headers: Mapping[str, str]) -> str:
        """Why a webhook did not take a message; empty where it did."""
        try:
            return payload.problem_of(await self._calls.post(webhook.url, body, headers))
        except SandlotError as error:
            return error.message

    async def _held(self, webhook: WebhookId) -> WebhookRecord | None:
        """The webhook, once this node holds it; None where it is there no more, or is not enabled."""
        while True:
            now = self._clock.now()
            held = await self._table.hold(webhook, self._node, now=now, until=now + timedelta(seconds=HELD_S))
            if held is not None:
                return held if held.enabled else None
            if await self._table.get(webhook) is None:
                return None
            await self._sleep(HELD_S / 2)

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep_until(self._clock.monotonic_s() + max(0.0, seconds))
