"""Terminals of the SDK against a real service: used by both clients, left, gone back to, refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.model.errors import ConflictError, NotFoundError, UnavailableError
from sandlot.sdk import AsyncSandbox, Sandbox
from sandlot.sdk.config import Target
from sandlot.sdk.websocket import address, options
from sandlot.server.process import serve_in_background
from sandlot.web import listener
from tests.support.service import Bench, bench


def test_where_a_socket_is(subtests: pytest.Subtests) -> None:
    for base, expected in (
        ("http://host:8080", "ws://host:8080/v1/x?y=1"),
        ("https://host/prefix/of/a/proxy", "wss://host/prefix/of/a/proxy/v1/x?y=1"),
        ("http://sandlot", "ws://sandlot/v1/x?y=1"),
    ):
        with subtests.test(base=base, expected=expected):
            assert address(Target(base), "/v1/x?y=1") == expected


def test_the_key_goes_along_and_proxies_are_for_others() -> None:
    assert options(Target("https://host", api_key="k"))["additional_headers"] == {"Authorization": "Bearer k"}
    assert options(Target("https://host"))["proxy"] is True
    assert options(Target("http://localhost:1"))["proxy"] is None
    assert options(Target("http://sandlot", socket=Path("/s")))["proxy"] is None


@pytest.mark.real_guest
async def test_asynchronous_and_synchronous(tmp_path: Path) -> None:
    async with bench(tmp_path) as at, serve_in_background(at.service, [listener.unix_socket(at.service.settings.socket)]):
        id_ = (await at.sandbox()).id
        await _asynchronous(at, id_)
        await asyncio.to_thread(_synchronous, at, id_)


async def _asynchronous(at: Bench, id_: str) -> None:
    sandbox = await AsyncSandbox.connect(id_, url=f"unix://{at.service.settings.socket}")
    async with sandbox.pty.create("stty -echo; echo ready; read x; stty size; read x; exit 3", rows=30, cols=90) as screen:
        assert screen.pid is not None
        assert await screen.read() == b"ready\r\n"
        await screen.resize(10, 20)
        await screen.send("\n")
        assert await screen.read() == b"10 20\r\n"
        left_at = screen.offset
    assert (await sandbox.commands.get(screen.id)).running, "it outlives who looks"
    async with sandbox.pty.connect(screen.id, offset=left_at) as again, sandbox.pty.connect(screen.id) as other:
        await again.send_eof()
        assert (await again.wait()).exit_code == 3
        assert b"".join([piece async for piece in other]) == b"ready\r\n10 20\r\n"
        assert other.result == again.result
        assert not await other.kill()
    plain = await sandbox.commands.run(["sleep", "4361"], background=True)
    with pytest.raises(ConflictError):
        await sandbox.pty.connect(plain.id)
    with pytest.raises(NotFoundError):
        await sandbox.pty.connect("0" * 32)
    await plain.kill()
    await sandbox.aclose()


def _synchronous(at: Bench, id_: str) -> None:
    sandbox = Sandbox.connect(id_, url=f"unix://{at.service.settings.socket}")
    with sandbox.pty.create(["cat"]) as screen:
        screen.send(b"typed\n")
        shown = b""
        while b"typed\r\ntyped" not in shown:
            shown += screen.read() or b""
        screen.kill("SIGTERM")
        assert screen.wait().exit_code == 143
        assert list(screen) == []
    handle = sandbox.commands.run(["cat"], stdin=True, background=True)
    assert [handle.send_stdin("once", offset=0) for _ in range(2)] == [4, 4]
    handle.close_stdin()
    assert handle.wait().stdout == "once"
    again = sandbox.commands.connect(handle.id, stdout_from=2)
    assert again.wait().stdout == "ce"
    assert again.stdout_offset == handle.stdout_offset == 4
    done = sandbox.commands.run("echo 1 > /workspace/made", track=["/workspace"])
    assert done.files is not None
    assert [(file.path, file.created) for file in done.files] == [("/workspace/made", True)]
    sandbox.close()


async def test_a_service_that_ends_is_told_and_one_that_is_not_there(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        async with serve_in_background(at.service, [listener.unix_socket(at.service.settings.socket)]):
            sandbox = await AsyncSandbox.connect((await at.sandbox()).id, url=f"unix://{at.service.settings.socket}")
            screen = await sandbox.pty.create("sleep 4362")
        with pytest.raises(UnavailableError):
            await screen.read()
        with pytest.raises(UnavailableError):
            await sandbox.pty.connect(screen.id)
        await screen.aclose()
        await sandbox.aclose()
