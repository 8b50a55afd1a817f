"""Frames: the units of the link. A frame is a header of 12 bytes and a payload, and is written as a whole.

======  ====  =====================================================
offset  size  meaning
======  ====  =====================================================
0       1     0xA5, so that a lost frame boundary is detected
1       1     type, see below
2       1     flags: 1 = MORE (the message continues in the next MESSAGE)
3       1     channel of DATA (0 stdin or body, 1 stdout, 2 stderr)
4       4     stream, big endian; 0 is the connection itself
8       4     payload length, big endian
======  ====  =====================================================

- A frame from the host has at most 4,096 bytes, header included. This is PIPE_BUF: a non-blocking write writes the whole frame or nothing
  (pipe(7)). A frame from the guest has at most 64 KiB.
- HELLO has 4,096 bytes, and the host repeats HELLO until the guest responds. If the guest is still waiting for the rest of an unfinished frame, the
  guest reads the first HELLO as this rest, and then finds the next HELLO by its magic number.
- A decoder refuses an invalid header before the payload arrives. After all complete frames were returned, the decoder holds less than one frame.
"""

from __future__ import annotations

import struct

from sandlot.protocol.errors import ProtocolError

SYNC = 0xA5
HEADER = struct.Struct(">BBBBII")
HEADER_BYTES = 12

HELLO = 1
"""Host to guest, stream 0: magic, nonce, lowest and highest generation, padding."""
WELCOME = 2
"""Guest to host, stream 0: magic, nonce, generation, sleep state. The response to a HELLO."""
OPEN = 3
"""Both directions: a new stream and its first message."""
MESSAGE = 4
"""Both directions: one encoded value, or a piece of one encoded value."""
DATA = 5
"""Both directions: bytes of a channel."""
END = 6
"""Both directions: the sender of END sends nothing more on this stream."""
RESET = 7
"""Both directions: neither side sends anything more on this stream. The payload is the reason: an encoded map with ``code`` and ``message``."""
CREDIT = 8
"""Both directions: the number of further bytes of MESSAGE and DATA that the sender of CREDIT accepts on this stream (32 bits, big endian)."""
QUIESCE = 9
"""Host to guest, stream 0: a request to drop all streams and send nothing more."""
QUIESCED = 10
"""Guest to host, stream 0: the guest is quiesced. The last frame before a checkpoint."""
LOST = 11
"""Guest to host, stream 0: the guest read invalid bytes and dropped all streams. The payload is the reason as text."""

NAMES = {
    HELLO: "HELLO",
    WELCOME: "WELCOME",
    OPEN: "OPEN",
    MESSAGE: "MESSAGE",
    DATA: "DATA",
    END: "END",
    RESET: "RESET",
    CREDIT: "CREDIT",
    QUIESCE: "QUIESCE",
    QUIESCED: "QUIESCED",
    LOST: "LOST",
}

MORE = 1

HOST_FRAME_MAX = 4096
GUEST_FRAME_MAX = 65536

ON_CONNECTION = frozenset((HELLO, WELCOME, QUIESCE, QUIESCED, LOST))
FROM_HOST_ONLY = frozenset((HELLO, QUIESCE))
FROM_GUEST_ONLY = frozenset((WELCOME, QUIESCED, LOST))


class Frame:
    """A received frame."""

    __slots__ = ("channel", "more", "payload", "stream", "type")

    def __init__(self, type_: int, stream: int, payload: bytes = b"", channel: int = 0, more: bool = False) -> None:  # noqa: FBT001, FBT002
        self.type = type_
        self.stream = stream
        self.payload = payload
        self.channel = channel
        self.more = more

    def __repr__(self) -> str:
        """Return a description for logs and tests. The payload is left out, because it may be secret."""
        return f"<{NAMES.get(self.type, self.type)} stream={self.stream} channel={self.channel} more={self.more} bytes={len(self.payload)}>"


def encode(type_: int, stream: int, payload: bytes | memoryview = b"", channel: int = 0, more: bool = False) -> bytes:  # noqa: FBT001, FBT002
    """Return an encoded frame. The caller must ensure that the frame is not longer than HOST_FRAME_MAX or GUEST_FRAME_MAX."""
    return HEADER.pack(SYNC, type_, MORE if more else 0, channel, stream, len(payload)) + payload


class Decoder:
    """Decodes the frames of one direction.

    Args:
        from_host: True to decode frames of the host, of at most 4,096 bytes; False for frames of a guest.
    """

    __slots__ = ("_buffer", "_from_host", "_max_payload")

    def __init__(self, *, from_host: bool) -> None:
        self._from_host = from_host
        self._max_payload = (HOST_FRAME_MAX if from_host else GUEST_FRAME_MAX) - HEADER_BYTES
        self._buffer = bytearray()

    @property
    def at_boundary(self) -> bool:
        """True if there is no incomplete frame."""
        return not self._buffer

    def feed(self, data: bytes) -> None:
        """Add received bytes. The caller must then call :meth:`next` until it returns None."""
        self._buffer += data

    def next(self) -> Frame | None:
        """Return the next whole frame; None if more bytes are needed.

        Raises:
            ProtocolError: The bytes are not a frame. After this error, only :meth:`take_all` may be called.
        """
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return None
        sync, type_, flags, channel, stream, length = HEADER.unpack_from(buffer)
        self._check(sync, type_, flags, channel, stream, length)
        end = HEADER_BYTES + length
        if len(buffer) < end:
            return None
        frame = Frame(type_, stream, bytes(memoryview(buffer)[HEADER_BYTES:end]), channel, bool(flags & MORE))
        del buffer[:end]
        return frame

    def take_all(self) -> bytes:
        """Remove and return all bytes that are not decoded yet."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _check(self, sync: int, type_: int, flags: int, channel: int, stream: int, length: int) -> None:
        if sync != SYNC:
            raise ProtocolError(f"a frame starts with byte 0x{sync:02x} instead of 0x{SYNC:02x}")
        if type_ not in NAMES or type_ in (FROM_GUEST_ONLY if self._from_host else FROM_HOST_ONLY):
            raise ProtocolError(f"frame type {type_} is unknown, or not allowed in this direction")
        if length > self._max_payload:
            raise ProtocolError(f"a {NAMES[type_]} frame has a payload of {length} bytes; at most {self._max_payload} are allowed")
        if flags & ~MORE or (flags and type_ not in {OPEN, MESSAGE}):
            raise ProtocolError(f"a {NAMES[type_]} frame has flags {flags}, which are not allowed")
        if channel and type_ != DATA:
            raise ProtocolError(f"a {NAMES[type_]} frame has a channel; only DATA frames may have a channel")
        if (stream == 0) != (type_ in ON_CONNECTION):
            raise ProtocolError(f"a {NAMES[type_]} frame is not allowed on stream {stream}")
