"""Translation between the AgentSandbox API and the node. Pure.

Invariants:
- Every run is a new process whose program is a file outside ``/workspace``. Tracebacks show source lines, ``__file__`` and ``argv[0]`` name a file,
  standard input is empty, and a listing of ``/workspace`` shows only the caller's files.
- Modules in ``/workspace`` can be imported as if the program were stored there.
- A session is a sandbox with the labels of a session and no deadline. A run without a session has a sandbox of its own that no other call finds.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast, get_args

from sandlot.compat.agentsandbox.run_files import RESPONSE_MARGIN_S, CollectedFiles
from sandlot.compat.agentsandbox.schemas import ExecuteResponse, LanguageName, LoggedExecution, RunFile, StoredFile
from sandlot.compat.common import VENDOR_KEY, append_line, rfc3339_ms, session_metadata, session_timeout_s
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError
from sandlot.model.executions import CommandResult
from sandlot.model.files import check_media_type
from sandlot.model.ids import SandboxId
from sandlot.model.languages import language_of
from sandlot.model.network import MOST_OPEN
from sandlot.model.paths import WORKSPACE
from sandlot.model.records import ExecutionRecord, FileRecord
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import MAX_CODE_BYTES, ProcessSpec

VENDOR: Final = "agentsandbox"
"""Value of the label ``VENDOR_KEY``, and origin of runs in the execution log."""
CLIENT_TIMEOUT_S: Final = 120.0
"""Time after which the vendor's client stops waiting (``agentsandbox/_constants.py``)."""
MIN_RUN_S: Final = 1.0
"""Shortest timeout of a run, however long its preparation took."""
SINGLE_RUN_DEADLINE_S: Final = 2 * CLIENT_TIMEOUT_S
"""Deadline of a sandbox for one run. Only needed if the service is killed before it removes the sandbox."""
EXIT_TIMED_OUT: Final = 124
"""``return_code`` of a run that exceeded its timeout, as timeout(1) reports it."""
EXIT_KILLED: Final = 137
"""``return_code`` of a run whose sandbox ended, as a shell reports SIGKILL."""

PROGRAMS: Final = "/run/code"
"""Directory of program files: written by root, readable by every user, outside all directories that callers use."""
_INTERRUPTED: Final = frozenset({"timeout", "killed", "died", "lost", "pids", "oom"})
"""Statuses of runs that did not end by themselves."""


@dataclass(frozen=True, slots=True)
class Program:
    """Code in a file, and its interpreter.

    Args:
        path: Absolute path of the file, in a directory of its own.
        interpreter: Name of the program that runs the file.
    """

    path: str
    interpreter: str

    @property
    def directory(self) -> str:
        """The directory of the file; holds nothing else."""
        return posixpath.dirname(self.path)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command that runs the file."""
        return self.interpreter, self.path

    def inline_argv(self, code: str) -> tuple[str, ...]:
        """Return a command that runs code without a file, so that a session with a full disk can still be cleaned up.

        Args:
            code: The code; must fit into one argument (``MAX_ARG_BYTES``).
        """
        return self.interpreter, "-c", code


def program_file(language: LanguageName, run_id: str) -> Program:
    """Return the program file of a run.

    Args:
        language: Language of the code.
        run_id: Path component that no other run of the sandbox has.
    """
    known = language_of(language)
    return Program(f"{PROGRAMS}/{run_id}/{known.filename}", known.interpreter)


def encode_code(code: str) -> bytes:
    """Return the content of the program file.

    Raises:
        InvalidRequestError: The code exceeds ``MAX_CODE_BYTES``.
    """
    content = code.encode()
    if len(content) > MAX_CODE_BYTES:
        raise InvalidRequestError(
            f"The code has {len(content)} bytes; at most {MAX_CODE_BYTES} are allowed.",
            hint="Upload large data as a file and pass its id in file_ids.",
            fields={"field": "code"},
        )
    return content


def process_spec(program: Program, argv: tuple[str, ...], env: Mapping[str, str], session_env: Mapping[str, str], elapsed_s: float) -> ProcessSpec:
    """Return the process of a run.

    Args:
        program: The program.
        argv: The command, with or without a file.
        env: Environment of the run; overrides the session's.
        session_env: Environment of the session.
        elapsed_s: Seconds that the client has waited so far.

    Raises:
        InvalidRequestError: The environment is malformed or too large.
    """
    run_env = dict(env)
    if program.interpreter == "python3":
        # Python puts the program's directory on sys.path; the vendor's users expect /workspace there.
        pythonpath = env.get("PYTHONPATH", session_env.get("PYTHONPATH", ""))
        run_env["PYTHONPATH"] = f"{WORKSPACE}:{pythonpath}" if pythonpath else WORKSPACE
    timeout_s = max(MIN_RUN_S, CLIENT_TIMEOUT_S - RESPONSE_MARGIN_S - elapsed_s)
    return ProcessSpec(argv=argv, env=run_env, cwd=WORKSPACE, timeout_s=timeout_s)


def session_params(env: Mapping[str, str], principal: Principal) -> CreateSandboxParams:
    """Return the create request of a session's sandbox: no deadline, or the longest one that the key's quota allows."""
    return CreateSandboxParams(env=env, metadata=session_metadata(VENDOR), timeout_s=session_timeout_s(principal.quota), network=MOST_OPEN)


def single_run_params(principal: Principal) -> CreateSandboxParams:
    """Return the create request of a sandbox for one run without a session."""
    longest_s = SINGLE_RUN_DEADLINE_S if principal.quota.lifetime_s is None else principal.quota.lifetime_s
    return CreateSandboxParams(metadata={VENDOR_KEY: VENDOR}, timeout_s=min(longest_s, SINGLE_RUN_DEADLINE_S), network=MOST_OPEN)


def session_not_found(session_id: str) -> NotFoundError:
    """Return the error for an unknown session."""
    shown = session_id[:64]
    return NotFoundError(
        f"There is no session {shown!r}.",
        code=ErrorCode.SANDBOX_NOT_FOUND,
        hint="List the sessions, or create a session.",
        fields={"session_id": shown},
    )


def execute_response(session_id: SandboxId, result: CommandResult, files: CollectedFiles, timeout_s: float) -> ExecuteResponse:
    """Return the response to a run that ended in a live sandbox.

    Args:
        session_id: Id of the sandbox.
        result: Exit and output of the process.
        files: Files that the run created, as far as they were kept.
        timeout_s: Timeout of the run.
    """
    timed_out = result.outcome.reason == "timeout"
    stderr = result.stderr.text()
    kept = len(files.records)
    if timed_out:
        stderr = append_line(stderr, f"Sandlot killed this run after {timeout_s:.0f} seconds. Start longer work in the background.")
    if files.incomplete:
        stderr = append_line(stderr, f"Sandlot kept {kept} files of this run; there may be others, which were left in place.")
    elif files.omitted:
        stderr = append_line(stderr, f"Sandlot kept {kept} of {kept + files.omitted} files of this run. The others were left in place.")
    return ExecuteResponse(
        session_id=session_id,
        stdout=result.stdout.text(),
        stderr=stderr,
        return_code=EXIT_TIMED_OUT if timed_out else result.outcome.exit_code,
        files=[RunFile(file_id=record.id, filename=record.filename) for record in files.records],
        execution_id=result.outcome.process,
        files_omitted=files.omitted,
    )


def ended_response(session_id: SandboxId, error: SandboxEndedError) -> ExecuteResponse:
    """Return the response to a run whose sandbox ended, such as code that exhausted the sandbox's memory."""
    return ExecuteResponse(session_id=session_id, stdout="", stderr=f"{error}\n", return_code=EXIT_KILLED, files=[], execution_id=None)


def stored_file(record: FileRecord) -> StoredFile:
    """Return a file of the file store."""
    return StoredFile(
        file_id=record.id,
        filename=record.filename,
        mime_type=record.media_type,
        size_bytes=record.size_bytes,
        session_id=record.sandbox,
        created_at=rfc3339_ms(record.created_at),
    )


def upload_filename(sent: str) -> str:
    """Return the name of an uploaded file. The client sends the whole path if it was given an open file."""
    return sent.replace("\\", "/").rstrip("/").rpartition("/")[2] or "file"


def upload_media_type(sent: str | None) -> str | None:
    """Return the media type of an uploaded file; None if it is malformed, because the client never checks it."""
    try:
        return None if sent is None else check_media_type(sent)
    except InvalidRequestError:
        return None


def logged_execution(record: ExecutionRecord) -> LoggedExecution:
    """Return a run from the execution log. ``request_meta`` names the API through which it was started."""
    from_this_api = record.origin == VENDOR
    return LoggedExecution(
        id=record.id,
        endpoint="/v1/execute" if from_this_api else f"/v1/sandboxes/{record.sandbox}",
        method="POST",
        status_code=None if record.status == "running" else 200,
        duration_ms=None if record.duration_s is None else round(record.duration_s * 1000, 3),
        session_id=record.sandbox,
        language=cast("LanguageName", record.language) if record.language in get_args(LanguageName) else None,
        code=record.code,
        stdout=record.stdout,
        stderr=record.stderr,
        return_code=EXIT_TIMED_OUT if record.status == "timeout" else record.exit_code,
        files_count=record.files or 0,
        error=record.error or (record.status if record.status in _INTERRUPTED else None),
        request_meta={
            "origin": record.origin,
            "status": record.status,
            "stdout_omitted_bytes": record.stdout_omitted_bytes,
            "stderr_omitted_bytes": record.stderr_omitted_bytes,
        },
        created_at=rfc3339_ms(record.created_at),
    )
