"""Commands and code of the PandaStack API: how they are run, their results, and the events of their streams. Pure.

Invariants:
- Commands run as root in ``/workspace``, as with the vendor: its programs install, mount and write everywhere.
- A command line can be as long as code. If it exceeds the argument limit of execve(2), it is run from a file.
- Streams are ASCII, and each event has one line of data.
"""

from __future__ import annotations

import base64
import codecs
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from sandlot.compat.pandastack.schemas import CodeResponse, ExecResponse
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandlotError, TimeoutExceededError
from sandlot.model.executions import CodeResult, CommandResult, Display
from sandlot.model.specs import MAX_ARG_BYTES, MAX_CODE_BYTES, ProcessSpec, User, check_text

DEFAULT_EXEC_S = 28.0
"""Default timeout of a command: the client waits 30 s for the response, whatever the timeout of the command (``client.py``)."""
DEFAULT_STREAM_S = 890.0
"""Default timeout of a streamed command: the client waits 900 s."""
MIN_TIMEOUT_S: Final = 1.0
"""Timeout of a command whose default timeout was used up by waking the sandbox."""

PROGRAMS = "/run/code"
"""Directory of command files: written by root, outside all directories that callers use."""

_KILL_NOTES: Mapping[str, str] = MappingProxyType(
    {
        "oom": "Sandlot: this command was killed because the memory of the sandbox was used up.",
        "pids": "Sandlot: this command was killed because the sandbox had too many processes.",
    }
)
_INTERPRETER_ERRORS: Mapping[str, str] = MappingProxyType(
    {
        "aborted": "This code was not run: the session's interpreter was interrupted or restarted before its turn.",
        "oom": "The interpreter was killed because it took too much memory. Its variables are gone; files stay.",
    }
)
_INTERPRETER_ENDED: Final = "The interpreter ended. Its variables are gone; files stay, and the next call starts a new one."
_EXIT_KILLED: Final = 137
"""Exit code of a program that SIGKILL ended, as a shell reports it."""

_FILE_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "sh": ". {path}",
        "bash": "exec bash -c '. {path}'",
        "python3": 'exec python3 -c \'exec(compile(open("{path}", encoding="utf-8").read(), "<string>", "exec"))\'',
    }
)
"""Program -> shell command that runs the content of a file as if it had been the argument of the program's ``-c``."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line and how it is run.

    Args:
        argv: Program and arguments.
        file: Path of a file that has to be written first. None: no file is needed.
        content: Content of the file.
        timeout_s: Timeout of the command.
        logged_argv: Program and arguments in the execution log.
    """

    argv: tuple[str, ...]
    file: str | None
    content: bytes
    timeout_s: float
    logged_argv: tuple[str, ...]

    def spec(self) -> ProcessSpec:
        """Return the process of the command."""
        return ProcessSpec(argv=self.argv, user=User.ROOT, timeout_s=self.timeout_s)


def plan_command(cmd: str, timeout_s: float, name: str) -> Command:
    """Return how a command line is run: by ``sh -c``, as the vendor does, or from a file if it exceeds the argument limit.

    Args:
        cmd: Command line.
        timeout_s: Timeout of the command.
        name: Name of the file, if one is needed.

    Raises:
        InvalidRequestError: The command line is empty.
        LimitError: The command line is larger than code may be (code ``too_large``).
    """
    raw = check_text("cmd", cmd)
    if not raw.strip():
        raise InvalidRequestError("`cmd` is empty.", hint="Pass a command line.", fields={"field": "cmd"})
    argv = ("/bin/sh", "-c", cmd)
    if len(raw) <= MAX_ARG_BYTES:
        return Command(argv, None, b"", timeout_s, argv)
    if len(raw) > MAX_CODE_BYTES:
        raise LimitError(
            f"`cmd` has {len(raw)} bytes; at most {MAX_CODE_BYTES} are allowed.",
            code=ErrorCode.TOO_LARGE,
            hint="Write the program to a file and run the file.",
        )
    path = f"{PROGRAMS}/{name}"
    program, code = parse_long_command(cmd)
    file_command = _FILE_COMMANDS[program].format(path=path)
    return Command(("/bin/sh", "-c", file_command), path, code.encode(), timeout_s, argv)


def parse_long_command(cmd: str) -> tuple[str, str]:
    """Return the program of a long command line, and the code for the program. Pure.

    The client's ``run_code`` quotes all code as one argument of ``python3 -c`` or ``bash -c``. Any other command line is code for the shell.
    """
    for program in ("python3", "bash"):
        start = f"{program} -c "
        if cmd.startswith(start):
            word = cmd[len(start) :]
            if word.startswith("'") and word.endswith("'"):
                code = word[1:-1].replace("'\"'\"'", "'")
                if shlex.quote(code) == word:
                    return program, code
    return "sh", cmd


def remaining_s(default_s: float, elapsed_s: float) -> float:
    """Return the default timeout less the time that waking the sandbox took, because the client waits for both. Pure."""
    return max(MIN_TIMEOUT_S, default_s - elapsed_s)


def timeout_error(timeout_s: float, *, has_lost_variables: bool = False) -> TimeoutExceededError:
    """Return the error of a command or of code that exceeded its timeout. The client acts on the word "timeout"."""
    return TimeoutExceededError(
        f"command timeout: it was ended after {timeout_s:g} s.{' The variables of its session are lost.' if has_lost_variables else ''}",
        code=ErrorCode.TIMEOUT,
        hint="Pass a larger timeout_seconds and as large a Client(timeout=...), or use exec_stream.",
    )


def exec_response(result: CommandResult) -> ExecResponse:
    """Return the response to a command, successful or not."""
    return ExecResponse(
        stdout=result.stdout.text(),
        stderr=result.stderr.text() + kill_note(result.outcome.reason),
        exit_code=result.outcome.exit_code,
        duration_ms=milliseconds(result.outcome.duration_s),
    )


def kill_note(reason: str) -> str:
    """Return a line with the reason why the sandbox killed a command; empty if it did not."""
    note = _KILL_NOTES.get(reason)
    return "" if note is None else f"{note}\n"


def gap_line(omitted_bytes: int) -> str:
    """Return the line that stands for output that is no longer kept."""
    return f"[... {omitted_bytes} bytes omitted ...]\n"


def code_response(result: CodeResult, timeout_s: float) -> CodeResponse:
    """Return the response to code.

    Args:
        result: Result of the code.
        timeout_s: Timeout of the code.

    Raises:
        TimeoutExceededError: The code exceeded its timeout.
    """
    status = result.outcome.status
    if result.outcome.timed_out:
        raise timeout_error(timeout_s, has_lost_variables=result.has_lost_its_kernel)
    error: str | None = None
    code = 0
    if result.error is not None:
        error = "\n".join(line.rstrip("\n") for line in result.error.traceback) or f"{result.error.name}: {result.error.value}"
        code = 1
    elif status != "ok":
        error, code = _INTERPRETER_ERRORS.get(status, _INTERPRETER_ENDED), 1 if status == "aborted" else _EXIT_KILLED
    return CodeResponse(
        stdout=result.stdout.text(),
        stderr=result.stderr.text(),
        exit=code,
        duration_ms=milliseconds(result.outcome.duration_s),
        results=[display_data(display) for display in result.results],
        error=error,
    )


def display_data(display: Display) -> dict[str, str]:
    """Return a display of code: a single representation with its type, several as one mapping. The client accepts both. Pure."""
    bundle = {mime: base64.b64encode(data).decode() if isinstance(data, bytes) else data for mime, data in display.data.items()}
    if len(bundle) == 1:
        ((mime, data),) = bundle.items()
        return {"type": mime, "data": data}
    return bundle


def sse_event(name: str, data: Mapping[str, object]) -> bytes:
    """Return a server-sent event in ASCII. The client decodes ISO 8859-1, and takes U+2028 and similar characters for line ends."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")


@dataclass(slots=True)
class TextDecoder:
    """Decoder of UTF-8 that arrives in pieces, which may end inside a character."""

    _inner: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def text(self, data: bytes, *, last: bool = False) -> str:
        """Return the text of the next bytes. An incomplete character is kept until the next call, or replaced if it is the last one."""
        return self._inner.decode(data, last)


def sse_comment(error: SandlotError) -> bytes:
    """Return an error as a comment, which the client ignores. A stream without an exit tells the client that the outcome is unknown."""
    return f": {error.message.encode('ascii', 'replace').decode()}\n\n".encode()


def milliseconds(seconds: float) -> int:
    """Return a time in whole milliseconds."""
    return round(seconds * 1000)
