"""A terminal over a WebSocket: bytes both ways as binary messages, everything else as JSON in text messages.

To the client: ``{"event": "started", "process", "pid", "offset"}`` first, where ``offset`` is the byte of the output that the next binary message
begins with; then what is shown, with ``{"event": "lost", "bytes"}`` where something is no longer kept; in the end ``{"event": "exit", ...}`` and a
normal close, or ``{"event": "failure", ...}`` with a problem document. From the client: what is typed; ``{"resize": {"rows", "cols"}}``,
``{"signal": "SIGINT"}``, ``{"eof": true}``.

Laws:
- Who goes away leaves the process as it is; how far the output was shown tells where to go on.
- The next piece of output is asked for when the last one was taken.
- What is typed and not taken yet keeps no signal, no change of size and no close from getting through.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response, WebSocket

from sandlot.core.execution import terminals
from sandlot.core.execution.processes import ProcessExecution, ProcessService
from sandlot.core.execution.terminals import TerminalInput
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, InvalidRequestError, SandlotError
from sandlot.model.executions import OutputGap, signal_number
from sandlot.server.native.common import also, node_of, reply, sandbox_of
from sandlot.server.native.schemas.processes import ExitedAnswer, ScreenBody, SignalAnswer, TerminalQuery
from sandlot.web import errors, sockets

_TYPED = "Send bytes to type, or a JSON object with 'resize', 'signal' or 'eof' as text."


router = APIRouter(prefix="/v1/sandboxes/{sandbox}/processes", tags=["processes"])


@router.post("/{process}/resize", responses=also(SignalAnswer, "It has that size."))
async def resize(sandbox: str, process: str, body: ScreenBody, request: Request) -> Response:
    """Give a process's terminal another size."""
    return reply(SignalAnswer(running=await terminals.resize(sandbox_of(request, sandbox), process, body.rows, body.cols)))


@router.websocket("/{process}/terminal")
async def terminal(sandbox: str, process: str, socket: WebSocket) -> None:
    """Use a process's terminal over a WebSocket: it is shown from an offset on, and what is sent is typed. Closing it leaves the process running.

    Binary messages are the bytes of the terminal, both ways. Text messages are JSON: to the client `started` (with the `offset` of the first byte),
    `lost`, and in the end `exit` or `failure`, each as its `event`; from the client `{"resize": {"rows": 24, "cols": 80}}`, `{"signal": "SIGINT"}` or
    `{"eof": true}`. A process with a terminal is started by POST with `pty` and `background`.
    """
    query = sockets.query_of(socket, TerminalQuery)
    processes, box = node_of(socket).processes, sandbox_of(socket, sandbox)
    run = await terminals.attach(processes, box, process, offset=query.stdout_from)
    try:
        if query.rows is not None and query.cols is not None:
            await terminals.resize(box, process, query.rows, query.cols)
        await _serve(socket, processes, box, run, offset=query.stdout_from or 0)
    finally:
        await run.detach()


@router.get("/{process}/terminal", include_in_schema=False)
async def plain_request(sandbox: str, process: str, request: Request) -> Response:
    """Say to somebody who asks without a WebSocket what it takes."""
    await node_of(request).processes.get(sandbox_of(request, sandbox), process)
    error = InvalidRequestError("A terminal is used over a WebSocket.", hint="Ask with a WebSocket client, or read .../output and write .../stdin.")
    return errors.answer(error, errors.request_id(request), status=HTTPStatus.UPGRADE_REQUIRED, headers={"Upgrade": "websocket"})


async def _serve(socket: WebSocket, processes: ProcessService, sandbox: Sandbox, run: ProcessExecution, *, offset: int) -> None:
    """Let a client use a terminal until it goes away or the process ends.

    Args:
        socket: Not accepted yet.
        processes: Sends signals.
        sandbox: Where the process runs.
        run: It; let go of in the end.
        offset: Where its output begins here.
    """
    await socket.accept()
    gone: asyncio.Event = socket.scope["state"].get(sockets.GONE) or asyncio.Event()
    showing = asyncio.create_task(_show(socket, run, offset))
    typed = TerminalInput(sandbox, run)
    taking = asyncio.create_task(_take(socket, processes, sandbox, run, typed))
    typing = asyncio.create_task(typed.hand_on())
    leaving = asyncio.create_task(gone.wait())
    tasks: set[asyncio.Task[Any]] = {showing, taking, typing, leaving}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        typed.close()
        await run.detach()
    for task in (showing, taking, typing):
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SandlotError) and not gone.is_set():
            await sockets.fail(socket, error)
            return
        if error is not None and not gone.is_set():
            raise error
    if not showing.cancelled() and not gone.is_set():
        await socket.close(sockets.NORMAL)


async def _show(socket: WebSocket, run: ProcessExecution, offset: int) -> None:
    await sockets.tell(socket, {"event": "started", "process": run.id, "pid": run.pid, "offset": offset})
    async for item in run:
        if isinstance(item, OutputGap):
            await sockets.tell(socket, {"event": "lost", "bytes": item.bytes})
        else:
            await socket.send_bytes(item.data)
    await sockets.tell(socket, {"event": "exit", **ExitedAnswer.of(await run.outcome()).model_dump()})


async def _take(socket: WebSocket, processes: ProcessService, sandbox: Sandbox, run: ProcessExecution, typed: TerminalInput) -> None:
    """What the client says, until it leaves."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            if message.get("bytes") is not None:
                await typed.add(message["bytes"])
            else:
                await _obey(processes, sandbox, run, typed, message.get("text") or "")
        except ConflictError:
            continue  # it has ended, which is about to be told


async def _obey(processes: ProcessService, sandbox: Sandbox, run: ProcessExecution, typed: TerminalInput, text: str) -> None:
    asked = _parsed(text)
    match asked:
        case {"resize": {"rows": int(rows), "cols": int(cols)}}:
            await terminals.resize(sandbox, run.id, rows, cols)
        case {"signal": str() | int() as signal}:
            await processes.signal(sandbox, run.id, signal_number(signal))
        case {"eof": True}:
            typed.end()
        case _:
            raise InvalidRequestError("The message is none that a terminal knows.", hint=_TYPED)


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        asked = json.loads(text)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise InvalidRequestError("The message is no JSON object.", hint=_TYPED)
    return asked
