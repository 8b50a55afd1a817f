"""Listening sockets, unix and TCP, and the HTTP protocol of a connection, with bounded memory for each client.

Invariants:
- The unix socket never exists with other permissions than 0600. A connection to it is that of the owner only if the kernel reports that the peer is
  root or this service's user (SO_PEERCRED, unix(7)).
- A request's head has at most 64 KiB and 128 fields and must be complete within 30 s, which begin with the connection for the first head. For a head
  that began to arrive during the response to an earlier request, the 30 s begin after that response.
- The number of connections is limited, on TCP and on the unix socket separately, so a flood of one leaves the other usable. A further connection
  gets 503 with Retry-After and is closed.
- A client that reads nothing of its responses for two minutes is disconnected, also if it sends further requests meanwhile.
- The end of a connection is detected also while nothing is read from it; that of a machine that vanished after two minutes (tcp(7), SO_KEEPALIVE).
- TCP connections send at once (TCP_NODELAY): a response is one small write, which Nagle's algorithm would delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import struct
from pathlib import Path
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sandlot.model.errors import ErrorCode, HostError, InvalidRequestError
from sandlot.model.faults import Fault
from sandlot.web.auth import OWNER

HEAD_MAX_BYTES = 64 * 1024
HEAD_MAX_FIELDS = 128
"""A field of four bytes takes forty times as much memory."""
HEAD_TIMEOUT_S = 30.0
STALL_TIMEOUT_S = 120.0
PIPELINE_MAX = 64
"""Pipelined requests that wait for an earlier response. Few clients pipeline, and each request takes some KiB."""
BACKLOG = 512
KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""Seconds without data until the first probe, seconds between probes, and unanswered probes until the connection is closed."""
HUNG_UP = "hung_up"
"""Key in the state of a request: a function that returns True if the client has hung up."""
_SUN_PATH_MAX = 107
"""Maximum bytes of a unix socket's path, unix(7)."""

CONNECTIONS_RETRY_AFTER_S = 1
_TOO_MANY_CONNECTIONS = {
    "type": "about:blank",
    "title": "Service Unavailable",
    "status": 503,
    "detail": "The service has reached its limit of connections.",
    "code": str(ErrorCode.BUSY),
    "hint": "Close unused connections, or retry later. An operator can raise SANDLOT_MAX_CONNECTIONS.",
    "retryable": True,
    "fault": Fault.CAPACITY,
    "request_id": "",
    "fields": {"retry_after_s": CONNECTIONS_RETRY_AFTER_S},
}
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class SandlotHttpProtocol(HttpToolsProtocol):
    """One HTTP connection.

    Args:
        args: Arguments of uvicorn's protocol.
        max_connections: Maximum number of connections on TCP; the unix socket has a limit of the same size.
        kwargs: Arguments of uvicorn's protocol.
    """

    def __init__(self, *args: Any, max_connections: int, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's arguments
        super().__init__(*args, **kwargs)
        self.is_local = False
        self._max_connections = max_connections
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._is_large = False
        self._head_bytes = 0
        self._in_head = True
        self._has_request_end = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Check the limit of connections and the peer."""
        super().connection_made(transport)
        link = transport.get_extra_info("socket")
        self.is_local = link is not None and link.family == socket.AF_UNIX
        self.app_state = {**self.app_state, HUNG_UP: lambda: transport.is_closing() or (link is not None and has_hung_up(link))}
        # Connections that became WebSockets count as well.
        if sum(1 for each in self.connections if getattr(each, "is_local", None) == self.is_local) > self._max_connections:
            self.connections.discard(self)
            transport.write(_too_many_connections_response())
            transport.close()
            return
        if self.is_local:
            if is_owner(link):
                self.app_state = {**self.app_state, "peer": OWNER}
        elif link is not None:
            with contextlib.suppress(OSError):
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in KEEPALIVE:
                    link.setsockopt(socket.IPPROTO_TCP, option, value)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop_head_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, and refuse a head that is too large."""
        self._has_request_end = False
        super().data_received(data)
        # Data in which a request ended is mostly its body; its part of the next head is not counted.
        if self._in_head and not self._has_request_end:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX_BYTES and not self.transport.is_closing():
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()

    def pause_writing(self) -> None:
        """Watch a client that reads more slowly than it is sent to."""
        super().pause_writing()
        self._stop_stall_timer()
        self._watch_stall()

    def resume_writing(self) -> None:
        """Stop watching a client that has caught up."""
        super().resume_writing()
        self._stop_stall_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a field of the head, within the limit."""
        if len(self.headers) >= HEAD_MAX_FIELDS:
            self._is_large = True
            raise ValueError(f"more than {HEAD_MAX_FIELDS} fields")  # the parser stops, and its caller responds with 400
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """Respond to a request that the parser refused."""
        if not self._is_large:
            super().send_400_response(msg)
        elif not self.transport.is_closing():
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Start the time of the head."""
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the time of the head, and limit the pipeline."""
        self._stop_head_timer()
        if len(self.pipeline) >= PIPELINE_MAX:
            raise ValueError(f"more than {PIPELINE_MAX} requests ahead")  # likewise
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the head of the next request."""
        super().on_message_complete()
        self._in_head = True
        self._has_request_end = True
        self._head_bytes = 0

    def on_response_complete(self) -> None:
        """Start the time of the next request's head now if a part of it has arrived."""
        super().on_response_complete()
        if self._head_timer is not None:
            self._start_head_timer()

    def _watch_stall(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self._check_stall)

    def _check_stall(self) -> None:
        # Nothing is added while writing is paused: fewer bytes mean that the client has read some.
        if self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._watch_stall()
        else:
            self._stall_timer = None
            self.transport.abort()  # closing would wait for the client

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _expect_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._start_head_timer()

    def _start_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._end_head_time)

    def _stop_head_timer(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_head_time(self) -> None:
        self._head_timer = None
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            # Part of a pipelined request, which waits for the current response.
            self._start_head_timer()
        elif not self.transport.is_closing():
            self.transport.close()


def _too_many_connections_response() -> bytes:
    body = json.dumps(_TOO_MANY_CONNECTIONS).encode()
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {CONNECTIONS_RETRY_AFTER_S}\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def is_owner(link: socket.socket) -> bool:
    """Return True if the peer of a unix socket is root or this process's user."""
    try:
        raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return False
    _, uid, _ = cast("tuple[int, int, int]", struct.unpack("3i", raw))
    return uid in {0, os.geteuid()}


def has_hung_up(link: socket.socket) -> bool:
    """Return True if the peer of a connection has stopped sending, even if some of its data has not been read (POLLRDHUP, poll(2))."""
    number = link.fileno()
    if number < 0:
        return True
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))


def unix_socket(path: Path) -> socket.socket:
    """Return a listening unix socket in a private directory. It replaces what is at its path atomically.

    Raises:
        InvalidRequestError: The path is too long.
        HostError: The socket cannot be created.
    """
    if len(os.fsencode(path)) > _SUN_PATH_MAX:
        raise InvalidRequestError(
            f"The socket path {path} has more than {_SUN_PATH_MAX} bytes, the maximum of Linux.", hint="Set SANDLOT_DATA_DIR to a shorter path."
        )
    beside = path.with_name(f".{path.name}"[:8])
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        beside.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            listener.bind(os.fspath(beside))
        finally:
            os.umask(before)
        # Listening before the socket has its name: clients that find the name can connect.
        listener.listen(BACKLOG)
        listener.setblocking(False)
        beside.replace(path)
    except OSError as error:
        listener.close()
        raise HostError(f"Cannot create the socket {path}: {error.strerror or error}.", code=ErrorCode.HOST_NOT_READY) from error
    return listener


def tcp_socket(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    Args:
        host: Host name, or IPv4 or IPv6 address.
        port: Port; 0 selects a free one.

    Raises:
        HostError: The socket cannot be created.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise HostError(
            f"Cannot listen on {host} port {port}: {error.strerror or error}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Choose another --host or --port, or end the process that uses the port (see 'ss -ltnp').",
        ) from error
    return listener
