"""What a webhook is sent, how it is signed, and when it is tried again. Pure.

Laws:
- The same event is the same bytes at every try, so that a receiver that knows its id may drop it unread.
- The signature is of the bytes of the body, as they are sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from sandlot.model.records import EventRecord
from sandlot.model.webhooks import Progress, WebhookRecord

TRIES: Final = 10
"""Of one event; with the waits between them eight and a half minutes, and a minute and a half more where each of them takes as long as it may."""
FIRST_WAIT_S: Final = 1.0
"""Before the second try; twice as long before each later one."""

SIGNATURE, EVENT_ID = "X-Signature", "X-Event-ID"

_LEAST_GOOD, _MOST_GOOD = 200, 299

Shape = Callable[[EventRecord], Mapping[str, Any]]
"""What an event looks like to those who are sent it; JSON-representable."""


def event_id(record: EventRecord) -> str:
    """What an event is called by those who are sent it: the same at every try, and no other event's."""
    return f"evt-{record.sequence}"


def native(record: EventRecord) -> Mapping[str, Any]:
    """An event as the API shows it, and its id."""
    event = record.event
    return {
        "id": event_id(record),
        "sequence": record.sequence,
        "type": event.type,
        "at": event.at.isoformat().replace("+00:00", "Z"),
        "owner": event.owner,
        "sandbox": event.sandbox,
        "data": dict(event.data),
    }


def signature(secret: str, body: bytes) -> str:
    """HMAC-SHA256 of a body, in hexadecimal."""
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def message(webhook: WebhookRecord, record: EventRecord, shape: Shape) -> tuple[bytes, Mapping[str, str]]:
    """A body and its headers."""
    body = json.dumps(shape(record), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return body, {"Content-Type": "application/json", EVENT_ID: event_id(record), SIGNATURE: signature(webhook.secret, body)}


def is_wanted(webhook: WebhookRecord, record: EventRecord) -> bool:
    """Whether a webhook is told of an event."""
    return not webhook.events or record.event.type in webhook.events


def after_answer(progress: Progress, sequence: int, problem: str, now: datetime) -> Progress:
    """How far a webhook is after a try.

    Args:
        progress: How far it was.
        sequence: The number of the event.
        problem: Why the try failed; empty where it did not.
        now: When.
    """
    if not problem:
        return replace(progress, cursor=sequence, tries=0, next_at=None, delivered=progress.delivered + 1, last_at=now, last_error="")
    if progress.tries + 1 >= TRIES:
        return replace(progress, cursor=sequence, tries=0, next_at=None, given_up=progress.given_up + 1, last_at=now, last_error=problem)
    wait = timedelta(seconds=FIRST_WAIT_S * 2**progress.tries)
    return replace(progress, tries=progress.tries + 1, next_at=now + wait, last_at=now, last_error=problem)


def problem_of(status: int) -> str:
    """Why an answer is none that takes an event; empty where it is."""
    return "" if _LEAST_GOOD <= status <= _MOST_GOOD else f"It answered {status}; only 200 to 299 takes an event, and redirects are not followed."
