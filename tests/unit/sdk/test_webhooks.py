"""Webhooks as the SDK asks for them."""

from __future__ import annotations

from typing import Any

from sandlot.sdk import Client
from tests.unit.sdk.scripted import Reply, Script

HOOK: dict[str, Any] = {
    "id": "wh-abcdefghijklmnop",
    "name": None,
    "owner": "local",
    "url": "https://example.com/",
    "events": ["sandbox.ended"],
    "created_at": "2026-11-22T15:00:00Z",
    "cursor": 7,
    "delivered": 3,
    "given_up": 1,
    "tries": 2,
    "next_at": "2026-11-22T15:00:04Z",
    "last_at": "2026-11-22T15:00:02Z",
    "last_error": "It answered 500.",
    "newer": True,
}


def test_webhook_is_created_and_read(client: Client, service: Script) -> None:
    service.say(Reply(201, {**HOOK, "secret": "whsec_abc"}))
    made = client.webhooks.create("https://example.com/", events=["sandbox.ended"], secret="x" * 8, name="monitor")
    assert (service.seen[-1].method, service.seen[-1].path) == ("POST", "/v1/webhooks")
    assert service.seen[-1].json() == {"url": "https://example.com/", "events": ["sandbox.ended"], "secret": "x" * 8, "name": "monitor"}
    assert (made.id, made.events, made.delivered, made.given_up, made.tries, made.last_error) == (
        HOOK["id"],
        ("sandbox.ended",),
        3,
        1,
        2,
        HOOK["last_error"],
    )
    assert made.secret == "whsec_" + "abc"
    assert "whsec" not in repr(made)
    assert made.next_at is not None
    assert made.last_at is not None
    assert made.next_at > made.last_at
