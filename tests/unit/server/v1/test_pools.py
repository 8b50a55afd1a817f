"""Pools over HTTP: made, looked at, changed and removed by whoever has them, and by operators."""

from __future__ import annotations

from typing import Any

import httpx

from sandlot.model.access import OPERATOR
from sandlot.model.pools import DEFAULT_MAX
from tests.support.cases import cases
from tests.support.pools import live_pools
from tests.support.service import Bench, tcp_client
from tests.support.until import until

BODY = {"template": "base", "limits": {"pids": 32768}}


async def made(http: httpx.AsyncClient, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    answer = await http.post("/v1/pools", json={**BODY, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_pool_is_made_filled_changed_and_removed(at: Bench, http: httpx.AsyncClient) -> None:
    pool = await made(http)
    assert (pool["template"], pool["isolation"], pool["warm"], pool["max"], pool["prepared"]) == ("base", "gvisor", 1, DEFAULT_MAX, 0)
    assert (pool["limits"]["pids"], pool["hit_rate"], pool["error"], pool["snapshot"]) == (32768, None, "", None)

    async def is_full() -> bool:
        return bool((await http.get(f"/v1/pools/{pool['id']}")).json()["ready"] == 1)

    await until(is_full)
    created = await http.post("/v1/sandboxes", json=BODY)
    assert created.status_code == 201, created.text
    (listed,) = (await http.get("/v1/pools")).json()["pools"]
    assert listed["claims"] == {"warm": 1, "prepared": 0, "restored": 0, "booted": 0}
    assert listed["hit_rate"] == 1.0
    changed = await http.patch("/v1/pools/base", json={"warm": 0, "max": 0})
    assert changed.status_code == 200
    assert (changed.json()["warm"], changed.json()["max"]) == (0, 0)
    await until(lambda: not any(pool.ready for pool in live_pools(at.service.node).values()))
    text = (await http.get("/metrics")).text
    assert 'sandlot_claims_total{path="warm",template="base"} 1.0' in text
    assert 'sandlot_pool{isolation="gvisor",template="base",what="wanted"} 0.0' in text
    assert (await http.delete("/v1/pools/base")).status_code == 204
    assert (await http.get("/v1/pools")).json() == {"pools": []}
    gone = await http.get(f"/v1/pools/{pool['id']}")
    assert (gone.status_code, gone.json()["code"]) == (404, "pool_not_found")


@cases(
    "body, status, code",
    [
        ({"template": "nonsense"}, 404, "template_not_found"),
        ({"isolation": "container"}, 403, "forbidden"),
        ({"isolation": "nonsense"}, 400, "invalid_request"),
        ({"warm": -1}, 400, "invalid_request"),
        ({"warm": 5, "max": 4}, 400, "invalid_request"),
        ({"limits": {"memory_bytes": 1}}, 400, "invalid_request"),
        ({"more": 1}, 400, "invalid_request"),
    ],
)
async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient, body: dict[str, object], status: int, code: str) -> None:
    answer = await http.post("/v1/pools", json={**BODY, **body})
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


async def test_a_pool_carries_words_and_the_services_own_are_not_for_clients(at: Bench, http: httpx.AsyncClient) -> None:
    pool = await made(http, metadata={"team": "blue"})
    assert pool["metadata"] == {"team": "blue"}
    await at.service.node.pools.update(OPERATOR, "base", metadata={"sandlot.api": "x", "team": "blue"})
    assert (await http.patch("/v1/pools/base", json={"warm": 0, "max": 0})).json()["metadata"] == {"sandlot.api": "x", "team": "blue"}
    assert (await http.patch("/v1/pools/base", json={"metadata": {"a": "b"}})).json()["metadata"] == {"sandlot.api": "x", "a": "b"}
    for refused in (
        await http.patch("/v1/pools/base", json={"metadata": {"sandlot.api": "y"}}),
        await http.post("/v1/pools", json={"template": "code-interpreter", "metadata": {"sandlot.api": "y"}}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")


async def test_there_is_one_of_a_kind(http: httpx.AsyncClient) -> None:
    pool = await made(http, warm=0, max=0)
    again = await http.post("/v1/pools", json=BODY)
    assert (again.status_code, again.json()["fields"]["pool"]) == (409, pool["id"])
    assert pool["id"] in again.json()["hint"]


async def test_each_key_has_its_own_pools_and_sees_no_others(at: Bench, http: httpx.AsyncClient) -> None:
    nodes = await made(http, warm=0, max=0)
    keys = [(await http.post("/v1/keys", json={"name": name})).json() for name in ("anne", "bob")]
    async with tcp_client(at.service, keys[0]["key"]) as anne:
        mine = await made(anne, warm=0, max=0, metadata={"team": "blue"})
        assert (nodes["owner"], mine["owner"]) == (None, keys[0]["id"])
        theirs = (await anne.post("/v1/pools", headers={"Authorization": f"Bearer {keys[1]['key']}"}, json={**BODY, "warm": 0, "max": 0})).json()
        assert len({nodes["id"], mine["id"], theirs["id"]}) == 3
        assert (await anne.get("/v1/pools")).json()["pools"] == [mine]
        assert (await anne.get("/v1/pools/base")).json() == mine
        assert (await anne.post("/v1/pools", json=BODY)).json()["fields"] == {"pool": mine["id"]}
        for other in (nodes["id"], theirs["id"], "code-interpreter"):
            for method in ("GET", "PATCH", "DELETE"):
                answer = await anne.request(method, f"/v1/pools/{other}", json={} if method == "PATCH" else None)
                assert (answer.status_code, answer.json()["code"]) == (404, "pool_not_found"), (method, other)
        assert (await anne.patch("/v1/pools/base", json={"max": 3})).json() == {**mine, "max": 3}
        assert {each["id"] for each in (await http.get("/v1/pools")).json()["pools"]} == {nodes["id"], mine["id"], theirs["id"]}
        assert (await http.get("/v1/pools/base")).json() == nodes, "a name that an operator says is the node's"
        assert (await http.patch(f"/v1/pools/{mine['id']}", json={"max": 2})).json() == {**mine, "max": 2}
        assert (await http.delete(f"/v1/pools/{theirs['id']}")).status_code == 204
        assert (await anne.delete("/v1/pools/base")).status_code == 204
        assert (await http.get("/v1/pools")).json()["pools"] == [nodes]
