"""Body, signature and retries of webhook requests."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from sandlot.core.webhooks import payload
from sandlot.core.webhooks.payload import FIRST_PAUSE_S, MAX_ATTEMPTS, failure_of, next_progress
from sandlot.model.ids import SandboxId
from sandlot.model.records import DeliveryProgress, EventRecord
from sandlot.testing.stores.harness import event
from sandlot.testing.stores.webhooks import webhook
from tests.support.clock import START

HAPPENED = EventRecord(
    7, event(1.5, type="sandbox.ended", sandbox=SandboxId("sb-node-aaaaaaaaaaaaaaaa"), data={"reason": "oom", "detail": "ü\u2028"})
)


def test_signature_covers_the_bytes_of_the_body() -> None:
    hook = webhook()
    body, headers = payload.encode(hook, HAPPENED, payload.native)
    assert json.loads(body) == {
        "id": "evt-7",
        "sequence": 7,
        "type": "sandbox.ended",
        "at": "2026-01-01T12:00:01.500000Z",
        "owner": HAPPENED.event.owner,
        "sandbox": "sb-node-aaaaaaaaaaaaaaaa",
        "fault": "limit",
        "data": {"reason": "oom", "detail": "ü\u2028"},
    }
    assert headers == {
        "Content-Type": "application/json",
        "X-Event-ID": "evt-7",
        "X-Signature": hmac.new(hook.secret.encode(), body, hashlib.sha256).hexdigest(),
    }
    assert payload.encode(hook, HAPPENED, payload.native) == (body, headers), "the same at every try"
    assert payload.encode(replace(hook, secret=hook.url), HAPPENED, payload.native)[1]["X-Signature"] != headers["X-Signature"]


def test_webhook_matches_its_event_types() -> None:
    assert payload.matches(webhook(), HAPPENED)
    assert payload.matches(replace(webhook(), events=("sandbox.created", "sandbox.ended")), HAPPENED)
    assert not payload.matches(replace(webhook(), events=("sandbox.created",)), HAPPENED)


@pytest.mark.parametrize(
    "status, good", [(200, True), (204, True), (299, True), (199, False), (300, False), (302, False), (404, False), (500, False)]
)
def test_status_200_to_299_accepts_an_event(status: int, good: bool) -> None:  # noqa: FBT001
    assert (failure_of(status) == "") is good
    assert good or str(status) in failure_of(status)


def test_pauses_double_until_the_event_is_given_up() -> None:
    progress, waits = DeliveryProgress(cursor=6, delivered_events=3), []
    for number in range(1, MAX_ATTEMPTS):
        progress = next_progress(progress, 7, "no", START)
        assert (progress.cursor, progress.failed_attempts, progress.last_error, progress.last_attempt_at) == (6, number, "no", START)
        assert progress.next_attempt_at is not None
        waits.append((progress.next_attempt_at - START) / timedelta(seconds=FIRST_PAUSE_S))
    assert waits == [2**number for number in range(MAX_ATTEMPTS - 1)]
    assert next_progress(progress, 7, "", START) == DeliveryProgress(cursor=7, delivered_events=4, last_attempt_at=START)
    assert next_progress(progress, 7, "no", START) == DeliveryProgress(
        cursor=7, delivered_events=3, failed_events=1, last_attempt_at=START, last_error="no"
    )
