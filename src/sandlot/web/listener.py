"""Listening sockets, unix and TCP, and the HTTP protocol of a connection, with bounded memory for each client.

Invariants:
- The unix socket never exists with other permissions than 0600. A connection to it is that of the owner only if the kernel reports that the peer is
  root or this service's user (SO_PEERCRED, unix(7)).
- A request's head has at most 64 KiB and 128 fields and must be complete within 30 s, which begin with the connection for the first head. For a head
  that began to arrive during the response to an earlier request, the 30 s begin after that response. The rest of a body that is still arriving when
  its request was answered has the same time.
- A connection without a key that is idle is closed after 15 s, other idle connections after 75 s.
- An upgrade has no body: nothing defines where the body ends and the new protocol begins.
- The number of connections is limited, on TCP and on the unix socket separately, so a flood of one leaves the other usable. On TCP, each peer address
  and each key has a share (``web/connections.py``). A connection that is refused gets 503 with Retry-After and is closed.
- A client that reads nothing of its responses for two minutes is disconnected, also if it sends further requests meanwhile.
- The end of a connection is detected also while nothing is read from it; that of a machine that vanished after two minutes (tcp(7), SO_KEEPALIVE).
- TCP connections send at once (TCP_NODELAY): a response is one small write, which Nagle's algorithm would delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import select
import socket
import struct
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Never, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sandlot.model.errors import ErrorCode, HostError, InvalidRequestError, SandlotError, UnavailableError
from sandlot.web import errors
from sandlot.web.auth import OWNER
from sandlot.web.connections import CONNECTION, RETRY_AFTER_S, Connection, ConnectionShares
from sandlot.web.request_id import new_request_id
from sandlot.web.slices import SlicedInput, SliceTurns

HEAD_MAX_BYTES = 64 * 1024
HEAD_MAX_FIELDS = 128
"""A field of four bytes takes forty times as much memory."""
HEAD_TIMEOUT_S = 30.0
ANONYMOUS_KEEP_ALIVE_S = 15.0
"""Seconds for which an idle connection without a key stays open."""
STALL_TIMEOUT_S = 120.0
FRAMING_MAX_BYTES = 320 * 1024
"""Bytes that may arrive without a byte of the body while a body is expected: the largest chunk that is read at once, and a head."""
MAX_READ_BYTES = 1024 * 1024
"""More than one read has."""
SLICE_BYTES = 64 * 1024
"""Largest slice of a chunked body."""
SMALL_SLICE_BYTES = 8 * 1024
"""First slice of a chunked body, and the slice after one with more than ``MANY_PARTS`` chunks. Otherwise a slice is twice as large as the last."""
MANY_PARTS = 64
PIPELINE_MAX = 64
"""Pipelined requests that wait for an earlier response. Few clients pipeline, and each request takes some KiB."""
BACKLOG = 2048
"""Connections that wait to be accepted; the kernel has a limit of its own (net.core.somaxconn)."""
KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""Seconds without data until the first probe, seconds between probes, and unanswered probes until the connection is closed."""
HUNG_UP = "hung_up"
"""Key in the state of a request: a function that returns True if the client has hung up."""
_SUN_PATH_MAX = 107
"""Maximum bytes of a unix socket's path, unix(7)."""

_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class _SlicedFlow(FlowControl):
    """Flow control of a connection whose data may wait in slices."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False

    def hold(self, is_held: bool) -> None:  # noqa: FBT001 - the argument of SlicedInput
        """Read nothing while slices wait."""
        if is_held != self._is_held and not self._transport.is_closing():
            self._is_held = is_held
            if is_held:
                self._transport.pause_reading()
            elif not self.read_paused:
                self._transport.resume_reading()

    def resume_reading(self) -> None:
        """Read on, unless slices wait."""
        if self._is_held:
            self.read_paused = False
        else:
            super().resume_reading()


class SandlotHttpProtocol(HttpToolsProtocol):
    """One HTTP connection.

    Args:
        args: Arguments of uvicorn's protocol.
        tcp: Shares of the connections on TCP.
        local: Connections on the unix socket.
        turns: Turns of the connections whose data waits.
        kwargs: Arguments of uvicorn's protocol.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - uvicorn's arguments
        tcp: ConnectionShares,
        local: ConnectionShares,
        turns: SliceTurns,
        **kwargs: Any,  # noqa: ANN401 - uvicorn's arguments
    ) -> None:
        super().__init__(*args, **kwargs)
        self._tcp = tcp
        self._local = local
        self._turns = turns
        self._connection: Connection | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._refusal: bytes = b""
        """Response to a request that the callbacks of the parser refuse."""
        self._head_bytes = 0
        """Bytes of the complete parts of the current head."""
        self._loose_bytes = 0
        """Bytes since the current head began, or since the last byte of the current body."""
        self._has_progress = False
        """True if the last data had a part of a body, or the end of a request."""
        self._in_head = True
        self._is_upgraded = False
        self._is_chunked = False
        self._parts = 0
        """Parts of a body in the last slice."""
        self._next_slice_bytes = SMALL_SLICE_BYTES
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Check the limits of connections and the peer."""
        super().connection_made(transport)
        self.flow = flow = _SlicedFlow(transport)
        self._input = SlicedInput(self._turns, self._parse, self._slice_bytes, flow.hold)
        link = transport.get_extra_info("socket")
        is_local = link is not None and link.family == socket.AF_UNIX
        try:
            shares = self._local if is_local else self._tcp
            self._connection = shares.open(self.client[0] if self.client and not is_local else "", transport.abort)
        except UnavailableError as error:
            self.connections.discard(self)
            transport.write(_connection_refusal(error.message, error.hint))
            transport.close()
            return
        is_gone = lambda: transport.is_closing() or (link is not None and has_hung_up(link))  # noqa: E731
        self.app_state = {**self.app_state, HUNG_UP: is_gone, CONNECTION: self._connection}
        if is_local:
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
        """Stop all timers, and give the place of the connection back."""
        self._stop_head_timer()
        self._stop_stall_timer()
        self._input.stop()
        if self._connection is not None:
            self._connection.lost()
        super().connection_lost(exc)
        # Cycles of references would be garbage, and to collect that of thousands of connections takes a tenth of a second.
        del self._input
        self.cycle = None  # type: ignore[assignment] # as before the first request

    def data_received(self, data: bytes) -> None:
        """Parse data, in slices if it may have many small chunks."""
        self._input.push(data)

    def _slice_bytes(self) -> int:
        if not self._in_head and not self._is_chunked:
            return MAX_READ_BYTES  # a body of known length is one part, however large
        return SMALL_SLICE_BYTES if self._in_head else self._next_slice_bytes

    def _parse(self, data: bytes) -> None:
        """Parse data, and refuse a head that is too large."""
        if self._connection is None or self.transport.is_closing():
            return
        self._has_progress = False
        self._parts = 0
        super().data_received(data)
        if self.transport.is_closing() or self._is_upgraded:
            return
        self._next_slice_bytes = SMALL_SLICE_BYTES if self._in_head or self._parts > MANY_PARTS else min(SLICE_BYTES, 2 * self._next_slice_bytes)
        # The parser holds an incomplete field, in a head or behind the last chunk of a body. Data with progress is mostly a body and is not counted.
        if not self._has_progress:
            self._loose_bytes += len(data)
        if self._loose_bytes > (HEAD_MAX_BYTES if self._in_head else FRAMING_MAX_BYTES):
            self._refuse(_HEAD_TOO_LARGE)
        elif self._in_head and self._head_timer is None and self.timeout_keep_alive_task is None and self._is_answered():
            self._start_head_timer()  # the data was only line breaks, or the rest of a request that was answered before

    def pause_writing(self) -> None:
        """Watch a client that reads more slowly than it is sent to."""
        super().pause_writing()
        self._stop_stall_timer()
        self._watch_stall()

    def resume_writing(self) -> None:
        """Stop watching a client that has caught up."""
        super().resume_writing()
        self._stop_stall_timer()

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection on. Data behind the request is dropped: a client waits for the response (RFC 6455, 4.1)."""
        self._input.stop()
        self._is_upgraded = True
        super().handle_websocket_upgrade()

    def on_url(self, url: bytes) -> None:
        """Add a part of the target of the request, within the limit of the head."""
        self._head_bytes += len(url)
        if self._head_bytes > HEAD_MAX_BYTES:
            self._stop_parser(_HEAD_TOO_LARGE)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a field of the head, within the limits."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > HEAD_MAX_BYTES or len(self.headers) >= HEAD_MAX_FIELDS:
            self._stop_parser(_HEAD_TOO_LARGE)
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """Respond to a request that the parser or a callback of it refused."""
        if self.transport.is_closing():
            return
        if self._refusal:
            self._refuse(self._refusal)
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """Start the time of the head."""
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the time of the head, limit the pipeline, and refuse an upgrade with a body."""
        self._stop_head_timer()
        self._loose_bytes = 0
        self._is_chunked = b"transfer-encoding" in [name for name, _ in self.headers]
        if len(self.pipeline) >= PIPELINE_MAX:
            self._stop_parser(b"")
        if self.parser.should_upgrade() and _has_body(self.headers):
            message = "The request to upgrade the connection has a body."
            self._stop_parser(_response(InvalidRequestError(message, hint="Send the request without a body, or without the Upgrade header.")))
        if self._connection is not None:
            self._connection.begin_request()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        self._loose_bytes = 0
        self._has_progress = True
        self._parts += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the head of the next request."""
        super().on_message_complete()
        self._stop_head_timer()
        self._in_head = self._has_progress = True
        self._head_bytes = self._loose_bytes = 0

    def on_response_complete(self) -> None:
        """Start the time of the next request's head now if a part of it has arrived, or that of the rest of this request."""
        super().on_response_complete()
        if self._connection is not None and not self.pipeline:
            self._connection.end_request()
            if self._connection.is_anonymous and self.timeout_keep_alive_task is not None:
                self.timeout_keep_alive_task.cancel()
                self.timeout_keep_alive_task = self.loop.call_later(ANONYMOUS_KEEP_ALIVE_S, self.timeout_keep_alive_handler)
        if self._head_timer is not None or not self._in_head:
            self._start_head_timer()

    def _stop_parser(self, refusal: bytes) -> Never:
        """Stop the parser, which calls :meth:`send_400_response`."""
        self._refusal = refusal
        raise ValueError("the request is refused")

    def _refuse(self, response: bytes) -> None:
        self.transport.write(response)
        self.transport.close()

    def _is_answered(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

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
        self._head_bytes = self._loose_bytes = 0
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
        if not self._is_answered():
            # Part of a pipelined request, which waits for the current response.
            self._start_head_timer()
        elif not self.transport.is_closing():
            self.transport.close()


def _response(error: SandlotError) -> bytes:
    """Return the response to a request that reaches no route, after which the connection is closed."""
    response = errors.problem_response(error, new_request_id(), headers={"Connection": "close"})
    head = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    return b"\r\n".join([*head, *(name + b": " + value for name, value in response.raw_headers), b"", bytes(response.body)])


@functools.cache
def _connection_refusal(message: str, hint: str) -> bytes:
    """Return the response to a connection that is refused. A flood of connections gets the same bytes."""
    return _response(UnavailableError(message, code=ErrorCode.BUSY, hint=hint, fields={"retry_after_s": RETRY_AFTER_S}))


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")) for name, value in headers)


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
