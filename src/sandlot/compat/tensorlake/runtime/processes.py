"""Processes: run and followed, started and left, found again by pid or name, fed, signalled.

Laws:
- Events are told as they come; the last one says how the run ended. A stream without it was cut.
- Of two processes of one pid or name, the one that runs is meant, and else the later one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime

from fastapi import Request, Response
from starlette.requests import HTTPConnection

from sandlot.compat.tensorlake.addressing import INSIDE, inside
from sandlot.compat.tensorlake.runtime import translate
from sandlot.compat.tensorlake.runtime.lines import Lines
from sandlot.compat.tensorlake.runtime.schemas import OutputAnswer, ProcessAnswer, ProcessBody, ProcessesAnswer, RunBody, SignalAnswer, SignalBody
from sandlot.compat.tensorlake.translate import NAME
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import ErrorCode, NotFoundError, SandboxEndedError
from sandlot.model.executions import ExecutionOptions, ProcessEnded, ProcessEvent, ProcessInfo, ProcessStarted, signal_number
from sandlot.model.ids import SandboxId
from sandlot.model.ports import ExitReason
from sandlot.model.streams import Stream
from sandlot.web import streaming
from sandlot.web.body_limits import streams_body
from sandlot.web.dependencies import cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import json_response

STDIN = "/processes/{process}/stdin"
_LABEL = ExecutionOptions(origin=NAME)
_LOOKED_BACK = 200
"""Runs of the log among which it is looked for when processes were started."""
_SIGKILL = 9


@INSIDE.route("POST", "/processes/run")
async def run(body: RunBody, request: Request) -> Response:
    """Run a program to its end, and tell what it writes as it comes. It is killed when its client goes away."""
    node, principal, sandbox = get_node(request), get_principal(request), await inside(request)
    stream = await cancel_on_disconnect(request, node.processes.stream(principal, sandbox, translate.run(body), options=_LABEL))
    return streaming.event_response(request, _told(stream, node.buffers.part(), translate.CHANNELS["output"], whole=True), stream.aclose)


@INSIDE.route("POST", "/processes")
async def start(body: ProcessBody, request: Request) -> Response:
    """Start a program and leave it."""
    sandbox, spec = await inside(request), translate.start(body)
    return json_response(_answer(await get_node(request).processes.launch(get_principal(request), sandbox, spec, options=_LABEL)), 201)


@INSIDE.route("GET", "/processes")
async def list_processes(request: Request) -> Response:
    """The processes that were started through the service: running ones, and the last ones that ended."""
    node, principal, sandbox = get_node(request), get_principal(request), await inside(request)
    found = await node.processes.list(principal, sandbox)
    logged = (await node.history.executions(principal, sandbox=SandboxId(sandbox), limit=_LOOKED_BACK)).items
    began = {str(record.id): record.created_at for record in logged}
    return json_response(ProcessesAnswer(processes=[_answer(info, began.get(info.process)) for info in found]))


@INSIDE.route("GET", "/processes/{process}")
async def get(process: str, request: Request) -> Response:
    """Look at one process."""
    info = await find(request, await inside(request), process)
    began: datetime | None = None
    with suppress(NotFoundError):
        began = (await get_node(request).history.execution(get_principal(request), info.process)).created_at
    return json_response(_answer(info, began))


@INSIDE.route("DELETE", "/processes/{process}")
async def kill(process: str, request: Request) -> Response:
    """Kill a process and those that it began."""
    sandbox = await inside(request)
    info = await find(request, sandbox, process)
    await get_node(request).processes.signal(get_principal(request), sandbox, info.process, _SIGKILL)
    return Response(status_code=204)


@INSIDE.route("POST", "/processes/{process}/restart")
async def restart(process: str, request: Request) -> Response:
    """Start a process again: it is killed where it still runs, and has another pid then."""
    sandbox = await inside(request)
    info = await find(request, sandbox, process)
    return json_response(_answer(await get_node(request).processes.restart(get_principal(request), sandbox, info.process, options=_LABEL)))


@INSIDE.route("POST", "/processes/{process}/signal")
async def send_signal(process: str, body: SignalBody, request: Request) -> Response:
    """Send a signal to a process's group."""
    sandbox, number = await inside(request), signal_number(body.signal)
    info = await find(request, sandbox, process)
    return json_response(SignalAnswer(success=await get_node(request).processes.signal(get_principal(request), sandbox, info.process, number)))


@INSIDE.route("POST", STDIN)
@streams_body
async def write_input(process: str, request: Request) -> Response:
    """Write the body to a process's standard input; waits while the process does not read."""
    sandbox = await inside(request)
    info = await find(request, sandbox, process)
    work = get_node(request).processes.write_stdin(get_principal(request), sandbox, info.process, iter_body(request))
    await cancel_on_hangup(request, work)
    return Response(status_code=204)


@INSIDE.route("POST", "/processes/{process}/stdin/close")
async def close_input(process: str, request: Request) -> Response:
    """End a process's standard input."""
    sandbox = await inside(request)
    info = await find(request, sandbox, process)
    await cancel_on_disconnect(request, get_node(request).processes.close_stdin(get_principal(request), sandbox, info.process))
    return Response(status_code=204)


def _reading(which: str) -> None:
    """The two ways to what a process writes: what there is by now, and events from the beginning until it ends.

    Args:
        which: The last word of their path: a key of :data:`translate.CHANNELS`.
    """

    @INSIDE.route("GET", f"/processes/{{process}}/{which}")
    async def written(process: str, request: Request) -> Response:
        return await cancel_on_disconnect(request, _output(request, process, which))

    @INSIDE.route("GET", f"/processes/{{process}}/{which}/follow")
    async def followed(process: str, request: Request) -> Response:
        return await _follow(request, process, which)


for _which in translate.CHANNELS:
    _reading(_which)


async def find(request: HTTPConnection, sandbox: str, word: str) -> ProcessInfo:
    """A process by its pid, its name or its id.

    Raises:
        NotFoundError: ``process_not_found``.
    """
    pid = translate.pid_of(word)
    known = await get_node(request).processes.list(get_principal(request), sandbox)
    found = [info for info in known if (info.pid == pid if pid is not None else word in {info.tag, info.process})]
    if not found:
        raise NotFoundError(
            f"There is no process {word[:64]!r} in sandbox {sandbox}.",
            code=ErrorCode.PROCESS_NOT_FOUND,
            hint="List those that were started; the last ones that ended are among them.",
            fields={"process": word[:64]},
        )
    return next((info for info in found if info.running), found[-1])


async def _output(request: Request, word: str, which: str) -> Response:
    node, principal, sandbox = get_node(request), get_principal(request), await inside(request)
    info = await find(request, sandbox, word)
    stream = await node.processes.follow(principal, sandbox, info.process, to_end=False)
    buffers = node.buffers.part()
    lines, told = Lines(buffers), list[str]()
    taken = 0
    try:
        async for event in stream:
            if isinstance(event, ProcessStarted | ProcessEnded) or event.channel not in translate.CHANNELS[which]:
                continue
            more = [line for _, line in lines.add(event)]
            size = 2 * sum(map(len, more))
            buffers.take(size)
            taken += size
            told += more
        told += [line for _, line in lines.end()]
    finally:
        buffers.give(taken)
        lines.close()
        await stream.aclose()
    return json_response(OutputAnswer(pid=info.pid, lines=told, line_count=len(told)))


async def _follow(request: Request, word: str, which: str) -> Response:
    node, principal, sandbox = get_node(request), get_principal(request), await inside(request)
    info = await find(request, sandbox, word)
    stream = await node.processes.follow(principal, sandbox, info.process)
    return streaming.event_response(request, _told(stream, node.buffers.part(), translate.CHANNELS[which], whole=False), stream.aclose)


async def _told(
    stream: Stream[ProcessEvent], buffers: BufferBudget, channels: frozenset[int], *, whole: bool
) -> AsyncIterator[streaming.StreamEvent]:
    """The events that tell of a process, to its end.

    Args:
        stream: Of the process.
        buffers: Where the memory for what waits for the end of its line is taken from.
        channels: Those of which is told.
        whole: Whether it is told how it began and ended as well.
    """
    lines = Lines(buffers)
    try:
        async for event in stream:
            for each in _events(event, lines, channels, whole=whole):
                yield each
    except SandboxEndedError as error:
        if not whole or error.fields.get("reason") != ExitReason.OOM:
            raise
        for line in lines.end():
            yield _line(*line)
        yield streaming.StreamEvent("exit", translate.OUT_OF_MEMORY)
    finally:
        lines.close()


def _events(event: ProcessEvent, lines: Lines, channels: frozenset[int], *, whole: bool) -> list[streaming.StreamEvent]:
    """What one event of a process is told as."""
    match event:
        case ProcessStarted():
            return [streaming.StreamEvent("started", {"pid": event.pid, "started_at": time.time()})] if whole else []
        case ProcessEnded():
            rest = [_line(*line) for line in lines.end()]
            return [*rest, streaming.StreamEvent("exit", translate.ended(event.outcome))] if whole else rest
        case _:
            return [_line(*line) for line in lines.add(event)] if event.channel in channels else []


def _line(channel: int, text: str) -> streaming.StreamEvent:
    return streaming.StreamEvent("line", {"line": text, "timestamp": time.time(), "stream": translate.STREAMS[channel]})


def _answer(info: ProcessInfo, logged_at: datetime | None = None) -> ProcessAnswer:
    return translate.process(info, logged_at, datetime.now(UTC))
