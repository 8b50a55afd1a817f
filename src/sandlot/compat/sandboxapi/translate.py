"""Translation between SandboxAPI and the node. Pure.

Invariants:
- A session is a sandbox with the labels of a session and the label of its language. Its idle timeout is that of the session.
- A status is one that clients know: completed, wrong_answer, compile_error, runtime_error or timeout. Further details are a line in ``stderr``,
  which models read.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from sandlot.compat.common import VENDOR_KEY, append_line, is_session, rfc3339_ms, session_metadata, session_timeout_s
from sandlot.compat.sandboxapi.schemas import CodeResponse, ExecuteRequest, ExecuteResponse, InstallResponse, LanguageResponse, SessionResponse
from sandlot.model import languages
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError
from sandlot.model.executions import TIMEOUT_EXIT_CODE, CodeResult, CommandResult, exception_exit_code
from sandlot.model.packages import InstallParams
from sandlot.model.programs import KILLED_EXIT_CODE, ProgramParams, ProgramResult, ProgramStatus
from sandlot.model.sandboxes import MIN_IDLE_TIMEOUT_S, CreateSandboxParams, SandboxInfo
from sandlot.model.specs import KIB, MAX_TIMEOUT_S

VENDOR: Final = "sandboxapi"
"""Value of the label ``VENDOR_KEY``, and origin of runs in the execution log."""
LANGUAGE_KEY: Final = "sandlot.language"
"""Label whose value is the language of a session."""

MAX_RUN_S: Final = 300.0
"""Longest timeout of a run, as the vendor documents it."""
DEFAULT_IDLE_S: Final = 600.0

COMPLETED, RUNTIME_ERROR, TIMEOUT = str(ProgramStatus.COMPLETED), str(ProgramStatus.RUNTIME_ERROR), str(ProgramStatus.TIMEOUT)

_UNKNOWN_STATUSES: Mapping[ProgramStatus, str] = MappingProxyType(
    {ProgramStatus.MEMORY_EXCEEDED: RUNTIME_ERROR, ProgramStatus.OUTPUT_LIMIT: RUNTIME_ERROR}
)
"""Statuses that clients do not know -> a status that they know."""


_IDS: Mapping[str, str] = MappingProxyType({"python": "python3"})
"""Name of a language -> name of the vendor, if it is another one."""


@dataclass(frozen=True, slots=True)
class VendorLanguage:
    """A language with the names of the vendor.

    Args:
        id: Name of the vendor.
        language: The language.
    """

    id: str
    language: languages.Language

    @property
    def aliases(self) -> list[str]:
        """Other names."""
        return [name for name in self.language.names if name != self.id]

    @property
    def has_sessions(self) -> bool:
        """True if sessions run the language: an interpreter keeps its state."""
        return self.language.context is not None

    @property
    def session_needs(self) -> str:
        """Name of the language whose interpreter a session needs. A session in TypeScript needs Node.js, but no compiler."""
        return "javascript" if self.language.name == "typescript" else self.language.name


LANGUAGES = tuple(VendorLanguage(_IDS.get(each.name, each.name), each) for each in languages.LANGUAGES)
_BY_NAME: Mapping[str, VendorLanguage] = MappingProxyType({name: each for each in LANGUAGES for name in each.language.names})


def language(name: str) -> VendorLanguage:
    """Return a language by one of its names.

    Raises:
        InvalidRequestError: The language is not supported.
    """
    found = _BY_NAME.get(name.lower())
    if found is None:
        names = ", ".join(f"{each.id} ({', '.join(each.aliases)})" for each in LANGUAGES)
        raise InvalidRequestError(f"Language {name[:50]!r} is not supported.", hint=f"Use one of: {names}.", fields={"field": "language"})
    return found


def language_response(available: languages.AvailableLanguage) -> LanguageResponse:
    """Return the response for a language. A version that is not known yet is empty."""
    language = _BY_NAME[available.language.name]
    return LanguageResponse(
        id=language.id,
        name=language.language.title,
        version=available.version or "",
        aliases=language.aliases,
        file_extension=language.language.extensions[0],
        example=language.language.example,
    )


def program_params(body: ExecuteRequest) -> ProgramParams:
    """Return a program to run once.

    Raises:
        InvalidRequestError: The language is not supported, or the timeout is out of bounds.
    """
    return ProgramParams(
        language=language(body.language).language.name,
        code=body.code,
        stdin=(body.stdin or "").encode(),
        timeout_s=timeout_s(body.timeout),
        expected_output=body.expected_output,
        metadata={VENDOR_KEY: VENDOR},
        origin=VENDOR,
    )


def timeout_s(seconds: float) -> float:
    """Return the timeout of a run.

    Raises:
        InvalidRequestError: The timeout is out of the vendor's bounds.
    """
    if not 0 < seconds <= MAX_RUN_S:
        raise InvalidRequestError(f"`timeout` is {seconds:g}; it must be more than 0 and at most {MAX_RUN_S:g} seconds.", fields={"field": "timeout"})
    return seconds


def session_params(language: VendorLanguage, idle_ttl: float | None, principal: Principal) -> CreateSandboxParams:
    """Return the create request of a session's sandbox. It has an idle timeout, and a deadline only if the key's quota demands one.

    Raises:
        InvalidRequestError: The idle timeout is out of bounds, or no interpreter keeps the state of the language.
    """
    if not language.has_sessions:
        names = ", ".join(each.id for each in LANGUAGES if each.has_sessions)
        raise InvalidRequestError(
            f"Sessions do not run {language.language.title}.",
            hint=f"Run each program with /v1/execute, or use one of these languages: {names}.",
            fields={"field": "language"},
        )
    idle_s = DEFAULT_IDLE_S if idle_ttl is None else idle_ttl
    if not MIN_IDLE_TIMEOUT_S <= idle_s <= MAX_TIMEOUT_S:
        raise InvalidRequestError(
            f"`idle_ttl` is {idle_s:g}; it must be from {MIN_IDLE_TIMEOUT_S:g} to {MAX_TIMEOUT_S:g} seconds.", fields={"field": "idle_ttl"}
        )
    return CreateSandboxParams(
        metadata={**session_metadata(VENDOR), LANGUAGE_KEY: language.id},
        timeout_s=session_timeout_s(principal.quota),
        idle_timeout_s=idle_s,
    )


def is_usable(sandbox: SandboxInfo) -> bool:
    """Return whether a sandbox is a session of this API with a known language."""
    return is_session(sandbox, VENDOR) and sandbox.metadata.get(LANGUAGE_KEY, "") in _BY_NAME


def language_of(sandbox: SandboxInfo) -> VendorLanguage:
    """Return the language of a session."""
    return language(sandbox.metadata[LANGUAGE_KEY])


def session_not_found(session_id: str, ended: SandboxEndedError | None = None) -> NotFoundError:
    """Return the error for an unknown session, or for a session that ended during a call."""
    shown = session_id[:64]
    return NotFoundError(
        f"There is no session {shown!r}." if ended is None else ended.message,
        code=ErrorCode.SANDBOX_NOT_FOUND,
        hint="Create a new session. Sessions end when they are closed or not used for their idle_ttl.",
        fields={"session_id": shown},
    )


def session_response(sandbox: SandboxInfo) -> SessionResponse:
    """Return the response for a session. The session expires after its idle timeout without activity, or at its deadline if that is earlier."""
    idle_s = sandbox.idle_timeout_s or DEFAULT_IDLE_S
    ends = max(sandbox.as_of, (sandbox.idle_since or sandbox.as_of) + timedelta(seconds=idle_s))
    return SessionResponse(
        id=sandbox.id,
        session_id=sandbox.id,
        language=language_of(sandbox).id,
        status="active",
        idle_ttl=round(idle_s),
        created_at=rfc3339_ms(sandbox.created_at),
        expires_at=rfc3339_ms(ends if sandbox.expires_at is None else min(ends, sandbox.expires_at)),
    )


def execute_response(result: ProgramResult, language: VendorLanguage) -> ExecuteResponse:
    """Return the response to a program that was run once."""
    wall_ms = milliseconds(result.duration_s)
    return ExecuteResponse(
        id=result.execution or "",
        status=_UNKNOWN_STATUSES.get(result.status, str(result.status)),
        language=language.id,
        stdout=result.stdout,
        stderr=append_line(result.stderr, result.detail),
        compile_output=result.compile_output,
        exit_code=result.exit_code if result.signal is None else 128 + result.signal,
        exit_signal=None if result.signal is None else signal_name(result.signal),
        execution_time_ms=wall_ms if result.cpu_s is None else milliseconds(result.cpu_s),
        wall_time_ms=wall_ms,
        memory_used_kb=(result.peak_bytes or 0) // KIB,
    )


def code_response(sandbox: SandboxInfo, result: CodeResult, timeout_s: float) -> CodeResponse:
    """Return the response to code that was run in a session.

    Args:
        sandbox: The session.
        result: Result of the code.
        timeout_s: Timeout of the code.
    """
    status, exit_code, note = _cell_outcome(result, timeout_s)
    traceback = (
        ""
        if result.error is None
        else "\n".join(line.rstrip("\n") for line in result.error.traceback) or f"{result.error.name}: {result.error.value}"
    )
    wall_ms = milliseconds(result.outcome.duration_s)
    value = next((display.data.get("text/plain") for display in result.results if display.main), None)
    return CodeResponse(
        id=result.outcome.execution,
        session_id=sandbox.id,
        status=status,
        language=language_of(sandbox).id,
        stdout=result.stdout.text(),
        stderr=append_line(append_line(result.stderr.text(), traceback if status != COMPLETED else ""), note),
        compile_output="",
        exit_code=exit_code,
        exit_signal=None,
        execution_time_ms=wall_ms,
        wall_time_ms=wall_ms,
        memory_used_kb=0,
        result=value if isinstance(value, str) else None,
    )


def _cell_outcome(result: CodeResult, timeout_s: float) -> tuple[str, int, str]:
    """Return status and exit code of code as those of a program, and a note that explains them."""
    match result.outcome.status:
        case "ok":
            return COMPLETED, 0, ""
        case "error":
            code = exit_code(result)
            return COMPLETED if code == 0 else RUNTIME_ERROR, code, ""
        case "timeout":
            is_kept = not result.has_lost_its_kernel
            variables = "The session keeps its variables." if is_kept else "Its interpreter ended, so its variables are gone; files stay."
            return TIMEOUT, TIMEOUT_EXIT_CODE, f"Sandlot interrupted this code after {timeout_s:g} s. {variables}"
        case "oom":
            return (
                RUNTIME_ERROR,
                KILLED_EXIT_CODE,
                "The interpreter of this session was killed because it took too much memory. Its variables are gone; files stay.",
            )
        case "aborted":
            return RUNTIME_ERROR, 1, "This code was not run, because the session's interpreter was interrupted or restarted before its turn."
        case _:
            return (
                RUNTIME_ERROR,
                KILLED_EXIT_CODE,
                "The interpreter of this session ended. Its variables are gone; files stay, and the next call starts a new one.",
            )


def install_response(params: InstallParams, result: CommandResult) -> InstallResponse:
    """Return the response to an installation, successful or not."""
    timed_out = result.outcome.timed_out
    return InstallResponse(
        status=COMPLETED if result.outcome.exit_code == 0 else "failed",
        manager=params.manager,
        packages=list(params.packages),
        stdout=result.stdout.text(),
        stderr=append_line(result.stderr.text(), f"Sandlot killed this installation after {params.timeout_s:g} s." if timed_out else ""),
        exit_code=TIMEOUT_EXIT_CODE if timed_out else result.outcome.exit_code,
        duration_ms=milliseconds(result.outcome.duration_s),
    )


def exit_code(result: CodeResult) -> int:
    """Return the exit code of a program that raised the same exception: 3 for ``sys.exit(3)`` and for a failed shell command with status 3."""
    return 1 if result.error is None else exception_exit_code(result.error.name, result.error.value)


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has no name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return str(number)


def milliseconds(seconds: float) -> int:
    """Return a time in whole milliseconds."""
    return round(seconds * 1000)
