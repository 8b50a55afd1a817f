"""HELLO and WELCOME: the handshake that begins a new connection, even if bytes of an earlier connection are still in the pipes.

The host sends a nonce in HELLO, and the guest returns this nonce in WELCOME. The host discards all bytes before this WELCOME.
"""

from __future__ import annotations

import struct

from sandlot.protocol import frames

MAGIC = b"\x93SANDLT\x1a"
NONCE_BYTES = 16

HELLO = struct.Struct(">8s16sHH")
WELCOME = struct.Struct(">8s16sHBx")
_PADDING = frames.HOST_FRAME_MAX - frames.HEADER_BYTES - HELLO.size


def hello(nonce: bytes, lowest: int, highest: int) -> bytes:
    """Return a HELLO frame, padded to the size of the largest frame.

    Args:
        nonce: 16 random bytes for the guest to echo.
        lowest: Lowest generation of the protocol that the host supports.
        highest: Highest generation of the protocol that the host supports.
    """
    return frames.encode(frames.HELLO, 0, HELLO.pack(MAGIC, nonce, lowest, highest) + b"\0" * _PADDING)


def welcome(nonce: bytes, generation: int, *, asleep: bool) -> bytes:
    """Return a WELCOME frame.

    Args:
        nonce: Nonce of the HELLO.
        generation: Generation of the protocol that the guest speaks.
        asleep: True if the guest serves only ``guest.wake``.
    """
    return frames.encode(frames.WELCOME, 0, WELCOME.pack(MAGIC, nonce, generation, int(asleep)))


def parse_hello(payload: bytes) -> tuple[bytes, int, int] | None:
    """Return the nonce, the lowest and the highest generation from the payload of a HELLO; None if the payload is invalid."""
    if len(payload) < HELLO.size or not payload.startswith(MAGIC):
        return None
    _, nonce, lowest, highest = HELLO.unpack_from(payload)
    return nonce, lowest, highest


def parse_welcome(payload: bytes) -> tuple[bytes, int, bool] | None:
    """Return the nonce, the generation and the sleep state (True if asleep) from the payload of a WELCOME; None if the payload is invalid."""
    if len(payload) != WELCOME.size or not payload.startswith(MAGIC):
        return None
    _, nonce, generation, asleep = WELCOME.unpack(payload)
    return nonce, generation, bool(asleep)


class Search:
    """Incremental search for the payload of a HELLO or WELCOME in arbitrary bytes. Buffers at most one payload and the bytes of one :meth:`feed`.

    Args:
        needle: First bytes of the payload: the magic number, and if a host searches, also the nonce.
        payload_bytes: Length of the payload.
    """

    __slots__ = ("_needle", "_payload_bytes", "_seen")

    def __init__(self, needle: bytes, payload_bytes: int) -> None:
        self._needle = needle
        self._payload_bytes = payload_bytes
        self._seen = bytearray()

    @classmethod
    def for_hello(cls) -> Search:
        """Return the search that a guest uses to find a HELLO with any nonce."""
        return cls(MAGIC, HELLO.size + _PADDING)

    @classmethod
    def for_welcome(cls, nonce: bytes) -> Search:
        """Return the search that a host uses to find the WELCOME that contains the host's nonce."""
        return cls(MAGIC + nonce, WELCOME.size)

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Search for the payload in the next received bytes.

        Returns:
            The payload and the bytes after the payload. Both are empty if the payload has not arrived completely.
        """
        seen = self._seen
        seen += data
        at = seen.find(self._needle)
        if at < 0:
            del seen[: max(0, len(seen) - len(self._needle) + 1)]
            return b"", b""
        del seen[:at]
        if len(seen) < self._payload_bytes:
            return b"", b""
        payload, rest = bytes(seen[: self._payload_bytes]), bytes(seen[self._payload_bytes :])
        seen.clear()
        return payload, rest
