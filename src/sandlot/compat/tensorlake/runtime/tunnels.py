"""Route for tunnels to ports of a sandbox. Each connection is a WebSocket whose binary messages carry its bytes.

Invariants:
- A Close ends one direction. Output of the program after the client's Close is sent before the Close is answered. The end of the program's direction
  closes the WebSocket.
- Tunnels have no text messages in either direction, because the client takes a text message for an error.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import WebSocket
from starlette.websockets import WebSocketState

from sandlot.compat.tensorlake.addressing import RUNTIME, requested_sandbox
from sandlot.compat.tensorlake.runtime.schemas import TunnelQuery
from sandlot.model.errors import InvalidRequestError, SandlotError
from sandlot.web import duplex
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.websocket import DELAYED_CLOSE, DISCONNECTED, NORMAL, close_code, close_reason, parse_query

_HALF_CLOSE_CODES: Final = frozenset({1000, 1005})
"""Close codes that end only the client's direction (RFC 6455, 7.4.1)."""


@RUNTIME.socket("/tunnels/tcp")
async def open_tunnel(socket: WebSocket) -> None:
    """Connect to a port of a sandbox."""
    sandbox = await requested_sandbox(socket)
    query = parse_query(socket, TunnelQuery)
    connection = await get_node(socket).tunnels.connect(get_principal(socket), sandbox, query.port)
    try:
        socket.scope["state"][DELAYED_CLOSE] = True
        await socket.accept()
        try:
            if await duplex.carry(connection, _Client(socket)) and socket.application_state is WebSocketState.CONNECTED:
                await socket.close(NORMAL)
        except SandlotError as error:
            if socket.application_state is WebSocketState.CONNECTED:
                await socket.close(close_code(error), close_reason(error))
    finally:
        await connection.aclose()


class _Client:
    """The client's end of a tunnel, on an accepted WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._has_closed = False
        self.gone: asyncio.Event = socket.scope["state"].get(DISCONNECTED) or asyncio.Event()

    async def receive(self) -> bytes | None:
        """Return the next bytes of the client; empty after its Close, None if it has disconnected."""
        while not self._has_closed:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                self._has_closed = True
                return b"" if message.get("code") in _HALF_CLOSE_CODES and not self.gone.is_set() else None
            if message.get("text") is not None:
                raise InvalidRequestError("The tunnel received a text message.", hint="Send binary messages.")
            if data := message.get("bytes"):
                return bytes(data)
        await self.gone.wait()
        return None

    async def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        await self._socket.send_bytes(data)

    async def ended(self) -> None:
        """Close the WebSocket, which is the only way to report the end of the program's direction."""
        if not self._has_closed:
            await self._socket.close(NORMAL)
