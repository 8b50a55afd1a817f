"""Programs: options and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Required, Self, TypedDict

from sandlot.model.errors import ExecutionFailedError, InternalError, SandlotError
from sandlot.model.faults import Fault
from sandlot.sdk.models.values import short_repr


class Case(TypedDict, total=False):
    """One test case of a program: an input, and optionally the output that the program must write for it.

    - ``stdin``: the whole standard input.
    - ``expected_output``: expected standard output.
    - ``comparison``, ``tolerance``: as in :class:`ProgramOptions`, whose values are the default.
    """

    stdin: str
    expected_output: str
    comparison: Literal["trimmed", "exact", "numeric"]
    tolerance: float


class ProgramOptions(TypedDict, total=False):
    """Options of a program; an option that is left out has the service's default.

    - ``stdin``: the whole standard input.
    - ``timeout``: seconds until the program is killed; 60 by default, at most 3,600.
    - ``files``: path -> content; a relative path is below ``/workspace``, the working directory.
    - ``envs``: environment variables beside those of the template.
    - ``expected_output``: expected standard output.
    - ``comparison``: ``trimmed`` (default) ignores white space at the end of lines and empty lines at the end; ``exact`` compares all characters;
      ``numeric`` compares word by word, and two numbers are equal if ``abs(number - expected) <= tolerance * max(1, abs(expected))``;
      ``tolerance`` is 1e-6 by default.
    - ``cases``: test cases with which the program is run one after the other, at most 100, instead of ``stdin`` and ``expected_output``. The program
      is compiled once. Each case has its own working directory; ``timeout`` and ``output_bytes`` apply to each case.
    - ``check_types``: True to check the types of a TypeScript program; a type error is a ``compile_error``.
    - ``output_bytes``: bytes of each stream after which the program is killed; 1 MiB by default, at most 8 MiB.
    - ``cpus``, ``memory``, ``disk``, ``pids``, ``template``, ``isolation``: as in ``Sandbox.create``. The default template is that of the
      language in ``client.programs.languages()``.
    """

    stdin: str
    timeout: float
    files: Mapping[str, str | bytes]
    envs: Mapping[str, str]
    expected_output: str
    comparison: Literal["trimmed", "exact", "numeric"]
    tolerance: float
    cases: Sequence[Case]
    check_types: bool
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


@dataclass(frozen=True, slots=True, repr=False)
class ProgramResult:
    """Result of a program, or of one of its cases.

    Args:
        status: ``completed``, ``wrong_answer``, ``compile_error``, ``runtime_error``, ``timeout``, ``memory_exceeded`` or ``output_limit``.
        stdout: Standard output up to its limit.
        stderr: Standard error up to its limit.
        exit_code: Exit code as in a shell: of the program, 128 + the signal that ended it, or 124 at the timeout.
        signal: Signal that ended the program.
        fault: Fault class if the program failed: ``code``, ``request``, ``limit``, ``capacity``, ``platform`` or ``lost``; otherwise None.
        language: Language of the program.
        duration_s: Duration in seconds.
        cpu_s: CPU time in seconds, in steps of 10 ms with gVisor; None if it is not known.
        peak_bytes: Largest resident memory of one of its processes; None if it is not known.
        detail: Details for people, for example the limit that was exceeded.
        id: Id in the execution log.
        compile_output: Output of the compiler or of the syntax check after a ``compile_error``.
        cases: Results of the cases, in their order; empty after a ``compile_error``. The other fields are then those of the first case that is not
            completed, or of the last case; durations are sums.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    signal: int | None = None
    fault: Fault | str | None = None
    language: str = ""
    duration_s: float = 0.0
    cpu_s: float | None = None
    peak_bytes: int | None = None
    detail: str = ""
    id: str | None = None
    compile_output: str = ""
    cases: tuple[ProgramResult, ...] = ()

    __repr__ = short_repr("status", "exit_code", "stdout", "stderr")

    @property
    def ok(self) -> bool:
        """True if the program exited with 0 and wrote the expected output."""
        return self.status == "completed"

    @property
    def timed_out(self) -> bool:
        """True if the program was killed at its timeout."""
        return self.status == "timeout"

    def check(self) -> Self:
        """Return this result.

        Raises:
            ExecutionFailedError: The status is not ``completed``.
        """
        if not self.ok:
            raise ExecutionFailedError(f"The program failed: {self.status}{f' ({self.detail})' if self.detail else ''}.", result=self)
        return self


@dataclass(frozen=True, slots=True)
class LanguageInfo:
    """A language of programs.

    Args:
        name: Value of ``language``.
        title: Name to display.
        aliases: Other values of ``language``.
        extensions: Extensions of files with programs; the usual one first.
        template: Template of programs that name none; None if no template has the compiler or interpreter.
        version: Version of the compiler or interpreter in the template; None until the template is built.
        has_context: True if contexts run code of the language.
    """

    name: str
    title: str = ""
    aliases: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    template: str | None = None
    version: str | None = None
    has_context: bool = False


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Result of one program of a batch, or the error that kept it from running.

    Args:
        index: Position in the batch, from 0.
        result: Result of the program.
        error: Error that kept the program from running.
    """

    index: int
    result: ProgramResult | None = None
    error: SandlotError | None = None

    @property
    def ok(self) -> bool:
        """True if the program exited with 0 and wrote the expected output."""
        return self.result is not None and self.result.ok

    def unwrap(self) -> ProgramResult:
        """Return the result.

        Raises:
            SandlotError: The program could not be run.
        """
        if self.result is None:
            raise self.error or InternalError("The item of the batch has neither a result nor an error.")
        return self.result
