"""WebSockets: who may open one, what a bad upgrade gets, and that nobody makes one hold memory."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.testing.memory.guest import PortConnection, PortHandler
from sandlot.web import listener, slices, websocket
from tests.support.service import Bench, bench, client
from tests.support.until import until

HEAD = "GET {path} HTTP/1.1\r\nHost: sandlot\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{more}\r\n"
KEY = f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"


@asynccontextmanager
async def terminal(at: Bench, http: httpx.AsyncClient, command: str = "cat") -> AsyncIterator[tuple[str, ClientConnection]]:
    """The path of a terminal, and a connection to it."""
    url = f"/v1/sandboxes/{(await at.sandbox()).id}/processes"
    process = (await http.post(url, json={"command": command, "pty": {}, "background": True})).json()["id"]
    path = f"{url}/{process}/terminal"
    async with unix_connect(str(at.service.settings.socket), f"ws://sandlot{path}", compression=None) as connection:
        await connection.recv()
        yield path, connection


async def test_invalid_upgrade_gets_a_problem_document(at: Bench, http: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for head in (
        HEAD.format(path="/v1/version", more="Sec-WebSocket-Version: 13\r\n"),
        HEAD.format(path="/v1/version", more=KEY + "Sec-WebSocket-Version: 12\r\n"),
        HEAD.format(path="/v1/version", more="Sec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13\r\n"),
        HEAD.format(path="/v1/version", more=KEY).replace("GET", "POST"),
    ):
        with subtests.test(head=head):
            assert (await http.get("/healthz")).status_code == 200
            reader, writer = await asyncio.open_unix_connection(str(at.service.settings.socket))
            writer.write(head.encode())
            answer = (await reader.read()).decode()
            status, _, rest = answer.partition("\r\n")
            assert status.split()[1] == "400"
            fields, _, body = rest.partition("\r\n\r\n")
            assert "content-type: application/problem+json" in fields.lower()
            told = json.loads(body)
            assert (told["code"], told["status"]) == ("invalid_request", 400)
            assert f"x-request-id: {told['request_id']}" in fields.lower()
            writer.close()


async def test_websocket_needs_a_key_and_hides_sandboxes_of_other_keys(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        _, secret = await at.service.api_keys.create("other")
        tcp = listener.tcp_socket("127.0.0.1", 0)
        base = f"ws://127.0.0.1:{tcp.getsockname()[1]}/v1/sandboxes/{(await at.sandbox()).id}/processes/{'0' * 32}/terminal"
        cases: list[tuple[dict[str, str], int, str]] = [
            ({}, 401, "unauthenticated"),
            ({"X-API-Key": "wrong"}, 401, "unauthenticated"),
            ({"X-API-Key": secret}, 404, "sandbox_not_found"),
            ({"Authorization": f"Bearer {secret}"}, 404, "sandbox_not_found"),
        ]
        async with serve_in_background(at.service, [tcp]):
            for headers, status, code in cases:
                with pytest.raises(InvalidStatus) as refused:
                    await connect(base, additional_headers=headers, proxy=None)
                told = json.loads(refused.value.response.body or b"")
                assert (refused.value.response.status_code, told["code"]) == (status, code)


async def test_websocket_outlives_the_time_limit_of_a_request_head(at: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEAD_TIMEOUT_S", 0.2)
    async with terminal(at, http) as (_, connection):
        reader, writer = await asyncio.open_unix_connection(str(at.service.settings.socket))
        assert await reader.read() == b""  # the time limit of this later connection has passed
        writer.close()
        await connection.send(b"echo\n")
        assert await connection.recv() == b"echo\r\n"


async def test_websockets_count_as_connections(tmp_path: Path) -> None:
    async with bench(tmp_path, Settings(max_connections=2)) as at, client(at.service) as http, terminal(at, http) as (path, _):
        await http.aclose()  # an idle connection would be closed in favour of the next
        async with unix_connect(str(at.service.settings.socket), f"ws://sandlot{path}"):
            with pytest.raises(InvalidStatus) as refused:
                await unix_connect(str(at.service.settings.socket), "ws://sandlot/v1/nowhere")
        assert refused.value.response.status_code == 503


async def test_websocket_with_unread_pongs_is_closed(at: Bench, http: httpx.AsyncClient) -> None:
    async with terminal(at, http) as (_, connection):
        raw = connection.transport
        raw.pause_reading()
        ping = b"\x89\xfd" + bytes(4) + b"x" * 125
        raw.write(ping * 80_000)  # far more than the service and the kernel keep of the pongs
        await until(raw.is_closing)  # the rest of the pings can't be sent once the service has closed the connection
    assert (await http.get("/healthz")).status_code == 200


async def test_websocket_with_an_oversized_message_is_closed(at: Bench, http: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    async def send_large(connection: ClientConnection) -> None:
        await connection.send(bytes(websocket.MESSAGE_MAX_BYTES + 1))

    async def send_parts(connection: ClientConnection) -> None:
        connection.transport.write(b"\x02\x80" + bytes(4) + (b"\x00\x80" + bytes(4)) * (websocket.MAX_FRAGMENTS + 2))

    async def send_on(connection: ClientConnection, send: Callable[[ClientConnection], Awaitable[None]]) -> None:
        await send(connection)
        while True:
            await connection.recv()

    for send in (send_large, send_parts):
        with subtests.test(send=send):
            async with terminal(at, http) as (_, connection):
                with pytest.raises(ConnectionClosed):
                    await send_on(connection, send)
            assert (await http.get("/healthz")).status_code == 200


async def test_a_socket_is_logged_and_counted_without_what_it_carried(at: Bench, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]) -> None:
    async with terminal(at, http) as (path, connection):
        await connection.send(b"hush-hush\n")
        await connection.recv()
    shown = [""]

    def told() -> bool:
        shown[0] += capsys.readouterr().out
        return any(path in line and "socket" in line and "101" in line for line in shown[0].splitlines())

    await until(told)
    assert "hush-hush" not in shown[0]
    assert 'status="101"' in (await http.get("/metrics")).text


CLOSE = b"\x88\x82" + bytes(4) + (1000).to_bytes(2, "big")
"""A Close frame, masked like every frame of a client (RFC 6455 5.3)."""
PORT = 8000
LARGE = bytes(range(256)) * 16384


async def respond_at_end(connection: PortConnection) -> None:
    while await connection.read():
        pass
    await connection.write(b"after your end")


async def never_respond(connection: PortConnection) -> None:
    while await connection.read():
        pass
    await asyncio.Event().wait()


async def send_much(connection: PortConnection) -> None:
    await connection.read()
    await connection.write(LARGE)


async def tunnel(at: Bench, handler: PortHandler) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a tunnel, whose route asks for time after a Close, to a scripted program. Return the sandbox's id and the open WebSocket."""
    at.driver.scripts.ports[PORT] = handler
    id_ = (await at.sandbox()).id
    reader, writer = await asyncio.open_unix_connection(str(at.service.settings.socket))
    path = f"/tensorlake/sbx/{id_}/api/v1/tunnels/tcp?port={PORT}"
    writer.write(HEAD.format(path=path, more=KEY + "Sec-WebSocket-Version: 13\r\n").encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    return id_, reader, writer


async def frames(reader: asyncio.StreamReader) -> list[Frame]:
    """Return all frames until the service closes the connection."""
    protocol = ClientProtocol(parse_uri("ws://sandlot"), state=State.OPEN)
    protocol.receive_data(await _to_its_end(reader))
    return [event for event in protocol.events_received() if isinstance(event, Frame)]


@pytest.mark.usefixtures("http")
async def test_close_is_answered_after_what_the_route_still_sends(at: Bench) -> None:
    _, reader, writer = await tunnel(at, respond_at_end)
    writer.write(CLOSE)
    assert await _to_its_end(reader) == b"\x82\x0eafter your end" + b"\x88\x02" + (1000).to_bytes(2, "big")
    writer.close()


async def count_bytes(connection: PortConnection) -> None:
    count = 0
    while data := await connection.read():
        count += len(data)
    await connection.write(str(count).encode())


async def receive_all(connection: ClientConnection) -> None:
    while True:
        await connection.recv()


@pytest.mark.usefixtures("http")
async def test_close_that_arrives_with_a_ping_is_answered_after_the_data_of_the_route(at: Bench) -> None:
    _, reader, writer = await tunnel(at, respond_at_end)
    writer.write(b"\x89\x80" + bytes(4) + CLOSE)
    assert await _to_its_end(reader) == b"\x8a\x00" + b"\x82\x0eafter your end" + b"\x88\x02" + (1000).to_bytes(2, "big")
    writer.close()


async def test_close_that_arrives_with_a_ping_is_answered(at: Bench, http: httpx.AsyncClient) -> None:
    async with terminal(at, http) as (_, connection):
        connection.transport.write(b"\x89\x80" + bytes(4) + CLOSE)
        with pytest.raises(ConnectionClosed) as closed:
            await receive_all(connection)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


@pytest.mark.usefixtures("http")
async def test_flood_of_small_frames_is_read_in_slices_and_whole(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TURN_S", 0.0)  # one slice in each turn of the loop
    read: list[int] = []
    handle = websocket.SandlotWebSocketProtocol.handle_events

    def record(self: websocket.SandlotWebSocketProtocol) -> None:
        read.append(len(self.conn.events))
        handle(self)

    monkeypatch.setattr(websocket.SandlotWebSocketProtocol, "handle_events", record)
    _, reader, writer = await tunnel(at, count_bytes)
    ping = b"\x89\x80" + bytes(4)
    writer.write((b"\x82\x81" + bytes(4) + b"x" + ping) * 10_000 + CLOSE)
    *response, close = [each for each in await frames(reader) if each.opcode is not Opcode.PONG]
    assert b"".join(each.data for each in response) == b"10000"
    assert (close.opcode, close.data) == (Opcode.CLOSE, (1000).to_bytes(2, "big"))
    assert sum(read) == 20_002, "and the upgrade"
    assert max(read) <= websocket.SLICE_BYTES // 6 + 1
    writer.close()


@pytest.mark.usefixtures("http")
async def test_silent_route_is_cut_off_after_a_close(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "STALL_TIMEOUT_S", 0.2)
    _, reader, writer = await tunnel(at, never_respond)
    writer.write(CLOSE)
    assert await _to_its_end(reader) == b""
    writer.close()


async def test_route_that_is_cut_after_a_close_does_not_report_a_clean_end(at: Bench, http: httpx.AsyncClient) -> None:
    id_, reader, writer = await tunnel(at, never_respond)
    writer.write(CLOSE)
    await http.delete(f"/v1/sandboxes/{id_}")
    (close,) = await frames(reader)
    assert (close.opcode, int.from_bytes(close.data[:2], "big")) == (Opcode.CLOSE, 1011)
    writer.close()


@pytest.mark.usefixtures("http")
async def test_close_while_the_client_reads_nothing_loses_nothing(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    full, left = asyncio.Event(), asyncio.Event()
    pause, leave = websocket.SandlotWebSocketProtocol.pause_writing, websocket.SandlotWebSocketProtocol.handle_close

    def paused(self: websocket.SandlotWebSocketProtocol) -> None:
        pause(self)
        full.set()

    def leaves(self: websocket.SandlotWebSocketProtocol, event: Frame) -> None:
        leave(self, event)
        left.set()

    monkeypatch.setattr(websocket.SandlotWebSocketProtocol, "pause_writing", paused)
    monkeypatch.setattr(websocket.SandlotWebSocketProtocol, "handle_close", leaves)
    _, reader, writer = await tunnel(at, send_much)
    link = writer.transport
    assert isinstance(link, asyncio.Transport)
    link.pause_reading()
    writer.write(b"\x82\x81" + bytes(4) + b"x")
    await full.wait()
    writer.write(CLOSE)
    await left.wait()
    link.resume_reading()
    *response, close = await frames(reader)
    assert b"".join(each.data for each in response) == LARGE
    assert (close.opcode, close.data) == (Opcode.CLOSE, (1000).to_bytes(2, "big"))
    writer.close()


async def _to_its_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
