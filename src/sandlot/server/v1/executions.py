"""Executions: the log of code and command runs, and the execution log of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.executions import CellResults
from sandlot.model.faults import Fault
from sandlot.model.history import LOG_CHANNELS, LogEnd, LogEntry, LogGap, LogOutput
from sandlot.model.ids import SandboxId
from sandlot.model.records import ExecutionRecord
from sandlot.server.v1.code import CodeErrorResponse, DisplayResponse
from sandlot.server.v1.common import Cursor, EventTable, Problem, documented_response
from sandlot.server.v1.processes import StreamName
from sandlot.web import pagination, streaming
from sandlot.web.dependencies import SandboxNameRoute, get_node, get_principal
from sandlot.web.models import QueryModel, ResponseModel, Text, json_response


class ExecutionResponse(ResponseModel):
    """A run of code or of a command."""

    id: str = Field(description="Id of the process or code run.")
    sandbox: str
    owner: str
    kind: str = Field(description="`code` or `command`.")
    origin: str = Field(description="API that started the run: `native`, or the name of a compatibility API.")
    language: str | None
    code: str | None = Field(description="Code; beginning and end if it is longer than 64 KiB.")
    argv: list[str] | None
    created_at: datetime
    status: str = Field(
        description="`running`, `ok`, `error`, `timeout`, `killed`, `died`, `exited`, `signalled`, `pids`, `oom`, or "
        "`lost` if the outcome is unknown."
    )
    timed_out: bool = Field(description="True if the timeout of the execution ended it.")
    exit_code: int | None = Field(
        description="Exit code of a command, as in a shell: 128 + signal if a signal ended the command; 124 if its timeout ended the command."
    )
    fault: Fault | None = Field(description="Cause of a failure; null if the execution runs or has not failed.")
    duration_s: float | None = Field(description="Duration; null while the run continues.")
    stdout: str = Field(description="Standard output; beginning and end if it is longer than 64 KiB.")
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    error: str | None = Field(description="Exception of code that failed.")
    files: int | None = Field(description="Number of created or changed files; null if they were not tracked.")
    execution_count: int | None = Field(description="Number of the code in its context; null for a command.")
    results_bytes: int = Field(description="Size of the rich results and the exception, which `GET /v1/executions/{execution}/results` returns.")

    @classmethod
    def of(cls, record: ExecutionRecord) -> ExecutionResponse:
        """Return the response for an execution."""
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
            execution_count=record.execution_count,
            results_bytes=record.results_bytes,
        )


class ExecutionResultsResponse(ResponseModel):
    """Rich results and exception of code."""

    id: str = Field(description="Id of the code run.")
    execution_count: int | None = Field(description="Number of the code in its context; null for a command.")
    results: list[DisplayResponse] = Field(description="Results as a notebook shows them at the end.")
    results_omitted: int = Field(description="Number of results that are not kept: those of one run take at most 4 MiB.")
    error: CodeErrorResponse | None = Field(description="Exception that ended the code.")

    @classmethod
    def of(cls, record: ExecutionRecord, found: CellResults) -> ExecutionResultsResponse:
        """Return the response for the results of an execution."""
        return cls(
            id=record.id,
            execution_count=record.execution_count,
            results=[DisplayResponse.of(shown) for shown in found.results],
            results_omitted=found.omitted,
            error=None if found.error is None else CodeErrorResponse.of(found.error),
        )


class ExecutionsResponse(ResponseModel):
    """A page of executions, newest first."""

    executions: list[ExecutionResponse]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class ExecutionsQuery(QueryModel):
    """Page of a list of executions."""

    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")
    limit: int = Field(default=50, ge=1, le=200, description="Maximum number of executions of the page.")
    sandbox: Text | None = Field(default=None, description="Only executions of this sandbox, by its id.")


STREAM_NAMES: dict[int, StreamName] = {1: "stdout", 2: "stderr"}


class LogEntryResponse(ResponseModel):
    """Output of a run on one stream."""

    execution: str = Field(description="Id of the process or code run.")
    at: datetime = Field(description="Start time of the run.")
    stream: StreamName
    text: str = Field(description="Output; beginning and end if it is longer than 64 KiB.")
    omitted_bytes: int
    running: bool = Field(description="True if the run continues.")

    @classmethod
    def of(cls, entry: LogEntry) -> LogEntryResponse:
        """Return the response for a log entry."""
        return cls(
            execution=entry.execution,
            at=entry.at,
            stream=STREAM_NAMES[entry.channel],
            text=entry.text,
            omitted_bytes=entry.omitted,
            running=entry.end is not None,
        )


class LogsResponse(ResponseModel):
    """Output of the runs of a sandbox, in the order of their starts."""

    entries: list[LogEntryResponse]
    more: bool = Field(description="True if there are older entries. A response has the newest 200 runs and at most 1 MiB of text.")


class LogsQuery(QueryModel):
    """Streams to read."""

    stream: Literal["stdout", "stderr", "both"] = Field(default="both", description="`stdout`, `stderr` or `both`.")


class LogOutputEvent(ResponseModel):
    """New output of a run."""

    execution: str
    stream: StreamName
    text: str


class LogLostEvent(ResponseModel):
    """Output of a run that was dropped, because the client read too slowly."""

    execution: str
    stream: StreamName
    lost_bytes: int


class LogExecutionEndedEvent(ResponseModel):
    """A run ended."""

    execution: str


class LogsEndedEvent(ResponseModel):
    """The sandbox ended. No event follows."""

    sandbox: str


LOG_EVENTS: EventTable = {
    "entry": LogEntryResponse,
    "output": LogOutputEvent,
    "lost": LogLostEvent,
    "over": LogExecutionEndedEvent,
    "ended": LogsEndedEvent,
    "failure": Problem,
}

router = APIRouter(prefix="/v1", route_class=SandboxNameRoute)


@router.get("/executions", tags=["executions"], responses=documented_response(ExecutionsResponse, "A page of executions, newest first."))
async def list_executions(query: Annotated[ExecutionsQuery, Query()], request: Request) -> Response:
    """List code and command runs of the caller, newest first; operators get those of all keys. Runs are kept for 7 days by default."""
    return await _executions(request, query)


@router.get("/executions/{execution}", tags=["executions"], responses=documented_response(ExecutionResponse, "The execution."))
async def get_execution(execution: str, request: Request) -> Response:
    """Get a run with its output and outcome."""
    return json_response(ExecutionResponse.of(await get_node(request).history.execution(get_principal(request), execution)))


@router.get(
    "/executions/{execution}/results", tags=["executions"], responses=documented_response(ExecutionResultsResponse, "The results of the execution.")
)
async def get_execution_results(execution: str, request: Request) -> Response:
    """Get the rich results and the exception of code. They are kept as long as the run; a command has none."""
    history, principal = get_node(request).history, get_principal(request)
    record = await history.execution(principal, execution)
    return json_response(ExecutionResultsResponse.of(record, await history.results(principal, execution)))


@router.get(
    "/sandboxes/{sandbox}/logs",
    tags=["sandboxes"],
    responses=documented_response(
        LogsResponse, "Output so far, or events until the end of the sandbox with `Accept: text/event-stream`.", events=LOG_EVENTS
    ),
)
async def get_logs(sandbox: str, query: Annotated[LogsQuery, Query()], request: Request) -> Response:
    """Read or follow the execution log of a sandbox. The sandbox is not resumed and may have ended."""
    history, principal, channels = get_node(request).history, get_principal(request), LOG_CHANNELS[query.stream]
    if streaming.accepts_events(request):
        stream = await history.follow_logs(principal, sandbox, channels)
        return streaming.event_response(request, _log_events(sandbox, stream), stream.aclose)
    page = await history.logs(principal, sandbox, channels)
    return json_response(LogsResponse(entries=[LogEntryResponse.of(entry) for entry in page.items], more=page.more))


async def _log_events(sandbox: str, items: AsyncIterator[LogEntry | LogOutput | LogGap | LogEnd]) -> AsyncIterator[streaming.StreamEvent]:
    async for item in items:
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
    return json_response(
        ExecutionsResponse(executions=[ExecutionResponse.of(record) for record in page.items], next_cursor=pagination.next_cursor(page))
    )
