"""Tunnels over a WebSocket: refusals, keys that are revoked, services that stop, and memory that there is not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import InvalidStatus

from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, InvalidRequestError, UnavailableError
from sandlot.model.tunnels import Tunnel
from sandlot.server.process import serve_in_background
from sandlot.web import listener
from tests.support.http import problem
from tests.support.service import BASE, Bench
from tests.support.tenants import listening

pytestmark = pytest.mark.real_guest

PROGRAM = """
import socket, threading
def serve(connection):
    try:
        while piece := connection.recv(65536):
            connection.sendall(piece)
        print("end", flush=True)
        connection.sendall(b"last")
    except ConnectionError:
        print("reset", flush=True)
    connection.close()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


class Program:
    """What listens inside.

    Args:
        lines: What it prints.
    """

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.port = 0

    async def said(self) -> str:
        """Its next word."""
        async with asyncio.timeout(60):
            async for line in self._lines:
                told = json.loads(line)
                if told["event"] == "output":
                    return str(told["data"]["data"]).strip()
        raise AssertionError("it has ended")


@asynccontextmanager
async def running(http: httpx.AsyncClient, url: str) -> AsyncIterator[Program]:
    """One, in a sandbox."""
    ran = (await http.post(f"{url}/processes", json={"argv": ["python3", "-c", PROGRAM], "background": True})).json()
    told = {"Accept": "application/x-ndjson"}
    async with http.stream("GET", f"{url}/processes/{ran['id']}/output", params={"follow": "true"}, headers=told) as answer:
        program = Program(answer.aiter_lines())
        program.port = int(await program.said())
        yield program


@pytest.fixture
async def program(http: httpx.AsyncClient, url: str) -> AsyncIterator[Program]:
    async with running(http, url) as made:
        yield made


@asynccontextmanager
async def opened(at: Bench, url: str, port: int) -> AsyncIterator[ClientConnection]:
    async with unix_connect(str(at.service.settings.socket), f"ws://sandlot{url}/ports/{port}/tunnel", compression=None) as made:
        yield made


async def test_refusals_are_answers_before_the_upgrade(at: Bench, http: httpx.AsyncClient, url: str, program: Program) -> None:
    for port, status in ((0, 400), (65_536, 400), (1, 404)):
        with pytest.raises(InvalidStatus) as refused:
            async with opened(at, url, port):
                pass
        assert refused.value.response.status_code == status
        told = json.loads(refused.value.response.body or b"")
        assert told["code"] == ("port_not_found" if status == 404 else "invalid_request")
    assert problem(await http.get(f"{url}/ports/{program.port}/tunnel"), 426, "invalid_request")["hint"]
    with pytest.raises(InvalidRequestError):
        await at.node.tunnels.connect(OPERATOR, url.rpartition("/")[2], -1)


@pytest.mark.parametrize("how", ["revoked", "stopped"])
async def test_tunnel_ends_with_its_key_and_its_service(at: Bench, http: httpx.AsyncClient, how: str) -> None:
    record, secret = await at.service.api_keys.create("stolen")
    principal = at.service.api_keys.verify(secret)
    assert principal is not None
    sandbox = await at.sandboxes.create(principal, BASE)
    tcp = listener.tcp_socket("127.0.0.1", 0)
    url = f"/v1/sandboxes/{sandbox.id}"
    async with asyncio.timeout(60), running(http, url) as program:
        held = sandbox.activity.held
        async with serve_in_background(at.service, [tcp]):
            address = f"ws://127.0.0.1:{tcp.getsockname()[1]}{url}/ports/{program.port}/tunnel"
            socket = await connect(address, additional_headers={"Authorization": f"Bearer {secret}"}, proxy=None)
            await socket.send(b"x")
            assert await socket.recv() == b"x"
            assert sandbox.activity.held == held  # an open tunnel keeps nothing from being idle
            if how == "revoked":
                await at.service.api_keys.revoke(record.name)
                await socket.wait_closed()
        await socket.wait_closed()
        if how == "revoked":  # otherwise it ends with the service, and may have no time to say so
            assert await program.said() == "reset"


async def test_what_waits_counts_and_what_cannot_be_had_is_not_waited_for(at: Bench, url: str, program: Program) -> None:
    sandbox = at.sandboxes.find(url.rpartition("/")[2], OPERATOR)
    tunnel = await at.node.tunnels.connect(OPERATOR, sandbox.id, program.port)
    before = sandbox.buffers.taken_bytes
    await tunnel.send(b"x" * 1000)
    assert sandbox.buffers.taken_bytes == before
    with pytest.raises(UnavailableError) as busy:
        await tunnel.send(bytes(at.service.settings.buffer_bytes))
    assert busy.value.code is ErrorCode.BUSY
    await tunnel.aclose()
    assert await program.said() == "reset"


async def test_closed_tunnel_ends_a_waiting_consumer(at: Bench, url: str, program: Program) -> None:
    tunnel = await at.node.tunnels.connect(OPERATOR, url.rpartition("/")[2], program.port)
    waiting = asyncio.create_task(_received(tunnel))
    await tunnel.send(b"x")
    await asyncio.sleep(0)
    await tunnel.aclose()
    assert await waiting in {b"", b"x"}
    assert await program.said() == "reset"


async def _received(tunnel: Tunnel) -> bytes:
    return b"".join([piece async for piece in tunnel])


async def test_of_what_the_client_reads_nothing_a_bounded_part_waits(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    port = await listening(http, url)  # which accepts nobody, and reads nothing
    sandbox = at.sandboxes.find(url.rpartition("/")[2], OPERATOR)
    async with opened(at, url, int(port)) as socket:
        pushing = asyncio.create_task(_push(socket))
        await asyncio.sleep(1)
        assert not pushing.done()
        assert 0 < sandbox.buffers.taken_bytes <= 2 << 20
        pushing.cancel()
        socket.transport.abort()


async def _push(socket: ClientConnection) -> None:
    for _ in range(1024):
        await socket.send(bytes(256 << 10))
