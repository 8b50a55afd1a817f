"""Sandboxes over HTTP: created, listed by the page, changed, killed; and every request that makes no sense."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.network import RULE_EXAMPLE
from tests.support.cases import cases
from tests.support.http import post, problem
from tests.support.service import BASE, Bench
from tests.support.until import until

FIELDS = {
    "id",
    "state",
    "template",
    "name",
    "metadata",
    "isolation",
    "network",
    "limits",
    "timeout",
    "persistent",
    "on_timeout",
    "auto_resume",
    "public_ports",
    "mask_request_host",
    "cwd",
    "idle_timeout",
    "volumes",
    "snapshot",
    "parent",
    "restored",
    "created_at",
    "expires_at",
    "ended_at",
    "node",
    "exit",
}


async def test_sandbox_is_created_read_and_killed(at: Bench, http: httpx.AsyncClient) -> None:
    asked = {
        "template": "base",
        "name": "n",
        "env": {"TOKEN": "very-secret"},
        "metadata": {"k": "v"},
        "limits": {"cpus": 0.5, "pids": 64},
        "timeout": 100,
    }
    response = await http.post("/v1/sandboxes", json=asked)
    assert response.status_code == 201
    made = response.json()
    assert set(made) == FIELDS
    assert "very-secret" not in response.text
    assert (made["state"], made["template"], made["name"], made["metadata"], made["timeout"]) == ("running", "base", "n", {"k": "v"}, 100)
    assert made["limits"] == {"cpus": 0.5, "memory_bytes": 1 << 30, "disk_bytes": 5 << 30, "pids": 64}
    assert (made["isolation"], made["network"]["mode"], made["node"], made["exit"]) == ("gvisor", "packages", at.service.node.id, None)
    assert datetime.fromisoformat(made["created_at"]) < datetime.now(UTC) < datetime.fromisoformat(made["expires_at"])
    url = f"/v1/sandboxes/{made['id']}"
    assert (await http.get(url)).json() == made
    for _ in range(2):
        assert (await http.delete(url)).status_code == 204
    ended = (await http.get(url)).json()
    assert (ended["state"], ended["exit"]) == ("stopped", {"reason": "killed", "detail": "it was killed by request", "fault": None})
    assert problem(await http.get(url + "/usage"), 410, "sandbox_ended")["fields"]["reason"] == "killed"


async def test_listed_by_the_page_by_state_and_metadata(at: Bench, http: httpx.AsyncClient) -> None:
    async def listed(**query: str | list[str]) -> list[str]:
        return [each["id"] for each in (await http.get("/v1/sandboxes", params=query)).json()["sandboxes"]]

    users = ("alice", "bob", "alice")
    ids = [(await at.sandboxes.create(OPERATOR, replace(BASE, metadata={"user": user, "a=b": "c d"}))).id for user in users]
    first = (await http.get("/v1/sandboxes", params={"limit": 2})).json()
    rest = (await http.get("/v1/sandboxes", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [[each["id"] for each in page["sandboxes"]] for page in (first, rest)] == [ids[:2], ids[2:]]
    assert rest["next_cursor"] is None
    await at.sandboxes.kill(OPERATOR, ids[0])
    await until(lambda: at.sandboxes.held == 2)
    assert (await listed(), await listed(ended="true")) == (ids[1:], ids)
    assert await listed(metadata="user=alice") == [ids[2]]
    assert await listed(metadata=["user=alice", "user=alice"], state="running, stopped") == [ids[0], ids[2]]
    assert (await listed(state="stopped"), await listed(state="stopped", metadata="user=bob")) == ([ids[0]], [])
    for query in ("cursor=é", "cursor=AAA", "limit=0", "limt=1", "state=gone", "metadata=user"):
        problem(await http.get(f"/v1/sandboxes?{query}"), 400, "invalid_request")


async def test_limits_are_changed_in_part_and_as_a_whole(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    before = (await http.get(url)).json()
    changed = await http.patch(url, json={"limits": {"memory_bytes": 2 << 30, "cpus": 0.5, "disk_bytes": None}})
    assert changed.status_code == 200
    assert changed.json() == {**before, "limits": {**before["limits"], "memory_bytes": 2 << 30, "cpus": 0.5}}
    assert (await http.get(url)).json() == changed.json()
    assert (await http.patch(url, json={"limits": {}})).json() == changed.json()
    at.driver.faults.raises["configure"] = [ConflictError("It holds more.", code=ErrorCode.CONFLICT, fields={"field": "memory_bytes"})]
    refused = problem(await http.patch(url, json={"limits": {"memory_bytes": 64 << 20}, "metadata": {"a": "b"}}), 409, "conflict")
    assert refused["fields"]["field"] == "memory_bytes"
    assert (await http.get(url)).json() == changed.json()


@cases(
    "limits,status,code",
    [
        ({"memory_bytes": 1}, 400, "invalid_request"),
        ({"memory_bytes": 10**400}, 400, "invalid_request"),
        ({"cpus": 0}, 400, "invalid_request"),
        ({"pids": 1}, 400, "invalid_request"),
        ({"pids": 64.5}, 400, "invalid_request"),
        ({"gpus": 1}, 400, "invalid_request"),
        ([], 400, "invalid_request"),
        ({"disk_bytes": 1 << 40}, 501, "unsupported"),
    ],
)
async def test_limits_that_cannot_be_are_refused(at: Bench, http: httpx.AsyncClient, url: str, limits: object, status: int, code: str) -> None:
    before = (await http.get(url)).json()
    problem(await http.patch(url, json={"limits": limits, "timeout": 1000, "metadata": {"a": "b"}}), status, code)
    assert (await http.get(url)).json() == before
    assert at.driver.booted[0].changes == []


async def test_usage_includes_the_limits(http: httpx.AsyncClient, url: str) -> None:
    used = (await http.get(url + "/usage")).json()
    network = {"network_sent_bytes", "network_received_bytes"}
    assert set(used) == {"cpu_s", "memory_bytes", "memory_peak_bytes", "disk_bytes", "pids", "host_tasks", "limits", *network}
    assert [used[name] for name in network] == [0, 0]
    assert (used["cpu_s"], used["memory_bytes"], used["memory_peak_bytes"], used["disk_bytes"], used["host_tasks"]) == (0.5, 1, 2, 4, 3)
    assert used["limits"] == (await http.get(url)).json()["limits"]
    assert used["pids"] in {0, 1}  # the kernel that is kept ready may be there by now


@cases(
    "body,status,code,field",
    [
        ({"template": "nope"}, 404, "template_not_found", "template"),
        ({"template": 3}, 400, "invalid_request", "template"),
        ({"template": "base\0"}, 404, "template_not_found", "template"),
        ({"tempalte": "base"}, 400, "invalid_request", "tempalte"),
        ({"timeout": 0}, 400, "invalid_request", None),
        ({"timeout": "300"}, 400, "invalid_request", "timeout"),
        ({"timeout": 100, "persistent": True}, 400, "invalid_request", "timeout"),
        ({"idle_timeout": 1}, 400, "invalid_request", "idle_timeout"),
        ({"file_ids": ["file-none"]}, 404, "file_not_found", None),
        ({"snapshot": "s"}, 400, "invalid_request", "template"),
        ({"env": {"A": 1}}, 400, "invalid_request", "env.A"),
        ({"env": {"A": "\0"}}, 400, "invalid_request", None),
        ({"env": {str(n): "x" * 100 for n in range(4000)}}, 400, "invalid_request", "bytes"),
        ({"metadata": {"a": {"b": "c"}}}, 400, "invalid_request", "metadata.a"),
        ({"limits": {"gpus": 1}}, 400, "invalid_request", "limits.gpus"),
        ({"isolation": "container"}, 403, "forbidden", "isolation"),
        ({"isolation": "docker"}, 400, "invalid_request", "isolation"),
        ({"network": {"mode": "open"}}, 400, "invalid_request", "network.mode"),
        ({"network": "open"}, 400, "invalid_request", "network.mode"),
        ({"network": 3}, 400, "invalid_request", "network"),
        ({"network": [3]}, 400, "invalid_request", "network.allow.0"),
        ({"network": {"mode": "packages", "allow": ["a.com"]}}, 400, "invalid_request", "network.entries"),
        ({"network": {"mode": "none", "deny": ["a.com"]}}, 400, "invalid_request", "network.entries"),
        ({"network": {"mode": "packages", "packages": False}}, 400, "invalid_request", "network.packages"),
        ({"network": [f"{n}.a.com" for n in range(1001)]}, 400, "invalid_request", "network.entries"),
        ({"public_ports": "yes"}, 400, "invalid_request", "public_ports"),
        ({"mask_request_host": "a/b"}, 400, "invalid_request", "mask_request_host"),
        ({"mask_request_host": ""}, 400, "invalid_request", "mask_request_host"),
        ({"name": "a b"}, 400, "invalid_request", None),
        ([], 400, "invalid_request", "body"),
        (None, 400, "invalid_request", "body"),
    ],
)
async def test_invalid_create_request_is_refused_and_creates_nothing(
    at: Bench,
    http: httpx.AsyncClient,
    body: object,
    status: int,
    code: str,
    field: str | None,
) -> None:
    if isinstance(body, dict):
        body = {"template": "base", **body}
    found = problem(await post(http, "/v1/sandboxes", body), status, code)
    assert field is None or field in {*found["fields"], found["fields"].get("field")}
    assert at.sandboxes.held == 0


@cases(
    "content,kind",
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"timeout": NaN}', "application/json"),
        (b'{"timeout": ' + b"9" * 10_000 + b"}", "application/json"),
        (b'{"template": "base"}', "text/plain"),
    ],
)
async def test_invalid_bodies_are_refused(at: Bench, http: httpx.AsyncClient, content: bytes, kind: str) -> None:
    problem(await http.post("/v1/sandboxes", content=content, headers={"Content-Type": kind}), 400, "invalid_request")
    assert at.sandboxes.held == 0


async def test_unknown_ids_and_routes(http: httpx.AsyncClient) -> None:
    for id_ in ("sb-aaaa-aaaaaaaaaaaaaaaa", "x", "..", "%00", "%ff", "a" * 2000):
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/usage"), ("GET", "/processes"), ("GET", "/files?path=/")):
            response = await http.request(method, f"/v1/sandboxes/{id_}{path}")
            assert response.status_code in {400, 404, 405}, response.text  # the client makes another path of '..'
            assert response.headers["content-type"] == "application/problem+json"
    problem(await http.get("/v2"), 404, "not_found")
    response = await http.put("/v1/sandboxes")
    problem(response, 405, "invalid_request")
    assert response.headers["allow"]


async def test_a_client_that_goes_away_while_it_creates_leaves_nothing(at: Bench, http: httpx.AsyncClient) -> None:
    release = at.driver.faults.hold("boot")
    asking = asyncio.create_task(http.post("/v1/sandboxes", json={"template": "base"}))
    await at.driver.faults.reach("boot")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0.1)
    release.set()
    await until(lambda: at.sandboxes.held == 0)
    assert at.driver.leftovers() == []


async def test_a_service_that_is_full_says_when_to_come_back(at: Bench, http: httpx.AsyncClient) -> None:
    release = at.driver.faults.hold("prepare")
    asking = [asyncio.create_task(http.post("/v1/sandboxes", json={"template": "base"})) for _ in range(50)]
    await until(lambda: at.sandboxes.held == 50)
    response = await http.post("/v1/sandboxes", json={"template": "base"})
    assert problem(response, 503, "busy")["retryable"] is True
    assert int(response.headers["retry-after"]) > 0
    release.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {201}


async def test_one_that_is_persistent_has_no_timeout_until_it_is_given_one(http: httpx.AsyncClient) -> None:
    made = (await http.post("/v1/sandboxes", json={"template": "base", "persistent": True, "idle_timeout": 60, "limits": {"pids": 32768}})).json()
    assert (made["persistent"], made["timeout"], made["expires_at"], made["idle_timeout"]) == (True, None, None, 60)
    url = f"/v1/sandboxes/{made['id']}"
    given = (await http.patch(url, json={"timeout": 100, "idle_timeout": 0})).json()
    assert (given["persistent"], given["timeout"], given["idle_timeout"]) == (False, 100, None)
    assert (await http.patch(url, json={"persistent": True})).json()["expires_at"] is None
    problem(await http.patch(url, json={"persistent": True, "timeout": 1}), 400, "invalid_request")


async def test_name_belongs_to_one_live_sandbox_and_is_found_by_the_list(http: httpx.AsyncClient) -> None:
    asked = {"template": "base", "name": "worker", "limits": {"pids": 32768}}
    made = (await http.post("/v1/sandboxes", json=asked)).json()
    assert problem(await http.post("/v1/sandboxes", json=asked), 409, "conflict")["fields"] == {"name": "worker", "sandbox": made["id"]}
    other = (await http.post("/v1/sandboxes", json={**asked, "name": "other"})).json()
    listed = (await http.get("/v1/sandboxes", params={"name": "worker"})).json()["sandboxes"]
    assert [box["id"] for box in listed] == [made["id"]]
    url = f"/v1/sandboxes/{other['id']}"
    problem(await http.patch(url, json={"name": "worker"}), 409, "conflict")
    assert (await http.patch(url, json={"name": "renamed"})).json()["name"] == "renamed"
    problem(await http.patch(url, json={"name": made["id"]}), 400, "invalid_request")
    await http.delete(f"/v1/sandboxes/{made['id']}")
    assert (await http.get("/v1/sandboxes", params={"name": "worker"})).json()["sandboxes"] == []
    ended = (await http.get("/v1/sandboxes", params={"name": "worker", "ended": "true"})).json()["sandboxes"]
    assert [box["id"] for box in ended] == [made["id"]]


async def test_a_create_that_is_sent_twice_is_done_once(at: Bench, http: httpx.AsyncClient) -> None:
    body = {"template": "base", "limits": {"pids": 32768}}
    first, second = [await http.post("/v1/sandboxes", json=body, headers={"Idempotency-Key": "one"}) for _ in range(2)]
    assert (first.status_code, first.json()) == (201, second.json())
    problem(await http.post("/v1/sandboxes", json={**body, "name": "n"}, headers={"Idempotency-Key": "one"}), 409, "conflict")
    problem(await http.post("/v1/sandboxes", json=body, headers={"Idempotency-Key": "a b"}), 400, "invalid_request")
    assert at.sandboxes.held == 1


async def test_reserved_metadata_cannot_be_set_changed_or_removed(at: Bench, http: httpx.AsyncClient) -> None:
    forged = await http.post("/v1/sandboxes", json={"template": "base", "metadata": {"sandlot.purpose": "program"}})
    assert problem(forged, 400, "invalid_request")["fields"] == {"field": "metadata", "name": "sandlot.purpose"}
    sandbox = await at.sandboxes.create(OPERATOR, replace(BASE, metadata={"sandlot.purpose": "session", "k": "v"}))
    url = f"/v1/sandboxes/{sandbox.id}"
    for words in ({"sandlot.purpose": "program"}, {"sandlot.other": "x"}):
        problem(await http.patch(url, json={"metadata": words, "timeout": 1000}), 400, "invalid_request")
    assert (await http.get(url)).json()["metadata"] == {"sandlot.purpose": "session", "k": "v"}
    for words in ({"a": "b"}, {"sandlot.purpose": "session", "a": "b"}):
        changed = (await http.patch(url, json={"metadata": words})).json()
        assert changed["metadata"] == {"sandlot.purpose": "session", "a": "b"}, "a change takes none of them, and may say them again"


@pytest.mark.real_guest
async def test_listening_ports_are_listed_without_the_service_port(http: httpx.AsyncClient, url: str) -> None:
    assert (await http.get(f"{url}/ports")).json() == {"ports": []}, "what the service itself needs inside is not told"
    listen = "import socket, time; s = socket.create_server(('127.0.0.1', 8000)); print(flush=True); time.sleep(60)"
    async with http.stream("POST", f"{url}/processes", json={"argv": ["python3", "-c", listen]}, headers={"Accept": "text/event-stream"}) as ran:
        async for line in ran.aiter_lines():
            if line == "event: output":
                break
        assert (await http.get(f"{url}/ports")).json() == {"ports": [{"port": 8000, "address": "127.0.0.1", "url": None}]}
    assert (await http.get("/v1/sandboxes/sb-none/ports")).status_code == 404


async def test_live_sandbox_of_a_name_is_returned_instead_of_created(http: httpx.AsyncClient) -> None:
    request = {"template": "base", "name": "worker", "if_exists": "return", "limits": {"pids": 32768}}
    answers = await asyncio.gather(*(http.post("/v1/sandboxes", json=request) for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    url = f"/v1/sandboxes/{answers[0].json()['id']}"
    assert (await http.post(f"{url}/pause")).json()["state"] == "paused"
    again = await http.post("/v1/sandboxes", json={**request, "template": "none", "metadata": {"a": "b"}})
    assert (again.status_code, again.json()["state"], again.json()["metadata"]) == (200, "running", {})
    await http.delete(url)
    assert (await http.post("/v1/sandboxes", json=request, headers={"Idempotency-Key": "k"})).status_code == 201
    assert (await http.post("/v1/sandboxes", json=request, headers={"Idempotency-Key": "k"})).status_code == 201, "repeated"
    for invalid in ({**request, "name": None}, {**request, "if_exists": "ignore"}):
        problem(await http.post("/v1/sandboxes", json=invalid), 400, "invalid_request")


async def test_network_policy_has_short_forms_in_requests_and_is_an_object_in_responses(http: httpx.AsyncClient) -> None:
    closed: dict[str, object] = {"mode": "none", "entries": [], "packages": None, "generation": 0}
    listed = {"mode": "allowlist", "entries": [{"allow": True, "rule": "*.github.com"}], "packages": True, "generation": 0}
    full = {"mode": "internet", "allow": ["A.example.com."], "deny": ["**.example.com:*"], "packages": False}
    entries = [{"allow": False, "rule": "**.example.com:*"}, {"allow": True, "rule": "a.example.com"}]
    for network, shown in (
        ("none", closed),
        ({"mode": "none"}, closed),
        (["*.GitHub.com"], listed),
        (full, {"mode": "internet", "entries": entries, "packages": False, "generation": 0}),
    ):
        created = await http.post("/v1/sandboxes", json={"template": "base", "network": network})
        assert (created.status_code, created.json()["network"]) == (201, shown)


@cases(
    "rule",
    [
        *("*", "*.com", "**", "a.*.com", "http://example.com", "a..com", f"{'a' * 64}.com", "example.com:0", "example.com:65536", "10.0.0.1/33"),
        *("BREW example.com", "10.0.0.1", "0x7f.1", "GET example.com:443/v1", ""),
    ],
)
async def test_bad_rule_is_refused_with_its_position_and_an_example_and_changes_nothing(at: Bench, http: httpx.AsyncClient, rule: str) -> None:
    network = {"mode": "allowlist", "deny": ["example.com"], "allow": ["example.org", rule]}
    found = problem(await http.post("/v1/sandboxes", json={"template": "base", "network": network}), 400, "invalid_request")
    assert (found["fields"]["field"], found["fields"]["position"]) == ("network.allow", 1)
    assert found["fields"]["rule"] in {rule, "127.0.0.1"}
    assert RULE_EXAMPLE in found["hint"]
    assert at.sandboxes.held == 0


async def test_address_in_disguise_and_international_name_are_shown_in_their_canonical_form(http: httpx.AsyncClient) -> None:
    rules = ["0x08.8.8.8", "8.8.4", "\u0431\u0435\u043b.\u0440\u0444"]
    created = await http.post("/v1/sandboxes", json={"template": "base", "network": rules})
    assert [entry["rule"] for entry in created.json()["network"]["entries"]] == ["8.8.8.8", "8.8.0.4", "xn--90ais.xn--p1ai"]


async def test_update_replaces_the_network_policy_or_changes_nothing(http: httpx.AsyncClient, url: str) -> None:
    updates: list[tuple[object, dict[str, object]]] = [
        (["example.com"], {"mode": "allowlist", "entries": [{"allow": True, "rule": "example.com"}], "packages": True}),
        ("none", {"mode": "none", "entries": [], "packages": None}),
        (
            {"mode": "internet", "deny": ["example.com"], "packages": False},
            {"mode": "internet", "entries": [{"allow": False, "rule": "example.com"}], "packages": False},
        ),
    ]
    for number, (network, shown) in enumerate(updates, 1):
        updated = await http.patch(url, json={"network": network})
        assert (updated.status_code, updated.json()["network"]) == (200, {**shown, "generation": number})
    before = (await http.get(url)).json()
    for wrong, field in ((["example.com", "*.com"], "network.allow"), ({"mode": "none", "allow": ["a.com"]}, "network.entries")):
        found = problem(await http.patch(url, json={"network": wrong, "name": "other"}), 400, "invalid_request")
        assert found["fields"]["field"] == field
    assert (await http.get(url)).json() == before
    assert (await http.patch(url, json={"name": "other"})).json()["network"] == before["network"]
    assert (await http.delete(url)).status_code == 204
    problem(await http.patch(url, json={"network": "none"}), 410, "sandbox_ended")
    problem(await http.get(f"{url}/network"), 410, "sandbox_ended")
    problem(await http.patch("/v1/sandboxes/sb-none", json={"network": "none"}), 404, "sandbox_not_found")
