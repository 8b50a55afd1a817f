"""Create, list, change and delete webhooks.

Invariants:
- A webhook gets the events that are committed after its creation.
- A disabled webhook gets no events. When the webhook is enabled again, it gets the events that were committed meanwhile and are still stored.
- An update applies to every event that is not delivered yet. A new URL is checked like the URL of a new webhook.
- Only :meth:`WebhookManager.create` returns the secret. The secret is stored unencrypted, because every request is signed with it.
- The service itself calls the URL. The egress policy of the service therefore decides which URLs are allowed, for all owners.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.webhooks.delivery import WebhookDispatcher, WebhookSender
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, NotFoundError
from sandlot.model.ids import WebhookId, new_webhook_id
from sandlot.model.records import EVENT_TYPES, NATIVE_FORMAT, DeliveryProgress, WebhookChange, WebhookRecord
from sandlot.model.repositories import WebhookRepository
from sandlot.model.specs import check_text

MAX_WEBHOOKS: Final = 10
"""Maximum number of webhooks of one owner."""
SECRET_LENGTH: Final = (8, 256)
"""Smallest and largest number of characters of a secret that the client chooses."""
MAX_NAME_BYTES: Final = 128
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - not a secret
"""Prefix of generated secrets, by which people and secret scanners recognize the secrets."""


class WebhookManager:
    """All webhooks of a store.

    Args:
        events: Events of the service. A new webhook gets only events that occur after its creation.
    """

    def __init__(self, *, webhooks: WebhookRepository, dispatcher: WebhookDispatcher, sender: WebhookSender, events: EventFeed, clock: Clock) -> None:
        self._webhooks = webhooks
        self._dispatcher = dispatcher
        self._sender = sender
        self._events = events
        self._clock = clock
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to deliver events to all enabled webhooks, beginning with the events that the previous service has not delivered."""
        self._running = asyncio.create_task(self._dispatcher.run(), name="webhooks")

    async def aclose(self) -> None:
        """Stop all deliveries. The next service continues the deliveries. Idempotent."""
        if self._running is not None:
            self._running.cancel()
        await self._dispatcher.aclose()

    async def create(
        self,
        principal: Principal,
        *,
        url: str,
        events: Sequence[str] = (),
        secret: str | None = None,
        name: str | None = None,
        payload_format: str = NATIVE_FORMAT,
        enabled: bool = True,
    ) -> WebhookRecord:
        """Create a webhook and start to deliver events to its URL.

        Args:
            principal: Owner of the webhook. The webhook gets the owner's events; the webhook of an operator gets the events of all owners.
            url: URL to call.
            events: Event types to deliver. Empty: all event types.
            secret: Key of the signatures, 8 to 256 characters. None: a generated secret.
            name: Label for people, 1 to 128 bytes of UTF-8.
            payload_format: Name of the payload format.
            enabled: False: nothing is delivered until an update enables the webhook.

        Raises:
            InvalidRequestError: The URL is forbidden, an event type is unknown, or the secret or the name has a wrong length.
            LimitError: The owner has ``MAX_WEBHOOKS`` webhooks (``limit_exceeded``).
        """
        self._check(WebhookChange(url=url, events=tuple(events), secret=secret, name=name))
        webhook = WebhookRecord(
            id=new_webhook_id(),
            owner=principal.owner,
            name=name,
            url=url,
            events=tuple(dict.fromkeys(events)),
            secret=secret or SECRET_PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode(),
            payload_format=payload_format,
            created_at=self._clock.now(),
            progress=DeliveryProgress(cursor=await self._events.last_sequence()),
            enabled=enabled,
        )
        if not await self._webhooks.add(webhook, max_per_owner=MAX_WEBHOOKS):
            raise LimitError(
                f"This key has {MAX_WEBHOOKS} webhooks, the maximum.",
                hint="Delete a webhook that is no longer needed.",
                fields={"max": MAX_WEBHOOKS},
            )
        self._dispatcher.start(webhook)
        return webhook

    async def list(self, principal: Principal) -> Sequence[WebhookRecord]:
        """Return the principal's webhooks, oldest first. An operator gets the webhooks of all owners."""
        return await self._webhooks.list(None if principal.operator else principal.owner)

    async def get(self, principal: Principal, webhook_id: str) -> WebhookRecord:
        """Return the webhook with the id ``webhook_id``.

        Raises:
            NotFoundError: The webhook does not exist or belongs to another owner (``webhook_not_found``).
        """
        webhook = await self._webhooks.get(WebhookId(webhook_id))
        if webhook is None or not principal.sees(webhook.owner):
            raise NotFoundError(
                f"There is no webhook {webhook_id[:64]!r}.",
                code=ErrorCode.WEBHOOK_NOT_FOUND,
                hint="List the webhooks to find their ids.",
                fields={"webhook": webhook_id[:64]},
            )
        return webhook

    async def update(self, principal: Principal, webhook_id: str, change: WebhookChange) -> WebhookRecord:
        """Change a webhook and return the stored result.

        Raises:
            NotFoundError: The webhook does not exist or belongs to another owner (``webhook_not_found``).
            InvalidRequestError: The change has a value that :meth:`create` refuses.
        """
        before = await self.get(principal, webhook_id)
        self._check(change)
        if change.events is not None:
            change = replace(change, events=tuple(dict.fromkeys(change.events)))
        after: WebhookRecord | None = before
        try:
            # The change may reset the progress of the webhook. A delivery that continued would overwrite the new progress with its own.
            await self._dispatcher.pause(before.id)
            after = await self._webhooks.update(before.id, change)
        finally:
            if after is not None:
                self._dispatcher.start(after)
        return after or await self.get(principal, webhook_id)

    async def delete(self, principal: Principal, webhook_id: str) -> None:
        """Delete a webhook and stop delivering to it.

        Raises:
            NotFoundError: The webhook does not exist or belongs to another owner (``webhook_not_found``).
        """
        webhook = await self.get(principal, webhook_id)
        await self._webhooks.remove(webhook.id)
        self._dispatcher.stop(webhook.id)

    def _check(self, change: WebhookChange) -> None:
        if change.url is not None:
            self._sender.check(change.url)
        check_events(change.events or ())
        check_secret(change.secret)
        if change.name is not None:
            size = len(check_text("name", change.name))
            if not 0 < size <= MAX_NAME_BYTES:
                raise InvalidRequestError(
                    f"`name` has {size} bytes; 1 to {MAX_NAME_BYTES} are allowed.",
                    hint="Pass a name of another length, or omit `name`.",
                    fields={"field": "name"},
                )


def check_events(events: Sequence[str]) -> None:
    """Refuse unknown event types.

    Raises:
        InvalidRequestError: An event type does not exist; the hint lists all event types.
    """
    for event in events:
        if event not in EVENT_TYPES:
            raise InvalidRequestError(
                f"There is no event type {event[:64]!r}.",
                hint=f"Use one or more of {', '.join(EVENT_TYPES)}, or pass an empty list for all events.",
                fields={"field": "events"},
            )


def check_secret(secret: str | None) -> None:
    """Refuse a secret that is too short or too long.

    Raises:
        InvalidRequestError: The secret has fewer than 8 or more than 256 characters.
    """
    least, most = SECRET_LENGTH
    if secret is not None and not (least <= len(secret) <= most and check_text("secret", secret)):
        raise InvalidRequestError(
            f"`secret` has {len(secret)} characters; {least} to {most} are allowed.",
            hint=f"Pass a {'longer' if len(secret) < least else 'shorter'} secret, or omit `secret`.",
            fields={"field": "secret"},
        )
