"""Webhooks: addresses that are told of what happens, how far each of them is, and the port of where that is kept.

Laws:
- What a webhook was told of is recorded after it was told: a service that dies between the two tells it again, and nothing is left out.
- At most one node delivers to a webhook at a time: the one that holds it. Who holds it says so again and again; one that died is followed by another.
- One that is not enabled is told nothing, and stands where it is: what happens meanwhile it is told later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from sandlot.model.access import OwnerId
from sandlot.model.ids import NodeId, WebhookId

EVENT_TYPES: Final = (
    "sandbox.created",
    "sandbox.updated",
    "sandbox.adopted",
    "sandbox.paused",
    "sandbox.resumed",
    "sandbox.hibernated",
    "sandbox.woken",
    "sandbox.forked",
    "sandbox.promoted",
    "sandbox.ended",
    "snapshot.created",
    "snapshot.deleted",
    "snapshot.unusable",
    "volume.created",
    "volume.deleted",
)
"""All that a webhook may ask for by name. A test holds them to what the API's document says of events."""

NATIVE: Final = "native"
"""The shape of what the API's own webhooks are sent; a door's have the vendor's."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a webhook is.

    Args:
        cursor: The number of the last event that it is done with.
        tries: How often the one after that was tried in vain.
        next_at: When it is tried again; None where nothing failed.
        delivered: Events that it has taken.
        given_up: Events that were tried too often.
        last_at: When it was called last.
        last_error: Why that failed, for people; empty where it did not.
    """

    cursor: int
    tries: int = 0
    next_at: datetime | None = None
    delivered: int = 0
    given_up: int = 0
    last_at: datetime | None = None
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """One webhook.

    Args:
        id: Its id.
        owner: Whose it is, and of whose things it is told.
        name: A word for people; None is none.
        url: Where what happens is sent.
        events: The types of events that it is told; empty is all.
        secret: What signs them.
        shape: What they look like: ``native``, or the name of a door.
        created_at: When it was made.
        progress: How far it is.
        enabled: Whether it is told anything now.
    """

    id: WebhookId
    owner: OwnerId
    name: str | None
    url: str
    events: tuple[str, ...]
    secret: str = field(repr=False)
    shape: str
    created_at: datetime
    progress: Progress
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class WebhookChange:
    """What is to be another one of a webhook; None is what stays as it is.

    Args:
        url: Where what happens is sent. What is waiting to be sent again is sent there at once, and as often as what is new.
        events: The types of events that it is told, of those that it is not done with; empty is all.
        secret: What signs them.
        name: A word for people.
        enabled: Whether it is told anything.
    """

    url: str | None = None
    events: tuple[str, ...] | None = None
    secret: str | None = field(default=None, repr=False)
    name: str | None = None
    enabled: bool | None = None


class WebhookRepository(Protocol):
    """Webhooks."""

    async def add(self, record: WebhookRecord, *, most: int) -> bool:
        """Insert one, unless its owner has so many already; whether it was inserted."""
        ...

    async def get(self, webhook: WebhookId) -> WebhookRecord | None:
        """One."""
        ...

    async def all(self, owner: OwnerId | None) -> Sequence[WebhookRecord]:
        """By ``created_at`` and id, oldest first; None is everybody's."""
        ...

    async def change(self, webhook: WebhookId, change: WebhookChange) -> WebhookRecord | None:
        """Change one, and give it as it is then; None where it is not there. With another address nothing was tried in vain yet."""
        ...

    async def hold(self, webhook: WebhookId, node: NodeId, *, now: datetime, until: datetime) -> WebhookRecord | None:
        """Let a node be the one that delivers to it until then, and give it as it is; None where another one is, or it is not there."""
        ...

    async def move(self, webhook: WebhookId, node: NodeId, progress: Progress) -> bool:
        """Record how far it is; whether that node still holds it. Where not, nothing is recorded."""
        ...

    async def remove(self, webhook: WebhookId) -> bool:
        """Drop one; whether it was there."""
        ...
