"""Cells as values: what is to be run, how it ended, and what it gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sandlot.core.runs import contexts
from sandlot.core.runs.outcomes import finite
from sandlot.link.types import CellError, CellResult, Display
from sandlot.model.capture import Capture
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError
from sandlot.model.ids import ProcessId
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, MAX_CODE_BYTES, MAX_TIMEOUT_S, check_env, check_text

RUNNING = "running"
"""The status of one that is not over."""


@dataclass(frozen=True, slots=True)
class CellSpec:
    """Code to run.

    Args:
        code: At most 4 MiB.
        language: A key of ``contexts.LANGUAGES``; None is the context's, or python.
        context: Where; None is the default one of the language.
        env: Set for this cell only.
        timeout_s: Seconds from its beginning until it is interrupted; None is never.
        silent: Whether its last expression is shown to nobody, and it counts for nothing.
        store_history: Whether it counts.
        stop_on_error: Whether those that wait behind it are aborted where it fails.
    """

    code: str
    language: str | None = "python"
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = DEFAULT_COMMAND_TIMEOUT_S
    context: str | None = None
    silent: bool = False
    store_history: bool = True
    stop_on_error: bool = False

    def __post_init__(self) -> None:
        """Refuse what no context takes."""
        if self.language is not None:
            contexts.language_of(self.language)
        if self.context is not None:
            contexts.check_id(self.context)
        if "\0" in self.code:
            raise InvalidRequestError(
                "The code contains a NUL character, which is not allowed in source code.",
                hint="Write '\\0' as an escape, or upload binary content as a file and read it in the code.",
                fields={"field": "code"},
            )
        size = len(check_text("code", self.code))
        if size > MAX_CODE_BYTES:
            raise LimitError(
                f"The code has {size} bytes; at most {MAX_CODE_BYTES} are allowed.",
                code=ErrorCode.TOO_LARGE,
                hint="Upload it as a file and run that, or upload the data in it as a file and read it in the code.",
                fields={"field": "code", "bytes": size, "max_bytes": MAX_CODE_BYTES},
            )
        check_env(self.env)
        if self.timeout_s is not None and not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise InvalidRequestError(
                f"timeout is {self.timeout_s:g}; it must be more than 0 and at most {MAX_TIMEOUT_S:g}.", fields={"field": "timeout"}
            )

    @property
    def kernel(self) -> str:
        """The context's id."""
        return self.context or contexts.default_of(self.language or "python")

    @property
    def speaks(self) -> str | None:
        """Its language by the name that contexts have it by; None where it said none."""
        return None if self.language is None else contexts.language_of(self.language)


@dataclass(frozen=True, slots=True)
class CodeExecutionStatus:
    """How a cell ended: status ok, error, timeout, killed, died, oom or aborted; or running, where it has not."""

    execution: ProcessId
    status: str
    execution_count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """How far a cell has been followed: where to go on.

    Args:
        events: Of started, displays, clears and errors.
        stdout: Byte offset.
        stderr: The same.
    """

    events: int = 0
    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, slots=True)
class CodeExecutionResult:
    """A cell that was run to its end, or as far as it has come, and all that it gave."""

    outcome: CodeExecutionStatus
    stdout: Capture
    stderr: Capture
    results: Sequence[Display]
    results_omitted: int
    error: CellError | None
    position: OutputPosition = OutputPosition()


def execution_status(execution: ProcessId, result: CellResult) -> CodeExecutionStatus:
    """What a guest's result comes to."""
    return CodeExecutionStatus(execution, result.status, result.execution_count, finite(result.duration_s))
