"""TODO."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.faults import Fault
from sandlot.model.history import LOG_CHANNELS, LogEnd, LogEntry, LogGap, LogOutput
from sandlot.model.ids import SandboxId
from sandlot.model.records import ExecutionRecord
from sandlot.model.repositories import Position
from sandlot.server.v1.common import EventTable, Problem, documented_response
from sandlot.server.v1.processes import StreamName
from sandlot.web import pagination, streaming
from sandlot.web.dependencies import SandboxRoute, get_node, get_principal
from sandlot.web.models import QueryModel, ResponseModel, Text, json_response


class ExecutionResponse(ResponseModel):
    """One run of code or of a command."""

    id: str = Field(description="Of the process or cell.")
    sandbox: str
    owner: str
    kind: str = Field(description="code or command.")
    origin: str = Field(description="Which API it came by: native, or the name of a door.")
    language: str | None
    code: str | None = Field(description="Of what is longer than 64 KiB, the beginning and the end.")
    argv: list[str] | None
    created_at: datetime
    status: str = Field(description="running, ok, error, timeout, killed, died, exited, signalled, pids, oom, or lost: nobody knows how it ended.")
    timed_out: bool = Field(description="True if the timeout of the execution ended it.")
    exit_code: int | None = Field(
        description="Exit code of a command, as in a shell: 128 + signal if a signal ended the command; 124 if its timeout ended the command."
    )
    fault: Fault | None = Field(description="Cause of a failure; null if the execution runs or has not failed.")
    duration_s: float | None = Field(description="Null while it runs.")
    stdout: str = Field(description="Of what is longer than 64 KiB, the beginning and the end.")
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    error: str | None = Field(description="Of code that raised.")
    files: int | None = Field(description="How many files it made or changed, where that was asked for.")

    @classmethod
    def of(cls, record: ExecutionRecord) -> ExecutionResponse:
        """What is told of it."""
        return cls(
            id=record.id,
            sandbox=record.sandbox,
            owner=record.owner,
            kind=record.kind,
            origin=record.origin,
            language=record.language,
            code=record.code,
            argv=None if record.argv is None else list(record.argv),
            created_at=record.created_at,
            status=record.status,
            timed_out=record.status == "timeout",
            fault=record.fault,
            exit_code=record.exit_code,
            duration_s=record.duration_s,
            stdout=record.stdout,
            stderr=record.stderr,
            stdout_omitted_bytes=record.stdout_omitted_bytes,
            stderr_omitted_bytes=record.stderr_omitted_bytes,
            error=record.error,
            files=record.files,
        )


class ExecutionsResponse(ResponseModel):
    """A page of runs, newest first."""

    executions: list[ExecutionResponse]
    next_cursor: str | None


class ExecutionsQuery(QueryModel):
    """Which runs to list."""

    cursor: Text | None = Field(default=None, description="The next_cursor of the page before.")
    limit: int = Field(default=50, ge=1, le=200, description="Runs on one page, at most.")
    sandbox: Text | None = Field(default=None, description="Those in this sandbox only.")


STREAM_NAMES: dict[int, StreamName] = {1: "stdout", 2: "stderr"}


class LogEntryResponse(ResponseModel):
    """What one run wrote to one of its streams."""

    execution: str = Field(description="Of the process or cell.")
    at: datetime = Field(description="When it was begun.")
    stream: StreamName
    text: str = Field(description="Of what is longer than 64 KiB, the beginning and the end.")
    omitted_bytes: int
    running: bool = Field(description="Whether it may write more.")

    @classmethod
    def of(cls, entry: LogEntry) -> LogEntryResponse:
        """What is told of it."""
        return cls(
            execution=entry.execution,
            at=entry.at,
            stream=STREAM_NAMES[entry.channel],
            text=entry.text,
            omitted_bytes=entry.omitted,
            running=entry.end is not None,
        )


class LogsResponse(ResponseModel):
    """What the runs of a sandbox wrote, in the order in which they were begun."""

    entries: list[LogEntryResponse]
    more: bool = Field(description="Whether there are older ones: the newest 200 runs are told, of a mebibyte of text at most.")


class LogsQuery(QueryModel):
    """Which output to tell."""

    stream: Literal["stdout", "stderr", "both"] = Field(default="both", description="stdout, stderr or both.")


class LogOutputEvent(ResponseModel):
    """A run wrote something."""

    execution: str
    stream: StreamName
    text: str


class LogLostEvent(ResponseModel):
    """A run wrote faster than this was read."""

    execution: str
    stream: StreamName
    lost_bytes: int


class LogExecutionEndedEvent(ResponseModel):
    """A run has ended."""

    execution: str


class LogsEndedEvent(ResponseModel):
    """The sandbox has ended: nothing follows."""

    sandbox: str


LOG_EVENTS: EventTable = {
    "entry": LogEntryResponse,
    "output": LogOutputEvent,
    "lost": LogLostEvent,
    "over": LogExecutionEndedEvent,
    "ended": LogsEndedEvent,
    "failure": Problem,
}

router = APIRouter(prefix="/v1", route_class=SandboxRoute)


@router.get("/executions", tags=["executions"], responses=documented_response(ExecutionsResponse, "A page of them, newest first."))
async def list_executions(query: Annotated[ExecutionsQuery, Query()], request: Request) -> Response:
    """List what ran, newest first: your own; for an operator everybody's. Kept for seven days, or as the operator has set it."""
    return await _executions(request, query)


@router.get("/executions/{execution}", tags=["executions"], responses=documented_response(ExecutionResponse, "It."))
async def get_execution(execution: str, request: Request) -> Response:
    """Look at one run: what it was, what it wrote, how it ended."""
    return json_response(ExecutionResponse.of(await get_node(request).history.execution(get_principal(request), execution)))


@router.get(
    "/sandboxes/{sandbox}/logs",
    tags=["sandboxes"],
    responses=documented_response(LogsResponse, "By now; with 'Accept: text/event-stream' events until the sandbox ends.", events=LOG_EVENTS),
)
async def get_logs(sandbox: str, query: Annotated[LogsQuery, Query()], request: Request) -> Response:
    """Read, or follow, what the runs of a sandbox wrote, from the log of runs: it is not asked or woken for it, and may have ended."""
    history, principal, channels = get_node(request).history, get_principal(request), LOG_CHANNELS[query.stream]
    if streaming.accepts_events(request):
        stream = await history.follow_logs(principal, sandbox, channels)
        return streaming.event_response(request, _log_events(sandbox, stream), stream.aclose)
    page = await history.logs(principal, sandbox, channels)
    return json_response(LogsResponse(entries=[LogEntryResponse.of(entry) for entry in page.items], more=page.more))


async def _log_events(sandbox: str, told: AsyncIterator[LogEntry | LogOutput | LogGap | LogEnd]) -> AsyncIterator[streaming.StreamEvent]:
    async for item in told:
        match item:
            case LogEntry():
                yield streaming.StreamEvent("entry", LogEntryResponse.of(item).model_dump(mode="json"))
            case LogOutput():
                yield streaming.StreamEvent("output", {"execution": item.execution, "stream": STREAM_NAMES[item.channel], "text": item.text})
            case LogGap():
                yield streaming.StreamEvent("lost", {"execution": item.execution, "stream": STREAM_NAMES[item.channel], "lost_bytes": item.bytes})
            case LogEnd():
                yield streaming.StreamEvent("over", {"execution": item.execution})
    yield streaming.StreamEvent("ended", {"sandbox": sandbox})


async def _executions(request: Request, query: ExecutionsQuery) -> Response:
    sandbox = None if query.sandbox is None else SandboxId(query.sandbox)
    before = pagination.decode_cursor(query.cursor)
    page = await get_node(request).history.executions(get_principal(request), sandbox=sandbox, before=before, limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(ExecutionsResponse(executions=[ExecutionResponse.of(record) for record in page.items], next_cursor=following))
