"""What runs come to: frozen values, read from the API's JSON.

Laws:
- A field that a newer service adds is ignored; one that an older service lacks takes its default.
- A run that ended badly is a value, not an exception: an agent needs its output most of all then. Only what kept the run
  from happening (no such sandbox, bad request, service gone) is raised.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Self

from sandlot.sdk.cells.charts import CHART, Chart

Json = Mapping[str, Any]
"""One object of the API, as decoded."""

Stream = Literal["stdout", "stderr"]

TIMED_OUT = 124
"""Exit code of a cell that ran out of time; the one that timeout(1) of coreutils uses."""
KILLED = 137
"""128 + SIGKILL: exit code of a cell whose interpreter went away."""
_EXITS = ("SystemExit", "ExitStatus")
"""Errors whose value is a program's exit status: Python's, and that of a line of a shell."""
ABORTED = 130
"""128 + SIGINT: exit code of a cell that was taken back before its turn came."""


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output as it arrived.

    Args:
        stream: Where it was written to.
        data: The bytes; a character may be cut at either end.
        lost_bytes: How many bytes went by before this piece while nobody read.
    """

    stream: Stream
    data: bytes
    lost_bytes: int = 0

    @property
    def text(self) -> str:
        """The bytes as text; what is no whole character of UTF-8 shows as U+FFFD."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Result:
    """One rich result of a cell: the value of its last expression, or something that it displayed. A notebook shows it as it is.

    Args:
        data: MIME type -> content; text as it is, binary types (PNG, JPEG, PDF) in base64.
        main: Whether it is the value of the cell's last expression.
        metadata: What the code said of it, such as an image's size.
        display_id: The name that the code gave to what it shows.
        update: Whether it takes the place of what was shown under that name before.
    """

    data: Mapping[str, str]
    main: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(
            data={str(mime): str(content) for mime, content in raw["data"].items()},
            main=bool(raw.get("main", False)),
            metadata=raw.get("metadata") or {},
            display_id=raw.get("display_id"),
            update=bool(raw.get("update", False)),
        )

    @property
    def is_main(self) -> bool:
        """Whether it is the value of the cell's last expression."""
        return self.main

    @property
    def text(self) -> str | None:
        """``text/plain``."""
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        """``text/html``."""
        return self.data.get("text/html")

    @property
    def markdown(self) -> str | None:
        """``text/markdown``."""
        return self.data.get("text/markdown")

    @property
    def latex(self) -> str | None:
        """``text/latex``."""
        return self.data.get("text/latex")

    @property
    def json(self) -> Any:  # noqa: ANN401 - JSON
        """What ``application/json`` says; its text, where that is no JSON."""
        text = self.data.get("application/json")
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            return text

    @property
    def javascript(self) -> str | None:
        """``application/javascript``."""
        return self.data.get("application/javascript")

    @property
    def chart(self) -> Chart | None:
        """The data of a chart: for figures of matplotlib."""
        return Chart.of(self.data.get(CHART))

    @property
    def svg(self) -> str | None:
        """``image/svg+xml``, as text."""
        return self.data.get("image/svg+xml")

    @property
    def png(self) -> str | None:
        """``image/png`` in base64, as model APIs take it; :meth:`content` gives the image itself."""
        return self.data.get("image/png")

    @property
    def jpeg(self) -> str | None:
        """``image/jpeg`` in base64."""
        return self.data.get("image/jpeg")

    @property
    def pdf(self) -> str | None:
        """``application/pdf`` in base64."""
        return self.data.get("application/pdf")

    def formats(self) -> tuple[str, ...]:
        """The MIME types that there are."""
        return tuple(self.data)

    def content(self, mime: str = "image/png") -> bytes:
        """The content of one MIME type as bytes, ready for a file.

        Raises:
            KeyError: The result has no such type.
        """
        content = self.data[mime]
        return base64.b64decode(content) if is_binary(mime) else content.encode()

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """How IPython shows it (IPython's documentation, "Integrating your objects with IPython")."""
        wanted = [mime for mime in self.data if (not include or mime in include) and mime not in (exclude or ())]
        return {mime: self.json if mime == "application/json" else self.data[mime] for mime in wanted}, dict(self.metadata)


@dataclass(frozen=True, slots=True)
class ExecutionError:
    """The exception that ended a cell.

    Args:
        name: The exception's class, for example ``ZeroDivisionError``.
        value: Its message.
        traceback: The traceback's lines.
    """

    name: str
    value: str
    traceback: tuple[str, ...] = ()

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(name=str(raw["name"]), value=str(raw.get("value", "")), traceback=tuple(str(line) for line in raw.get("traceback", ())))

    def __str__(self) -> str:
        """The traceback as Python prints it."""
        return "\n".join(line.rstrip("\n") for line in self.traceback) or f"{self.name}: {self.value}"


@dataclass(frozen=True, slots=True)
class Execution:
    """What running a cell came to.

    Args:
        status: ``ok``, ``error`` (it raised, or was interrupted), ``timeout``, ``killed`` (its interpreter had to be), ``died`` (its interpreter
            ended), ``oom`` (its interpreter was killed for its memory), ``aborted`` (it never ran); ``running`` where it is not done.
        stdout: What it printed: the first and the last MiB.
        stderr: The same for standard error.
        results: Rich results in the order in which they came; at most 1,000, and 32 MiB together, without callbacks.
        error: The exception, where one ended it.
        execution_count: The number of the cell in its kernel, from 1.
        duration_s: Seconds inside the sandbox.
        stdout_omitted: Bytes left out between the first and the last MiB.
        stderr_omitted: The same for standard error.
        results_omitted: Results left out beyond that.
        id: The execution's id.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    results: tuple[Result, ...] = ()
    error: ExecutionError | None = None
    execution_count: int | None = None
    duration_s: float = 0.0
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    results_omitted: int = 0
    id: str = ""

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        error = raw.get("error")
        return cls(
            status=str(raw["status"]),
            stdout=str(raw.get("stdout", "")),
            stderr=str(raw.get("stderr", "")),
            results=tuple(Result.parse(result) for result in raw.get("results", ())),
            error=None if error is None else ExecutionError.parse(error),
            execution_count=raw.get("execution_count"),
            duration_s=float(raw.get("duration", 0.0)),
            stdout_omitted=int(raw.get("stdout_omitted", 0)),
            stderr_omitted=int(raw.get("stderr_omitted", 0)),
            results_omitted=int(raw.get("results_omitted", 0)),
            id=str(raw.get("execution", "")),
        )

    @property
    def ok(self) -> bool:
        """Whether it ran to its end."""
        return self.status == "ok"

    @property
    def text(self) -> str | None:
        """The value of the cell's last expression as text; None where there is none."""
        return next((result.text for result in self.results if result.main), None)

    @property
    def exit_code(self) -> int:
        """What a program with this outcome would exit with.

        0; ``sys.exit``'s or the shell's own; 1 for another exception; 124 for a timeout; 130 for one that never ran; 137 otherwise.
        """
        match self.status:
            case "ok":
                return 0
            case "error":
                return _exit_code(self.error)
            case "timeout":
                return TIMED_OUT
            case "aborted":
                return ABORTED
            case _:
                return KILLED


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that a command created or changed.

    Args:
        path: Its absolute path in the sandbox.
        created: Whether it was not there before.
        size_bytes: Its size afterwards.
        modified_at: When its content last changed.
    """

    path: str
    created: bool
    size_bytes: int
    modified_at: datetime

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(str(raw["path"]), bool(raw["created"]), int(raw["size_bytes"]), datetime.fromisoformat(raw["modified_at"]))


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command came to.

    Args:
        exit_code: As a shell has it: the program's own, or 128 + the signal that ended it.
        stdout: What it wrote: the first and the last MiB.
        stderr: The same for standard error.
        reason: ``exited``, ``signalled``, ``timeout`` (killed for running too long), ``pids`` (killed for too many processes),
            ``oom`` (killed for memory, where the sandbox itself lives on).
        signal: The signal that ended it.
        duration_s: Seconds inside the sandbox.
        stdout_omitted: Bytes left out between the first and the last MiB.
        stderr_omitted: The same for standard error.
        id: The process's id.
        files: What it created or changed below the folders that were tracked, by path; None where none were.
        files_more: Whether there may be others.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    reason: str = "exited"
    signal: int | None = None
    duration_s: float = 0.0
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    id: str = ""
    files: tuple[ChangedFile, ...] | None = None
    files_more: bool = False

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(
            exit_code=int(raw["exit_code"]),
            stdout=str(raw.get("stdout", "")),
            stderr=str(raw.get("stderr", "")),
            reason=str(raw.get("reason", "exited")),
            signal=raw.get("signal"),
            duration_s=float(raw.get("duration", 0.0)),
            stdout_omitted=int(raw.get("stdout_omitted", 0)),
            stderr_omitted=int(raw.get("stderr_omitted", 0)),
            id=str(raw.get("process", "")),
            files=None if raw.get("files") is None else tuple(ChangedFile.parse(file) for file in raw["files"]),
            files_more=bool(raw.get("files_more", False)),
        )

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        """Whether it was killed because it ran longer than allowed."""
        return self.reason == "timeout"


def is_binary(mime: str) -> bool:
    """Whether content of this MIME type travels in base64."""
    return (mime.startswith(("image/", "audio/", "video/")) and mime != "image/svg+xml") or mime in {"application/pdf", "application/octet-stream"}


def _exit_code(error: ExecutionError | None) -> int:
    """``sys.exit(3)`` in a cell is a SystemExit with the value "3", ``sys.exit()`` one without (sys.exit, Python's documentation)."""
    if error is None or error.name not in _EXITS:
        return 1
    if error.value in {"", "None"}:
        return 0
    return int(error.value) & 0xFF if error.value.lstrip("-").isdecimal() else 1
