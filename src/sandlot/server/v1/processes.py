"""Processes: run, follow, feed, signal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, model_validator

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
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, MAX_TAG_BYTES, MAX_TERMINAL_SIZE, ProcessSpec, User, shell_argv
from sandlot.model.streams import Stream
from sandlot.server.v1.common import PROBLEM, EventTable, Problem, UserName, documented_response, raw_body
from sandlot.web import streaming
from sandlot.web.body_limits import streams_body
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, Texts, json_response

StreamName = Literal["stdout", "stderr"]

WAIT_MOST_S = 300.0
"""Longer answers do not get through every proxy; who wants to wait longer asks again."""


class TerminalSize(RequestModel):
    """A terminal's size."""

    rows: int = Field(default=24, ge=1, le=MAX_TERMINAL_SIZE, description="Lines.")
    cols: int = Field(default=80, ge=1, le=MAX_TERMINAL_SIZE, description="Characters of a line.")


class CreateProcessRequest(RequestModel):
    """A process to start: exactly one of ``command`` and ``argv``."""

    command: Text | None = Field(default=None, description="A command line for the image's shell (bash where there is one).")
    argv: Texts | None = Field(default=None, description="A program and its arguments.")
    env: Metadata = Field(default_factory=dict, description="Added to the sandbox's environment.")
    cwd: Text | None = Field(default=None, description="Absolute; /workspace where left out.")
    user: UserName = Field(default="user", description="Who it runs as.")
    stdin: Text | None = Field(default=None, description="All of its standard input.")
    stdin_open: bool = Field(default=False, description="Its input stays open, for POST .../stdin.")
    timeout: float | None = Field(
        default=DEFAULT_COMMAND_TIMEOUT_S, description="Seconds until its process group is killed; null is never, and the default in the background."
    )
    pty: TerminalSize | None = Field(
        default=None, description="It runs on a terminal of this size: all output is stdout, and there is always input. Only in the background."
    )
    track: Texts | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_TRACKED_FOLDERS,
        description="Folders: the files that it creates or changes below them are told at its end.",
    )
    tag: Text | None = Field(default=None, min_length=1, max_length=MAX_TAG_BYTES, description="A word of your own, told by the list of processes.")
    background: bool = Field(default=False, description="Answer as soon as it runs (201); it outlives the call and the connection.")

    @model_validator(mode="after")
    def _one_command(self) -> CreateProcessRequest:
        if (self.command is None) == (self.argv is None):
            raise ValueError("Give exactly one of 'command' and 'argv'.")
        if self.stdin is not None and self.stdin_open:
            raise ValueError("Give 'stdin' or 'stdin_open', not both.")
        if self.pty is not None and (self.stdin is not None or not self.background):
            raise ValueError("A process with 'pty' runs in the background and takes no 'stdin': type on its terminal.")
        if self.track is not None and self.background:
            raise ValueError("'track' is for a process that is waited for: nobody would be told in the background.")
        return self

    def spec(self) -> ProcessSpec:
        """What core makes of it."""
        unless_asked = None if self.background and "timeout" not in self.model_fields_set else self.timeout
        return ProcessSpec(
            argv=shell_argv(self.command) if self.command is not None else tuple(self.argv or ()),
            env=self.env,
            cwd=self.cwd,
            user=User(self.user),
            stdin=self.stdin_open or self.stdin is not None,
            timeout_s=unless_asked,
            rows=None if self.pty is None else self.pty.rows,
            cols=None if self.pty is None else self.pty.cols,
            tag=self.tag,
        )


class ProcessStartedResponse(ResponseModel):
    """A process that was started in the background."""

    id: str
    pid: int


class ProcessOutcomeResponse(ResponseModel):
    """How a process ended."""

    id: str
    exit_code: int = Field(description="As in a shell: 128 + signal if a signal ended the process; 124 if its timeout ended the process.")
    signal: int | None = Field(description="Signal that ended the process.")
    reason: str
    timed_out: bool = Field(description="True if the timeout of the process ended it.")
    fault: Fault | None = Field(description="Cause of a failure; null if the process exited with 0.")
    duration_s: float

    @classmethod
    def of(cls, outcome: ProcessOutcome) -> ProcessOutcomeResponse:
        """What is told of it."""
        return cls(**_exited(outcome))


class ChangedFileResponse(ResponseModel):
    """A file that a run created or changed."""

    path: str
    created: bool = Field(description="Whether it was not there before.")
    size_bytes: int
    modified_at: datetime


class ProcessExitEvent(ProcessOutcomeResponse):
    """How a process ended that was waited for."""

    files: list[ChangedFileResponse] | None = Field(default=None, description="What it created or changed below the folders of ``track``, by path.")
    files_more: bool = Field(default=False, description="Whether there may be others; also where it could not be found out.")

    @classmethod
    def with_files(cls, outcome: ProcessOutcome, changed: tuple[Sequence[ChangedFile], bool] | None) -> ProcessExitEvent:
        """What is told of it."""
        return cls(**_exited(outcome), **changed_files(changed))


class CommandResultResponse(ProcessExitEvent):
    """A process that was run to its end, and what it wrote."""

    stdout: str
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int

    @classmethod
    def finished(cls, done: CommandResult) -> CommandResultResponse:
        """What is told of it."""
        return cls(**_exited(done.outcome), **captured(done.stdout, done.stderr), **changed_files(done.files))


class ProcessOutputResponse(ResponseModel):
    """What there is of a process's output by now."""

    process: str
    exit: ProcessOutcomeResponse | None
    stdout: str
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int


class ProcessOutputQuery(QueryModel):
    """Where to go on in a process's output."""

    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset; the oldest that is kept where left out.")
    stderr_from: int | None = Field(default=None, ge=0, description="The same.")
    follow: bool = Field(default=True, description="As events: until it ends; otherwise only what there is by now.")


class ProcessWaitQuery(QueryModel):
    """How long to wait."""

    timeout: float = Field(default=60, ge=0, le=WAIT_MOST_S, description="Seconds at most; 0 only looks.")


class ProcessWaitResponse(ResponseModel):
    """How a process ended, if it has."""

    process: str
    running: bool
    exit: ProcessOutcomeResponse | None


class WriteStdinQuery(QueryModel):
    """Where in its input that belongs."""

    offset: int | None = Field(
        default=None, ge=0, description="Where in the whole input the body begins: what has come there before is not written twice."
    )


class StdinResponse(ResponseModel):
    """What came of a write."""

    stdin_bytes: int = Field(description="What has come for its input so far: the offset of the next write.")


class ProcessResponse(ResponseModel):
    """One process."""

    id: str
    pid: int
    argv: list[str]
    running: bool
    reason: str | None
    fault: Fault | None = Field(description="Cause of a failure; null if the process runs or has exited with 0.")
    exit_code: int | None
    signal: int | None
    duration_s: float = Field(description="Duration so far.")
    pty: bool = Field(description="Whether it runs on a terminal.")
    stdin_open: bool = Field(description="Whether it takes input, still.")
    stdin_bytes: int = Field(description="What has come for its input so far.")
    stdout_bytes: int
    stderr_bytes: int
    tag: str | None = Field(description="As it was started with; not known any more of one that an earlier service started.")
    cwd: str | None = Field(description="Where it was started; null is the default, or not known any more.")
    env: dict[str, str] = Field(description="What was added to its environment when it was started, as far as that is known.")

    @classmethod
    def of(cls, info: ProcessInfo) -> ProcessResponse:
        """What is told of it."""
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
    """Processes that were started through the service."""

    processes: list[ProcessResponse]


class SendSignalRequest(RequestModel):
    """A signal to send."""

    signal: Text | int = Field(description="SIGTERM, TERM or 15.")


class ProcessSignalResponse(ResponseModel):
    """What became of a signal."""

    running: bool = Field(description="Whether the process was still running.")


def changed_files(changed: tuple[Sequence[ChangedFile], bool] | None) -> dict[str, Any]:
    """The fields that tell what a run changed; none where that was not asked for."""
    if changed is None:
        return {}
    files, more = changed
    told = [
        ChangedFileResponse(path=file.path, created=file.created, size_bytes=file.size_bytes, modified_at=_moment(file.modified_ns)) for file in files
    ]
    return {"files": told, "files_more": more}


def _moment(ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


def captured(stdout: OutputCapture, stderr: OutputCapture) -> dict[str, Any]:
    """The fields that tell collected output."""
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
    """A process runs."""

    id: str
    pid: int


class OutputEvent(ResponseModel):
    """A piece of what is written."""

    stream: StreamName
    offset: int = Field(description="Of its first byte, counted from the stream's beginning.")
    encoding: Literal["utf-8", "base64"] = Field(description="How ``data`` carries the bytes; base64 where they are no UTF-8.")
    data: str


class LostEvent(ResponseModel):
    """Output that is no longer kept, because it was read too late."""

    stream: StreamName
    lost_bytes: int


PROCESS_EVENTS: EventTable = {"started": ProcessStartedEvent, "output": OutputEvent, "lost": LostEvent, "exit": ProcessExitEvent, "failure": Problem}

DIGITS = 18

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/processes", tags=["processes"], route_class=SandboxRoute)


@router.post(
    "",
    responses={
        **documented_response(CommandResultResponse, "It ended; with 'Accept: text/event-stream' events as it runs.", events=PROCESS_EVENTS),
        201: {"model": ProcessStartedResponse, "description": "It runs in the background."},
    },
)
async def create(sandbox: str, body: CreateProcessRequest, request: Request) -> Response:
    """Run a process. Unless it is in the background, it is killed when the client goes away."""
    processes, principal, spec = get_node(request).processes, get_principal(request), body.spec()
    stdin = None if body.stdin is None else body.stdin.encode()
    if body.background:
        info = await processes.launch(principal, sandbox, spec, stdin=stdin)
        return json_response(ProcessStartedResponse(id=info.process, pid=info.pid), 201)
    if body.stdin_open and not streaming.accepts_events(request):
        raise InvalidRequestError(
            "Nobody could write to the input of a process whose id is told when it has ended.",
            hint="Ask for events (Accept: text/event-stream) or use background.",
            fields={"field": "stdin_open"},
        )
    track = body.track or ()
    if streaming.accepts_events(request):
        stream = await cancel_on_disconnect(request, processes.stream(principal, sandbox, spec, stdin=stdin, track=track))
        return streaming.event_response(request, told_of(stream), stream.aclose)
    return json_response(
        CommandResultResponse.finished(await cancel_on_disconnect(request, processes.run(principal, sandbox, spec, stdin=stdin, track=track)))
    )


@router.get("", responses=documented_response(ProcessesResponse, "Running ones, and the last ones that ended."))
async def list_processes(sandbox: str, request: Request) -> Response:
    """List the processes that were started through the service."""
    found = await get_node(request).processes.list(get_principal(request), sandbox)
    return json_response(ProcessesResponse(processes=[ProcessResponse.of(info) for info in found]))


@router.get("/{process}", responses=documented_response(ProcessResponse, "What is known of it."))
async def get(sandbox: str, process: str, request: Request) -> Response:
    """Look at one process."""
    return json_response(ProcessResponse.of(await get_node(request).processes.get(get_principal(request), sandbox, process)))


@router.get("/{process}/wait", responses=documented_response(ProcessWaitResponse, "It has ended, or the time is up."))
async def wait(sandbox: str, process: str, query: Annotated[ProcessWaitQuery, Query()], request: Request) -> Response:
    """Wait until a process has ended. None of its output is read."""
    outcome = await cancel_on_disconnect(request, get_node(request).processes.wait(get_principal(request), sandbox, process, timeout_s=query.timeout))
    return json_response(
        ProcessWaitResponse(process=process, running=outcome is None, exit=None if outcome is None else ProcessOutcomeResponse.of(outcome))
    )


@router.get(
    "/{process}/output",
    responses=documented_response(ProcessOutputResponse, "By now; with 'Accept: text/event-stream' events until it ends.", events=PROCESS_EVENTS),
)
async def get_output(sandbox: str, process: str, query: Annotated[ProcessOutputQuery, Query()], request: Request) -> Response:
    """Read, or follow, what a process writes. Nothing happens to it when the client goes away."""
    processes, principal = get_node(request).processes, get_principal(request)
    if streaming.accepts_events(request):
        stdout_from, stderr_from = gone_on(request.headers.get("last-event-id", "")) or (query.stdout_from, query.stderr_from)
        stream = await processes.follow(principal, sandbox, process, stdout_from=stdout_from, stderr_from=stderr_from, to_end=query.follow)
        return streaming.event_response(request, told_of(stream, {Channel.STDOUT: stdout_from or 0, Channel.STDERR: stderr_from or 0}), stream.aclose)
    outcome, stdout, stderr = await processes.read(principal, sandbox, process, stdout_from=query.stdout_from, stderr_from=query.stderr_from)
    return json_response(
        ProcessOutputResponse(process=process, exit=None if outcome is None else ProcessOutcomeResponse.of(outcome), **captured(stdout, stderr))
    )


@router.post("/{process}/stdin", responses=documented_response(StdinResponse, "The sandbox has it."), openapi_extra=raw_body("What to write."))
@streams_body
async def write_stdin(sandbox: str, process: str, query: Annotated[WriteStdinQuery, Query()], request: Request) -> Response:
    """Write the body to a process's standard input; waits while the process does not read. With an offset it can be sent again."""
    work = get_node(request).processes.write_stdin(get_principal(request), sandbox, process, iter_body(request), offset=query.offset)
    return json_response(StdinResponse(stdin_bytes=await cancel_on_hangup(request, work)))


@router.delete("/{process}/stdin", status_code=204, responses=PROBLEM)
async def close_stdin(sandbox: str, process: str, request: Request) -> Response:
    """End a process's standard input."""
    await cancel_on_disconnect(request, get_node(request).processes.close_stdin(get_principal(request), sandbox, process))
    return Response(status_code=204)


@router.post("/{process}/signal", responses=documented_response(ProcessSignalResponse, "It was sent."))
async def send_signal(sandbox: str, process: str, body: SendSignalRequest, request: Request) -> Response:
    """Send a signal to a process's group."""
    running = await get_node(request).processes.signal(get_principal(request), sandbox, process, signal_number(body.signal))
    return json_response(ProcessSignalResponse(running=running))


@router.post("/{process}/restart", status_code=201, responses=documented_response(ProcessStartedResponse, "It runs, under another id.", 201))
async def restart(sandbox: str, process: str, request: Request) -> Response:
    """Start a process again, in the background: it is killed where it still runs, and begins with what it was started with."""
    info = await get_node(request).processes.restart(get_principal(request), sandbox, process)
    return json_response(ProcessStartedResponse(id=info.process, pid=info.pid), 201)


def gone_on(event_id: str) -> tuple[int, int] | None:
    """Where a client of events goes on that was cut off: both streams' offsets after the last event that it saw. Pure.

    Args:
        event_id: What it says that was (HTML standard, 9.2.4); None comes of what is none of ours.
    """
    stdout_from, dash, stderr_from = event_id.partition("-")
    if not dash or not all(each.isascii() and each.isdecimal() and len(each) <= DIGITS for each in (stdout_from, stderr_from)):
        return None
    return int(stdout_from), int(stderr_from)


async def told_of(stream: Stream[ProcessEvent], offsets: Mapping[int, int] | None = None) -> AsyncIterator[streaming.StreamEvent]:
    """The events that tell of a process, to its end."""
    output = streaming.OutputEvents(offsets)
    async for event in stream:
        if isinstance(event, ProcessStarted):
            yield streaming.StreamEvent("started", {"id": event.process, "pid": event.pid})
        elif isinstance(event, ProcessEnded):
            for told in output.end():
                yield told
            ended = ProcessOutcomeResponse.of(event.outcome) if event.files is None else ProcessExitEvent.with_files(event.outcome, event.files)
            yield streaming.StreamEvent("exit", ended.model_dump(mode="json"))
            return
        else:
            for told in output.feed(event):
                yield told
    for told in output.end():
        yield told
