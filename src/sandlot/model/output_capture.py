"""Bounded capture of output: its beginning and its end are kept, and the omitted bytes between them are counted.

Invariants:
- A capture holds at most ``head_bytes + tail_bytes``, however small the pieces are that it gets.
- Head and tail are exact bytes of the output, and ``omitted`` is the exact number of bytes between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.model.specs import KIB, MIB

HEAD_BYTES = 1 * MIB
TAIL_BYTES = 1 * MIB
MAX_LOGGED_BYTES = 64 * KIB
"""Largest size of code, of a command and of an error text in the execution log."""


class OutputCapture:
    """Captured output of one stream.

    Args:
        head_bytes: Bytes to keep from the beginning.
        tail_bytes: Bytes to keep from the end.

    Attributes:
        omitted: Number of bytes between head and tail that were dropped.
    """

    __slots__ = ("_head", "_head_left", "_tail", "_tail_bytes", "omitted")

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head = bytearray()
        self._head_left = head_bytes
        self._tail = bytearray()
        self._tail_bytes = tail_bytes
        self.omitted = 0

    @property
    def held_bytes(self) -> int:
        """Number of bytes in memory."""
        return len(self._head) + len(self._tail)

    @property
    def room_bytes(self) -> int:
        """Largest number of bytes by which ``held_bytes`` can still grow."""
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
            self.omitted += surplus

    def skip(self, size: int) -> None:
        """Count ``size`` bytes of the stream that are lost. Later bytes belong to the tail."""
        # The result has one gap only. The tail so far lies before the bytes that are omitted now, so it is omitted as well.
        self.omitted += size + len(self._tail)
        self._tail.clear()
        self._head_left = 0

    def content(self) -> bytes:
        """Return head and tail. If bytes were omitted, a line between them gives their number."""
        if not self.omitted:
            return bytes(self._head + self._tail)
        gap = f"[... {self.omitted} bytes omitted ...]\n".encode()
        return bytes(self._head) + (b"" if not self._head or self._head.endswith(b"\n") else b"\n") + gap + bytes(self._tail)

    def text(self) -> str:
        """Return the content as text. Bytes that are not UTF-8 are replaced by U+FFFD."""
        return self.content().decode("utf-8", "replace")


def shorten(text: str) -> str:
    """Return head and tail of a text, together at most ``MAX_LOGGED_BYTES`` and the line between them. A shorter text is unchanged."""
    if len(text) <= MAX_LOGGED_BYTES // 4:  # no character has more than four bytes
        return text
    capture = OutputCapture(MAX_LOGGED_BYTES // 2, MAX_LOGGED_BYTES // 2)
    capture.add(text.encode("utf-8", "replace"))
    return capture.text()


def shorten_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the first arguments of a command that fit into ``MAX_LOGGED_BYTES``, followed by the number of the omitted arguments.

    Each argument is shortened like a text.
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
