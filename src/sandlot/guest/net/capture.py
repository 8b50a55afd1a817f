"""Captured connections: TCP connections of programs to other hosts, each over its own stream of the host's service ``connect``.

A NAT table in the sandbox's network stack redirects these connections to :data:`ADDRESS` (``host/nat_table.py`` of the service). The guest reads the
original destination of each connection. If this is a synthetic address of the DNS responder, the guest sends the name to the host, otherwise the
address. The host decides and connects. The guest does not interpret the bytes.

Invariants:
- A connection is accepted before the host has decided. If the host refuses the destination or the connection to it is interrupted, the connection is
  reset.
- At most :data:`MAX_CONNECTIONS` connections are open at once. Further connections are reset at once, and so are connections for which no stream can
  be opened.
- While a checkpoint is taken or the guest is quiesced, no captured connection is open and none can be opened. The state of the NAT table is not in
  the image: the reset of such a connection would not reach the program in the copy, which would wait for data without end. The port stays bound
  meanwhile, so that no program can open the port.
"""

from __future__ import annotations

from sandlot.guest.loop import READ, log
from sandlot.guest.net.socket_stream import SocketStream, accept_connection, send_reset_at_close
from sandlot.protocol import schema
from sandlot.protocol.errors import CannotSend, ProtocolError
from sandlot.protocol.fast_imports import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.loop import Loop
    from sandlot.guest.net.dns import NameTable
    from sandlot.guest.streams import Stream, StreamRouter

ADDRESS = ("127.0.0.1", schema.CAPTURE_PORT)
MAX_CONNECTIONS = 1024
"""Maximum number of open connections."""
BACKLOG = 128
"""Maximum number of connections that wait in the kernel's accept queue."""
MAX_ACCEPTS = 32
"""Maximum number of connections that are accepted in a row. Because of this limit, a flood of connections delays no other work."""
PAUSE_S = 0.1
"""Seconds between two attempts to accept a connection after an attempt has failed."""

_SO_ORIGINAL_DST = 80
"""Option of the level ``IPPROTO_IP`` (linux/netfilter_ipv4.h): the address to which a redirected connection was opened."""
_SOCKADDR_BYTES = 16


class CaptureListener:
    """The listening port to which connections are redirected, and the captured connections.

    Args:
        loop: The guest's loop.
        router: Opens the streams to the host.
        table: Names of the synthetic addresses.
    """

    __slots__ = ("_connections", "_is_open", "_is_paused", "_listener", "_loop", "_router", "_table")

    def __init__(self, loop: Loop, router: StreamRouter, table: NameTable) -> None:
        self._loop = loop
        self._router = router
        self._table = table
        self._listener: socket.socket | None = None
        self._is_open = False
        self._is_paused = False
        self._connections: set[CapturedConnection] = set()

    def __len__(self) -> int:
        return len(self._connections)

    def open(self) -> None:
        """Begin to accept connections, again after :meth:`suspend`. If this fails, log the error: connections are then refused. Idempotent."""
        if self._is_open:
            return
        try:
            if self._listener is None:
                self._listener = _bind()
            self._listener.listen(BACKLOG)
        except OSError as error:
            log(f"cannot listen on {ADDRESS[0]}:{ADDRESS[1]} for captured connections: {error}")
            return
        self._is_open = True
        self._resume()

    def suspend(self) -> None:
        """Reset all connections, also those that wait to be accepted. Further connections are refused until :meth:`open` is called. Idempotent."""
        if self._listener is not None and self._is_open:
            self._is_open = False
            self._loop.unwatch(self._listener.fileno())
            self._listener.shutdown(socket.SHUT_RD)  # resets the connections in the accept queue, and keeps the port bound
        for connection in list(self._connections):
            connection.cut()

    def forget(self, connection: CapturedConnection) -> None:
        """Remove a closed connection from the open connections."""
        self._connections.discard(connection)

    def _accept(self, _mask: int) -> None:
        for _ in range(MAX_ACCEPTS):
            if self._listener is None or not self._is_open:
                return
            try:
                connection = accept_connection(self._listener)
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor is free, or the program has reset the connection
                log(f"cannot accept a captured connection: {error}")
                self._pause()
                return
            self._add(connection)

    def _add(self, connection: socket.socket) -> None:
        destination = find_destination(connection, self._table)
        if destination is not None and len(self._connections) < MAX_CONNECTIONS:
            host, port = destination
            try:
                stream = self._router.open({"service": schema.CONNECT, "args": {"host": host, "port": port}})
            except (CannotSend, ProtocolError):  # too many streams are open, no service is connected, or the guest is asleep
                pass
            else:
                self._connections.add(CapturedConnection(self._loop, stream, self, connection))
                return
        send_reset_at_close(connection)
        connection.close()

    def _pause(self) -> None:
        if self._listener is not None and not self._is_paused:
            self._is_paused = True
            self._loop.unwatch(self._listener.fileno())
            self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._is_paused = False
        if self._listener is not None and self._is_open:
            self._loop.watch(self._listener.fileno(), READ, self._accept)


class CapturedConnection:
    """One captured connection and its stream to the host.

    Args:
        loop: The guest's loop.
        stream: Stream of the service ``connect``.
        listener: Listener whose ``forget`` is called when the connection is closed.
        connection: Accepted, non-blocking socket; ownership passes to this object.
    """

    __slots__ = ("_copy", "_is_closed", "_listener", "_stream")

    def __init__(self, loop: Loop, stream: Stream, listener: CaptureListener, connection: socket.socket) -> None:
        self._stream = stream
        self._listener = listener
        self._is_closed = False
        self._copy = stream.handler = SocketStream(loop, stream, self)
        self._copy.start(connection)

    def cut(self) -> None:
        """Close the connection with RST, so that the program does not treat the received data as complete. Idempotent."""
        self._copy.cut()
        self._close()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._copy.close()
            self._stream.reset("conflict", "The connection was closed in the sandbox.")
            self._listener.forget(self)

    # -- ends and errors ----------------------------------------------------------------------------------------------

    def on_gone(self) -> None:
        """Close the connection with RST, because the host has refused or interrupted it."""
        self.cut()

    def on_data_end(self) -> None:
        """Send END to the host, because the program sends no more bytes."""
        self._stream.end()

    def on_finished(self) -> None:
        """Close the connection, because the program and the host have both finished sending."""
        self._close()

    def on_read_error(self) -> None:
        """Close the connection, because the program has reset it."""
        self._close()

    def on_write_error(self) -> None:
        """Close the connection, because the program has closed it and reads no more bytes."""
        self._close()


def find_destination(connection: socket.socket, table: NameTable) -> tuple[str, int] | None:
    """Return the name or address, and the port, to which a program has opened a redirected connection.

    Return None if the connection was not redirected: a program has connected to the port of the guest itself.

    Args:
        connection: Accepted connection.
        table: Names of the synthetic addresses.
    """
    try:
        raw = connection.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, _SOCKADDR_BYTES)
    except OSError:  # the network stack knows no redirection
        return None
    port, address = int.from_bytes(raw[2:4], "big"), raw[4:8]
    host = table.find(address) or socket.inet_ntoa(address)
    return None if (host, port) == ADDRESS else (host, port)


def _bind() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(ADDRESS)
    except OSError:
        listener.close()
        raise
    return listener
