"""Results of processes and cells: bounded output, results of cells, and exit codes.

Invariant: The memory of collected output is reserved in the sandbox's buffer budget until the response is built. Output for which no memory is left
is counted as omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sandlot.link.types import ProcessResult
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.executions import CellError, CellStarted, Channel, Cleared, Display, Output, OutputGap, ProcessOutcome, exit_code
from sandlot.model.ids import ProcessId
from sandlot.model.output_capture import COPIES, HEAD_BYTES, TAIL_BYTES, OutputCapture
from sandlot.model.specs import MIB

MAX_RESULTS: Final = 1000
"""Maximum number of results that are kept of one cell; further results are counted as omitted."""
MAX_RESULT_BYTES: Final = 32 * MIB
"""Maximum memory of the results that are kept of one cell."""


def process_outcome(process: ProcessId, result: ProcessResult) -> ProcessOutcome:
    """Return the outcome of a process from the result that the guest sent."""
    return ProcessOutcome(
        process=process,
        exit_code=exit_code(result.exit_code, result.signal, result.reason),
        signal=result.signal,
        reason=result.reason or "",
        duration_s=result.duration_s,
        cpu_s=result.cpu_s,
        peak_bytes=result.peak_bytes or None,
    )


class OutputCollector:
    """Collects the output of a process or a cell, as far as memory is available, and the results of a cell. Close the collector at the end.

    What is kept is what a notebook shows in the end. An updated display is kept once, in its last form. ``clear_output`` drops the displays and the
    output so far; with ``wait``, the next display or output does.

    Args:
        buffers: Buffer budget of the sandbox, in which the memory is reserved.
        head_bytes: Number of bytes kept of the beginning of each stream.
        tail_bytes: Number of bytes kept of the end of each stream.

    Attributes:
        captures: Channel -> collected output.
        displays: Kept results of a cell.
        omitted: Number of results that were not kept.
        error: Exception that ended the cell; None if no exception did.
    """

    __slots__ = ("_buffers", "_clears", "_displays_bytes", "_head_bytes", "_tail_bytes", "_taken_bytes", "captures", "displays", "error", "omitted")

    def __init__(self, buffers: BufferBudget, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._buffers = buffers
        self._taken_bytes = 0
        self._displays_bytes = 0
        self._clears = False
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self.captures: dict[int, OutputCapture] = self._new_captures()
        self.displays: list[Display] = []
        self.omitted = 0
        self.error: CellError | None = None

    def add(self, event: Output | OutputGap | CellStarted | Display | Cleared | CellError) -> None:
        """Collect the next event of the execution. Output and results for which no memory is left are counted as omitted."""
        if self._clears and isinstance(event, Output | OutputGap | Display):
            self._clear()
        if isinstance(event, Output | OutputGap):
            self._add_output(event)
        elif isinstance(event, Display):
            self._show(event)
        elif isinstance(event, Cleared):
            self._clears = event.wait
            if not event.wait:
                self._clear()
        elif isinstance(event, CellError):
            self.error = event

    def close(self) -> None:
        """Release the reserved memory once the response is built. Idempotent."""
        self._buffers.give(self._taken_bytes)
        self._taken_bytes = 0

    def _add_output(self, event: Output | OutputGap) -> None:
        capture = self.captures[event.channel]
        held_bytes = capture.held_bytes
        if isinstance(event, Output) and self._buffers.try_take(COPIES * min(len(event.data), capture.room_bytes)):
            capture.add(event.data)
        else:
            capture.skip(event.bytes if isinstance(event, OutputGap) else len(event.data))
            self._buffers.give(COPIES * (held_bytes - capture.held_bytes))
        self._taken_bytes += COPIES * (capture.held_bytes - held_bytes)

    def _show(self, display: Display) -> None:
        known = [number for number, shown in enumerate(self.displays) if display.update and shown.display_id == display.display_id]
        # An update replaces the display and needs memory only for the difference, so an animation needs the memory of one frame.
        more_bytes = max(1, len(known)) * value_bytes(display) - sum(value_bytes(self.displays[number]) for number in known)
        is_full = self._displays_bytes + more_bytes > MAX_RESULT_BYTES or (not known and len(self.displays) >= MAX_RESULTS)
        if is_full or not self._buffers.try_take(COPIES * more_bytes):
            self.omitted += 1
            return
        self._displays_bytes += more_bytes
        self._taken_bytes += COPIES * more_bytes
        for number in known:
            self.displays[number] = replace(display, main=self.displays[number].main, update=False)
        if not known:
            self.displays.append(display)

    def _clear(self) -> None:
        self.close()  # releases the memory of all that is dropped
        self._clears = False
        self._displays_bytes = 0
        self.displays.clear()
        self.omitted = 0
        self.captures = self._new_captures()

    def _new_captures(self) -> dict[int, OutputCapture]:
        return {channel: OutputCapture(self._head_bytes, self._tail_bytes) for channel in Channel}


def value_bytes(value: object) -> int:
    """Return the approximate memory, in bytes, of a result of a cell or of a value in the result's metadata."""
    if isinstance(value, Display):
        return value_bytes((value.data, value.metadata))
    if isinstance(value, Mapping):
        return 100 + sum(100 + len(key) + value_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 100 + sum(map(value_bytes, value))
    return 50 + (len(value) if isinstance(value, str | bytes) else 0)
