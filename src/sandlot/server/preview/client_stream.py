"""The bytes of one client connection, with or without TLS, and with bounded buffers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import cast

from sandlot.server.preview.tls import TlsConnection
from sandlot.web.listener import KEEPALIVE, has_hung_up

INPUT_MAX_BYTES = 64 * 1024
"""Bytes that are read ahead. The connection is read no further until they were taken."""
OUTPUT_MAX_BYTES = 64 * 1024
"""Bytes that may wait for the client. A write waits until fewer are left."""


class ClientStream(asyncio.Protocol):
    """The bytes of one client connection.

    Args:
        connected: Function that is called with this stream once the connection is open. With TLS, the handshake follows.
        tls: TLS of the connection; None without TLS.
    """

    def __init__(self, connected: Callable[[ClientStream], None], tls: TlsConnection | None = None) -> None:
        self._connected = connected
        self._tls = tls
        self._input: list[bytes] = []
        self._input_bytes = 0
        self._is_ended = False
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the client has closed the connection or its direction of the connection."""
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the connection is closed. Until then, it has a descriptor."""
        self.transport: asyncio.Transport

    @property
    def is_tls(self) -> bool:
        """True if the connection has TLS."""
        return self._tls is not None

    @property
    def address(self) -> str:
        """Address of the peer; empty if the peer has none."""
        peer = self.transport.get_extra_info("peername")
        return peer[0] if isinstance(peer, tuple) else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(OUTPUT_MAX_BYTES)
        link = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE:
                link.setsockopt(socket.IPPROTO_TCP, option, value)
        self._connected(self)

    def data_received(self, data: bytes) -> None:
        """Keep data until it is read. With TLS, bytes that are no TLS end the connection."""
        if self._tls is not None and not (data := self._decrypt(self._tls, data)):
            return
        self._input.append(data)
        self._input_bytes += len(data)
        if self._input_bytes > INPUT_MAX_BYTES:
            self.transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> bool:
        """Record that the client sends nothing more. The connection stays open for what is being sent."""
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the arguments of Protocol
        """Record that the connection is closed."""
        self._end()
        self._writable.set()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Let writes wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let writes continue."""
        self._writable.set()

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end."""
        while not self._input and not self._is_ended:
            self._changed.clear()
            await self._changed.wait()
        data = self._input[0] if len(self._input) == 1 else b"".join(self._input)
        self._input.clear()
        if self._input_bytes > INPUT_MAX_BYTES and not self.transport.is_closing():
            self.transport.resume_reading()
        self._input_bytes = 0
        return data

    async def write(self, data: bytes, timeout_s: float) -> None:
        """Send bytes, and wait while the client does not read.

        Raises:
            ConnectionResetError: The connection is closed.
            TimeoutError: The client has read too little for ``timeout_s`` seconds.
        """
        if self.transport.is_closing():
            raise ConnectionResetError
        self.transport.write(data if self._tls is None else self._tls.encrypt(data))
        if not self._writable.is_set():
            async with asyncio.timeout(timeout_s):
                await self._writable.wait()

    def close(self, timeout_s: float) -> None:
        """Close the connection once the client has read what was written, or after ``timeout_s`` seconds."""
        if self._tls is not None and not self.transport.is_closing():
            self.transport.write(self._tls.end())
        self.transport.close()
        timer = asyncio.get_running_loop().call_later(timeout_s, self.transport.abort)
        self.closed.add_done_callback(lambda _: timer.cancel())

    def has_hung_up(self) -> bool:
        """Return True if the client has closed the connection, also while nothing is read from it."""
        return self.gone.done() or has_hung_up(self.transport.get_extra_info("socket"))

    def _decrypt(self, tls: TlsConnection, data: bytes) -> bytes:
        is_valid = True
        try:
            data = tls.receive(data)
        except ssl.SSLError:
            is_valid, data = False, b""
        self.transport.write(tls.take_output())  # for an error, an alert that says why
        if not is_valid:
            self.transport.close()
        if tls.is_ended or not is_valid:
            self._end()
        return data

    def _end(self) -> None:
        self._is_ended = True
        self._changed.set()
        if not self.gone.done():
            self.gone.set_result(None)
