"""Results of processes and cells: bounded output, exit codes, and numbers that are valid whatever the guest sent.

Invariants:
- Collected output is reserved in the sandbox's buffer budget until the response is built. Output without room is counted as omitted.
- Numbers of a guest are checked before they leave this module: a duration is finite and not negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.link.types import CellError, CellStarted, Cleared, Display, Output, OutputGap, ProcessResult
from sandlot.model.capture import HEAD_BYTES, TAIL_BYTES, Capture
from sandlot.model.ids import ProcessId
from sandlot.model.specs import MIB
from sandlot.protocol.schema import STDERR, STDOUT

COPIES: Final = 3
"""Copies of collected output that exist while a response is built: bytes, text and JSON. Control characters take six bytes of JSON each, so output
of nothing else takes more than was reserved, for as long as it is encoded."""
MAX_RESULTS: Final = 1000
"""Results kept of one cell; further results are counted as omitted."""
MAX_RESULT_BYTES: Final = 32 * MIB
"""Memory of the results kept of one cell."""


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """End of a process.

    Args:
        process: Id of the process.
        exit_code: Exit code as in a shell: 128 + signal if a signal ended the process.
        signal: Number of the signal that ended the process; None if the process exited.
        reason: ``exited``, ``signalled``, ``timeout``, ``pids`` or ``oom``.
        duration_s: Seconds from start to end, measured by the guest.
        cpu_s: Processor time of the process and of the children that it waited for; None if unknown.
        peak_bytes: Largest resident memory of one of these processes; None if unknown.
    """

    process: ProcessId
    exit_code: int
    signal: int | None
    reason: str
    duration_s: float
    cpu_s: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """End and output of a process that was run to its end."""

    outcome: ProcessOutcome
    stdout: Capture
    stderr: Capture


class CommandOutputCollector:
    """Collects the output of a process or cell, as far as memory is available. Close the collector at the end.

    Args:
        buffers: Budget of the memory.
        head_bytes: Bytes kept of the beginning of each stream.
        tail_bytes: Bytes kept of the end of each stream.

    Attributes:
        captures: Channel -> collected output.
    """

    __slots__ = ("_buffers", "_taken_bytes", "captures")

    def __init__(self, buffers: BufferBudget, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._buffers = buffers
        self._taken_bytes = 0
        self.captures = {STDOUT: Capture(head_bytes, tail_bytes), STDERR: Capture(head_bytes, tail_bytes)}

    def add(self, event: Output | OutputGap) -> None:
        """Collect the next piece of output, or count the piece as omitted."""
        capture = self.captures[event.channel]
        before = capture.held_bytes
        if isinstance(event, OutputGap):
            capture.skip(event.bytes)
        elif self._buffers.has(COPIES * min(len(event.data), capture.room_bytes)):
            capture.add(event.data)
        else:
            capture.skip(len(event.data))
        size = COPIES * (capture.held_bytes - before)
        self._taken_bytes += size
        self._buffers.take_anyway(size)

    def reserve(self, size: int, *, force: bool = False) -> bool:
        """Reserve memory for something that is collected together with the output. Return False if there is none.

        Args:
            size: Bytes to reserve; a negative number releases memory.
            force: Reserve the memory for something that exists already, beyond the budget if necessary.
        """
        if size > 0 and not force and not self._buffers.has(COPIES * size):
            return False
        self._taken_bytes += COPIES * size
        self._buffers.take_anyway(COPIES * size)
        return True

    def close(self) -> None:
        """Release the memory: the response holds the output now. Idempotent."""
        self._buffers.take_anyway(-self._taken_bytes)
        self._taken_bytes = 0


def process_outcome(process: ProcessId, result: ProcessResult) -> ProcessOutcome:
    """Return the end of a process from the result that the guest sent."""
    return ProcessOutcome(
        process=process,
        exit_code=exit_code(result.exit_code, result.signal),
        signal=result.signal,
        reason=result.reason or "",
        duration_s=finite(result.duration_s),
        cpu_s=None if result.cpu_s is None else finite(result.cpu_s),
        peak_bytes=result.peak_bytes or None,
    )


def exit_code(code: int | None, signal: int | None) -> int:
    """Return an exit code as in a shell: 128 + signal if a signal ended the process."""
    return 128 + signal if signal is not None else code or 0


def finite(seconds: float) -> float:
    """Return a duration that JSON can represent: 0 for a value that is negative or not finite."""
    return seconds if math.isfinite(seconds) and seconds >= 0 else 0.0


class CodeOutputCollector:
    """Collects the output, results and error of a cell. Close the collector at the end.

    A display that was updated is kept once, in its last form. Displays that the cell cleared are not kept; output is.

    Args:
        buffers: Budget of the memory.

    Attributes:
        output: Collected output.
        shown: Kept results.
        omitted: Number of results that were not kept.
        error: Exception that ended the cell; None if there was none.
    """

    __slots__ = ("_clears", "_room_bytes", "error", "omitted", "output", "shown")

    def __init__(self, buffers: BufferBudget) -> None:
        self.output = CommandOutputCollector(buffers)
        self._room_bytes = MAX_RESULT_BYTES
        self._clears = False
        self.shown: list[Display] = []
        self.omitted = 0
        self.error: CellError | None = None

    def add(self, event: Output | OutputGap | CellStarted | Display | Cleared | CellError) -> None:
        """Collect the next event of the cell."""
        if isinstance(event, Output | OutputGap):
            self.output.add(event)
        elif isinstance(event, CellError):
            self.error = event
        elif isinstance(event, Cleared):
            self._clears = event.wait
            if not event.wait:
                self._clear()
        elif isinstance(event, Display):
            self._show(event)

    def close(self) -> None:
        """Release the memory: the response holds the results now. Idempotent."""
        self.output.close()

    def _show(self, display: Display) -> None:
        if self._clears:
            self._clears = False
            self._clear()
        known = [number for number, shown in enumerate(self.shown) if display.update and shown.display_id == display.display_id]
        shown = [replace(display, main=self.shown[number].main, update=False) for number in known] or [display]
        # The replaced displays are released first, so the frames of an animation need no more memory than one frame.
        before, size = sum(display_bytes(self.shown[number]) for number in known), len(shown) * display_bytes(display)
        self.output.reserve(-before)
        if (not known and len(self.shown) >= MAX_RESULTS) or size > self._room_bytes + before or not self.output.reserve(size):
            self.omitted += 1
            self.output.reserve(before, force=True)
            return
        self._room_bytes += before - size
        if known:
            for number, new in zip(known, shown, strict=True):
                self.shown[number] = new
        else:
            self.shown.append(display)

    def _clear(self) -> None:
        size = sum(map(display_bytes, self.shown))
        self.output.reserve(-size)
        self._room_bytes += size
        self.shown.clear()


def display_bytes(display: Display) -> int:
    """Return about how many bytes of memory a result takes."""
    return 200 + sum(200 + len(mime) + len(item) for mime, item in display.data.items()) + value_bytes(display.metadata)


def value_bytes(value: object) -> int:
    """Return about how many bytes of memory a value of a guest takes."""
    if isinstance(value, Mapping):
        return 100 + sum(len(key) + value_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 100 + sum(value_bytes(item) for item in value)
    return 50 + (len(value) if isinstance(value, str | bytes) else 0)
