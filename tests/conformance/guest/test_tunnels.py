"""Ports of programs inside: both halves, back-pressure, who listens nowhere or accepts nobody, rest, another link, and what is left over."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandlot.link.client import Link
from sandlot.link.processes import ProcessCall
from sandlot.link.tunnels import Tunnel
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandlotError, TimeoutExceededError
from sandlot.model.executions import Output
from sandlot.model.specs import ProcessSpec, User
from sandlot.protocol import schema
from tests.support.driver_sandboxes import PIDS, GuestSession

BIG = 8 << 20
"""Bytes; many windows of a stream."""

SERVER = """
import hashlib, os, socket, sys, threading, time
def line_of(connection):
    line = b""
    while not line.endswith(b"\\n"):
        line += connection.recv(1)
    return line
def serve(connection):
    try:
        words = line_of(connection).split() if HEAD else [b"echo"]
        if words[0] == b"echo":
            while piece := connection.recv(65536):
                connection.sendall(piece)
        elif words[0] == b"hash":
            digest = hashlib.sha256()
            while piece := connection.recv(65536):
                digest.update(piece)
            connection.sendall(digest.hexdigest().encode())
        elif words[0] == b"send":
            connection.sendall(bytes(range(256)) * (int(words[1]) // 256))
        elif words[0] == b"early":
            connection.sendall(b"early")
            connection.shutdown(socket.SHUT_WR)
            print(len(connection.makefile("rb").read()), flush=True)
        elif words[0] == b"break":
            connection.sendall(b"half")
            time.sleep(0.2)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\x01\\0\\0\\0\\0\\0\\0\\0")
        elif words[0] == b"deaf":
            time.sleep(600)
        elif words[0] == b"told":
            connection.sendall(b"ready")
            try:
                print("end" if not connection.recv(1) else "more", flush=True)
            except ConnectionResetError:
                print("reset", flush=True)
    except ConnectionResetError:
        print("reset", flush=True)
    connection.close()
listener = socket.create_server(ADDRESS, family=FAMILY, backlog=128)
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

ECHO = """
import selectors, socket
watched = selectors.DefaultSelector()
listener = socket.create_server(ADDRESS, family=FAMILY, backlog=128)
watched.register(listener, selectors.EVENT_READ)
print(listener.getsockname()[1], flush=True)
while True:
    for key, _ in watched.select():
        if key.fileobj is listener:
            watched.register(listener.accept()[0], selectors.EVENT_READ)
            continue
        try:
            piece = key.fileobj.recv(65536)
        except ConnectionResetError:
            piece = b""
        if piece:
            key.fileobj.sendall(piece)
        else:
            watched.unregister(key.fileobj)
            key.fileobj.close()
"""

DEAF = """
import socket, time
listener = socket.create_server(ADDRESS, family=FAMILY, backlog=0)
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""


class Server:
    """A program inside that listens."""

    def __init__(self, call: ProcessCall) -> None:
        self._call = call
        self.port = 0

    async def said(self) -> str:
        """Its next line."""
        event = await anext(self._call)
        assert isinstance(event, Output), event
        return event.data.decode().strip()


@asynccontextmanager
async def serving(link: Link, *, head: bool = True, address: str = "127.0.0.1", code: str = SERVER) -> AsyncIterator[Server]:
    family = "socket.AF_INET6" if ":" in address else "socket.AF_INET"
    program = f"HEAD = {head}\nADDRESS = ({address!r}, 0)\n" + code.replace("FAMILY", family)
    call = await link.processes.start(ProcessSpec(argv=("python3", "-c", program)))
    server = Server(call)
    try:
        server.port = int(await server.said())
        yield server
    finally:
        await link.processes.signal(call.id, 9)
        await call.aclose()


async def rest(tunnel: Tunnel) -> bytes:
    """What the program sends, to the end of its half."""
    return b"".join([piece async for piece in tunnel])


async def fill(link: Link, port: int, opened: list[Tunnel]) -> None:
    while True:
        opened.append(await link.connect_port(port))


async def say(link: Link, port: int, line: bytes) -> Tunnel:
    tunnel = await link.connect_port(port)
    await tunnel.send(line + b"\n")
    return tunnel


async def sockets_of_the_guest(inside: GuestSession) -> int:
    out, err, result = await inside.run("python3", "-c", "import os; print(len(os.listdir('/proc/1/fd')))", user=User.ROOT)
    assert result.exit_code == 0, err
    return int(out)


async def test_program_that_closed_its_half_still_reads(inside: GuestSession) -> None:
    async with serving(inside.link) as server:
        tunnel = await say(inside.link, server.port, b"early")
        assert await rest(tunnel) == b"early"
        await tunnel.send(b"x" * 300_000)
        tunnel.end()
        await tunnel.wait()
        assert await server.said() == "300000"


async def test_port_without_a_listener_is_not_found(inside: GuestSession) -> None:
    for port in (9, 48_000, *schema.GUEST_PORTS):
        with pytest.raises(NotFoundError) as refused:
            await inside.link.connect_port(port)
        assert refused.value.code is ErrorCode.PORT_NOT_FOUND
    for port in (0, -1, 65_536):
        with pytest.raises(InvalidRequestError):
            await inside.link.connect_port(port)


async def test_what_listens_on_the_other_loopback_is_found(inside: GuestSession) -> None:
    async with serving(inside.link, head=False, address="::1") as server:
        tunnel = await inside.link.connect_port(server.port)
        assert tunnel.address == "::1"
        await tunnel.send(b"six")
        assert await anext(tunnel) == b"six"
        await tunnel.aclose()


async def test_who_accepts_nobody_is_given_up(inside: GuestSession) -> None:
    async with serving(inside.link, code=DEAF) as server:
        opened: list[Tunnel] = []
        with pytest.raises((TimeoutExceededError, LimitError)) as refused:
            await fill(inside.link, server.port, opened)
        for tunnel in opened:
            await tunnel.aclose()
        if refused.value.code is ErrorCode.LIMIT_EXCEEDED:
            pytest.skip("this kernel takes more connections than there may be tunnels")
        assert refused.value.code is ErrorCode.TIMEOUT


async def test_connection_reset_by_the_program_is_reported_as_reset(inside: GuestSession) -> None:
    async with serving(inside.link) as server:
        tunnel = await say(inside.link, server.port, b"break")
        with pytest.raises(ConflictError, match="reset"):
            await rest(tunnel)


async def test_program_sees_the_reset_or_the_end_of_a_tunnel(inside: GuestSession) -> None:
    async with serving(inside.link) as server:
        cut = await say(inside.link, server.port, b"told")
        assert await anext(cut) == b"ready"
        await cut.aclose()
        assert await server.said() == "reset"
        ended = await say(inside.link, server.port, b"told")
        assert await anext(ended) == b"ready"
        ended.end()
        assert await server.said() == "end"
        assert await rest(ended) == b""


async def test_slow_readers_stop_nobody_else_and_hold_a_bounded_amount(inside: GuestSession) -> None:
    async with serving(inside.link) as server:
        unread = await say(inside.link, server.port, b"send %d" % (64 << 20))
        unheard = await say(inside.link, server.port, b"deaf")
        pushing = asyncio.create_task(unheard.send(b"x" * (64 << 20)))
        before, _, _ = await inside.run("grep", "VmRSS", "/proc/1/status")
        quick = await say(inside.link, server.port, b"hash")
        await quick.send(b"y" * BIG)
        quick.end()
        assert (await rest(quick)).decode() == hashlib.sha256(b"y" * BIG).hexdigest()
        after, _, _ = await inside.run("grep", "VmRSS", "/proc/1/status")
        assert int(after.split()[1]) - int(before.split()[1]) < 8 << 10, (before, after)  # KiB
        assert not pushing.done()
        assert unheard._stream.sent_bytes < 16 << 20  # noqa: SLF001 - what kernels keep of a connection is in it
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)
        await unread.aclose()
        await unheard.aclose()


async def test_64_tunnels_at_once_are_the_limit_and_hundreds_leave_nothing(inside: GuestSession) -> None:
    async with serving(inside.link, code=ECHO) as server:
        before = await sockets_of_the_guest(inside)
        for _ in range(4):
            tunnels = [await inside.link.connect_port(server.port) for _ in range(64)]
            with pytest.raises(LimitError):
                await inside.link.connect_port(server.port)
            for number, tunnel in enumerate(tunnels):
                await tunnel.send(b"%d" % number)
            for number, tunnel in enumerate(tunnels):
                assert await anext(tunnel) == b"%d" % number
                if number % 2:
                    tunnel.end()
                    assert await rest(tunnel) == b""
                await tunnel.aclose()
        assert await sockets_of_the_guest(inside) == before
        assert (await inside.link.info()).streams <= 3


async def test_who_connects_is_nobody_special(inside: GuestSession) -> None:
    async with serving(inside.link, head=False) as server:
        tunnel = await inside.link.connect_port(server.port)
        out, _, _ = await inside.run("cat", "/proc/net/tcp")
        mine = [line.split() for line in out.decode().splitlines() if line.split()[2].endswith(f":{server.port:04X}")]
        assert [each[7] for each in mine] == ["1000"]
        await tunnel.aclose()


async def test_a_link_made_anew_and_rest_end_tunnels_and_the_program_sees_it(inside: GuestSession) -> None:
    async with serving(inside.link) as server:
        before = await sockets_of_the_guest(inside)
        tunnel = await say(inside.link, server.port, b"told")
        assert await anext(tunnel) == b"ready"
        port = server.port
        await inside.link.quiesce()
        with pytest.raises(SandlotError):
            await rest(tunnel)
        await inside.link.wake(identity="another", hostname="inside", env={"PATH": "/usr/bin:/bin"}, pids=PIDS, deadline_s=600)
        again = await say(inside.link, port, b"hash")
        again.end()
        assert (await rest(again)).decode() == hashlib.sha256(b"").hexdigest()
        await again.wait()
        assert await sockets_of_the_guest(inside) <= before  # what the program's own stream held is gone as well
