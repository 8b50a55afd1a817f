"""Verdict about a program: grade the behaviour that the service observed. Pure functions.

Invariants:
- If several statuses apply, the program gets the first of: output limit, timeout, memory exceeded, runtime error, wrong answer.
- A compiler decides a compile error before the program runs. A syntax check decides it only in place of a runtime error.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from sandlot.core.programs.comparison import matches
from sandlot.model.errors import SandboxEndedError, SandlotError
from sandlot.model.executions import ProcessOutcome
from sandlot.model.faults import Fault
from sandlot.model.ids import ProcessId
from sandlot.model.languages import language_of
from sandlot.model.ports import ExitReason
from sandlot.model.programs import KILLED_EXIT_CODE as KILLED
from sandlot.model.programs import ProgramParams, ProgramResult, ProgramStatus
from sandlot.model.specs import KIB

PROGRAM_FAULTS: Mapping[ProgramStatus, Fault | None] = MappingProxyType(
    {
        ProgramStatus.COMPLETED: None,
        ProgramStatus.WRONG_ANSWER: Fault.CODE,
        ProgramStatus.COMPILE_ERROR: Fault.CODE,
        ProgramStatus.RUNTIME_ERROR: Fault.CODE,
        ProgramStatus.TIMEOUT: Fault.CODE,
        ProgramStatus.MEMORY_EXCEEDED: Fault.LIMIT,
        ProgramStatus.OUTPUT_LIMIT: Fault.LIMIT,
    }
)
"""Status of a program -> fault class, unless the sandbox was lost."""

_NOT_EXECUTABLE = 126
"""Exit code of a program that cannot be executed, as in a shell."""
_SEARCHED_CHARS = 16 * KIB
"""Characters at each end of standard error that are searched for the report of a runtime about lack of memory."""


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
        start_error: Error of a program whose compiler wrote no executable file; None if the program started.
        sandbox_error: Error that the end of the sandbox caused; None if the sandbox did not end during the run.
        oom_kills: Number of processes in the sandbox that the kernel killed at the memory limit during the run.
        duration_s: Seconds from the start to the end of the program, as the service measured them.
    """

    stdout: str = ""
    stdout_is_utf8: bool = True
    stderr: str = ""
    output_exceeded: bool = False
    outcome: ProcessOutcome | None = None
    execution: ProcessId | None = None
    start_error: SandlotError | None = None
    sandbox_error: SandboxEndedError | None = None
    oom_kills: int = 0
    duration_s: float = 0.0


def grade(params: ProgramParams, observation: Observation) -> ProgramResult:
    """Return the result of a program."""
    outcome = observation.outcome
    ended = (KILLED, int(signals.SIGKILL)) if observation.start_error is None else (_NOT_EXECUTABLE, None)
    exit_code, signal = ended if outcome is None else (outcome.exit_code, outcome.signal)
    status, detail = _exceeded_limit(params, observation) or _status_at_end(params, observation)
    return ProgramResult(
        status=status,
        fault=_fault(status, observation),
        language=language_of(params.language).name,
        stdout=observation.stdout,
        stderr=observation.stderr,
        exit_code=exit_code,
        signal=signal,
        duration_s=observation.duration_s if outcome is None else outcome.duration_s,
        cpu_s=None if outcome is None else outcome.cpu_s,
        peak_bytes=None if outcome is None else outcome.peak_bytes,
        detail=detail,
        execution=observation.execution,
    )


def compile_error(params: ProgramParams, outcome: ProcessOutcome, output: str, *, oom_kills: int = 0) -> ProgramResult:
    """Return the result of a program in which its compiler or the syntax check has found an error.

    Args:
        params: The program.
        outcome: End of the compiler.
        output: Output of the compiler, which is the standard error of the result as well.
        oom_kills: Number of processes that the kernel killed at the memory limit. The drivers of compilers start the compilers as child processes.
    """
    killed = {
        "timeout": f"The compiler was killed after {outcome.duration_s:.0f} s.",
        "oom": f"The compiler was killed at the memory limit of {params.limits.memory_bytes} bytes.",
    }
    reason = "oom" if oom_kills and outcome.reason not in killed else outcome.reason
    return ProgramResult(
        status=ProgramStatus.COMPILE_ERROR,
        fault=Fault.LIMIT if reason in killed else PROGRAM_FAULTS[ProgramStatus.COMPILE_ERROR],
        language=language_of(params.language).name,
        stdout="",
        stderr=output,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        duration_s=outcome.duration_s,
        cpu_s=outcome.cpu_s,
        peak_bytes=outcome.peak_bytes,
        detail=killed.get(reason, ""),
        compile_output=output,
    )


def combine(results: Sequence[ProgramResult]) -> ProgramResult:
    """Return the result of a program with cases.

    Args:
        results: Results of the cases, at least one.
    """
    decisive = next((each for each in results if each.status is not ProgramStatus.COMPLETED), results[-1])
    cpu = [each.cpu_s for each in results if each.cpu_s is not None]
    return replace(
        decisive,
        duration_s=sum(each.duration_s for each in results),
        cpu_s=sum(cpu) if cpu else None,
        peak_bytes=max((each.peak_bytes for each in results if each.peak_bytes is not None), default=None),
        cases=tuple(results),
    )


def _fault(status: ProgramStatus, observation: Observation) -> Fault | None:
    if status is ProgramStatus.RUNTIME_ERROR:
        if observation.outcome is not None:
            return observation.outcome.fault
        if observation.sandbox_error is not None and observation.sandbox_error.fields.get("reason") != ExitReason.EXITED:
            return observation.sandbox_error.fault
    return PROGRAM_FAULTS[status]


def _exceeded_limit(params: ProgramParams, observation: Observation) -> tuple[ProgramStatus, str] | None:
    outcome, sandbox_error = observation.outcome, observation.sandbox_error
    reason, code = ("", 0) if outcome is None else (outcome.reason, outcome.exit_code)
    sandbox_was_killed = sandbox_error is not None and sandbox_error.fields.get("reason") == ExitReason.OOM
    if observation.output_exceeded:
        return ProgramStatus.OUTPUT_LIMIT, f"The program wrote more than {params.output_bytes} bytes to one stream and was killed."
    if reason == "timeout":
        return ProgramStatus.TIMEOUT, f"The program was killed after {params.timeout_s:g} s."
    if sandbox_was_killed or reason == "oom" or (observation.oom_kills and code):
        killed = "the sandbox" if sandbox_was_killed else "a process"
        return ProgramStatus.MEMORY_EXCEEDED, f"The memory limit of {params.limits.memory_bytes} bytes was reached, and {killed} was killed."
    if code and (text := _out_of_memory(params.language, observation.stderr)):
        return ProgramStatus.MEMORY_EXCEEDED, f"The program could not allocate memory: {text}"
    return None


def _out_of_memory(language: str, stderr: str) -> str:
    """Return the text with which the runtime of a language has reported that it could not allocate memory; empty if there is none."""
    pattern = language_of(language).out_of_memory
    ends = (stderr[:_SEARCHED_CHARS], stderr[-_SEARCHED_CHARS:])
    return next((found[0] for end in ends if pattern and (found := re.search(pattern, end, re.MULTILINE))), "")


def _status_at_end(params: ProgramParams, observation: Observation) -> tuple[ProgramStatus, str]:
    outcome, sandbox_error = observation.outcome, observation.sandbox_error
    if observation.start_error is not None:
        return ProgramStatus.RUNTIME_ERROR, observation.start_error.message
    if outcome is None:
        return ProgramStatus.RUNTIME_ERROR, "The program ended its sandbox" + ("." if sandbox_error is None else f": {sandbox_error.message}")
    if outcome.exit_code:
        limit = f"The program was killed at the sandbox's limit of {params.limits.pids} processes."
        return ProgramStatus.RUNTIME_ERROR, limit if outcome.reason == "pids" else ""
    if params.expected_output is None:
        return ProgramStatus.COMPLETED, ""
    if not observation.stdout_is_utf8 or not matches(observation.stdout, params.expected_output, params.comparison, params.tolerance):
        return ProgramStatus.WRONG_ANSWER, ""
    return ProgramStatus.COMPLETED, ""
