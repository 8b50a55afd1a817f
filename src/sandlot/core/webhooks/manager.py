"""Webhooks: made, listed, changed and removed.

Laws:
- A webhook is told of what happens from the moment that it is made.
- One that is not enabled is told nothing. What happens meanwhile it is told once it is, as long as events are kept.
- A change holds for every event that it is not done with. Where it may be then is decided as when it is made.
- Its secret is told once, when it is made. It is kept as it is: whoever signs needs it.
- Whoever is told is called by the service itself, so where that may be is decided by the egress policy, and not by who asks.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.webhooks.delivery import Outgoing, WebhookDispatcher
from sandlot.core.webhooks.payload import Shape
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, NotFoundError
from sandlot.model.ids import NodeId, WebhookId, new_webhook_id
from sandlot.model.specs import check_text
from sandlot.model.storage import Store
from sandlot.model.webhooks import EVENT_TYPES, NATIVE, Progress, WebhookChange, WebhookRecord

MOST: Final = 10
"""Of one owner."""
SECRET_LENGTH: Final = (8, 256)
"""Characters of a secret that is given."""
NAME_LENGTH: Final = 128
PREFIX: Final = "whsec_"
"""Of a secret that is made: lets people and secret scanners see what it is."""


class WebhookManager:
    """All webhooks of a store.

    Args:
        store: Where they are.
        feed: What happens.
        calls: What they are called with.
        clock: The time.
        node: This one.
        principal_of: Who has a key; None where it was taken away.
        shapes: What events look like to webhooks of doors, by the door's name.
    """

    def __init__(
        self,
        store: Store,
        feed: EventFeed,
        calls: Outgoing,
        clock: Clock,
        node: NodeId,
        principal_of: Callable[[OwnerId], Principal | None],
        shapes: Mapping[str, Shape] | None = None,
    ) -> None:
        self._table = store.webhooks
        self._feed = feed
        self._calls = calls
        self._clock = clock
        self._dispatcher = WebhookDispatcher(store.webhooks, feed, calls, clock, node, principal_of, shapes or {})
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Deliver from now on, what happened since the last service included."""
        self._running = asyncio.create_task(self._dispatcher.run(), name="webhooks")

    async def aclose(self) -> None:
        """Deliver no more; the next service goes on. Idempotent."""
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
        shape: str = NATIVE,
        enabled: bool = True,
    ) -> WebhookRecord:
        """Make one.

        Args:
            principal: Whose it will be, and of whose things it is told: for an operator everybody's.
            url: Where what happens is sent.
            events: The types of events that it is told; none is all.
            secret: What signs them; None has one made.
            name: A word for people.
            shape: What they look like.
            enabled: Whether it is told anything before somebody changes that.

        Raises:
            InvalidRequestError: The URL is none that may be called, there is no such event, or the secret is none.
            LimitError: ``limit_exceeded``: the owner has as many as one may have.
        """
        self._check(WebhookChange(url=url, events=tuple(events), secret=secret, name=name))
        record = WebhookRecord(
            id=new_webhook_id(),
            owner=principal.owner,
            name=name,
            url=url,
            events=tuple(dict.fromkeys(events)),
            secret=secret or PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode(),
            shape=shape,
            created_at=self._clock.now(),
            progress=Progress(cursor=await self._feed.last()),
            enabled=enabled,
        )
        if not await self._table.add(record, most=MOST):
            raise LimitError(
                f"You have {MOST} webhooks, which is as many as one may have.",
                code=ErrorCode.LIMIT_EXCEEDED,
                hint="Remove one that is not needed; one may be told of all events.",
                fields={"max": MOST},
            )
        self._dispatcher.begin(record)
        return record

    async def list(self, principal: Principal) -> Sequence[WebhookRecord]:
        """One's own, oldest first; for an operator everybody's."""
        return await self._table.all(None if principal.operator else principal.owner)

    async def get(self, principal: Principal, webhook: str) -> WebhookRecord:
        """One.

        Raises:
            NotFoundError: ``not_found``: there is none, or it is somebody else's.
        """
        record = await self._table.get(WebhookId(webhook))
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no webhook {webhook[:64]!r}.",
                code=ErrorCode.NOT_FOUND,
                hint="It may have been removed. List the webhooks, or create one.",
                fields={"webhook": webhook[:64]},
            )
        return record

    async def update(self, principal: Principal, webhook: str, change: WebhookChange) -> WebhookRecord:
        """Change one; what is answered is what holds from then on.

        Raises:
            NotFoundError: ``not_found``.
            InvalidRequestError: As when it is made.
        """
        record = await self.get(principal, webhook)
        self._check(change)
        if change.events is not None:
            change = replace(change, events=tuple(dict.fromkeys(change.events)))
        now: WebhookRecord | None = record
        try:
            await self._dispatcher.rest(record.id)  # of two that write how far it is, the later one would win
            now = await self._table.change(record.id, change)
        finally:
            if now is not None:
                self._dispatcher.begin(now)
        return now or await self.get(principal, webhook)

    async def delete(self, principal: Principal, webhook: str) -> None:
        """Tell one nothing more.

        Raises:
            NotFoundError: ``not_found``.
        """
        record = await self.get(principal, webhook)
        await self._table.remove(record.id)
        self._dispatcher.end(record.id)

    def _check(self, asked: WebhookChange) -> None:
        """Refuse what no webhook may be.

        Raises:
            InvalidRequestError: It is.
        """
        if asked.url is not None:
            self._calls.check(asked.url)
        check_events(asked.events or ())
        check_secret(asked.secret)
        if asked.name is not None and not 0 < len(check_text("name", asked.name)) <= NAME_LENGTH:
            raise InvalidRequestError(f"The name of a webhook has 1 to {NAME_LENGTH} bytes.", fields={"field": "name"})


def check_events(events: Sequence[str]) -> None:
    """Refuse types of events that there are not.

    Raises:
        InvalidRequestError: One is none.
    """
    for event in events:
        if event not in EVENT_TYPES:
            raise InvalidRequestError(
                f"There is no event {event[:64]!r}.",
                hint=f"There are: {', '.join(EVENT_TYPES)}. None at all means every one.",
                fields={"field": "events"},
            )


def check_secret(secret: str | None) -> None:
    """Refuse a secret that is too short or too long.

    Raises:
        InvalidRequestError: It is.
    """
    least, most = SECRET_LENGTH
    if secret is not None and not (least <= len(secret) <= most and check_text("secret", secret)):
        raise InvalidRequestError(
            f"A secret has {least} to {most} characters.",
            hint="Leave it out: a new webhook has one made, and one that there is keeps its own.",
            fields={"field": "secret"},
        )
