"""Code that runs in contexts: schemas, events and routes."""

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
from sandlot.server.v1.printed_urls import PRINTED_URLS_DESCRIPTION, PrintedUrlResponse, PrintedUrls
from sandlot.server.v1.processes import MAX_WAIT_S, LostEvent, OutputEvent, captured
from sandlot.web import streaming
from sandlot.web.dependencies import SandboxNameRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, json_response

_TEXT_TYPES = ("text/", "application/json", "application/javascript", "application/xml", "image/svg+xml")

_STATUS = (
    "`ok`; `error`: the code raised an exception or was interrupted; `timeout`: the timeout passed; `killed`: the interpreter was killed by request; "
    "`died`: the interpreter ended; `oom`: the interpreter was killed at the memory limit; `aborted`: the code was withdrawn before its turn"
)


class RunCodeRequest(RequestModel):
    """Code to run, with its context and limits."""

    code: Text = Field(description="Code of at most 4 MiB.", examples=["x = 6 * 7\nprint(x)"])
    language: Text | None = Field(
        default=None,
        description="`python`, `javascript`, `typescript`, `bash` or `r`. Default: the language of the context, otherwise `python`.",
        examples=["python"],
    )
    context: Text | None = Field(default=None, description="Id of the context. Default: the default context of the language.")
    env: Metadata = Field(default_factory=dict, description="Environment variables of this run.")
    timeout: float | None = Field(
        default=DEFAULT_COMMAND_TIMEOUT_S, description="Seconds from the start of the run until its interruption; null for no limit."
    )
    background: bool = Field(default=False, description="Return the id at once (202). The run continues if the client disconnects.")

    def spec(self) -> CellSpec:
        """Return the parameters of the operation."""
        return CellSpec(
            code=self.code,
            language=self.language or ("python" if self.context is None else None),
            context=self.context,
            env=self.env,
            timeout_s=self.timeout,
        )


class GetCodeQuery(QueryModel):
    """Position from which the output of a run is read."""

    events_from: int = Field(default=0, ge=0, description="Number of `started`, `display`, `clear` and `error` events to skip.")
    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset in the stream. Default: the oldest byte that is kept.")
    stderr_from: int | None = Field(default=None, ge=0, description="Byte offset in the stream. Default: the oldest byte that is kept.")
    wait: float = Field(default=0, ge=0, le=MAX_WAIT_S, description="Seconds to wait for the end of the run; has no effect on event streams.")

    @property
    def offsets(self) -> tuple[int, int | None, int | None]:
        """All offsets."""
        return self.events_from, self.stdout_from, self.stderr_from


class AcceptedExecutionResponse(ResponseModel):
    """A run that was accepted in the background."""

    id: str = Field(examples=["7d2f0a91c4e84b1f9a3d5c6b7e8f9012"])


class DisplayResponse(ResponseModel):
    """A rich result: the value of the last expression, or content that the code displayed."""

    data: dict[str, Any] = Field(
        description="MIME type -> text, or base64 for binary types.", examples=[{"text/plain": "<Figure>", "image/png": "iVBORw0KGgo="}]
    )
    main: bool = Field(description="True for the value of the last expression.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Metadata by MIME type, for example the size of an image.")
    display_id: str | None = Field(default=None, description="Name that the code gave to the display.")
    update: bool = Field(default=False, description="True if the result replaces the display of that name.")

    @classmethod
    def of(cls, shown: Display) -> DisplayResponse:
        """Return the response for a displayed result."""
        return cls(data=mime_bundle(shown.data), main=shown.main, metadata=_plain(shown.metadata), display_id=shown.display_id, update=shown.update)


class CodeErrorResponse(ResponseModel):
    """Exception that ended a run."""

    name: str = Field(examples=["ZeroDivisionError"])
    value: str = Field(examples=["division by zero"])
    traceback: list[str]

    @classmethod
    def of(cls, error: CellError) -> CodeErrorResponse:
        """Return the response for the exception that ended a cell."""
        return cls(name=error.name, value=error.value, traceback=list(error.traceback))


class CodeOutcomeResponse(ResponseModel):
    """Outcome of a run."""

    id: str = Field(examples=["7d2f0a91c4e84b1f9a3d5c6b7e8f9012"])
    status: str = Field(description=_STATUS, examples=["ok"])
    timed_out: bool = Field(description="True if the timeout ended the run.")
    fault: Fault | None = Field(description="Cause of a failure; null while the run continues and if its status is `ok`.")
    execution_count: int
    duration_s: float

    @classmethod
    def of(cls, outcome: CodeStatus) -> CodeOutcomeResponse:
        """Return the response for the outcome of a run."""
        return cls(**_cell(outcome))


class CodeResultResponse(CodeOutcomeResponse):
    """Outcome and output of a run."""

    stdout: str
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    results: list[DisplayResponse] = Field(description="Results as a notebook shows them at the end: with updates applied, without cleared results.")
    results_omitted: int
    error: CodeErrorResponse | None
    urls: list[PrintedUrlResponse] = Field(default=[], description=PRINTED_URLS_DESCRIPTION)

    @classmethod
    async def executed(cls, done: CodeResult, urls: PrintedUrls) -> CodeResultResponse:
        """Return the response for a code result."""
        return cls(**await _executed(done, urls))


class CodeOffsetsResponse(ResponseModel):
    """Position in the output of a run."""

    events_from: int
    stdout_from: int
    stderr_from: int


class CodeOutputResponse(CodeResultResponse):
    """Output of a run that is kept so far."""

    status: str = Field(description=f"`running`; {_STATUS}", examples=["running"])
    done: bool
    next: CodeOffsetsResponse = Field(description="Position from which the next request reads only new output.")

    @classmethod
    async def kept(cls, found: CodeResult, urls: PrintedUrls) -> CodeOutputResponse:
        """Return the response for a code result."""
        at = CodeOffsetsResponse(events_from=found.position.events, stdout_from=found.position.stdout or 0, stderr_from=found.position.stderr or 0)
        return cls(**await _executed(found, urls), done=found.outcome.status != RUNNING, next=at)


class InterruptResponse(ResponseModel):
    """Result of an interrupt."""

    running: bool = Field(description="True if a run was interrupted or withdrawn.")


def mime_bundle(data: Mapping[str, str | bytes]) -> dict[str, str]:
    """Return a MIME bundle for JSON: text, bytes of text types decoded, other bytes in base64."""
    return {mime: item if isinstance(item, str) else _encoded(mime, item) for mime, item in data.items()}


def _encoded(mime: str, item: bytes) -> str:
    return item.decode("utf-8", "replace") if mime.startswith(_TEXT_TYPES) else base64.b64encode(item).decode()


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a guest
    """Return a value of the guest without bytes and without numbers that JSON lacks."""
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


async def _executed(done: CodeResult, urls: PrintedUrls) -> dict[str, Any]:
    output = captured(done.stdout, done.stderr)
    return {
        **_cell(done.outcome),
        **output,
        "results": [DisplayResponse.of(shown) for shown in done.results],
        "results_omitted": done.results_omitted,
        "error": None if done.error is None else CodeErrorResponse.of(done.error),
        "urls": await urls.of(output["stdout"], output["stderr"]),
    }


class CodeQueuedEvent(ResponseModel):
    """The run was accepted and waits for its turn."""

    id: str


class CodeStartedEvent(ResponseModel):
    """The code begins to run."""

    id: str
    execution_count: int = Field(description="Number of the run in its context.")


class OutputClearedEvent(ResponseModel):
    """The code cleared its displays."""

    wait: bool = Field(description="True if the displays are cleared only when the next result arrives.")


CODE_EVENTS: EventTable = {
    "accepted": CodeQueuedEvent,
    "started": CodeStartedEvent,
    "output": OutputEvent,
    "lost": LostEvent,
    "url": PrintedUrlResponse,
    "display": DisplayResponse,
    "clear": OutputClearedEvent,
    "error": CodeErrorResponse,
    "exit": CodeOutcomeResponse,
    "failure": Problem,
}

OFFSETS = 3

DIGITS = 18

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/code", tags=["code"], route_class=SandboxNameRoute)


@router.post(
    "",
    responses={
        **documented_response(
            CodeResultResponse,
            "Outcome and output of the run, or its events with `Accept: text/event-stream` or `application/x-ndjson`.",
            events=CODE_EVENTS,
        ),
        202: {"model": AcceptedExecutionResponse, "description": "The run in the background."},
    },
)
async def run(sandbox: str, body: RunCodeRequest, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Run code in a context. A foreground run is interrupted if the client disconnects; variables are kept."""
    code, principal, cell = get_node(request).code, get_principal(request), body.spec()
    if body.background:
        return json_response(AcceptedExecutionResponse(id=await code.launch(principal, sandbox, cell, idempotency_key=idempotency_key)), 202)
    if streaming.accepts_events(request):
        stream = await cancel_on_disconnect(request, code.stream(principal, sandbox, cell, idempotency_key=idempotency_key))
        return streaming.event_response(request, _events(stream, CodePosition(), PrintedUrls(request, sandbox)), stream.aclose)
    done = await cancel_on_disconnect(request, code.run(principal, sandbox, cell, idempotency_key=idempotency_key))
    return json_response(await CodeResultResponse.executed(done, PrintedUrls(request, sandbox)))


@router.get(
    "/{execution}",
    responses=documented_response(
        CodeOutputResponse,
        "Output so far, or events until the end of the run with `Accept: text/event-stream` or `application/x-ndjson`.",
        events=CODE_EVENTS,
    ),
)
async def get(sandbox: str, execution: str, query: Annotated[GetCodeQuery, Query()], request: Request) -> Response:
    """Read or follow the output of a run while the sandbox keeps it. The run continues if the client disconnects."""
    code, principal = get_node(request).code, get_principal(request)
    if streaming.accepts_events(request):
        start = CodePosition(*(parse_event_id(request.headers.get("last-event-id", "")) or query.offsets))
        stream = await cancel_on_disconnect(request, code.follow(principal, sandbox, execution, start))
        return streaming.event_response(request, _events(stream, start, PrintedUrls(request, sandbox)), stream.aclose)
    work = code.read(principal, sandbox, execution, CodePosition(*query.offsets), wait_s=query.wait)
    found = await cancel_on_disconnect(request, work)
    return json_response(await CodeOutputResponse.kept(found, PrintedUrls(request, sandbox)))


@router.post("/{execution}/interrupt", responses=documented_response(InterruptResponse, "Result of the interrupt."))
async def interrupt(sandbox: str, execution: str, request: Request) -> Response:
    """Interrupt a run like Ctrl-C. A run that waits for its turn is withdrawn."""
    return json_response(InterruptResponse(running=await get_node(request).code.interrupt(get_principal(request), sandbox, execution)))


def parse_event_id(event_id: str) -> tuple[int, int, int] | None:
    """Return the position after the event with an id of :func:`_events`, or None if the id is not valid.

    Args:
        event_id: Value of `Last-Event-ID` (HTML standard, 9.2.4).
    """
    parts = event_id.split("-")
    if len(parts) != OFFSETS or not all(each.isascii() and each.isdecimal() and len(each) <= DIGITS for each in parts):
        return None
    stdout_from, stderr_from, events_from = (int(each) for each in parts)
    return events_from, stdout_from, stderr_from


async def _events(stream: Stream[CodeEvent], start: CodePosition, urls: PrintedUrls) -> AsyncIterator[streaming.StreamEvent]:
    """Convert the events of a run. The id of an event is the position after it: ``STDOUT-STDERR-EVENTS``."""
    output, events = streaming.OutputEvents({Channel.STDOUT: start.stdout or 0, Channel.STDERR: start.stderr or 0}), start.events
    execution = ""
    async for item in stream:
        if isinstance(item, Output | OutputGap):
            for url in await urls.events(item):
                yield url
            for piece in output.feed(item):
                yield piece._replace(id=f"{output.position}-{events}")
            continue
        # The first part of a character is held over other events: the rest of the character may follow them.
        if isinstance(item, CodeAccepted):
            execution = item.execution
            yield streaming.StreamEvent("accepted", {"id": execution}, f"{output.position}-{events}")
        elif isinstance(item, CodeEnded):
            for url in await urls.last_events():
                yield url
            for piece in output.end():
                yield piece._replace(id=f"{output.position}-{events}")
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
