"""Output as lines: bytes of several streams, put together again line by line. Sans-I/O.

Laws:
- A line ends with a newline, which is not part of it, or with its stream.
- What waits for the end of its line is counted (``model/buffer_budget.py``), and bounded: a longer line, or one for which there is no memory,
  is told as several.
"""

from __future__ import annotations

from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.executions import Output, OutputGap
from sandlot.model.specs import MIB

MOST_BYTES = 8 * MIB
"""Of one line."""


class Lines:
    """The lines of a process. Close it in the end.

    Args:
        buffers: Where the memory for what waits is taken from.
    """

    __slots__ = ("_buffers", "_waiting")

    def __init__(self, buffers: BufferBudget) -> None:
        self._buffers = buffers
        self._waiting: dict[int, bytearray] = {}

    def add(self, item: Output | OutputGap) -> list[tuple[int, str]]:
        """The next piece of output.

        Returns:
            Lines that are whole now, each with its channel; one that says so where something was lost.
        """
        if isinstance(item, OutputGap):
            return [*self._end(item.channel), (item.channel, f"[{item.bytes} bytes are no longer kept]")]
        *whole, rest = item.data.split(b"\n")
        told = [(item.channel, _text(self._take(item.channel) + part)) for part in whole]
        if rest and not self._keep(item.channel, rest):
            told.append((item.channel, _text(self._take(item.channel) + rest)))
        return told

    def end(self) -> list[tuple[int, str]]:
        """Nothing more comes: what still waits, each a line."""
        return [line for channel in sorted(self._waiting) for line in self._end(channel)]

    def close(self) -> None:
        """Give back what was taken. Idempotent."""
        for channel in tuple(self._waiting):
            self._take(channel)

    def _end(self, channel: int) -> list[tuple[int, str]]:
        rest = self._take(channel)
        return [(channel, _text(rest))] if rest else []

    def _keep(self, channel: int, rest: bytes) -> bool:
        """Let it wait; False where it cannot."""
        waiting = self._waiting.setdefault(channel, bytearray())
        if len(waiting) + len(rest) > MOST_BYTES or not self._buffers.try_take(len(rest)):
            return False
        waiting += rest
        return True

    def _take(self, channel: int) -> bytes:
        """What waits, which waits no more."""
        waiting = self._waiting.pop(channel, None)
        if not waiting:
            return b""
        self._buffers.give(len(waiting))
        return bytes(waiting)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
