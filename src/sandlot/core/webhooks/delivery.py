"""Delivery of events to webhooks: in order, at least once, with retries.

Each enabled webhook has one task. The task reads the events of the webhook's owner from the store, starting after the
webhook's cursor, and posts one event at a time. A failed attempt is retried with growing pauses; after ten attempts the event is given up.

Invariants:
- Nothing is queued in memory, and progress is saved after each attempt. If the service is killed, no event is lost; the next
  service may send the last event a second time.
- Only the node that holds the lease of a webhook calls its URL. The lease is renewed before each attempt.
- The stored webhook is read again after each page of events, before each attempt, and every ``POLL_S`` while a retry is
  pending: another node may have changed the webhook.
- A slow or failing webhook delays only its own events.
- A webhook that is deleted or disabled, or whose owner's API key is revoked, gets no further event.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, Protocol

import structlog

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.webhooks import payload
from sandlot.core.webhooks.payload import PayloadFormat
from sandlot.model.errors import SandlotError
from sandlot.model.ids import NodeId, WebhookId
from sandlot.model.records import EventRecord, WebhookRecord
from sandlot.model.repositories import WebhookRepository

MAX_CONCURRENT_CALLS: Final = 256
"""Maximum number of calls that are in progress at once, for all webhooks together."""
LEASE_S: Final = 60.0
"""Duration of a lease in seconds: four times the duration of the longest call."""
POLL_S: Final = 5.0
"""Interval in seconds at which the store is read for changes by other processes: new events, and changes of a webhook that waits for a retry."""
RESCAN_S: Final = 60.0
"""Interval in seconds at which the store is searched for webhooks without a task on this node, such as the webhooks of a node that died."""
SAVE_CURSOR_EVERY: Final = 1000
"""Number of events between two saves of the cursor while no event matches the webhook."""
STORE_RETRY_S: Final = 5.0
"""Seconds until a webhook's delivery continues after the store failed."""

_log = structlog.get_logger("sandlot.core")


class WebhookSender(Protocol):
    """Sends requests to URLs that tenants chose. Enforces the egress policy."""

    def check(self, url: str) -> None:
        """Refuse a URL that the egress policy forbids.

        Raises:
            InvalidRequestError: The URL is forbidden.
        """
        ...

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send a POST request and return the status of its response.

        Raises:
            SandlotError: There was no response. The message gives the reason, but no details of this host.
        """
        ...


class _DeliveryEnded(Exception):  # noqa: N818 - control flow, not a failure
    """The webhook was deleted or disabled, or its owner's API key was revoked."""


class WebhookDispatcher:
    """Delivers events to all webhooks that this node may call.

    Args:
        formats: Payload format by name, for webhooks that are not in the native format.
        node: Id of this node, under which the dispatcher takes leases.
    """

    def __init__(
        self,
        *,
        webhooks: WebhookRepository,
        events: EventFeed,
        sender: WebhookSender,
        api_keys: ApiKeys,
        formats: Mapping[str, PayloadFormat],
        node: NodeId,
        clock: Clock,
    ) -> None:
        self._webhooks = webhooks
        self._events = events
        self._sender = sender
        self._api_keys = api_keys
        self._formats = formats
        self._node = node
        self._clock = clock
        self._calls = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self._tasks: dict[WebhookId, asyncio.Task[None]] = {}
        self._read_up_to: dict[WebhookId, int] = {}
        """Sequence number of the last event that was read for a webhook. The number is ahead of the stored cursor while no event matches."""
        self._wakeups: set[asyncio.Event] = set()
        """One ``asyncio.Event`` for each task that waits for new events to deliver."""

    async def run(self) -> None:
        """Watch the store for new webhooks and for events of other processes, until cancelled."""
        last_sequence, rescan_at_s = -1, -math.inf
        while True:
            with suppress(SandlotError):  # the store failed; the next round tries again
                if self._clock.monotonic_s() >= rescan_at_s:
                    for webhook in await self._webhooks.list(None):
                        self.start(webhook)
                    rescan_at_s = self._clock.monotonic_s() + RESCAN_S
                if self._tasks and (sequence := await self._events.last_sequence()) != last_sequence:
                    last_sequence = sequence
                    for wakeup in self._wakeups:
                        wakeup.set()
            await self._sleep(POLL_S)

    def start(self, webhook: WebhookRecord) -> None:
        """Start delivering events to a webhook, if the webhook is enabled. Idempotent."""
        if webhook.enabled and webhook.id not in self._tasks:
            task = asyncio.create_task(self._deliver(webhook), name=f"webhook {webhook.id}")
            self._tasks[webhook.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(webhook.id, None))

    def stop(self, webhook_id: WebhookId) -> None:
        """Stop delivering events to a webhook that was deleted, without waiting for its task. Idempotent."""
        self._read_up_to.pop(webhook_id, None)
        if task := self._tasks.get(webhook_id):
            task.cancel()

    async def pause(self, webhook_id: WebhookId) -> None:
        """Stop delivering events to a webhook until :meth:`start` is called. An interrupted call is repeated after the start. Idempotent."""
        if task := self._tasks.get(webhook_id):
            task.cancel()
            await asyncio.wait({task})

    async def aclose(self) -> None:
        """Stop all deliveries. The next service repeats interrupted calls. Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # One task for each webhook -------------------------------------------------------------------------------------

    async def _deliver(self, webhook: WebhookRecord) -> None:
        """Deliver events to a webhook until the webhook may get no further event. Failures are logged and retried."""
        while True:
            try:
                await self._deliver_pages(webhook)
            except _DeliveryEnded:
                return
            except SandlotError as error:
                _log.warning("webhook.store_failed", webhook=webhook.id, error=str(error))
            except Exception:  # noqa: BLE001 - logged; other webhooks must not be affected
                _log.exception("webhook.internal_error", webhook=webhook.id)
            await self._sleep(STORE_RETRY_S)

    async def _deliver_pages(self, webhook: WebhookRecord) -> None:
        """Deliver one page of events after another, and wait for new events when there are none.

        Raises:
            _DeliveryEnded: The webhook may get no further event.
        """
        cursor = max(webhook.progress.cursor, self._read_up_to.get(webhook.id, 0))
        while principal := self._api_keys.principal_of(webhook.owner):
            with self._events.subscribe(principal) as wakeup:  # before the page is read, so that no later event is missed
                self._wakeups.add(wakeup)
                try:
                    page = await self._events.page(principal, after=cursor)
                    if page:
                        cursor = await self._deliver_page(webhook.id, page, cursor)
                        self._read_up_to[webhook.id] = cursor
                    else:
                        await wakeup.wait()
                finally:
                    self._wakeups.discard(wakeup)
        raise _DeliveryEnded

    async def _deliver_page(self, webhook_id: WebhookId, page: Sequence[EventRecord], cursor: int) -> int:
        """Deliver the matching events of a page and return the sequence number after which to continue.

        Raises:
            _DeliveryEnded: The webhook may get no further event.
        """
        # The webhook is read after the page of events. A filter that was set before an event was committed therefore applies to the event.
        webhook = await self._webhooks.get(webhook_id)
        if webhook is None or not webhook.enabled:
            raise _DeliveryEnded
        matching = [event for event in page if payload.matches(webhook, event)]
        last = page[-1].sequence
        if not matching and last // SAVE_CURSOR_EVERY == cursor // SAVE_CURSOR_EVERY:
            return max(last, webhook.progress.cursor)
        webhook = await self._lease(webhook_id)
        for event in matching:
            if event.sequence > webhook.progress.cursor:
                webhook = await self._deliver_event(webhook, event)
        if last > webhook.progress.cursor:
            await self._webhooks.save_progress(webhook_id, self._node, replace(webhook.progress, cursor=last))
        return max(last, webhook.progress.cursor)

    async def _deliver_event(self, webhook: WebhookRecord, event: EventRecord) -> WebhookRecord:
        """Post one event until it is accepted or given up, and return the webhook with its new progress.

        Raises:
            _DeliveryEnded: The webhook may get no further event.
        """
        while True:
            await self._wait_until_due(webhook)
            webhook = await self._lease(webhook.id)
            if self._api_keys.principal_of(webhook.owner) is None:
                raise _DeliveryEnded
            if webhook.progress.cursor >= event.sequence:
                return webhook  # another node has delivered the event
            failure = await self._post(webhook, event)
            if failure:
                latest = await self._webhooks.get(webhook.id)
                if latest is not None and latest.url != webhook.url:
                    webhook = latest  # the old URL failed, so the attempt does not count for the new URL
                    continue
            progress = payload.next_progress(webhook.progress, event.sequence, failure, self._clock.now())
            await self._webhooks.save_progress(webhook.id, self._node, progress)
            webhook = replace(webhook, progress=progress)
            if progress.cursor >= event.sequence:
                if failure:
                    _log.warning("webhook.given_up", webhook=webhook.id, sequence=event.sequence, reason=failure)
                return webhook

    async def _post(self, webhook: WebhookRecord, event: EventRecord) -> str:
        """Post an event once. Return the reason of a failure, or an empty string after a success."""
        body, headers = payload.encode(webhook, event, self._formats.get(webhook.payload_format, payload.native))
        async with self._calls:
            try:
                return payload.failure_of(await self._sender.post(webhook.url, body, headers))
            except SandlotError as error:
                return error.message

    async def _wait_until_due(self, webhook: WebhookRecord) -> None:
        """Wait until the next attempt is due. Return early if the webhook is deleted, disabled or no longer failing."""
        current: WebhookRecord | None = webhook
        while current is not None and current.enabled and current.progress.next_attempt_at is not None:
            left_s = (current.progress.next_attempt_at - self._clock.now()).total_seconds()
            if left_s <= 0:
                return
            await self._sleep(min(left_s, POLL_S))
            current = await self._webhooks.get(webhook.id)

    async def _lease(self, webhook_id: WebhookId) -> WebhookRecord:
        """Take or renew the lease of a webhook, and return the stored webhook. Wait while another node holds the lease.

        Raises:
            _DeliveryEnded: The webhook was deleted or disabled.
        """
        while True:
            now = self._clock.now()
            webhook = await self._webhooks.lease(webhook_id, self._node, now=now, until=now + timedelta(seconds=LEASE_S))
            if webhook is not None and webhook.enabled:
                return webhook
            if webhook is not None or await self._webhooks.get(webhook_id) is None:
                raise _DeliveryEnded
            await self._sleep(LEASE_S / 2)

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep_until(self._clock.monotonic_s() + max(0.0, seconds))
