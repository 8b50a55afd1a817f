"""Webhooks as the SDK asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandlot.model.errors import NotFoundError
from sandlot.sdk import Client
from tests.unit.sdk.scripted import Reply, Script, problem

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


@pytest.fixture
def client(service: Script) -> Iterator[Client]:
    with Client(url=service.url) as client:
        yield client


def test_a_webhook_is_asked_for_and_read(client: Client, service: Script) -> None:
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


def test_what_is_not_said_is_not_sent(client: Client, service: Script) -> None:
    service.say(Reply(201, {**HOOK, "events": [], "next_at": None, "last_at": None}))
    made = client.webhooks.create("https://example.com/")
    assert service.seen[-1].json() == {"url": "https://example.com/"}
    assert (made.events, made.next_at, made.last_at, made.secret) == ((), None, None, "")


def test_webhooks_are_listed_found_and_removed(client: Client, service: Script) -> None:
    service.say(Reply(200, {"webhooks": [HOOK]}), Reply(200, HOOK), Reply(204, None))
    assert [each.id for each in client.webhooks.list()] == [HOOK["id"]]
    assert client.webhooks.get(HOOK["id"]).url == "https://example.com/"
    client.webhooks.remove("a/b")
    assert (service.seen[-1].method, service.seen[-1].path) == ("DELETE", "/v1/webhooks/a%2Fb")


def test_a_webhook_is_changed_in_what_is_given(client: Client, service: Script) -> None:
    service.say(*[Reply(200, {**HOOK, "enabled": False})] * 2, Reply(201, {**HOOK, "enabled": False}))
    assert not client.webhooks.update("a/b", events=[], enabled=False).enabled
    assert (service.seen[-1].method, service.seen[-1].path) == ("PATCH", "/v1/webhooks/a%2Fb")
    assert service.seen[-1].json() == {"events": [], "enabled": False}
    client.webhooks.update("x", url="https://example.com/2", secret="x" * 8, name="n", enabled=True)
    assert service.seen[-1].json() == {"url": "https://example.com/2", "secret": "x" * 8, "name": "n", "enabled": True}
    client.webhooks.create("https://example.com/", enabled=False)
    assert service.seen[-1].json() == {"url": "https://example.com/", "enabled": False}


def test_one_that_is_not_there_is_an_error(client: Client, service: Script) -> None:
    service.say(problem(404, "not_found", retryable=False))
    with pytest.raises(NotFoundError):
        client.webhooks.get("x")
