"""Output kept in bounded buffers and addressed by byte offset, and the readers that follow it (law 8).

Laws:
- A reader that comes back with its offset loses nothing that still fits, and is told how much does not.
- While somebody reads, nothing is dropped: a full buffer stops the process instead (back-pressure). The same holds for
  30 s after the link was lost under a reader, so that a service that restarts misses nothing.
- With no reader the oldest bytes go, and the process never blocks.
"""

from __future__ import annotations

from sandlot.guest.flow.loop import READ_BYTES
from sandlot.protocol.fast_imports import deque
from sandlot.protocol.schema import OUTPUT_BUFFER_BYTES

CHUNK_BYTES = 65536
HOLD_S = 30.0


class Buffer:
    """The last bytes of one channel.

    Args:
        limit: How many bytes are kept at least, once that many came.
    """

    __slots__ = ("_chunks", "end", "limit", "start")

    def __init__(self, limit: int = OUTPUT_BUFFER_BYTES) -> None:
        self._chunks: deque[bytes] = deque()
        self.start = 0
        self.end = 0
        self.limit = limit

    def append(self, data: bytes) -> None:
        """Keep more, drop the oldest that is beyond the limit."""
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
        """Bytes from an offset that is kept, at most ``size`` and at most a chunk."""
        at = self.start
        for chunk in self._chunks:
            if offset < at + len(chunk):
                return chunk[offset - at : offset - at + size]
            at += len(chunk)
        return b""


class Reader:
    """One attached reader: where it is in each channel. What it is told goes through ``port``."""

    __slots__ = ("at", "port")

    def __init__(self, port: Port, buffers: dict[int, Buffer], wanted: dict[int, int | None]) -> None:
        self.port = port
        self.at: dict[int, int] = {}
        for channel, buffer in buffers.items():
            asked = wanted.get(channel)
            start = min(max(asked or 0, 0), buffer.end)
            if start < buffer.start:
                port.lost(channel, buffer.start - start)
                start = buffer.start
            self.at[channel] = start

    def pump(self, buffers: dict[int, Buffer]) -> bool:
        """Send what the stream takes; whether everything that is there has been sent."""
        return all([self.send(buffer, channel, buffer.end) for channel, buffer in buffers.items()])  # noqa: C419 - each, also after a full one

    def send(self, buffer: Buffer, channel: int, end: int) -> bool:
        """Send one channel up to an offset, as far as the stream takes it; whether all of that has been sent."""
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


class Port:
    """What a reader needs of a call's stream."""

    __slots__ = ()

    def room(self) -> int:
        """Bytes that may be queued now."""
        raise NotImplementedError

    def data(self, channel: int, piece: bytes) -> None:
        """Queue bytes."""
        raise NotImplementedError

    def lost(self, channel: int, size: int) -> None:
        """Tell that bytes are gone."""
        raise NotImplementedError


class Outputs:
    """The channels of one process or cell, and who reads them."""

    __slots__ = ("buffers", "held", "readers")

    def __init__(self, channels: tuple[int, ...]) -> None:
        self.buffers = {channel: Buffer() for channel in channels}
        self.readers: list[Reader] = []
        self.held = False

    def has(self, wanted: dict[int, int | None]) -> bool:
        """Whether offsets lie within what came so far."""
        return all(0 <= (wanted.get(channel) or 0) <= buffer.end for channel, buffer in self.buffers.items())

    def attach(self, port: Port, wanted: dict[int, int | None]) -> Reader:
        """A new reader."""
        reader = Reader(port, self.buffers, wanted)
        self.readers.append(reader)
        self.held = False
        return reader

    def detach(self, reader: Reader) -> None:
        """The reader is gone. Idempotent."""
        if reader in self.readers:
            self.readers.remove(reader)

    def wants(self, channel: int) -> bool:
        """Whether the process's pipe should be read now: not where the next read could make the buffer drop something."""
        buffer = self.buffers[channel]
        if self.readers:
            slowest = min(reader.at[channel] for reader in self.readers)
            return buffer.end - slowest <= buffer.limit - READ_BYTES
        return not self.held or buffer.end - buffer.start <= buffer.limit - READ_BYTES

    @property
    def kept_bytes(self) -> int:
        """Memory that the buffers take."""
        return sum(buffer.end - buffer.start for buffer in self.buffers.values())
