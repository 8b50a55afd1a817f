"""What processes gave and how they ended: output within a budget, words and numbers in bounds whatever a guest said."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sandlot.core.node.budget import BufferBudget
from sandlot.link.types import Lost, Output, ProcessResult
from sandlot.model.capture import HEAD_BYTES, TAIL_BYTES, Capture
from sandlot.model.ids import ProcessId


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
