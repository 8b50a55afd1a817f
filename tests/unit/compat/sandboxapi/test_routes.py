"""SandboxAPI's routes on a service in the test's process: what its callers never send, whose sessions are whose, and what ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandlot.core.lifecycle.idle import TICK_S
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.ports import Exit, ExitReason
from tests.support.cases import cases
from tests.support.clock import ManualClock
from tests.support.service import BASE, bench, client
from tests.support.until import until
from tests.unit.compat.shared import SharedBench, ok

HERE = "/sandboxapi"


@pytest.fixture
async def session(http: httpx.AsyncClient) -> str:
    return str(ok(await http.post(f"{HERE}/v1/sessions", json={"language": "python3"}), 201)["id"])


def refused(response: httpx.Response, status: int) -> str:
    """The message of a failure, which must be one in the vendor's shape."""
    assert response.headers["content-type"] == "application/json"
    told = ok(response, status)
    assert told["request_id"] == response.headers["x-request-id"]
    assert told["error"]
    return str(told["message"])


def gone(response: httpx.Response) -> None:
    assert ok(response, 404)["error"] == "session not found"


async def run(http: httpx.AsyncClient, session: str, code: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    done: dict[str, Any] = ok(await http.post(f"{HERE}/v1/sessions/{session}/execute", json={"code": code, **more}))
    return done


async def test_malformed_requests_are_refused_in_the_vendors_format(http: httpx.AsyncClient, session: str) -> None:
    refused(await http.put(f"{HERE}/v1/execute", json={}), 405)
    for content in (b"", b"{", b"[]", b"null", b"\xff", b'{"code": 1, "language": "bash"}', b'"x"', b"[" * 5000):
        for path in ("/v1/execute", "/v1/sessions", f"/v1/sessions/{session}/execute", f"/v1/sessions/{session}/install"):
            refused(await http.post(HERE + path, content=content, headers={"Content-Type": "application/json"}), 400)
    for body in ({"language": "cobol", "code": ""}, {"language": "bash", "code": "", "timeout": 301}, {"language": "bash", "code": "", "surplus": 1}):
        refused(await http.post(f"{HERE}/v1/execute", json=body), 400)
    for asked in ({"language": "java"}, {"language": "bash", "idle_ttl": 1}, {}):
        refused(await http.post(f"{HERE}/v1/sessions", json=asked), 400)
    assert "python3 (python, py)" in refused(await http.post(f"{HERE}/v1/execute", json={"language": "cobol", "code": ""}), 400)
    assert "/v1/execute" in refused(await http.post(f"{HERE}/v1/sessions", json={"language": "go"}), 400)


async def all_gone(http: httpx.AsyncClient, session: str) -> None:
    url = f"{HERE}/v1/sessions/{session}"
    gone(await http.get(url))
    gone(await http.delete(url))
    gone(await http.post(f"{url}/close"))
    gone(await http.post(f"{url}/execute", json={"code": "1"}))
    gone(await http.post(f"{url}/install", json={"manager": "pip", "packages": ["a"]}))
    gone(await http.post(f"{url}/packages", json={"manager": "pip", "packages": ["a"]}))


@cases("id_", ["x", "sb-aaaa-aaaaaaaaaaaaaaaa", "%00", "x" * 2000, "%20"])
async def test_unknown_session_ids_are_not_found(http: httpx.AsyncClient, id_: str) -> None:
    await all_gone(http, id_)


async def test_sandboxes_of_other_apis_are_no_sessions(http: httpx.AsyncClient, at: SharedBench) -> None:
    sandbox = await at.sandbox()
    await all_gone(http, sandbox.id)
    forged = await http.post("/v1/sandboxes", json={"metadata": {"sandlot.api": "sandboxapi", "sandlot.purpose": "session"}})
    assert (forged.status_code, forged.json()["code"]) == (400, "invalid_request")
    bare = await at.sandboxes.create(OPERATOR, replace(BASE, metadata={"sandlot.api": "sandboxapi", "sandlot.purpose": "session"}))
    await all_gone(http, bare.id)
    assert ok(await http.get(f"{HERE}/v1/sessions"))["sessions"] == []


async def test_session_is_found_by_its_id_only(http: httpx.AsyncClient, session: str) -> None:
    ok(await http.patch(f"/v1/sandboxes/{session}", json={"name": "mine"}))
    await all_gone(http, "mine")
    assert ok(await http.get(f"{HERE}/v1/sessions/{session}"))["id"] == session


async def test_session_of_another_key_is_not_found(at: SharedBench) -> None:
    secrets = [(await at.service.api_keys.create(name))[1] for name in ("one", "other")]
    async with at.client(secrets[0]) as mine, at.client(secrets[1]) as theirs:
        made = ok(await mine.post(f"{HERE}/v1/sessions", json={"language": "bash"}), 201)["id"]
        await all_gone(theirs, made)
        assert ok(await theirs.get(f"{HERE}/v1/sessions"))["sessions"] == []
        assert ok(await mine.get(f"{HERE}/v1/sessions/{made}"))["id"] == made


async def test_idle_session_ends_and_used_session_stays(folder: Path) -> None:
    clock = ManualClock()
    async with bench(folder, clock=clock) as here, client(here.service) as http:
        made = [ok(await http.post(f"{HERE}/v1/sessions", json={"language": "python3", "idle_ttl": 60}), 201)["id"] for _ in range(2)]
        sandboxes = [here.sandboxes.find(id_, OPERATOR) for id_ in made]
        assert [sandbox.idle_timeout_s for sandbox in sandboxes] == [60, 60]
        clock.advance(50)
        before = ok(await http.get(f"{HERE}/v1/sessions/{made[1]}"))["expires_at"]
        await run(http, made[1], "1")
        assert ok(await http.get(f"{HERE}/v1/sessions/{made[1]}"))["expires_at"] > before
        while not sandboxes[0].ended.is_set():
            clock.advance(TICK_S)  # the idle monitor reads once per tick
            await run(http, made[1], "1")
        await all_gone(http, made[0])
        assert not sandboxes[1].end_requested.is_set()
        assert (await run(http, made[1], "print(1)"))["stdout"] == "1\n"


async def test_end_of_the_session_fails_its_running_code(http: httpx.AsyncClient, session: str, at: SharedBench) -> None:
    sandbox: Sandbox = at.sandboxes.find(session, OPERATOR)
    running = asyncio.create_task(http.post(f"{HERE}/v1/sessions/{session}/execute", json={"code": "import time; time.sleep(60)"}))
    await until(lambda: sandbox.activity.held > 0)
    sandbox.request_end(Exit(ExitReason.OOM, "it took too much memory"))
    told = await running
    gone(told)
    assert "memory" in told.json()["message"]
