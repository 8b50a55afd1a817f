"""Terminals: a program on one, and a WebSocket on which its client looks at it and types.

A message is binary: ``0x00`` and bytes, both ways; ``0x01``, columns and rows from the client; ``0x02`` from the client, which is ready to be shown
something; ``0x03`` and the exit code to the client, before a normal close whose reason is ``exit:CODE``.

Laws:
- Who goes away leaves the program as it is, and is shown it from the beginning of what is kept when it comes again.
- Nothing is shown before its client has said something: it takes what comes before for the end of its visit.
- What stands for a key in the address of a terminal opens the terminals of that sandbox, and nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from fastapi import Request, Response, WebSocket
from starlette.websockets import WebSocketState

from sandlot.compat.tensorlake.addressing import BELOW, INNER, INSIDE, PREFIX, SANDBOX_HEADER, inside
from sandlot.compat.tensorlake.runtime import translate
from sandlot.compat.tensorlake.runtime.processes import find
from sandlot.compat.tensorlake.runtime.schemas import TerminalAnswer, TerminalBody
from sandlot.compat.tensorlake.translate import NAME
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, InvalidRequestError, SandlotError
from sandlot.model.executions import ExecutionOptions, Output, OutputGap, ProcessEnded, ProcessEvent
from sandlot.model.ids import SANDBOX_ID
from sandlot.model.streams import Duplex
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import json_response
from sandlot.web.websocket import DISCONNECTED, NORMAL, close_code, close_reason

TOKEN_HEADER = b"x-pty-token"

_SOCKET = re.compile(rf"(?:{PREFIX}{BELOW}/(?P<sandbox>[^/]+))?{INNER}/pty/[^/]+/ws")
_LABEL = ExecutionOptions(origin=NAME)
_SIGKILL = 9


@INSIDE.route("POST", "/pty")
async def open_terminal(body: TerminalBody, request: Request) -> Response:
    """Start a program on a terminal."""
    node, principal, sandbox = get_node(request), get_principal(request), await inside(request)
    info = await node.processes.launch(principal, sandbox, translate.terminal(body), options=_LABEL)
    return json_response(TerminalAnswer(session_id=info.process, token=node.tokens.sandbox_token(principal, sandbox)), 201)


@INSIDE.route("DELETE", "/pty/{process}")
async def kill(process: str, request: Request) -> Response:
    """Kill the program on a terminal."""
    sandbox = await inside(request)
    info = await find(request, sandbox, process)
    await get_node(request).processes.signal(get_principal(request), sandbox, info.process, _SIGKILL)
    return Response(status_code=204)


@INSIDE.socket("/pty/{process}/ws")
async def terminal(process: str, socket: WebSocket) -> None:
    """Look at a terminal, and type."""
    sandbox = await inside(socket)
    info = await find(socket, sandbox, process)
    connected = await get_node(socket).terminals.connect(get_principal(socket), sandbox, info.process)
    try:
        await _serve(socket, sandbox, info.process, connected)
    finally:
        await connected.aclose()


async def admit(scope: Mapping[str, Any], node: Node) -> Principal | None:
    """Who looks at a terminal by what was given for that in place of a key."""
    asked = _SOCKET.fullmatch(scope["path"]) if scope["type"] == "websocket" else None
    if asked is None:
        return None
    headers: dict[bytes, bytes] = dict(scope["headers"])
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    token = headers.get(TOKEN_HEADER, b"").decode("latin-1") or next(iter(query.get("token", ())), "")
    sandbox = asked["sandbox"] or headers.get(SANDBOX_HEADER.lower().encode(), b"").decode("latin-1")
    return node.tokens.principal_of_token(token, sandbox) if SANDBOX_ID.fullmatch(sandbox) else None


async def _serve(socket: WebSocket, sandbox: str, process: str, connected: Duplex[bytes, ProcessEvent]) -> None:
    """Show a terminal and type on it, until its program ends or its client leaves.

    Args:
        socket: Not accepted yet.
        sandbox: Where the program runs.
        process: It.
        connected: Its terminal.
    """
    await socket.accept()
    gone: asyncio.Event = socket.scope["state"].get(DISCONNECTED) or asyncio.Event()
    ready = asyncio.Event()
    showing = asyncio.create_task(_show(socket, connected, ready))
    taking = asyncio.create_task(_take(socket, sandbox, process, connected, ready))
    tasks: list[asyncio.Task[Any]] = [showing, taking, asyncio.create_task(gone.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if gone.is_set():
        return
    for task in (showing, taking):
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SandlotError):
            if socket.application_state is WebSocketState.CONNECTED:
                await socket.close(close_code(error), close_reason(error))
            return
        if error is not None:
            raise error
    if not showing.cancelled() and (code := showing.result()) is not None:
        await socket.send_bytes(translate.exited(code))
        await socket.close(NORMAL, f"exit:{code}")


async def _show(socket: WebSocket, connected: Duplex[bytes, ProcessEvent], ready: asyncio.Event) -> int | None:
    """What is shown, to its end; the exit code, or None where it was not seen to end."""
    await ready.wait()
    async for event in connected:
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


async def _take(socket: WebSocket, sandbox: str, process: str, connected: Duplex[bytes, ProcessEvent], ready: asyncio.Event) -> None:
    """What the client says, until it leaves."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        said: bytes = message.get("bytes") or b""
        ready.set()
        try:
            match said[:1]:
                case b"\x00":
                    await connected.send(said[1:])
                case b"\x01":
                    await get_node(socket).terminals.resize(get_principal(socket), sandbox, process, *translate.resized(said))
                case b"\x02" | b"":
                    pass
                case _:
                    raise InvalidRequestError("The message is none that a terminal knows.", hint="Begin it with 0x00, 0x01 or 0x02.")
        except ConflictError:
            continue  # it has ended, which is about to be told
