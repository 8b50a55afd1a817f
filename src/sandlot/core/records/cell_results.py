"""Results and exception of a cell on their way into the execution log.

Invariants:
- The stored results of one cell take at most ``MAX_BYTES``. Results beyond that are counted and not kept.
- Data of a sandbox is only copied here. Nothing in it is decoded, except the encoding that this module has written.
"""

from __future__ import annotations

from typing import Final

from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.display_capture import DisplayCapture, value_bytes
from sandlot.model.executions import CellError, CellResults, Cleared, Display, Output, OutputGap
from sandlot.model.specs import MIB
from sandlot.protocol import values

MAX_BYTES: Final = 4 * MIB
"""Maximum size of the results and the exception that are stored of one cell, and their maximum memory while the cell runs."""


class ResultCapture:
    """Results and exception of a running cell.

    Args:
        memory: Memory of the execution log for the owner of the cell.
    """

    __slots__ = ("_clears", "_displays", "_error", "_error_bytes", "_memory")

    def __init__(self, memory: BufferBudget) -> None:
        self._memory = memory
        self._displays = DisplayCapture(memory, MAX_BYTES)
        self._clears = False
        self._error: CellError | None = None
        self._error_bytes = 0

    def add(self, event: object) -> None:
        """Add an event of the cell. Events other than results, their removal and the exception only tell when results are removed."""
        if self._clears and isinstance(event, Output | OutputGap | Display):
            self._clears = False
            self._displays.clear()
        if isinstance(event, Display):
            self._displays.add(event)
        elif isinstance(event, Cleared):
            self._clears = event.wait
            if not event.wait:
                self._displays.clear()
        elif isinstance(event, CellError):
            self._give_error()
            size = memory_bytes(CellResults(error=event))
            if self._memory.try_take(size):
                self._error, self._error_bytes = event, size

    def results(self) -> CellResults:
        """Return what is kept so far."""
        return CellResults(tuple(self._displays.displays), self._displays.omitted, self._error)

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._displays.close()
        self._give_error()

    def _give_error(self) -> None:
        self._memory.give(self._error_bytes)
        self._error_bytes = 0


def memory_bytes(results: CellResults) -> int:
    """Return the approximate memory, in bytes, of results. Pure."""
    error = results.error
    return sum(map(value_bytes, results.results)) + (0 if error is None else value_bytes((error.name, error.value, error.traceback)))


def encode(results: CellResults) -> bytes:
    """Return results as the store keeps them, or nothing if there is nothing to keep. Pure."""
    if not (results.results or results.omitted or results.error):
        return b""
    error = None if results.error is None else [results.error.name, results.error.value, list(results.error.traceback)]
    room = MAX_BYTES - len(values.encode(error)) - 100
    kept: list[bytes] = []
    for shown in results.results:
        # Results are encoded one by one: together they may have more items than one value can have.
        try:
            encoded = values.encode([dict(shown.data), shown.main, dict(shown.metadata), shown.display_id])
        except values.EncodingError:  # nested deeper than the codec allows
            continue
        if (room := room - len(encoded) - 5) < 0:
            break
        kept.append(encoded)
    return values.encode([kept, results.omitted + len(results.results) - len(kept), error])


def decode(stored: bytes) -> CellResults:
    """Return the results that :func:`encode` has encoded. Pure."""
    kept, omitted, error = values.decode(stored)
    displays = tuple(Display(data, main, metadata, display_id) for data, main, metadata, display_id in (values.decode(each) for each in kept))
    return CellResults(displays, omitted, None if error is None else CellError(error[0], error[1], tuple(error[2])))
