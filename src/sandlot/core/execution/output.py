"""What processes gave and how they ended: output within a budget, words and numbers in bounds whatever a guest said.

What a cell gave, collected within bounds: its output, its results, its error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.link.types import CellError, CellStarted, Cleared, Display, Lost, Output, ProcessResult
from sandlot.model.capture import HEAD_BYTES, TAIL_BYTES, Capture
from sandlot.model.ids import ProcessId
from sandlot.model.specs import MIB
from sandlot.protocol.schema import STDERR, STDOUT


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """How a process ended.

    Args:
        process: Its id.
        exit_code: As a shell says it: 128 + signal where a signal ended it.
        signal: The signal's number; None where it exited.
        reason: exited, signalled, timeout, pids or oom.
        duration_s: From start to end, as the guest measured it.
        cpu_s: Processor time of it and of the children that it waited for; None where nobody knows.
        peak_bytes: The largest resident memory that one of them had; None likewise.
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
    """A process that was run to its end, and what it wrote."""

    outcome: ProcessOutcome
    stdout: Capture
    stderr: Capture


COPIES = 3
"""What is collected is there three times when it is answered: as bytes, as text and as JSON. (Control characters take six bytes of
JSON each: output of nothing else takes more than it is counted for, for the moment of its encoding.)"""


class CommandOutputCollector:
    """Output of several channels, as far as there is memory for it; the rest is counted as omitted. Close it in the end.

    Args:
        buffers: Where the memory is taken from.
        channels: Which there are.
        head_bytes: Kept of the beginning of each.
        tail_bytes: Kept of the end of each.
    """

    __slots__ = ("_buffers", "_captures", "_taken_bytes")

    def __init__(self, buffers: BufferBudget, channels: Iterable[int], *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._buffers = buffers
        self._captures = {channel: Capture(head_bytes, tail_bytes) for channel in channels}
        self._taken_bytes = 0

    def __getitem__(self, channel: int) -> Capture:
        """What was kept of a channel."""
        return self._captures[channel]

    def add(self, event: Output | Lost) -> None:
        """The next piece of a channel."""
        capture = self._captures[event.channel]
        before = capture.held_bytes
        if isinstance(event, Lost):
            capture.skip(event.bytes)
        elif self._buffers.has(COPIES * min(len(event.data), capture.room_bytes)):
            capture.add(event.data)
        else:
            capture.skip(len(event.data))
        self._take(COPIES * (capture.held_bytes - before))

    def try_take(self, size: int) -> bool:
        """Count something else that is collected along with it; False where there is no memory for it."""
        if not self._buffers.has(COPIES * size):
            return False
        self._take(COPIES * size)
        return True

    def take_anyway(self, size: int) -> None:
        """Count what stays after all, such as what nothing could take the place of."""
        self._take(COPIES * size)

    def give(self, size: int) -> None:
        """What was counted along with it is no longer kept."""
        self._take(-COPIES * size)

    def close(self) -> None:
        """Give back what was taken: the answer is what holds it now. Idempotent."""
        self._take(-self._taken_bytes)

    def _take(self, size: int) -> None:
        self._taken_bytes += size
        self._buffers.take_anyway(size)


def process_outcome(process: ProcessId, result: ProcessResult) -> ProcessOutcome:
    """What a guest's result comes to."""
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
    """An exit code as a shell says it: 128 + signal where a signal ended it."""
    return 128 + signal if signal is not None else code or 0


def finite(seconds: float) -> float:
    """A duration that JSON can carry, whatever a guest said."""
    return seconds if math.isfinite(seconds) and seconds >= 0 else 0.0


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
