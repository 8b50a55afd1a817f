"""Results of code: outcome, rich results, charts, and the events of a running cell."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from sandlot.sdk.models.processes import Output

TIMED_OUT = 124
"""Exit code of a cell that ran out of time; the one that timeout(1) of coreutils uses."""

KILLED = 137
"""128 + SIGKILL: exit code of a cell whose interpreter went away."""

_EXITS = ("SystemExit", "ExitStatus")
"""Errors whose value is a program's exit status: Python's, and that of a line of a shell."""

ABORTED = 130
"""128 + SIGINT: exit code of a cell that was taken back before its turn came."""

CHART = "application/vnd.sandlot.chart.v1+json"
"""The MIME type of a chart's data, which comes beside its image."""

SEVERAL = "superchart"


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
    def parse(cls, raw: Mapping[str, Any]) -> Self:
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
class ExceptionInfo:
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
    def parse(cls, raw: Mapping[str, Any]) -> Self:
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
    error: ExceptionInfo | None = None
    execution_count: int | None = None
    duration_s: float = 0.0
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    results_omitted: int = 0
    id: str = ""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        error = raw.get("error")
        return cls(
            status=str(raw["status"]),
            stdout=str(raw.get("stdout", "")),
            stderr=str(raw.get("stderr", "")),
            results=tuple(Result.parse(result) for result in raw.get("results", ())),
            error=None if error is None else ExceptionInfo.parse(error),
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


def is_binary(mime: str) -> bool:
    """Whether content of this MIME type travels in base64."""
    return (mime.startswith(("image/", "audio/", "video/")) and mime != "image/svg+xml") or mime in {"application/pdf", "application/octet-stream"}


def _exit_code(error: ExceptionInfo | None) -> int:
    """``sys.exit(3)`` in a cell is a SystemExit with the value "3", ``sys.exit()`` one without (sys.exit, Python's documentation)."""
    if error is None or error.name not in _EXITS:
        return 1
    if error.value in {"", "None"}:
        return 0
    return int(error.value) & 0xFF if error.value.lstrip("-").isdecimal() else 1


@dataclass(frozen=True, slots=True)
class Chart:
    """What a chart shows.

    Args:
        type: ``bar``, ``line``, ``scatter``, ``pie``, ``box_and_whisker``; ``superchart`` where one figure holds several; ``unknown`` for any other.
        title: Empty where it has none.
        x_label: Of the horizontal axis.
        y_label: Of the vertical axis.
        x_unit: What stands in brackets behind the label.
        y_unit: The same.
        elements: What is drawn. Lines and scatters: ``label`` and ``points`` (pairs of x and y); bars: ``label``, ``value`` and ``group``; slices:
            ``label``, ``angle`` and ``radius``; boxes: ``label``, ``min``, ``first_quartile``, ``median``, ``third_quartile``, ``max`` and
            ``outliers``.
        charts: Of a ``superchart``: each of them.
    """

    type: str
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    x_unit: str = ""
    y_unit: str = ""
    elements: tuple[Mapping[str, Any], ...] = ()
    charts: tuple[Self, ...] = ()

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from its JSON."""
        given = raw.get("elements")
        elements = tuple(each for each in given if isinstance(each, Mapping)) if isinstance(given, list) else ()
        kind = _word(raw, "type") or "unknown"
        several = kind == SEVERAL
        return cls(
            type=kind,
            title=_word(raw, "title"),
            x_label=_word(raw, "x_label"),
            y_label=_word(raw, "y_label"),
            x_unit=_word(raw, "x_unit"),
            y_unit=_word(raw, "y_unit"),
            elements=() if several else elements,
            charts=tuple(cls.parse(each) for each in elements) if several else (),
        )

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Read it from the content of its MIME type; None where there is none, or none that can be read."""
        try:
            raw = json.loads(text or "null")
            return cls.parse(raw) if isinstance(raw, dict) else None
        except (ValueError, RecursionError):
            return None


def _word(raw: Mapping[str, Any], name: str) -> str:
    word = raw.get(name)
    return "" if word is None else str(word)


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """A cell's turn has come.

    Args:
        id: The execution's.
        execution_count: The number of the cell in its context, from 1.
    """

    id: str
    execution_count: int


@dataclass(frozen=True, slots=True)
class OutputCleared:
    """A cell took back what it has shown (``clear_output``).

    Args:
        wait: Not before it shows the next thing.
    """

    wait: bool = False


CodeEvent: TypeAlias = ExecutionStarted | Output | Result | OutputCleared | ExceptionInfo | Execution
"""What ``stream_code`` gives: these as they come, and the execution as the last one."""
