"""What a run came to: one word for it, found by what was seen of it. Pure.

Law: The first that is true counts: too much output, too much time, too much memory, a failure, a wrong answer.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from enum import StrEnum

from sandlot.core.execution.output import ProcessOutcome
from sandlot.core.oneshot.comparison import matches
from sandlot.core.oneshot.params import OneShotParams, language_of
from sandlot.model.errors import SandboxEndedError
from sandlot.model.ids import ProcessId
from sandlot.model.ports import ExitReason
from sandlot.model.specs import KIB

KILLED = 128 + signals.SIGKILL
"""As a shell says it."""


class Status(StrEnum):
    """What a run came to."""

    COMPLETED = "completed"
    WRONG_ANSWER = "wrong_answer"
    """It ended well, and wrote something else than was expected."""
    RUNTIME_ERROR = "runtime_error"
    """It ended with another code than 0, or by a signal."""
    TIMEOUT = "timeout"
    MEMORY_EXCEEDED = "memory_exceeded"
    """It, a process that it started, or its whole sandbox was killed for memory. A program that ends well although a process of its was
    killed has dealt with it, and is graded like any other."""
    OUTPUT_LIMIT = "output_limit"
    """It was killed because it wrote more than it may."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to.

    Args:
        status: In one word.
        language: As it is called here.
        stdout: What it wrote, up to the limit.
        stderr: The same.
        exit_code: As a shell says it: 128 + signal where a signal ended it.
        signal: The signal's number; None where it exited.
        duration_s: From start to end.
        cpu_s: Processor time of it and of the children that it waited for; None where nobody knows.
        peak_bytes: The largest resident memory that one of them had; None likewise.
        detail: For a person, where the status alone does not say it: which limit, and what became of it.
        execution: Its id in the log of runs; None where it did not begin.
    """

    status: Status
    language: str
    stdout: str
    stderr: str
    exit_code: int
    signal: int | None
    duration_s: float
    cpu_s: float | None = None
    peak_bytes: int | None = None
    detail: str = ""
    execution: ProcessId | None = None

    @property
    def held_bytes(self) -> int:
        """About how much memory it takes."""
        return len(self.stdout) + len(self.stderr) + KIB


@dataclass(slots=True)
class Observation:
    """What was seen of a run.

    Args:
        stdout: What it wrote, up to the limit.
        stderr: The same.
        flooded: Whether it wrote more.
        outcome: How its process ended; None where nobody saw that.
        execution: Its id in the log of runs.
        ended: Why its sandbox ended before it.
        oom_kills: How many processes of its sandbox were killed for memory.
        duration_s: Seconds that it took, seen from outside.
    """

    stdout: str = ""
    stderr: str = ""
    flooded: bool = False
    outcome: ProcessOutcome | None = None
    execution: ProcessId | None = None
    ended: SandboxEndedError | None = None
    oom_kills: int = 0
    duration_s: float = 0.0


def graded(params: OneShotParams, seen: Observation) -> Result:
    """What a run came to.

    Args:
        params: What was asked for.
        seen: What was seen of it.
    """
    outcome = seen.outcome
    status, detail = _cut(params, seen) or _ended(params, outcome, seen)
    return Result(
        status=status,
        language=language_of(params.language).name,
        stdout=seen.stdout,
        stderr=seen.stderr,
        exit_code=KILLED if outcome is None else outcome.exit_code,
        signal=int(signals.SIGKILL) if outcome is None else outcome.signal,
        duration_s=seen.duration_s if outcome is None else outcome.duration_s,
        cpu_s=None if outcome is None else outcome.cpu_s,
        peak_bytes=None if outcome is None else outcome.peak_bytes,
        detail=detail,
        execution=seen.execution,
    )


def _cut(params: OneShotParams, seen: Observation) -> tuple[Status, str] | None:
    """The limit that ended it; None where none did."""
    reason, code = ("", 0) if seen.outcome is None else (seen.outcome.reason, seen.outcome.exit_code)
    ended = "" if seen.ended is None else seen.ended.fields.get("reason")
    if seen.flooded:
        return Status.OUTPUT_LIMIT, f"It wrote more than {params.output_bytes} bytes to one stream, and was killed."
    if reason == "timeout":
        return Status.TIMEOUT, f"It was killed after {params.timeout_s:g} s."
    if ended == ExitReason.OOM or reason == "oom" or (seen.oom_kills and code):
        what = "its sandbox" if ended == ExitReason.OOM else "a process"
        return Status.MEMORY_EXCEEDED, f"The memory limit of {params.limits.memory_bytes} bytes was reached, and {what} was killed."
    return None


def _ended(params: OneShotParams, outcome: ProcessOutcome | None, seen: Observation) -> tuple[Status, str]:
    """What it came to by itself."""
    if outcome is None:
        return Status.RUNTIME_ERROR, "It ended its own sandbox" + ("." if seen.ended is None else f": {seen.ended.message}")
    if outcome.exit_code:
        return (
            Status.RUNTIME_ERROR,
            f"It was killed, because its sandbox may have {params.limits.pids} processes." if outcome.reason == "pids" else "",
        )
    if params.expected_output is not None and not matches(seen.stdout, params.expected_output, params.comparison, params.tolerance):
        return Status.WRONG_ANSWER, ""
    return Status.COMPLETED, ""
