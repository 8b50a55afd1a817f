"""Verdict of a one-shot run: its status and result, derived from an observation. Pure.

Invariant: The status is the first one that applies of output limit, timeout, memory exceeded, runtime error, wrong answer.
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
"""Exit code of a killed program, as in a shell."""


class Status(StrEnum):
    """Outcome of a run."""

    COMPLETED = "completed"
    WRONG_ANSWER = "wrong_answer"
    """The program exited with 0, and its output is not the expected one."""
    RUNTIME_ERROR = "runtime_error"
    """The program exited with another code than 0, or was ended by a signal."""
    TIMEOUT = "timeout"
    MEMORY_EXCEEDED = "memory_exceeded"
    """The program, a process of the program, or the whole sandbox was killed because of memory, and the program failed. A program that
    exits with 0 although one of its processes was killed has handled this, and is graded like any other."""
    OUTPUT_LIMIT = "output_limit"
    """The program was killed because it wrote more than ``output_bytes``."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a run.

    Args:
        status: Outcome of the run.
        language: Name of the language.
        stdout: Standard output, up to the output limit.
        stderr: Standard error, up to the output limit.
        exit_code: Exit code as in a shell: 128 + signal if a signal ended the program.
        signal: Number of the signal that ended the program; None if it exited.
        duration_s: Seconds from the start to the end of the program.
        cpu_s: Processor time of the program and of the children that it waited for; None if unknown.
        peak_bytes: Largest resident memory of one of these processes; None if unknown.
        detail: Explanation for people: the limit that was exceeded, or why the program failed. Empty if the status says everything.
        execution: Id in the execution log; None if the program did not start.
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
        """Approximate memory of the result."""
        return len(self.stdout) + len(self.stderr) + KIB


@dataclass(slots=True)
class Observation:
    """Observed behaviour of a run.

    Args:
        stdout: Standard output, up to the output limit.
        stderr: Standard error, up to the output limit.
        flooded: True if the program wrote more than the output limit.
        outcome: End of the process; None if the service did not learn it.
        execution: Id in the execution log.
        ended: Error of the end of the sandbox, if the sandbox ended first.
        oom_kills: Number of processes of the sandbox that were killed because of memory.
        duration_s: Duration that the service measured.
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
    """Return the result of a run.

    Args:
        params: Parameters of the run.
        seen: Observed behaviour of the run.
    """
    outcome = seen.outcome
    status, detail = _limit_exceeded(params, seen) or _end_of_program(params, outcome, seen)
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


def _limit_exceeded(params: OneShotParams, seen: Observation) -> tuple[Status, str] | None:
    """Return the limit that ended the program, or None."""
    reason, code = ("", 0) if seen.outcome is None else (seen.outcome.reason, seen.outcome.exit_code)
    ended = "" if seen.ended is None else seen.ended.fields.get("reason")
    if seen.flooded:
        return Status.OUTPUT_LIMIT, f"The program wrote more than {params.output_bytes} bytes to one stream and was killed."
    if reason == "timeout":
        return Status.TIMEOUT, f"The program was killed after {params.timeout_s:g} s."
    if ended == ExitReason.OOM or reason == "oom" or (seen.oom_kills and code):
        killed = "the sandbox" if ended == ExitReason.OOM else "a process"
        return Status.MEMORY_EXCEEDED, f"The memory limit of {params.limits.memory_bytes} bytes was reached, and {killed} was killed."
    return None


def _end_of_program(params: OneShotParams, outcome: ProcessOutcome | None, seen: Observation) -> tuple[Status, str]:
    if outcome is None:
        return Status.RUNTIME_ERROR, "The program ended its sandbox" + ("." if seen.ended is None else f": {seen.ended.message}")
    if outcome.exit_code:
        return (
            Status.RUNTIME_ERROR,
            f"The program was killed, because the sandbox may have {params.limits.pids} processes." if outcome.reason == "pids" else "",
        )
    if params.expected_output is not None and not matches(seen.stdout, params.expected_output, params.comparison, params.tolerance):
        return Status.WRONG_ANSWER, ""
    return Status.COMPLETED, ""
