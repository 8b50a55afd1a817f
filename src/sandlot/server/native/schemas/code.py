"""Cells: run, told."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sandlot.core.runs import code
from sandlot.core.runs.code import Cell
from sandlot.link.types import CellError, Display
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S
from sandlot.server.native.schemas.base import Answer, Body, Text, Words
from sandlot.server.native.schemas.processes import captured

_TEXT_TYPES = ("text/", "application/json", "application/javascript", "application/xml", "image/svg+xml")


class CodeBody(Body):
    """Code to run in the kernel of its language."""

    code: Text = Field(description="At most 4 MiB; more belongs in a file.", examples=["x = 6 * 7\nprint(x)"])
    language: Text = Field(default="python", description="Of a kernel that the template has.")
    env: Words = Field(default_factory=dict, description="Set for this run only.")
    timeout: float | None = Field(default=DEFAULT_COMMAND_TIMEOUT_S, description="Seconds until it is interrupted; null is never.")

    def cell(self) -> Cell:
        """What core makes of it."""
        return Cell(code=self.code, language=self.language, env=self.env, timeout_s=self.timeout)


class DisplayAnswer(Answer):
    """Something that code showed: MIME type -> text, or base64 for binary types."""

    data: dict[str, Any]
    main: bool

    @classmethod
    def of(cls, shown: Display) -> DisplayAnswer:
        """What is told of it."""
        return cls(data=mime_bundle(shown.data), main=shown.main)


class ErrorAnswer(Answer):
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: list[str]

    @classmethod
    def of(cls, error: CellError) -> ErrorAnswer:
        """What is told of it."""
        return cls(name=error.name, value=error.value, traceback=list(error.traceback))


class CellAnswer(Answer):
    """How a cell ended."""

    execution: str
    status: str
    execution_count: int
    duration: float = Field(description="Seconds.")

    @classmethod
    def of(cls, outcome: code.Outcome) -> CellAnswer:
        """What is told of it."""
        return cls(**_cell(outcome))


class ExecutedAnswer(CellAnswer):
    """A cell that was run to its end, and all that it gave."""

    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int
    results: list[DisplayAnswer]
    results_omitted: int
    error: ErrorAnswer | None

    @classmethod
    def executed(cls, done: code.Executed) -> ExecutedAnswer:
        """What is told of it."""
        return cls(
            **_cell(done.outcome),
            **captured(done.stdout, done.stderr),
            results=[DisplayAnswer.of(shown) for shown in done.results],
            results_omitted=done.results_omitted,
            error=None if done.error is None else ErrorAnswer.of(done.error),
        )


def mime_bundle(data: Mapping[str, str | bytes]) -> dict[str, str]:
    """A MIME bundle as JSON carries it: text as it is, bytes as text where the type is text, and else as base64. Pure."""
    return {mime: item if isinstance(item, str) else _carried(mime, item) for mime, item in data.items()}


def _carried(mime: str, item: bytes) -> str:
    return item.decode("utf-8", "replace") if mime.startswith(_TEXT_TYPES) else base64.b64encode(item).decode()


def _cell(outcome: code.Outcome) -> dict[str, Any]:
    return {
        "execution": outcome.execution,
        "status": outcome.status,
        "execution_count": outcome.execution_count,
        "duration": outcome.duration_s,
    }
