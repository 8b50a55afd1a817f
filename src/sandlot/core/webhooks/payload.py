"""Body, signature and retries of the requests that are sent to webhooks. Pure functions.

Invariants:
- Every attempt to deliver an event sends the same bytes. A receiver that has processed the event's id may ignore the request.
- The signature is computed over the bytes of the body as they are sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from sandlot.model.records import DeliveryProgress, EventRecord, WebhookRecord, event_id

MAX_ATTEMPTS: Final = 10
"""Maximum number of attempts to deliver one event. The pauses between the attempts add up to eight and a half minutes. If every call takes the
maximum time, the calls add one and a half minutes."""
FIRST_PAUSE_S: Final = 1.0
"""Seconds before the second attempt. Each later pause is twice as long as the one before."""

SIGNATURE_HEADER, EVENT_ID_HEADER = "X-Signature", "X-Event-ID"

_MIN_ACCEPTED_STATUS, _MAX_ACCEPTED_STATUS = 200, 299

PayloadFormat = Callable[[EventRecord], Mapping[str, Any]]
"""Function that returns the body for an event, as values that JSON can represent."""


def native(event: EventRecord) -> Mapping[str, Any]:
    """Return the body in the native format: the event as the API returns it, and the event's id."""
    content = event.event
    return {
        "id": event_id(event),
        "sequence": event.sequence,
        "type": content.type,
        "at": content.at.isoformat().replace("+00:00", "Z"),
        "owner": content.owner,
        "sandbox": content.sandbox,
        "fault": event.fault,
        "data": dict(content.data),
    }


def signature(secret: str, body: bytes) -> str:
    """Return the signature of a body: its HMAC-SHA256 in hexadecimal."""
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def encode(webhook: WebhookRecord, event: EventRecord, format_: PayloadFormat) -> tuple[bytes, Mapping[str, str]]:
    """Return the body and the headers of the request that delivers an event to a webhook."""
    body = json.dumps(format_(event), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return body, {"Content-Type": "application/json", EVENT_ID_HEADER: event_id(event), SIGNATURE_HEADER: signature(webhook.secret, body)}


def matches(webhook: WebhookRecord, event: EventRecord) -> bool:
    """Return whether a webhook is subscribed to an event. A webhook without event types is subscribed to all events."""
    return not webhook.events or event.event.type in webhook.events


def next_progress(progress: DeliveryProgress, sequence: int, failure: str, now: datetime) -> DeliveryProgress:
    """Return the progress of a webhook after an attempt.

    Args:
        progress: Progress before the attempt.
        sequence: Sequence number of the event.
        failure: Reason why the attempt failed; empty after a successful attempt.
        now: Time of the attempt.
    """
    if not failure:
        return replace(
            progress,
            cursor=sequence,
            failed_attempts=0,
            next_attempt_at=None,
            delivered_events=progress.delivered_events + 1,
            last_attempt_at=now,
            last_error="",
        )
    if progress.failed_attempts + 1 >= MAX_ATTEMPTS:
        return replace(
            progress,
            cursor=sequence,
            failed_attempts=0,
            next_attempt_at=None,
            failed_events=progress.failed_events + 1,
            last_attempt_at=now,
            last_error=failure,
        )
    pause = timedelta(seconds=FIRST_PAUSE_S * 2**progress.failed_attempts)
    return replace(progress, failed_attempts=progress.failed_attempts + 1, next_attempt_at=now + pause, last_attempt_at=now, last_error=failure)


def failure_of(status: int) -> str:
    """Return the reason why a response with this status is a failure, or an empty string if the response is a success."""
    if _MIN_ACCEPTED_STATUS <= status <= _MAX_ACCEPTED_STATUS:
        return ""
    return f"The URL responded with status {status}; only a status from 200 to 299 accepts an event, and redirects are not followed."
