"""Copying between a TCP socket and a stream of the link, both ways.

Invariants:
- Bytes move as fast as the slower end takes them, and nothing blocks. Bytes that wait for the socket are bounded by the window
  of the stream, and bytes that wait for the stream by its queue and one read.
- The end of one direction is passed on after all its bytes; the other direction continues.
- A connection that is cut off ends with RST, so that it does not pass for complete.
"""

from __future__ import annotations

import struct
import time
from itertools import islice

from sandlot.guest.loop import GONE, READ, WRITE
from sandlot.protocol.fast_imports import deque, socket
from sandlot.protocol.schema import BODY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from sandlot.guest.loop import Loop
    from sandlot.guest.streams import Stream

    class SocketStreamOwner(Protocol):
        """Decides what the ends and errors of a :class:`SocketStream` mean."""

        def on_gone(self) -> None:
            """Handle the end of the stream by a reset of the host or a new connection."""

        def on_data_end(self) -> None:
            """Send the end of the socket's bytes."""

        def on_finished(self) -> None:
            """Handle the end of both directions."""

        def on_read_error(self) -> None:
            """Handle a connection that was broken off by its program."""

        def on_write_error(self) -> None:
            """Handle a program that takes no more bytes: close, or call :meth:`SocketStream.drop_output`."""


READ_BYTES = 65536
MAX_PIECES = 64
"""Limit of the frames that are joined in one write; Linux allows 1,024 (IOV_MAX)."""

_NO_LINGER = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: close(2) sends RST (socket(7))."""


class SocketStream:
    """Copies between a socket and a stream. It is the handler of the stream, or the callbacks of the stream's call.

    Bytes for the socket are kept until :meth:`start`.

    Args:
        loop: The guest's loop.
        stream: Stream of the link.
        owner: Receiver of ends and errors.

    Attributes:
        awaits_output: True if bytes were read from the socket and none have been written since.
        last_write_s: Monotonic time of the last write, or of the creation.
    """

    __slots__ = (
        "_has_output_end",
        "_has_read_end",
        "_is_output_dropped",
        "_is_shut_down",
        "_is_write_due",
        "_loop",
        "_output",
        "_owner",
        "_socket",
        "_stream",
        "awaits_output",
        "last_write_s",
    )

    def __init__(self, loop: Loop, stream: Stream, owner: SocketStreamOwner) -> None:
        self._loop = loop
        self._stream = stream
        self._owner = owner
        self._socket: socket.socket | None = None
        self._output: deque[tuple[memoryview, int]] = deque()
        self._is_write_due = False
        self._has_output_end = False
        self._is_shut_down = False
        self._is_output_dropped = False
        self._has_read_end = False
        self.awaits_output = False
        self.last_write_s = time.monotonic()

    @property
    def has_output(self) -> bool:
        """True while bytes wait for the socket."""
        return bool(self._output)

    def start(self, connection: socket.socket) -> None:
        """Begin to copy.

        Args:
            connection: Connected, non-blocking socket; ownership passes to this object.
        """
        self._socket = connection
        # Writes are batched already, and a small last piece must not wait for an acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._write_soon()
        self._watch()

    def on_bytes(self, channel: int, data: bytes, credit: int) -> None:
        """Queue bytes for the socket; their credit is returned when they were written."""
        if channel != BODY or self._is_output_dropped:
            self._stream.consumed(credit)
            return
        self._output.append((memoryview(data), credit))
        self._write_soon()

    def on_end(self) -> None:
        """Queue the end of the bytes for the socket."""
        self._has_output_end = True
        self._write_soon()

    def on_writable(self) -> None:
        """Read on."""
        self._watch()

    def on_gone(self) -> None:
        """Report the end of the stream."""
        self._owner.on_gone()

    def send(self, data: bytes) -> None:
        """Send bytes that were read from the socket."""
        self.awaits_output = True
        self._stream.send_bytes(BODY, data)

    def drop_output(self) -> None:
        """Drop the bytes for the socket from now on; what the program has sent is still read to its end."""
        self._is_output_dropped = True
        while self._output:
            self._stream.consumed(self._output.popleft()[1])

    def cut(self) -> None:
        """Close the socket with RST. Idempotent."""
        if self._socket is not None:
            send_reset_at_close(self._socket)
        self.close()

    def close(self) -> None:
        """Close the socket. Idempotent."""
        connection, self._socket = self._socket, None
        self._output.clear()
        if connection is not None:
            self._loop.unwatch(connection.fileno())
            connection.close()

    def _watch(self) -> None:
        """Watch the socket for reading and writing, as far as either is possible now."""
        if self._socket is None:
            return
        mask = (READ if self._can_read() else 0) | (WRITE if self._output else 0)
        if mask:
            self._loop.watch(self._socket.fileno(), mask, self._on_ready)
        else:  # epoll would report EPOLLHUP of a closed connection over and over (epoll_ctl(2))
            self._loop.unwatch(self._socket.fileno())

    def _can_read(self) -> bool:
        return not self._has_read_end and self._stream.room() > 0

    def _on_ready(self, mask: int) -> None:
        if mask & (WRITE | GONE) and self._output:
            self._write()
        if self._socket is not None and mask & (READ | GONE) and self._can_read():
            self._read(self._socket)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._owner.on_read_error()
            return
        if data:
            self.send(data)
            self._watch()
        else:
            self._has_read_end = True
            self._owner.on_data_end()
            self._finish()

    def _write_soon(self) -> None:
        if not self._is_write_due:  # one read of the link brings many frames: they are joined in one write
            self._is_write_due = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_write_due = False
        if self._socket is None:
            return
        try:
            while self._output:
                self._remove_written(self._socket.sendmsg([piece for piece, _ in islice(self._output, MAX_PIECES)]))
            if self._has_output_end and not self._is_shut_down:
                self._is_shut_down = True
                self._socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._owner.on_write_error()
        self._finish()

    def _remove_written(self, size: int) -> None:
        self.awaits_output = False
        self.last_write_s = time.monotonic()
        while size:
            piece, credit = self._output[0]
            if len(piece) > size:
                self._output[0] = (piece[size:], credit)
                return
            size -= len(piece)
            self._output.popleft()
            self._stream.consumed(credit)

    def _finish(self) -> None:
        if self._socket is not None and self._has_read_end and (self._is_shut_down or self._is_output_dropped):
            self._owner.on_finished()
        else:
            self._watch()


def send_reset_at_close(connection: socket.socket) -> None:
    """Make close(2) of a connection send RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
