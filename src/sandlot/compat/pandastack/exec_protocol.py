"""Command lines and code, as PandaStack's clients give them, and what is told of them. Pure.

Laws:
- Commands are root's, in ``/workspace``: the vendor's are root's, and its programs install, mount and write wherever they like.
- A command line has no bound below that of code: what execve(2) does not take goes by a file.
- What a stream says is ASCII, and each of its events has one line.
"""

from __future__ import annotations

import base64
import codecs
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sandlot.compat.pandastack.schemas import ExecAnswer, RunAnswer
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandlotError, TimeoutExceededError
from sandlot.model.executions import CodeResult, CommandResult, Display
from sandlot.model.specs import MAX_ARG_BYTES, MAX_CODE_BYTES, ProcessSpec, User, check_text

DEFAULT_EXEC_S = 28.0
"""Of a command that says none: its client waits 30 s for an answer, whatever the command was given (``client.py``)."""
DEFAULT_STREAM_S = 890.0
"""The same where output is streamed: there its client waits 900 s."""
LEAST_S = 1.0
"""Of either, where waking the sandbox has taken all of it."""

PROGRAMS = "/run/code"
"""Written by root inside, and on nobody's way."""

_KILLED: Mapping[str, str] = MappingProxyType(
    {
        "oom": "Sandlot: this command was killed because the sandbox's memory was used up.",
        "pids": "Sandlot: this command was killed because the sandbox had too many processes.",
    }
)
_DEAD: Mapping[str, str] = MappingProxyType(
    {
        "aborted": "This code was not run: the session's interpreter was interrupted or restarted before its turn.",
        "oom": "The interpreter was killed because it took too much memory. Its variables are gone; files stay.",
    }
)
_DIED = "The interpreter ended. Its variables are gone; files stay, and the next call starts a new one."
_SIGKILLED = 137
"""As a shell says it."""

_RUNS: Mapping[str, str] = MappingProxyType(
    {
        "sh": ". {path}",
        "bash": "exec bash -c '. {path}'",
        "python3": 'exec python3 -c \'exec(compile(open("{path}", encoding="utf-8").read(), "<string>", "exec"))\'',
    }
)
"""What runs the content of a file as if it had been its one word."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and how it gets inside.

    Args:
        argv: What is run.
        file: Where something has to be written first; None is nowhere.
        content: That.
        timeout_s: Of the command.
        said: What the log calls it.
    """

    argv: tuple[str, ...]
    file: str | None
    content: bytes
    timeout_s: float
    said: tuple[str, ...]

    def spec(self) -> ProcessSpec:
        """The process."""
        return ProcessSpec(argv=self.argv, user=User.ROOT, timeout_s=self.timeout_s)


def command(cmd: str, timeout_s: float, name: str) -> Command:
    """How a command line is run: ``sh -c``, as the vendor does, and from a file where that has no room for it.

    Args:
        cmd: It.
        timeout_s: What it has.
        name: Of the file, where there is one.

    Raises:
        InvalidRequestError: There is nothing to run, or the time is out of bounds.
        LimitError: ``too_large``.
    """
    raw = check_text("cmd", cmd)
    if not raw.strip():
        raise InvalidRequestError("cmd is empty.", hint="Give a command line to run.", fields={"field": "cmd"})
    said = ("/bin/sh", "-c", cmd)
    if len(raw) <= MAX_ARG_BYTES:
        return Command(said, None, b"", timeout_s, said)
    if len(raw) > MAX_CODE_BYTES:
        raise LimitError(
            f"cmd has {len(raw)} bytes; at most {MAX_CODE_BYTES} are allowed.", code=ErrorCode.TOO_LARGE, hint="Write it to a file and run that."
        )
    path = f"{PROGRAMS}/{name}"
    program, code = word_of(cmd)
    runs = _RUNS[program].format(path=path)
    return Command(("/bin/sh", "-c", runs), path, code.encode(), timeout_s, said)


def word_of(cmd: str) -> tuple[str, str]:
    """What a long command line is given to, and what that is. Pure.

    Its client's ``run_code`` puts all code into one word, which no execve(2) takes: so that word is it. Anything else is the shell's.
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


def left_s(default_s: float, gone_s: float) -> float:
    """What a command has that says none: what is left of it after its sandbox was woken, because its client waits for both. Pure."""
    return max(LEAST_S, default_s - gone_s)


def late(timeout_s: float) -> TimeoutExceededError:
    """What is said of a command or code that took too long; its client looks for the word "timeout"."""
    return TimeoutExceededError(
        f"command timeout: it was ended after {timeout_s:g} s.",
        code=ErrorCode.TIMEOUT,
        hint="Give it more time with timeout_seconds, and the client as much (Client(timeout=...)), or use exec_stream.",
    )


def exec_answer(done: CommandResult) -> ExecAnswer:
    """What is told of a command, well or not."""
    return ExecAnswer(
        stdout=done.stdout.text(),
        stderr=done.stderr.text() + note_of(done.outcome.reason),
        exit_code=done.outcome.exit_code,
        duration_ms=milliseconds(done.outcome.duration_s),
    )


def note_of(reason: str) -> str:
    """A line on what ended a command, where its exit code does not say it."""
    said = _KILLED.get(reason)
    return "" if said is None else f"{said}\n"


def run_answer(done: CodeResult, timeout_s: float) -> RunAnswer:
    """What is told of a cell.

    Args:
        done: What it came to.
        timeout_s: What it had.

    Raises:
        TimeoutExceededError: It took longer.
    """
    state = done.outcome.status
    if state == "timeout":
        raise late(timeout_s)
    error: str | None = None
    code = 0
    if done.error is not None:
        error = "\n".join(line.rstrip("\n") for line in done.error.traceback) or f"{done.error.name}: {done.error.value}"
        code = 1
    elif state != "ok":
        error, code = _DEAD.get(state, _DIED), 1 if state == "aborted" else _SIGKILLED
    return RunAnswer(
        stdout=done.stdout.text(),
        stderr=done.stderr.text(),
        exit=code,
        duration_ms=milliseconds(done.outcome.duration_s),
        results=[result(shown) for shown in done.results],
        error=error,
    )


def result(shown: Display) -> dict[str, str]:
    """Something that a cell showed: with one representation by its type, with several all of them at once; its client takes either. Pure."""
    told = {mime: base64.b64encode(data).decode() if isinstance(data, bytes) else data for mime, data in shown.data.items()}
    if len(told) == 1:
        ((mime, data),) = told.items()
        return {"type": mime, "data": data}
    return told


def event(name: str, data: Mapping[str, object]) -> bytes:
    """A server-sent event. Nothing but ASCII: its client reads it as ISO 8859-1, and takes U+2028 and the like for the end of a line."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")


@dataclass(slots=True)
class Decoder:
    """Bytes into text, in pieces that may end anywhere."""

    _inner: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def text(self, data: bytes, *, last: bool = False) -> str:
        """The text of the next bytes."""
        return self._inner.decode(data, last)


def broke_off(error: SandlotError) -> bytes:
    """What a stream says, for people, before it ends without an exit: what became of the command is not known, and its client says so."""
    return f": {error.message.encode('ascii', 'replace').decode()}\n\n".encode()


def milliseconds(seconds: float) -> int:
    """Whole ones."""
    return round(seconds * 1000)
