"""One-shot runs: parameters, results and batches. The parameters are frozen, and their constructor refuses invalid values."""

from __future__ import annotations

import math
import posixpath
import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandlotError
from sandlot.model.faults import Fault
from sandlot.model.ids import ProcessId
from sandlot.model.languages import language_of
from sandlot.model.sandboxes import AUTO
from sandlot.model.specs import (
    DEFAULT_COMMAND_TIMEOUT_S,
    DEFAULT_TEMPLATE,
    KIB,
    MAX_CODE_BYTES,
    MIB,
    WORKSPACE,
    Limits,
    check_env,
    check_path,
    check_text,
)

MIN_TIMEOUT_S = 0.001
MAX_TIMEOUT_S = 3600.0
"""Longest timeout. The client of a run waits for a single response, so a program that takes longer is better run as a background command."""
DEFAULT_OUTPUT_BYTES = 1 * MIB
MAX_OUTPUT_BYTES = 8 * MIB
MAX_FILES = 100
DEFAULT_TOLERANCE = 1e-6
KILLED_EXIT_CODE = 128 + signals.SIGKILL
"""Exit code of a killed program, as in a shell."""
MAX_ITEMS = 1000
DEFAULT_CONCURRENCY = 4
MAX_CONCURRENCY = 32


class Comparison(StrEnum):
    """Comparison of a program's output with the expected output. ``exact`` is the strictest comparison, ``numeric`` the most tolerant."""

    TRIMMED = "trimmed"
    """The texts differ at most in white space at the end of lines and in empty lines at the end. A line ends with LF or CR LF."""
    EXACT = "exact"
    """The texts have the same characters."""
    NUMERIC = "numeric"
    """The texts have the same number of words, and the words at each position are equal. Two numbers are equal if they differ at most by the
    tolerance."""


@dataclass(frozen=True, slots=True)
class OneShotParams:
    """Program to run, and its limits.

    Args:
        language: Name or alias of a language.
        code: Code of the program, at most 4 MiB.
        stdin: Complete standard input.
        timeout_s: Seconds until the program and all its processes are killed, at most 3600.
        files: Path -> content of each file to write before the program starts. Relative paths start in the working directory.
        env: Environment variables, in addition to those of the template.
        expected_output: Expected standard output. None: the output is not graded.
        comparison: Method by which the standard output is compared with the expected output.
        tolerance: Largest difference at which a numeric comparison treats two numbers as equal. The difference is relative if the absolute value of
            the expected number is above 1.
        output_bytes: Maximum number of bytes, up to 8 MiB, that the program may write to standard output. The same limit applies to standard
            error. A program that writes more is killed.
        limits: Limits of the sandbox.
        isolation: ``auto`` or an isolation that the operator allows.
        origin: API of the request: ``native`` or the name of a compatibility API.
    """

    language: str
    code: str
    stdin: bytes = b""
    timeout_s: float = DEFAULT_COMMAND_TIMEOUT_S
    files: Mapping[str, bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    expected_output: str | None = None
    comparison: Comparison = Comparison.TRIMMED
    tolerance: float = DEFAULT_TOLERANCE
    output_bytes: int = DEFAULT_OUTPUT_BYTES
    limits: Limits = field(default_factory=Limits)
    template: str = DEFAULT_TEMPLATE
    isolation: str = AUTO
    metadata: Mapping[str, str] = field(default_factory=dict)
    origin: str = "native"

    def __post_init__(self) -> None:
        language_of(self.language)
        size = len(check_text("code", self.code))
        if size > MAX_CODE_BYTES:
            raise LimitError(
                f"`code` has {size} bytes; at most {MAX_CODE_BYTES} are allowed.",
                code=ErrorCode.TOO_LARGE,
                hint="Move data from the code to `files`.",
                fields={"field": "code", "bytes": size, "max_bytes": MAX_CODE_BYTES},
            )
        check_env(self.env)
        check_tolerance(self.tolerance)
        _check_range("timeout", self.timeout_s, MIN_TIMEOUT_S, MAX_TIMEOUT_S)
        _check_range("output_bytes", self.output_bytes, 1, MAX_OUTPUT_BYTES)
        _check_files(self.files, self.program)

    @property
    def program(self) -> str:
        """Path of the code inside the sandbox."""
        return f"{WORKSPACE}/{language_of(self.language).filename}"


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that is negative or not finite.

    Raises:
        InvalidRequestError: The tolerance is invalid.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise InvalidRequestError(f"`tolerance` is {tolerance:g}; it must be a finite number, at least 0.", fields={"field": "tolerance"})


def _check_files(files: Mapping[str, bytes], program: str) -> None:
    if len(files) > MAX_FILES:
        raise InvalidRequestError(
            f"`files` has {len(files)} files; at most {MAX_FILES} are allowed.", hint="Pack the files into an archive.", fields={"field": "files"}
        )
    for path in files:
        if posixpath.normpath(check_path(posixpath.join(WORKSPACE, path))) == program:
            raise InvalidRequestError(
                f"The file name {posixpath.basename(program)!r} is reserved for the program.", hint="Rename the file.", fields={"field": "files"}
            )


def _check_range(name: str, value: float, smallest: float, largest: float) -> None:
    if not smallest <= value <= largest:  # NaN is refused too, because no comparison with NaN is true
        raise InvalidRequestError(f"`{name}` is {value:g}; it must be from {smallest:g} to {largest:g}.", fields={"field": name})


class Status(StrEnum):
    """Outcome of a one-shot run."""

    COMPLETED = "completed"
    """The program exited with 0. Its output is the expected output, if one was given."""
    WRONG_ANSWER = "wrong_answer"
    """The program exited with 0, and its output is not the expected output."""
    RUNTIME_ERROR = "runtime_error"
    """The program exited with another code than 0, or a signal ended the program."""
    TIMEOUT = "timeout"
    """The program was killed at its timeout."""
    MEMORY_EXCEEDED = "memory_exceeded"
    """The program, one of its processes or the whole sandbox was killed at the memory limit, and the program failed. If a process was killed
    but the program exited with 0, the program has handled the loss and is graded like any other."""
    OUTPUT_LIMIT = "output_limit"
    """The program was killed because it wrote more than ``output_bytes``."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a one-shot run.

    Args:
        status: Outcome of the run.
        stdout: Standard output, up to the output limit.
        stderr: Standard error, up to the output limit.
        exit_code: Exit code as in a shell: 128 + signal if a signal ended the program, 124 if its timeout ended the program.
        signal: Number of the signal that ended the program; None if the program exited.
        duration_s: Seconds from the start to the end of the program.
        cpu_s: Processor time of the program and of the children that it waited for; None if unknown.
        peak_bytes: Largest resident memory of the program or of a child that it waited for; None if unknown.
        detail: Explanation for people: the exceeded limit, or the cause of a failure. Empty if the status needs no explanation.
        execution: Id of the run in the execution log; None if the program did not start.
        fault: Fault class of the outcome; None if the status is ``completed``.
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
    fault: Fault | None = None

    @property
    def timed_out(self) -> bool:
        """True if the timeout of the program ended it."""
        return self.status is Status.TIMEOUT

    @property
    def held_bytes(self) -> int:
        """Approximate memory that the result takes, in bytes."""
        return len(self.stdout) + len(self.stderr) + KIB


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Result or error of one item of a batch.

    Args:
        index: Index of the item, from 0.
    """

    index: int
    outcome: Result | SandlotError


def check_batch(items: int, concurrency: int) -> None:
    """Refuse a batch that is empty or too large.

    Args:
        items: Number of programs, 1 to ``MAX_ITEMS``.
        concurrency: Maximum number of programs that run at once, 1 to ``MAX_CONCURRENCY``.

    Raises:
        InvalidRequestError: One of the numbers is out of bounds.
    """
    for name, value, most, hint in (
        ("items", items, MAX_ITEMS, "Send at least one program, and split a larger batch into several batches."),
        ("concurrency", concurrency, MAX_CONCURRENCY, f"Pass a concurrency from 1 to {MAX_CONCURRENCY}."),
    ):
        if not 1 <= value <= most:
            raise InvalidRequestError(f"`{name}` of the batch is {value}; it must be from 1 to {most}.", hint=hint, fields={"field": name})
