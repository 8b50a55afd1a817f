"""Output of processes and cells: bounded buffers that are addressed by byte offset, and the readers that follow them.

Invariants:
- A reader that attaches again with its offset gets all bytes that are still kept, and the number of those that are not.
- While a client reads, nothing is dropped: a full buffer stops the process instead (backpressure). This also holds for 30 s
  after a reader has lost its link, so that no output is lost during a restart of the service.
- Without a reader, the oldest bytes are dropped, and the process never blocks.
"""

from __future__ import annotations

from sandlot.guest.loop import READ_BYTES
from sandlot.protocol.fast_imports import deque
from sandlot.protocol.schema import OUTPUT_BUFFER_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class OutputSink(Protocol):
        """Receiver of output: a call of the host."""

        def room(self) -> int:
            """Return the number of bytes that may be sent now."""

        def data(self, channel: int, piece: bytes) -> None:
            """Send bytes of a channel."""

        def lost(self, channel: int, size: int) -> None:
            """Send the event that ``size`` bytes of a channel are no longer kept."""


CHUNK_BYTES = 65536
HOLD_S = 30.0
"""Time for which a full buffer stops the process after its last reader has lost the link."""


class Buffer:
    """The last bytes of one channel.

    Args:
        limit: Minimum number of bytes that are kept. Older bytes may be dropped.

    Attributes:
        start: Offset of the oldest byte that is kept.
        end: Offset after the newest byte.
    """

    __slots__ = ("_chunks", "end", "limit", "start")

    def __init__(self, limit: int = OUTPUT_BUFFER_BYTES) -> None:
        self._chunks: deque[bytes] = deque()
        self.start = 0
        self.end = 0
        self.limit = limit

    def append(self, data: bytes) -> None:
        """Add bytes, and drop the oldest bytes beyond the limit."""
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
        """Return bytes from an offset on, at most ``size`` of them and at most one chunk. The offset must still be kept."""
        at = self.start
        for chunk in self._chunks:
            if offset < at + len(chunk):
                return chunk[offset - at : offset - at + size]
            at += len(chunk)
        return b""


class Reader:
    """One attached reader.

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
        """Send as much as the stream accepts. Return True if everything was sent."""
        return all([self.send(buffer, channel, buffer.end) for channel, buffer in buffers.items()])  # noqa: C419 - a full channel does not stop the others

    def send(self, buffer: Buffer, channel: int, end: int) -> bool:
        """Send a channel up to the offset ``end``, as far as the stream accepts it. Return True if all of it was sent."""
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

    Attributes:
        held: True if a full buffer stops the process even without a reader.
    """

    __slots__ = ("buffers", "held", "readers")

    def __init__(self, channels: tuple[int, ...]) -> None:
        self.buffers = {channel: Buffer() for channel in channels}
        self.readers: list[Reader] = []
        self.held = False

    def has(self, wanted: dict[int, int | None]) -> bool:
        """Return True if no offset is beyond the end of its channel."""
        return all(0 <= (wanted.get(channel) or 0) <= buffer.end for channel, buffer in self.buffers.items())

    def attach(self, port: OutputSink, wanted: dict[int, int | None]) -> Reader:
        """Add a reader.

        Args:
            port: Receiver of the output.
            wanted: Channel -> offset to begin at; None for the oldest byte that is kept.
        """
        reader = Reader(port, self.buffers, wanted)
        self.readers.append(reader)
        self.held = False
        return reader

    def detach(self, reader: Reader) -> None:
        """Remove a reader. Idempotent."""
        if reader in self.readers:
            self.readers.remove(reader)

    def may_read(self, channel: int) -> bool:
        """Return True if the next read of a channel's pipe cannot make the buffer drop bytes that a reader still needs."""
        buffer = self.buffers[channel]
        if self.readers:
            slowest = min(reader.at[channel] for reader in self.readers)
            return buffer.end - slowest <= buffer.limit - READ_BYTES
        return not self.held or buffer.end - buffer.start <= buffer.limit - READ_BYTES

    @property
    def kept_bytes(self) -> int:
        """Number of bytes in the buffers."""
        return sum(buffer.end - buffer.start for buffer in self.buffers.values())
