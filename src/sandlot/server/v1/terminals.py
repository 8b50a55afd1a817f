"""Terminals over WebSocket. Binary messages are input and output; text messages are JSON.

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
from sandlot.web.dependencies import SandboxNameRoute, get_node, get_principal, get_sandbox_id
from sandlot.web.models import QueryModel, json_response
from sandlot.web.request_id import get_request_id


class TerminalQuery(QueryModel):
    """Position in the output of a terminal, and its size."""

    stdout_from: int | None = Field(default=None, ge=0, description="Byte offset in the output. Default: the oldest byte that is kept.")
    rows: int | None = Field(default=None, ge=1, le=MAX_TERMINAL_SIZE, description="New number of lines; needs `cols`.")
    cols: int | None = Field(default=None, ge=1, le=MAX_TERMINAL_SIZE, description="New number of characters per line; needs `rows`.")


_MESSAGES = "Send input as binary messages, and a JSON object with `resize`, `signal` or `eof` as text."

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/processes", tags=["terminals"], route_class=SandboxNameRoute)


@router.post("/{process}/resize", responses=documented_response(ProcessSignalResponse, "Result of the resize."))
async def resize(sandbox: str, process: str, body: TerminalSize, request: Request) -> Response:
    """Change the size of the terminal of a process."""
    return json_response(
        ProcessSignalResponse(running=await get_node(request).terminals.resize(get_principal(request), sandbox, process, body.rows, body.cols))
    )


@router.websocket("/{process}/terminal", name="terminals_connect")
async def connect(sandbox: str, process: str, socket: WebSocket) -> None:
    """Connect to the terminal of a process over WebSocket. The process keeps running after the connection closes.

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
async def require_websocket(sandbox: str, process: str, request: Request) -> Response:
    """Refuse requests without a WebSocket upgrade."""
    await get_node(request).processes.get(get_principal(request), sandbox, process)
    error = InvalidRequestError("The request has no WebSocket upgrade.", hint="Use a WebSocket client, or `GET …/output` and `POST …/stdin`.")
    return errors.problem_response(error, get_request_id(request.scope), status=HTTPStatus.UPGRADE_REQUIRED, headers={"Upgrade": "websocket"})


async def _serve(socket: WebSocket, sandbox: str, process: str, connected: Duplex[bytes, ProcessEvent], *, offset: int) -> None:
    """Serve a terminal until the client disconnects or the process ends.

    Args:
        socket: WebSocket that is not accepted yet.
        sandbox: Id of the sandbox.
        process: Id of the process.
        connected: Terminal of the process.
        offset: Offset of the first byte of the output.
    """
    await socket.accept()
    gone: asyncio.Event = socket.scope["state"].get(websocket.DISCONNECTED) or asyncio.Event()
    showing = asyncio.create_task(_send_output(socket, connected, offset))
    taking = asyncio.create_task(_receive(socket, sandbox, process, connected))
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


async def _send_output(socket: WebSocket, connected: Duplex[bytes, ProcessEvent], offset: int) -> None:
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


async def _receive(socket: WebSocket, sandbox: str, process: str, connected: Duplex[bytes, ProcessEvent]) -> None:
    """Handle messages of the client until it disconnects."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            if message.get("bytes") is not None:
                await connected.send(message["bytes"])
            else:
                await _handle(socket, sandbox, process, connected, message.get("text") or "")
        except ConflictError:
            continue  # the process has ended; its exit event follows


async def _handle(socket: WebSocket, sandbox: str, process: str, connected: Duplex[bytes, ProcessEvent], text: str) -> None:
    node, principal = get_node(socket), get_principal(socket)
    message = _parsed(text)
    match message:
        case {"resize": {"rows": int(rows), "cols": int(cols)}}:
            await node.terminals.resize(principal, sandbox, process, rows, cols)
        case {"signal": str() | int() as signal}:
            await node.processes.signal(principal, sandbox, process, signal_number(signal))
        case {"eof": True}:
            await connected.end()
        case _:
            raise InvalidRequestError(f"The terminal does not support the message {text[:64]!r}.", hint=_MESSAGES)


def _parsed(text: str) -> Mapping[str, Any]:
    message = websocket.parse_message(text)
    if message is None:
        raise InvalidRequestError(f"The message {text[:64]!r} is not a JSON object.", hint=_MESSAGES)
    return message
