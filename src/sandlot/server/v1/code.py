"""Code: run in a context that keeps its variables, followed, interrupted."""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.executions import (
    RUNNING,
    CellError,
    CellStarted,
    Channel,
    Cleared,
    CodeAccepted,
    CodeEnded,
    CodeEvent,
    CodePosition,
    CodeResult,
    CodeStatus,
    Display,
    Output,
    OutputGap,
)
from sandlot.model.faults import Fault
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, CellSpec
from sandlot.model.streams import Stream
from sandlot.server.v1.common import EventTable, IdempotencyKey, Problem, documented_response
from sandlot.server.v1.processes import WAIT_MOST_S, LostEvent, OutputEvent, captured
from sandlot.web import streaming
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, json_response

_TEXT_TYPES = ("text/", "application/json", "application/javascript", "application/xml", "image/svg+xml")

_STATUS = (
    "ok; error: it raised, or was interrupted; timeout: it was interrupted after its time; killed: its interpreter had to be; died: its interpreter "
    "ended; oom: its interpreter was killed for its memory; aborted: it never ran"
)


class RunCodeRequest(RequestModel):
    """Code to run in a context."""

    code: Text = Field(description="At most 4 MiB; more belongs in a file.", examples=["x = 6 * 7\nprint(x)"])
    language: Text | None = Field(default=None, description="python, bash or javascript; left out, the context's, or python.", examples=["python"])
    context: Text | None = Field(default=None, description="Where to run it; left out, the context of the language that is there always.")
    env: Metadata = Field(default_factory=dict, description="Set for this run only.")
    timeout: float | None = Field(
        default=DEFAULT_COMMAND_TIMEOUT_S, description="Seconds from when its turn came until it is interrupted; null is never."
    )
    background: bool = Field(default=False, description="Answer at once with the execution's id; a client that goes away ends nothing.")

    def cell(self) -> CellSpec:
        """What core makes of it."""
        return CellSpec(
            code=self.code,
            language=self.language or ("python" if self.context is None else None),
            context=self.context,
            env=self.env,
            timeout_s=self.timeout,
        )


class GetCodeQuery(QueryModel):
    """Where to go on in what a run gives."""

    events_from: int = Field(default=0, ge=0, description="How many of its events that are no output to leave out: started, display, clear, error.")
    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset; the oldest that is kept where left out.")
    stderr_from: int | None = Field(default=None, ge=0, description="The same.")
    wait: float = Field(default=0, ge=0, le=WAIT_MOST_S, description="As JSON: seconds to wait for its end; 0 only looks.")

    @property
    def offsets(self) -> tuple[int, int | None, int | None]:
        """All three."""
        return self.events_from, self.stdout_from, self.stderr_from


class AcceptedExecutionResponse(ResponseModel):
    """A run in the background."""

    id: str = Field(examples=["7d2f0a91c4e84b1f9a3d5c6b7e8f9012"])


class DisplayResponse(ResponseModel):
    """Something that code showed."""

    data: dict[str, Any] = Field(
        description="MIME type -> text, or base64 for binary types.", examples=[{"text/plain": "<Figure>", "image/png": "iVBORw0KGgo="}]
    )
    main: bool = Field(description="Whether it is the value of the last expression.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="What the code said of it.")
    display_id: str | None = Field(default=None, description="The name that the code gave to it.")
    update: bool = Field(default=False, description="Whether it takes the place of what was shown under that name.")

    @classmethod
    def of(cls, shown: Display) -> DisplayResponse:
        """What is told of it."""
        return cls(data=mime_bundle(shown.data), main=shown.main, metadata=_plain(shown.metadata), display_id=shown.display_id, update=shown.update)


class CodeErrorResponse(ResponseModel):
    """The exception that ended a cell."""

    name: str = Field(examples=["ZeroDivisionError"])
    value: str = Field(examples=["division by zero"])
    traceback: list[str]

    @classmethod
    def of(cls, error: CellError) -> CodeErrorResponse:
        """What is told of it."""
        return cls(name=error.name, value=error.value, traceback=list(error.traceback))


class CodeOutcomeResponse(ResponseModel):
    """How a cell ended."""

    id: str = Field(examples=["7d2f0a91c4e84b1f9a3d5c6b7e8f9012"])
    status: str = Field(description=_STATUS, examples=["ok"])
    timed_out: bool = Field(description="True if the timeout of the cell ended it.")
    fault: Fault | None = Field(description="Cause of a failure; null if the cell runs or its status is `ok`.")
    execution_count: int
    duration_s: float

    @classmethod
    def of(cls, outcome: CodeStatus) -> CodeOutcomeResponse:
        """What is told of it."""
        return cls(**_cell(outcome))


class CodeResultResponse(CodeOutcomeResponse):
    """A cell that was run to its end, and all that it gave."""

    stdout: str
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    results: list[DisplayResponse] = Field(description="As a notebook shows them in the end: updates in their places, and without what was cleared.")
    results_omitted: int
    error: CodeErrorResponse | None

    @classmethod
    def executed(cls, done: CodeResult) -> CodeResultResponse:
        """What is told of it."""
        return cls(**_executed(done))


class CodePositionResponse(ResponseModel):
    """Where to go on in what a run gives."""

    events_from: int
    stdout_from: int
    stderr_from: int


class CodeOutputResponse(CodeResultResponse):
    """What is kept of a cell, by now."""

    status: str = Field(description=f"running; {_STATUS}", examples=["running"])
    done: bool
    next: CodePositionResponse = Field(description="What the next request goes on with, to be told only what is new.")

    @classmethod
    def kept(cls, found: CodeResult) -> CodeOutputResponse:
        """What is told of it."""
        at = CodePositionResponse(events_from=found.position.events, stdout_from=found.position.stdout or 0, stderr_from=found.position.stderr or 0)
        return cls(**_executed(found), done=found.outcome.status != RUNNING, next=at)


class InterruptResponse(ResponseModel):
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
        "id": outcome.execution,
        "status": outcome.status,
        "timed_out": outcome.timed_out,
        "fault": outcome.fault,
        "execution_count": outcome.execution_count,
        "duration_s": outcome.duration_s,
    }


def _executed(done: CodeResult) -> dict[str, Any]:
    return {
        **_cell(done.outcome),
        **captured(done.stdout, done.stderr),
        "results": [DisplayResponse.of(shown) for shown in done.results],
        "results_omitted": done.results_omitted,
        "error": None if done.error is None else CodeErrorResponse.of(done.error),
    }


class CodeAcceptedEvent(ResponseModel):
    """A cell runs, or waits for its turn."""

    id: str


class CodeStartedEvent(ResponseModel):
    """A cell's turn has come."""

    id: str
    execution_count: int = Field(description="The number of the cell in its context.")


class OutputClearedEvent(ResponseModel):
    """A cell took back what it has shown."""

    wait: bool = Field(description="Not before it shows the next thing.")


CODE_EVENTS: EventTable = {
    "accepted": CodeAcceptedEvent,
    "started": CodeStartedEvent,
    "output": OutputEvent,
    "lost": LostEvent,
    "display": DisplayResponse,
    "clear": OutputClearedEvent,
    "error": CodeErrorResponse,
    "exit": CodeOutcomeResponse,
    "failure": Problem,
}

OFFSETS = 3

DIGITS = 18

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/code", tags=["code"], route_class=SandboxRoute)


@router.post(
    "",
    responses={
        **documented_response(
            CodeResultResponse, "It ended; with 'Accept: text/event-stream' or 'application/x-ndjson' events as it runs.", events=CODE_EVENTS
        ),
        202: {"model": AcceptedExecutionResponse, "description": "It runs in the background, or waits for its turn."},
    },
)
async def run(sandbox: str, body: RunCodeRequest, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Run code in a context. Unless it is in the background, it is interrupted when the client goes away; its variables stay."""
    code, principal, cell = get_node(request).code, get_principal(request), body.cell()
    if body.background:
        return json_response(AcceptedExecutionResponse(id=await code.launch(principal, sandbox, cell, idempotency_key=idempotency_key)), 202)
    if streaming.accepts_events(request):
        stream = await cancel_on_disconnect(request, code.stream(principal, sandbox, cell, idempotency_key=idempotency_key))
        return streaming.event_response(request, _told(stream, CodePosition()), stream.aclose)
    return json_response(
        CodeResultResponse.executed(await cancel_on_disconnect(request, code.run(principal, sandbox, cell, idempotency_key=idempotency_key)))
    )


@router.get(
    "/{execution}",
    responses=documented_response(
        CodeOutputResponse, "By now; with 'Accept: text/event-stream' or 'application/x-ndjson' events until it ends.", events=CODE_EVENTS
    ),
)
async def get(sandbox: str, execution: str, query: Annotated[GetCodeQuery, Query()], request: Request) -> Response:
    """Read, or follow, what a run of code gives, for as long as the sandbox keeps it. Nothing happens to it when the client goes away."""
    code, principal = get_node(request).code, get_principal(request)
    if streaming.accepts_events(request):
        start = CodePosition(*(gone_on(request.headers.get("last-event-id", "")) or query.offsets))
        stream = await cancel_on_disconnect(request, code.follow(principal, sandbox, execution, start))
        return streaming.event_response(request, _told(stream, start), stream.aclose)
    work = code.read(principal, sandbox, execution, CodePosition(*query.offsets), wait_s=query.wait)
    return json_response(CodeOutputResponse.kept(await cancel_on_disconnect(request, work)))


@router.post("/{execution}/interrupt", responses=documented_response(InterruptResponse, "It was told."))
async def interrupt(sandbox: str, execution: str, request: Request) -> Response:
    """Interrupt one run of code, as Ctrl-C would; one that waits for its turn never runs."""
    return json_response(InterruptResponse(running=await get_node(request).code.interrupt(get_principal(request), sandbox, execution)))


def gone_on(event_id: str) -> tuple[int, int, int] | None:
    """Where a client of events goes on that was cut off: events, and both streams' offsets, after the last event that it saw. Pure.

    Args:
        event_id: What it says that was (HTML standard, 9.2.4); None comes of what is none of ours.
    """
    parts = event_id.split("-")
    if len(parts) != OFFSETS or not all(each.isascii() and each.isdecimal() and len(each) <= DIGITS for each in parts):
        return None
    stdout_from, stderr_from, events_from = (int(each) for each in parts)
    return events_from, stdout_from, stderr_from


async def _told(stream: Stream[CodeEvent], start: CodePosition) -> AsyncIterator[streaming.StreamEvent]:
    """All that an execution gives, as events; each says by its id where to go on after it: ``STDOUT-STDERR-EVENTS``."""
    output, events = streaming.OutputEvents({Channel.STDOUT: start.stdout or 0, Channel.STDERR: start.stderr or 0}), start.events
    execution = ""
    async for item in stream:
        if isinstance(item, Output | OutputGap):
            for told in output.feed(item):
                yield told._replace(id=f"{output.position}-{events}")
            continue
        for told in output.end():  # half a character came before this
            yield told._replace(id=f"{output.position}-{events}")
        if isinstance(item, CodeAccepted):
            execution = item.execution
            yield streaming.StreamEvent("accepted", {"id": execution}, f"{output.position}-{events}")
        elif isinstance(item, CodeEnded):
            yield streaming.StreamEvent("exit", CodeOutcomeResponse.of(item.status).model_dump())
        else:
            events += 1
            yield _event(execution, item)._replace(id=f"{output.position}-{events}")


def _event(execution: str, item: CellStarted | Display | Cleared | CellError) -> streaming.StreamEvent:
    if isinstance(item, CellStarted):
        return streaming.StreamEvent("started", {"id": execution, "execution_count": item.count})
    if isinstance(item, Display):
        return streaming.StreamEvent("display", DisplayResponse.of(item).model_dump())
    if isinstance(item, Cleared):
        return streaming.StreamEvent("clear", {"wait": item.wait})
    return streaming.StreamEvent("error", CodeErrorResponse.of(item).model_dump())
