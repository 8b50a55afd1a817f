"""Keys over HTTP: for operators only; who asks, what they may take and what of it is taken; and what is over it."""

from __future__ import annotations

import re
from dataclasses import asdict

import httpx

from sandlot.model.access import LOCAL, UNBOUNDED, Quota
from tests.support.cases import cases
from tests.support.service import Bench, tcp_client

NEW = {"template": "base", "limits": {"cpus": 0.5, "pids": 32768}, "timeout": 600}


async def made(http: httpx.AsyncClient, name: str, **more: object) -> dict[str, object]:
    answer = await http.post("/v1/keys", json={"name": name, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_key_is_created_listed_and_revoked(at: Bench, http: httpx.AsyncClient) -> None:
    first, second = await made(http, "first"), await made(http, "second", operator=True, quota={"cpus": 4, "sandboxes": None})
    assert first["quota"] == asdict(Quota())
    assert second["quota"] == asdict(Quota(cpus=4.0, sandboxes=None))
    assert (await made(http, "third", operator=True))["quota"] == asdict(UNBOUNDED)
    listed = (await http.get("/v1/keys")).json()
    assert [key["name"] for key in listed["keys"]] == ["first", "second", "third"]
    assert listed["next_cursor"] is None
    assert "key" not in listed["keys"][0]
    assert str(first["key"]) not in str(listed)
    assert (await http.delete(f"/v1/keys/{second['id']}")).status_code == 204
    async with tcp_client(at.service, str(first["key"])) as client:
        assert (await client.get("/v1/sandboxes")).status_code == 200
        assert (await http.delete("/v1/keys/first")).status_code == 204
        assert (await client.get("/v1/sandboxes")).status_code == 401
        assert (await http.delete("/v1/keys/first")).status_code == 404
        again = await made(http, "first")
        assert again["id"] != first["id"]
        assert (await client.get("/v1/sandboxes")).status_code == 401


@cases(
    "body",
    [
        {},
        {"name": ""},
        {"name": "-a"},
        {"name": "a", "quota": {"cpus": -1}},
        {"name": "a", "quota": {"sandboxes": 1.5}},
        {"name": "a", "quota": {"sandboxes": True}},
        {"name": "a", "quota": {"unknown": 1}},
        {"name": "a", "quota": {"network": "open"}},
        {"name": "a", "key": "mine"},
        {"name": "current"},
        {"name": "a", "expires_at": "2020-01-01T00:00:00Z"},
        {"name": "a", "expires_at": "2999-01-01T00:00:00"},
        {"name": "a", "expires_at": "9999-12-31T23:59:59-12:00"},
        {"name": "a", "expires_at": "soon"},
        {"name": "a", "format": "aws"},
    ],
)
async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient, body: dict[str, object]) -> None:
    answer = await http.post("/v1/keys", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    assert (await http.get("/v1/keys")).json()["keys"] == []


async def test_invalid_update_changes_nothing(http: httpx.AsyncClient) -> None:
    await made(http, "other")
    key = await made(http, "ci", expires_at="2999-01-01T00:00:00Z")
    del key["key"]
    for body in ({"name": ""}, {"name": "current"}, {"quota": {"cpus": -1}}, {"expires_at": "never"}, {"operator": True}):
        answer = await http.patch("/v1/keys/ci", json={"quota": {"cpus": 1}, **body})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    answer = await http.patch("/v1/keys/ci", json={"quota": {"cpus": 1}, "name": "other"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), answer.text
    assert (await http.get("/v1/keys/ci")).json() == key


async def test_key_is_found_and_updated_by_id_and_name(at: Bench, http: httpx.AsyncClient) -> None:
    key = await made(http, "ci", expires_at="2999-01-01T01:00:00+01:00")
    assert key["expires_at"] == "2999-01-01T00:00:00Z"
    secret = key.pop("key")
    assert (await http.get("/v1/keys/ci")).json() == (await http.get(f"/v1/keys/{key['id']}")).json() == key
    changes: list[tuple[dict[str, object], dict[str, object]]] = [
        ({"name": "deploy"}, {"name": "deploy"}),
        ({"quota": {"cpus": 2}}, {"quota": asdict(Quota(cpus=2))}),
        ({"expires_at": "2998-01-01T00:00:00Z"}, {"expires_at": "2998-01-01T00:00:00Z"}),
        ({}, {}),
        ({"expires_at": None}, {"expires_at": None}),
    ]
    for body, changed in changes:
        key |= changed
        answer = await http.patch(f"/v1/keys/{key['id']}", json=body)
        assert (answer.status_code, answer.json()) == (200, key)
        assert (await http.get("/v1/keys/deploy")).json() == key
        assert str(secret) not in answer.text
    for method in ("GET", "PATCH", "DELETE"):
        missing = await http.request(method, "/v1/keys/ci", json=None if method == "GET" else {})
        assert missing.status_code == 404, "the old name is free"
    async with tcp_client(at.service, str(secret)) as client:
        current = (await client.get("/v1/keys/current")).json()
        assert {name: current[name] for name in ("id", "name", "expires_at")} == {name: key[name] for name in ("id", "name", "expires_at")}


async def test_key_of_old_clients_of_e2b(at: Bench, http: httpx.AsyncClient) -> None:
    secret = str((await made(http, "old", format="e2b"))["key"])
    assert re.fullmatch("e2b_[0-9a-f]{64}", secret)
    async with tcp_client(at.service, secret) as client:
        assert (await client.get("/v1/keys/current")).json()["name"] == "old"


async def test_expired_key_is_refused_and_its_sandboxes_and_pools_stay(at: Bench, http: httpx.AsyncClient) -> None:
    key = await made(http, "ci")
    async with tcp_client(at.service, str(key["key"])) as client:
        sandbox = (await client.post("/v1/sandboxes", json=NEW)).json()
        pool = await client.post("/v1/pools", json={"template": "base", "warm": 0, "limits": {"cpus": 0.5}})
        assert pool.status_code == 201
        signed = (await client.post(f"/v1/sandboxes/{sandbox['id']}/files/signed-urls", json={"path": "/etc/hostname"})).json()["url"]
        assert (await http.patch("/v1/keys/ci", json={"expires_at": "2020-01-01T00:00:00Z"})).status_code == 200
        refused = await client.get("/v1/sandboxes")
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
        assert "expired at 2020-01-01" in refused.json()["detail"]
        assert (await client.get(signed)).status_code == 403
        assert (await http.get("/v1/keys/ci")).json()["expires_at"] == "2020-01-01T00:00:00Z"
        assert (await http.patch("/v1/keys/ci", json={"expires_at": None})).status_code == 200
        assert [each["id"] for each in (await client.get("/v1/sandboxes")).json()["sandboxes"]] == [sandbox["id"]]
        assert (await client.get(f"/v1/pools/{pool.json()['id']}")).status_code == 200


async def test_invalid_cursor_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/keys", params={"cursor": "x"})
    assert (answer.status_code, answer.json()["fields"]) == (400, {"field": "cursor"})


async def test_keys_are_managed_by_operators_only(at: Bench, http: httpx.AsyncClient) -> None:
    plain, operator = await made(http, "plain"), await made(http, "boss", operator=True)
    async with tcp_client(at.service, str(plain["key"])) as client:
        for answer in (
            await client.get("/v1/keys"),
            await client.get("/v1/keys/plain"),
            await client.post("/v1/keys", json={"name": "x"}),
            await client.patch("/v1/keys/plain", json={"quota": {"sandboxes": 100}}),
            await client.delete("/v1/keys/boss"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
            assert answer.json()["hint"]
        client.headers["Authorization"] = f"Bearer {operator['key']}"
        await made(client, "x")
        assert (await client.delete("/v1/keys/plain")).status_code == 204
        assert [key["name"] for key in (await client.get("/v1/keys")).json()["keys"]] == ["boss", "x"]


async def test_network_mode_of_a_key_limits_its_sandboxes(at: Bench, http: httpx.AsyncClient) -> None:
    key = await made(http, "offline", quota={"network": "none"})
    async with tcp_client(at.service, str(key["key"])) as client:
        assert (await client.get("/v1/keys/current")).json()["quota"]["network"] == "none"
        created = await client.post("/v1/sandboxes", json=NEW)
        assert (created.status_code, created.json()["network"]["mode"]) == (201, "none"), created.text
        refused = await client.post("/v1/sandboxes", json={**NEW, "network": {"mode": "packages"}})
        assert (refused.status_code, refused.json()["code"], refused.json()["fields"]["allowed"]) == (403, "forbidden", ["none"])
    assert [record.quota.network for record in await at.service.api_keys.list()] == ["none"]


async def test_quota_of_a_key_decides_about_public_ports(at: Bench, http: httpx.AsyncClient) -> None:
    key = await made(http, "private")
    async with tcp_client(at.service, str(key["key"])) as client:
        created = (await client.post("/v1/sandboxes", json=NEW)).json()
        assert (created["public_ports"], created["mask_request_host"]) == (False, None)
        url, public = f"/v1/sandboxes/{created['id']}", {"public_ports": True}
        for refused in (await client.post("/v1/sandboxes", json={**NEW, **public}), await client.patch(url, json=public)):
            assert (refused.status_code, refused.json()["code"], refused.json()["fields"]["quota"]) == (403, "forbidden", "public_ports")
            assert "`public_ports`" in refused.json()["hint"]
            assert "token" in refused.json()["hint"]

        assert (await http.patch("/v1/keys/private", json={"quota": public})).json()["quota"]["public_ports"] is True
        updated = (await client.patch(url, json={**public, "mask_request_host": "${PORT}-a.example.com"})).json()
        assert (updated["public_ports"], updated["mask_request_host"]) == (True, "${PORT}-a.example.com")
        assert (await client.get(url)).json() == updated
        updated = (await client.patch(url, json={"public_ports": False, "mask_request_host": ""})).json()
        assert (updated["public_ports"], updated["mask_request_host"]) == (False, None)
        created = await client.post("/v1/sandboxes", json={**NEW, **public, "mask_request_host": "a.example.com:80"})
        assert (created.status_code, created.json()["public_ports"], created.json()["mask_request_host"]) == (201, True, "a.example.com:80")


async def test_key_reads_its_quota_and_usage(at: Bench, http: httpx.AsyncClient) -> None:
    me = (await http.get("/v1/keys/current")).json()
    assert (me["id"], me["operator"], me["quota"]) == (LOCAL, True, asdict(UNBOUNDED))
    quota = {"sandboxes": 2, "cpus": 0.75, "lifetime_s": 600, "executions_per_month": 2}
    key = await made(http, "bound", quota=quota)
    async with tcp_client(at.service, str(key["key"])) as client:
        box = (await client.post("/v1/sandboxes", json=NEW)).json()
        for _ in range(2):
            done = await client.post(f"/v1/sandboxes/{box['id']}/processes", json={"command": "true"})
            assert done.status_code == 200, done.text
        assert (await client.post("/v1/pools", json={"template": "base", "warm": 0, "limits": {"cpus": 0.5}})).status_code == 201
        me = (await client.get("/v1/keys/current")).json()
        assert (me["id"], me["name"], me["operator"]) == (key["id"], "bound", False)
        assert me["quota"] == asdict(Quota()) | quota
        sums = {"sandboxes": 1, "cpus": 0.5, "memory_bytes": 1 << 30, "disk_bytes": 5 << 30, "executions_per_month": 2}
        stored = {name: me["used"].pop(name) for name in ("stored_executions", "stored_execution_bytes")}  # written in the background
        assert set(stored) <= set(me["quota"])
        zero = dict.fromkeys(
            (
                "stored_files",
                "stored_file_bytes",
                "hibernated_sandboxes",
                "snapshots",
                "snapshot_bytes",
                "volumes",
                "volume_bytes",
                "templates",
                "template_bytes",
            ),
            0,
        )
        assert me["used"] == {**sums, **zero, "pools": 1}

        over = await client.post(f"/v1/sandboxes/{box['id']}/processes", json={"command": "true"})
        assert (over.status_code, over.json()["code"], over.json()["fields"]["quota"]) == (429, "quota_exceeded", "executions_per_month")
        assert int(over.headers["retry-after"]) >= 1
        over = await client.post(f"/v1/sandboxes/{box['id']}/code", json={"code": "1"})
        assert (over.status_code, over.json()["fields"]["quota"]) == (429, "executions_per_month")
        over = await client.post("/v1/sandboxes", json=NEW)
        assert (over.status_code, over.json()["fields"]["quota"]) == (429, "cpus")
        assert over.headers["retry-after"] == "5"
        for change in ({"timeout": 601}, {"persistent": True}, {"limits": {"cpus": 1}}):
            over = await client.patch(f"/v1/sandboxes/{box['id']}", json=change)
            assert (over.status_code, over.json()["code"]) == (429, "quota_exceeded"), over.text
        assert (await client.get("/v1/keys/current")).json()["used"]["executions_per_month"] == 2
        assert (await client.delete(f"/v1/sandboxes/{box['id']}")).status_code == 204
        # Whoever has the unix socket is bound by nobody's quota.
        assert (await http.post("/v1/sandboxes", json=NEW)).status_code == 201
