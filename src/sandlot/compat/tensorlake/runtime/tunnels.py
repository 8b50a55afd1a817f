"""Tunnels: ports of the inside, each connection a WebSocket whose binary messages are its bytes.

Laws:
- A Close is the end of one half: what the program says after its client's is still sent before that is answered. The program's end closes.
- A text message is none of a tunnel's, in either direction: its client takes one for an error.
"""

from __future__ import annotations

import asyncio

from fastapi import WebSocket
from starlette.websockets import WebSocketState

from sandlot.compat.tensorlake.addressing import INSIDE, inside
from sandlot.compat.tensorlake.runtime.schemas import TunnelQuery
from sandlot.model.errors import InvalidRequestError, SandlotError
from sandlot.web import duplex
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.websocket import DELAYED_CLOSE, DISCONNECTED, NORMAL, close_code, close_reason, parse_query

_LEFT = frozenset({1000, 1005})
"""Who closes with one of these ends its half; RFC 6455 7.4.1."""


@INSIDE.socket("/tunnels/tcp")
async def tunnel(socket: WebSocket) -> None:
    """Connect to a port of the inside."""
    sandbox = await inside(socket)
    query = parse_query(socket, TunnelQuery)
    opened = await get_node(socket).tunnels.connect(get_principal(socket), sandbox, query.port)
    try:
        socket.scope["state"][DELAYED_CLOSE] = True
        await socket.accept()
        try:
            if await duplex.carry(opened, _Client(socket)) and socket.application_state is WebSocketState.CONNECTED:
                await socket.close(NORMAL)
        except SandlotError as error:
            if socket.application_state is WebSocketState.CONNECTED:
                await socket.close(close_code(error), close_reason(error))
    finally:
        await opened.aclose()


class _Client:
    """The client's end of a tunnel.

    Args:
        socket: Accepted.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._left = False
        self.gone: asyncio.Event = socket.scope["state"].get(DISCONNECTED) or asyncio.Event()

    async def receive(self) -> bytes | None:
        """What the client sends next."""
        while not self._left:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                self._left = True
                return b"" if message.get("code") in _LEFT and not self.gone.is_set() else None
            if message.get("text") is not None:
                raise InvalidRequestError("A tunnel carries binary messages.", hint="Send bytes.")
            if data := message.get("bytes"):
                return bytes(data)
        await self.gone.wait()
        return None

    async def send(self, data: bytes) -> None:
        """Send the client bytes."""
        await self._socket.send_bytes(data)

    async def ended(self) -> None:
        """Close: this client has no other word for the end of the program's half."""
        if not self._left:
            await self._socket.close(NORMAL)
