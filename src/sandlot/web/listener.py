"""How clients reach the app: the unix socket, TCP, and an HTTP parser that nobody can make hold memory.

Laws:
- The unix socket never exists with other permissions than 0600, and a connection counts as its owner's only where the kernel
  says that the peer is root or this very user (SO_PEERCRED, unix(7)).
- A request's head is at most 64 KiB and 128 fields, and must be complete within 30 s; so must be the first one after connecting. For a
  head that began to arrive during the response to an earlier request, the 30 s begin after that response.
- There is a bound on connections, on TCP and on the unix socket each for itself: whoever floods the one leaves the other alone.
  One too many is told so with 503 and Retry-After, and closed.
- A client that takes nothing of what waits for it for two minutes is cut off; so is one that sends requests on ahead.
- Whether a client has hung up is known also while nothing of what it sent is read; a machine that is gone without a word, after two
  minutes (tcp(7), SO_KEEPALIVE).
- TCP connections send at once (TCP_NODELAY): an answer is one small write, and Nagle's algorithm would sit on it.
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
from sandlot.web.auth import OWNER

HEAD_MAX_BYTES = 64 * 1024
HEAD_MAX_FIELDS = 128
"""A field of four bytes takes forty times as many here."""
HEAD_TIMEOUT_S = 30.0
STALL_TIMEOUT_S = 120.0
PIPELINE_MAX = 64
"""Requests that wait behind the one that is being answered. Hardly a client sends on ahead, and each that waits takes some KiB."""
BACKLOG = 512
KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""Seconds of silence, seconds between two questions, and questions until a machine that does not answer counts as gone."""
HUNG_UP = "hung_up"
"""What a request's state has: a function that says whether its client has hung up."""
_SUN_PATH_MAX = 107
"""Bytes of a unix socket's path, unix(7)."""

CONNECTIONS_RETRY_AFTER_S = 1
_TOO_MANY_CONNECTIONS = {
    "type": "about:blank",
    "title": "Service Unavailable",
    "status": 503,
    "detail": "The service has as many connections as it may.",
    "code": str(ErrorCode.BUSY),
    "hint": "Use fewer, or try again in a moment; its operator may raise SANDLOT_MAX_CONNECTIONS.",
    "retryable": True,
    "request_id": "",
    "fields": {"retry_after_s": CONNECTIONS_RETRY_AFTER_S},
}
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class SandlotHttpProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        args: uvicorn's business.
        max_connections: On TCP, and on the unix socket.
        kwargs: uvicorn's business.
    """

    def __init__(self, *args: Any, max_connections: int, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's business
        super().__init__(*args, **kwargs)
        self.is_local = False
        self._max_connections = max_connections
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._is_large = False
        self._head_bytes = 0
        self._in_head = True
        self._held_an_end = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See who it is."""
        super().connection_made(transport)
        link = transport.get_extra_info("socket")
        self.is_local = link is not None and link.family == socket.AF_UNIX
        self.app_state = {**self.app_state, HUNG_UP: lambda: transport.is_closing() or (link is not None and has_hung_up(link))}
        # Those that became WebSockets count as well.
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
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._head_is_complete()
        self._flows_again()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._held_an_end = False
        super().data_received(data)
        # Bytes among which a request ended are mostly its body; what they hold of the next head is not counted.
        if self._in_head and not self._held_an_end:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX_BYTES and not self.transport.is_closing():
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()

    def pause_writing(self) -> None:
        """Its client takes less than it is sent."""
        super().pause_writing()
        self._flows_again()
        self._watch_stall()

    def resume_writing(self) -> None:
        """Its client has caught up."""
        super().resume_writing()
        self._flows_again()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of a head."""
        if len(self.headers) >= HEAD_MAX_FIELDS:
            self._is_large = True
            raise ValueError(f"more than {HEAD_MAX_FIELDS} fields")  # the parser stops, and its caller refuses
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser could not take."""
        if not self._is_large:
            super().send_400_response(msg)
        elif not self.transport.is_closing():
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._head_is_complete()
        if len(self.pipeline) >= PIPELINE_MAX:
            raise ValueError(f"more than {PIPELINE_MAX} requests ahead")  # likewise
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it is there; the next may follow."""
        super().on_message_complete()
        self._in_head = True
        self._held_an_end = True
        self._head_bytes = 0

    def on_response_complete(self) -> None:
        """A response was sent. The time for the head of the next request begins now if only a part of this head has arrived."""
        super().on_response_complete()
        if self._head_timer is not None:
            self._start_head_timer()

    def _watch_stall(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self._maybe_stalled)

    def _maybe_stalled(self) -> None:
        # Nothing is added while it is paused: fewer bytes mean that some were taken.
        if self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._watch_stall()
        else:
            self._stall_timer = None
            self.transport.abort()  # closing would wait for the client

    def _flows_again(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _await_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._start_head_timer()

    def _start_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def _head_is_complete(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            # Part of a pipelined request, which waits because this one is still being answered.
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
    """Whether the far end of a unix socket is root or this process's own user."""
    try:
        raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return False
    _, uid, _ = cast("tuple[int, int, int]", struct.unpack("3i", raw))
    return uid in {0, os.geteuid()}


def has_hung_up(link: socket.socket) -> bool:
    """Whether the far end of a connection sends no more, whatever of what it sent has not been read yet (POLLRDHUP, poll(2))."""
    number = link.fileno()
    if number < 0:
        return True
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))


def unix_socket(path: Path) -> socket.socket:
    """A listening unix socket in a private directory. Whatever was there before is replaced in one step.

    Raises:
        InvalidRequestError: The path is too long for one.
        HostError: It cannot be made.
    """
    if len(os.fsencode(path)) > _SUN_PATH_MAX:
        raise InvalidRequestError(
            f"The socket's path {path} is longer than the {_SUN_PATH_MAX} bytes that Linux allows.", hint="Set SANDLOT_DATA_DIR to a shorter one."
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
        # Listening before it has its name: whoever finds the name can connect.
        listener.listen(BACKLOG)
        listener.setblocking(False)
        beside.replace(path)
    except OSError as error:
        listener.close()
        raise HostError(f"The socket {path} cannot be made: {error.strerror or error}.", code=ErrorCode.HOST_NOT_READY) from error
    return listener


def tcp_socket(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Args:
        host: A name or an address; IPv6 too.
        port: 0 takes a free one.

    Raises:
        HostError: It cannot be made; says why.
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
            f"Nothing can listen on {host} port {port}: {error.strerror or error}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Choose another --host or --port, or end whatever has it (see 'ss -ltnp').",
        ) from error
    return listener
