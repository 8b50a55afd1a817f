"""Results of code: outcome, rich results, charts, and the events of a run."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from sandlot.model.errors import ExecutionFailedError
from sandlot.model.executions import code_exit_code
from sandlot.model.faults import Fault
from sandlot.sdk.models.executions import ExecutionStatus
from sandlot.sdk.models.processes import Output, PrintedUrl
from sandlot.sdk.models.values import short_repr

CHART = "application/vnd.sandlot.chart.v1+json"
"""MIME type of the data of a chart, which comes beside the image of the chart."""
_SUPERCHART = "superchart"


@dataclass(frozen=True, slots=True)
class Result:
    """One rich result: the value of the last expression, or something that the code displayed. Notebooks show it as they show their own.

    Args:
        data: MIME type -> content; binary types (PNG, JPEG, PDF) are in base64.
        main: True for the value of the last expression.
        metadata: Metadata of the content by MIME type, such as the size of an image.
        display_id: Name that the code gave to the display.
        update: True if this result replaces the display of that name.
    """

    data: Mapping[str, str]
    main: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False

    __repr__ = short_repr("data", "main")

    @property
    def is_main(self) -> bool:
        """True for the value of the last expression."""
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
        """``application/json``, decoded; the text if it is not valid JSON."""
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
        """Data of the chart; None if the result is not a figure of matplotlib."""
        return Chart.from_json(self.data.get(CHART))

    @property
    def svg(self) -> str | None:
        """``image/svg+xml``, as text."""
        return self.data.get("image/svg+xml")

    @property
    def png(self) -> str | None:
        """``image/png`` in base64; :meth:`content` decodes it."""
        return self.data.get("image/png")

    @property
    def jpeg(self) -> str | None:
        """``image/jpeg`` in base64; :meth:`content` decodes it."""
        return self.data.get("image/jpeg")

    @property
    def pdf(self) -> str | None:
        """``application/pdf`` in base64; :meth:`content` decodes it."""
        return self.data.get("application/pdf")

    def formats(self) -> tuple[str, ...]:
        """Return the MIME types of the content."""
        return tuple(self.data)

    def content(self, mime: str = "image/png") -> bytes:
        """Return the content of one MIME type as bytes.

        Raises:
            KeyError: The result does not have this MIME type.
        """
        content = self.data[mime]
        return base64.b64decode(content) if is_binary(mime) else content.encode()

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the content for IPython (documentation of IPython, "Integrating your objects with IPython")."""
        wanted = [mime for mime in self.data if (not include or mime in include) and mime not in (exclude or ())]
        return {mime: self.json if mime == "application/json" else self.data[mime] for mime in wanted}, dict(self.metadata)


@dataclass(frozen=True, slots=True, repr=False)
class ExceptionInfo:
    """Exception that ended a run.

    Args:
        name: Class of the exception, for example ``ZeroDivisionError``.
        value: Message of the exception.
        traceback: Lines of the traceback.
    """

    name: str
    value: str = ""
    traceback: tuple[str, ...] = ()

    __repr__ = short_repr("name", "value")

    def __str__(self) -> str:
        """Return the traceback as Python prints it."""
        return "\n".join(line.rstrip("\n") for line in self.traceback) or f"{self.name}: {self.value}"


@dataclass(frozen=True, slots=True, repr=False)
class Execution:
    """Outcome of a run of code. A run that failed is a result too; :meth:`check` turns it into an exception.

    Args:
        status: ``ok``, ``error``, ``timeout``, ``killed``, ``died``, ``oom`` or ``aborted``; ``running`` until the run ends.
        stdout: Standard output: the first and the last MiB, without what the code cleared.
        stderr: Standard error: the same.
        results: Rich results in order. Without callbacks at most 1,000 results and 32 MiB together.
        error: Exception that ended the run.
        fault: Fault class if the run failed: ``code``, ``request``, ``limit``, ``capacity``, ``platform`` or ``lost``; otherwise None.
        execution_count: Number of the run in its context, from 1.
        duration_s: Seconds in the sandbox.
        stdout_omitted_bytes: Bytes left out of ``stdout``.
        stderr_omitted_bytes: Bytes left out of ``stderr``.
        results_omitted: Number of results left out.
        id: Id of the run.
        urls: Previews of the first 10 loopback URLs in the output; empty if the service has no previews.
    """

    status: ExecutionStatus | str
    stdout: str = ""
    stderr: str = ""
    results: tuple[Result, ...] = ()
    error: ExceptionInfo | None = None
    fault: Fault | str | None = None
    execution_count: int | None = None
    duration_s: float = 0.0
    stdout_omitted_bytes: int = 0
    stderr_omitted_bytes: int = 0
    results_omitted: int = 0
    id: str = ""
    urls: tuple[PrintedUrl, ...] = ()

    __repr__ = short_repr("status", "text", "stdout", "stderr", "error")

    @property
    def ok(self) -> bool:
        """True if the code ran to its end."""
        return self.status == ExecutionStatus.OK

    @property
    def timed_out(self) -> bool:
        """True if the timeout passed."""
        return self.status == ExecutionStatus.TIMEOUT

    @property
    def text(self) -> str | None:
        """Value of the last expression as text; None if there is none."""
        return next((result.text for result in self.results if result.main), None)

    @property
    def exit_code(self) -> int:
        """Exit code of a program with this outcome.

        0 for success, the argument of ``sys.exit`` or the exit status of a shell, 1 for another exception, 124 at the timeout, 130 if the run was
        aborted, otherwise 137.
        """
        return code_exit_code(str(self.status), None if self.error is None else (self.error.name, self.error.value))

    def check(self) -> Self:
        """Return this result.

        Raises:
            ExecutionFailedError: The status is not ``ok``.
        """
        if not self.ok:
            why = f"{self.error.name}: {self.error.value}" if self.error is not None else f"status {self.status}"
            raise ExecutionFailedError(f"The code failed: {why}.", result=self)
        return self


@dataclass(frozen=True, slots=True)
class ExecutionResults:
    """Rich results and exception of code in the execution log.

    Args:
        id: Id of the run.
        execution_count: Number of the code in its context; None for a command.
        results: Results as a notebook shows them at the end.
        results_omitted: Number of results that the log does not keep: those of one run take at most 4 MiB.
        error: Exception that ended the code.
    """

    id: str
    execution_count: int | None = None
    results: tuple[Result, ...] = ()
    results_omitted: int = 0
    error: ExceptionInfo | None = None


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """Event: the code began to run.

    Args:
        id: Id of the run.
        execution_count: Number of the run in its context, from 1.
    """

    id: str
    execution_count: int


@dataclass(frozen=True, slots=True)
class OutputCleared:
    """Event: the code cleared its results and its text (``clear_output``).

    Args:
        wait: True if they are cleared only when the next result or text arrives.
    """

    wait: bool = False


CodeEvent: TypeAlias = ExecutionStarted | Output | Result | OutputCleared | ExceptionInfo | Execution
"""Event of ``stream_code``; the last one is the :class:`Execution`."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Data of a chart. It comes from code in a sandbox: parts of another form are left out, and none raises an exception.

    Args:
        type: ``bar``, ``line``, ``scatter``, ``pie`` or ``box_and_whisker``; ``superchart`` for a figure with several charts; ``unknown`` for others.
        title: Title; empty if there is none.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        x_unit: Text in brackets after the label of the horizontal axis.
        y_unit: Text in brackets after the label of the vertical axis.
        elements: Content. Lines and scatters have ``label`` and ``points`` (pairs of x and y); bars ``label``, ``value`` and ``group``; slices
            ``label``, ``angle`` and ``radius``; boxes ``label``, ``min``, ``first_quartile``, ``median``, ``third_quartile``, ``max`` and
            ``outliers``.
        charts: Charts of a ``superchart``.
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
    def from_json(cls, text: str | None) -> Self | None:
        """Return the chart of a result's content; None if there is no content, or if it is not a chart."""
        try:
            raw = json.loads(text or "null")
            return cls._from_object(raw) if isinstance(raw, dict) else None
        except (ValueError, RecursionError):
            return None

    @classmethod
    def _from_object(cls, raw: Mapping[str, Any]) -> Self:
        items = raw.get("elements")
        elements = tuple(item for item in items if isinstance(item, Mapping)) if isinstance(items, list) else ()
        kind = _text(raw, "type") or "unknown"
        has_charts = kind == _SUPERCHART
        return cls(
            type=kind,
            title=_text(raw, "title"),
            x_label=_text(raw, "x_label"),
            y_label=_text(raw, "y_label"),
            x_unit=_text(raw, "x_unit"),
            y_unit=_text(raw, "y_unit"),
            elements=() if has_charts else elements,
            charts=tuple(cls._from_object(item) for item in elements) if has_charts else (),
        )


def is_binary(mime: str) -> bool:
    """Return True if content of this MIME type is in base64."""
    return (mime.startswith(("image/", "audio/", "video/")) and mime != "image/svg+xml") or mime in {"application/pdf", "application/octet-stream"}


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    return "" if value is None else str(value)
