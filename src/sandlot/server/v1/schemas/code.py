"""Cells and contexts: run, told, made."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sandlot.model.executions import RUNNING, CellError, CodeResult, CodeStatus, Context, Display
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, CellSpec
from sandlot.server.v1.schemas.base import Metadata, QueryModel, RequestModel, ResponseModel, Text
from sandlot.server.v1.schemas.processes import WAIT_MOST_S, captured

_TEXT_TYPES = ("text/", "application/json", "application/javascript", "application/xml", "image/svg+xml")
_STATUS = (
    "ok; error: it raised, or was interrupted; timeout: it was interrupted after its time; killed: its interpreter had to be; died: its interpreter "
    "ended; oom: its interpreter was killed for its memory; aborted: it never ran"
)


class CodeBody(RequestModel):
    """Code to run in a context."""

    code: Text = Field(description="At most 4 MiB; more belongs in a file.", examples=["x = 6 * 7\nprint(x)"])
    language: Text | None = Field(default=None, description="python, bash or javascript; left out, the context's, or python.", examples=["python"])
    context: Text | None = Field(default=None, description="Where to run it; left out, the context of the language that is there always.")
    env: Metadata = Field(default_factory=dict, description="Set for this run only.")
    timeout: float | None = Field(
        default=DEFAULT_COMMAND_TIMEOUT_S, description="Seconds from when its turn came until it is interrupted; null is never."
    )
    silent: bool = Field(default=False, description="It leaves no trace: no execution count, no history, no value of its last expression.")
    store_history: bool = Field(default=True, description="Whether it takes a place in the context's history and raises its execution count.")
    stop_on_error: bool = Field(default=False, description="Where it fails, the runs that wait behind it never run.")
    background: bool = Field(default=False, description="Answer at once with the execution's id; a client that goes away ends nothing.")

    def cell(self) -> CellSpec:
        """What core makes of it."""
        return CellSpec(
            code=self.code,
            language=self.language or ("python" if self.context is None else None),
            context=self.context,
            env=self.env,
            timeout_s=self.timeout,
            silent=self.silent,
            store_history=self.store_history,
            stop_on_error=self.stop_on_error,
        )


class FollowQuery(QueryModel):
    """Where to go on in what a run gives."""

    events_from: int = Field(default=0, ge=0, description="How many of its events that are no output to leave out: started, display, clear, error.")
    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset; the oldest that is kept where left out.")
    stderr_from: int | None = Field(default=None, ge=0, description="The same.")
    wait: float = Field(default=0, ge=0, le=WAIT_MOST_S, description="As JSON: seconds to wait for its end; 0 only looks.")

    @property
    def offsets(self) -> tuple[int, int | None, int | None]:
        """All three."""
        return self.events_from, self.stdout_from, self.stderr_from


class BegunAnswer(ResponseModel):
    """A run in the background."""

    execution: str = Field(examples=["7d2f0a91c4e84b1f9a3d5c6b7e8f9012"])


class DisplayAnswer(ResponseModel):
    """Something that code showed."""

    data: dict[str, Any] = Field(
        description="MIME type -> text, or base64 for binary types.", examples=[{"text/plain": "<Figure>", "image/png": "iVBORw0KGgo="}]
    )
    main: bool = Field(description="Whether it is the value of the last expression.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="What the code said of it.")
    display_id: str | None = Field(default=None, description="The name that the code gave to it.")
    update: bool = Field(default=False, description="Whether it takes the place of what was shown under that name.")

    @classmethod
    def of(cls, shown: Display) -> DisplayAnswer:
        """What is told of it."""
        return cls(data=mime_bundle(shown.data), main=shown.main, metadata=_plain(shown.metadata), display_id=shown.display_id, update=shown.update)


class ErrorAnswer(ResponseModel):
    """The exception that ended a cell."""

    name: str = Field(examples=["ZeroDivisionError"])
    value: str = Field(examples=["division by zero"])
    traceback: list[str]

    @classmethod
    def of(cls, error: CellError) -> ErrorAnswer:
        """What is told of it."""
        return cls(name=error.name, value=error.value, traceback=list(error.traceback))


class CellAnswer(ResponseModel):
    """How a cell ended."""

    execution: str = Field(examples=["7d2f0a91c4e84b1f9a3d5c6b7e8f9012"])
    status: str = Field(description=_STATUS, examples=["ok"])
    execution_count: int
    duration: float = Field(description="Seconds.")

    @classmethod
    def of(cls, outcome: CodeStatus) -> CellAnswer:
        """What is told of it."""
        return cls(**_cell(outcome))


class ExecutedAnswer(CellAnswer):
    """A cell that was run to its end, and all that it gave."""

    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int
    results: list[DisplayAnswer] = Field(description="As a notebook shows them in the end: updates in their places, and without what was cleared.")
    results_omitted: int
    error: ErrorAnswer | None

    @classmethod
    def executed(cls, done: CodeResult) -> ExecutedAnswer:
        """What is told of it."""
        return cls(**_executed(done))


class PositionAnswer(ResponseModel):
    """Where to go on in what a run gives."""

    events_from: int
    stdout_from: int
    stderr_from: int


class KeptCellAnswer(ExecutedAnswer):
    """What is kept of a cell, by now."""

    status: str = Field(description=f"running; {_STATUS}", examples=["running"])
    done: bool
    next: PositionAnswer = Field(description="What the next request goes on with, to be told only what is new.")

    @classmethod
    def kept(cls, found: CodeResult) -> KeptCellAnswer:
        """What is told of it."""
        at = PositionAnswer(events_from=found.position.events, stdout_from=found.position.stdout or 0, stderr_from=found.position.stderr or 0)
        return cls(**_executed(found), done=found.outcome.status != RUNNING, next=at)


class ContextBody(RequestModel):
    """A context to make."""

    language: Text = Field(default="python", description="python, bash or javascript.", examples=["python"])
    cwd: Text | None = Field(default=None, description="The folder to start in, absolute; /workspace where left out.", examples=["/workspace"])
    env: Metadata = Field(default_factory=dict, description="Environment of everything that runs in it.")


class ContextAnswer(ResponseModel):
    """A context as it is now."""

    id: str = Field(examples=["ctx-9f1c2a7be04d5836"])
    language: str = Field(examples=["python"])
    cwd: str = Field(description="The folder that it starts in.", examples=["/workspace"])
    state: str = Field(description="starting, idle, busy, or stopped: it starts with its next run.", examples=["idle"])
    execution_count: int = Field(description="How many cells it has run.")
    pid: int | None = Field(description="Its process in the sandbox.")

    @classmethod
    def of(cls, context: Context) -> ContextAnswer:
        """What is told of it."""
        return cls(
            id=context.id,
            language=context.language,
            cwd=context.cwd,
            state=context.state,
            execution_count=context.execution_count,
            pid=context.pid,
        )


class ContextsAnswer(ResponseModel):
    """The contexts of a sandbox."""

    contexts: list[ContextAnswer]


class InterruptedAnswer(ResponseModel):
    """What became of an interrupt."""

    running: bool = Field(description="Whether there was something to interrupt.")


def mime_bundle(data: Mapping[str, str | bytes]) -> dict[str, str]:
    """A MIME bundle as JSON carries it: text as it is, bytes as text where the type is text, and else as base64. Pure."""
    return {mime: item if isinstance(item, str) else _carried(mime, item) for mime, item in data.items()}


def _carried(mime: str, item: bytes) -> str:
    return item.decode("utf-8", "replace") if mime.startswith(_TEXT_TYPES) else base64.b64encode(item).decode()


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a guest said
    """What JSON can carry of a value that came over the link."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(outcome: CodeStatus) -> dict[str, Any]:
    return {
        "execution": outcome.execution,
        "status": outcome.status,
        "execution_count": outcome.execution_count,
        "duration": outcome.duration_s,
    }


def _executed(done: CodeResult) -> dict[str, Any]:
    return {
        **_cell(done.outcome),
        **captured(done.stdout, done.stderr),
        "results": [DisplayAnswer.of(shown) for shown in done.results],
        "results_omitted": done.results_omitted,
        "error": None if done.error is None else ErrorAnswer.of(done.error),
    }
