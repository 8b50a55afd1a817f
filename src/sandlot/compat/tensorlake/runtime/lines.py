"""Output of several streams, joined into lines. Sans-I/O.

Invariants:
- A line ends with a newline, which is not part of the line, or with its stream.
- Incomplete lines are counted (``model/buffer_budget.py``) and bounded. A longer line, or a line for which there is no memory, is split between
  two characters.
"""

from __future__ import annotations

from typing import Final

from sandlot.model import utf8
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.executions import Output, OutputGap
from sandlot.model.specs import MIB

MAX_LINE_BYTES: Final = 8 * MIB


class LineBuffer:
    """Lines of a process. Has to be closed.

    Args:
        buffers: Budget for the memory of incomplete lines.
    """

    __slots__ = ("_buffers", "_incomplete")

    def __init__(self, buffers: BufferBudget) -> None:
        self._buffers = buffers
        self._incomplete: dict[int, bytearray] = {}

    def add(self, item: Output | OutputGap) -> list[tuple[int, str]]:
        """Add output, and return the lines that are complete now, each with its channel. A gap is a line that states the missing bytes."""
        if isinstance(item, OutputGap):
            return [*self._end(item.channel), (item.channel, f"[{item.bytes} bytes are no longer kept]")]
        *complete, rest = item.data.split(b"\n")
        lines = [(item.channel, _text(self._take(item.channel) + part)) for part in complete]
        if rest and not self._keep(item.channel, rest):
            line = self._take(item.channel) + rest
            begun = line[len(line) - utf8.incomplete_end(line) :]
            lines.append((item.channel, _text(line.removesuffix(begun))))
            if begun:
                self._buffers.take_anyway(len(begun))
                self._incomplete[item.channel] = bytearray(begun)
        return lines

    def end(self) -> list[tuple[int, str]]:
        """Return the incomplete lines at the end of the output."""
        return [line for channel in sorted(self._incomplete) for line in self._end(channel)]

    def close(self) -> None:
        """Return the memory to the budget. Idempotent."""
        for channel in tuple(self._incomplete):
            self._take(channel)

    def _end(self, channel: int) -> list[tuple[int, str]]:
        rest = self._take(channel)
        return [(channel, _text(rest))] if rest else []

    def _keep(self, channel: int, rest: bytes) -> bool:
        """Keep the rest of an incomplete line; False if the line is too long or there is no memory."""
        line = self._incomplete.setdefault(channel, bytearray())
        if len(line) + len(rest) > MAX_LINE_BYTES or not self._buffers.try_take(len(rest)):
            return False
        line += rest
        return True

    def _take(self, channel: int) -> bytes:
        """Remove and return the incomplete line of a channel."""
        line = self._incomplete.pop(channel, None)
        if not line:
            return b""
        self._buffers.give(len(line))
        return bytes(line)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
