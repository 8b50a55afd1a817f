"""A tunnel to a port inside over a WebSocket: bytes both ways as binary messages, everything else as JSON in text messages.

It is connected once the upgrade is answered; until then every failure is the answer that a request would get. To the client: what the program sends,
``{"event": "end"}`` when it has ended its half, and a normal close when both have; or ``{"event": "failure", ...}`` with a problem document. From the
client: what the program is to read, and ``{"end": true}`` to end its own half. Closing in the middle resets the program's connection.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from fastapi import APIRouter, Request, Response, WebSocket

from sandlot.model.errors import InvalidRequestError, SandlotError
from sandlot.web import duplex, errors, websocket
from sandlot.web.dependencies import SandboxRoute, get_node, get_principal, get_sandbox_id
from sandlot.web.request_id import get_request_id

_SAID = "Send bytes as binary messages, and {'end': true} as text after the last."

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/ports", route_class=SandboxRoute)


@router.websocket("/{port}/tunnel", name="tunnels_connect")
async def connect(sandbox: str, port: int, socket: WebSocket) -> None:
    """Connect to what listens on a port of the sandbox's own loopback, over a WebSocket: whatever its network is.

    Binary messages are the bytes of the connection, both ways. Text messages are JSON: `{"event": "end"}` says that the program has ended its half,
    `failure` that the connection was cut; `{"end": true}` from the client ends its half. Closing the WebSocket before both halves have ended resets
    the connection. Where nothing listens, the answer is 404 `port_not_found`.
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
async def plain_request(sandbox: str, port: int, request: Request) -> Response:
    """Say to somebody who asks without a WebSocket what it takes."""
    await get_node(request).sandboxes.get(get_principal(request), sandbox)
    error = InvalidRequestError(f"Port {port} is reached over a WebSocket.", hint="Ask with a WebSocket client, or use `sandlot forward`.")
    return errors.problem_response(error, get_request_id(request.scope), status=HTTPStatus.UPGRADE_REQUIRED, headers={"Upgrade": "websocket"})


class _Client:
    """The client's end of a tunnel.

    Args:
        socket: Accepted.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.gone: asyncio.Event = socket.scope["state"].get(websocket.DISCONNECTED) or asyncio.Event()
        self._ended = False

    async def receive(self) -> bytes | None:
        """What the client sends next."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            if data := message.get("bytes"):
                if self._ended:
                    raise InvalidRequestError("Bytes came after the end of them.", hint=_SAID)
                return bytes(data)
            if message.get("text") is not None:
                _check_end(message["text"])
                self._ended = True
                return b""

    async def send(self, data: bytes) -> None:
        """Send the client bytes."""
        await self._socket.send_bytes(data)

    async def ended(self) -> None:
        """Tell the client that the program has ended its half."""
        await websocket.send_json(self._socket, {"event": "end"})


def _check_end(text: str) -> None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or set(said) != {"end"} or said["end"] is not True:
        raise InvalidRequestError("The message is none that a tunnel knows.", hint=_SAID)
