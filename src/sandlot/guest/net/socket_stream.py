"""Copies bytes between a TCP socket and a stream of the link, in both directions.

Invariants:
- In each direction, bytes are copied as fast as the receiver reads them, and no call blocks.
- Memory is bounded: at most one window of the stream is buffered for the socket. For the host, at most the stream's send queue and
  one read are buffered.
- If one side sends end of file, the other side gets it after all bytes of this direction. The other direction continues.
- A connection that is interrupted is closed with RST, so that the program does not treat the received data as complete.
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
        """Object that handles the end and the errors of both directions of a :class:`SocketStream`."""

        def on_gone(self) -> None:
            """Handle the loss of the stream: the host has reset the stream or has connected again, or the guest was quiesced."""

        def on_data_end(self) -> None:
            """Send the program's end of file to the host. Called after all bytes from the socket were sent."""

        def on_finished(self) -> None:
            """Close the connection, because both directions have ended."""

        def on_read_error(self) -> None:
            """Handle a failed read of the socket, which means that the program has reset the connection."""

        def on_write_error(self) -> None:
            """Handle a failed write to the socket, which means that the program reads no more bytes.

            The owner must close the connection or call :meth:`SocketStream.drop_output`.
            """


READ_BYTES = 65536
"""Maximum number of bytes of one read of a socket."""
MAX_PIECES = 64
"""Maximum number of pieces that are joined in one write to a socket; Linux allows 1,024 (IOV_MAX)."""

_NO_LINGER = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with a time of 0, which makes close(2) send RST (socket(7))."""


class SocketStream:
    """Copies bytes between a socket and a stream, in both directions. The methods ``on_...`` handle the events of the stream.

    Bytes that arrive from the host before :meth:`start` are queued.

    Args:
        loop: The guest's loop.
        stream: Stream of the link.
        owner: Object that handles the end and the errors of both directions.

    Attributes:
        awaits_output: True if no byte was written to the socket since the last bytes were read from the socket.
        last_write_s: Time of the last write to the socket, in seconds of ``time.monotonic``. Before the first write, the time at
            which this object was created.
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
        """True while bytes from the host are queued for the socket."""
        return bool(self._output)

    def start(self, connection: socket.socket) -> None:
        """Begin to copy in both directions.

        Args:
            connection: Connected, non-blocking socket; ownership passes to this object.
        """
        self._socket = connection
        # Writes are batched already, so send each write at once. By default, a small last piece would wait for an acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._write_soon()
        self._watch()

    def on_bytes(self, channel: int, data: bytes, credit: int) -> None:
        """Queue bytes from the host for the socket.

        Args:
            channel: Channel of the bytes. If this is not ``BODY``, the bytes are dropped.
            data: Bytes for the socket.
            credit: Number of bytes that the host may send again after ``data`` was written or dropped (flow control).
        """
        # An empty piece must not be queued: sendmsg(2) of empty pieces returns 0, and nothing would ever be removed from the queue.
        if channel != BODY or self._is_output_dropped or not data:
            self._stream.consumed(credit)
            return
        self._output.append((memoryview(data), credit))
        self._write_soon()

    def on_end(self) -> None:
        """Send end of file to the program after the queued bytes, because the host sends no more bytes."""
        self._has_output_end = True
        self._write_soon()

    def on_writable(self) -> None:
        """Continue to read the socket, because the stream accepts bytes again."""
        self._watch()

    def on_gone(self) -> None:
        """Report to the owner that the stream is lost."""
        self._owner.on_gone()

    def send(self, data: bytes) -> None:
        """Send bytes to the host after they were read from the socket."""
        self.awaits_output = True
        self._stream.send_bytes(BODY, data)

    def drop_output(self) -> None:
        """Discard bytes for the socket, both queued bytes and bytes that the host sends later. The other direction continues."""
        self._is_output_dropped = True
        while self._output:
            self._stream.consumed(self._output.popleft()[1])

    def cut(self) -> None:
        """Close the socket with RST, so that the program does not treat the received data as complete. Idempotent."""
        if self._socket is not None:
            send_reset_at_close(self._socket)
        self.close()

    def close(self) -> None:
        """Close the socket, and drop the bytes that are queued for the socket. Idempotent."""
        connection, self._socket = self._socket, None
        self._output.clear()
        if connection is not None:
            self._loop.unwatch(connection.fileno())
            connection.close()

    def _watch(self) -> None:
        """Watch the socket for reading if the stream accepts bytes, and for writing if bytes are queued."""
        if self._socket is None:
            return
        mask = (READ if self._can_read() else 0) | (WRITE if self._output else 0)
        if mask:
            self._loop.watch(self._socket.fileno(), mask, self._on_ready)
        else:  # do not watch with an empty mask: epoll would report a closed connection (EPOLLHUP) again and again (epoll_ctl(2))
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
        if not self._is_write_due:  # one read from the link can return many frames: join their bytes in one write
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


def accept_connection(listener: socket.socket) -> socket.socket:
    """Accept a connection, and return its non-blocking socket.

    Raises:
        BlockingIOError: No connection waits.
        OSError: No descriptor is free, or the program has reset the connection.
    """
    descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - the C module's name for accept(2)
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(False)
    return connection


def send_reset_at_close(connection: socket.socket) -> None:
    """Set a socket option that makes the later close(2) of a connection send RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
