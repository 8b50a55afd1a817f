"""Volumes over HTTP: made, listed, looked at, deleted; their names, sizes and quotas; and whose they are."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sandlot.model.ids import VOLUME_ID
from sandlot.model.specs import MIB
from tests.support.cases import cases
from tests.support.service import Bench, tcp_client
from tests.support.until import until

SIZE = 16 * MIB


async def made(http: httpx.AsyncClient, name: str, size: int = SIZE) -> dict[str, Any]:
    answer = await http.post("/v1/volumes", json={"name": name, "size_bytes": size})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_volume_is_made_listed_looked_at_and_deleted(at: Bench, http: httpx.AsyncClient) -> None:
    first, second = await made(http, "data"), await made(http, "more_data-2")
    assert VOLUME_ID.fullmatch(first["id"])
    assert (first["name"], first["size_bytes"], first["attached"]) == ("data", SIZE, [])
    assert (await http.get("/v1/volumes")).json() == {"volumes": [first, second]}
    assert (await http.get(f"/v1/volumes/{first['id']}")).json() == (await http.get("/v1/volumes/data")).json() == first
    promised = (await at.sandboxes.capacity()).reserved.disk_bytes
    assert promised >= 2 * SIZE
    assert (await http.delete("/v1/volumes/data")).status_code == 204
    assert (await at.sandboxes.capacity()).reserved.disk_bytes < promised
    for method in ("GET", "DELETE"):
        answer = await http.request(method, "/v1/volumes/data")
        assert (answer.status_code, answer.json()["code"]) == (404, "volume_not_found")
    assert (await http.delete(f"/v1/volumes/{second['id']}")).status_code == 204
    assert list(at.service.settings.volumes.iterdir()) == []
    await made(http, "data")
    assert (await at.sandboxes.capacity()).sandboxes == 0


@cases(
    "body",
    [
        {},
        *({"name": name} for name in ("", "A", "-a", "_a", "a.b", "a/b", "..", "a" * 64, "ä", "vol-aaaa-bbbbbbbbbbbbbbbb", "a\n", 7, None)),
        *({"name": "a", "size_bytes": size} for size in (0, -1, SIZE - 1, 1 << 62, 1.5, "much", None)),
        {"name": "a", "size": SIZE},
    ],
)
async def test_what_is_no_volume_is_refused(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await http.post("/v1/volumes", json=body)
    assert answer.status_code == 400, answer.text
    assert (await http.get("/v1/volumes")).json() == {"volumes": []}


async def test_volume_of_another_owner_is_not_found(at: Bench, http: httpx.AsyncClient) -> None:
    keys = [(await http.post("/v1/keys", json={"name": name})).json()["key"] for name in ("alice", "bob")]
    async with tcp_client(at.service, keys[0]) as alice, tcp_client(at.service, keys[1]) as bob:
        hers = await made(alice, "data")
        for name in ("data", hers["id"]):
            for method in ("GET", "DELETE"):
                assert (await bob.request(method, f"/v1/volumes/{name}")).status_code == 404
            new = {"template": "base", "volumes": [{"volume": name, "path": "/data"}]}
            refused = await bob.post("/v1/sandboxes", json=new)
            assert (refused.status_code, refused.json()["code"]) == (404, "volume_not_found")
        assert (await bob.get("/v1/volumes")).json() == {"volumes": []}
        his = await made(bob, "data")
        assert [volume["id"] for volume in (await http.get("/v1/volumes")).json()["volumes"]] == [hers["id"], his["id"]]
        assert (await http.get("/v1/volumes/data")).status_code == 404  # a name is its owner's; an operator says the id
        assert (await http.get(f"/v1/volumes/{hers['id']}")).json() == hers
        assert (await alice.get("/v1/sandboxes")).json()["sandboxes"] == (await bob.get("/v1/sandboxes")).json()["sandboxes"] == []


@pytest.mark.parametrize("quota, used", [({"volumes": 1}, 1), ({"volume_bytes": 2 * SIZE - 1}, SIZE)])
async def test_quotas_limit_number_and_size_of_volumes(at: Bench, http: httpx.AsyncClient, quota: dict[str, int], used: int) -> None:
    key = (await http.post("/v1/keys", json={"name": "alice", "quota": quota})).json()
    assert {name: key["quota"][name] for name in quota} == quota
    async with tcp_client(at.service, key["key"]) as client:
        await made(client, "one")
        over = await client.post("/v1/volumes", json={"name": "two", "size_bytes": SIZE})
        assert (over.status_code, over.json()["code"]) == (429, "quota_exceeded")
        assert (over.json()["fields"]["quota"], over.json()["fields"]["used"]) == (next(iter(quota)), used)
        await client.delete("/v1/volumes/one")
        await made(client, "two")


PLACES: list[object] = [
    *(
        [{"volume": "data", "path": path}]
        for path in ("", "data", "/", "//", "/a/", "/a//b", "/a/../b", "/./a", "/proc", "/sys/x", "/dev/shm", "/.sandlot", "/.sandlot/x", "/a\0b", 5)
    ),
    [{"volume": "data", "path": "/a"}, {"volume": "data", "path": "/b"}],
    [{"volume": "data", "path": "/a"}, {"volume": "other", "path": "/a"}],
    [{"volume": "data", "path": "/a"}, {"volume": "other", "path": "/a/b"}],
    [{"volume": f"v{number}", "path": f"/v{number}"} for number in range(9)],
    [{"volume": "data", "path": "/a", "mode": "ro"}],
    [{"path": "/a"}],
    "data",
]


async def test_places_where_no_volume_can_be(http: httpx.AsyncClient) -> None:
    await made(http, "data")
    await made(http, "other")
    for volumes in PLACES:
        answer = await http.post("/v1/sandboxes", json={"template": "base", "volumes": volumes})
        assert answer.status_code == 400, answer.text
    assert (await http.get("/v1/sandboxes")).json()["sandboxes"] == []


async def test_unknown_volume_is_refused_before_anything_is_created(at: Bench, http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/sandboxes", json={"template": "base", "volumes": [{"volume": "no", "path": "/a"}]})
    assert (answer.status_code, answer.json()["code"]) == (404, "volume_not_found")
    assert at.driver.leftovers() == []


@pytest.mark.real_guest
async def test_sandbox_reports_its_volumes_and_an_attached_volume_is_not_deleted(http: httpx.AsyncClient) -> None:
    first, second = await made(http, "data"), await made(http, "sets")
    asked = [{"volume": "data", "path": "/data"}, {"volume": second["id"], "path": "/srv/sets", "read_only": True}]
    new = {"template": "base", "limits": {"pids": 32768}, "volumes": asked}
    box = (await http.post("/v1/sandboxes", json=new)).json()
    told = [{"volume": first["id"], "path": "/data", "read_only": False}, {"volume": second["id"], "path": "/srv/sets", "read_only": True}]
    assert box["volumes"] == told
    url = f"/v1/sandboxes/{box['id']}"
    assert (await http.get(url)).json()["volumes"] == told
    assert (await http.put(f"{url}/files/content", params={"path": "/data/word"}, content=b"kept")).status_code == 200
    refused = await http.put(f"{url}/files/content", params={"path": "/srv/sets/word"}, content=b"lost")
    assert refused.status_code in {400, 403}, refused.text
    assert (await http.get("/v1/volumes/data")).json()["attached"] == [box["id"]]
    kept = await http.delete("/v1/volumes/data")
    assert (kept.status_code, kept.json()["code"], kept.json()["fields"]["sandboxes"]) == (409, "conflict", [box["id"]])
    assert (await http.delete(url)).status_code == 204
    again = (await http.post("/v1/sandboxes", json={**new, "volumes": [{"volume": "data", "path": "/elsewhere"}]})).json()["id"]
    read = await http.get(f"/v1/sandboxes/{again}/files/content", params={"path": "/elsewhere/word"})
    assert read.content == b"kept"
    await http.delete(f"/v1/sandboxes/{again}")
    assert (await http.get(url)).json()["volumes"] == told  # what it had is told as long as it is remembered


async def test_where_a_volume_cannot_be_attached_no_sandbox_is_left(at: Bench, http: httpx.AsyncClient) -> None:
    await made(http, "data")
    at.driver.faults.raises["attach"] = [OSError(5, "the disk broke")]
    answer = await http.post("/v1/sandboxes", json={"template": "base", "volumes": [{"volume": "data", "path": "/data"}]})
    assert (answer.status_code, answer.json()["code"]) == (503, "host_not_ready")

    async def gone() -> bool:
        return (await http.delete("/v1/volumes/data")).status_code == 204

    await until(gone)


async def test_where_volumes_are_settled_once_a_sandbox_that_runs_says_so(http: httpx.AsyncClient) -> None:
    await made(http, "data")
    box = (await http.post("/v1/sandboxes", json={"template": "base", "limits": {"pids": 32768}})).json()
    url = f"/v1/sandboxes/{box['id']}/volumes"
    for answer in (
        await http.post(url, json={"volume": "data", "path": "/data"}),
        await http.delete(url, params={"path": "/data"}),
    ):
        assert (answer.status_code, answer.json()["code"], answer.json()["fields"]["ability"]) == (501, "unsupported", "configure.volumes")
    for body in ({"volume": "data"}, {"volume": "data", "path": "/"}, {"volume": "data", "path": "/x", "mode": "ro"}, {"path": "/x"}):
        assert (await http.post(url, json=body)).status_code == 400
    for query in ({}, {"path": "/x", "force": "1"}):
        assert (await http.delete(url, params=query)).status_code == 400
    assert (await http.post(url, json={"volume": "none", "path": "/x"})).json()["code"] == "volume_not_found"
    assert (await http.get(f"/v1/sandboxes/{box['id']}")).json()["volumes"] == []
    assert (await http.delete("/v1/volumes/data")).status_code == 204
