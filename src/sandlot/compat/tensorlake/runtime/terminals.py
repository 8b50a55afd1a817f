"""Routes for terminals: start a program on a terminal, and connect a client by WebSocket.

Messages are binary. ``0x00`` and bytes are input or output. The client sends ``0x01``, columns and rows to resize the terminal, and ``0x02`` when it
is ready for output. The service sends ``0x03`` and the exit code before a normal close, whose reason is ``exit:CODE``.

Invariants:
- If a client disconnects, the program keeps running. A client that connects again receives the kept output from its beginning.
- The service sends nothing before the first message of the client, which takes earlier messages for the end of the session.
- The token in the address of a terminal opens terminals of its sandbox, and nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from fastapi import Request, Response, WebSocket
from starlette.websockets import WebSocketState

from sandlot.compat.tensorlake.addressing import PREFIX, RUNTIME, RUNTIME_PATH, SANDBOX_HEADER, SANDBOX_PATH, requested_sandbox
from sandlot.compat.tensorlake.runtime import translate
from sandlot.compat.tensorlake.runtime.processes import find
from sandlot.compat.tensorlake.runtime.schemas import OpenTerminalRequest, TerminalResponse
from sandlot.compat.tensorlake.translate import VENDOR
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, InvalidRequestError, SandlotError
from sandlot.model.executions import ExecutionOptions, Output, OutputGap, ProcessEnded, ProcessEvent
from sandlot.model.ids import SANDBOX_ID
from sandlot.model.signed_urls import TokenScope
from sandlot.model.streams import Duplex
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import json_response
from sandlot.web.websocket import DISCONNECTED, NORMAL, close_code, close_reason

TOKEN_HEADER: Final = b"x-pty-token"

_TERMINAL_PATH = re.compile(rf"(?:{PREFIX}{SANDBOX_PATH}/(?P<sandbox>[^/]+))?{RUNTIME_PATH}/pty/[^/]+/ws")
_OPTIONS = ExecutionOptions(origin=VENDOR)
_SIGKILL: Final = 9


@RUNTIME.route("POST", "/pty")
async def open_terminal(body: OpenTerminalRequest, request: Request) -> Response:
    """Start a program on a terminal."""
    node, principal, sandbox = get_node(request), get_principal(request), await requested_sandbox(request)
    info = await node.processes.launch(principal, sandbox, translate.terminal_spec(body), options=_OPTIONS)
    token = node.tokens.sandbox_token(principal, sandbox, TokenScope.TERMINALS)
    return json_response(TerminalResponse(session_id=info.process, token=token), 201)


@RUNTIME.route("DELETE", "/pty/{process}")
async def kill_terminal(process: str, request: Request) -> Response:
    """Kill the program on a terminal."""
    sandbox = await requested_sandbox(request)
    info = await find(request, sandbox, process)
    await get_node(request).processes.signal(get_principal(request), sandbox, info.process, _SIGKILL)
    return Response(status_code=204)


@RUNTIME.socket("/pty/{process}/ws")
async def connect_terminal(process: str, socket: WebSocket) -> None:
    """Connect a client to a terminal."""
    sandbox = await requested_sandbox(socket)
    info = await find(socket, sandbox, process)
    connection = await get_node(socket).terminals.connect(get_principal(socket), sandbox, info.process)
    try:
        await _serve(socket, sandbox, info.process, connection)
    finally:
        await connection.aclose()


async def authenticate(scope: Mapping[str, Any], node: Node) -> Principal | None:
    """Return the principal of a WebSocket request with the token of a terminal; None for other requests."""
    path = _TERMINAL_PATH.fullmatch(scope["path"]) if scope["type"] == "websocket" else None
    if path is None:
        return None
    headers: dict[bytes, bytes] = dict(scope["headers"])
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    token = headers.get(TOKEN_HEADER, b"").decode("latin-1") or next(iter(query.get("token", ())), "")
    sandbox = path["sandbox"] or headers.get(SANDBOX_HEADER.lower().encode(), b"").decode("latin-1")
    return node.tokens.principal_of_token(token, sandbox, TokenScope.TERMINALS) if SANDBOX_ID.fullmatch(sandbox) else None


async def _serve(socket: WebSocket, sandbox: str, process: str, connection: Duplex[bytes, ProcessEvent]) -> None:
    """Exchange input and output until the program ends or the client disconnects.

    Args:
        socket: WebSocket, not accepted yet.
        sandbox: Id of the sandbox.
        process: Id of the process.
        connection: Connection to the terminal.
    """
    await socket.accept()
    disconnected: asyncio.Event = socket.scope["state"].get(DISCONNECTED) or asyncio.Event()
    ready = asyncio.Event()
    sending = asyncio.create_task(_send_output(socket, connection, ready))
    receiving = asyncio.create_task(_receive_input(socket, sandbox, process, connection, ready))
    tasks: list[asyncio.Task[Any]] = [sending, receiving, asyncio.create_task(disconnected.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if disconnected.is_set():
        return
    for task in (sending, receiving):
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SandlotError):
            if socket.application_state is WebSocketState.CONNECTED:
                await socket.close(close_code(error), close_reason(error))
            return
        if error is not None:
            raise error
    if not sending.cancelled() and (code := sending.result()) is not None:
        await socket.send_bytes(translate.exit_message(code))
        await socket.close(NORMAL, f"exit:{code}")


async def _send_output(socket: WebSocket, connection: Duplex[bytes, ProcessEvent], ready: asyncio.Event) -> int | None:
    """Send the output of a terminal to its end, and return the exit code; None if the end was not seen."""
    await ready.wait()
    async for event in connection:
        match event:
            case Output():
                await socket.send_bytes(bytes([translate.DATA]) + event.data)
            case OutputGap():
                await socket.send_bytes(bytes([translate.DATA]) + f"\r\n[{event.bytes} bytes are no longer kept]\r\n".encode())
            case ProcessEnded():
                return event.outcome.exit_code
            case _:
                pass
    return None


async def _receive_input(socket: WebSocket, sandbox: str, process: str, connection: Duplex[bytes, ProcessEvent], ready: asyncio.Event) -> None:
    """Handle the messages of the client until it disconnects."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        data: bytes = message.get("bytes") or b""
        ready.set()
        try:
            match data[:1]:
                case b"\x00":
                    await connection.send(data[1:])
                case b"\x01":
                    await get_node(socket).terminals.resize(get_principal(socket), sandbox, process, *translate.parse_size(data))
                case b"\x02" | b"":
                    pass
                case _:
                    raise InvalidRequestError("The message has an unknown type.", hint="Begin the message with 0x00, 0x01 or 0x02.")
        except ConflictError:
            continue  # the program has ended, and its exit code follows
