"""PandaStack's routes on a service in the test's process: what its client never sends, whose sandboxes are whose, and what ends."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from sandlot.compat import common
from sandlot.compat.pandastack import exec_protocol
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.sandboxes import SandboxInfo
from tests.support.cases import cases
from tests.support.until import until
from tests.unit.compat.shared import SharedBench, ok

HERE = "/pandastack/v1"


@pytest.fixture
async def sandbox(at: SharedBench) -> Sandbox:
    return await at.sandbox()


@pytest.fixture
async def url(sandbox: Sandbox) -> str:
    return f"{HERE}/sandboxes/{sandbox.id}"


def refused(response: httpx.Response, status: int) -> str:
    """The message of a failure, which must be one in the vendor's shape."""
    assert response.headers["content-type"] == "application/json"
    told = ok(response, status)
    assert told["request_id"] == response.headers["x-request-id"]
    assert isinstance(told["error"], str)
    assert told["error"]
    return str(told["error"])


async def run(http: httpx.AsyncClient, url: str, cmd: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    done: dict[str, Any] = ok(await http.post(f"{url}/exec", json={"cmd": cmd, **more}))
    return done


@cases("path", ["apps", "functions", "schedules", "databases", "me/tokens", "preview-repos"])
async def test_unsupported_calls_are_refused_in_the_vendors_format(http: httpx.AsyncClient, path: str) -> None:
    for method in ("GET", "POST"):
        assert "Sandlot does not have" in refused(await http.request(method, f"{HERE}/{path}", json={}), 501)
    for other in ("apps/x", "billing", "repos/1/preview-env", "orgs", "sandboxes/x/mcp"):
        assert "move-from-pandastack" in refused(await http.get(f"{HERE}/{other}"), 404)
    refused(await http.put(f"{HERE}/sandboxes", json={}), 405)


async def test_malformed_requests_are_refused_in_the_vendors_format(http: httpx.AsyncClient, url: str) -> None:
    posts = ("exec", "exec/stream", "repl/sessions", "repl/sessions/default/run", "fork", "fork-tree", "promote")
    for content in (b"{", b"[]", b"\xff", b'{"cmd": 1, "code": 1, "language": 1, "metadata": 1, "count": "1", "tree_id": 1}', b'"x"', b"[" * 5000):
        for path in (f"{HERE}/sandboxes", f"{HERE}/volumes", *(f"{url}/{post}" for post in posts)):
            refused(await http.post(path, content=content, headers={"Content-Type": "application/json"}), 400)
        if b"cmd" not in content:
            refused(await http.patch(f"{url}/lifecycle", content=content, headers={"Content-Type": "application/json"}), 400)
    bodies: list[dict[str, Any]] = [
        *({"surplus": 1}, {"metadata": {"a": 1}}, {"metadata": {"sandlot.api": "x"}}, {"ttl_seconds": 0}, {"ttl_seconds": 1.5}),
        *({"persistent": "yes"}, {"volumes": [{}]}, {"volumes": [{"name": "../x"}]}, {"cpu": 1}, {"memory_mb": 512}),
    ]
    for body in bodies:
        assert refused(await http.post(f"{HERE}/sandboxes", json=body), 400)
    assert "base" in refused(await http.post(f"{HERE}/sandboxes", json={"template": "unknown"}), 404)
    refused(await http.post(f"{HERE}/sandboxes", json={"template": "unknown", "from_snapshot": "x"}), 404)
    refused(await http.post(f"{HERE}/sandboxes", json={"from_snapshot": "x"}), 404)
    for count in (0, 17, -1):
        refused(await http.post(f"{url}/fork-tree", json={"count": count}), 400)
    for cmd in ("", "  ", "a\0b"):
        refused(await http.post(f"{url}/exec", json={"cmd": cmd}), 400)
    refused(await http.post(f"{url}/exec", json={"cmd": "x" * (4 << 20) + "x"}), 413)
    refused(await http.post(f"{url}/exec", json={"cmd": "x" * (9 << 20)}), 413)
    refused(await http.post(f"{url}/exec", json={"cmd": "true", "timeout_seconds": -1}), 400)
    for path in ("fs", "fs/stat"):
        refused(await http.get(f"{url}/{path}"), 400)
        refused(await http.get(f"{url}/{path}", params={"path": "a\0b"}), 400)
        refused(await http.get(f"{url}/{path}", params={"path": "/none"}), 404)
    refused(await http.get(f"{url}/fs", params={"path": "/etc"}), 400)
    refused(await http.get(f"{url}/logs", params={"stream": "all"}), 400)
    refused(await http.get(f"{url}/logs", params={"tail": "5"}), 400)
    refused(await http.post(f"{HERE}/volumes", json={"name": "v", "size_mb": 65537}), 400)
    refused(await http.post(f"{url}/promote", json={"cleanup_siblings": True}), 409)


async def test_ended_sandbox_is_not_found_and_delete_is_idempotent(http: httpx.AsyncClient, url: str) -> None:
    assert (await http.delete(url)).status_code == 204
    assert (await http.delete(url)).status_code == 204
    for path in ("", "/lifecycle", "/ports", "/repl/sessions", "/fs?path=/etc/passwd", "/fs/dir", "/fs/stat?path=/etc"):
        refused(await http.get(url + path), 404)
    for path in ("pause", "resume", "hibernate", "wake", "fork", "fork-tree", "promote", "snapshots", "repl/sessions"):
        refused(await http.post(f"{url}/{path}"), 404)
    refused(await http.post(f"{url}/exec", json={"cmd": "true"}), 404)
    refused(await http.post(f"{url}/exec/stream", json={"cmd": "true"}), 404)
    assert (await http.get(f"{url}/logs")).status_code == 200  # the log outlives it


async def test_sandboxes_of_another_key_are_not_found(at: SharedBench) -> None:
    secrets = [(await at.service.api_keys.create(name))[1] for name in ("one", "other")]
    async with at.client(secrets[0]) as mine, at.client(secrets[1]) as theirs, at.client() as stranger:
        refused(await stranger.get(f"{HERE}/me"), 401)
        made = ok(await mine.post(f"{HERE}/sandboxes", json={"template": "base"}), 201)["id"]
        refused(await theirs.delete(f"{HERE}/sandboxes/{made}"), 404)
        refused(await theirs.get(f"{HERE}/sandboxes/{made}/logs?follow=true"), 404)
        assert ok(await theirs.get(f"{HERE}/sandboxes"))["items"] == []
        assert ok(await theirs.get(f"{HERE}/me"))["name"] == "other"
        assert ok(await mine.get(f"{HERE}/sandboxes/{made}"))["id"] == made


async def test_lifecycle_is_updated(http: httpx.AsyncClient, url: str, sandbox: Sandbox) -> None:
    assert ok(await http.patch(f"{url}/lifecycle", json={})) == ok(await http.get(f"{url}/lifecycle"))
    assert ok(await http.patch(f"{url}/lifecycle", json={"ttl_seconds": 77}))["ttl_seconds"] == 77
    assert ok(await http.patch(f"{url}/lifecycle", json={"persistent": True})) == {"ttl_seconds": 0, "persistent": True, "idle_seconds": 0}
    assert sandbox.spec.timeout_s is None
    refused(await http.patch(f"{url}/lifecycle", json={"ttl_seconds": 77}), 400)
    refused(await http.patch(f"{url}/lifecycle", json={"ttl_seconds": 77, "persistent": True}), 400)
    assert ok(await http.patch(f"{url}/lifecycle", json={"ttl_seconds": 78, "persistent": False}))["ttl_seconds"] == 78
    await http.patch(f"{url}/lifecycle", json={"persistent": True})
    assert ok(await http.patch(f"{url}/lifecycle", json={"persistent": False}))["ttl_seconds"] == 3600
    refused(await http.patch(f"{url}/lifecycle", json={"ttl_seconds": 0}), 400)


async def events(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    async with http.stream("POST", f"{url}/exec/stream", json=body) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        raw = (await answer.aread()).decode("ascii")
    told = []
    for block in raw.strip().split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n")
            told.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return told


async def test_stream_of_an_ended_sandbox_has_neither_exit_nor_error(http: httpx.AsyncClient, url: str, sandbox: Sandbox) -> None:
    async with http.stream("POST", f"{url}/exec/stream", json={"cmd": "echo begun; sleep 60"}) as answer:
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(2)] == ["event: stdout", 'data: {"chunk": "begun\\n"}']
        sandbox.request_end(Exit(ExitReason.OOM, "it took too much memory"))
        rest = [line async for line in lines if line]
    assert [line.startswith(": ") and "memory" in line for line in rest] == [True]


async def test_disconnect_ends_the_command(http: httpx.AsyncClient, url: str, sandbox: Sandbox) -> None:
    for path in ("exec", "exec/stream"):
        left = asyncio.create_task(http.post(f"{url}/{path}", json={"cmd": "sleep 61.5"}))
        await until(lambda: sandbox.activity.held > 0)
        left.cancel()
        await asyncio.wait([left])
        await until(lambda: sandbox.activity.held == 0)

    async def ended() -> bool:
        return all(not each["running"] for each in (await http.get(f"/v1/sandboxes/{sandbox.id}/processes")).json()["processes"])

    await until(ended)


async def test_listing_of_a_large_folder_is_refused(http: httpx.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "MAX_ENTRIES", 3)
    await run(http, url, "cd /tmp; touch a b c d")
    assert "find" in refused(await http.get(f"{url}/fs/dir", params={"path": "/tmp"}), 413)


async def test_log_lines_are_whole(http: httpx.AsyncClient, url: str, sandbox: Sandbox) -> None:
    await run(http, url, "printf 'one\\ntwo'; echo bad >&2")
    assert (await http.get(f"{url}/logs")).text == "one\ntwo\nbad\n"
    assert (await http.get(f"{url}/logs?stream=stdout&follow=0")).text == "one\ntwo\n"
    lines: list[str] = []
    async with http.stream("GET", f"{url}/logs?follow=true") as answer:
        following = answer.aiter_lines()
        while len(lines) < 3:
            if (line := await anext(following)).startswith("data: "):
                lines.append(json.loads(line.removeprefix("data: "))["line"])
        await run(http, url, "printf half; sleep 0.1; printf ' line\\nrest'")
        sandbox.request_end(Exit(ExitReason.KILLED, "a test"))
        lines += [json.loads(line.removeprefix("data: "))["line"] async for line in following if line.startswith("data: ")]
    assert lines == ["one", "two", "bad", "half line", "rest"]


async def test_abilities_that_the_isolation_lacks_are_refused(http: httpx.AsyncClient, url: str) -> None:
    for path in ("fork", "fork-tree", "snapshots", "hibernate"):
        assert "isolation" in refused(await http.post(f"{url}/{path}"), 501)
    refused(await http.post(f"{url}/fork", json={"metadata": {"sandlot.tree": "x"}}), 400)


async def test_wake_time_counts_against_the_default_timeout(
    at: SharedBench, http: httpx.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client waits for both: a command that says no time is ended before that is over."""
    sandboxes = at.node.sandboxes
    ensure_running = sandboxes.ensure_running

    async def slowly(principal: Principal, sandbox: str) -> SandboxInfo:
        await asyncio.sleep(0.2)  # a wake that takes time
        return await ensure_running(principal, sandbox)

    ok(await http.post(f"{url}/repl/sessions"), 201)
    monkeypatch.setattr(exec_protocol, "DEFAULT_EXEC_S", 1.6)
    monkeypatch.setattr(exec_protocol, "DEFAULT_STREAM_S", 1.6)
    monkeypatch.setattr(sandboxes, "ensure_running", slowly)
    session = ok(await http.get(f"{url}/repl/sessions"))["items"][0]["id"]
    *told, asked, streamed = await asyncio.gather(
        http.post(f"{url}/exec", json={"cmd": "sleep 60"}),
        http.post(f"{url}/repl/sessions/{session}/run", json={"code": "import time; time.sleep(60)"}),
        http.post(f"{url}/exec", json={"cmd": "sleep 60", "timeout_seconds": 1.7}),
        events(http, url, {"cmd": "sleep 60"}),
    )
    for text in (*(refused(each, 500) for each in told), str(streamed[-1][1]["error"])):
        found = re.search(r"ended after ([0-9.]+) s", text)
        assert found is not None, text
        assert 0 < float(found[1]) <= 1.4
    assert "ended after 1.7 s" in refused(asked, 500)


@pytest.mark.parametrize("field", ["size_mb", "cpu", "memory_mb"])
@pytest.mark.parametrize("number", [str(10**400), "9" * 4_299, "9" * 5_000])
async def test_huge_limits_of_a_build_are_refused(http: httpx.AsyncClient, field: str, number: str) -> None:
    response = await http.post("/pandastack/v1/templates/build", data={"name": "a", "image_ref": "base", field: number})
    assert response.status_code == 400, response.text
    assert field in response.text
