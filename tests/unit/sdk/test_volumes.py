"""Volumes as both clients ask for them."""

from __future__ import annotations

from typing import Any

from sandlot import Client, Sandbox
from sandlot.sdk.models.volumes import Mount
from tests.unit.sdk.scripted import Reply, Script

VOLUME: dict[str, Any] = {
    "id": "vol-abcd-abcdefghijklmnop",
    "name": "data",
    "size_bytes": 1 << 30,
    "used_bytes": 4096,
    "attached": ["sb-1"],
    "created_at": "2026-11-22T10:00:00Z",
}
BOX = {"id": "sb-1", "state": "running", "template": "base", "volumes": [{"volume": VOLUME["id"], "path": "/data", "read_only": True}]}


def test_volumes_of_a_sandbox_are_read_and_shared_with_forks(service: Script) -> None:
    service.say(Reply(201, BOX), Reply(200, BOX), Reply(201, {"sandboxes": [BOX]}), Reply(201, {"sandboxes": [BOX]}))
    with Client(url=service.url) as client:
        box = Sandbox.create("base", client=client)
        assert "volumes" not in service.seen[0].json()
        assert box.info().volumes == (Mount(VOLUME["id"], "/data", read_only=True),)
        box.fork(share_volumes=True)
        box.fork()
    assert [seen.json().get("share_volumes") for seen in service.seen[2:]] == [True, None]
