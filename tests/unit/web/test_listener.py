"""Sockets that are nobody else's, and a parser that nobody can make hold memory."""

from __future__ import annotations

import asyncio
import base64
import gc
import inspect
import json
import os
import socket
import stat
import weakref
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest

from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ErrorCode, HostError, InvalidRequestError, NotFoundError
from sandlot.model.programs import ProgramResult, ProgramStatus
from sandlot.model.records import WebhookRecord
from sandlot.server.composition import RunningService
from sandlot.server.settings import Settings
from sandlot.testing.stores.webhooks import webhook
from sandlot.web import connections, listener, slices
from tests.support.http import unix_client
from tests.support.scripted_app import KnownKeys, serve_scripted
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


async def test_connection_without_a_complete_head_is_closed(
    served: RunningService, monkeypatch: pytest.MonkeyPatch, local: httpx.AsyncClient
) -> None:
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


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
UPGRADE = b"GET /v1/nowhere HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: %s\r\n%s\r\n"


class BusyNode(ScriptedNode):
    """A node whose operations end when the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[asyncio.Future[None]] = []

    def take(self, operation: str, bound: inspect.BoundArguments) -> asyncio.Future[None]:  # noqa: ARG002 - the same for all arguments
        self.running.append(asyncio.get_running_loop().create_future())
        return self.running[-1]

    def release(self, call: int) -> None:
        """End an operation with an error."""
        if not self.running[call].done():
            self.running[call].set_exception(NotFoundError("There is nothing.", code=ErrorCode.WEBHOOK_NOT_FOUND))


class SmallService:
    """A service on TCP that takes eight connections, two for each address and key. Networks of proxies: 127.0.7.0/24. Keys: a to d.

    Args:
        node: Its node.
        port: Its port on the loopback interface.
        socket: Its unix socket.
    """

    def __init__(self, node: BusyNode, port: int, socket: Path) -> None:
        self.node = node
        self.socket = socket
        self._port = port
        self._opened: list[asyncio.StreamWriter] = []

    async def open(self, address: str = "127.0.0.1", data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from an address of the loopback interface."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
        self._opened.append(writer)
        writer.write(data)
        return reader, writer

    async def busy(self, key: str, address: str = "127.0.0.1", more: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection whose request is not answered before it is released."""
        running = len(self.node.running)
        streams = await self.open(address, b"GET /v1/webhooks/w HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\n%s\r\n" % (key.encode(), more))
        await until(lambda: len(self.node.running) > running)
        return streams

    async def status(self, address: str = "127.0.0.1", key: str = "", more: bytes = b"") -> int:
        """Return the status of a request on a new connection. With a key, the route does not exist."""
        request = HEALTH if not key else b"GET /nowhere HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\n%s\r\n" % (key.encode(), more)
        reader, writer = await self.open(address, request)
        status = await status_of(reader)
        writer.close()
        return status

    def end(self) -> None:
        """End all operations and close all connections."""
        for call in range(len(self.node.running)):
            self.node.release(call)
        for each in self._opened:
            each.close()


async def status_of(reader: asyncio.StreamReader) -> int:
    """Return the status of the next response, which is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return int(head.split()[1])


@pytest.fixture
async def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallService]:
    monkeypatch.setattr(connections, "GRACE_S", 0.0)
    tcp = listener.tcp_socket("127.0.0.1", 0)
    keys = KnownKeys({name: Principal(owner=OwnerId(name * 12), name=name) for name in "abcd"})
    settings = Settings(max_connections=8, trusted_proxies=(ip_network("127.0.7.0/24"),))
    node = BusyNode()
    async with serve_scripted(node, folder, settings, [tcp], keys) as service:
        made = SmallService(node, tcp.getsockname()[1], service.settings.socket)
        yield made
        made.end()


async def test_thousands_of_idle_connections_affect_no_other_client(small: SmallService) -> None:
    in_use, _ = await small.busy("a", "127.0.1.1")
    for number in range(2500):
        await small.open(f"127.0.{1 + number % 5}.{1 + number % 7}")
    assert await small.status("127.0.2.1") == 200
    assert await small.status("127.0.3.1", key="a") == 404
    small.node.release(0)
    assert await status_of(in_use) == 404


async def test_requests_of_one_key_leave_connections_to_others(small: SmallService) -> None:
    for _ in range(2):
        await small.busy("a")
    reader, _ = await small.open(data=b"GET /nowhere HTTP/1.1\r\nhost: x\r\nx-api-key: a\r\n\r\n")
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    body = json.loads(await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])))
    assert head.startswith(b"http/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in head
    assert (body["code"], body["retryable"]) == ("busy", True)
    assert await small.status(key="b") == 404
    small.node.release(0)

    async def has_room() -> bool:
        return await small.status(key="a") == 404

    await until(has_room)


async def test_websockets_count_for_their_key(small: SmallService) -> None:
    for _ in range(2):
        await small.busy("a")
    more = b"sec-websocket-version: 13\r\nsec-websocket-key: %s\r\nx-api-key: " % base64.b64encode(bytes(16))
    refused, _ = await small.open(data=UPGRADE % (b"websocket", more + b"a\r\n"))
    unknown, _ = await small.open(data=UPGRADE % (b"websocket", more + b"b\r\n"))
    assert (await status_of(refused), await status_of(unknown)) == (503, 404)


async def test_excess_connection_gets_busy_and_other_sockets_are_unaffected(small: SmallService) -> None:
    held = [await small.busy(key) for key in "aabbccdd"]
    reader, _ = await small.open("127.0.0.2")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")  # to its end: it was closed
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in head.lower()
    assert (json.loads(body)["code"], json.loads(body)["retryable"]) == ("busy", True)
    async with unix_client(small.socket) as local:
        assert (await local.get("/healthz")).status_code == 200
    held[0][1].close()
    small.node.release(0)

    async def has_room() -> bool:
        reader, _ = await small.open("127.0.0.2", HEALTH)
        return (await reader.readuntil(b"\r\n")).split()[1] == b"200"

    await until(has_room)


async def test_requests_of_a_trusted_proxy_count_for_the_addresses_that_it_forwards(small: SmallService) -> None:
    for number in range(4):
        await small.open(f"127.0.7.{1 + number % 2}")
    forwarded = b"x-forwarded-for: 192.0.2.1, %s\r\n"
    for _ in range(2):
        await small.busy("a", "127.0.7.1", forwarded % b"198.51.100.7")
    assert await small.status("127.0.7.1", "a", forwarded % b"198.51.100.7") == 503, "the share of the key is used up"
    assert await small.status("127.0.7.1", "b", forwarded % b"198.51.100.7") == 404
    for address in ("127.0.0.1", "127.0.0.1"):  # nobody else can choose the address that counts
        await small.open(address, b"GET /healthz HTTP/1.1\r\n" + forwarded % b"198.51.100.9")
    assert await small.status("127.0.7.2", "b") == 404


async def test_upgrade_with_a_body_is_refused(served: RunningService, local: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    chunked = b"transfer-encoding: chunked\r\n"
    for protocol, more, body in (
        (b"websocket", b"content-length: 5\r\n", b""),
        (b"websocket", b"content-length: 5\r\n", b"hello"),
        (b"websocket", chunked, b""),
        (b"h2c", b"content-length: 40\r\n", HEALTH),
        (b"h2c", chunked, b""),
    ):
        with subtests.test(protocol=protocol, more=more, body=body):
            reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
            writer.write(UPGRADE % (protocol, b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + more) + body)
            answered = await reader.read()  # to its end: it was closed
            assert answered.startswith(b"HTTP/1.1 400 ")
            assert answered.count(b"HTTP/1.1") == 1
            assert json.loads(answered.partition(b"\r\n\r\n")[2])["code"] == "invalid_request"
            writer.close()
    assert (await local.get("/healthz")).status_code == 200


async def test_upgrade_to_another_protocol_is_answered_as_a_request(served: RunningService) -> None:
    reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
    for _ in range(2):
        writer.write(UPGRADE.replace(b"/v1/nowhere", b"/healthz") % (b"h2c", b""))
        assert await status_of(reader) == 200
    writer.close()


async def test_head_beyond_its_limit_is_refused_even_if_it_arrives_at_once(served: RunningService, subtests: pytest.Subtests) -> None:
    for size, status in ((60_000, 200), (70_000, 431)):
        for head in (b"GET /healthz?%s HTTP/1.1\r\nhost: x\r\n\r\n" % (b"y" * size), HEALTH[:-2] + b"x: %s\r\n\r\n" % (b"y" * size)):
            with subtests.test(size=size, head=head[:20]):
                reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
                writer.write(head)
                assert await status_of(reader) == status
                writer.close()


async def test_fields_after_a_body_have_the_limit_of_the_head(served: RunningService, subtests: pytest.Subtests) -> None:
    head = b"POST /v1/webhooks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    for rest in (b"x: y\r\n" * 30_000, b"x: " + b"y" * 70_000 + b"\r\nx: y\r\n", b"x: " + b"y" * 1_000_000):
        with subtests.test(rest=rest[:10]):
            reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
            writer.write(head + rest)
            assert await status_of(reader) == 431
            writer.close()


async def test_body_in_chunks_of_one_byte_does_not_block_other_clients(
    served: RunningService, local: httpx.AsyncClient, scripted: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "TURN_S", 0.0)  # one slice in each turn of the loop
    parts: list[int] = []
    parse = listener.SandlotHttpProtocol._parse  # noqa: SLF001

    def record(self: listener.SandlotHttpProtocol, data: bytes) -> None:
        parse(self, data)
        parts.append(self._parts)

    monkeypatch.setattr(listener.SandlotHttpProtocol, "_parse", record)
    refusal = NotFoundError("There is nothing.", code=ErrorCode.WEBHOOK_NOT_FOUND)
    scripted.script("webhooks.create", refusal)
    content = b'{"url": "https://example.com"}' + b" " * 100_000
    reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
    head = b"POST /v1/webhooks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + b"".join(b"1\r\n%c\r\n" % each for each in content) + b"0\r\n\r\n")
    assert await status_of(reader) == 404
    writer.close()
    assert sum(parts) == len(content)
    assert max(parts) <= listener.SMALL_SLICE_BYTES // 6 + 1
    assert (await local.get("/healthz")).status_code == 200


@pytest.mark.parametrize("request_", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["idle", "after a request"])
async def test_closed_connections_leave_nothing_for_the_garbage_collector(
    served: RunningService, monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    lost: list[weakref.ref[listener.SandlotHttpProtocol]] = []
    connection_lost = listener.SandlotHttpProtocol.connection_lost

    def record(self: listener.SandlotHttpProtocol, exc: Exception | None) -> None:
        connection_lost(self, exc)
        lost.append(weakref.ref(self))

    monkeypatch.setattr(listener.SandlotHttpProtocol, "connection_lost", record)
    gc.disable()
    try:
        for _ in range(20):
            reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
            writer.write(request_)
            if request_:
                assert await status_of(reader) == 200
            writer.close()
        await until(lambda: len(lost) == 20 and not any(each() for each in lost))
    finally:
        gc.enable()


async def test_length_of_thousands_of_digits_is_read_or_refused(served: RunningService, local: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for length, body, status in ((b"0" * 6000, b"", 405), (b"0" * 5999 + b"1", b"x", 405), (b"9" * 6000, b"x", 400)):
        with subtests.test(length=length[-3:]):
            reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
            writer.write(b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: %s\r\n\r\n%s" % (length, body))
            assert await status_of(reader) == status
            writer.close()
    assert (await local.get("/healthz")).status_code == 200


async def test_idle_connection_without_a_key_is_closed_soon(small: SmallService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "ANONYMOUS_KEEP_ALIVE_S", 0.1)
    with_key, _ = await small.open(data=b"GET /nowhere HTTP/1.1\r\nhost: x\r\nx-api-key: a\r\n\r\n")
    assert await status_of(with_key) == 404
    without, _ = await small.open(data=HEALTH)
    assert await status_of(without) == 200
    assert await without.read() == b""
    assert not with_key.at_eof()


async def test_connection_that_sends_only_line_breaks_is_closed(served: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
    writer.write(HEALTH)
    assert await status_of(reader) == 200
    writer.write(b"\r\n")
    assert await reader.read() == b""
    writer.close()


async def test_body_that_nobody_reads_is_not_waited_for_after_the_response(
    served: RunningService, local: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
    writer.write(HEALTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 100\r\n\r\n") + b"x" * 10)
    assert await status_of(reader) == 200
    writer.write(b"x" * 10)
    assert await reader.read() == b""
    writer.close()
    assert (await local.get("/healthz")).status_code == 200


async def test_stalled_client_is_disconnected_and_a_slow_one_is_not(
    scripted: ScriptedNode, served: RunningService, local: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "STALL_TIMEOUT_S", 0.5)
    large = ProgramResult(ProgramStatus.COMPLETED, "bash", "a" * 2_000_000, "", 0, None, 0.1)
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
