"""Programs that run once: parameters, results and batches. The parameters are frozen, and their constructor refuses invalid values."""

from __future__ import annotations

import copy
import math
import posixpath
import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandlotError
from sandlot.model.faults import Fault
from sandlot.model.ids import ProcessId
from sandlot.model.java_source import Source
from sandlot.model.languages import language_of
from sandlot.model.paths import WORKSPACE
from sandlot.model.sandboxes import AUTO, LimitsChange
from sandlot.model.specs import (
    DEFAULT_COMMAND_TIMEOUT_S,
    KIB,
    MAX_CODE_BYTES,
    MIB,
    check_env,
    check_path,
    check_range,
    check_text,
)

MIN_TIMEOUT_S = 0.001
MAX_TIMEOUT_S = 3600.0
"""Longest timeout. The client of a run waits for a single response, so a program that takes longer is better run as a background command."""
DEFAULT_OUTPUT_BYTES = 1 * MIB
MAX_OUTPUT_BYTES = 8 * MIB
MAX_FILES = 100
MAX_CASES = 100
CASE_OUTPUT_CHARS = 64 * KIB
"""Characters of each stream that the result of a case has at most, if a program has several cases. The complete output is graded."""
COMPILE_OUTPUT_BYTES = 64 * KIB
"""Bytes of the output of a compiler that a result has at most."""
DEFAULT_TOLERANCE = 1e-6
KILLED_EXIT_CODE = 128 + signals.SIGKILL
"""Exit code of a killed program, as in a shell."""
MAX_BATCH_ITEMS = 1000
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
class Case:
    """One test case of a program: an input, and optionally the output that the program must write for it.

    Args:
        stdin: Complete standard input.
        expected_output: Expected standard output. None: the output is not graded.
        comparison: Method of the comparison; None: that of the program.
        tolerance: Tolerance of a numeric comparison; None: that of the program.
    """

    stdin: bytes = b""
    expected_output: str | None = None
    comparison: Comparison | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class ProgramParams:
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
            the expected number is above 1: ``abs(number - expected) <= tolerance * max(1, abs(expected))``.
        output_bytes: Maximum number of bytes, up to 8 MiB, that the program may write to standard output. The same limit applies to standard
            error. A program that writes more is killed.
        limits: Limits of the sandbox that differ from the defaults of the template.
        template: Template of the sandbox. None: ``pick_template`` (``core/programs/templates.py``) picks one that has the language.
        isolation: ``auto`` or an isolation that the operator allows.
        metadata: Metadata of the sandbox.
        origin: API of the request: ``native`` or the name of a compatibility API.
        cases: Inputs with which the program is run one after the other, instead of ``stdin`` and ``expected_output``, at most 100. The program is
            compiled once. Each case has its own working directory, and the timeout and the output limit apply to each case.
        check_types: True to check the types of a TypeScript program before it is compiled.
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
    limits: LimitsChange = field(default_factory=LimitsChange)
    template: str | None = None
    isolation: str = AUTO
    metadata: Mapping[str, str] = field(default_factory=dict)
    origin: str = "native"
    cases: tuple[Case, ...] = ()
    check_types: bool = False
    source: Source = field(init=False, compare=False)
    """Names of the file with the code."""

    def __post_init__(self) -> None:
        language = language_of(self.language)
        size = len(check_text("code", self.code))
        if size > MAX_CODE_BYTES:
            raise LimitError(
                f"`code` has {size} bytes; at most {MAX_CODE_BYTES} are allowed.",
                code=ErrorCode.TOO_LARGE,
                hint="Move data from the code to `files`.",
                fields={"field": "code", "bytes": size, "max_bytes": MAX_CODE_BYTES},
            )
        object.__setattr__(self, "source", language.source_of(self.code))
        check_env(self.env)
        check_tolerance(self.tolerance)
        check_range("timeout", self.timeout_s, MIN_TIMEOUT_S, MAX_TIMEOUT_S)
        check_range("output_bytes", self.output_bytes, 1, MAX_OUTPUT_BYTES)
        _check_files(self.files, self.program_path)
        if self.check_types and not language.type_check_argv:
            raise InvalidRequestError(
                f"`check_types` has no meaning for {language.title}.", hint="Use it for TypeScript only.", fields={"field": "check_types"}
            )
        _check_cases(self)

    @property
    def program_path(self) -> str:
        """Path of the code inside the sandbox."""
        return f"{WORKSPACE}/{self.source.filename}"

    @property
    def runs(self) -> int:
        """Number of runs of the program: one for each case, and one without cases."""
        return max(1, len(self.cases))

    def for_case(self, index: int) -> ProgramParams:
        """Return the parameters of a run with one of the cases; those of the program itself if it has no cases."""
        if not self.cases:
            return self
        case, params = self.cases[index], copy.copy(self)  # replace() would validate the fields, and search a Java class in the code, once more
        changes = {
            "cases": (),
            "stdin": case.stdin,
            "expected_output": case.expected_output,
            "comparison": case.comparison or self.comparison,
            "tolerance": self.tolerance if case.tolerance is None else case.tolerance,
        }
        for name, value in changes.items():
            object.__setattr__(params, name, value)
        return params


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


def _check_cases(params: ProgramParams) -> None:
    if len(params.cases) > MAX_CASES:
        raise InvalidRequestError(
            f"`cases` has {len(params.cases)} cases; at most {MAX_CASES} are allowed.",
            hint="Run the program several times, with a part of the cases each.",
            fields={"field": "cases"},
        )
    if params.cases and (params.stdin or params.expected_output is not None):
        raise InvalidRequestError(
            "`cases` cannot be combined with `stdin` and `expected_output`.",
            hint="Pass the input and the expected output in each case.",
            fields={"field": "cases"},
        )
    for case in params.cases:
        if case.tolerance is not None:
            check_tolerance(case.tolerance)
    outside = next((path for path in params.files if posixpath.normpath(path).startswith("../")), None)
    if params.cases and outside is not None:
        raise InvalidRequestError(
            f"`files` has the relative path {outside[:64]!r}, which is outside of the working directory of a case.",
            hint="Pass an absolute path, or a path inside the working directory.",
            fields={"field": "files"},
        )


class ProgramStatus(StrEnum):
    """Status of the run of a program."""

    COMPLETED = "completed"
    """The program exited with 0. Its output is the expected output, if one was given."""
    WRONG_ANSWER = "wrong_answer"
    """The program exited with 0, and its output is not the expected output."""
    COMPILE_ERROR = "compile_error"
    """The compiler refused the program, or an interpreted program failed and its code has a syntax error."""
    RUNTIME_ERROR = "runtime_error"
    """The program exited with another code than 0, a signal ended the program, or its compiler wrote no file that can be executed."""
    TIMEOUT = "timeout"
    """The program was killed at its timeout."""
    MEMORY_EXCEEDED = "memory_exceeded"
    """The program failed, and the program, one of its processes or the whole sandbox was killed at the memory limit. Or the program failed, and its
    standard error has the text with which the runtime of its language reports lack of memory (``Language.out_of_memory``). A program that exits with
    0 is graded, even if one of its processes was killed."""
    OUTPUT_LIMIT = "output_limit"
    """The program was killed because it wrote more than ``output_bytes``."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of the run of a program.

    Args:
        status: Outcome of the run.
        stdout: Standard output, up to the output limit.
        stderr: Standard error, up to the output limit.
        exit_code: Exit code as in a shell: 128 + signal if a signal ended the program, 124 if its timeout ended the program, 126 if
            the compiled program cannot be executed.
        signal: Number of the signal that ended the program; None if the program exited.
        duration_s: Seconds from the start to the end of the program.
        cpu_s: Processor time of the program and of the children that it waited for; None if unknown.
        peak_bytes: Largest resident memory of the program or of a child that it waited for; None if unknown.
        detail: Explanation for people: the exceeded limit, or the cause of a failure. Empty if the status needs no explanation.
        execution: Id of the run in the execution log; None if the program did not start.
        fault: Fault class of the outcome; None if the status is ``completed``.
        compile_output: Output of the compiler or of the syntax check, at most 64 KiB.
        cases: Results of the cases, in their order, if the program has cases. The fields above are then those of the first case that is not
            completed, or of the last case; ``duration_s`` and ``cpu_s`` are sums, and ``peak_bytes`` is the largest of all cases. Empty if the
            program has a compile error. If only a later sandbox cannot compile the program, the remaining cases have the compile error.
    """

    status: ProgramStatus
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
    compile_output: str = ""
    cases: tuple[ProgramResult, ...] = ()

    @property
    def timed_out(self) -> bool:
        """True if the timeout of the program ended it."""
        return self.status is ProgramStatus.TIMEOUT

    @property
    def held_bytes(self) -> int:
        """Approximate memory that the result takes, in bytes: one for each character, and 1 KiB."""
        return len(self.stdout) + len(self.stderr) + len(self.compile_output) + KIB + sum(case.held_bytes for case in self.cases)


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Result or error of one item of a batch.

    Args:
        index: Index of the item, from 0.
    """

    index: int
    outcome: ProgramResult | SandlotError


def check_batch(items: int, concurrency: int) -> None:
    """Refuse a batch that is empty or too large.

    Args:
        items: Number of programs, 1 to ``MAX_BATCH_ITEMS``.
        concurrency: Maximum number of programs that run at once, 1 to ``MAX_CONCURRENCY``.

    Raises:
        InvalidRequestError: One of the numbers is out of bounds.
    """
    for name, value, most, hint in (
        ("items", items, MAX_BATCH_ITEMS, "Send at least one program, and split a larger batch into several batches."),
        ("concurrency", concurrency, MAX_CONCURRENCY, f"Pass a concurrency from 1 to {MAX_CONCURRENCY}."),
    ):
        if not 1 <= value <= most:
            raise InvalidRequestError(f"`{name}` of the batch is {value}; it must be from 1 to {most}.", hint=hint, fields={"field": name})
