"""Tunnels: TCP connections from the host to ports of programs in the sandbox, each over the stream of a ``port.connect`` call.

Invariants:
- A tunnel connects as the account ``user``: first to 127.0.0.1, then to ::1 if that fails, and to no other address. A tunnel works
  even if the sandbox has no network.
- An END frame from the host becomes end of file for the program. End of file of the program becomes the event ``end``.
- If a program reads no more bytes, bytes from the host are dropped. All bytes that the program still sends are forwarded.
- When the stream of a tunnel is lost, for example because the host connects again or the guest is quiesced, the connection to the
  program is reset. A copy of a sandbox therefore has no tunnels of the original.
- At most :data:`MAX_TUNNELS` tunnels are open at once.
"""

from __future__ import annotations

import errno

from sandlot.guest.errors import RpcError
from sandlot.guest.loop import WRITE
from sandlot.guest.net.socket_stream import SocketStream, send_reset_at_close
from sandlot.guest.process.accounts import as_file_user, lookup_account
from sandlot.protocol import schema
from sandlot.protocol.fast_imports import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandlot.guest.loop import Loop, Timer
    from sandlot.guest.rpc import Call

MAX_TUNNELS = 64
"""Maximum number of open tunnels: a third of the streams that the host may open, so that streams are left for other calls."""
CONNECT_S = 10.0
"""Seconds after which a connection attempt fails. Without this limit, the kernel would try for minutes (tcp_syn_retries, tcp(7))."""

_IN_PROGRESS = (0, errno.EINPROGRESS)


class TunnelService:
    """Handler of the ``port.connect`` call.

    Args:
        loop: The guest's loop.

    Attributes:
        open: Tunnels that are open or connecting.
    """

    __slots__ = ("_loop", "open")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.open: set[Tunnel] = set()

    def connect(self, call: Call) -> None:
        """Handle ``port.connect``: open a tunnel to a port of the sandbox's loopback."""
        port = call.args["port"]
        if not 0 < port <= schema.MOST_PORT:
            raise RpcError("invalid_request", f"Port {port} is invalid.", f"Use a port from 1 to {schema.MOST_PORT}.")
        if port in schema.GUEST_PORTS:
            raise RpcError("port_not_found", f"Port {port} is reserved for Sandlot.", "Let the program listen on another port.")
        if len(self.open) >= MAX_TUNNELS:
            raise RpcError("limit_exceeded", f"{MAX_TUNNELS} connections to ports of the sandbox are open, the maximum.", "Close a connection.")
        tunnel = Tunnel(self._loop, call, port, self.open)
        self.open.add(tunnel)
        tunnel.connect_to_next()


class Tunnel:
    """One tunnel: a connection to a port of the sandbox, and the call of the host that uses the connection.

    Args:
        loop: The guest's loop.
        call: The call ``port.connect``.
        port: Port to connect to.
        tunnels: All open tunnels. This tunnel removes itself when it is closed.
    """

    __slots__ = ("_addresses", "_call", "_connecting", "_copy", "_loop", "_port", "_timer", "_tunnels")

    def __init__(self, loop: Loop, call: Call, port: int, tunnels: set[Tunnel]) -> None:
        self._loop = loop
        self._call = call
        self._port = port
        self._tunnels = tunnels
        self._addresses: Iterator[tuple[int, str]] = iter(zip((socket.AF_INET, socket.AF_INET6), schema.LOOPBACK, strict=True))
        self._connecting: socket.socket | None = None
        self._copy = SocketStream(loop, call.stream, self)
        self._timer: Timer = loop.call_later(CONNECT_S, self._on_timeout)
        call.on_bytes, call.on_end, call.on_writable, call.on_gone = self._copy.on_bytes, self._copy.on_end, self._copy.on_writable, self.cut

    def connect_to_next(self) -> None:
        """Begin to connect to the next loopback address. If all addresses have failed, respond to the call with an error."""
        for family, address in self._addresses:
            try:
                with as_file_user(lookup_account("user")):
                    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT:
                    continue
                self._fail(
                    "limit_exceeded", f"The connection could not be opened: {error.strerror}.", "Close connections of programs in the sandbox."
                )
                return
            if connection.connect_ex((address, self._port)) in _IN_PROGRESS:
                self._connecting = connection
                self._loop.watch(connection.fileno(), WRITE, lambda _mask, address=address: self._on_connected(address))  # type: ignore[misc]
                return
            connection.close()
        self._fail(
            "port_not_found", f"Nothing listens on port {self._port}.", "Start the program first, and let it listen on 127.0.0.1 or on all addresses."
        )

    def cut(self) -> None:
        """Close the connection with RST, so that the program does not treat the received data as complete. Idempotent."""
        if self._connecting is not None:
            send_reset_at_close(self._connecting)
        self._copy.cut()
        self._close()

    def _on_connected(self, address: str) -> None:
        connection = self._connecting
        if connection is None:
            return
        # A connected socket may be connected to itself. This happens if no program listens on the port and the kernel has chosen the same
        # port number as the socket's local port (simultaneous open, RFC 9293, section 3.5).
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or connection.getsockname()[:2] == (address, self._port):
            self._close_connecting()
            self.connect_to_next()
            return
        self._connecting = None
        self._timer.cancel()
        self._call.event("connected", address=address)
        self._copy.start(connection)

    def _on_timeout(self) -> None:
        self._fail(
            "timeout",
            f"The program on port {self._port} did not accept the connection within {CONNECT_S:g} s.",
            "Check that the program still works.",
        )

    def _fail(self, code: str, message: str, hint: str) -> None:
        self.cut()
        self._call.fail(code, message, hint)

    def _close(self) -> None:
        self._timer.cancel()
        self._close_connecting()
        self._copy.close()
        self._tunnels.discard(self)

    def _close_connecting(self) -> None:
        connection, self._connecting = self._connecting, None
        if connection is not None:
            self._loop.unwatch(connection.fileno())
            connection.close()

    # -- ends and errors ----------------------------------------------------------------------------------------------

    def on_gone(self) -> None:
        """Close the connection with RST, because the stream of the call is lost."""
        self.cut()

    def on_data_end(self) -> None:
        """Send the event ``end``, because the program sends no more bytes."""
        self._call.event("end")

    def on_finished(self) -> None:
        """Close the tunnel and respond to the call, because both directions have ended."""
        self._close()
        self._call.result()

    def on_read_error(self) -> None:
        """Respond to the call with an error, because the program has reset the connection."""
        self._fail("conflict", f"The program on port {self._port} reset the connection.", "Check the output of the program.")

    def on_write_error(self) -> None:
        """Drop bytes from the host from now on, because the program reads no more bytes. The program's bytes are still forwarded."""
        self._copy.drop_output()
