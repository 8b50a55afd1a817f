"""WebSockets (RFC 6455), with the protection that requests have.

Invariants:
- Authentication and all refusals happen before the upgrade. Until then, an error is the response that a request would get.
- The memory of a connection is bounded: a message has at most 1 MiB and 1,024 fragments, received data is read as it is used, and data to send waits
  until the client has taken the earlier data. Nothing is compressed.
- A client that answers no ping, or reads none of the data that waits for it, for two minutes is disconnected. A disconnection is noticed at once,
  whatever the route is doing.
- A Close is answered at once, unless the route has delayed this (``DELAYED_CLOSE``): then after the route has ended, as long as the client reads
  something every two minutes.
- WebSockets count as connections. They are logged when they end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from fastapi import WebSocket
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketState
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.http11 import Request, Response

from sandlot.model.access import OwnerId
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.specs import KIB, MIB
from sandlot.web import errors
from sandlot.web.auth import Keyring, VendorAuthenticator, admit
from sandlot.web.connections import CONNECTION
from sandlot.web.error_formats import ErrorFormat
from sandlot.web.metrics import RequestMetrics
from sandlot.web.models import QueryModel
from sandlot.web.request_id import choose_request_id, get_request_id, new_request_id
from sandlot.web.request_turns import RequestTurns
from sandlot.web.slices import SlicedInput, SliceTurns

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

MESSAGE_MAX_BYTES = 1 * MIB
CONTROL_MAX_CHARACTERS = 4096
"""Length of a message of JSON that controls a terminal or a tunnel. Parsing a longer one would block the event loop."""
_CLOSE_FRAME = b"\x88"
"""First byte of a Close frame (RFC 6455, 5.2)."""
_REASON_BYTES = 120
"""Maximum bytes of a close reason. A control frame has 125, two of them for the code (RFC 6455, 5.5)."""
SLICE_BYTES = 16 * KIB
"""Largest slice of received data."""
SMALL_SLICE_BYTES = 2 * KIB
"""First slice, and the slice after one with more than ``MANY_FRAMES`` frames. Otherwise a slice is twice as large as the last."""
MANY_FRAMES = 16
MAX_FRAGMENTS = 1024
"""Fragments of one message: each takes memory, and can be empty."""
UNSENT_MAX_BYTES = 256 * KIB
"""Unsent bytes beyond which a ping ends the connection. Data of the app waits at 64 KiB already."""
PING_S = 20.0
STALL_TIMEOUT_S = 120.0

NORMAL, REFUSED, FAILED = 1000, 1008, 1011
"""Close codes (RFC 6455, 7.4.1)."""

DISCONNECTED = "disconnected"
"""Key in the state of a WebSocket: an event that is set when the client has disconnected."""
DELAYED_CLOSE = "delayed_close"
"""Key in the state of a WebSocket: True if the route continues to send after the client's Close, until the route ends (RFC 6455, 5.5.1)."""

QueryT = TypeVar("QueryT", bound=QueryModel)

_log = structlog.get_logger("sandlot.http")
_uvicorn_log = logging.getLogger("sandlot.websockets")
_uvicorn_log.setLevel(logging.CRITICAL)  # uvicorn would log whole URLs; the service has its own log lines


class SandlotWebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection, from its upgrade on.

    Args:
        config: Settings of uvicorn.
        server_state: Connections and tasks of uvicorn.
        app_state: State of the HTTP connection.
        turns: Turns of the connections whose data waits.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        turns: SliceTurns,
    ) -> None:
        self._turns = turns
        self._disconnected = asyncio.Event()
        super().__init__(config, server_state, {**app_state, DISCONNECTED: self._disconnected}, _loop)
        self.logger = _uvicorn_log
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._next_slice_bytes = SMALL_SLICE_BYTES
        self._close_response = b""
        """The response to the client's Close while earlier events are handled."""
        self._delayed_close: bytes | None = None
        """The response to the client's Close while it is delayed."""
        self._close_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, give the place of the connection back, and report the disconnection."""
        if (connection := self.app_state.get(CONNECTION)) is not None:
            connection.lost()
        self._stop_stall_timer()
        self._stop_close_timer()
        self._input.stop()
        self._disconnected.set()
        super().connection_lost(exc)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Prepare to read in slices."""
        super().connection_made(transport)
        self._input = SlicedInput(self._turns, self._parse, self._slice_bytes, self._hold)

    def data_received(self, data: bytes) -> None:
        """Handle data of the client, in slices: frames can be very small."""
        self._input.push(data)

    def _slice_bytes(self) -> int:
        return 0 if self.read_paused else self._next_slice_bytes

    def _hold(self, is_held: bool) -> None:  # noqa: FBT001 - the argument of SlicedInput
        if self.transport.is_closing():
            return
        if is_held:
            self.transport.pause_reading()
        elif not self.read_paused:
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        if self.close_sent and self.transport.is_closing():
            return
        self.conn.receive_data(data)
        self._next_slice_bytes = SMALL_SLICE_BYTES if len(self.conn.events) > MANY_FRAMES else min(SLICE_BYTES, 2 * self._next_slice_bytes)
        # websockets before 16 refuses other methods than GET when it parses the request, and then sends no event.
        if not self.handshake_initiated and (self.conn.parser_exc is not None or self.conn.handshake_exc is not None):
            self._refuse("The request is not a WebSocket upgrade.")
        elif self.conn.parser_exc is not None:
            self._disconnected.set()
            self.handle_parser_exception()
        else:
            self.handle_events()

    def handle_connect(self, event: Request) -> None:
        """Check the upgrade request before the app gets it."""
        probe = self.conn.accept(event)
        if probe.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._refuse(f"The WebSocket upgrade is malformed: {probe.body.decode('utf-8', 'replace').strip()[:300]}")
            return
        super().handle_connect(event)

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment to a message, within the limit."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self._abort()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping, unless the client does not read the answers."""
        if self.transport.get_write_buffer_size() > UNSENT_MAX_BYTES:
            self._abort()
            return
        # The response to a Close that arrived together with the ping is among the data: it waits for `handle_close`.
        output = self.conn.data_to_send()
        pongs = next((at for at, frame in enumerate(output) if frame.startswith(_CLOSE_FRAME)), len(output))
        self.transport.write(b"".join(output[:pongs]))
        self._close_response += b"".join(output[pongs:])

    def handle_close(self, event: Frame) -> None:
        """Answer the client's Close, at once or when the route has ended."""
        if self.handshake_complete and not self.close_sent and self.scope["state"].get(DELAYED_CLOSE) and not self.transport.is_closing():
            self.stop_keepalive()
            self._delayed_close = self._close_response + b"".join(self.conn.data_to_send())
            self._restart_close_timer()
            assert self.conn.close_rcvd is not None  # noqa: S101 - set by this event
            self.queue.put_nowait({"type": "websocket.disconnect", "code": self.conn.close_rcvd.code, "reason": self.conn.close_rcvd.reason})
            return
        self._disconnected.set()
        if self._close_response and not self.close_sent and not self.transport.is_closing():
            self.transport.write(self._close_response)
        super().handle_close(event)

    def shutdown(self) -> None:
        """Close the connection, because the service stops."""
        self._disconnected.set()
        if self._delayed_close is not None:
            self.transport.close()
            return
        super().shutdown()

    async def receive(self) -> Any:  # noqa: ANN401 - an ASGI message
        """Return the next message of the client."""
        message = await super().receive()
        self._input.resume()
        return message

    async def send(self, message: Any) -> None:  # noqa: ANN401 - an ASGI message
        """Send a message of the app, also after the client's Close if the response to the Close is delayed."""
        while not self.writable.is_set():  # a Close can arrive meanwhile
            await self.writable.wait()
        if self._delayed_close is None:
            if message["type"] == "websocket.send" and self._disconnected.is_set():
                raise ClientDisconnected
            await super().send(message)
            self._input.resume()  # a Close of the app lets the client's Close be read
            return
        if self.disconnected:
            raise ClientDisconnected
        if message["type"] == "websocket.send":  # the library sends no data after its own Close
            data = message.get("bytes")
            frame = Frame(Opcode.TEXT, message["text"].encode()) if data is None else Frame(Opcode.BINARY, data)
            self.transport.write(frame.serialize(mask=False))
            self._restart_close_timer()
        elif not self.close_sent:
            self.close_sent = True
            self._stop_close_timer()
            code = message.get("code") or CloseCode.NORMAL_CLOSURE
            cut = Frame(Opcode.CLOSE, Close(code, message.get("reason") or "").serialize())
            self.transport.write(self._delayed_close if code == CloseCode.NORMAL_CLOSURE else cut.serialize(mask=False))
            self.transport.close()

    def pause_writing(self) -> None:
        """Watch a client that reads more slowly than it is sent to."""
        super().pause_writing()
        self._stop_stall_timer()
        self._watch_stall()

    def resume_writing(self) -> None:
        """Stop watching a client that has caught up."""
        super().resume_writing()
        self._stop_stall_timer()

    def _watch_stall(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self._check_stall)

    def _check_stall(self) -> None:
        # Except for pings, nothing is added while writing is paused: fewer bytes mean that the client has read some.
        self._stall_timer = None
        if self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._watch_stall()
        else:
            self._abort()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _restart_close_timer(self) -> None:
        self._stop_close_timer()
        self._close_timer = self.loop.call_later(STALL_TIMEOUT_S, self._abort)

    def _stop_close_timer(self) -> None:
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None

    def _abort(self) -> None:
        self._disconnected.set()
        self.transport.abort()  # closing would wait for the client

    def _refuse(self, message: str) -> None:
        """Answer a bad upgrade like any bad request."""
        request_id = new_request_id()
        error = InvalidRequestError(message, hint="Use a WebSocket client (RFC 6455, version 13).")
        response = errors.problem_response(error, request_id)
        headers = Headers([(name.decode(), value.decode()) for name, value in response.raw_headers])
        headers["Connection"] = "close"
        headers["X-Request-Id"] = request_id
        self.handshake_complete = self.close_sent = True
        self.transport.write(Response(response.status_code, HTTPStatus(response.status_code).phrase, headers, bytes(response.body)).serialize())
        self.transport.close()


def parse_query(client: WebSocket, kind: type[QueryT]) -> QueryT:
    """Return the query parameters of a WebSocket, validated as those of a request.

    Raises:
        InvalidRequestError: A parameter is not valid.
    """
    try:
        return kind.model_validate(dict(client.query_params))
    except ValidationError as error:
        raise errors.validation_error([{**each, "loc": ("query", *each["loc"])} for each in error.errors()]) from None


def close_reason(error: SandlotError) -> str:
    """Return the reason of a Close for an error, cut to the bytes of a control frame."""
    return str(error).encode()[:_REASON_BYTES].decode(errors="ignore")


def close_code(error: SandlotError) -> int:
    """Return the code of a Close for an error."""
    return REFUSED if isinstance(error, InvalidRequestError) else FAILED


def parse_message(text: str) -> dict[str, Any] | None:
    """Return a control message of a client; None if it is not a JSON object or too long for a control message."""
    try:
        message = json.loads(text) if len(text) <= CONTROL_MAX_CHARACTERS else None
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


async def send_json(client: WebSocket, message: Mapping[str, Any]) -> None:
    """Send a JSON message to a client of the native API."""
    await client.send_text(json.dumps(message, separators=(",", ":")))


async def close_with_error(client: WebSocket, error: SandlotError) -> None:
    """Send a problem document to a client of the native API, and close, unless the client has disconnected."""
    if client.application_state is WebSocketState.CONNECTED:
        await send_json(client, {"event": "failure", **errors.problem_document(error, get_request_id(client.scope))})
        await client.close(close_code(error))


async def serve_websocket(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    error_format: ErrorFormat,
    metrics: RequestMetrics,
    keys: Keyring,
    turns: RequestTurns,
    vendor: VendorAuthenticator | None = None,
) -> None:
    """Serve a WebSocket.

    Args:
        app: App with the routes.
        scope: ASGI scope of the WebSocket.
        receive: Receives ASGI messages.
        send: Sends ASGI messages.
        error_format: Format of error responses.
        metrics: Counts requests.
        keys: API keys. The revocation of a key ends its WebSockets.
        turns: Turns of the requests that begin.
        vendor: Checks credentials of the compatibility API that the path belongs to; None if it has none.
    """
    scope.setdefault("state", {})["request_id"] = id_ = choose_request_id(scope["headers"])
    started_s = answered_s = time.perf_counter()
    status = 0
    owner: OwnerId | None = None

    async def send_response(message: Message) -> None:
        nonlocal status, answered_s
        if message["type"] == "websocket.close" and not status:
            # The app closes a WebSocket that no route matches.
            await refuse(NotFoundError(f"There is no WebSocket {scope['path'][:200]}.", code=ErrorCode.NOT_FOUND, hint=error_format.help))
            return
        if message["type"] in {"websocket.accept", "websocket.http.response.start"}:
            status = int(message.get("status", HTTPStatus.SWITCHING_PROTOCOLS))
            answered_s = time.perf_counter()
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", id_.encode())]}
        await send(message)
        if message["type"] == "websocket.send":
            await turns.pause(owner, len(message.get("bytes") or message.get("text") or ""))

    async def refuse(error: SandlotError) -> None:
        if not status:
            await errors.problem_response(error, id_, error_format=error_format)(scope, receive, send_response)
        else:
            await send({"type": "websocket.close", "code": FAILED})

    with structlog.contextvars.bound_contextvars(request=id_):
        try:
            scope["state"]["principal"] = principal = await admit(scope, keys, vendor=vendor)
            owner = None if principal is None else principal.owner
            await turns.take(owner)
            with nullcontext() if principal is None else keys.working_for(principal.owner):
                await app(scope, receive, send_response)
        except Exception as raised:  # noqa: BLE001 - the client gets an internal error
            ordinary, error = errors.ordinary_failure(raised)
            if not ordinary:
                _log.exception("request.defect", request=id_)
                error = errors.internal_error(id_)
            if error is not None:
                await refuse(error)
        finally:
            # The time until the upgrade: for how long a WebSocket is open does not depend on the service.
            metrics.requested("GET", getattr(scope.get("route"), "path", None), status, answered_s - started_s)
            path = scope.get("raw_path", b"")[:200].decode("ascii", "replace")
            _log.info("socket", request=id_, path=path, status=status, ms=round((time.perf_counter() - started_s) * 1000, 1))
