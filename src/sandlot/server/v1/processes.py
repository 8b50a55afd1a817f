"""Processes: run, follow, feed, signal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.model.errors import InvalidRequestError
from sandlot.model.executions import Channel, ProcessEnded, ProcessEvent, ProcessStarted, signal_number
from sandlot.model.streams import Stream
from sandlot.server.v1.common import (
    PROBLEM,
    cancel_on_disconnect,
    cancel_on_hangup,
    documented_response,
    get_node,
    get_principal,
    iter_body,
    json_response,
    raw_body,
)
from sandlot.server.v1.schemas.processes import (
    EndedAnswer,
    ExitedAnswer,
    FinishedAnswer,
    KeptAnswer,
    OutputQuery,
    ProcessAnswer,
    ProcessBody,
    ProcessesAnswer,
    SignalAnswer,
    SignalBody,
    StartedAnswer,
    StdinAnswer,
    StdinQuery,
    WaitAnswer,
    WaitQuery,
    captured,
)
from sandlot.web import streaming

DIGITS = 18

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/processes", tags=["processes"])


@router.post(
    "",
    responses={
        **documented_response(FinishedAnswer, "It ended; with 'Accept: text/event-stream' events as it runs.", events="process"),
        201: {"model": StartedAnswer, "description": "It runs in the background."},
    },
)
async def start(sandbox: str, body: ProcessBody, request: Request) -> Response:
    """Run a process. Unless it is in the background, it is killed when the client goes away."""
    processes, principal, spec = get_node(request).processes, get_principal(request), body.spec()
    stdin = None if body.stdin is None else body.stdin.encode()
    if body.background:
        info = await processes.launch(principal, sandbox, spec, stdin=stdin)
        return json_response(StartedAnswer(process=info.process, pid=info.pid), 201)
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
        FinishedAnswer.finished(await cancel_on_disconnect(request, processes.run(principal, sandbox, spec, stdin=stdin, track=track)))
    )


@router.get("", responses=documented_response(ProcessesAnswer, "Running ones, and the last ones that ended."))
async def list_processes(sandbox: str, request: Request) -> Response:
    """List the processes that were started through the service."""
    found = await get_node(request).processes.list(get_principal(request), sandbox)
    return json_response(ProcessesAnswer(processes=[ProcessAnswer.of(info) for info in found]))


@router.get("/{process}", responses=documented_response(ProcessAnswer, "What is known of it."))
async def get(sandbox: str, process: str, request: Request) -> Response:
    """Look at one process."""
    return json_response(ProcessAnswer.of(await get_node(request).processes.get(get_principal(request), sandbox, process)))


@router.get("/{process}/wait", responses=documented_response(WaitAnswer, "It has ended, or the time is up."))
async def wait(sandbox: str, process: str, query: Annotated[WaitQuery, Query()], request: Request) -> Response:
    """Wait until a process has ended. None of its output is read."""
    outcome = await cancel_on_disconnect(request, get_node(request).processes.wait(get_principal(request), sandbox, process, timeout_s=query.timeout))
    return json_response(WaitAnswer(process=process, running=outcome is None, exit=None if outcome is None else ExitedAnswer.of(outcome)))


@router.get(
    "/{process}/output", responses=documented_response(KeptAnswer, "By now; with 'Accept: text/event-stream' events until it ends.", events="process")
)
async def output(sandbox: str, process: str, query: Annotated[OutputQuery, Query()], request: Request) -> Response:
    """Read, or follow, what a process writes. Nothing happens to it when the client goes away."""
    processes, principal = get_node(request).processes, get_principal(request)
    if streaming.accepts_events(request):
        stdout_from, stderr_from = gone_on(request.headers.get("last-event-id", "")) or (query.stdout_from, query.stderr_from)
        stream = await processes.follow(principal, sandbox, process, stdout_from=stdout_from, stderr_from=stderr_from, to_end=query.follow)
        return streaming.event_response(request, told_of(stream, {Channel.STDOUT: stdout_from or 0, Channel.STDERR: stderr_from or 0}), stream.aclose)
    outcome, stdout, stderr = await processes.read(principal, sandbox, process, stdout_from=query.stdout_from, stderr_from=query.stderr_from)
    return json_response(KeptAnswer(process=process, exit=None if outcome is None else ExitedAnswer.of(outcome), **captured(stdout, stderr)))


@router.post("/{process}/stdin", responses=documented_response(StdinAnswer, "The sandbox has it."), openapi_extra=raw_body("What to write."))
async def write_input(sandbox: str, process: str, query: Annotated[StdinQuery, Query()], request: Request) -> Response:
    """Write the body to a process's standard input; waits while the process does not read. With an offset it can be sent again."""
    work = get_node(request).processes.write_stdin(get_principal(request), sandbox, process, iter_body(request), offset=query.offset)
    return json_response(StdinAnswer(stdin_bytes=await cancel_on_hangup(request, work)))


@router.delete("/{process}/stdin", status_code=204, responses=PROBLEM)
async def close_input(sandbox: str, process: str, request: Request) -> Response:
    """End a process's standard input."""
    await cancel_on_disconnect(request, get_node(request).processes.close_stdin(get_principal(request), sandbox, process))
    return Response(status_code=204)


@router.post("/{process}/signal", responses=documented_response(SignalAnswer, "It was sent."))
async def send_signal(sandbox: str, process: str, body: SignalBody, request: Request) -> Response:
    """Send a signal to a process's group."""
    running = await get_node(request).processes.signal(get_principal(request), sandbox, process, signal_number(body.signal))
    return json_response(SignalAnswer(running=running))


@router.post("/{process}/restart", status_code=201, responses=documented_response(StartedAnswer, "It runs, under another id.", 201))
async def restart(sandbox: str, process: str, request: Request) -> Response:
    """Start a process again, in the background: it is killed where it still runs, and begins with what it was started with."""
    info = await get_node(request).processes.restart(get_principal(request), sandbox, process)
    return json_response(StartedAnswer(process=info.process, pid=info.pid), 201)


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
            yield streaming.StreamEvent("started", {"process": event.process, "pid": event.pid})
        elif isinstance(event, ProcessEnded):
            for told in output.end():
                yield told
            ended = ExitedAnswer.of(event.outcome) if event.files is None else EndedAnswer.with_files(event.outcome, event.files)
            yield streaming.StreamEvent("exit", ended.model_dump(mode="json"))
            return
        else:
            for told in output.feed(event):
                yield told
    for told in output.end():
        yield told
