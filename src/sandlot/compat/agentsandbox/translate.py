"""AgentSandbox's words into ours and back. Pure.

Laws:
- Every run is a fresh process on a program file of its own, outside of /workspace: tracebacks show lines, ``__file__`` and ``argv[0]``
  name a file, standard input is empty, and a folder's listing shows nothing that the run's owner did not put there.
- What is in /workspace can be imported, as if the program lay there.
- A session is a sandbox that says so in its metadata and has no deadline; a run without one has a sandbox that nobody else finds.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from sandlot.compat.agentsandbox.run_files import ANSWER_S, CollectedFiles
from sandlot.compat.agentsandbox.schemas import ExecuteAnswer, ExecutionAnswer, FileAnswer, LanguageName, MadeFile
from sandlot.compat.common import VENDOR_KEY, rfc3339_ms
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError
from sandlot.model.executions import CommandResult
from sandlot.model.files import check_media_type
from sandlot.model.ids import SandboxId
from sandlot.model.records import ExecutionRecord, FileRecord
from sandlot.model.sandboxes import PURPOSE_KEY, CreateSandboxParams, SandboxInfo
from sandlot.model.specs import MAX_CODE_BYTES, MAX_TIMEOUT_S, WORKSPACE, ProcessSpec
from sandlot.model.states import State

NAME = "agentsandbox"

CLIENT_TIMEOUT_S = 120.0
"""After that its client gives up (``agentsandbox/_constants.py``), and nobody would learn what became of the run."""
LEAST_RUN_S = 1.0
"""However long it took until the run began."""
TIMED_OUT = 124
"""As timeout(1) says it."""
KILLED = 137
"""As a shell says SIGKILL."""

THROWAWAY_S = 2 * CLIENT_TIMEOUT_S
"""The deadline of a sandbox for one run, for the case that the service is killed before it has removed it."""

SESSION = "session"
SESSION_METADATA: Mapping[str, str] = {VENDOR_KEY: NAME, PURPOSE_KEY: SESSION}
"""Metadata of each session."""

PROGRAMS = "/run/code"
"""Written by root inside, read by everybody, and on nobody's way."""


@dataclass(frozen=True, slots=True)
class Program:
    """Code as a file and what runs it.

    Args:
        path: The file's.
        interpreter: What it is given to.
    """

    path: str
    interpreter: str

    @property
    def folder(self) -> str:
        """Nothing else is in it."""
        return posixpath.dirname(self.path)


_CUT = frozenset({"timeout", "killed", "died", "lost", "pids", "oom"})
"""How a run can end other than by itself."""

_PROGRAMS: Mapping[LanguageName, tuple[str, str]] = {"python": ("python3", "main.py"), "bash": ("bash", "main.sh")}


def program(language: LanguageName, run: str) -> Program:
    """Where a run's code goes.

    Args:
        language: Its.
        run: A word that no other run of that sandbox has.
    """
    interpreter, filename = _PROGRAMS[language]
    return Program(f"{PROGRAMS}/{run}/{filename}", interpreter)


def code_of(code: str) -> bytes:
    """Code as its file has it.

    Raises:
        InvalidRequestError: It is larger than code may be.
    """
    content = code.encode()
    if len(content) > MAX_CODE_BYTES:
        raise InvalidRequestError(
            f"The code has {len(content)} bytes; at most {MAX_CODE_BYTES} are allowed.",
            hint="Upload what is data in it as a file, and give its id in file_ids.",
            fields={"field": "code"},
        )
    return content


def argv(what: Program) -> tuple[str, ...]:
    """What a run is started by."""
    return what.interpreter, what.path


def argv_without_file(what: Program, code: str) -> tuple[str, ...]:
    """The same where there is no room for a file: also a session whose disk is full can be tidied up.

    Args:
        what: The program that it would have been.
        code: Small enough to be an argument.
    """
    return what.interpreter, "-c", code


def process(what: Program, command: tuple[str, ...], env: Mapping[str, str], session_env: Mapping[str, str], spent_s: float) -> ProcessSpec:
    """The process that a run is.

    Args:
        what: Its program.
        command: What it is started by.
        env: The run's environment, which goes before the session's.
        session_env: That one.
        spent_s: Of the time that its client waits.

    Raises:
        InvalidRequestError: The environment is none, or too large.
    """
    whole = dict(env)
    if what.interpreter == "python3":
        # The program is elsewhere; but what lies in /workspace was always importable there.
        given = env.get("PYTHONPATH", session_env.get("PYTHONPATH", ""))
        whole["PYTHONPATH"] = f"{WORKSPACE}:{given}" if given else WORKSPACE
    return ProcessSpec(argv=command, env=whole, cwd=WORKSPACE, timeout_s=max(LEAST_RUN_S, CLIENT_TIMEOUT_S - ANSWER_S - spent_s))


def new_session(env: Mapping[str, str], principal: Principal) -> CreateSandboxParams:
    """The sandbox that a session is. It has no deadline, but for keys whose sandboxes must have one: then the longest they may have."""
    longest_s = principal.quota.lifetime_s
    return CreateSandboxParams(env=env, metadata=SESSION_METADATA, timeout_s=None if longest_s is None else min(longest_s, MAX_TIMEOUT_S))


def new_throwaway(principal: Principal) -> CreateSandboxParams:
    """The sandbox of one run without a session."""
    longest_s = THROWAWAY_S if principal.quota.lifetime_s is None else principal.quota.lifetime_s
    return CreateSandboxParams(metadata={VENDOR_KEY: NAME}, timeout_s=min(longest_s, THROWAWAY_S))


def is_session(sandbox: SandboxInfo) -> bool:
    """Return True if a sandbox is, or was, a session of this door."""
    return (sandbox.metadata.get(VENDOR_KEY), sandbox.metadata.get(PURPOSE_KEY)) == (NAME, SESSION)


def is_over(sandbox: SandboxInfo) -> bool:
    """Return True if a sandbox has ended or its end is requested."""
    return sandbox.is_over or sandbox.state is State.STOPPING


def no_session(id_: str) -> NotFoundError:
    """What is said about a session that there is not."""
    return NotFoundError(
        f"There is no session {id_[:64]!r}.",
        code=ErrorCode.SANDBOX_NOT_FOUND,
        hint="It may have been deleted. List the sessions, or create one.",
        fields={"session_id": id_[:64]},
    )


def answer(session: SandboxId, done: CommandResult, kept: CollectedFiles, timeout_s: float) -> ExecuteAnswer:
    """What a run's client is given.

    Args:
        session: Where it ran.
        done: How it ended, and what it wrote.
        kept: Its files.
        timeout_s: What it had.
    """
    late = done.outcome.reason == "timeout"
    stderr = done.stderr.text()
    if late:
        stderr = noted(stderr, f"Sandlot ended this run after {timeout_s:.0f} seconds; start what takes longer in the background.")
    if kept.more:
        stderr = noted(stderr, f"Sandlot kept {len(kept.records)} files that this run made; there may be others, which are where the run left them.")
    elif kept.left:
        of = len(kept.records) + kept.left
        stderr = noted(stderr, f"Sandlot kept {len(kept.records)} of {of} files that this run made; the others are where the run left them.")
    return ExecuteAnswer(
        session_id=session,
        stdout=done.stdout.text(),
        stderr=stderr,
        return_code=TIMED_OUT if late else done.outcome.exit_code,
        files=[MadeFile(file_id=file.id, filename=file.filename) for file in kept.records],
        execution_id=done.outcome.process,
        files_omitted=kept.left,
    )


def ended(session: SandboxId, why: SandboxEndedError) -> ExecuteAnswer:
    """What the client of a run is given that its whole sandbox did not survive: code that takes all memory is no failure of the service."""
    return ExecuteAnswer(session_id=session, stdout="", stderr=f"{why}\n", return_code=KILLED, files=[], execution_id=None)


def noted(stderr: str, note: str) -> str:
    """What a program wrote, and on a line of its own what Sandlot has to say."""
    return f"{stderr}{'' if not stderr or stderr.endswith(chr(10)) else chr(10)}{note}\n"


def file(record: FileRecord) -> FileAnswer:
    """A file of the file store."""
    return FileAnswer(
        file_id=record.id,
        filename=record.filename,
        mime_type=record.media_type,
        size_bytes=record.size_bytes,
        session_id=record.sandbox,
        created_at=rfc3339_ms(record.created_at),
    )


def filename(given: str) -> str:
    """The name of an uploaded file: its client sends the whole path where it was given an open file."""
    return given.replace("\\", "/").rstrip("/").rpartition("/")[2] or "file"


def media_type(given: str | None) -> str | None:
    """The type of an uploaded file; None where what its client says is none, which it never checks."""
    try:
        return None if given is None else check_media_type(given)
    except InvalidRequestError:
        return None


def execution(record: ExecutionRecord) -> ExecutionAnswer:
    """A run as the log has it; one that came by another way than this door says so in ``request_meta``."""
    ours = record.origin == NAME
    return ExecutionAnswer(
        id=record.id,
        endpoint="/v1/execute" if ours else f"/v1/sandboxes/{record.sandbox}",
        method="POST",
        status_code=None if record.status == "running" else 200,
        duration_ms=None if record.duration_s is None else round(record.duration_s * 1000, 3),
        session_id=record.sandbox,
        language=cast("LanguageName", record.language) if record.language in _PROGRAMS else None,
        code=record.code,
        stdout=record.stdout,
        stderr=record.stderr,
        return_code=TIMED_OUT if record.status == "timeout" else record.exit_code,
        files_count=record.files or 0,
        error=record.error or (record.status if record.status in _CUT else None),
        request_meta={
            "origin": record.origin,
            "status": record.status,
            "stdout_omitted_bytes": record.stdout_omitted_bytes,
            "stderr_omitted_bytes": record.stderr_omitted_bytes,
        },
        created_at=rfc3339_ms(record.created_at),
    )
