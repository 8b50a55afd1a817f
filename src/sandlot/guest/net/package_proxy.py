"""The port of the package index on the sandbox's loopback interface. Connections to this port are forwarded to the host.

Invariants:
- Each TCP connection is forwarded over its own stream of the host's service ``packages``. The guest does not interpret the bytes.
- At most :data:`MAX_CONNECTIONS` connections are open at once, so that captured connections and DNS queries find streams too. Further
  connections wait in the kernel's accept queue until a connection is closed. If an open connection is idle, the guest closes it to
  accept a waiting connection. A program that opens thousands of connections fills only the accept queue.
- A stream is opened when the first bytes of its connection arrive, so a silent connection uses no resources of the host.
- When the host connects again or the guest is quiesced, connections with a stream are reset, and the port stays open. Package
  managers then repeat their request. A request that is sent while no service runs stays in the link's pipe. When the next
  service connects to the guest, the connection of this request is reset too.
"""

from __future__ import annotations

import struct
import time
from fcntl import ioctl

from sandlot.guest.loop import READ, log
from sandlot.guest.net.socket_stream import READ_BYTES, SocketStream, accept_connection, send_reset_at_close
from sandlot.protocol import schema
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.fast_imports import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.loop import Loop
    from sandlot.guest.streams import Stream, StreamRouter

ADDRESS = ("127.0.0.1", schema.PACKAGES_PORT)
MAX_CONNECTIONS = 48
"""Maximum number of open connections.

No package manager opens as many connections by default.
"""
BACKLOG = 128
"""Maximum number of connections that wait in the kernel's accept queue."""
PAUSE_S = 0.1
"""Seconds between two attempts to accept a connection or to open its stream while the limit of connections or streams is reached."""
IDLE_S = 1.0
"""A connection counts as idle if it has no request in progress and no byte was written to it for this many seconds."""

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_IFREQ = struct.Struct("16sh14x")


class PackageProxy:
    """The listening port of the package index, and the open connections to it.

    Args:
        loop: The guest's loop.
        router: Opens the streams to the host.
    """

    __slots__ = ("_connections", "_is_paused", "_listener", "_loop", "_router")

    def __init__(self, loop: Loop, router: StreamRouter) -> None:
        self._loop = loop
        self._router = router
        self._listener: socket.socket | None = None
        self._is_paused = False
        self._connections: set[ProxiedConnection] = set()

    def listen(self) -> None:
        """Open the port and begin to accept connections. If this fails, log the error. The sandbox then has no package index."""
        try:
            listener = _open_listener()
        except OSError as error:
            log(f"cannot listen on {ADDRESS[0]}:{ADDRESS[1]} for the package index: {error}")
            return
        self._listener = listener
        self._loop.watch(listener.fileno(), READ, self._accept)

    def add(self, connection: socket.socket) -> ProxiedConnection:
        """Forward an accepted connection.

        Args:
            connection: Non-blocking socket; ownership passes to the proxy.
        """
        proxied = ProxiedConnection(self._loop, self._router, self, connection)
        self._connections.add(proxied)
        return proxied

    def remove(self, proxied: ProxiedConnection) -> None:
        """Remove a closed connection from the open connections, and continue to accept connections."""
        self._connections.discard(proxied)
        self._resume()

    def _accept(self, _mask: int) -> None:
        if self._listener is None or (len(self._connections) >= MAX_CONNECTIONS and not self._close_idle()):
            self._pause()
            return
        try:
            connection = accept_connection(self._listener)
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is free, or the client has reset the connection: retry after a pause
            log(f"cannot accept a connection to the package index: {error}")
            self._pause()
            return
        self.add(connection)

    def _close_idle(self) -> bool:
        """Close the connection that has been idle for the longest time. Return False if no connection is idle."""
        before_s = time.monotonic() - IDLE_S
        idle = [proxied for proxied in self._connections if proxied.idle_since_s <= before_s]
        if idle:
            min(idle, key=lambda proxied: proxied.idle_since_s).close()
        return bool(idle)

    def _pause(self) -> None:
        if self._listener is not None and not self._is_paused:
            self._is_paused = True
            self._loop.unwatch(self._listener.fileno())
            self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listener is not None and self._is_paused:
            self._is_paused = False
            self._loop.watch(self._listener.fileno(), READ, self._accept)


class ProxiedConnection:
    """One connection of a program to the package index. Its stream to the host is opened when its first bytes arrive.

    Args:
        loop: The guest's loop.
        router: Opens the stream to the host.
        proxy: Proxy whose ``remove`` is called when the connection is closed.
        connection: Accepted, non-blocking socket; ownership passes to this object.
    """

    __slots__ = ("_copy", "_has_request", "_is_closed", "_loop", "_opened_s", "_proxy", "_router", "_socket", "_stream")

    def __init__(self, loop: Loop, router: StreamRouter, proxy: PackageProxy, connection: socket.socket) -> None:
        self._loop = loop
        self._router = router
        self._proxy = proxy
        self._socket = connection
        self._stream: Stream | None = None
        self._copy: SocketStream | None = None
        self._has_request = False
        self._is_closed = False
        self._opened_s = time.monotonic()
        self._wait_for_request()

    @property
    def idle_since_s(self) -> float:
        """Value of ``time.monotonic`` at which the connection became idle. Infinite while a response is awaited or being sent."""
        if self._copy is None:
            return float("inf") if self._has_request else self._opened_s
        return float("inf") if self._copy.awaits_output or self._copy.has_output else self._copy.last_write_s

    def close(self) -> None:
        """Close the connection, and reset its stream to the host if the stream was opened. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._copy is None or self._stream is None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
        else:
            self._copy.close()
            self._stream.reset("conflict", "The connection to the package index was closed in the sandbox.")
        self._proxy.remove(self)

    def cut(self) -> None:
        """Close the connection with RST, so that the client does not treat an incomplete response as complete. Idempotent."""
        if not self._is_closed:
            send_reset_at_close(self._socket)
            self.close()

    def _wait_for_request(self) -> None:
        if not self._is_closed:
            self._loop.watch(self._socket.fileno(), READ, self._on_request)

    def _on_request(self, _mask: int) -> None:
        """Read the first bytes of the connection, and forward them to the host over a new stream."""
        if self._router.is_full:
            # No stream can be opened now, because the limit of streams is reached. A stream that was reset counts as open until its RESET
            # frame is written. The request stays unread in the socket, and is read after a pause.
            self._has_request = True
            self._loop.unwatch(self._socket.fileno())
            self._loop.call_later(PAUSE_S, self._wait_for_request)
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            self._stream = self._router.open({"service": schema.PACKAGES, "args": {}})
        except ProtocolError:  # no stream can be opened, because no service is connected or the guest is quiesced
            self.cut()
            return
        self._copy = self._stream.handler = SocketStream(self._loop, self._stream, self)
        self._copy.send(data)
        self._copy.start(self._socket)

    # -- ends and errors ----------------------------------------------------------------------------------------------

    def on_gone(self) -> None:
        """Close the connection with RST, because its stream to the host is lost."""
        self.cut()

    def on_data_end(self) -> None:
        """Send END to the host, because the client sends no more bytes."""
        if self._stream is not None:
            self._stream.end()

    def on_finished(self) -> None:
        """Close the connection, because the client and the host have both finished sending."""
        self.close()

    def on_read_error(self) -> None:
        """Close the connection, because the client has reset it."""
        self.close()

    def on_write_error(self) -> None:
        """Close the connection, because the client reads no more bytes."""
        self.close()


def _open_listener() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _bring_loopback_up(listener)
    listener.bind(ADDRESS)
    listener.listen(BACKLOG)
    return listener


def _bring_loopback_up(any_socket: socket.socket) -> None:
    """Activate the interface ``lo``, which is down in a new network namespace (netdevice(7)). Does nothing if the interface is up.

    gVisor and container runtimes activate the interface themselves.

    Args:
        any_socket: Any open socket; ioctl(2) needs the descriptor of a socket.
    """
    name, flags = _IFREQ.unpack(ioctl(any_socket.fileno(), _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0)))
    if not flags & _IFF_UP:
        ioctl(any_socket.fileno(), _SIOCSIFFLAGS, _IFREQ.pack(name, flags | _IFF_UP))
