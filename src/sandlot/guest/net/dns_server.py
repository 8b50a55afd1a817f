"""The DNS server of the sandbox: a UDP socket to which all queries are redirected, and queries that the host answers.

Invariants:
- Queries for addresses are answered from the table of synthetic addresses and never leave the sandbox (``dns.py``).
- Queries for other records are sent to the host, each over its own stream of the service ``dns``. At most :data:`MAX_LOOKUPS` are open at once;
  further ones fail at once. A query fails after :data:`LOOKUP_S` seconds.
- A response that the socket cannot take is dropped, as UDP allows. Programs repeat their query.
"""

from __future__ import annotations

from sandlot.guest.loop import READ, log
from sandlot.guest.net.dns import QUERY_BYTES, REFUSED, SERVER_FAILURE, HostQuery, answer
from sandlot.protocol import schema
from sandlot.protocol.errors import CannotSend, ProtocolError
from sandlot.protocol.fast_imports import socket
from sandlot.protocol.schema import BODY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.loop import Loop
    from sandlot.guest.net.dns import NameTable
    from sandlot.guest.streams import Stream, StreamRouter

ADDRESS = ("127.0.0.1", schema.DNS_PORT)
MAX_QUERIES = 32
"""Maximum number of queries that are answered in a row. Because of this limit, a flood of queries delays no other work."""
MAX_LOOKUPS = 16
"""Maximum number of queries that wait for the host."""
LOOKUP_S = 4.0
"""Seconds after which a query that the host has not answered fails: less than the 5 s after which programs repeat it (resolv.conf(5))."""
MAX_MESSAGE_BYTES = 65535
"""Maximum size of a response of the host, the largest DNS message (RFC 1035, 4.2.2)."""


class DnsServer:
    """The UDP socket of the DNS server, and the queries that wait for the host.

    Args:
        loop: The guest's loop.
        router: Opens the streams to the host.
        table: Names of the synthetic addresses.
    """

    __slots__ = ("_lookups", "_loop", "_router", "_socket", "_table")

    def __init__(self, loop: Loop, router: StreamRouter, table: NameTable) -> None:
        self._loop = loop
        self._router = router
        self._table = table
        self._socket: socket.socket | None = None
        self._lookups: set[Lookup] = set()

    def open(self) -> None:
        """Begin to answer queries. If this fails, log the error: queries are then refused by the network stack. Idempotent."""
        if self._socket is not None:
            return
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            server.bind(ADDRESS)
        except OSError as error:
            server.close()
            log(f"cannot listen on {ADDRESS[0]}:{ADDRESS[1]} for DNS queries: {error}")
            return
        self._socket = server
        self._loop.watch(server.fileno(), READ, self._on_readable)

    def _on_readable(self, _mask: int) -> None:
        for _ in range(MAX_QUERIES):
            if self._socket is None:
                return
            try:
                message, program = self._socket.recvfrom(QUERY_BYTES + 1)
            except OSError:  # nothing is left to read, or an earlier response could not be delivered
                return
            response = answer(message, self._table)
            if isinstance(response, HostQuery):
                self._ask_host(response, program)
            elif response is not None:
                self._send(response, program)

    def _ask_host(self, query: HostQuery, program: tuple[str, int]) -> None:
        if len(self._lookups) >= MAX_LOOKUPS:
            self._send(query.query.respond(SERVER_FAILURE), program)
            return

        def on_answered(response: bytes) -> None:
            self._lookups.discard(lookup)
            self._send(response, program)

        lookup = Lookup(self._loop, query, on_answered)
        self._lookups.add(lookup)
        lookup.start(self._router)

    def _send(self, response: bytes, program: tuple[str, int]) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(response, program)
        except OSError:  # the program has closed its socket, or the buffer is full
            pass


class Lookup:
    """One query that waits for the host.

    Args:
        loop: The guest's loop.
        query: The query.
        on_answered: Called once with the response for the program.
    """

    __slots__ = ("_message", "_on_answered", "_query", "_stream", "_timer")

    def __init__(self, loop: Loop, query: HostQuery, on_answered: Callable[[bytes], object]) -> None:
        self._query = query
        self._on_answered: Callable[[bytes], object] | None = on_answered
        self._message = bytearray()
        self._stream: Stream | None = None
        self._timer = loop.call_later(LOOKUP_S, self._on_timeout)

    def start(self, router: StreamRouter) -> None:
        """Send the query to the host. If no stream can be opened, the query fails."""
        try:
            self._stream = router.open({"service": schema.DNS, "args": {"name": self._query.name, "type": self._query.type}}, self)
        except (CannotSend, ProtocolError):
            self._finish(self._query.query.respond(SERVER_FAILURE))
            return
        self._stream.end()

    def on_bytes(self, channel: int, data: bytes, credit: int) -> None:
        """Collect bytes of the response. If the response is too long, the query fails."""
        if self._stream is not None:
            self._stream.consumed(credit)
        if channel == BODY:
            self._message += data
        if len(self._message) > MAX_MESSAGE_BYTES:
            self._fail()

    def on_end(self) -> None:
        """Send the response to the program."""
        self._finish(self._query.query.forward(bytes(self._message)))

    def on_writable(self) -> None:
        """Do nothing: a query sends no bytes to the host."""

    def on_gone(self) -> None:
        """Refuse the query, because the host has refused it or the link was interrupted."""
        self._finish(self._query.query.respond(REFUSED))

    def _on_timeout(self) -> None:
        self._fail()

    def _fail(self) -> None:
        if self._stream is not None:
            self._stream.reset("timeout", "The sandbox waits no longer for the response.")
        self._finish(self._query.query.respond(SERVER_FAILURE))

    def _finish(self, response: bytes) -> None:
        self._timer.cancel()
        on_answered, self._on_answered = self._on_answered, None
        if on_answered is not None:
            on_answered(response)
