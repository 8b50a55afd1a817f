"""Copying between a TCP socket and a stream of the link, both ways.

Invariants:
- Bytes move as fast as the slower end reads, and no call blocks. At most one window of the stream waits for the socket, and at
  most the stream's queue and one read wait for the stream.
- The end of one direction is passed on after all its bytes; the other direction continues.
- A connection that is cut off ends with RST, so that its data is not taken for complete.
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
        """Handles the ends and errors of a :class:`SocketStream`."""

        def on_gone(self) -> None:
            """Handle that the stream is over: reset by the host, or gone with an earlier connection of the link."""

        def on_data_end(self) -> None:
            """Handle the end of the bytes from the socket: send it to the host."""

        def on_finished(self) -> None:
            """Handle the end of both directions."""

        def on_read_error(self) -> None:
            """Handle a connection that the program has reset."""

        def on_write_error(self) -> None:
            """Handle a program that reads no more bytes: close, or call :meth:`SocketStream.drop_output`."""


READ_BYTES = 65536
MAX_PIECES = 64
"""Maximum number of frames that are joined in one write; Linux allows 1,024 (IOV_MAX)."""

_NO_LINGER = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: close(2) sends RST (socket(7))."""


class SocketStream:
    """Copies bytes between a socket and a stream. Its methods ``on_...`` handle the events of the stream.

    Until :meth:`start`, bytes for the socket are queued.

    Args:
        loop: The guest's loop.
        stream: Stream of the link.
        owner: Handles ends and errors.

    Attributes:
        awaits_output: True if bytes were read from the socket after the last write to it.
        last_write_s: Monotonic time of the last write to the socket, or of the creation of this object.
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
        """Begin copying.

        Args:
            connection: Connected, non-blocking socket; ownership passes to this object.
        """
        self._socket = connection
        # Writes are batched here. Without TCP_NODELAY, a small last piece would wait for an acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._write_soon()
        self._watch()

    def on_bytes(self, channel: int, data: bytes, credit: int) -> None:
        """Queue bytes for the socket. Their credit is returned after they were written."""
        if channel != BODY or self._is_output_dropped:
            self._stream.consumed(credit)
            return
        self._output.append((memoryview(data), credit))
        self._write_soon()

    def on_end(self) -> None:
        """Queue the end of file for the socket."""
        self._has_output_end = True
        self._write_soon()

    def on_writable(self) -> None:
        """Continue reading the socket, because the stream has room again."""
        self._watch()

    def on_gone(self) -> None:
        """Report to the owner that the stream is over."""
        self._owner.on_gone()

    def send(self, data: bytes) -> None:
        """Send bytes that were read from the socket."""
        self.awaits_output = True
        self._stream.send_bytes(BODY, data)

    def drop_output(self) -> None:
        """Drop all bytes for the socket from now on. Bytes from the program are still read to their end."""
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
        if not self._is_write_due:  # one read of the link can bring many frames, which are joined in one write
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
