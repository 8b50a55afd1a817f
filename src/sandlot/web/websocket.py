"""WebSockets (RFC 6455): the same protection around each of them as around a request.

Laws:
- Who asks is found out, and everything refused, before the upgrade: until then every failure is the answer that a request would get.
- Nobody makes a socket hold memory: a message has at most 1 MiB and 1,024 parts, what comes is read as it is used, and what goes is sent
  as it is taken. Nothing is compressed.
- A client that answers no ping, or takes nothing of what waits for it, for two minutes is cut off; one that goes away is noticed at once,
  whatever is being done for it.
- A Close is answered at once, but where a route has asked for time (``DELAYED_CLOSE``): for as long as its client takes something every two minutes.
- Sockets count as connections, and stand in the log when they are over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import socket
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

from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.specs import KIB, MIB
from sandlot.web import errors
from sandlot.web.auth import Keyring, VendorAuthenticator, authenticate
from sandlot.web.error_formats import ErrorFormat
from sandlot.web.metrics import RequestMetrics
from sandlot.web.models import QueryModel

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

MESSAGE_MAX_BYTES = 1 * MIB
_REASON_BYTES = 120
"""A frame that controls has 125, two of them for the code (RFC 6455 5.5)."""
MAX_FRAGMENTS = 1024
"""Of one message: each takes memory, and may be empty."""
UNSENT_MAX_BYTES = 256 * KIB
"""Beyond it nobody gets answers to pings; what the app sends waits at 64 KiB already."""
PING_S = 20.0
STALL_TIMEOUT_S = 120.0

NORMAL, REFUSED, FAILED = 1000, 1008, 1011
"""Codes of a close, RFC 6455 7.4.1."""

DISCONNECTED = "gone"
"""What a socket's state has: an event that is set when its client has gone away."""
DELAYED_CLOSE = "lingers"
"""What a socket's state is given by who goes on sending to a client that has said Close, until it is done itself (RFC 6455 5.5.1)."""

QueryT = TypeVar("QueryT", bound=QueryModel)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_log = structlog.get_logger("sandlot.http")
_uvicorn_log = logging.getLogger("sandlot.websockets")
_uvicorn_log.setLevel(logging.CRITICAL)  # uvicorn would log whole URLs; what happened stands in our own log


class SandlotWebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection, from its upgrade on."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._gone = asyncio.Event()
        super().__init__(config, server_state, {**app_state, DISCONNECTED: self._gone}, _loop)
        self.logger = _uvicorn_log
        self.is_local = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._farewell: bytes | None = None
        """The answer to a Close that the client has said, which is not given yet."""
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See where it comes from."""
        super().connection_made(transport)
        link = transport.get_extra_info("socket")
        self.is_local = link is not None and link.family == socket.AF_UNIX

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._flows_again()
        self._wait_no_more()
        self._gone.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self.close_sent and self.transport.is_closing():
            return
        self.conn.receive_data(data)
        if self.conn.parser_exc is not None and not self.handshake_initiated:
            self._refuse("The request is none that could become a WebSocket.")
        elif self.conn.parser_exc is not None:
            self._gone.set()
            self.handle_parser_exception()
        else:
            self.handle_events()

    def handle_connect(self, event: Request) -> None:
        """The upgrade was asked for."""
        probe = self.conn.accept(event)
        if probe.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._refuse(f"The upgrade to a WebSocket is not well-formed: {probe.body.decode('utf-8', 'replace').strip()[:300]}")
            return
        super().handle_connect(event)

    def handle_cont(self, event: Frame) -> None:
        """A part of a message that is not its first."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self._abort()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping."""
        if self.transport.get_write_buffer_size() > UNSENT_MAX_BYTES:
            self._abort()
            return
        super().handle_ping()

    def handle_close(self, event: Frame) -> None:
        """The client leaves."""
        if self.handshake_complete and not self.close_sent and self.scope["state"].get(DELAYED_CLOSE) and not self.transport.is_closing():
            self.stop_keepalive()
            self._farewell = b"".join(self.conn.data_to_send())
            self._wait_on()
            assert self.conn.close_rcvd is not None  # noqa: S101 - what this event is
            self.queue.put_nowait({"type": "websocket.disconnect", "code": self.conn.close_rcvd.code, "reason": self.conn.close_rcvd.reason})
            return
        self._gone.set()
        super().handle_close(event)

    def shutdown(self) -> None:
        """The service ends."""
        self._gone.set()
        if self._farewell is not None:
            self.transport.close()
            return
        super().shutdown()

    async def send(self, message: Any) -> None:  # noqa: ANN401 - ASGI's
        """Send what the app says; also to a client that has said Close, where that waits for it."""
        while not self.writable.is_set():  # a Close may come meanwhile
            await self.writable.wait()
        if self._farewell is None:
            await super().send(message)
            return
        if self.disconnected:
            raise ClientDisconnected
        if message["type"] == "websocket.send":  # the library sends nothing more by itself: its own Close is made already
            data = message.get("bytes")
            frame = Frame(Opcode.TEXT, message["text"].encode()) if data is None else Frame(Opcode.BINARY, data)
            self.transport.write(frame.serialize(mask=False))
            self._wait_on()
        elif not self.close_sent:
            self.close_sent = True
            self._wait_no_more()
            code = message.get("code") or CloseCode.NORMAL_CLOSURE
            cut = Frame(Opcode.CLOSE, Close(code, message.get("reason") or "").serialize())
            self.transport.write(self._farewell if code == CloseCode.NORMAL_CLOSURE else cut.serialize(mask=False))
            self.transport.close()

    def pause_writing(self) -> None:
        """Its client takes less than it is sent."""
        super().pause_writing()
        self._flows_again()
        self._watch_stall()

    def resume_writing(self) -> None:
        """Its client has caught up."""
        super().resume_writing()
        self._flows_again()

    def _watch_stall(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self._maybe_stalled)

    def _maybe_stalled(self) -> None:
        # But for pings nothing is added while it is paused: fewer bytes mean that some were taken.
        self._stall_timer = None
        if self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._watch_stall()
        else:
            self._abort()

    def _flows_again(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _wait_on(self) -> None:
        self._wait_no_more()
        self._patience = self.loop.call_later(STALL_TIMEOUT_S, self._abort)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _abort(self) -> None:
        self._gone.set()
        self.transport.abort()  # closing would wait for the client

    def _refuse(self, why: str) -> None:
        """Answer a bad upgrade as any bad request."""
        request_id = secrets.token_hex(8)
        error = InvalidRequestError(why, hint="Use a WebSocket client (RFC 6455, version 13).")
        told = errors.problem_response(error, request_id)
        headers = Headers([(name.decode(), value.decode()) for name, value in told.raw_headers])
        headers["Connection"] = "close"
        headers["X-Request-Id"] = request_id
        self.handshake_complete = self.close_sent = True
        self.transport.write(Response(told.status_code, HTTPStatus(told.status_code).phrase, headers, bytes(told.body)).serialize())
        self.transport.close()


def parse_query(asked: WebSocket, kind: type[QueryT]) -> QueryT:
    """What stands in a socket's query, checked as a request's is.

    Raises:
        InvalidRequestError: Something in it is wrong.
    """
    try:
        return kind.model_validate(dict(asked.query_params))
    except ValidationError as error:
        raise errors.validation_error([{**each, "loc": ("query", *each["loc"])} for each in error.errors()]) from None


def close_reason(error: SandlotError) -> str:
    """What a close says of an error: as much of it as fits into its frame."""
    return str(error).encode()[:_REASON_BYTES].decode(errors="ignore")


def close_code(error: SandlotError) -> int:
    """The code with which a socket is closed that failed."""
    return REFUSED if isinstance(error, InvalidRequestError) else FAILED


async def send_json(client: WebSocket, message: Mapping[str, Any]) -> None:
    """Send a client of the native API a message that is no bytes."""
    await client.send_text(json.dumps(message, separators=(",", ":")))


async def close_with_error(client: WebSocket, error: SandlotError) -> None:
    """Tell a client of the native API what went wrong, and close; where it is not gone."""
    if client.application_state is WebSocketState.CONNECTED:
        await send_json(client, {"event": "failure", **errors.problem_document(error, str(client.scope["state"].get("request_id", "")))})
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
    admit: VendorAuthenticator | None = None,
) -> None:
    """Serve one socket.

    Args:
        app: What does.
        scope: ASGI's.
        receive: ASGI's.
        send: ASGI's.
        error_format: Who tells its failures.
        metrics: Where it is counted.
        keys: Who may ask; a key that is revoked ends its sockets.
        admit: Whom a door lets in without one.
    """
    given = dict(scope["headers"]).get(b"x-request-id", b"")
    id_ = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
    scope.setdefault("state", {})["request_id"] = id_
    began_s = answered_s = time.perf_counter()
    status = 0

    async def send_response(message: Message) -> None:
        nonlocal status, answered_s
        if message["type"] == "websocket.close" and not status:
            # Nobody answers there.
            await refuse(NotFoundError(f"There is no WebSocket {scope['path'][:200]}.", code=ErrorCode.NOT_FOUND, hint=error_format.help))
            return
        if message["type"] in {"websocket.accept", "websocket.http.response.start"}:
            status = int(message.get("status", HTTPStatus.SWITCHING_PROTOCOLS))
            answered_s = time.perf_counter()
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", id_.encode())]}
        await send(message)

    async def refuse(error: SandlotError) -> None:
        if not status:
            await errors.problem_response(error, id_, error_format=error_format)(scope, receive, send_response)
        else:
            await send({"type": "websocket.close", "code": FAILED})

    with structlog.contextvars.bound_contextvars(request=id_):
        try:
            scope["state"]["principal"] = principal = await authenticate(scope, keys, admit=admit)
            with nullcontext() if principal is None else keys.working_for(principal.owner):
                await app(scope, receive, send_response)
        except SandlotError as error:
            await refuse(error)
        except Exception:  # noqa: BLE001 - the client is told that there was one
            _log.exception("request.defect", request=id_)
            await refuse(errors.internal_error())
        finally:
            # How long it took to be opened; how long it was open says nothing of the service.
            metrics.requested("GET", getattr(scope.get("route"), "path", None), status, answered_s - began_s)
            path = scope.get("raw_path", b"")[:200].decode("ascii", "replace")
            _log.info("socket", request=id_, path=path, status=status, ms=round((time.perf_counter() - began_s) * 1000, 1))
