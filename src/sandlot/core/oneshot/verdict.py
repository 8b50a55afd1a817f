"""Verdict of a one-shot run: grade the observed behaviour of a program, and compare its output with the expected output. Pure functions.

Invariants of the status:
- If several statuses apply, the run gets the first of: output limit, timeout, memory exceeded, runtime error, wrong answer.

Invariants of a comparison:
- Every comparison is reflexive. It is also symmetric, except for the tolerance, which is relative to the *expected* number.
- Nothing is computed in binary floating point. Numbers are compared as decimals, with forty digits more than both numbers have together.
- The time is proportional to the length of both texts. Numbers with very many digits would take longer, so they are compared as words.
"""

from __future__ import annotations

import decimal
import re
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from types import MappingProxyType

from sandlot.model.errors import SandboxEndedError
from sandlot.model.executions import ProcessOutcome
from sandlot.model.faults import Fault
from sandlot.model.ids import ProcessId
from sandlot.model.languages import language_of
from sandlot.model.ports import ExitReason
from sandlot.model.programs import DEFAULT_TOLERANCE, Comparison, OneShotParams, Result, Status
from sandlot.model.programs import KILLED_EXIT_CODE as KILLED

PROGRAM_FAULTS: Mapping[Status, Fault | None] = MappingProxyType(
    {
        Status.COMPLETED: None,
        Status.WRONG_ANSWER: Fault.CODE,
        Status.COMPILE_ERROR: Fault.CODE,
        Status.RUNTIME_ERROR: Fault.CODE,
        Status.TIMEOUT: Fault.CODE,
        Status.MEMORY_EXCEEDED: Fault.LIMIT,
        Status.OUTPUT_LIMIT: Fault.LIMIT,
    }
)
"""Status of a one-shot run -> fault class, unless the sandbox was lost."""

MAX_NUMBER_CHARS = 1000
"""Largest length of a word that is compared as a number; longer words are compared as text."""

_SPARE_DIGITS = 40
"""Digits of precision that are added to the digits of both numbers; more digits than any tolerance that a float can express."""
_WORDS_AT_ONCE = 1000
"""Number of words that are first compared as lists. Most words are equal, and comparing lists is a hundred times as fast as comparing numbers."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?", re.ASCII)
_WHITE_SPACE = " \t\r\n\v\f"


@dataclass(slots=True)
class Observation:
    """Behaviour of a program as the service observed it. The fields are set while the program runs.

    Args:
        stdout: Standard output, up to the output limit. Bytes that are not UTF-8 are U+FFFD.
        stdout_is_utf8: False if ``stdout`` has such bytes. It then differs from every expected output, which is text.
        stderr: Standard error, up to the output limit.
        output_exceeded: True if the program wrote more than the output limit.
        outcome: End of the process; None if the sandbox ended before the end of the process was reported.
        execution: Id of the run in the execution log.
        sandbox_error: Error that the end of the sandbox caused; None if the sandbox did not end during the run.
        oom_kills: Number of processes in the sandbox that the kernel killed at the memory limit.
        duration_s: Seconds from the start to the end of the program, as the service measured them.
    """

    stdout: str = ""
    stdout_is_utf8: bool = True
    stderr: str = ""
    output_exceeded: bool = False
    outcome: ProcessOutcome | None = None
    execution: ProcessId | None = None
    sandbox_error: SandboxEndedError | None = None
    oom_kills: int = 0
    duration_s: float = 0.0


def grade(params: OneShotParams, observation: Observation) -> Result:
    """Return the result of a one-shot run."""
    outcome = observation.outcome
    status, detail = _exceeded_limit(params, observation) or _status_at_end(params, observation)
    return Result(
        status=status,
        fault=_fault(status, observation),
        language=language_of(params.language).name,
        stdout=observation.stdout,
        stderr=observation.stderr,
        exit_code=KILLED if outcome is None else outcome.exit_code,
        signal=int(signals.SIGKILL) if outcome is None else outcome.signal,
        duration_s=observation.duration_s if outcome is None else outcome.duration_s,
        cpu_s=None if outcome is None else outcome.cpu_s,
        peak_bytes=None if outcome is None else outcome.peak_bytes,
        detail=detail,
        execution=observation.execution,
    )


def compile_error(params: OneShotParams, outcome: ProcessOutcome, output: str) -> Result:
    """Return the result of a program that its compiler or the syntax check has refused.

    Args:
        params: The program.
        outcome: End of the compiler.
        output: Output of the compiler, which is the standard error of the result as well.
    """
    killed = {
        "timeout": f"The compiler was killed after {outcome.duration_s:.0f} s.",
        "oom": f"The compiler was killed at the memory limit of {params.limits.memory_bytes} bytes.",
    }
    return Result(
        status=Status.COMPILE_ERROR,
        fault=Fault.LIMIT if outcome.reason in killed else PROGRAM_FAULTS[Status.COMPILE_ERROR],
        language=language_of(params.language).name,
        stdout="",
        stderr=output,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        duration_s=outcome.duration_s,
        cpu_s=outcome.cpu_s,
        peak_bytes=outcome.peak_bytes,
        detail=killed.get(outcome.reason, ""),
        compile_output=output,
    )


def combine(results: Sequence[Result]) -> Result:
    """Return the result of a program with cases.

    Args:
        results: Results of the cases, at least one.
    """
    decisive = next((each for each in results if each.status is not Status.COMPLETED), results[-1])
    cpu = [each.cpu_s for each in results if each.cpu_s is not None]
    return replace(
        decisive,
        duration_s=sum(each.duration_s for each in results),
        cpu_s=sum(cpu) if cpu else None,
        peak_bytes=max((each.peak_bytes for each in results if each.peak_bytes is not None), default=None),
        cases=tuple(results),
    )


def matches(written: str, expected: str, comparison: Comparison = Comparison.TRIMMED, tolerance: float = DEFAULT_TOLERANCE) -> bool:
    """Return whether the output of a program is the expected output.

    Args:
        written: Output of the program.
        expected: Expected output.
        comparison: Kind of comparison.
        tolerance: Largest difference of two numbers in a numeric comparison, relative if the absolute value of the expected number is above 1:
            ``abs(written - expected) <= tolerance * max(1, abs(expected))``.
    """
    if written == expected:
        return True
    match comparison:
        case Comparison.EXACT:
            return False
        case Comparison.TRIMMED:
            return _trimmed(written) == _trimmed(expected)
        case Comparison.NUMERIC:
            return _same_words(written.split(), expected.split(), tolerance)


def _fault(status: Status, observation: Observation) -> Fault | None:
    if status is Status.RUNTIME_ERROR:
        if observation.outcome is not None:
            return observation.outcome.fault
        if observation.sandbox_error is not None and observation.sandbox_error.fields.get("reason") != ExitReason.EXITED:
            return observation.sandbox_error.fault
    return PROGRAM_FAULTS[status]


def _exceeded_limit(params: OneShotParams, observation: Observation) -> tuple[Status, str] | None:
    outcome, sandbox_error = observation.outcome, observation.sandbox_error
    reason, code = ("", 0) if outcome is None else (outcome.reason, outcome.exit_code)
    sandbox_was_killed = sandbox_error is not None and sandbox_error.fields.get("reason") == ExitReason.OOM
    if observation.output_exceeded:
        return Status.OUTPUT_LIMIT, f"The program wrote more than {params.output_bytes} bytes to one stream and was killed."
    if reason == "timeout":
        return Status.TIMEOUT, f"The program was killed after {params.timeout_s:g} s."
    if sandbox_was_killed or reason == "oom" or (observation.oom_kills and code):
        killed = "the sandbox" if sandbox_was_killed else "a process"
        return Status.MEMORY_EXCEEDED, f"The memory limit of {params.limits.memory_bytes} bytes was reached, and {killed} was killed."
    return None


def _status_at_end(params: OneShotParams, observation: Observation) -> tuple[Status, str]:
    outcome, sandbox_error = observation.outcome, observation.sandbox_error
    if outcome is None:
        return Status.RUNTIME_ERROR, "The program ended its sandbox" + ("." if sandbox_error is None else f": {sandbox_error.message}")
    if outcome.exit_code:
        limit = f"The program was killed at the sandbox's limit of {params.limits.pids} processes."
        return Status.RUNTIME_ERROR, limit if outcome.reason == "pids" else ""
    if params.expected_output is None:
        return Status.COMPLETED, ""
    if not observation.stdout_is_utf8 or not matches(observation.stdout, params.expected_output, params.comparison, params.tolerance):
        return Status.WRONG_ANSWER, ""
    return Status.COMPLETED, ""


def _trimmed(text: str) -> str:
    """Return a text without white space at the end of its lines and without empty lines at its end."""
    return "\n".join(line.rstrip(_WHITE_SPACE) for line in text.split("\n")).rstrip("\n")


def _same_words(written: list[str], expected: list[str], tolerance: float) -> bool:
    if len(written) != len(expected):
        return False
    for start in range(0, len(written), _WORDS_AT_ONCE):
        ours, theirs = written[start : start + _WORDS_AT_ONCE], expected[start : start + _WORDS_AT_ONCE]
        if ours != theirs and not all(one == other or _equal_numbers(one, other, tolerance) for one, other in zip(ours, theirs, strict=True)):
            return False
    return True


def _equal_numbers(written: str, expected: str, tolerance: float) -> bool:
    if max(len(written), len(expected)) > MAX_NUMBER_CHARS or not (_NUMBER.fullmatch(written) and _NUMBER.fullmatch(expected)):
        return False
    # Exponents have at most six digits, far below the limits of Decimal, so no operation overflows or raises.
    with decimal.localcontext(prec=len(written) + len(expected) + _SPARE_DIGITS, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        number, right = Decimal(written), Decimal(expected)
        return abs(number - right) <= Decimal(repr(tolerance)) * max(Decimal(1), abs(right))
