"""Copying between a TCP socket and a stream of the link, both ways.

Invariants:
- Bytes move as fast as the slower end takes them, and nothing blocks. Bytes that wait for the socket are bounded by the window
  of the stream, and bytes that wait for the stream by its queue and one read.
- The end of one direction is passed on after all its bytes; the other direction continues.
- A connection that is cut off ends with RST, so that it does not pass for complete.
"""

from __future__ import annotations

import struct
from itertools import islice

from sandlot.guest.loop import GONE, READ, WRITE
from sandlot.protocol.fast_imports import deque, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from sandlot.guest.loop import Loop

    class SocketStreamOwner(Protocol):
        """The side of the link: sends what the socket gives, and decides what an error means."""

        def room(self) -> int:
            """Return the number of bytes that the stream takes now; :meth:`SocketStream.resume` follows after 0."""

        def consumed(self, credit: int) -> None:
            """Return the credit of bytes that were written to the socket or dropped."""

        def on_data(self, data: bytes) -> None:
            """Send bytes that were read from the socket."""

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
    """Copies between a socket and a stream. Bytes for the socket are kept until :meth:`start`.

    Args:
        loop: The guest's loop.
        owner: The side of the link.
    """

    __slots__ = ("_has_output_end", "_has_read_end", "_is_output_dropped", "_is_shut_down", "_is_write_due", "_loop", "_output", "_owner", "_socket")

    def __init__(self, loop: Loop, owner: SocketStreamOwner) -> None:
        self._loop = loop
        self._owner = owner
        self._socket: socket.socket | None = None
        self._output: deque[tuple[memoryview, int]] = deque()
        self._is_write_due = False
        self._has_output_end = False
        self._is_shut_down = False
        self._is_output_dropped = False
        self._has_read_end = False

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
        self.resume()

    def write(self, data: bytes, credit: int) -> None:
        """Queue bytes for the socket; their credit is returned when they were written."""
        if self._is_output_dropped:
            self._owner.consumed(credit)
            return
        self._output.append((memoryview(data), credit))
        self._write_soon()

    def write_end(self) -> None:
        """Queue the end of the bytes for the socket."""
        self._has_output_end = True
        self._write_soon()

    def drop_output(self) -> None:
        """Drop the bytes for the socket from now on; what the program has sent is still read to its end."""
        self._is_output_dropped = True
        while self._output:
            self._owner.consumed(self._output.popleft()[1])

    def resume(self) -> None:
        """Watch the socket for reading and writing, as far as either is possible now."""
        if self._socket is None:
            return
        mask = (READ if self._can_read() else 0) | (WRITE if self._output else 0)
        if mask:
            self._loop.watch(self._socket.fileno(), mask, self._on_ready)
        else:  # epoll would report EPOLLHUP of a closed connection over and over (epoll_ctl(2))
            self._loop.unwatch(self._socket.fileno())

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

    def _can_read(self) -> bool:
        return not self._has_read_end and self._owner.room() > 0

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
            self._owner.on_data(data)
            self.resume()
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
        while size:
            piece, credit = self._output[0]
            if len(piece) > size:
                self._output[0] = (piece[size:], credit)
                return
            size -= len(piece)
            self._output.popleft()
            self._owner.consumed(credit)

    def _finish(self) -> None:
        if self._socket is not None and self._has_read_end and (self._is_shut_down or self._is_output_dropped):
            self._owner.on_finished()
        else:
            self.resume()


def send_reset_at_close(connection: socket.socket) -> None:
    """Make close(2) of a connection send RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
