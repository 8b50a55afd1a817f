"""What a cell gave, collected within bounds: its output, its results, its error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sandlot.core.node.budget import BufferBudget
from sandlot.core.runs.outcomes import CommandOutputCollector
from sandlot.link.types import CellError, CellStarted, Cleared, Display, Lost, Output
from sandlot.model.capture import Capture
from sandlot.model.specs import MIB
from sandlot.protocol.schema import STDERR, STDOUT

MAX_RESULTS = 1000
MAX_RESULT_BYTES = 32 * MIB


class CodeOutputCollector:
    """Events in, what is to be answered out. Close it in the end.

    A display that was updated is there once, as it was shown last; what the cell cleared is not there. Output stays as it was written.

    Args:
        buffers: Where the memory is taken from.
    """

    __slots__ = ("_clears", "_output", "_room", "error", "omitted", "shown")

    def __init__(self, buffers: BufferBudget) -> None:
        self._output = CommandOutputCollector(buffers, (STDOUT, STDERR))
        self._room = MAX_RESULT_BYTES
        self._clears = False
        self.shown: list[Display] = []
        self.omitted = 0
        self.error: CellError | None = None

    def __getitem__(self, channel: int) -> Capture:
        """What was kept of a channel."""
        return self._output[channel]

    def add(self, event: Output | Lost | CellStarted | Display | Cleared | CellError) -> None:
        """The next thing that the cell gave."""
        if isinstance(event, Output | Lost):
            self._output.add(event)
        elif isinstance(event, CellError):
            self.error = event
        elif isinstance(event, Cleared):
            self._clears = event.wait
            if not event.wait:
                self._clear()
        elif isinstance(event, Display):
            self._show(event)

    def close(self) -> None:
        """Give back what was taken: the answer is what holds it now. Idempotent."""
        self._output.close()

    def _show(self, display: Display) -> None:
        if self._clears:
            self._clears = False
            self._clear()
        known = [number for number, shown in enumerate(self.shown) if display.update and shown.display_id == display.display_id]
        shown = [replace(display, main=self.shown[number].main, update=False) for number in known] or [display]
        # What it takes the place of goes before it comes: the last frame of an animation needs no more room than one frame.
        before = [self.shown[number] for number in known]
        self._give(before)
        if (not known and len(self.shown) >= MAX_RESULTS) or not self._take(shown):
            self.omitted += 1
            self._take(before, anyway=True)
        elif known:
            for number, new in zip(known, shown, strict=True):
                self.shown[number] = new
        else:
            self.shown.append(display)

    def _clear(self) -> None:
        self._give(self.shown)
        self.shown.clear()

    def _take(self, displays: Iterable[Display], *, anyway: bool = False) -> bool:
        """Take what displays need, or nothing (False)."""
        size = sum(map(display_bytes, displays))
        if not anyway and (size > self._room or not self._output.try_take(size)):
            return False
        if anyway:
            self._output.take_anyway(size)
        self._room -= size
        return True

    def _give(self, displays: Iterable[Display]) -> None:
        size = sum(map(display_bytes, displays))
        self._output.give(size)
        self._room += size


def display_bytes(display: Display) -> int:
    """About how many bytes of memory a result takes. Pure."""
    return 200 + sum(200 + len(mime) + len(item) for mime, item in display.data.items()) + value_bytes(display.metadata)


def value_bytes(value: object) -> int:
    """About how many bytes of memory a value takes that came over the wire. Pure."""
    if isinstance(value, Mapping):
        return 100 + sum(len(key) + value_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 100 + sum(value_bytes(item) for item in value)
    return 50 + (len(value) if isinstance(value, str | bytes) else 0)
