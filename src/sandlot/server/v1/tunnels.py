"""Tunnels to TCP ports of a sandbox over WebSocket. Binary messages are the bytes of the connection; text messages are JSON.

Errors before the upgrade are ordinary HTTP responses. After the upgrade the tunnel is connected. To the client: bytes of the program,
``{"event": "end"}`` when the program has closed its half, and a normal close when both halves are closed; or ``{"event": "failure", ...}`` with a
problem document. From the client: bytes for the program, and ``{"end": true}`` to close its half. A close before both halves are closed resets the
connection of the program.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from fastapi import APIRouter, Request, Response, WebSocket

from sandlot.model.errors import InvalidRequestError, SandlotError
from sandlot.web import duplex, errors, websocket
from sandlot.web.dependencies import SandboxNameRoute, get_node, get_principal, get_sandbox_id
from sandlot.web.request_id import get_request_id

_MESSAGES = 'Send bytes as binary messages, and `{"end": true}` as text after the last one.'

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/ports", route_class=SandboxNameRoute)


@router.websocket("/{port}/tunnel", name="tunnels_connect")
async def connect(sandbox: str, port: int, socket: WebSocket) -> None:
    """Connect to a TCP port on the loopback of a sandbox over WebSocket. This works with every network policy.

    Binary messages are the bytes of the connection, both ways. Text messages are JSON: `{"event": "end"}` means that the program has closed its half,
    `failure` means that the connection was lost; `{"end": true}` from the client closes its half. Closing the WebSocket before both halves are closed
    resets the connection. If no program listens on the port, the response is 404 `port_not_found`.
    """
    opened = await get_node(socket).tunnels.connect(get_principal(socket), await get_sandbox_id(socket, sandbox), port)
    try:
        await socket.accept()
        try:
            if await duplex.carry(opened, _Client(socket)):
                await socket.close(websocket.NORMAL)
        except SandlotError as error:
            await websocket.close_with_error(socket, error)
    finally:
        await opened.aclose()


@router.get("/{port}/tunnel", include_in_schema=False)
async def require_websocket(sandbox: str, port: int, request: Request) -> Response:
    """Refuse requests without a WebSocket upgrade."""
    await get_node(request).sandboxes.get(get_principal(request), sandbox)
    error = InvalidRequestError(f"The request for port {port} has no WebSocket upgrade.", hint="Use a WebSocket client, or `sandlot forward`.")
    return errors.problem_response(error, get_request_id(request.scope), status=HTTPStatus.UPGRADE_REQUIRED, headers={"Upgrade": "websocket"})


class _Client:
    """Client side of a tunnel, over an accepted WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.gone: asyncio.Event = socket.scope["state"].get(websocket.DISCONNECTED) or asyncio.Event()
        self._ended = False

    async def receive(self) -> bytes | None:
        """Return the next bytes of the client; empty when it has closed its half, None when it has disconnected."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            if data := message.get("bytes"):
                if self._ended:
                    raise InvalidRequestError('The client sent bytes after `{"end": true}`.', hint=_MESSAGES)
                return bytes(data)
            if message.get("text") is not None:
                _check_end(message["text"])
                self._ended = True
                return b""

    async def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        await self._socket.send_bytes(data)

    async def ended(self) -> None:
        """Report to the client that the program has closed its half."""
        await websocket.send_json(self._socket, {"event": "end"})


def _check_end(text: str) -> None:
    message = websocket.parse_message(text)
    if message is None or set(message) != {"end"} or message["end"] is not True:
        raise InvalidRequestError(f"The tunnel does not support the message {text[:64]!r}.", hint=_MESSAGES)
