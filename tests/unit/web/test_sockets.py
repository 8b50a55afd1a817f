"""WebSockets: who may open one, what a bad upgrade gets, and that nobody makes one hold memory."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
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

from sandlot.server.serve import answering
from sandlot.server.settings import Settings
from sandlot.web import listen, sockets
from tests.support.service import Bench, bench, client
from tests.support.tenants import listening
from tests.support.until import until

HEAD = "GET {path} HTTP/1.1\r\nHost: sandlot\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{more}\r\n"
KEY = f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"


@asynccontextmanager
async def terminal(at: Bench, http: httpx.AsyncClient, command: str = "cat") -> AsyncIterator[tuple[str, ClientConnection]]:
    """The path of a terminal, and a connection to it."""
    url = f"/v1/sandboxes/{(await at.sandbox()).id}/processes"
    process = (await http.post(url, json={"command": command, "pty": {}, "background": True})).json()["process"]
    path = f"{url}/{process}/terminal"
    async with unix_connect(str(at.service.settings.socket), f"ws://sandlot{path}", compression=None) as connection:
        await connection.recv()
        yield path, connection


@pytest.mark.parametrize(
    "head",
    [
        HEAD.format(path="/v1/version", more="Sec-WebSocket-Version: 13\r\n"),
        HEAD.format(path="/v1/version", more=KEY + "Sec-WebSocket-Version: 12\r\n"),
        HEAD.format(path="/v1/version", more="Sec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13\r\n"),
        HEAD.format(path="/v1/version", more=KEY).replace("GET", "POST"),
    ],
    ids=["no key", "another version", "a bad key", "no GET"],
)
async def test_a_bad_upgrade_is_answered_like_any_bad_request(at: Bench, http: httpx.AsyncClient, head: str) -> None:
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


async def test_a_key_is_needed_over_tcp_and_what_is_somebody_elses_is_not_found(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        _, secret = await at.service.keys.create("other")
        listener = listen.tcp_socket("127.0.0.1", 0)
        base = f"ws://127.0.0.1:{listener.getsockname()[1]}/v1/sandboxes/{(await at.sandbox()).id}/processes/{'0' * 32}/terminal"
        cases: list[tuple[dict[str, str], int, str]] = [
            ({}, 401, "unauthenticated"),
            ({"X-API-Key": "wrong"}, 401, "unauthenticated"),
            ({"X-API-Key": secret}, 404, "sandbox_not_found"),
            ({"Authorization": f"Bearer {secret}"}, 404, "sandbox_not_found"),
        ]
        async with answering(at.service, [listener]):
            for headers, status, code in cases:
                with pytest.raises(InvalidStatus) as refused:
                    await connect(base, additional_headers=headers, proxy=None)
                told = json.loads(refused.value.response.body or b"")
                assert (refused.value.response.status_code, told["code"]) == (status, code)


async def test_sockets_count_as_connections(tmp_path: Path) -> None:
    async with bench(tmp_path, Settings(max_connections=2)) as at, client(at.service) as http, terminal(at, http):
        with pytest.raises(InvalidStatus) as refused:
            await unix_connect(str(at.service.settings.socket), "ws://sandlot/v1/nowhere")
        assert refused.value.response.status_code == 503


async def test_pings_whose_answers_are_not_taken_do_not_pile_up(at: Bench, http: httpx.AsyncClient) -> None:
    async with terminal(at, http) as (_, connection):
        raw = connection.transport
        raw.pause_reading()
        ping = b"\x89\xfd" + bytes(4) + b"x" * 125
        for _ in range(4000):
            raw.write(ping * 100)
            await asyncio.sleep(0)
            if raw.is_closing():
                break
        assert raw.is_closing(), "it was cut off"
    assert (await http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("kind", ["parts", "size"])
async def test_a_message_without_an_end_is_cut_off(at: Bench, http: httpx.AsyncClient, kind: str) -> None:
    async def send_on(connection: ClientConnection) -> None:
        if kind == "size":
            await connection.send(bytes(sockets.MESSAGE_MAX_BYTES + 1))
        else:
            connection.transport.write(b"\x02\x80" + bytes(4) + (b"\x00\x80" + bytes(4)) * (sockets.PARTS_MAX + 2))
        while True:
            await connection.recv()

    async with terminal(at, http) as (_, connection):
        with pytest.raises(ConnectionClosed):
            await send_on(connection)
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


async def test_the_end_of_the_service_ends_sockets(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        async with answering(at.service, [listen.unix_socket(at.service.settings.socket)]):
            transport = httpx.AsyncHTTPTransport(uds=str(at.service.settings.socket))
            async with httpx.AsyncClient(transport=transport, base_url="http://sandlot") as http:
                opened = terminal(at, http)
                _, connection = await opened.__aenter__()
        with pytest.raises(ConnectionClosed):
            await connection.recv()
        await connection.close()


HALVES = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection = listener.accept()[0]
while connection.recv(65536):
    pass
if ANSWERS:
    connection.sendall(b"after your end")
    connection.close()
else:
    import time
    time.sleep(600)
"""
CLOSE = b"\x88\x82" + bytes(4) + (1000).to_bytes(2, "big")
"""Masked, as a client's are (RFC 6455 5.3)."""


@pytest.mark.real_guest
@pytest.mark.parametrize("how", ["answers", "silent"])
async def test_where_a_route_asks_for_time_a_close_is_answered_when_it_is_done_or_silent(
    at: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    url = f"/v1/sandboxes/{(await at.sandbox()).id}"
    answers = how == "answers"
    port = await listening(http, url, f"ANSWERS = {answers}" + HALVES)
    if not answers:
        monkeypatch.setattr(sockets, "STALL_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_unix_connection(str(at.service.settings.socket))
    path = f"/tensorlake/sbx/{url.rpartition('/')[2]}/api/v1/tunnels/tcp?port={port}"
    writer.write(HEAD.format(path=path, more=KEY + "Sec-WebSocket-Version: 13\r\n").encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    writer.write(CLOSE)
    heard = await asyncio.wait_for(_to_its_end(reader), 60)
    assert heard == (b"\x82\x0eafter your end" + b"\x88\x02" + (1000).to_bytes(2, "big") if answers else b"")
    writer.close()


@pytest.mark.real_guest
async def test_what_is_cut_after_its_client_has_said_close_is_not_told_as_a_clean_end(at: Bench, http: httpx.AsyncClient) -> None:
    url = f"/v1/sandboxes/{(await at.sandbox()).id}"
    port = await listening(http, url, "ANSWERS = False" + HALVES)
    reader, writer = await asyncio.open_unix_connection(str(at.service.settings.socket))
    path = f"/tensorlake/sbx/{url.rpartition('/')[2]}/api/v1/tunnels/tcp?port={port}"
    writer.write(HEAD.format(path=path, more=KEY + "Sec-WebSocket-Version: 13\r\n").encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.write(CLOSE)
    await http.delete(url)
    asked = ClientProtocol(parse_uri("ws://sandlot"), state=State.OPEN)
    asked.receive_data(await asyncio.wait_for(_to_its_end(reader), 60))
    (close,) = [event for event in asked.events_received() if isinstance(event, Frame)]
    assert (close.opcode, int.from_bytes(close.data[:2], "big")) == (Opcode.CLOSE, 1011)
    writer.close()


SENDS = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection = listener.accept()[0]
connection.recv(1)
connection.sendall(bytes(range(256)) * 16384)
connection.close()
"""


@pytest.mark.real_guest
async def test_a_close_while_its_client_takes_nothing_loses_nothing(at: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    full, left = asyncio.Event(), asyncio.Event()
    pause, leave = sockets.Socket.pause_writing, sockets.Socket.handle_close

    def paused(self: sockets.Socket) -> None:
        pause(self)
        full.set()

    def leaves(self: sockets.Socket, event: Frame) -> None:
        leave(self, event)
        left.set()

    monkeypatch.setattr(sockets.Socket, "pause_writing", paused)
    monkeypatch.setattr(sockets.Socket, "handle_close", leaves)
    url = f"/v1/sandboxes/{(await at.sandbox()).id}"
    port = await listening(http, url, SENDS)
    reader, writer = await asyncio.open_unix_connection(str(at.service.settings.socket))
    path = f"/tensorlake/sbx/{url.rpartition('/')[2]}/api/v1/tunnels/tcp?port={port}"
    writer.write(HEAD.format(path=path, more=KEY + "Sec-WebSocket-Version: 13\r\n").encode())
    await reader.readuntil(b"\r\n\r\n")
    link = writer.transport
    assert isinstance(link, asyncio.Transport)
    link.pause_reading()
    writer.write(b"\x82\x81" + bytes(4) + b"x")
    await full.wait()
    writer.write(CLOSE)
    await left.wait()
    link.resume_reading()
    asked = ClientProtocol(parse_uri("ws://sandlot"), state=State.OPEN)
    asked.receive_data(await asyncio.wait_for(_to_its_end(reader), 60))
    *answer, close = [event for event in asked.events_received() if isinstance(event, Frame)]
    assert hashlib.sha256(b"".join(each.data for each in answer)).digest() == hashlib.sha256(bytes(range(256)) * 16384).digest()
    assert (close.opcode, close.data) == (Opcode.CLOSE, (1000).to_bytes(2, "big"))
    writer.close()


async def _to_its_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
