"""Rests over HTTP: paused, resumed by the next request or by word, changed meanwhile; and what an isolation that cannot says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.support.cases import cases
from tests.support.clock import ManualClock
from tests.support.http import post, problem
from tests.support.service import Bench, bench, client
from tests.support.until import until

BOX = {"template": "base", "limits": {"pids": 32768}}


async def made(http: httpx.AsyncClient, **more: object) -> str:
    """The address of a new sandbox."""
    answer = await http.post("/v1/sandboxes", json={**BOX, **more})
    assert answer.status_code == 201, answer.text
    return f"/v1/sandboxes/{answer.json()['id']}"


async def state(http: httpx.AsyncClient, url: str) -> str:
    word: str = (await http.get(url)).json()["state"]
    return word


async def said(http: httpx.AsyncClient, url: str, command: str) -> str:
    """What a command writes."""
    answer = await http.post(f"{url}/processes", json={"command": command})
    assert answer.status_code == 200, answer.text
    word: str = answer.json()["stdout"]
    return word


async def ticks_beyond(http: httpx.AsyncClient, url: str, ticks: int) -> bool:
    return int(await said(http, url, "cat /workspace/ticks | wc -l")) > ticks


async def happened(http: httpx.AsyncClient, url: str) -> list[str]:
    """What happened to a sandbox."""
    return [event["type"] for event in (await http.get("/v1/events", params={"sandbox": url.rpartition("/")[2]})).json()["events"]]


async def test_paused_sandbox_is_resumed_by_the_next_request(http: httpx.AsyncClient) -> None:
    url = await made(http, timeout=600)
    ticking = {"command": "echo > /workspace/ticks; while sleep 0.05; do echo >> /workspace/ticks; done", "background": True}
    assert (await http.post(f"{url}/processes", json=ticking)).status_code == 201
    await until(lambda: ticks_beyond(http, url, 0))
    paused = (await http.post(f"{url}/pause")).json()
    assert paused["state"] == "paused"
    assert datetime.fromisoformat(paused["expires_at"]) > datetime.now(UTC) + timedelta(days=6)
    assert (await http.post(f"{url}/pause")).json() == paused
    assert await said(http, url, "echo here") == "here\n"
    running = (await http.get(url)).json()
    assert (running["state"], running["timeout"]) == ("running", 600)
    assert datetime.fromisoformat(running["expires_at"]) < datetime.now(UTC) + timedelta(seconds=601)
    assert (await http.post(f"{url}/resume")).json() == running
    ticks = int(await said(http, url, "wc -l < /workspace/ticks"))
    await until(lambda: ticks_beyond(http, url, ticks))
    assert await happened(http, url) == ["sandbox.created", "sandbox.paused", "sandbox.resumed"]


async def test_reading_or_changing_a_suspended_sandbox_does_not_resume_it(http: httpx.AsyncClient) -> None:
    url = await made(http, timeout=600)
    assert (await http.post(f"{url}/pause")).status_code == 200
    assert [box["state"] for box in (await http.get("/v1/sandboxes?state=paused")).json()["sandboxes"]] == ["paused"]
    used = (await http.get(f"{url}/usage")).json()
    assert (used["memory_bytes"], used["pids"]) == (1, None)
    asked = {"metadata": {"a": "b"}, "idle_timeout": 60, "timeout": 1000, "on_timeout": "pause", "auto_resume": False}
    before = (await http.get(url)).json()
    changed = (await http.patch(url, json=asked)).json()
    assert changed == {**before, **asked}
    problem(await http.patch(url, json={"timeout": -1}), 400, "invalid_request")
    problem(await http.patch(url, json={"metadata": {"sandlot.x": "y"}}), 400, "invalid_request")
    assert (await http.get(url)).json() == changed
    resumed = (await http.post(f"{url}/resume")).json()
    assert resumed["state"] == "running"
    left_s = (datetime.fromisoformat(resumed["expires_at"]) - datetime.now(UTC)).total_seconds()
    assert 600 < left_s <= 1000
    assert (await http.post(f"{url}/pause")).status_code == 200
    assert (await http.delete(url)).status_code == 204
    assert (await happened(http, url))[-1] == "sandbox.ended"


async def test_change_of_limits_resumes_a_suspended_sandbox(at: Bench, http: httpx.AsyncClient) -> None:
    url = await made(http)
    assert (await http.post(f"{url}/pause")).status_code == 200
    changed = (await http.patch(url, json={"limits": {"cpus": 0.5}, "metadata": {"a": "b"}})).json()
    assert (changed["state"], changed["limits"]["cpus"], changed["metadata"]) == ("running", 0.5, {"a": "b"})
    assert len(at.driver.booted[0].changes) == 1


async def test_sandbox_without_auto_resume_refuses_requests_with_a_hint(http: httpx.AsyncClient) -> None:
    url = await made(http, auto_resume=False)
    assert (await http.get(url)).json()["auto_resume"] is False
    assert (await http.post(f"{url}/pause")).status_code == 200
    for refused in (
        await http.post(f"{url}/processes", json={"command": "true"}),
        await http.post(f"{url}/code", json={"code": "1"}),
        await http.get(f"{url}/files", params={"path": "/workspace"}),
        await http.patch(url, json={"limits": {"cpus": 0.5}}),
    ):
        told = problem(refused, 409, "sandbox_paused")
        assert "Resume the sandbox" in told["hint"]
        assert told["fields"]["state"] == "paused"
    assert await state(http, url) == "paused"
    resumed = (await http.post(f"{url}/resume", json={"timeout": 77})).json()
    assert (resumed["state"], resumed["timeout"]) == ("running", 77)
    assert await said(http, url, "echo here") == "here\n"
    assert (await http.post(f"{url}/pause")).status_code == 200
    assert (await http.patch(url, json={"auto_resume": True})).json()["state"] == "paused"
    assert await said(http, url, "echo here") == "here\n"


async def test_timeout_pauses_a_sandbox_on_request(folder: Path) -> None:
    clock = ManualClock()
    async with bench(folder, clock=clock) as at, client(at.service) as http:
        url = await made(http, timeout=100, on_timeout="pause")
        doomed = await made(http, timeout=100)

        async def is_over() -> bool:
            return await state(http, url) == "paused" and await state(http, doomed) == "stopped"

        clock.advance(101)
        await until(is_over)
        assert await said(http, url, "echo here") == "here\n"
        assert (await http.get(url)).json()["timeout"] == 100
        assert await happened(http, url) == ["sandbox.created", "sandbox.paused", "sandbox.resumed"]


async def test_sandbox_that_is_suspended_too_long_is_removed(folder: Path) -> None:
    clock = ManualClock()
    async with bench(folder, clock=clock) as at, client(at.service) as http:
        url = await made(http, timeout=100)
        assert (await http.post(f"{url}/pause")).status_code == 200
        clock.advance(6 * 24 * 3600)
        assert await state(http, url) == "paused"
        clock.advance(24 * 3600 + 1)

        async def is_over() -> bool:
            return await state(http, url) == "stopped"

        await until(is_over)
        assert "suspended" in (await http.get(url)).json()["exit"]["detail"]


VERBS: Mapping[str, object] = {"pause": None, "resume": None, "hibernate": None, "forks": {}, "snapshots": {}}
"""With the least that each takes."""


async def test_one_that_has_ended_and_one_that_there_is_not_do_nothing(http: httpx.AsyncClient) -> None:
    url = await made(http)
    assert (await http.delete(url)).status_code == 204
    for verb, body in VERBS.items():
        problem(await http.post(f"{url}/{verb}", json=body), 410, "sandbox_ended")
        problem(await http.post(f"/v1/sandboxes/sb-aaaa-aaaaaaaaaaaaaaaa/{verb}", json=body), 404, "sandbox_not_found")
    for verb in ("promote", "fork-tree"):
        problem(
            await http.request("GET" if verb == "fork-tree" else "POST", f"/v1/sandboxes/sb-aaaa-aaaaaaaaaaaaaaaa/{verb}"), 404, "sandbox_not_found"
        )


async def test_operation_that_an_isolation_does_not_support_is_refused_with_the_reason(http: httpx.AsyncClient) -> None:
    url = await made(http)
    for verb, body in (("hibernate", None), ("snapshots", {"kind": "memory"}), ("forks", {})):
        told = problem(await http.post(f"{url}/{verb}", json=body), 501, "unsupported")
        assert told["hint"]
        assert told["fields"]["reason"]
        assert await state(http, url) == "running"
    assert await said(http, url, "echo here") == "here\n"
    assert await happened(http, url) == ["sandbox.created"]


@cases(
    "path, bodies",
    [
        (
            "resume",
            [
                {"timeout": 0},
                {"timeout": 0.5},
                {"timeout": True},
                {"timeout": -1},
                {"timeout": "60"},
                {"timeout": 10**400},
                {"timeout": 10**9},
                {"timeot": 60},
                [],
            ],
        ),
        ("forks", [{"count": 0}, {"count": 101}, {"count": "2"}, {"count": 1.5}, {"timeout": 0}, {"timeout": -1}, {"forks": 2}, None]),
        ("forks", [{"metadata": {"sandlot.a": "b"}}, {"env": {"A": 1}}]),
        ("snapshots", [{"kind": "disk"}, {"kind": None}, {"name": "a b"}, {"name": ""}, {"name": 3}, {"nam": "x"}, []]),
    ],
)
async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient, path: str, bodies: list[object]) -> None:
    url = await made(http)
    assert (await http.post(f"{url}/pause")).status_code == 200
    for body in bodies:
        problem(await post(http, f"{url}/{path}", body), 400, "invalid_request")
    assert await state(http, url) == "paused"


@cases("body", [{"on_timeout": "sleep"}, {"on_timeout": None}, {"auto_resume": "yes"}])
async def test_a_rest_that_there_is_not_is_refused(at: Bench, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    problem(await post(http, "/v1/sandboxes", {**BOX, **body}), 400, "invalid_request")
    assert at.sandboxes.held == 0


async def test_one_that_is_nobodys_fork_is_a_tree_of_its_own(http: httpx.AsyncClient) -> None:
    url = await made(http, name="lonely")
    box = (await http.get(url)).json()
    tree = (await http.get(f"{url}/fork-tree")).json()
    branch = {"id": box["id"], "parent": None, "state": "running", "name": "lonely", "created_at": box["created_at"]}
    assert tree == {"root": box["id"], "sandboxes": [branch]}
    problem(await http.post(f"{url}/promote"), 409, "conflict")
    assert await state(http, url) == "running"
