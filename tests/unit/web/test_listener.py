"""Sockets that are nobody else's, and a parser that nobody can make hold memory."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandlot.model.errors import HostError, InvalidRequestError
from sandlot.model.programs import Result, Status
from sandlot.model.records import WebhookRecord
from sandlot.server.composition import RunningService
from sandlot.server.settings import Settings
from sandlot.testing.stores.webhooks import webhook
from sandlot.web import listener
from tests.support.http import NO_TLS, unix_client
from tests.support.scripted_app import serve_scripted
from tests.support.scripted_node import ScriptedNode
from tests.support.until import until


def test_the_unix_socket_is_its_owners_whatever_the_umask(folder: Path) -> None:
    path = folder / "s.sock"
    before = os.umask(0)
    try:
        with listener.unix_socket(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert [each.name for each in folder.iterdir()] == ["s.sock"]
        assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_a_socket_that_was_left_is_replaced(folder: Path) -> None:
    path = folder / "s.sock"
    listener.unix_socket(path).close()
    with listener.unix_socket(path), socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))


def test_a_path_that_linux_cannot_take(folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="107"):
        listener.unix_socket(folder / ("x" * 100))
    with pytest.raises(HostError):
        listener.unix_socket(folder / "missing" / "s")


def test_a_client_that_hung_up_is_known_though_nothing_was_read(subtests: pytest.Subtests) -> None:
    for family in (socket.AF_UNIX, socket.AF_INET):
        with subtests.test(family=family):
            if family == socket.AF_UNIX:
                ours, theirs = socket.socketpair()
            else:
                with listener.tcp_socket("127.0.0.1", 0) as tcp:
                    tcp.setblocking(True)
                    theirs = socket.create_connection(tcp.getsockname())
                    ours, _ = tcp.accept()
            with ours, theirs:
                theirs.sendall(b"x" * 1000)
                assert not listener.has_hung_up(ours)
                theirs.close()
                assert listener.has_hung_up(ours)
            assert listener.has_hung_up(ours), "closed by us"


def test_peer_of_another_user_is_not_the_owner(folder: Path) -> None:
    path = folder / "s"
    folder.chmod(0o755)
    with listener.unix_socket(path) as tcp:
        path.chmod(0o666)
        tcp.setblocking(True)
        child = os.fork()
        if child == 0:
            os.setuid(1000)
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(str(path))
            peer.recv(1)
            os._exit(0)
        accepted, _ = tcp.accept()
        with accepted:
            assert not listener.is_owner(accepted)
        os.waitpid(child, 0)


async def test_a_head_without_end_is_refused(served: RunningService, local: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for head in (
        b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 200_000,
        b"GET /" + b"y" * 200_000,
        b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 30_000,
    ):
        with subtests.test(head=head[:30]):
            reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
            writer.write(head)
            answered = await reader.read(1000)
            assert answered.startswith(b"HTTP/1.1 431 ")
            writer.close()
            assert (await local.get("/healthz")).status_code == 200


async def test_a_head_that_does_not_come_is_not_waited_for(served: RunningService, monkeypatch: pytest.MonkeyPatch, local: httpx.AsyncClient) -> None:
    monkeypatch.setattr(listener, "HEAD_TIMEOUT_S", 0.2)
    for begun in (b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nhost: x\r\n"):
        reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
        writer.write(begun)
        assert await reader.read() == b""
        writer.close()
    assert (await local.get("/healthz")).status_code == 200


async def received(reader: asyncio.StreamReader) -> bytes:
    """Return the next bytes of a response, and fail if the service has closed the connection."""
    data = await reader.read(65536)
    assert data
    return data


async def test_pipelined_requests_are_all_answered(served: RunningService, local: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 50)
    answered = b""
    while answered.count(b'"status":"ok"') < 50:
        answered += await received(reader)
    writer.close()
    assert (await local.get("/healthz")).status_code == 200


async def test_head_that_begins_during_a_response_has_the_full_time_after_the_response(
    scripted: ScriptedNode, served: RunningService, monkeypatch: pytest.MonkeyPatch, local: httpx.AsyncClient
) -> None:
    monkeypatch.setattr(listener, "HEAD_TIMEOUT_S", 0.5)
    found: asyncio.Future[WebhookRecord] = asyncio.Future()
    scripted.script("webhooks.get", found)
    reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
    writer.write(b"GET /v1/webhooks/w HTTP/1.1\r\nhost: x\r\n\r\nGET /hea")
    await asyncio.sleep(0.7)  # the time-out passes while the operation runs, and would pass again soon after the response
    monkeypatch.setattr(listener, "HEAD_TIMEOUT_S", 30)
    found.set_result(webhook())
    answered = b""
    while b'"delivered":0' not in answered:
        answered += await received(reader)
    await asyncio.sleep(0.6)
    writer.write(b"lthz HTTP/1.1\r\nhost: x\r\n\r\n")
    while b'"status":"ok"' not in answered:
        answered += await received(reader)
    writer.close()
    assert (await local.get("/healthz")).status_code == 200


async def test_head_that_stays_incomplete_after_a_response_is_not_waited_for(
    served: RunningService, monkeypatch: pytest.MonkeyPatch, local: httpx.AsyncClient
) -> None:
    monkeypatch.setattr(listener, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /hea")
    answered = await reader.read()  # up to the end: the service closes the connection
    writer.close()
    assert answered.count(b"HTTP/1.1 200 ") == 1
    assert b'"status":"ok"' in answered
    assert (await local.get("/healthz")).status_code == 200


async def test_what_is_no_http_is_refused(served: RunningService, local: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
    assert (await reader.read(1000)).startswith(b"HTTP/1.1 400 ")
    writer.close()
    assert (await local.get("/healthz")).status_code == 200


@pytest.fixture
async def small(scripted: ScriptedNode, folder: Path) -> AsyncIterator[tuple[RunningService, str, int]]:
    """A service that takes eight connections on each of its sockets, and where its TCP is."""
    tcp = listener.tcp_socket("127.0.0.1", 0)
    host, port = tcp.getsockname()
    async with serve_scripted(scripted, folder, Settings(max_connections=8), [tcp]) as service:
        yield service, host, port


async def test_excess_connection_gets_busy_and_other_sockets_are_unaffected(small: tuple[RunningService, str, int]) -> None:
    service, host, port = small
    held = [await asyncio.open_connection(host, port) for _ in range(8)]
    reader, writer = await asyncio.open_connection(host, port)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")  # to its end: it was closed
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in head
    assert (json.loads(body)["code"], json.loads(body)["retryable"]) == ("busy", True)
    writer.close()
    async with unix_client(service.settings.socket) as local:
        assert (await local.get("/healthz")).status_code == 200
    for _, other in held:
        other.close()
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, verify=NO_TLS) as client:

        async def answers() -> bool:
            return (await client.get("/healthz")).status_code == 200

        await until(answers)


async def test_stalled_client_is_disconnected_and_a_slow_one_is_not(
    scripted: ScriptedNode, served: RunningService, local: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "STALL_TIMEOUT_S", 0.5)
    large = Result(Status.COMPLETED, "bash", "a" * 2_000_000, "", 0, None, 0.1)
    scripted.script("programs.run", large, large)
    body = b'{"language": "bash", "code": "..."}'
    request = b"POST /v1/programs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    slow, writing = await asyncio.open_unix_connection(str(served.settings.socket), limit=1)
    writing.write(request)
    stalled = socket.socket(socket.AF_UNIX)
    stalled.connect(str(served.settings.socket))
    stalled.sendall(request)
    await until(lambda: scripted.services.buffers.taken_bytes >= 2 * 1_500_000)
    taken = b""
    while taken.count(b"a") < 2_000_000:
        taken += await slow.read(50_000)
        await asyncio.sleep(0.02)
    writing.close()
    await until(lambda: scripted.services.buffers.taken_bytes == 0)
    left = b""
    while piece := await asyncio.to_thread(stalled.recv, 1 << 20):
        left += piece
    assert 0 < len(left) < 2_000_000
    stalled.close()
    assert (await local.get("/healthz")).status_code == 200
