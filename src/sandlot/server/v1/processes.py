"""Processes of a sandbox: schemas, events and routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict, Field, model_validator

from sandlot.model.errors import InvalidRequestError
from sandlot.model.executions import (
    Channel,
    CommandResult,
    ProcessEnded,
    ProcessEvent,
    ProcessInfo,
    ProcessOutcome,
    ProcessStarted,
    exit_code,
    signal_number,
)
from sandlot.model.faults import Fault
from sandlot.model.files import MAX_TRACKED_FOLDERS, ChangedFile
from sandlot.model.output_capture import OutputCapture
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, MAX_TAG_BYTES, MAX_TERMINAL_SIZE, ProcessSpec, shell_argv
from sandlot.model.streams import Stream
from sandlot.server.v1.common import PROBLEM, EventTable, Problem, UserName, documented_response, parse_user, raw_body
from sandlot.server.v1.printed_urls import PRINTED_URLS_DESCRIPTION, PrintedUrlResponse, PrintedUrls
from sandlot.web import streaming
from sandlot.web.body_limits import streams_request_body
from sandlot.web.dependencies import SandboxNameRoute, cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, Texts, json_response

StreamName = Literal["stdout", "stderr"]

MAX_WAIT_S = 300.0
"""Maximum time in seconds for which a request waits: proxies close connections that are silent for longer."""


class TerminalSize(RequestModel):
    """Size of a terminal."""

    rows: int = Field(default=24, ge=1, le=MAX_TERMINAL_SIZE, description="Number of lines.")
    cols: int = Field(default=80, ge=1, le=MAX_TERMINAL_SIZE, description="Number of characters per line.")


class CreateProcessRequest(RequestModel):
    """Program or shell command to run. Exactly one of `command` and `argv` is required."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["command"], "properties": {"command": {"type": "string"}}},
                {"required": ["argv"], "properties": {"argv": {"type": "array"}}},
            ]
        }
    )

    command: Text | None = Field(default=None, description="Command line for the shell of the image: bash if it is installed, otherwise sh.")
    argv: Texts | None = Field(default=None, description="Program and arguments.")
    env: Metadata = Field(default_factory=dict, description="Environment variables, added to those of the sandbox.")
    cwd: Text | None = Field(default=None, description="Working directory, relative to that of the sandbox, which is the default.")
    user: UserName | None = Field(default=None, description="User of the process. Default: the user of the sandbox.")
    stdin: Text | None = Field(default=None, description="Complete standard input.")
    stdin_open: bool = Field(default=False, description="Keep the standard input open for `POST …/stdin`.")
    timeout: float | None = Field(
        default=DEFAULT_COMMAND_TIMEOUT_S,
        description="Seconds until the process group is killed; null for no limit, which is the default of a background process.",
    )
    pty: TerminalSize | None = Field(
        default=None, description="Run the process on a terminal of this size, in the background. All output is stdout, and the input is open."
    )
    track: Texts | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_TRACKED_FOLDERS,
        description="Directories below which created and changed files are reported at the end.",
    )
    tag: Text | None = Field(default=None, min_length=1, max_length=MAX_TAG_BYTES, description="Tag of the user, which lists of processes contain.")
    background: bool = Field(default=False, description="Return as soon as the process runs (201). It continues if the client disconnects.")

    @model_validator(mode="after")
    def _one_command(self) -> CreateProcessRequest:
        if (self.command is None) == (self.argv is None):
            raise ValueError("Set exactly one of `command` and `argv`.")
        if self.stdin is not None and self.stdin_open:
            raise ValueError("`stdin` and `stdin_open` cannot both be set.")
        if self.pty is not None and (self.stdin is not None or not self.background):
            raise ValueError("`pty` needs `background` and excludes `stdin`.")
        if self.track is not None and self.background:
            raise ValueError("`track` and `background` cannot both be set.")
        return self

    def spec(self) -> ProcessSpec:
        """Return the parameters of the operation."""
        timeout_s = None if self.background and "timeout" not in self.model_fields_set else self.timeout
        return ProcessSpec(
            argv=shell_argv(self.command) if self.command is not None else tuple(self.argv or ()),
            env=self.env,
            cwd=self.cwd,
            user=parse_user(self.user),
            stdin=self.stdin_open or self.stdin is not None,
            timeout_s=timeout_s,
            rows=None if self.pty is None else self.pty.rows,
            cols=None if self.pty is None else self.pty.cols,
            tag=self.tag,
        )


class ProcessStartedResponse(ResponseModel):
    """A background process that was started."""

    id: str
    pid: int


class ProcessOutcomeResponse(ResponseModel):
    """Outcome of a process."""

    id: str
    exit_code: int = Field(description="Exit code as in a shell: 128 + signal if a signal ended the process; 124 if its timeout ended the process.")
    signal: int | None = Field(description="Signal that ended the process.")
    reason: str
    timed_out: bool = Field(description="True if the timeout of the process ended it.")
    fault: Fault | None = Field(description="Cause of a failure; null if the process exited with 0.")
    duration_s: float

    @classmethod
    def of(cls, outcome: ProcessOutcome) -> ProcessOutcomeResponse:
        """Return the response for a process outcome."""
        return cls(**_exited(outcome))


class ChangedFileResponse(ResponseModel):
    """A file that a process created or changed."""

    path: str
    created: bool = Field(description="True if the file is new.")
    size_bytes: int
    modified_at: datetime


class ProcessExitEvent(ProcessOutcomeResponse):
    """Outcome of a process, with the files that it changed."""

    files: list[ChangedFileResponse] | None = Field(default=None, description="Files created or changed below the directories of `track`, by path.")
    files_more: bool = Field(default=False, description="True if the list of files may be incomplete.")

    @classmethod
    def with_files(cls, outcome: ProcessOutcome, changed: tuple[Sequence[ChangedFile], bool] | None) -> ProcessExitEvent:
        """Return the event for a process outcome."""
        return cls(**_exited(outcome), **changed_files(changed))


class CommandResultResponse(ProcessExitEvent):
    """Outcome and output of a process."""

    stdout: str
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    urls: list[PrintedUrlResponse] = Field(default=[], description=PRINTED_URLS_DESCRIPTION)

    @classmethod
    async def finished(cls, done: CommandResult, urls: PrintedUrls) -> CommandResultResponse:
        """Return the response for a command result."""
        output = captured(done.stdout, done.stderr)
        found = await urls.of(output["stdout"], output["stderr"])
        return cls(**_exited(done.outcome), **output, **changed_files(done.files), urls=found)


class ProcessOutputResponse(ResponseModel):
    """Output of a process that is kept so far."""

    process: str
    exit: ProcessOutcomeResponse | None
    stdout: str
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    urls: list[PrintedUrlResponse] = Field(default=[], description=PRINTED_URLS_DESCRIPTION)


class ProcessOutputQuery(QueryModel):
    """Position from which the output of a process is read."""

    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset in the stream. Default: the oldest byte that is kept.")
    stderr_from: int | None = Field(default=None, ge=0, description="Byte offset in the stream. Default: the oldest byte that is kept.")
    follow: bool = Field(default=True, description="Stream events until the process ends. If false, only the output so far.")


class ProcessWaitQuery(QueryModel):
    """Time to wait."""

    timeout: float = Field(default=60, ge=0, le=MAX_WAIT_S, description="Maximum time to wait in seconds.")


class ProcessWaitResponse(ResponseModel):
    """State of a process after waiting."""

    process: str
    running: bool
    exit: ProcessOutcomeResponse | None


class WriteStdinQuery(QueryModel):
    """Position of the body in the standard input."""

    offset: int | None = Field(
        default=None, ge=0, description="Byte offset of the body in the whole input. Bytes that were received before are not written again."
    )


class StdinResponse(ResponseModel):
    """Result of a write."""

    stdin_bytes: int = Field(description="Bytes of input so far, the offset of the next write.")


class ProcessResponse(ResponseModel):
    """State of a process."""

    id: str
    pid: int
    argv: list[str]
    running: bool
    reason: str | None
    fault: Fault | None = Field(description="Cause of a failure; null if the process runs or has exited with 0.")
    exit_code: int | None
    signal: int | None
    duration_s: float = Field(description="Duration so far.")
    pty: bool = Field(description="True if the process runs on a terminal.")
    stdin_open: bool = Field(description="True while the standard input is open.")
    stdin_bytes: int = Field(description="Bytes of input so far.")
    stdout_bytes: int
    stderr_bytes: int
    tag: str | None = Field(description="Tag of the process; null if an earlier service started it.")
    cwd: str | None = Field(description="Working directory at its start; null for the default or if unknown.")
    env: dict[str, str] = Field(description="Environment variables that were added at its start, as far as known.")

    @classmethod
    def of(cls, info: ProcessInfo) -> ProcessResponse:
        """Return the response for a process."""
        code = exit_code(info.exit_code, info.signal, info.reason) if not info.running else None
        return cls(
            id=info.process,
            pid=info.pid,
            argv=list(info.argv),
            running=info.running,
            reason=info.reason,
            fault=info.fault,
            exit_code=code,
            signal=info.signal,
            duration_s=info.duration_s,
            pty=info.pty,
            stdin_open=info.stdin,
            stdin_bytes=info.stdin_bytes,
            stdout_bytes=info.stdout_bytes,
            stderr_bytes=info.stderr_bytes,
            tag=info.tag,
            cwd=info.cwd,
            env=dict(info.env),
        )


class ProcessesResponse(ResponseModel):
    """Processes of a sandbox."""

    processes: list[ProcessResponse]


class SendSignalRequest(RequestModel):
    """Signal to send."""

    signal: Text | int = Field(description="Name or number: SIGTERM, TERM or 15.")


class ProcessSignalResponse(ResponseModel):
    """Result of a signal or resize."""

    running: bool = Field(description="True if the process was still running.")


def changed_files(changed: tuple[Sequence[ChangedFile], bool] | None) -> dict[str, Any]:
    """Return the fields for changed files; none if the process was not tracked."""
    if changed is None:
        return {}
    files, more = changed
    responses = [
        ChangedFileResponse(path=file.path, created=file.created, size_bytes=file.size_bytes, modified_at=_moment(file.modified_ns)) for file in files
    ]
    return {"files": responses, "files_more": more}


def _moment(ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


def captured(stdout: OutputCapture, stderr: OutputCapture) -> dict[str, Any]:
    """Return the fields for captured output."""
    return {"stdout": stdout.text(), "stderr": stderr.text(), "stdout_omitted_bytes": stdout.omitted, "stderr_omitted_bytes": stderr.omitted}


def _exited(outcome: ProcessOutcome) -> dict[str, Any]:
    return {
        "id": outcome.process,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "reason": outcome.reason,
        "timed_out": outcome.timed_out,
        "fault": outcome.fault,
        "duration_s": outcome.duration_s,
    }


class ProcessStartedEvent(ResponseModel):
    """The process runs."""

    id: str
    pid: int


class OutputEvent(ResponseModel):
    """A piece of output."""

    stream: StreamName
    offset: int = Field(description="Offset of the first byte in the stream.")
    encoding: Literal["utf-8", "base64"] = Field(description="Encoding of `data`; base64 if the bytes are not UTF-8.")
    data: str


class LostEvent(ResponseModel):
    """Output that was dropped because it was read too late."""

    stream: StreamName
    lost_bytes: int


PROCESS_EVENTS: EventTable = {
    "started": ProcessStartedEvent,
    "output": OutputEvent,
    "lost": LostEvent,
    "url": PrintedUrlResponse,
    "exit": ProcessExitEvent,
    "failure": Problem,
}

DIGITS = 18

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/processes", tags=["processes"], route_class=SandboxNameRoute)


@router.post(
    "",
    responses={
        **documented_response(
            CommandResultResponse, "Outcome and output of the process, or its events with `Accept: text/event-stream`.", events=PROCESS_EVENTS
        ),
        201: {"model": ProcessStartedResponse, "description": "The background process."},
    },
)
async def create(sandbox: str, body: CreateProcessRequest, request: Request) -> Response:
    """Run a command, or start a background process. A foreground process is killed if the client disconnects."""
    processes, principal, spec = get_node(request).processes, get_principal(request), body.spec()
    stdin = None if body.stdin is None else body.stdin.encode()
    if body.background:
        info = await processes.launch(principal, sandbox, spec, stdin=stdin)
        return json_response(ProcessStartedResponse(id=info.process, pid=info.pid), 201)
    if body.stdin_open and not streaming.accepts_events(request):
        raise InvalidRequestError(
            "`stdin_open` needs a streaming or background run.",
            hint="Send `Accept: text/event-stream`, or set `background`.",
            fields={"field": "stdin_open"},
        )
    track = body.track or ()
    if streaming.accepts_events(request):
        stream = await cancel_on_disconnect(request, processes.stream(principal, sandbox, spec, stdin=stdin, track=track))
        return streaming.event_response(request, process_events(stream, PrintedUrls(request, sandbox)), stream.aclose)
    done = await cancel_on_disconnect(request, processes.run(principal, sandbox, spec, stdin=stdin, track=track))
    return json_response(await CommandResultResponse.finished(done, PrintedUrls(request, sandbox)))


@router.get("", responses=documented_response(ProcessesResponse, "Running processes, and the last ones that ended."))
async def list_processes(sandbox: str, request: Request) -> Response:
    """List processes that were started through the service."""
    found = await get_node(request).processes.list(get_principal(request), sandbox)
    return json_response(ProcessesResponse(processes=[ProcessResponse.of(info) for info in found]))


@router.get("/{process}", responses=documented_response(ProcessResponse, "The process."))
async def get(sandbox: str, process: str, request: Request) -> Response:
    """Get a process."""
    return json_response(ProcessResponse.of(await get_node(request).processes.get(get_principal(request), sandbox, process)))


@router.get("/{process}/wait", responses=documented_response(ProcessWaitResponse, "State of the process at its end or after the time to wait."))
async def wait(sandbox: str, process: str, query: Annotated[ProcessWaitQuery, Query()], request: Request) -> Response:
    """Wait until a process ends. Its output is not read."""
    outcome = await cancel_on_disconnect(request, get_node(request).processes.wait(get_principal(request), sandbox, process, timeout_s=query.timeout))
    return json_response(
        ProcessWaitResponse(process=process, running=outcome is None, exit=None if outcome is None else ProcessOutcomeResponse.of(outcome))
    )


@router.get(
    "/{process}/output",
    responses=documented_response(
        ProcessOutputResponse, "Output so far, or events until the end of the process with `Accept: text/event-stream`.", events=PROCESS_EVENTS
    ),
)
async def get_output(sandbox: str, process: str, query: Annotated[ProcessOutputQuery, Query()], request: Request) -> Response:
    """Read or follow the output of a process. The process continues if the client disconnects."""
    processes, principal = get_node(request).processes, get_principal(request)
    if streaming.accepts_events(request):
        stdout_from, stderr_from = parse_event_id(request.headers.get("last-event-id", "")) or (query.stdout_from, query.stderr_from)
        stream = await processes.follow(principal, sandbox, process, stdout_from=stdout_from, stderr_from=stderr_from, to_end=query.follow)
        offsets: dict[int, int] = {Channel.STDOUT: stdout_from or 0, Channel.STDERR: stderr_from or 0}
        return streaming.event_response(request, process_events(stream, PrintedUrls(request, sandbox), offsets), stream.aclose)
    outcome, stdout, stderr = await processes.read(principal, sandbox, process, stdout_from=query.stdout_from, stderr_from=query.stderr_from)
    output = captured(stdout, stderr)
    urls = await PrintedUrls(request, sandbox).of(output["stdout"], output["stderr"])
    return json_response(
        ProcessOutputResponse(process=process, exit=None if outcome is None else ProcessOutcomeResponse.of(outcome), **output, urls=urls)
    )


@router.post(
    "/{process}/stdin",
    responses=documented_response(StdinResponse, "Position after the write."),
    openapi_extra=raw_body("Bytes for the standard input."),
)
@streams_request_body
async def write_stdin(sandbox: str, process: str, query: Annotated[WriteStdinQuery, Query()], request: Request) -> Response:
    """Write the body to the standard input of a process. The request waits while the process does not read; with `offset` it can be repeated."""
    work = get_node(request).processes.write_stdin(get_principal(request), sandbox, process, iter_body(request), offset=query.offset)
    return json_response(StdinResponse(stdin_bytes=await cancel_on_hangup(request, work)))


@router.delete("/{process}/stdin", status_code=204, responses=PROBLEM)
async def close_stdin(sandbox: str, process: str, request: Request) -> Response:
    """Close the standard input of a process."""
    await cancel_on_disconnect(request, get_node(request).processes.close_stdin(get_principal(request), sandbox, process))
    return Response(status_code=204)


@router.post("/{process}/signal", responses=documented_response(ProcessSignalResponse, "Result of the signal."))
async def send_signal(sandbox: str, process: str, body: SendSignalRequest, request: Request) -> Response:
    """Send a signal to a process and its children."""
    running = await get_node(request).processes.signal(get_principal(request), sandbox, process, signal_number(body.signal))
    return json_response(ProcessSignalResponse(running=running))


@router.post("/{process}/restart", status_code=201, responses=documented_response(ProcessStartedResponse, "The new process.", 201))
async def restart(sandbox: str, process: str, request: Request) -> Response:
    """Restart a process in the background with its original options. A running process is killed first. The new process has a new id."""
    info = await get_node(request).processes.restart(get_principal(request), sandbox, process)
    return json_response(ProcessStartedResponse(id=info.process, pid=info.pid), 201)


def parse_event_id(event_id: str) -> tuple[int, int] | None:
    """Return the offsets of both streams after the event with an id of :func:`process_events`, or None if the id is not valid.

    Args:
        event_id: Value of `Last-Event-ID` (HTML standard, 9.2.4).
    """
    stdout_from, dash, stderr_from = event_id.partition("-")
    if not dash or not all(each.isascii() and each.isdecimal() and len(each) <= DIGITS for each in (stdout_from, stderr_from)):
        return None
    return int(stdout_from), int(stderr_from)


async def process_events(
    stream: Stream[ProcessEvent], urls: PrintedUrls, offsets: Mapping[int, int] | None = None
) -> AsyncIterator[streaming.StreamEvent]:
    """Convert the events of a process until its end. The id of an event is the position after it: ``STDOUT-STDERR``."""
    output = streaming.OutputEvents(offsets)
    async for event in stream:
        if isinstance(event, ProcessStarted):
            yield streaming.StreamEvent("started", {"id": event.process, "pid": event.pid})
        elif isinstance(event, ProcessEnded):
            for url in await urls.last_events():
                yield url
            for piece in output.end():
                yield piece
            ended = ProcessOutcomeResponse.of(event.outcome) if event.files is None else ProcessExitEvent.with_files(event.outcome, event.files)
            yield streaming.StreamEvent("exit", ended.model_dump(mode="json"))
            return
        else:
            for url in await urls.events(event):  # before its output: a client that resumes after the output has the URL
                yield url
            for piece in output.feed(event):
                yield piece
    for url in await urls.last_events():
        yield url
    for piece in output.end():
        yield piece
