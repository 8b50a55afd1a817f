"""Watched folders by E2B's own clients: asked again and again by the one, told as it happens by the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import httpx
import pytest
from e2b import AsyncSandbox, FileNotFoundException, FilesystemEvent, FilesystemEventType, NotFoundException, Sandbox, SandboxException
from e2b.sandbox_sync.filesystem.watch_handle import WatchHandle

from tests.compat.e2b.conftest import Options
from tests.support.tcpservice import TcpService, tcp_service
from tests.support.until import until as eventually

PATIENCE_S = 20.0
Kind = tuple[str, FilesystemEventType]

CREATE, WRITE, REMOVE, RENAME, CHMOD = (
    FilesystemEventType.CREATE,
    FilesystemEventType.WRITE,
    FilesystemEventType.REMOVE,
    FilesystemEventType.RENAME,
    FilesystemEventType.CHMOD,
)


def kinds(events: Sequence[FilesystemEvent]) -> list[Kind]:
    return [(event.name, event.type) for event in events]


def until(handle: WatchHandle, *wanted: Kind) -> list[FilesystemEvent]:
    """What has happened, once all that was."""
    events: list[FilesystemEvent] = []
    deadline = time.monotonic() + PATIENCE_S
    while not set(wanted) <= set(kinds(events)):
        assert time.monotonic() < deadline, events
        events += handle.get_new_events()
    return events


def test_folder_events_are_polled(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("w/sub")
    handle = sandbox.files.watch_dir("w")
    assert handle.get_new_events() == []
    sandbox.files.write("w/file", "by the client")
    told = until(handle, ("file", CREATE), ("file", WRITE))
    assert {name for name, _ in kinds(told)} == {"file"}, "what a file is called until it is whole is nobody's business"
    sandbox.commands.run("echo >> w/file; mv w/file w/other; rm w/other; echo > w/sub/deep")
    told = until(handle, ("file", WRITE), ("file", RENAME), ("other", CREATE), ("other", REMOVE))
    assert not any("deep" in name for name, _ in kinds(told))
    assert all(event.entry is None for event in told)
    handle.stop()
    with pytest.raises(SandboxException):
        handle.get_new_events()


def test_events_of_a_write_can_be_taken_directly_after_it(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("direct")
    handle = sandbox.files.watch_dir("direct")
    for number in range(5):
        sandbox.files.write(f"direct/{number}", "x")
        assert kinds(handle.get_new_events()) == [(str(number), CREATE), (str(number), CHMOD), (str(number), WRITE)]
    sandbox.commands.run("rm direct/0")
    assert ("0", REMOVE) in kinds(handle.get_new_events())
    handle.stop()


def test_events_of_a_write_in_a_new_folder_can_be_taken_directly_after_it(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("growing")
    handle = sandbox.files.watch_dir("growing", recursive=True)
    for number in range(5):
        sandbox.files.make_dir(f"growing/{number}")
        sandbox.files.write(f"growing/{number}/file", "x")
        assert {(str(number), CREATE), (f"{number}/file", CREATE), (f"{number}/file", WRITE)} <= set(kinds(handle.get_new_events()))
        sandbox.commands.run(f"mkdir growing/{number}/by; echo x > growing/{number}/by/program")
        assert {(f"{number}/by/program", CREATE), (f"{number}/by/program", WRITE)} <= set(kinds(handle.get_new_events()))
    handle.stop()


def test_recursive_watch_reports_nested_entries(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("r/sub")
    handle = sandbox.files.watch_dir("r", recursive=True, include_entry=True, allow_network_mounts=True)
    sandbox.files.write("r/sub/deep/file", "12345")
    told = until(handle, ("sub/deep/file", CREATE))
    entry = next(event.entry for event in told if event.name == "sub/deep/file")
    assert entry is not None
    assert (entry.path, entry.size) == ("/home/user/r/sub/deep/file", 5)
    handle.stop()
    with pytest.raises(FileNotFoundException):
        sandbox.files.watch_dir("nowhere")


def test_linked_folder_is_watched_under_the_links_name(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir real; ln -s real link")
    handle = sandbox.files.watch_dir("link")
    sandbox.files.write("link/file", "x")
    until(handle, ("file", CREATE))
    handle.stop()


def test_folder_events_are_streamed(options: Options, sandbox: Sandbox) -> None:
    async def watch() -> None:
        same = await AsyncSandbox.connect(sandbox.sandbox_id, **options)
        await same.files.make_dir("s")
        told: list[FilesystemEvent] = []
        ended: list[Exception | None] = []

        def told_all(*wanted: Kind) -> Callable[[], bool]:
            return lambda: set(wanted) <= set(kinds(told))

        handle = await same.files.watch_dir("s", on_event=told.append, on_exit=ended.append, timeout=0, recursive=True, include_entry=True)
        await same.files.write("s/file", "x")
        await same.commands.run("mkdir s/a; echo > s/a/b; rm s/file")
        await eventually(told_all(("file", CREATE), ("a/b", CREATE), ("file", REMOVE)))
        assert next(event.entry for event in told if event.name == "a/b" and event.entry is not None).size <= 1
        await handle.stop()  # type: ignore[no-untyped-call]  # the client has no type for it
        await eventually(lambda: len(ended) > 0)
        await same.files.remove("s")

    asyncio.run(watch())


def test_volumes_can_be_watched(options: Options, service: TcpService) -> None:
    with httpx.Client(base_url=service.url, headers={"X-API-KEY": options["api_key"]}) as http:
        volume = http.post("/v1/volumes", json={"name": "watched"}).raise_for_status().json()["id"]
        with Sandbox.create(volume_mounts={"/mnt/v": "watched"}, **options) as made:
            for allowed in (True, False):
                handle = made.files.watch_dir("/mnt/v", allow_network_mounts=allowed)
                made.files.write(f"/mnt/v/{allowed}", "x")
                until(handle, (str(allowed), CREATE), (str(allowed), WRITE))
                handle.stop()
        assert http.delete(f"/v1/volumes/{volume}").status_code == 204


def test_watcher_ends_with_the_service_and_can_be_recreated() -> None:
    with tcp_service(isolation="container") as service:
        url = f"{service.url}/e2b"
        sandbox = Sandbox.create(template="base", api_key=service.key("mine"), api_url=url, sandbox_url=url)
        sandbox.files.make_dir("w")
        handle = sandbox.files.watch_dir("w")
        service.end()
        service.start()
        with pytest.raises(NotFoundException, match="watcher"):
            handle.get_new_events()
        again = sandbox.files.watch_dir("w")
        sandbox.files.write("w/file", "x")
        until(again, ("file", CREATE), ("file", WRITE))
