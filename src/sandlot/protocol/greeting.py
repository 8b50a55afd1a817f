"""HELLO and WELCOME: how two ends that know nothing of each other's past find a common beginning.

The host sends a nonce; the guest echoes it. Whatever lies in the pipes from before, the host discards up to the echo.
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
    """The HELLO frame, padded to the largest frame."""
    return frames.encode(frames.HELLO, 0, HELLO.pack(MAGIC, nonce, lowest, highest) + b"\0" * _PADDING)


def welcome(nonce: bytes, generation: int, *, asleep: bool) -> bytes:
    """The WELCOME frame."""
    return frames.encode(frames.WELCOME, 0, WELCOME.pack(MAGIC, nonce, generation, int(asleep)))


def parse_hello(payload: bytes) -> tuple[bytes, int, int] | None:
    """Nonce, lowest and highest generation; None where it is no HELLO."""
    if len(payload) < HELLO.size or not payload.startswith(MAGIC):
        return None
    _, nonce, lowest, highest = HELLO.unpack_from(payload)
    return nonce, lowest, highest


def parse_welcome(payload: bytes) -> tuple[bytes, int, bool] | None:
    """Nonce, generation and whether the guest is asleep; None where it is no WELCOME."""
    if len(payload) != WELCOME.size or not payload.startswith(MAGIC):
        return None
    _, nonce, generation, asleep = WELCOME.unpack(payload)
    return nonce, generation, bool(asleep)


class Search:
    """Looks for a greeting in a stream of anything, keeping no more of it than one greeting.

    Args:
        needle: What the greeting's payload begins with: the magic, and on the host the nonce.
        payload_bytes: How long the payload is.
    """

    __slots__ = ("_needle", "_payload_bytes", "_seen")

    def __init__(self, needle: bytes, payload_bytes: int) -> None:
        self._needle = needle
        self._payload_bytes = payload_bytes
        self._seen = bytearray()

    @classmethod
    def for_hello(cls) -> Search:
        """The guest's search."""
        return cls(MAGIC, HELLO.size + _PADDING)

    @classmethod
    def for_welcome(cls, nonce: bytes) -> Search:
        """The host's search."""
        return cls(MAGIC + nonce, WELCOME.size)

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """The greeting's payload and what follows it, once it is whole; both empty until then."""
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
