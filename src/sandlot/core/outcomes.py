"""How processes ended, in words and numbers that are in bounds whatever a guest said. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sandlot.link.types import ProcessResult
from sandlot.model.capture import Capture
from sandlot.model.ids import ProcessId


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended.

    Args:
        process: Its id.
        exit_code: As a shell says it: 128 + signal where a signal ended it.
        signal: The signal's number; None where it exited.
        reason: exited, signalled, timeout or pids.
        duration_s: From start to end, as the guest measured it.
    """

    process: ProcessId
    exit_code: int
    signal: int | None
    reason: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that was run to its end, and what it wrote."""

    outcome: Outcome
    stdout: Capture
    stderr: Capture


def outcome_of(process: ProcessId, result: ProcessResult) -> Outcome:
    """What a guest's result comes to."""
    return Outcome(
        process=process,
        exit_code=exit_code(result.exit_code, result.signal),
        signal=result.signal,
        reason=result.reason or "",
        duration_s=finite(result.duration_s),
    )


def exit_code(code: int | None, signal: int | None) -> int:
    """An exit code as a shell says it: 128 + signal where a signal ended it."""
    return 128 + signal if signal is not None else code or 0


def finite(seconds: float) -> float:
    """A duration that JSON can carry, whatever a guest said."""
    return seconds if math.isfinite(seconds) and seconds >= 0 else 0.0
