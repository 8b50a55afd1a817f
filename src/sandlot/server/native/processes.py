"""Processes: run, follow, feed, signal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.core.runs import inputs, processes
from sandlot.core.runs.processes import Run
from sandlot.model.errors import InvalidRequestError
from sandlot.server.native.common import PROBLEM, also, body_of, raw_body, reply, sandbox_of, unless_gone
from sandlot.server.native.schemas.processes import (
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
    captured,
)
from sandlot.web import streams

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
    box = sandbox_of(request, sandbox)
    spec = body.spec()
    stdin = None if body.stdin is None else body.stdin.encode()
    if body.background:
        id_, pid = await processes.launch(box, spec, stdin=stdin)
        return reply(StartedAnswer(process=id_, pid=pid), 201)
    if streams.wanted(request):
        run = await unless_gone(request, processes.start(box, spec, stdin=stdin))
        return streams.events(request, _told(run), run.close)
    if body.stdin_open:
        raise InvalidRequestError(
            "Nobody could write to the input of a process whose id is told when it has ended.",
            hint="Ask for events (Accept: text/event-stream) or use background.",
            fields={"field": "stdin_open"},
        )
    return reply(FinishedAnswer.finished(await unless_gone(request, processes.run(box, spec, stdin=stdin))))


@router.get("", responses=also(ProcessesAnswer, "Running ones, and the last ones that ended."))
async def list_processes(sandbox: str, request: Request) -> Response:
    """List the processes that were started through the service."""
    return reply(ProcessesAnswer(processes=[ProcessAnswer.of(info) for info in await processes.listing(sandbox_of(request, sandbox))]))


@router.get("/{process}/output", responses=also(KeptAnswer, "By now; with 'Accept: text/event-stream' events until it ends.", events="process"))
async def output(sandbox: str, process: str, query: Annotated[OutputQuery, Query()], request: Request) -> Response:
    """Read, or follow, what a process writes. Nothing happens to it when the client goes away."""
    box = sandbox_of(request, sandbox)
    if streams.wanted(request):
        run = await processes.follow(box, process, stdout_from=query.stdout_from, stderr_from=query.stderr_from, to_end=query.follow)
        return streams.events(request, _told(run), run.detach)
    outcome, stdout, stderr = await processes.kept(box, process, stdout_from=query.stdout_from, stderr_from=query.stderr_from)
    return reply(KeptAnswer(process=process, exit=None if outcome is None else ExitedAnswer.of(outcome), **captured(stdout, stderr)))


@router.post("/{process}/stdin", status_code=204, responses=PROBLEM, openapi_extra=raw_body("What to write."))
async def write_input(sandbox: str, process: str, request: Request) -> Response:
    """Write the body to a process's standard input; waits while the process does not read."""
    await inputs.write(sandbox_of(request, sandbox), process, body_of(request))
    return Response(status_code=204)


@router.delete("/{process}/stdin", status_code=204, responses=PROBLEM)
async def close_input(sandbox: str, process: str, request: Request) -> Response:
    """End a process's standard input."""
    await inputs.close(sandbox_of(request, sandbox), process)
    return Response(status_code=204)


@router.post("/{process}/signal", responses=also(SignalAnswer, "It was sent."))
async def send_signal(sandbox: str, process: str, body: SignalBody, request: Request) -> Response:
    """Send a signal to a process's group."""
    running = await processes.send_signal(sandbox_of(request, sandbox), process, processes.signal_number(body.signal))
    return reply(SignalAnswer(running=running))


async def _told(run: Run) -> AsyncIterator[bytes]:
    yield streams.event("started", {"process": run.id, "pid": run.pid})
    output = streams.OutputEvents()
    async for item in run:
        for told in output.tell(item):
            yield told
    for told in output.end():
        yield told
    if not run.running:
        yield streams.event("exit", ExitedAnswer.of(await run.outcome()).model_dump())
