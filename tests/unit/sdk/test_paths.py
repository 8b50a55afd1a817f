"""Paths and bodies of the SDK's requests: names are quoted, and only what was passed is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sandlot import SandlotError
from sandlot.sdk import Client, Sandbox
from tests.unit.sdk.scripted import Reply, Script, problem


def test_names_are_quoted_in_paths(client: Client, service: Script) -> None:
    calls: dict[str, Callable[[str], Any]] = {
        "/v1/pools/": client.pools.delete,
        "/v1/webhooks/": client.webhooks.delete,
        "/v1/snapshots/": client.snapshots.delete,
        "/v1/volumes/": client.volumes.delete,
        "/v1/keys/": client.keys.delete,
    }
    for call in calls.values():
        service.say(problem(404, "not_found", retryable=False))
        with pytest.raises(SandlotError):
            call("a/b")
    assert [(seen.method, seen.path) for seen in service.seen] == [("DELETE", f"{path}a%2Fb") for path in calls]


def test_only_passed_fields_are_sent(client: Client, service: Script) -> None:
    calls: list[tuple[Callable[[], Any], dict[str, Any]]] = [
        (client.pools.create, {"warm": 1}),
        (lambda: client.pools.update("base", prepared=0), {"prepared": 0}),
        (lambda: client.pools.update("base", metadata={}), {"metadata": {}}),
        (lambda: client.webhooks.create("https://example.com/", enabled=False), {"url": "https://example.com/", "enabled": False}),
        (lambda: client.webhooks.update("x", events=[], enabled=False), {"events": [], "enabled": False}),
    ]
    for call, _ in calls:
        service.say(problem(400, "invalid_request", retryable=False))
        with pytest.raises(SandlotError):
            call()
    assert [seen.json() for seen in service.seen] == [body for _, body in calls]


def test_empty_response_of_a_delete_is_no_error(client: Client, service: Script) -> None:
    service.say(Reply(204, None))
    client.pools.delete("base")


def test_link_itself_is_described_only_on_request(sandbox: Sandbox, service: Script) -> None:
    link = {"name": "l", "path": "/l", "kind": "symlink", "target": "/t"}
    service.say(*(Reply(200, answer) for answer in (link, link, {"exists": True}, {"exists": True})))
    sandbox.files.stat("/l")
    assert sandbox.files.stat("/l", follow=False).target == "/t"
    sandbox.files.exists("/l")
    sandbox.files.exists("/l", follow=False)
    assert ["follow=false" in seen.query for seen in service.seen] == [False, True, False, True]
