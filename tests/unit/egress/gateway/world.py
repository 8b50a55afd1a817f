"""Programs in a sandbox, over a real link, and servers on loopback that record what arrives."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from sandlot.egress.gateway.dns import MakeResolver, system_resolver
from sandlot.egress.gateway.gateway import Gateway, GatewayNetwork
from sandlot.egress.outbound.connector import Connector
from sandlot.egress.policy.addresses import Address
from sandlot.link.client import Link
from sandlot.model.network import NetworkEntry, NetworkMode, NetworkPolicy
from sandlot.model.network_activity import NetworkRefusal
from sandlot.protocol import events
from tests.unit.link.peer import Peer, linked

WAIT_S = 20
NAMES = {"allowed.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}


def allowing(*rules: str, deny: Sequence[str] = ()) -> NetworkPolicy:
    """Return a policy that denies some rules and allows others."""
    return NetworkPolicy(NetworkMode.ALLOWLIST, (*(NetworkEntry(False, rule) for rule in deny), *(NetworkEntry(True, rule) for rule in rules)))


class Names:
    """A resolver with fixed addresses that records the names."""

    def __init__(self, names: Mapping[str, Sequence[str]] = NAMES) -> None:
        self.names = names
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        if name not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "not found")
        return [ip_address(each) for each in self.names[name]]


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A server on loopback that records all bytes that it reads."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.connections = 0
        self.bytes = bytearray()
        self._arrived = asyncio.Event()
        self.was_reset = asyncio.Event()
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Run the script for one connection."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        read = reader.read

        async def record(n: int = -1) -> bytes:
            data = await read(n)
            self.bytes += data
            self._arrived.set()
            return data

        reader.read = record  # type: ignore[method-assign]
        try:
            await self._script(reader, writer)
        except ConnectionResetError:
            self.was_reset.set()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def read_until(self, text: bytes) -> None:
        """Wait until the server has read a text."""
        async with asyncio.timeout(WAIT_S):
            while text not in self.bytes:
                self._arrived.clear()
                await self._arrived.wait()

    def cancel(self) -> None:
        """Stop all connections."""
        for task in list(self._tasks):
            task.cancel()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send everything back, and end after the client has ended."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def swallow(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Read until the client ends."""
    while await reader.read(65536):
        pass


async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with a head of 2 lines and the body ``ok``."""
    seen = b""
    while data := await reader.read(65536):
        seen += data
        while b"\r\n\r\n" in seen:
            seen = seen.partition(b"\r\n\r\n")[2]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()


@contextlib.asynccontextmanager
async def serving(script: Script = echo, port: int = 0) -> AsyncIterator[Server]:
    """Yield a server on loopback."""
    server = Server(script)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", port)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        server.cancel()
        await listener.wait_closed()


class Program:
    """A program with one captured connection, as the guest relays it."""

    def __init__(self, peer: Peer, service: str, **args: Any) -> None:  # noqa: ANN401 - a hostile guest sends anything
        self._peer = peer
        self.stream = peer.open_service({"service": service, "args": args})
        self._events = peer.services[self.stream]
        self._over = False
        self.received = bytearray()
        self.reset_code = ""

    async def send(self, data: bytes) -> None:
        """Send bytes as there is room for them."""
        while data and self._peer.connection.is_open(self.stream):
            room = self._peer.connection.room(self.stream)
            if not room:
                await asyncio.sleep(0)
                continue
            self._peer.connection.send_bytes(self.stream, 0, data[:room])
            self._peer.flush()
            data = data[room:]

    def end(self) -> None:
        """End the direction to the server."""
        self._peer.connection.end(self.stream)
        self._peer.flush()

    def reset(self) -> None:
        """Reset the connection."""
        self._peer.connection.reset(self.stream, "conflict", "")
        self._peer.flush()

    async def read(self) -> bytes:
        """Return the next bytes; none at the end or after a reset."""
        if self._over:
            return b""
        async with asyncio.timeout(WAIT_S):
            while True:
                event = await self._events.get()
                if isinstance(event, events.Bytes):
                    self.received += event.data
                    self._peer.connection.consumed(self.stream, event.credit)
                    self._peer.flush()
                    return event.data
                if isinstance(event, events.WasReset):
                    self._over, self.reset_code = True, event.reason["code"]
                    return b""
                if isinstance(event, events.Ended):
                    self._over = True
                    return b""

    async def read_until(self, text: bytes) -> bytes:
        """Read until the received bytes contain a text."""
        while text not in self.received:
            assert await self.read(), (bytes(self.received), self.reset_code)
        return bytes(self.received)

    async def read_all(self) -> bytes:
        """Read until the end, and return all received bytes."""
        while await self.read():
            pass
        return bytes(self.received)

    @property
    def was_reset(self) -> bool:
        """True if the connection was reset."""
        return bool(self.reset_code)


class World:
    """A sandbox with its programs."""

    def __init__(self, link: Link, peer: Peer, gateway: Gateway, network: GatewayNetwork, names: Names, reported: list[NetworkRefusal]) -> None:
        self._link = link
        self.peer = peer
        self.gateway = gateway
        self.network = network
        self.names = names
        self.reported = reported

    def connect(self, host: Any, port: Any) -> Program:  # noqa: ANN401
        """Open a connection to a destination."""
        return Program(self.peer, "connect", host=host, port=port)

    def look_up(self, name: Any, type_: Any) -> Program:  # noqa: ANN401
        """Ask for records of a name."""
        program = Program(self.peer, "dns", name=name, type=type_)
        program.end()
        return program

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that the services of the link have not read or keep."""
        return self._link._session.services.unread.total  # noqa: SLF001 - only a test wants to know

    @property
    def reasons(self) -> list[str]:
        """Reasons of the refusals."""
        return [str(refusal.reason) for refusal in self.network.activity().refusals]


@contextlib.asynccontextmanager
async def sandbox(
    policy: NetworkPolicy,
    *,
    names: Names | None = None,
    private: Sequence[str] = ("127.0.0.0/8",),
    mbit: int | None = None,
    make_resolver: MakeResolver = system_resolver,
) -> AsyncIterator[World]:
    """Yield a sandbox whose gateway may reach loopback."""
    names = names or Names()
    reported: list[NetworkRefusal] = []
    connector = Connector([ip_network(each) for each in private], resolve=names, is_own=lambda _: False)
    gateway = Gateway(connector, mbit=mbit, make_resolver=make_resolver)
    network = gateway.open("sb", policy, reported.append)
    services = {name: service.serve for name, service in network.services().items()}
    try:
        async with linked(services=services) as (link, peer):
            yield World(link, peer, gateway, network, names, reported)
            network.close()
    finally:
        connector.close()
    assert gateway.open_connections == 0
