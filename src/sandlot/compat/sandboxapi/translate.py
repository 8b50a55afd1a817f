"""SandboxAPI's words into ours and back. Pure.

Laws:
- A session is a sandbox that says so, and which language it speaks, in its metadata; the idle timeout of that sandbox is the session's.
- A status is one of the words that callers know: completed, wrong_answer, runtime_error, timeout. What these do not say is a line in ``stderr``,
  where a model reads it.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from sandlot.compat.common import VENDOR_KEY, rfc3339_ms
from sandlot.compat.sandboxapi.schemas import CodeAnswer, ExecuteAnswer, ExecuteBody, InstallAnswer, LanguageAnswer, SessionAnswer
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError
from sandlot.model.executions import CodeResult, CommandResult
from sandlot.model.packages import InstallParams
from sandlot.model.programs import KILLED_EXIT_CODE, OneShotParams, Result, Status
from sandlot.model.sandboxes import MIN_IDLE_TIMEOUT_S, PURPOSE_KEY, CreateSandboxParams, SandboxInfo
from sandlot.model.specs import KIB, MAX_TIMEOUT_S

NAME = "sandboxapi"
LANGUAGE_KEY = "sandlot.language"
SESSION = "session"
SESSION_METADATA: Mapping[str, str] = {VENDOR_KEY: NAME, PURPOSE_KEY: SESSION}
"""Metadata of each session, besides its language."""

MOST_TIMEOUT_S = 300.0
"""Of one run; the vendor's."""
DEFAULT_IDLE_S = 600.0
TIMED_OUT = 124
"""As timeout(1) says it."""

COMPLETED, RUNTIME_ERROR, TIMEOUT = str(Status.COMPLETED), str(Status.RUNTIME_ERROR), str(Status.TIMEOUT)

_OUR_STATUSES: Mapping[Status, str] = MappingProxyType({Status.MEMORY_EXCEEDED: RUNTIME_ERROR, Status.OUTPUT_LIMIT: RUNTIME_ERROR})
"""Those that callers do not know."""


@dataclass(frozen=True, slots=True)
class Language:
    """A language as the vendor calls it.

    Args:
        id: The vendor's word for it.
        ours: Core's.
        name: For people.
        version: What the template has; a test looks.
        aliases: Other words of the vendor's.
        file_extension: With the dot.
        example: A program.
    """

    id: str
    ours: str
    name: str
    version: str
    aliases: tuple[str, ...]
    file_extension: str
    example: str


LANGUAGES = (
    Language("python3", "python", "Python", "3.11", ("python", "py"), ".py", "print('Hello, World!')"),
    Language("javascript", "javascript", "JavaScript (Node.js)", "24", ("js", "node"), ".js", "console.log('Hello, World!')"),
    Language("bash", "bash", "Bash", "5.2", ("sh", "shell"), ".sh", "echo 'Hello, World!'"),
)
_BY_WORD: Mapping[str, Language] = MappingProxyType({word: each for each in LANGUAGES for word in (each.id, *each.aliases)})


def language(word: str) -> Language:
    """The language that a word means.

    Raises:
        InvalidRequestError: None that there is here; says which there are.
    """
    known = _BY_WORD.get(word.lower())
    if known is None:
        there = ", ".join(f"{each.id} ({', '.join(each.aliases)})" for each in LANGUAGES)
        raise InvalidRequestError(f"Language {word[:50]!r} is not supported.", hint=f"There are: {there}.", fields={"field": "language"})
    return known


def language_answer(told: Language) -> LanguageAnswer:
    """What is told of a language."""
    return LanguageAnswer(
        id=told.id, name=told.name, version=told.version, aliases=list(told.aliases), file_extension=told.file_extension, example=told.example
    )


def shot(body: ExecuteBody) -> OneShotParams:
    """A program to run once.

    Raises:
        InvalidRequestError: No such language, or out of bounds.
    """
    return OneShotParams(
        language=language(body.language).ours,
        code=body.code,
        stdin=(body.stdin or "").encode(),
        timeout_s=timeout(body.timeout),
        expected_output=body.expected_output,
        metadata={VENDOR_KEY: NAME},
        origin=NAME,
    )


def timeout(seconds: float) -> float:
    """The timeout of a run.

    Raises:
        InvalidRequestError: Out of the vendor's bounds.
    """
    if not 0 < seconds <= MOST_TIMEOUT_S:
        raise InvalidRequestError(f"timeout is {seconds:g}; it must be more than 0 and at most {MOST_TIMEOUT_S:g}.", fields={"field": "timeout"})
    return seconds


def new_session(spoken: Language, idle_ttl: float | None, principal: Principal) -> CreateSandboxParams:
    """The sandbox that a session is. It has no deadline but its idle timeout, except for keys whose sandboxes must have one.

    Raises:
        InvalidRequestError: The idle timeout is out of bounds.
    """
    idle_s = DEFAULT_IDLE_S if idle_ttl is None else idle_ttl
    if not MIN_IDLE_TIMEOUT_S <= idle_s <= MAX_TIMEOUT_S:
        raise InvalidRequestError(
            f"idle_ttl is {idle_s:g}; it must be from {MIN_IDLE_TIMEOUT_S:g} to {MAX_TIMEOUT_S:g}.", hint="Seconds.", fields={"field": "idle_ttl"}
        )
    longest_s = principal.quota.lifetime_s
    return CreateSandboxParams(
        metadata={**SESSION_METADATA, LANGUAGE_KEY: spoken.id},
        timeout_s=None if longest_s is None else min(longest_s, MAX_TIMEOUT_S),
        idle_timeout_s=idle_s,
    )


def is_session(sandbox: SandboxInfo) -> bool:
    """Return True if a sandbox is, or was, a session of this door."""
    return (sandbox.metadata.get(VENDOR_KEY), sandbox.metadata.get(PURPOSE_KEY)) == (NAME, SESSION) and sandbox.metadata.get(
        LANGUAGE_KEY, ""
    ) in _BY_WORD


def spoken_in(sandbox: SandboxInfo) -> Language:
    """Return the language of a session."""
    return language(sandbox.metadata[LANGUAGE_KEY])


def no_session(id_: str, why: SandboxEndedError | None = None) -> NotFoundError:
    """What is said about a session that there is not, or that has ended in the middle of a call."""
    return NotFoundError(
        f"There is no session {id_[:64]!r}." if why is None else why.message,
        code=ErrorCode.SANDBOX_NOT_FOUND,
        hint="It may have been closed, or nothing was done in it for its idle_ttl. Create a new one.",
        fields={"session_id": id_[:64]},
    )


def session(sandbox: SandboxInfo) -> SessionAnswer:
    """Return what callers read of a session. It expires after its idle timeout without activity, or at its deadline if that is earlier."""
    idle_s = sandbox.idle_timeout_s or DEFAULT_IDLE_S
    ends = max(sandbox.as_of, (sandbox.idle_since or sandbox.as_of) + timedelta(seconds=idle_s))
    return SessionAnswer(
        id=sandbox.id,
        session_id=sandbox.id,
        language=spoken_in(sandbox).id,
        status="active",
        idle_ttl=round(idle_s),
        created_at=rfc3339_ms(sandbox.created_at),
        expires_at=rfc3339_ms(ends if sandbox.expires_at is None else min(ends, sandbox.expires_at)),
    )


def answer(done: Result, spoken: Language) -> ExecuteAnswer:
    """What is told of a program that was run once."""
    wall_ms = milliseconds(done.duration_s)
    return ExecuteAnswer(
        id=done.execution or "",
        status=_OUR_STATUSES.get(done.status, str(done.status)),
        language=spoken.id,
        stdout=done.stdout,
        stderr=noted(done.stderr, done.detail),
        compile_output="",
        exit_code=done.exit_code if done.signal is None else 128 + done.signal,
        exit_signal=None if done.signal is None else signal_name(done.signal),
        execution_time_ms=wall_ms if done.cpu_s is None else milliseconds(done.cpu_s),
        wall_time_ms=wall_ms,
        memory_used_kb=(done.peak_bytes or 0) // KIB,
    )


def code_answer(sandbox: SandboxInfo, done: CodeResult, timeout_s: float) -> CodeAnswer:
    """What is told of code that was run in a session.

    Args:
        sandbox: The session.
        done: What it came to.
        timeout_s: What it had.
    """
    status, exit_code, note = _cell(done, timeout_s)
    traceback = (
        "" if done.error is None else "\n".join(line.rstrip("\n") for line in done.error.traceback) or f"{done.error.name}: {done.error.value}"
    )
    wall_ms = milliseconds(done.outcome.duration_s)
    shown = next((display.data.get("text/plain") for display in done.results if display.main), None)
    return CodeAnswer(
        id=done.outcome.execution,
        session_id=sandbox.id,
        status=status,
        language=spoken_in(sandbox).id,
        stdout=done.stdout.text(),
        stderr=noted(noted(done.stderr.text(), traceback if status != COMPLETED else ""), note),
        compile_output="",
        exit_code=exit_code,
        exit_signal=None,
        execution_time_ms=wall_ms,
        wall_time_ms=wall_ms,
        memory_used_kb=0,
        result=shown if isinstance(shown, str) else None,
    )


def _cell(done: CodeResult, timeout_s: float) -> tuple[str, int, str]:
    """A cell's status and exit code as a program's, and what is to be said of it."""
    match done.outcome.status:
        case "ok":
            return COMPLETED, 0, ""
        case "error":
            code = exit_code(done)
            return COMPLETED if code == 0 else RUNTIME_ERROR, code, ""
        case "timeout":
            return TIMEOUT, TIMED_OUT, f"Sandlot interrupted this code after {timeout_s:g} s. The session and its variables are there."
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


def install_answer(asked: InstallParams, done: CommandResult) -> InstallAnswer:
    """What is told of an installation, well or not."""
    late = done.outcome.reason == "timeout"
    return InstallAnswer(
        status=COMPLETED if done.outcome.exit_code == 0 else "failed",
        manager=asked.manager,
        packages=list(asked.packages),
        stdout=done.stdout.text(),
        stderr=noted(done.stderr.text(), f"Sandlot ended this install after {asked.timeout_s:g} s." if late else ""),
        exit_code=TIMED_OUT if late else done.outcome.exit_code,
        duration_ms=milliseconds(done.outcome.duration_s),
    )


def exit_code(done: CodeResult) -> int:
    """What a program would exit with that raised like this: ``sys.exit(3)`` in a cell is an error of the value "3", as a failed shell command is."""
    if done.error is None or done.error.name not in {"SystemExit", "ExitStatus"}:
        return 1
    value = done.error.value
    if value in {"", "None"}:
        return 0
    return int(value) & 0xFF if value.lstrip("-").isdecimal() and len(value) < 10 else 1  # noqa: PLR2004 - more digits are no exit code


def noted(text: str, note: str) -> str:
    """What was written, and on a line of its own what there is to say."""
    if not note:
        return text
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{note}\n"


def signal_name(number: int) -> str:
    """A signal's name, or its number where it has none."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return str(number)


def milliseconds(seconds: float) -> int:
    """Whole ones."""
    return round(seconds * 1000)
