"""Routes for processes: run, start, list, find, signal, feed and follow them.

Invariants:
- Events are sent as they occur. The last event states how the run ended; a stream without it was cut.
- If several processes have the same pid or name, the running one is selected, or else the latest.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from fastapi import Request, Response
from starlette.requests import HTTPConnection

from sandlot.compat.tensorlake.addressing import RUNTIME, requested_sandbox
from sandlot.compat.tensorlake.runtime import translate
from sandlot.compat.tensorlake.runtime.lines import LineBuffer
from sandlot.compat.tensorlake.runtime.schemas import (
    OutputResponse,
    ProcessListResponse,
    ProcessResponse,
    RunRequest,
    SignalRequest,
    SignalResponse,
    StartProcessRequest,
)
from sandlot.compat.tensorlake.translate import VENDOR
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import ErrorCode, NotFoundError, SandboxEndedError
from sandlot.model.executions import ExecutionOptions, ProcessEnded, ProcessEvent, ProcessInfo, ProcessStarted, signal_number
from sandlot.model.ids import SandboxId
from sandlot.model.ports import ExitReason
from sandlot.model.streams import Stream
from sandlot.web import streaming
from sandlot.web.body_limits import streams_request_body
from sandlot.web.dependencies import cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import json_response

_OPTIONS = ExecutionOptions(origin=VENDOR)
_MAX_LOGGED_RUNS: Final = 200
"""Number of newest runs in the log in which the start times of processes are looked up."""
_SIGKILL: Final = 9


@RUNTIME.route("POST", "/processes/run")
async def run(body: RunRequest, request: Request) -> Response:
    """Run a program to its end and stream its events. The program is killed if the client disconnects."""
    node, principal, sandbox = get_node(request), get_principal(request), await requested_sandbox(request)
    stream = await cancel_on_disconnect(request, node.processes.stream(principal, sandbox, translate.run_spec(body), options=_OPTIONS))
    events = _client_events(stream, node.buffers.of(principal.owner).part(), translate.CHANNELS["output"], with_outcome=True)
    return streaming.event_response(request, events, stream.aclose)


@RUNTIME.route("POST", "/processes")
async def start_process(body: StartProcessRequest, request: Request) -> Response:
    """Start a program in the background."""
    sandbox, spec = await requested_sandbox(request), translate.start_spec(body)
    info = await get_node(request).processes.launch(get_principal(request), sandbox, spec, options=_OPTIONS)
    return json_response(_process_response(info), 201)


@RUNTIME.route("GET", "/processes")
async def list_processes(request: Request) -> Response:
    """List the processes that the service has started: running ones, and the last ones that have ended."""
    node, principal, sandbox = get_node(request), get_principal(request), await requested_sandbox(request)
    processes = await node.processes.list(principal, sandbox)
    logged = (await node.history.executions(principal, sandbox=SandboxId(sandbox), limit=_MAX_LOGGED_RUNS)).items
    started_at = {str(record.id): record.created_at for record in logged}
    return json_response(ProcessListResponse(processes=[_process_response(info, started_at.get(info.process)) for info in processes]))


@RUNTIME.route("GET", "/processes/{process}")
async def get_process(process: str, request: Request) -> Response:
    """Return a process."""
    info = await find(request, await requested_sandbox(request), process)
    started_at: datetime | None = None
    with suppress(NotFoundError):
        started_at = (await get_node(request).history.execution(get_principal(request), info.process)).created_at
    return json_response(_process_response(info, started_at))


@RUNTIME.route("DELETE", "/processes/{process}")
async def kill_process(process: str, request: Request) -> Response:
    """Kill a process and its children."""
    sandbox = await requested_sandbox(request)
    info = await find(request, sandbox, process)
    await get_node(request).processes.signal(get_principal(request), sandbox, info.process, _SIGKILL)
    return Response(status_code=204)


@RUNTIME.route("POST", "/processes/{process}/restart")
async def restart_process(process: str, request: Request) -> Response:
    """Kill a process if it is running, and start its program again, with another pid."""
    sandbox = await requested_sandbox(request)
    info = await find(request, sandbox, process)
    restarted = await get_node(request).processes.restart(get_principal(request), sandbox, info.process, options=_OPTIONS)
    return json_response(_process_response(restarted))


@RUNTIME.route("POST", "/processes/{process}/signal")
async def send_signal(process: str, body: SignalRequest, request: Request) -> Response:
    """Send a signal to the group of a process."""
    sandbox, number = await requested_sandbox(request), signal_number(body.signal)
    info = await find(request, sandbox, process)
    success = await get_node(request).processes.signal(get_principal(request), sandbox, info.process, number)
    return json_response(SignalResponse(success=success))


@RUNTIME.route("POST", "/processes/{process}/stdin")
@streams_request_body
async def write_stdin(process: str, request: Request) -> Response:
    """Write the body to the standard input of a process, and wait until the process has read enough."""
    sandbox = await requested_sandbox(request)
    info = await find(request, sandbox, process)
    writing = get_node(request).processes.write_stdin(get_principal(request), sandbox, info.process, iter_body(request))
    await cancel_on_hangup(request, writing)
    return Response(status_code=204)


@RUNTIME.route("POST", "/processes/{process}/stdin/close")
async def close_stdin(process: str, request: Request) -> Response:
    """Close the standard input of a process."""
    sandbox = await requested_sandbox(request)
    info = await find(request, sandbox, process)
    await cancel_on_disconnect(request, get_node(request).processes.close_stdin(get_principal(request), sandbox, info.process))
    return Response(status_code=204)


def _add_output_routes(output: str) -> None:
    """Add the routes that return the present output of a process, and that stream its output from the beginning.

    Args:
        output: Last segment of the path; a key of :data:`translate.CHANNELS`.
    """

    @RUNTIME.route("GET", f"/processes/{{process}}/{output}")
    async def read_output(process: str, request: Request) -> Response:
        return await cancel_on_disconnect(request, _read_output(request, process, output))

    @RUNTIME.route("GET", f"/processes/{{process}}/{output}/follow")
    async def follow_output(process: str, request: Request) -> Response:
        return await _follow_output(request, process, output)


for _output in translate.CHANNELS:
    _add_output_routes(_output)


async def find(request: HTTPConnection, sandbox: str, selector: str) -> ProcessInfo:
    """Return a process by its pid, name or id.

    Raises:
        NotFoundError: There is no such process (code ``process_not_found``).
    """
    pid = translate.parse_pid(selector)
    known = await get_node(request).processes.list(get_principal(request), sandbox)
    matches = [info for info in known if (info.pid == pid if pid is not None else selector in {info.tag, info.process})]
    if not matches:
        raise NotFoundError(
            f"There is no process {selector[:64]!r} in sandbox {sandbox}.",
            code=ErrorCode.PROCESS_NOT_FOUND,
            hint="List the processes; the list includes the last ones that have ended.",
            fields={"process": selector[:64]},
        )
    return next((info for info in matches if info.running), matches[-1])


async def _read_output(request: Request, process: str, output: str) -> Response:
    node, principal, sandbox = get_node(request), get_principal(request), await requested_sandbox(request)
    info = await find(request, sandbox, process)
    stream = await node.processes.follow(principal, sandbox, info.process, to_end=False)
    buffers = node.buffers.of(principal.owner).part()
    buffer, lines = LineBuffer(buffers), list[str]()
    counted_bytes = 0
    try:
        async for event in stream:
            if isinstance(event, ProcessStarted | ProcessEnded) or event.channel not in translate.CHANNELS[output]:
                continue
            more = [line for _, line in buffer.add(event)]
            size_bytes = 2 * sum(map(len, more))
            buffers.take(size_bytes)
            counted_bytes += size_bytes
            lines += more
        lines += [line for _, line in buffer.end()]
    finally:
        buffers.give(counted_bytes)
        buffer.close()
        await stream.aclose()
    return json_response(OutputResponse(pid=info.pid, lines=lines, line_count=len(lines)))


async def _follow_output(request: Request, process: str, output: str) -> Response:
    node, principal, sandbox = get_node(request), get_principal(request), await requested_sandbox(request)
    info = await find(request, sandbox, process)
    stream = await node.processes.follow(principal, sandbox, info.process)
    events = _client_events(stream, node.buffers.of(principal.owner).part(), translate.CHANNELS[output], with_outcome=False)
    return streaming.event_response(request, events, stream.aclose)


async def _client_events(
    stream: Stream[ProcessEvent], buffers: BufferBudget, channels: frozenset[int], *, with_outcome: bool
) -> AsyncIterator[streaming.StreamEvent]:
    """Yield the events of a process in the format of the client.

    Args:
        stream: Events of the process.
        buffers: Budget for the memory of incomplete lines.
        channels: Channels whose output is sent.
        with_outcome: True to send start and end of the process too.
    """
    buffer = LineBuffer(buffers)
    try:
        async for event in stream:
            for client_event in _translate_event(event, buffer, channels, with_outcome=with_outcome):
                yield client_event
    except SandboxEndedError as error:
        if not with_outcome or error.fields.get("reason") != ExitReason.OOM:
            raise
        for line in buffer.end():
            yield _line_event(*line)
        yield streaming.StreamEvent("exit", translate.OUT_OF_MEMORY)
    finally:
        buffer.close()


def _translate_event(event: ProcessEvent, buffer: LineBuffer, channels: frozenset[int], *, with_outcome: bool) -> list[streaming.StreamEvent]:
    match event:
        case ProcessStarted():
            return [streaming.StreamEvent("started", {"pid": event.pid, "started_at": time.time()})] if with_outcome else []
        case ProcessEnded():
            rest = [_line_event(*line) for line in buffer.end()]
            return [*rest, streaming.StreamEvent("exit", translate.ended(event.outcome))] if with_outcome else rest
        case _:
            return [_line_event(*line) for line in buffer.add(event)] if event.channel in channels else []


def _line_event(channel: int, text: str) -> streaming.StreamEvent:
    return streaming.StreamEvent("line", {"line": text, "timestamp": time.time(), "stream": translate.STREAMS[channel]})


def _process_response(info: ProcessInfo, logged_at: datetime | None = None) -> ProcessResponse:
    return translate.process_response(info, logged_at, datetime.now(UTC))
