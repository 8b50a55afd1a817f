"""Webhooks and the state of their deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sandlot.sdk.models.values import short_repr


@dataclass(frozen=True, slots=True, repr=False)
class WebhookInfo:
    """A webhook.

    Args:
        id: Id of the webhook.
        url: URL to which events are sent.
        events: Types of the events that are sent; empty for all types.
        name: Name for people.
        created_at: Time of its creation.
        delivered: Number of events that the receiver accepted.
        given_up: Number of events that were dropped after too many failed attempts.
        tries: Failed attempts of the next event so far.
        next_at: Time of the next attempt; None if no attempt failed.
        last_at: Time of the last attempt; None if there was none.
        last_error: Error of the last attempt; empty if it succeeded.
        secret: Secret of the signature in ``X-Signature``. Only ``client.webhooks.create`` returns it; otherwise it is empty.
        enabled: True if events are sent.
    """

    id: str
    url: str
    events: tuple[str, ...] = ()
    name: str | None = None
    created_at: datetime | None = None
    delivered: int = 0
    given_up: int = 0
    tries: int = 0
    next_at: datetime | None = None
    last_at: datetime | None = None
    last_error: str = ""
    secret: str = ""
    enabled: bool = True

    __repr__ = short_repr("id", "url", "events", "enabled")
