"""Watched directories: a watch that is closed while it waits, and watchers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from sandlot import AsyncClient, AsyncSandbox, FileEvent, Sandbox, SandboxInfo, UnavailableError, WatcherInfo
from tests.unit.sdk.scripted import SANDBOX, Reply, Script, events

BASE = "/v1/sandboxes/sb-abcd-abcdefghijklmnop/files"
LOG = {"execution": "e1", "stream": "stdout", "text": "x"}
CREATED = ("created", {"path": "/workspace/a", "kind": "file"})


@pytest.fixture
def silent() -> Iterator[Reply]:
    """An event stream that says that the watch began, has one event, and then stays silent."""
    ended = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield from events(("watching", {"by": "inotify"}), CREATED).pieces or ()
        ended.wait()

    yield Reply(headers={"Content-Type": "text/event-stream"}, pieces=pieces())
    ended.set()


def test_close_from_another_thread_ends_a_waiting_watch(service: Script, sandbox: Sandbox, silent: Reply) -> None:
    service.say(silent)
    watch = sandbox.files.watch()
    assert (watch.by, next(watch)) == ("inotify", FileEvent("created", "/workspace/a"))
    waiting = threading.Event()

    def wait() -> list[FileEvent]:
        waiting.set()
        return list(watch)

    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(wait)
        waiting.wait()
        watch.close()
        assert rest.result(timeout=30) == []
    watch.close()
    assert list(watch) == []
    service.say(Reply(200, {"watchers": []}))
    assert sandbox.files.watchers.list() == []


async def close_a_waiting_watch(url: str) -> list[FileEvent]:
    """Close a watch while a task waits for its next event, and return the events of the task."""
    async with AsyncClient(url=url) as client, AsyncSandbox(client, SandboxInfo(SANDBOX["id"], "running", "base")).files.watch() as watch:
        assert await anext(watch) == FileEvent("created", "/workspace/a")

        async def wait() -> list[FileEvent]:
            return [event async for event in watch]

        rest = asyncio.create_task(wait())
        await asyncio.sleep(0)  # the task reads from now on
        await watch.aclose()
        return await asyncio.wait_for(rest, 30)


async def test_close_from_another_task_ends_a_waiting_watch(service: Script, silent: Reply) -> None:
    service.say(silent)
    assert await close_a_waiting_watch(service.url) == []


def test_close_ends_a_waiting_watch_in_uvloop(service: Script, silent: Reply) -> None:
    service.say(silent)
    assert uvloop.run(close_a_waiting_watch(service.url)) == []


async def test_closed_watch_leaves_other_connections_alone(service: Script, async_sandbox: AsyncSandbox) -> None:
    service.say(events(("watching", {"by": "scan"}), CREATED))
    watch = await async_sandbox.files.watch()
    assert [event.kind async for event in watch] == ["created"]
    closed = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield from events(("entry", LOG)).pieces or ()
        closed.wait()
        yield from events(("ended", {})).pieces or ()

    # The watch was read to its end, so the next request uses its connection.
    service.say(Reply(headers={"Content-Type": "text/event-stream"}, pieces=pieces()))
    entries = async_sandbox.follow_logs()
    assert (await anext(entries)).text == "x"
    await watch.aclose()
    closed.set()
    assert [entry async for entry in entries] == []


def test_broken_watch_is_an_error(service: Script, sandbox: Sandbox) -> None:
    service.say(events(("watching", {"by": "inotify"}), cut=True))
    with sandbox.files.watch() as watch, pytest.raises(UnavailableError):
        next(watch)


def test_watchers_are_created_read_and_deleted(service: Script, sandbox: Sandbox) -> None:
    watchers = sandbox.files.watchers
    raw = {"id": "w1", "path": "/workspace", "recursive": True, "by": "inotify"}
    service.say(
        Reply(201, raw), Reply(200, {"watchers": [raw]}), Reply(200, {"events": [{"event": "created", "path": "/a", "kind": "file"}]}), Reply(204)
    )
    made = watchers.create(recursive=True)
    assert [made] == watchers.list() == [WatcherInfo("w1", "/workspace", recursive=True, by="inotify")]
    assert watchers.take(made.id) == [FileEvent("created", "/a")]
    watchers.delete(made.id)
    assert [(seen.method, seen.path.removeprefix(BASE)) for seen in service.seen] == [
        ("POST", "/watchers"),
        ("GET", "/watchers"),
        ("POST", "/watchers/w1/events"),
        ("DELETE", "/watchers/w1"),
    ]
