"""A terminal over a WebSocket: bytes both ways as binary messages, everything else as JSON in text messages.

To the client: first ``{"event": "started", "id", "pid", "offset"}``, where ``offset`` is the offset in the output of the first byte of the next
binary message; then output, and ``{"event": "lost", "lost_bytes"}`` where output is no longer kept; at the end ``{"event": "exit", ...}`` and a
normal close, or ``{"event": "failure", ...}`` with a problem document. From the client: input; ``{"resize": {"rows", "cols"}}``,
``{"signal": "SIGINT"}``, ``{"eof": true}``.

Invariants:
- The process keeps running after its client has disconnected. The offset of the output tells the client where to continue.
- The next piece of output is read only after the client has received the last one.
- Input that the process has not read delays no signal, no resize and no close.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response, WebSocket
from pydantic import Field

from sandlot.model.errors import ConflictError, InvalidRequestError, SandlotError
from sandlot.model.executions import (
    Output,
    OutputGap,
    ProcessEnded,
    ProcessEvent,
    ProcessStarted,
    signal_number,
)
from sandlot.model.specs import MAX_TERMINAL_SIZE
from sandlot.model.streams import Duplex
from sandlot.server.v1.common import documented_response
from sandlot.server.v1.processes import ProcessOutcomeResponse, ProcessSignalResponse, TerminalSize
from sandlot.web import errors, websocket
from sandlot.web.dependencies import SandboxRoute, get_node, get_principal, get_sandbox_id
from sandlot.web.models import QueryModel, json_response
from sandlot.web.request_id import get_request_id


class TerminalQuery(QueryModel):
    """From where to show a terminal, and how large it is."""

    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset; the oldest that is kept where left out.")
    rows: int | None = Field(default=None, ge=1, le=MAX_TERMINAL_SIZE, description="With ``cols``: its size from now on.")
    cols: int | None = Field(default=None, ge=1, le=MAX_TERMINAL_SIZE, description="With ``rows``.")


_TYPED = "Send bytes to type, or a JSON object with 'resize', 'signal' or 'eof' as text."

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/processes", tags=["terminals"], route_class=SandboxRoute)


@router.post("/{process}/resize", responses=documented_response(ProcessSignalResponse, "It has that size."))
async def resize(sandbox: str, process: str, body: TerminalSize, request: Request) -> Response:
    """Give a process's terminal another size."""
    return json_response(
        ProcessSignalResponse(running=await get_node(request).terminals.resize(get_principal(request), sandbox, process, body.rows, body.cols))
    )


@router.websocket("/{process}/terminal", name="terminals_connect")
async def connect(sandbox: str, process: str, socket: WebSocket) -> None:
    """Use a process's terminal over a WebSocket: it is shown from an offset on, and what is sent is typed. Closing it leaves the process running.

    Binary messages are the bytes of the terminal, both ways. Text messages are JSON: to the client `started` (with the `offset` of the first byte),
    `lost`, and in the end `exit` or `failure`, each as its `event`; from the client `{"resize": {"rows": 24, "cols": 80}}`, `{"signal": "SIGINT"}` or
    `{"eof": true}`. A process with a terminal is started by POST with `pty` and `background`.
    """
    query = websocket.parse_query(socket, TerminalQuery)
    node, principal, sandbox = get_node(socket), get_principal(socket), await get_sandbox_id(socket, sandbox)
    connected = await node.terminals.connect(principal, sandbox, process, offset=query.stdout_from)
    try:
        if query.rows is not None and query.cols is not None:
            await node.terminals.resize(principal, sandbox, process, query.rows, query.cols)
        await _serve(socket, sandbox, process, connected, offset=query.stdout_from or 0)
    finally:
        await connected.aclose()


@router.get("/{process}/terminal", include_in_schema=False)
async def plain_request(sandbox: str, process: str, request: Request) -> Response:
    """Say to somebody who asks without a WebSocket what it takes."""
    await get_node(request).processes.get(get_principal(request), sandbox, process)
    error = InvalidRequestError("A terminal is used over a WebSocket.", hint="Ask with a WebSocket client, or read .../output and write .../stdin.")
    return errors.problem_response(error, get_request_id(request.scope), status=HTTPStatus.UPGRADE_REQUIRED, headers={"Upgrade": "websocket"})


async def _serve(socket: WebSocket, sandbox: str, process: str, connected: Duplex[bytes, ProcessEvent], *, offset: int) -> None:
    """Let a client use a terminal until it goes away or the process ends.

    Args:
        socket: Not accepted yet.
        sandbox: Where the process runs.
        process: It.
        connected: Its terminal.
        offset: Where its output begins here.
    """
    await socket.accept()
    gone: asyncio.Event = socket.scope["state"].get(websocket.DISCONNECTED) or asyncio.Event()
    showing = asyncio.create_task(_show(socket, connected, offset))
    taking = asyncio.create_task(_take(socket, sandbox, process, connected))
    leaving = asyncio.create_task(gone.wait())
    tasks: set[asyncio.Task[Any]] = {showing, taking, leaving}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await connected.aclose()
    for task in (showing, taking):
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SandlotError) and not gone.is_set():
            await websocket.close_with_error(socket, error)
            return
        if error is not None and not gone.is_set():
            raise error
    if not showing.cancelled() and not gone.is_set():
        await socket.close(websocket.NORMAL)


async def _show(socket: WebSocket, connected: Duplex[bytes, ProcessEvent], offset: int) -> None:
    async for event in connected:
        match event:
            case ProcessStarted(process, pid):
                await websocket.send_json(socket, {"event": "started", "id": process, "pid": pid, "offset": offset})
            case OutputGap():
                await websocket.send_json(socket, {"event": "lost", "lost_bytes": event.bytes})
            case Output():
                await socket.send_bytes(event.data)
            case ProcessEnded():
                await websocket.send_json(socket, {"event": "exit", **ProcessOutcomeResponse.of(event.outcome).model_dump()})


async def _take(socket: WebSocket, sandbox: str, process: str, connected: Duplex[bytes, ProcessEvent]) -> None:
    """What the client says, until it leaves."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            if message.get("bytes") is not None:
                await connected.send(message["bytes"])
            else:
                await _obey(socket, sandbox, process, connected, message.get("text") or "")
        except ConflictError:
            continue  # it has ended, which is about to be told


async def _obey(socket: WebSocket, sandbox: str, process: str, connected: Duplex[bytes, ProcessEvent], text: str) -> None:
    node, principal = get_node(socket), get_principal(socket)
    asked = _parsed(text)
    match asked:
        case {"resize": {"rows": int(rows), "cols": int(cols)}}:
            await node.terminals.resize(principal, sandbox, process, rows, cols)
        case {"signal": str() | int() as signal}:
            await node.processes.signal(principal, sandbox, process, signal_number(signal))
        case {"eof": True}:
            await connected.end()
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
