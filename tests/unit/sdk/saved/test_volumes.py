"""Volumes as both clients ask for them."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot import AsyncClient, AsyncSandbox, Client, ConflictError, NotFoundError, Sandbox
from sandlot.sdk.saved.volumes import Mounted
from tests.unit.sdk.conftest import service
from tests.unit.sdk.scripted import Reply, Script, problem

__all__ = ["service"]

VOLUME: dict[str, Any] = {
    "id": "vol-abcd-abcdefghijklmnop",
    "name": "data",
    "size_bytes": 1 << 30,
    "used_bytes": 4096,
    "attached": ["sb-1"],
    "created_at": "2026-11-22T10:00:00Z",
}
BOX = {"id": "sb-1", "state": "running", "template": "base", "volumes": [{"volume": VOLUME["id"], "path": "/data", "read_only": True}]}


def test_a_volume_is_made_listed_looked_at_and_deleted(service: Script) -> None:
    service.say(Reply(201, VOLUME), Reply(200, {"volumes": [VOLUME]}), Reply(200, VOLUME), Reply(204, None))
    with Client(url=service.url) as client:
        made = client.volumes.create("data", "1G")
        assert client.volumes.list() == [client.volumes.get("da/ta")] == [made]
        client.volumes.delete("data")
    assert (made.name, made.size_bytes, made.used_bytes, made.attached) == ("data", 1 << 30, 4096, ("sb-1",))
    assert [(seen.method, seen.path) for seen in service.seen] == [
        ("POST", "/v1/volumes"),
        ("GET", "/v1/volumes"),
        ("GET", "/v1/volumes/da%2Fta"),
        ("DELETE", "/v1/volumes/data"),
    ]
    assert service.seen[0].json() == {"name": "data", "size_bytes": 1 << 30}


async def test_the_other_client_asks_the_same(service: Script) -> None:
    service.say(Reply(201, VOLUME), Reply(201, BOX), problem(409, "conflict"), problem(404, "volume_not_found"))
    async with AsyncClient(url=service.url) as client:
        await client.volumes.create("data")
        box = await AsyncSandbox.create("base", volumes={"/data": "data:ro", "/more": "more"}, client=client)
        assert box.id == "sb-1"
        with pytest.raises(ConflictError):
            await client.volumes.delete("data")
        with pytest.raises(NotFoundError):
            await client.volumes.get("data")
    assert service.seen[0].json() == {"name": "data"}
    assert service.seen[1].json()["volumes"] == [{"volume": "data", "path": "/data", "read_only": True}, {"volume": "more", "path": "/more"}]


def test_a_sandbox_tells_its_volumes_and_forks_share_them_where_it_is_said(service: Script) -> None:
    service.say(Reply(201, BOX), Reply(200, BOX), Reply(201, {"sandboxes": [BOX]}), Reply(201, {"sandboxes": [BOX]}))
    with Client(url=service.url) as client:
        box = Sandbox.create("base", client=client)
        assert "volumes" not in service.seen[0].json()
        assert box.info().volumes == (Mounted(VOLUME["id"], "/data", read_only=True),)
        box.fork(share_volumes=True)
        box.fork()
    assert [seen.json().get("share_volumes") for seen in service.seen[2:]] == [True, None]


def test_one_is_attached_to_a_sandbox_and_detached(service: Script) -> None:
    without = {**BOX, "volumes": []}
    service.say(Reply(200, without), Reply(200, BOX), Reply(200, without), problem(409, "conflict"))
    with Client(url=service.url) as client:
        box = Sandbox.connect("sb-1", client=client)
        box.attach_volume("data", "/data", read_only=True)
        box.detach_volume("/da ta")
        with pytest.raises(ConflictError):
            box.detach_volume("/data")
    assert [(seen.method, seen.path) for seen in service.seen[1:3]] == [
        ("POST", "/v1/sandboxes/sb-1/volumes"),
        ("DELETE", "/v1/sandboxes/sb-1/volumes"),
    ]
    assert service.seen[1].json() == {"volume": "data", "path": "/data", "read_only": True}
    assert service.seen[2].query == "path=%2Fda+ta"
