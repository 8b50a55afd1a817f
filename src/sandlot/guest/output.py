"""Output of processes and cells: bounded buffers that are addressed by byte offset, and the readers that receive the output.

Invariants:
- A reader that attaches again passes the offset of the next byte to send. The reader receives all bytes from this offset on that are
  still kept, and the number of bytes that were dropped.
- While a reader is attached, only bytes that were sent to the reader are dropped. If the buffer is full, the guest stops reading
  the pipe, and the process blocks (backpressure). This also applies in the 30 s after the connection to a reader was lost, so that
  no output is lost during a restart of the service.
- While no reader is attached, the oldest bytes are dropped, and the process never blocks.
"""

from __future__ import annotations

from sandlot.guest.loop import READ_BYTES
from sandlot.protocol.fast_imports import deque
from sandlot.protocol.schema import OUTPUT_BUFFER_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from sandlot.guest.loop import Loop, Timer

    class OutputSink(Protocol):
        """Receiver of output, such as a call of the host."""

        def room(self) -> int:
            """Return the number of bytes that the receiver accepts now."""

        def data(self, channel: int, piece: bytes) -> None:
            """Send output bytes of one channel, standard output or standard error."""

        def lost(self, channel: int, size: int) -> None:
            """Report that ``size`` bytes of a channel were dropped before they could be sent."""


CHUNK_BYTES = 65536
"""Maximum number of bytes in one piece of a buffer."""
HOLD_S = 30.0
"""Seconds for which a full buffer blocks the process after the connection to a reader was lost. Later, old bytes are dropped instead."""


class Buffer:
    """The most recent output bytes of one channel. The offset of a byte is the number of bytes before it in the channel.

    Args:
        limit: Number of newest bytes that are always kept. Older bytes are dropped in chunks of up to ``CHUNK_BYTES``.

    Attributes:
        start: Offset of the oldest byte that is kept.
        end: Offset after the newest byte, which is the number of bytes that were ever appended.
    """

    __slots__ = ("_chunks", "end", "limit", "start")

    def __init__(self, limit: int = OUTPUT_BUFFER_BYTES) -> None:
        self._chunks: deque[bytes] = deque()
        self.start = 0
        self.end = 0
        self.limit = limit

    def append(self, data: bytes) -> None:
        """Append bytes, then drop each old chunk that contains none of the newest ``limit`` bytes."""
        chunks = self._chunks
        if chunks and len(chunks[-1]) + len(data) <= CHUNK_BYTES:
            chunks[-1] += data
        elif len(data) <= CHUNK_BYTES:
            chunks.append(data)
        else:
            chunks.extend(data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
        self.end += len(data)
        while self.end - self.start - len(chunks[0]) >= self.limit:
            self.start += len(chunks.popleft())

    def read(self, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes from an offset on, all from the same internal chunk. Empty at the end of the output.

        Args:
            offset: Offset of the first byte. The caller must pass at least ``start``.
            size: Maximum number of bytes.
        """
        at = self.start
        for chunk in self._chunks:
            if offset < at + len(chunk):
                return chunk[offset - at : offset - at + size]
            at += len(chunk)
        return b""


class Reader:
    """One receiver of the output of a process or cell, and the offset of the next byte to send in each channel.

    Args:
        port: Receiver of the output.
        buffers: Channel -> buffer.
        wanted: Channel -> offset of the first byte to send. None, or an absent channel, means the oldest byte that is kept.

    Attributes:
        at: Channel -> offset of the next byte to send.
        port: Receiver of the output.
    """

    __slots__ = ("at", "port")

    def __init__(self, port: OutputSink, buffers: dict[int, Buffer], wanted: dict[int, int | None]) -> None:
        self.port = port
        self.at: dict[int, int] = {}
        for channel, buffer in buffers.items():
            offset = wanted.get(channel)
            start = min(max(offset or 0, 0), buffer.end)
            if start < buffer.start:
                port.lost(channel, buffer.start - start)
                start = buffer.start
            self.at[channel] = start

    def pump(self, buffers: dict[int, Buffer]) -> bool:
        """Send as much output of all channels as the receiver accepts. Return True if no output is left to send."""
        return all([self.send(buffer, channel, buffer.end) for channel, buffer in buffers.items()])  # noqa: C419 - with a generator, all() would stop at the first False

    def send(self, buffer: Buffer, channel: int, end: int) -> bool:
        """Send the output of one channel as far as the receiver accepts bytes. Return True if ``end`` was reached.

        Args:
            buffer: Buffer of the channel.
            channel: Channel to send.
            end: Offset after the last byte to send.
        """
        if self.at[channel] < buffer.start:
            self.port.lost(channel, buffer.start - self.at[channel])
            self.at[channel] = buffer.start
        while self.at[channel] < end:
            room = self.port.room()
            if room <= 0:
                return False
            piece = buffer.read(self.at[channel], min(room, CHUNK_BYTES - 64, end - self.at[channel]))
            self.port.data(channel, piece)
            self.at[channel] += len(piece)
        return True


class OutputLog:
    """Output of one process or cell: a buffer for each channel, and the readers.

    Args:
        channels: Numbers of the channels.

    Attributes:
        held: If True, a full buffer blocks the process even while no reader is attached. If False, old bytes are dropped instead.
    """

    __slots__ = ("_release_timer", "buffers", "held", "readers")

    def __init__(self, channels: tuple[int, ...]) -> None:
        self.buffers = {channel: Buffer() for channel in channels}
        self.readers: list[Reader] = []
        self.held = False
        self._release_timer: Timer | None = None

    def has(self, wanted: dict[int, int | None]) -> bool:
        """Return True if every requested offset is valid, which means not negative and not beyond the end of the output.

        Args:
            wanted: Channel -> offset. None, or an absent channel, is valid.
        """
        return all(0 <= (wanted.get(channel) or 0) <= buffer.end for channel, buffer in self.buffers.items())

    def attach(self, port: OutputSink, wanted: dict[int, int | None]) -> Reader:
        """Add a reader, and return it. Dropped bytes are reported to the receiver at once. Output is sent when the caller calls ``Reader.pump``.

        Args:
            port: Receiver of the output.
            wanted: Channel -> offset of the first byte to send. None means the oldest byte that is kept.
        """
        reader = Reader(port, self.buffers, wanted)
        self.readers.append(reader)
        self.held = False
        return reader

    def hold(self, loop: Loop, seconds: float, on_release: Callable[[], object]) -> None:
        """Set ``held`` for some seconds, because a reader is expected to attach. Replaces an earlier hold. A reader that attaches ends the hold.

        Args:
            loop: The guest's loop.
            seconds: Seconds until ``held`` is set to False.
            on_release: Called when the seconds have passed.
        """
        if self._release_timer is not None:
            self._release_timer.cancel()
        self.held = True
        self._release_timer = loop.call_later(seconds, lambda: self._release(on_release))

    def _release(self, on_release: Callable[[], object]) -> None:
        self.held = False
        on_release()

    def detach(self, reader: Reader) -> None:
        """Remove a reader. Does nothing if the reader is not attached."""
        if reader in self.readers:
            self.readers.remove(reader)

    def may_read(self, channel: int) -> bool:
        """Return True if one more read of a channel's pipe cannot make the buffer drop bytes that must be kept.

        While readers are attached, the bytes that the slowest reader has not received must be kept. While no reader is attached,
        bytes must be kept only if ``held`` is True.
        """
        buffer = self.buffers[channel]
        if self.readers:
            slowest = min(reader.at[channel] for reader in self.readers)
            return buffer.end - slowest <= buffer.limit - READ_BYTES
        return not self.held or buffer.end - buffer.start <= buffer.limit - READ_BYTES

    @property
    def kept_bytes(self) -> int:
        """Total number of bytes in the buffers of all channels."""
        return sum(buffer.end - buffer.start for buffer in self.buffers.values())
