"""Bounded capture of the results of a cell: what a notebook shows in the end.

An updated display is kept once, in its last form. Results beyond the bounds are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.executions import Display

MAX_RESULTS: Final = 1000
"""Maximum number of results that are kept of one cell; further results are counted as omitted."""


class DisplayCapture:
    """Results of a cell. Close the capture at the end.

    Args:
        memory: Budget from which the memory of the results is taken.
        max_bytes: Maximum memory of the results.
        copies: Number of copies of each result for which memory is taken.

    Attributes:
        displays: Kept results.
        omitted: Number of results that were not kept.
    """

    __slots__ = ("_copies", "_held_bytes", "_max_bytes", "_memory", "displays", "omitted")

    def __init__(self, memory: BufferBudget, max_bytes: int, *, copies: int = 1) -> None:
        self._memory = memory
        self._max_bytes = max_bytes
        self._copies = copies
        self._held_bytes = 0
        self.displays: list[Display] = []
        self.omitted = 0

    def add(self, display: Display) -> None:
        """Add a result, or replace the display that the result updates."""
        known = [number for number, shown in enumerate(self.displays) if display.update and shown.display_id == display.display_id]
        # An update replaces the display and needs memory only for the difference, so an animation needs the memory of one frame.
        more_bytes = max(1, len(known)) * value_bytes(display) - sum(value_bytes(self.displays[number]) for number in known)
        is_full = self._held_bytes + more_bytes > self._max_bytes or (not known and len(self.displays) >= MAX_RESULTS)
        if is_full or not self._memory.try_take(self._copies * more_bytes):
            self.omitted += 1
            return
        self._held_bytes += more_bytes
        for number in known:
            self.displays[number] = replace(display, main=self.displays[number].main, update=False)
        if not known:
            self.displays.append(display)

    def clear(self) -> None:
        """Drop all results."""
        self.close()
        self.displays.clear()
        self.omitted = 0

    def close(self) -> None:
        """Give the memory back; the results can still be read. Idempotent."""
        self._memory.give(self._copies * self._held_bytes)
        self._held_bytes = 0


def value_bytes(value: object) -> int:
    """Return the approximate memory, in bytes, of a result of a cell or of a value in the result's metadata."""
    if isinstance(value, Display):
        return value_bytes((value.data, value.metadata))
    if isinstance(value, Mapping):
        return 100 + sum(100 + len(key) + value_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 100 + sum(map(value_bytes, value))
    return 50 + (len(value) if isinstance(value, str | bytes) else 0)
