"""An internet of a test's own: two network namespaces with public addresses, servers that record what arrives, and a name server.

A service that runs in ``Internet.inside`` reaches the servers in ``Internet.outside`` over a pair of virtual network cards and nothing else. Sockets
belong to the namespace in which they were opened, so the servers run in a thread of the tests. Nothing of it exists on the host or stays. Needs root.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_address
from typing import TypeVar, cast

import dns.rdata
import dns.rdataclass
import dns.rdatatype

from sandlot.host.stage.syscalls import CLONE_NEWNET, setns, unshare

HOST_ADDRESS, HOST_ADDRESS_V6 = "23.1.0.2", "2600:1::2"
"""Public addresses of the machine of the service."""
ROUTER_ADDRESS, ROUTER_ADDRESS_V6 = "23.1.0.1", "2600:1::1"
RESOLVER = "9.9.9.9"
"""Address of the name server."""

_A, _AAAA = 1, 28
_ETH_P_ALL = 3
_TCP_SYN, _TCP_ACK = 2, 16
_LINK_MESSAGES = {*range(130, 138), 143}
"""Types of ICMPv6 with which a machine finds its routers and neighbours, and tells its multicast addresses."""
_T = TypeVar("_T")
Reply = Callable[[bytes], bytes | None]
"""Returns the response to the bytes of a connection so far; None: none yet."""


class Namespace:
    """A network namespace without processes. It ends when it is closed and nothing in it is open."""

    def __init__(self) -> None:
        self._fd = self._in_thread(self._unshare)

    @property
    def path(self) -> str:
        """Path with which other processes can enter the namespace."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def call(self, work: Callable[[], _T]) -> _T:
        """Run a function in a thread that is in the namespace."""

        def run() -> _T:
            setns(self._fd, CLONE_NEWNET)
            return work()

        return self._in_thread(run)

    def ip(self, *lines: str) -> None:
        """Run each line as the arguments of the program ``ip``."""
        for line in lines:
            subprocess.run(["nsenter", f"--net={self.path}", "ip", *line.split()], check=True, capture_output=True, timeout=60)

    @contextmanager
    def new_traffic(self, card: str) -> Iterator[list[bytes]]:
        """List the packets that leave through a card and begin something, once the block has ended: datagrams, requests for connections and echoes.

        Left out is what may be sent at any time: packets of earlier connections, and those with which the machine finds its neighbours.
        """

        def listen() -> socket.socket:
            capture = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
            capture.bind((card, _ETH_P_ALL))
            capture.setblocking(False)
            return capture

        packets: list[bytes] = []
        with self.call(listen) as capture:
            yield packets
            with suppress(BlockingIOError):
                while True:
                    packet, address = capture.recvfrom(65536)
                    if address[2] == socket.PACKET_OUTGOING and _begins_something(packet):
                        packets.append(packet)

    def close(self) -> None:
        """Give up the namespace. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @staticmethod
    def _unshare() -> int:
        unshare(CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    @staticmethod
    def _in_thread(work: Callable[[], _T]) -> _T:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()


@dataclass
class Connection:
    """A connection that a server has accepted.

    Attributes:
        data: All bytes that have arrived.
    """

    address: str
    port: int
    data: bytearray = field(default_factory=bytearray)


@dataclass
class Server:
    """A server that records its connections.

    Attributes:
        connections: All connections, in the order of their arrival.
    """

    connections: list[Connection] = field(default_factory=list)

    @property
    def received(self) -> list[bytes]:
        """The bytes of all connections."""
        return [bytes(connection.data) for connection in self.connections]

    def clear(self) -> None:
        """Forget the connections."""
        self.connections.clear()


def http_reply(data: bytes) -> bytes | None:
    """Respond to each complete request without a body: with its method and target."""
    if not data.endswith(b"\r\n\r\n"):
        return None
    method, target, *_ = data.rpartition(b"\r\n\r\n")[0].rpartition(b"\r\n\r\n")[2].split(b"\r\n")[0].split(b" ")
    body = b"" if method == b"HEAD" else b"served " + method + b" " + target
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def echo(data: bytes) -> bytes | None:
    """Respond with what has arrived, once it ends with a line break."""
    return b"echo " + data.splitlines(keepends=True)[-1] if data.endswith(b"\n") else None


class Internet:
    """Two connected namespaces, a name server and other servers.

    Attributes:
        inside: Namespace for the service. The default route leads to ``outside``.
        outside: Namespace with the servers.
        names: Names of the DNS with their addresses, or with a function that returns them for each query.
        records: Other records of names by name and type, in the form of zone files: ``{("example.com", "MX"): ["10 mail.example.com."]}``.
        queries: Names for which the name server was asked.
    """

    def __init__(self) -> None:
        self.inside, self.outside = Namespace(), Namespace()
        self.names: dict[str, Sequence[str] | Callable[[], Sequence[str]]] = {}
        self.records: dict[tuple[str, str], Sequence[str]] = {}
        self.queries: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="internet", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[object] | None] = set()
        self._responder: asyncio.DatagramTransport | None = None

    def open(self) -> None:
        """Connect the namespaces, and start the name server."""
        self.outside.ip("link add inside type veth peer name uplink", f"link set uplink netns {self.inside.path}")
        for space, card, addresses in (
            (self.outside, "inside", (ROUTER_ADDRESS, ROUTER_ADDRESS_V6)),
            (self.inside, "uplink", (HOST_ADDRESS, HOST_ADDRESS_V6)),
        ):
            space.ip(
                "link set lo up", f"addr add {addresses[0]}/24 dev {card}", f"addr add {addresses[1]}/64 dev {card} nodad", f"link set {card} up"
            )
        self.inside.ip(f"route add default via {ROUTER_ADDRESS}", f"-6 route add default via {ROUTER_ADDRESS_V6}")
        self.outside.ip(f"addr add {RESOLVER}/32 dev lo")
        self._thread.start()
        self._run(self._serve_names())

    def serve(self, *places: tuple[str, int], reply: Reply = echo, greeting: bytes = b"", space: Namespace | None = None) -> Server:
        """Start a server.

        Args:
            places: Addresses and ports. Addresses are added to the namespace.
            reply: Responses to what arrives.
            greeting: Bytes with which the server begins each connection.
            space: Namespace of the server; by default ``outside``.
        """
        server = Server()
        for address, port in places:
            listener = self.listen(space or self.outside, address, port)

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str = address, port: int = port) -> None:
                connection = Connection(address, port)
                server.connections.append(connection)
                with self._kept_task(), suppress(OSError), closing(writer):
                    writer.write(greeting)
                    while piece := await reader.read(65536):
                        connection.data += piece
                        writer.write(reply(bytes(connection.data)) or b"")
                        await writer.drain()

            self._servers.append(self._run(asyncio.start_server(serve, sock=listener)))
        return server

    def listen(self, space: Namespace, address: str, port: int) -> socket.socket:
        """Return a listening socket of a namespace. The address is added to the namespace if it has no such address."""
        if address not in {HOST_ADDRESS, HOST_ADDRESS_V6, ROUTER_ADDRESS, ROUTER_ADDRESS_V6, "127.0.0.1", "::1"}:
            with suppress(subprocess.CalledProcessError):  # the address was added for another port
                is_v4 = isinstance(ip_address(address), IPv4Address)
                space.ip(f"addr add {address}/{32 if is_v4 else 128} dev lo{'' if is_v4 else ' nodad'}")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return space.call(lambda: socket.create_server((address, port), family=family, backlog=1024))

    def forward(self, listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
        """Forward each connection of a listening socket to another one that a function opens."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with self._kept_task(), closing(writer):
                to_reader, to_writer = await asyncio.open_connection(sock=await asyncio.to_thread(connect))
                with closing(to_writer):
                    await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))

        self._servers.append(self._run(asyncio.start_server(serve, sock=listener)))

    def close(self) -> None:
        """End the servers and the namespaces."""
        if self._thread.is_alive():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self.inside.close()
        self.outside.close()

    @contextmanager
    def _kept_task(self) -> Iterator[None]:
        """Keep the present task. Nothing else refers to the task of a connection whose client has ended its direction (asyncio.create_task)."""
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    def _run(self, work: Awaitable[_T]) -> _T:
        async def run() -> _T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        if self._responder is not None:
            self._responder.close()
        await asyncio.sleep(0)  # connections that were accepted before get their tasks in the next turn
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # transports close their sockets in the next turn

    async def _serve_names(self) -> None:
        def bind() -> socket.socket:
            bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            bound.bind((RESOLVER, 53))
            bound.setblocking(False)
            return bound

        names = self

        class Responder(asyncio.DatagramProtocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = cast("asyncio.DatagramTransport", transport)

            def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
                self.transport.sendto(names.answer(data), addr)

        self._responder, _ = await self._loop.create_datagram_endpoint(Responder, sock=self.outside.call(bind))

    def answer(self, query: bytes) -> bytes:
        """Return the response of the name server to a query of one name."""
        labels, at = [], 12
        while size := query[at]:
            labels.append(query[at + 1 : at + 1 + size].decode("ascii").lower())
            at += 1 + size
        name, (kind,) = ".".join(labels), struct.unpack_from("!H", query, at + 1)
        question = query[12 : at + 5]
        self.queries.append(name)
        found = self.names.get(name)
        addresses = [ip_address(text) for text in (found() if callable(found) else found or ())]
        records = [address.packed for address in addresses if kind == (_A if address.version == 4 else _AAAA)]
        type_ = dns.rdatatype.to_text(dns.rdatatype.RdataType.make(kind))
        records += [_rdata(type_, text) for text in self.records.get((name, type_), ())]
        is_known = found is not None or any(known == name for known, _ in self.records)
        flags = 0x8180 if is_known else 0x8183
        head = query[:2] + struct.pack("!5H", flags, 1, len(records), 0, 0)
        return head + question + b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(data)) + data for data in records)


def _begins_something(packet: bytes) -> bool:
    if packet[0] >> 4 == 4:
        protocol, data = packet[9], packet[(packet[0] & 15) * 4 :]
    elif packet[0] >> 4 == 6:
        protocol, data = packet[6], packet[40:]
        if protocol == socket.IPPROTO_HOPOPTS:
            protocol, data = data[0], data[8 + 8 * data[1] :]
    else:
        return False  # ARP
    if protocol == socket.IPPROTO_TCP:
        return data[13] & (_TCP_SYN | _TCP_ACK) == _TCP_SYN
    return not (protocol == socket.IPPROTO_ICMPV6 and data[0] in _LINK_MESSAGES)


def _rdata(type_: str, text: str) -> bytes:
    data = dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.from_text(type_), text).to_wire()
    assert data is not None
    return data


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()


@contextmanager
def internet(names: Mapping[str, Sequence[str]] | None = None) -> Iterator[Internet]:
    """An internet for some tests."""
    with ExitStack() as opened:
        made = Internet()
        opened.callback(made.close)
        made.open()
        made.names.update(names or {})
        yield made
