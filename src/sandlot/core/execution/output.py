"""Results of processes and cells: bounded output, results of cells, and exit codes.

Invariant: The memory of collected output is reserved in the sandbox's buffer budget until the response is built. Output for which no memory is left
is counted as omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandlot.link.types import ProcessResult
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.display_capture import DisplayCapture
from sandlot.model.executions import CellError, CellStarted, Channel, Cleared, Display, Output, OutputGap, ProcessOutcome, exit_code
from sandlot.model.ids import ProcessId
from sandlot.model.output_capture import COPIES, HEAD_BYTES, TAIL_BYTES, OutputCapture
from sandlot.model.specs import MIB

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
        error: Exception that ended the cell; None if no exception did.
    """

    __slots__ = ("_buffers", "_clears", "_displays", "_head_bytes", "_tail_bytes", "_taken_bytes", "captures", "error")

    def __init__(self, buffers: BufferBudget, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._buffers = buffers
        self._taken_bytes = 0
        self._clears = False
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self.captures: dict[int, OutputCapture] = self._new_captures()
        self._displays = DisplayCapture(buffers, MAX_RESULT_BYTES, copies=COPIES)
        self.error: CellError | None = None

    @property
    def displays(self) -> Sequence[Display]:
        """Kept results of a cell."""
        return self._displays.displays

    @property
    def omitted(self) -> int:
        """Number of results that were not kept."""
        return self._displays.omitted

    def add(self, event: Output | OutputGap | CellStarted | Display | Cleared | CellError) -> None:
        """Collect the next event of the execution. Output and results for which no memory is left are counted as omitted."""
        if self._clears and isinstance(event, Output | OutputGap | Display):
            self._clear()
        if isinstance(event, Output | OutputGap):
            self._add_output(event)
        elif isinstance(event, Display):
            self._displays.add(event)
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
        self._displays.close()

    def _add_output(self, event: Output | OutputGap) -> None:
        capture = self.captures[event.channel]
        held_bytes = capture.held_bytes
        if isinstance(event, Output) and self._buffers.try_take(COPIES * min(len(event.data), capture.room_bytes)):
            capture.add(event.data)
        else:
            capture.skip(event.bytes if isinstance(event, OutputGap) else len(event.data))
            self._buffers.give(COPIES * (held_bytes - capture.held_bytes))
        self._taken_bytes += COPIES * (capture.held_bytes - held_bytes)

    def _clear(self) -> None:
        self.close()  # releases the memory of all that is dropped
        self._clears = False
        self._displays.clear()
        self.captures = self._new_captures()

    def _new_captures(self) -> dict[int, OutputCapture]:
        return {channel: OutputCapture(self._head_bytes, self._tail_bytes) for channel in Channel}
