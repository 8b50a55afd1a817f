"""Watchers over HTTP: what happens in a folder is kept for who asks later, and what a process was started with for who lists it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from sandlot.core.execution import processes
from sandlot.core.execution.helpers import is_helper
from sandlot.core.files import watch
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.files import FolderWatch
from tests.support.http import problem
from tests.support.service import Bench
from tests.support.until import until


@pytest.fixture
def sandbox(at: Bench, url: str) -> Sandbox:
    return at.sandboxes.find(url.rpartition("/")[2], OPERATOR)


async def run(http: httpx.AsyncClient, url: str, command: str) -> None:
    assert (await http.post(f"{url}/processes", json={"command": command})).json()["exit_code"] == 0


async def watched(http: httpx.AsyncClient, url: str, **more: Any) -> str:  # noqa: ANN401 - JSON
    made = await http.post(f"{url}/files/watchers", json={"path": "/workspace/w", **more})
    assert made.status_code == 201, made.text
    assert set(made.json()) == {"id", "path", "recursive", "by"}
    return f"{url}/files/watchers/{made.json()['id']}"


async def taken(http: httpx.AsyncClient, watcher: str, *wanted: tuple[str, str]) -> Sequence[tuple[str, str]]:
    """What a watcher tells until all that is waited for was told: events and paths."""
    told: list[tuple[str, str]] = []

    async def whole() -> bool:
        answer = await http.post(f"{watcher}/events")
        assert answer.status_code == 200, answer.text
        told.extend((event["event"], event["path"]) for event in answer.json()["events"])
        return set(wanted) <= set(told)

    await until(whole)
    return told


@pytest.mark.real_guest
async def test_events_of_a_watcher_are_kept_and_returned_once(http: httpx.AsyncClient, url: str, sandbox: Sandbox) -> None:
    await run(http, url, "mkdir -p w/sub")
    watcher = await watched(http, url, recursive=True)
    assert sandbox.activity.held == 0, "it keeps no sandbox from being idle"
    await run(http, url, "echo > w/a; mv w/a w/sub/b; rm w/sub/b")
    told = await taken(http, watcher, ("created", "/workspace/w/a"), ("moved", "/workspace/w/sub/b"), ("removed", "/workspace/w/sub/b"))
    assert told[0] == ("created", "/workspace/w/a")
    assert (await http.post(f"{watcher}/events")).json() == {"events": []}
    assert [each["path"] for each in (await http.get(f"{url}/files/watchers")).json()["watchers"]] == ["/workspace/w"]
    assert (await http.delete(watcher)).status_code == 204
    problem(await http.post(f"{watcher}/events"), 404, "watcher_not_found")
    problem(await http.delete(watcher), 404, "watcher_not_found")
    assert (await http.get(f"{url}/files/watchers")).json() == {"watchers": []}


@pytest.mark.real_guest
async def test_events_of_a_change_can_be_taken_at_once(http: httpx.AsyncClient, url: str) -> None:
    await run(http, url, "mkdir w")
    watcher = await watched(http, url)
    for number in range(5):
        path = f"/workspace/w/{number}"
        await http.put(f"{url}/files/content", params={"path": path}, content=b"x")
        assert path in [event["path"] for event in (await http.post(f"{watcher}/events")).json()["events"]]


async def cut(sandbox: Sandbox) -> None:
    """End whatever watches."""
    async with sandbox.connection() as link:
        for program in (info for info in await link.processes.list() if is_helper(info.argv)):
            await link.processes.signal(program.process, int(signal.SIGKILL))


@pytest.mark.real_guest
async def test_interrupted_watcher_starts_again_and_reports_an_overflow(at: Bench, http: httpx.AsyncClient, url: str, sandbox: Sandbox) -> None:
    await run(http, url, "mkdir w")
    watcher = await watched(http, url)
    await cut(sandbox)
    await taken(http, watcher, ("overflow", ""))
    await run(http, url, "echo > w/seen")
    await taken(http, watcher, ("created", "/workspace/w/seen"))
    assert len(at.node.watches.watches.of(sandbox)) == 1
    await cut(sandbox)
    await run(http, url, "rm -r w")
    assert (await taken(http, watcher, ("gone", "/workspace/w")))[-1] == ("gone", "/workspace/w")
    assert at.node.watches.watches.of(sandbox) == {}


@pytest.mark.real_guest
async def test_watchers_and_their_events_are_limited(
    at: Bench, http: httpx.AsyncClient, url: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MAX_WATCHERS", 2)
    monkeypatch.setattr(watch, "MAX_EVENTS", 5)
    await run(http, url, "mkdir w")
    watcher = await watched(http, url)
    await watched(http, url)
    problem(await http.post(f"{url}/files/watchers", json={"path": "/workspace/w"}), 429, "limit_exceeded")
    before = sandbox.buffers.taken_bytes
    await run(http, url, "for i in $(seq 9); do echo > w/$i; done")
    await until(lambda: all(each.full for each in at.node.watches.watches.of(sandbox).values()))
    assert sandbox.buffers.taken_bytes > before
    told = (await http.post(f"{watcher}/events")).json()["events"]
    assert (len(told), told[0]["event"], told[-1]["event"]) == (6, "created", "overflow")
    await http.delete(url)
    await until(lambda: (at.node.watches.watches.get(sandbox), sandbox.buffers.taken_bytes) == (None, 0))
    problem(await http.post(f"{watcher}/events"), 410, "sandbox_ended")


@pytest.mark.real_guest
async def test_closed_watch_ends_a_waiting_consumer(at: Bench, sandbox: Sandbox) -> None:
    watch = await at.node.watches.watch(OPERATOR, sandbox.id, "/workspace")
    assert sandbox.activity.held == 1
    waiting = asyncio.create_task(_ended(watch))
    await asyncio.sleep(0)
    await watch.aclose()
    assert await waiting
    assert await _ended(watch)
    assert sandbox.activity.held == 0


async def _ended(watch: FolderWatch) -> bool:
    return [event async for event in watch] == []


async def test_a_list_tells_what_a_process_was_started_with(at: Bench, http: httpx.AsyncClient, url: str, sandbox: Sandbox) -> None:
    body = {"command": "sleep 60", "background": True, "tag": "mine", "env": {"A": "b"}, "cwd": "/tmp"}
    process = (await http.post(f"{url}/processes", json=body)).json()["id"]
    for told in ((await http.get(f"{url}/processes")).json()["processes"][-1], (await http.get(f"{url}/processes/{process}")).json()):
        assert (told["id"], told["tag"], told["env"], told["cwd"]) == (process, "mine", {"A": "b"}, "/tmp")
    problem(await http.post(f"{url}/processes", json={**body, "tag": "x" * 300}), 400, "invalid_request")
    problem(await http.post(f"{url}/processes", json={**body, "tag": ""}), 400, "invalid_request")
    await http.delete(url)
    await until(lambda: (at.node.processes.state.get(sandbox), sandbox.buffers.taken_bytes) == (None, 0))


async def test_notes_are_bounded_and_those_of_what_has_ended_go_first(
    at: Bench, http: httpx.AsyncClient, url: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MAX_DETAILS_BYTES", 1000)
    await http.post(f"{url}/processes", json={"command": "sleep 60", "tag": "runs", "background": True})
    for tag in ("a", "b", "c"):
        await http.post(f"{url}/processes", json={"command": "true", "tag": tag})
    assert [note.tag for note in at.node.processes.state.of(sandbox).details.values()] == ["runs", "b", "c"]
    await http.post(f"{url}/processes", json={"command": "true", "tag": "large", "env": {"A": "x" * 20_000}})
    assert [(note.tag, note.env, note.spec is None) for note in at.node.processes.state.of(sandbox).details.values()][-1] == ("large", {}, True)
    assert sandbox.buffers.taken_bytes <= 1000
