"""Bounded capture of output: its beginning and its end are kept, and the omitted bytes between them are counted.

Invariants:
- A capture keeps at most ``head_bytes + tail_bytes`` bytes in memory, however small the added pieces are.
- Head and tail are exact bytes of the output, and ``omitted`` is the exact number of bytes between them.
- No character is shown in parts: its bytes are omitted if some of them are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandlot.model import utf8
from sandlot.model.specs import KIB, MIB

HEAD_BYTES = 1 * MIB
TAIL_BYTES = 1 * MIB
MAX_LOGGED_BYTES = 64 * KIB
"""Largest size in bytes of code, of a command and of an error text in the execution log."""


class OutputCapture:
    """Captured output of one stream: its beginning (the head) and its end (the tail).

    Args:
        head_bytes: Largest number of bytes to keep from the beginning.
        tail_bytes: Largest number of bytes to keep from the end.
    """

    __slots__ = ("_dropped", "_head", "_head_left", "_tail", "_tail_bytes")

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head = bytearray()
        self._head_left = head_bytes
        self._tail = bytearray()
        self._tail_bytes = tail_bytes
        self._dropped = 0

    @property
    def held_bytes(self) -> int:
        """Number of captured bytes that are in memory."""
        return len(self._head) + len(self._tail)

    @property
    def room_bytes(self) -> int:
        """Number of bytes by which ``held_bytes`` can still grow until the head and the tail are full."""
        return self._head_left + self._tail_bytes - len(self._tail)

    def add(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        if self._head_left:
            piece = data[: self._head_left]
            self._head += piece
            self._head_left -= len(piece)
            data = data[len(piece) :]
        self._tail += data
        surplus = len(self._tail) - self._tail_bytes
        if surplus > 0:
            del self._tail[:surplus]  # moves a pointer, not the bytes
            self._dropped += surplus

    def skip(self, size: int) -> None:
        """Count ``size`` lost bytes as omitted. Bytes that are added later become the tail, which is the end of the output."""
        # The omitted bytes must be one consecutive range. The current tail lies before the lost bytes, so the tail is omitted too.
        self._dropped += size + len(self._tail)
        self._tail.clear()
        self._head_left = 0

    @property
    def written_bytes(self) -> int:
        """Number of bytes that the stream has had so far."""
        return self.held_bytes + self._dropped

    @property
    def omitted(self) -> int:
        """Number of bytes between head and tail that :meth:`content` leaves out."""
        return self._dropped + sum(self._broken_bytes())

    def content(self) -> bytes:
        """Return head and tail. If bytes were omitted, a line between head and tail gives the number of omitted bytes."""
        if not self._dropped:
            return bytes(self._head + self._tail)
        at_end, at_start = self._broken_bytes()
        head = bytes(self._head[: len(self._head) - at_end])
        gap = f"[... {self.omitted} bytes omitted ...]\n".encode()
        return head + (b"" if not head or head.endswith(b"\n") else b"\n") + gap + bytes(self._tail[at_start:])

    def text(self) -> str:
        """Return the content as text. Bytes that are not UTF-8 are replaced by U+FFFD."""
        return self.content().decode("utf-8", "replace")

    def _broken_bytes(self) -> tuple[int, int]:
        """Return the numbers of bytes at the end of the head and at the start of the tail whose character was dropped in part."""
        return (utf8.incomplete_end(self._head), utf8.incomplete_start(self._tail)) if self._dropped else (0, 0)


def shorten(text: str) -> str:
    """Return the beginning and the end of a text of more than ``MAX_LOGGED_BYTES``, and a line between them. Return a shorter text unchanged."""
    if len(text) <= MAX_LOGGED_BYTES // 4:  # no character has more than four bytes
        return text
    capture = OutputCapture(MAX_LOGGED_BYTES // 2, MAX_LOGGED_BYTES // 2)
    capture.add(text.encode("utf-8", "replace"))
    return capture.text()


def shorten_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the first arguments of a command that fit into ``MAX_LOGGED_BYTES``.

    Each argument is shortened with :func:`shorten`. If arguments were omitted, a text with their number follows.
    """
    kept: list[str] = []
    room = MAX_LOGGED_BYTES
    for number, argument in enumerate(argv):
        short = shorten(argument)
        room -= len(short.encode("utf-8", "replace")) + 8
        if room < 0 and kept:
            return (*kept, f"[... {len(argv) - number} arguments omitted ...]")
        kept.append(short)
    return tuple(kept)


COPIES: Final = 3
"""Copies of collected output that exist while a response is built: bytes, text and JSON. A control character takes six bytes of JSON. Output that
consists of control characters therefore takes more memory than was reserved, while it is encoded."""
