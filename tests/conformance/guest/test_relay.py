"""The port of the loopback that is carried to the host: many connections, both halves, back-pressure, floods, rest and another link."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sandlot.link.client import Link
from sandlot.link.services import GuestStream
from sandlot.model.executions import Output
from sandlot.model.specs import ProcessSpec
from sandlot.protocol import schema
from sandlot.protocol.stream_table import GUEST_STREAMS_MAX
from tests.conformance.guest.conftest import open_sandbox
from tests.support.driver_sandboxes import PIDS, GuestSession

BIG = 3 << 20
"""Bytes; many windows of a stream."""

CLIENT = f"""
import errno, hashlib, json, socket, threading, time
def connect():
    return socket.create_connection(("127.0.0.1", {schema.PACKAGES_PORT}), timeout=60)
def ask(line, connection=None):
    connection = connection or connect()
    connection.sendall(line + b"\\n")
    return connection
def all_of(connection):
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)
"""


class Host:
    """The host's end: does what the first line of a stream says."""

    def __init__(self) -> None:
        self.open = 0
        self.most = 0
        self.heard = asyncio.Event()
        self.go_on = asyncio.Event()

    async def serve(self, stream: GuestStream, args: Mapping[str, Any]) -> None:
        assert args == {}
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await self._serve(stream)
        finally:
            self.open -= 1

    async def _serve(self, stream: GuestStream) -> None:
        buffer, digest = bytearray(), hashlib.sha256()
        async for piece in stream:
            buffer += piece
            while b"\n" in buffer and not buffer.startswith(b"upload"):
                line, _, rest = bytes(buffer).partition(b"\n")
                buffer = bytearray(rest)
                word, _, number = line.partition(b" ")
                if word == b"echo":
                    await stream.write(number + b"\n")
                elif word == b"send":
                    await stream.write(bytes(range(256)) * (int(number) // 256))
                    return
                elif word == b"reset":
                    await stream.write(b"half")
                    stream.reset("conflict", "as asked")
                    return
                elif word == b"wait":
                    self.heard.set()
                    await self.go_on.wait()
                    await stream.write(b"waited\n")
            if buffer.startswith(b"upload\n"):
                digest.update(bytes(buffer).removeprefix(b"upload\n"))
                async for more in stream:
                    digest.update(more)
                await stream.write(digest.hexdigest().encode())


@pytest.fixture(scope="module")
def host() -> Host:
    return Host()


@pytest.fixture(scope="module")
async def relayed(host: Host, isolation: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation=isolation, services={schema.PACKAGES: host}) as sandbox:
        yield sandbox


async def client(inside: GuestSession, code: str) -> str:
    """Run a client inside; what it printed."""
    out, err, result = await inside.run("python3", "-c", CLIENT + code)
    assert result.exit_code == 0, err.decode()
    return out.decode()


async def test_many_requests_of_one_connection_and_many_connections(relayed: GuestSession) -> None:
    out = await client(
        relayed,
        "connections = [connect() for _ in range(20)]\n"
        "for turn in range(3):\n"
        "    for number, connection in enumerate(connections):\n"
        "        ask(b'echo %d' % number, connection)\n"
        "    print([int(connection.makefile().readline()) for connection in connections] == list(range(20)))\n",
    )
    assert out == "True\n" * 3


async def test_large_transfers_arrive_complete_in_both_directions(relayed: GuestSession) -> None:
    body = bytes(range(256)) * (BIG // 256)
    out = await client(
        relayed,
        f"got = all_of(ask(b'send {BIG}'))\n"
        "print(len(got), hashlib.sha256(got).hexdigest())\n"
        f"body = bytes(range(256)) * {BIG // 256}\n"
        "up = connect()\n"
        "up.sendall(b'upload\\n' + body)\n"
        "up.shutdown(socket.SHUT_WR)\n"
        "print(all_of(up).decode())\n",
    )
    digest = hashlib.sha256(body).hexdigest()
    assert out.split() == [str(BIG), digest, digest]


async def test_a_connection_that_nobody_reads_holds_up_no_other(relayed: GuestSession) -> None:
    out = await client(
        relayed,
        f"lazy = [ask(b'send {BIG}') for _ in range(3)]\n"
        "time.sleep(0.5)\n"
        "quick = ask(b'echo 1')\n"
        "print(quick.makefile().readline().strip())\n"
        f"print({{len(all_of(connection)) for connection in lazy}} == {{{BIG}}})\n",
    )
    assert out == "1\nTrue\n"


async def test_reset_connection_is_not_taken_for_complete(relayed: GuestSession) -> None:
    out = await client(
        relayed,
        "try:\n    print('whole', all_of(ask(b'reset')))\nexcept ConnectionResetError:\n    print('reset')\n",
    )
    assert out == "reset\n"


async def test_connections_to_the_package_port_are_limited(relayed: GuestSession, host: Host) -> None:
    host.heard.clear()
    flood = asyncio.create_task(
        client(
            relayed,
            "held = []\n"
            "for number in range(1500):\n"
            "    connection = socket.socket()\n"
            "    connection.setblocking(False)\n"
            f"    connection.connect_ex(('127.0.0.1', {schema.PACKAGES_PORT}))\n"
            "    held.append(connection)\n"
            "time.sleep(0.5)\n"
            "said = 0\n"
            "for connection in held:\n"
            "    try:\n"
            "        connection.send(b'wait 1\\n')\n"
            "        said += 1\n"
            "    except OSError:\n"
            "        pass\n"
            "print(said > 60)\n"
            "time.sleep(2)\n",
        )
    )
    await host.heard.wait()
    for _ in range(20):  # the link's own calls are answered meanwhile
        assert (await relayed.link.info()).streams <= GUEST_STREAMS_MAX + 8
        assert await relayed.sh("echo here") == "here\n"
    assert await flood == "True\n"
    assert host.most < GUEST_STREAMS_MAX
    host.go_on.set()
    assert await client(relayed, "print(ask(b'echo 2').makefile().readline())") == "2\n\n"


async def test_a_connection_that_is_merely_kept_alive_gives_way(relayed: GuestSession) -> None:
    out = await client(
        relayed,
        "kept = [ask(b'echo 3') for _ in range(48)]\n"
        "print(all(connection.makefile().readline() == '3\\n' for connection in kept))\n"
        "print(ask(b'echo 4').makefile().readline())\n",
    )
    assert out == "True\n4\n\n"


SURVIVOR = (
    CLIENT
    + """
silent = connect()
for turn in range(2):
    try:
        print("whole", ask(b"wait 1").recv(100), flush=True)
    except ConnectionResetError:
        print("reset", flush=True)
    while True:
        try:
            print(ask(b"echo 5", silent).makefile().readline().strip(), flush=True)
            break
        except OSError:
            silent = connect()
            time.sleep(0.05)
"""
)


async def test_quiesce_and_new_link_reset_connections_and_the_port_keeps_working(tmp_path: Path, isolation: str) -> None:
    host = Host()
    services = {schema.PACKAGES: host}
    async with open_sandbox(tmp_path, isolation=isolation, services=services) as inside:
        call = await inside.link.processes.start(ProcessSpec(("python3", "-c", SURVIVOR), timeout_s=None))
        await host.heard.wait()
        host.heard.clear()
        await inside.link.quiesce()
        await inside.link.wake(identity="sb-another", hostname="another", env={}, pids=PIDS, deadline_s=600)
        await host.heard.wait()
        await inside.link.aclose()
        inside.link = await Link.open(await inside.instance.connect(), services=services)
        again = await inside.link.processes.attach(call.id, stdout_from=0, stderr_from=0)
        assert b"".join([item.data async for item in again if isinstance(item, Output)]) == b"reset\n5\n" * 2
