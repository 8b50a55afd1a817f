"""One-shot programs: options and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Required, Self, TypedDict

from sandlot.model.errors import SandlotError
from sandlot.sdk.responses import error_from_problem


class ProgramOptions(TypedDict, total=False):
    """What may be said of a program beside its language and its code. What is left out has the service's default.

    - ``stdin``: all of its standard input.
    - ``timeout``: seconds until it is killed, 60 by default, 3,600 at most.
    - ``files``: path -> content; a path that is not absolute is below ``/workspace``, where the program runs.
    - ``envs``: its environment, beside the template's.
    - ``expected_output``: what it is to write to its standard output.
    - ``comparison``: ``trimmed`` (the default: white space at the end of lines, and empty lines at the end, are no difference), ``exact``, or
      ``numeric``: word by word, where two numbers are equal that are apart by no more than ``tolerance`` (1e-6), or by so much of the expected one.
    - ``output_bytes``: what it may write to either stream before it is killed, 1 MiB by default, 8 MiB at most.
    - ``cpus``, ``memory``, ``disk``, ``pids``, ``template``, ``isolation``: of its sandbox, as for ``Sandbox.create``.
    """

    stdin: str
    timeout: float
    files: Mapping[str, str | bytes]
    envs: Mapping[str, str]
    expected_output: str
    comparison: Literal["trimmed", "exact", "numeric"]
    tolerance: float
    output_bytes: int
    cpus: float
    memory: int | str
    disk: int | str
    pids: int
    template: str
    isolation: str


class Program(ProgramOptions):
    """One program of a batch."""

    language: Required[str]
    code: Required[str]


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What a program came to.

    Args:
        status: ``completed``, ``wrong_answer``, ``runtime_error``, ``timeout``, ``memory_exceeded`` or ``output_limit``.
        stdout: What it wrote, up to its limit.
        stderr: The same.
        exit_code: As a shell has it: its own, or 128 + the signal that ended it.
        signal: The signal that ended it.
        language: What it is in.
        duration_s: Seconds that it ran.
        cpu_s: Seconds of processor time; None where nobody knows.
        peak_bytes: The largest resident memory that one of its processes had; None where nobody knows.
        detail: For a person: which limit ended it, for example.
        id: Its id in the log of runs.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    signal: int | None = None
    language: str = ""
    duration_s: float = 0.0
    cpu_s: float | None = None
    peak_bytes: int | None = None
    detail: str = ""
    id: str = ""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            status=str(raw["status"]),
            stdout=str(raw.get("stdout", "")),
            stderr=str(raw.get("stderr", "")),
            exit_code=int(raw["exit_code"]),
            signal=raw.get("signal"),
            language=str(raw.get("language", "")),
            duration_s=float(raw.get("duration", 0.0)),
            cpu_s=raw.get("cpu"),
            peak_bytes=raw.get("peak_bytes"),
            detail=str(raw.get("detail", "")),
            id=str(raw.get("execution") or ""),
        )

    @property
    def ok(self) -> bool:
        """Whether it ended well, and wrote what was expected."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class BatchItem:
    """What became of one program of a batch: its result, or why it could not be run.

    Args:
        index: Which one, from 0.
        result: What it came to.
        error: Why it could not be run.
    """

    index: int
    result: ProgramResult | None = None
    error: SandlotError | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        result, error = raw.get("result"), raw.get("error")
        return cls(
            index=int(raw["index"]),
            result=None if result is None else ProgramResult.parse(result),
            error=None if error is None else error_from_problem(error),
        )

    @property
    def ok(self) -> bool:
        """Whether it was run, ended well, and wrote what was expected."""
        return self.result is not None and self.result.ok

    def unwrap(self) -> ProgramResult:
        """Its result.

        Raises:
            SandlotError: Why there is none.
        """
        if self.result is None:
            raise self.error or SandlotError("There is neither a result nor an error.")
        return self.result
