"""Output that is collected instead of streamed: the first and the last of it are kept, the middle is counted.

Laws:
- At most ``head_bytes + tail_bytes`` are held, plus the piece that was added last, however small the pieces are.
- Head and tail are exact bytes of the output; ``omitted`` is the exact number of bytes between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.model.specs import KIB, MIB

HEAD_BYTES = 1 * MIB
TAIL_BYTES = 1 * MIB
TEXT_BYTES = 64 * KIB
"""Of code, of a command, and of an error's text in a log."""


class Capture:
    """Collects one stream.

    Args:
        head_bytes: Kept of the beginning.
        tail_bytes: Kept of the end.
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
        """What it holds now."""
        return len(self._head) + len(self._tail)

    @property
    def room_bytes(self) -> int:
        """How much more it would hold at the most."""
        return self._head_left + self._tail_bytes - len(self._tail)

    def add(self, data: bytes) -> None:
        """The next bytes of the stream."""
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
        """That many bytes of the stream are known to be lost; what comes next belongs to the tail."""
        # All that was kept of the tail lies before the gap, and the result has room for one gap only.
        self.omitted += size + len(self._tail)
        self._tail.clear()
        self._head_left = 0

    def content(self) -> bytes:
        """Head and tail; where something was omitted, a line between them says how much."""
        if not self.omitted:
            return bytes(self._head + self._tail)
        gap = f"[... {self.omitted} bytes omitted ...]\n".encode()
        return bytes(self._head) + (b"" if not self._head or self._head.endswith(b"\n") else b"\n") + gap + bytes(self._tail)

    def text(self) -> str:
        """The content as UTF-8; what is not valid is replaced by U+FFFD."""
        return self.content().decode("utf-8", "replace")


def shortened(text: str) -> str:
    """A text as a log keeps it: head and tail of what is longer than 64 KiB. Pure."""
    if len(text) <= TEXT_BYTES // 4:  # no character has more than four bytes
        return text
    capture = Capture(TEXT_BYTES // 2, TEXT_BYTES // 2)
    capture.add(text.encode("utf-8", "replace"))
    return capture.text()


def shortened_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command as a log keeps it: as much of it as fits into 64 KiB, and how many arguments do not. Pure."""
    kept: list[str] = []
    room = TEXT_BYTES
    for number, argument in enumerate(argv):
        short = shortened(argument)
        room -= len(short.encode("utf-8", "replace")) + 8
        if room < 0 and kept:
            return (*kept, f"[... {len(argv) - number} arguments omitted ...]")
        kept.append(short)
    return tuple(kept)
