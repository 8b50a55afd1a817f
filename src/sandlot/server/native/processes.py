"""Processes: run, follow, feed, signal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.core.execution.processes import ProcessExecution
from sandlot.core.files import changes
from sandlot.core.files.changes import ChangeTracker
from sandlot.core.records.execution_log import ExecutionLog
from sandlot.model.errors import InvalidRequestError
from sandlot.model.executions import Channel, signal_number
from sandlot.server.native.common import PROBLEM, also, body_of, node_of, raw_body, reply, sandbox_of, unless_gone, while_connected
from sandlot.server.native.schemas.processes import (
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
from sandlot.web import streams

DIGITS = 18

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/processes", tags=["processes"])


@router.post(
    "",
    responses={
        **also(FinishedAnswer, "It ended; with 'Accept: text/event-stream' events as it runs.", events="process"),
        201: {"model": StartedAnswer, "description": "It runs in the background."},
    },
)
async def start(sandbox: str, body: ProcessBody, request: Request) -> Response:
    """Run a process. Unless it is in the background, it is killed when the client goes away."""
    node, box = node_of(request), sandbox_of(request, sandbox)
    spec = body.spec()
    stdin = None if body.stdin is None else body.stdin.encode()
    if body.background:
        id_, pid = await node.processes.launch(box, spec, stdin=stdin)
        return reply(StartedAnswer(process=id_, pid=pid), 201)
    if body.stdin_open and not streams.wanted(request):
        raise InvalidRequestError(
            "Nobody could write to the input of a process whose id is told when it has ended.",
            hint="Ask for events (Accept: text/event-stream) or use background.",
            fields={"field": "stdin_open"},
        )
    tracker = None if body.track is None else await unless_gone(request, changes.track(box, body.track, spec.user))
    try:
        if streams.wanted(request):
            run = await unless_gone(request, node.processes.start(box, spec, stdin=stdin))
            streamed, tracker = tracker, None
            return streams.events(request, told_of(run, tracker=streamed, execution_log=node.executions), lambda: _closed(run, streamed))
        done = await unless_gone(request, node.processes.run(box, spec, stdin=stdin))
        changed = None if tracker is None else await unless_gone(request, tracker.report())
        if changed is not None:
            node.executions.set_files(done.outcome.process, len(changed[0]))
        return reply(FinishedAnswer.finished(done, changed))
    finally:
        if tracker is not None:
            tracker.close()


@router.get("", responses=also(ProcessesAnswer, "Running ones, and the last ones that ended."))
async def list_processes(sandbox: str, request: Request) -> Response:
    """List the processes that were started through the service."""
    processes, box = node_of(request).processes, sandbox_of(request, sandbox)
    return reply(ProcessesAnswer(processes=[ProcessAnswer.of(info, processes.details(box, info.process)) for info in await processes.list(box)]))


@router.get("/{process}", responses=also(ProcessAnswer, "What is known of it."))
async def get(sandbox: str, process: str, request: Request) -> Response:
    """Look at one process."""
    processes, box = node_of(request).processes, sandbox_of(request, sandbox)
    return reply(ProcessAnswer.of(info := await processes.get(box, process), processes.details(box, info.process)))


@router.get("/{process}/wait", responses=also(WaitAnswer, "It has ended, or the time is up."))
async def wait(sandbox: str, process: str, query: Annotated[WaitQuery, Query()], request: Request) -> Response:
    """Wait until a process has ended. None of its output is read."""
    outcome = await unless_gone(request, node_of(request).processes.wait(sandbox_of(request, sandbox), process, query.timeout))
    return reply(WaitAnswer(process=process, running=outcome is None, exit=None if outcome is None else ExitedAnswer.of(outcome)))


@router.get("/{process}/output", responses=also(KeptAnswer, "By now; with 'Accept: text/event-stream' events until it ends.", events="process"))
async def output(sandbox: str, process: str, query: Annotated[OutputQuery, Query()], request: Request) -> Response:
    """Read, or follow, what a process writes. Nothing happens to it when the client goes away."""
    processes, box = node_of(request).processes, sandbox_of(request, sandbox)
    if streams.wanted(request):
        stdout_from, stderr_from = gone_on(request.headers.get("last-event-id", "")) or (query.stdout_from, query.stderr_from)
        run = await processes.follow(box, process, stdout_from=stdout_from, stderr_from=stderr_from, to_end=query.follow)
        return streams.events(request, told_of(run, {Channel.STDOUT: stdout_from or 0, Channel.STDERR: stderr_from or 0}), run.detach)
    outcome, stdout, stderr = await processes.read(box, process, stdout_from=query.stdout_from, stderr_from=query.stderr_from)
    return reply(KeptAnswer(process=process, exit=None if outcome is None else ExitedAnswer.of(outcome), **captured(stdout, stderr)))


@router.post("/{process}/stdin", responses=also(StdinAnswer, "The sandbox has it."), openapi_extra=raw_body("What to write."))
async def write_input(sandbox: str, process: str, query: Annotated[StdinQuery, Query()], request: Request) -> Response:
    """Write the body to a process's standard input; waits while the process does not read. With an offset it can be sent again."""
    work = node_of(request).stdin.write(sandbox_of(request, sandbox), process, body_of(request), offset=query.offset)
    return reply(StdinAnswer(stdin_bytes=await while_connected(request, work)))


@router.delete("/{process}/stdin", status_code=204, responses=PROBLEM)
async def close_input(sandbox: str, process: str, request: Request) -> Response:
    """End a process's standard input."""
    await unless_gone(request, node_of(request).stdin.close(sandbox_of(request, sandbox), process))
    return Response(status_code=204)


@router.post("/{process}/signal", responses=also(SignalAnswer, "It was sent."))
async def send_signal(sandbox: str, process: str, body: SignalBody, request: Request) -> Response:
    """Send a signal to a process's group."""
    running = await node_of(request).processes.signal(sandbox_of(request, sandbox), process, signal_number(body.signal))
    return reply(SignalAnswer(running=running))


@router.post("/{process}/restart", status_code=201, responses=also(StartedAnswer, "It runs, under another id.", 201))
async def restart(sandbox: str, process: str, request: Request) -> Response:
    """Start a process again, in the background: it is killed where it still runs, and begins with what it was started with."""
    id_, pid = await node_of(request).processes.restart(sandbox_of(request, sandbox), process)
    return reply(StartedAnswer(process=id_, pid=pid), 201)


def gone_on(event_id: str) -> tuple[int, int] | None:
    """Where a client of events goes on that was cut off: both streams' offsets after the last event that it saw. Pure.

    Args:
        event_id: What it says that was (HTML standard, 9.2.4); None comes of what is none of ours.
    """
    stdout_from, dash, stderr_from = event_id.partition("-")
    if not dash or not all(each.isascii() and each.isdecimal() and len(each) <= DIGITS for each in (stdout_from, stderr_from)):
        return None
    return int(stdout_from), int(stderr_from)


async def told_of(
    run: ProcessExecution,
    offsets: Mapping[int, int] | None = None,
    *,
    tracker: ChangeTracker | None = None,
    execution_log: ExecutionLog | None = None,
) -> AsyncIterator[streams.Event]:
    """The events that tell of a process, to its end."""
    yield streams.event("started", {"process": run.id, "pid": run.pid})
    output = streams.OutputEvents(offsets)
    async for item in run:
        for told in output.tell(item):
            yield told
    for told in output.end():
        yield told
    if not run.is_running:
        outcome = await run.outcome()
        changed = None if tracker is None else await tracker.report()
        if changed is not None and execution_log is not None:
            execution_log.set_files(outcome.process, len(changed[0]))
        ended = ExitedAnswer.of(outcome) if changed is None else EndedAnswer.with_files(outcome, changed)
        yield streams.event("exit", ended.model_dump(mode="json"))


async def _closed(run: ProcessExecution, tracker: ChangeTracker | None) -> None:
    if tracker is not None:
        tracker.close()
    await run.close()
