"""Processes: run and followed, started and left, found again by pid or name, fed, signalled.

Laws:
- Events are told as they come; the last one says how the run ended. A stream without it was cut.
- Of two processes of one pid or name, the one that runs is meant, and else the later one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime

from fastapi import Request, Response

from sandlot.core.execution.processes import ProcessExecution, ProcessService
from sandlot.core.sandbox import Sandbox
from sandlot.doors.tensorlake.inside import translate
from sandlot.doors.tensorlake.inside.lines import Lines
from sandlot.doors.tensorlake.inside.wire import (
    OutputAnswer,
    ProcessAnswer,
    ProcessBody,
    ProcessesAnswer,
    RunBody,
    SignalAnswer,
    SignalBody,
)
from sandlot.doors.tensorlake.translate import NAME
from sandlot.doors.tensorlake.ways import INSIDE, inside
from sandlot.model.errors import ErrorCode, NotFoundError, SandboxEndedError
from sandlot.model.executions import ExecutionOptions, ProcessInfo, signal_number
from sandlot.model.ports import ExitReason
from sandlot.web import streams
from sandlot.web.asking import body_of, node_of, principal_of, unless_gone, while_connected
from sandlot.web.bodies import reply

STDIN = "/processes/{process}/stdin"
_LABEL = ExecutionOptions(origin=NAME)
_LOOKED_BACK = 200
"""Runs of the log among which it is looked for when processes were started."""
_SIGKILL = 9


@INSIDE.route("POST", "/processes/run")
async def run(body: RunBody, request: Request) -> Response:
    """Run a program to its end, and tell what it writes as it comes. It is killed when its client goes away."""
    sandbox = inside(request)
    process = await unless_gone(request, node_of(request).processes.start(sandbox, translate.run(body), options=_LABEL))
    return streams.events(request, _told(sandbox, process, translate.CHANNELS["output"], whole=True), process.close)


@INSIDE.route("POST", "/processes")
async def start(body: ProcessBody, request: Request) -> Response:
    """Start a program and leave it."""
    processes, sandbox, spec = node_of(request).processes, inside(request), translate.start(body)
    id_, _ = await processes.launch_in(sandbox, spec, options=_LABEL)
    return reply(_answer(request, await processes.get_in(sandbox, id_), node_of(request).clock.now()), 201)


@INSIDE.route("GET", "/processes")
async def list_processes(request: Request) -> Response:
    """The processes that were started through the service: running ones, and the last ones that ended."""
    sandbox = inside(request)
    found = await node_of(request).processes.list_in(sandbox)
    logged = (await node_of(request).history.executions(principal_of(request), sandbox=sandbox.id, limit=_LOOKED_BACK)).items
    began = {str(record.id): record.created_at for record in logged}
    return reply(ProcessesAnswer(processes=[_answer(request, info, began.get(info.process)) for info in found]))


@INSIDE.route("GET", "/processes/{process}")
async def get(process: str, request: Request) -> Response:
    """Look at one process."""
    sandbox = inside(request)
    info = await find(node_of(request).processes, sandbox, process)
    began: datetime | None = None
    with suppress(NotFoundError):
        began = (await node_of(request).history.execution(principal_of(request), info.process)).created_at
    return reply(_answer(request, info, began))


@INSIDE.route("DELETE", "/processes/{process}")
async def kill(process: str, request: Request) -> Response:
    """Kill a process and those that it began."""
    processes, sandbox = node_of(request).processes, inside(request)
    await processes.signal_in(sandbox, (await find(processes, sandbox, process)).process, _SIGKILL)
    return Response(status_code=204)


@INSIDE.route("POST", "/processes/{process}/restart")
async def restart(process: str, request: Request) -> Response:
    """Start a process again: it is killed where it still runs, and has another pid then."""
    processes, sandbox = node_of(request).processes, inside(request)
    found = await find(processes, sandbox, process)
    id_ = (await processes.restart(principal_of(request), sandbox.id, found.process, options=_LABEL)).process
    return reply(_answer(request, await processes.get_in(sandbox, id_), node_of(request).clock.now()))


@INSIDE.route("POST", "/processes/{process}/signal")
async def send_signal(process: str, body: SignalBody, request: Request) -> Response:
    """Send a signal to a process's group."""
    processes, sandbox, number = node_of(request).processes, inside(request), signal_number(body.signal)
    return reply(SignalAnswer(success=await processes.signal_in(sandbox, (await find(processes, sandbox, process)).process, number)))


@INSIDE.route("POST", STDIN)
async def write_input(process: str, request: Request) -> Response:
    """Write the body to a process's standard input; waits while the process does not read."""
    node, sandbox = node_of(request), inside(request)
    await while_connected(request, node.stdin.write(sandbox, (await find(node.processes, sandbox, process)).process, body_of(request)))
    return Response(status_code=204)


@INSIDE.route("POST", "/processes/{process}/stdin/close")
async def close_input(process: str, request: Request) -> Response:
    """End a process's standard input."""
    node, sandbox = node_of(request), inside(request)
    await unless_gone(request, node.stdin.close(sandbox, (await find(node.processes, sandbox, process)).process))
    return Response(status_code=204)


def _reading(which: str) -> None:
    """The two ways to what a process writes: what there is by now, and events from the beginning until it ends.

    Args:
        which: The last word of their path: a key of :data:`translate.CHANNELS`.
    """

    @INSIDE.route("GET", f"/processes/{{process}}/{which}")
    async def written(process: str, request: Request) -> Response:
        return await _output(request, process, which)

    @INSIDE.route("GET", f"/processes/{{process}}/{which}/follow")
    async def followed(process: str, request: Request) -> Response:
        return await _follow(request, process, which)


for _which in translate.CHANNELS:
    _reading(_which)


async def find(processes: ProcessService, sandbox: Sandbox, word: str) -> ProcessInfo:
    """A process by its pid, its name or its id.

    Raises:
        NotFoundError: ``process_not_found``.
    """
    pid = translate.pid_of(word)
    known = await processes.list_in(sandbox)
    found = [info for info in known if (info.pid == pid if pid is not None else word in {info.tag, info.process})]
    if not found:
        raise NotFoundError(
            f"There is no process {word[:64]!r} in sandbox {sandbox.id}.",
            code=ErrorCode.PROCESS_NOT_FOUND,
            hint="List those that were started; the last ones that ended are among them.",
            fields={"process": word[:64]},
        )
    return next((info for info in found if info.running), found[-1])


async def _output(request: Request, word: str, which: str) -> Response:
    processes, sandbox = node_of(request).processes, inside(request)
    info = await find(processes, sandbox, word)
    process = await processes.follow_in(sandbox, info.process, stdout_from=None, stderr_from=None, to_end=False)
    lines, told = Lines(sandbox.buffers), list[str]()
    taken = 0
    try:
        async with sandbox.connection():
            async for item in process:
                if item.channel not in translate.CHANNELS[which]:
                    continue
                more = [line for _, line in lines.add(item)]
                size = 2 * sum(map(len, more))
                sandbox.buffers.take(size)
                taken += size
                told += more
        told += [line for _, line in lines.end()]
    finally:
        sandbox.buffers.give(taken)
        lines.close()
        await process.detach()
    return reply(OutputAnswer(pid=info.pid, lines=told, line_count=len(told)))


async def _follow(request: Request, word: str, which: str) -> Response:
    processes, sandbox = node_of(request).processes, inside(request)
    info = await find(processes, sandbox, word)
    process = await processes.follow_in(sandbox, info.process, stdout_from=None, stderr_from=None)
    return streams.events(request, _told(sandbox, process, translate.CHANNELS[which], whole=False), process.detach)


async def _told(
    sandbox: Sandbox, process: ProcessExecution, channels: Sequence[int] | frozenset[int], *, whole: bool
) -> AsyncIterator[streams.Event]:
    """The events that tell of a process, to its end.

    Args:
        sandbox: Where it runs.
        process: It.
        channels: Those of which is told.
        whole: Whether it is told how it began and ended as well.
    """
    lines = Lines(sandbox.buffers)
    try:
        if whole:
            yield streams.event("started", {"pid": process.pid, "started_at": time.time()})
        async for item in process:
            if item.channel in channels:
                for each in lines.add(item):
                    yield _line(*each)
        for each in lines.end():
            yield _line(*each)
        outcome = await process.outcome()
        if whole:
            yield streams.event("exit", translate.ended(outcome))
    except SandboxEndedError as error:
        if not whole or error.fields.get("reason") != ExitReason.OOM:
            raise
        for each in lines.end():
            yield _line(*each)
        yield streams.event("exit", translate.OUT_OF_MEMORY)
    finally:
        lines.close()


def _line(channel: int, text: str) -> streams.Event:
    return streams.event("line", {"line": text, "timestamp": time.time(), "stream": translate.STREAMS[channel]})


def _answer(request: Request, info: ProcessInfo, began_at: datetime | None) -> ProcessAnswer:
    return translate.process(info, began_at, node_of(request).clock.now())
