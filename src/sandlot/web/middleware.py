"""The middleware around every request: request id, authentication, body limits, error responses, metrics and the log line.

Invariants:
- The API key is checked before a byte of the body is read and before any route runs. The revocation of a key ends its open requests.
- A body that exceeds its limit is answered with 413, a streamed body that exceeds its sender's quota with 429. The rest of the body is read and
  dropped first, up to a limit, because a client that is cut off while it sends seldom reads the response. Without a key, nothing is read and the
  connection is closed.
- The app receives a body that is not streamed as a whole: chunks of a few bytes would take many times their memory.
- The memory of bodies that are held to be parsed, beyond 64 KiB each, and of response chunks that wait for the client is taken from a budget
  (``model/buffer_budget.py``). Without memory for a body, the response is 503, sent in the same way.
- A request whose body does not arrive for two minutes ends with 408.
- A defect is answered with 500 and without details. If the response has begun, the connection is closed instead, so that no client takes a part for
  the whole.
- Only a defect logs a traceback. A failure that a client or a sandbox can cause, also in the middle of a response, adds its code to the line of the
  request.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from http import HTTPStatus

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandlot.core.node import Node
from sandlot.model.access import UNBOUNDED, OwnerId, check_upload
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.errors import LimitError, SandlotError, UnavailableError
from sandlot.model.specs import KIB, MIB
from sandlot.web import errors, websocket
from sandlot.web.auth import Keyring, Signatures, VendorAuthenticator, admit
from sandlot.web.body_limits import BodyLimit, BodyLimits
from sandlot.web.error_formats import ErrorFormat, ErrorFormatSelector
from sandlot.web.errors import BodyRefusedError, ResponseInterruptedError
from sandlot.web.json_body import INLINE_MAX_BYTES
from sandlot.web.metrics import RequestMetrics
from sandlot.web.request_id import choose_request_id
from sandlot.web.request_turns import RequestTurns

UNCOUNTED_BYTES = 64 * KIB
"""Part of every body and response that is not taken from the budget: the number of connections limits these bytes."""
CHUNK_BYTES = 64 * KIB
"""Part of a response that is passed to the connection at once. The rest waits here, where it is counted."""
WIDE_TEXT = 5
"""Memory of a parsed body as a multiple of its bytes, if its text is not ASCII: one character in a string makes all of them four bytes wide."""
BODY_TIMEOUT_S = 120.0
MAX_LENGTH_DIGITS = 20
"""Digits of the largest Content-Length."""

DRAIN_MAX_BYTES = 64 * MIB
DRAIN_TIMEOUT_S = 10.0
SHORT_DRAIN_TIMEOUT_S = 2.0
"""For bytes that are already on their way: a client that still sends when its connection is closed never reads the response."""

_DRAINED = frozenset({HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_log = structlog.get_logger("sandlot.http")


class RequestMiddleware:
    """The outermost layer of the app.

    Args:
        app: The app with its routes.
        keys: API keys for clients that come over TCP.
        body_limits: Limits of request bodies.
        buffers: Budget of the memory that is held for clients.
        metrics: Counts requests and error responses.
        turns: Turns of the requests that begin.
        error_formats: Formats of error responses.
        signatures: Checks signed URLs; None if there are none.
        node: Passed to vendors that authenticate requests themselves; None without compatibility APIs.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keyring,
        body_limits: BodyLimits,
        buffers: BufferShares,
        metrics: RequestMetrics,
        turns: RequestTurns,
        error_formats: ErrorFormatSelector = errors.NATIVE_FORMATS,
        signatures: Signatures | None = None,
        node: Node | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._body_limits = body_limits
        self._buffers = buffers
        self._metrics = metrics
        self._error_formats = error_formats
        self._signatures = signatures
        self._node = node
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or serve a WebSocket."""
        if scope["type"] not in {"http", "websocket"}:
            return  # the app has no lifespan events
        error_format = self._error_formats.select(scope["path"])
        vendor = self._vendor_authenticator(error_format)
        if scope["type"] == "websocket":
            await websocket.serve_websocket(
                self._app, scope, receive, send, error_format=error_format, metrics=self._metrics, keys=self._keys, vendor=vendor, turns=self._turns
            )
            return
        limit = self._body_limits.find(scope["method"], scope["path"])
        exchange = _HttpExchange(scope, receive, send, self._buffers, self._turns, error_format, limit)
        # Log lines of the request carry its id, also those of tasks that it starts.
        with structlog.contextvars.bound_contextvars(request=exchange.id):
            await self._respond(scope, exchange, vendor)

    def _vendor_authenticator(self, error_format: ErrorFormat) -> VendorAuthenticator | None:
        authenticate_request, node = error_format.authenticate, self._node
        return None if authenticate_request is None or node is None else lambda scope: authenticate_request(scope, node)

    async def _respond(self, scope: Scope, exchange: _HttpExchange, vendor: VendorAuthenticator | None) -> None:
        try:
            scope["state"]["principal"] = principal = await admit(scope, self._keys, self._signatures, vendor)
            exchange.has_key = principal is not None
            exchange.quota = principal.quota if principal is not None else UNBOUNDED
            await exchange.begin(None if principal is None else principal.owner)
            exchange.check_content_length()
            with nullcontext() if principal is None else self._keys.working_for(principal.owner):
                await self._app(scope, exchange.receive, exchange.send)
        except Exception as raised:  # noqa: BLE001 - the client gets an internal error
            ordinary, error = errors.ordinary_failure(raised)
            if not ordinary:
                _log.exception("request.defect", request=exchange.id)
                error = errors.internal_error(exchange.id)
            if error is not None:
                errors.record_failure(scope, error)
            if not exchange.status and error is not None:
                await exchange.refuse(error)
            elif not exchange.is_complete:
                raise ResponseInterruptedError from None
        finally:
            exchange.close()
            exchange.log(self._metrics)


class _HttpExchange:
    """A request and its response."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, buffers: BufferShares, turns: RequestTurns, error_format: ErrorFormat, limit: BodyLimit
    ) -> None:
        self._shares = buffers
        self._buffers = buffers.of(None)
        self._turns = turns
        self._owner: OwnerId | None = None
        self._error_format = error_format
        self._limit = limit
        self._held_bytes = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started_s = time.perf_counter()
        self._received_bytes = 0
        self._more = True
        self.status = 0
        """HTTP status; 0 until the response has begun."""
        self.has_key = False
        """True once the sender is authenticated."""
        self.is_complete = False
        """True once the whole response was sent."""
        self.quota = UNBOUNDED
        """Quota of the sender, which limits streamed bodies."""
        self.id = choose_request_id(scope["headers"])
        headers: dict[bytes, bytes] = dict(scope["headers"])
        length = headers.get(b"content-length", b"").lstrip(b"0")
        # int() refuses thousands of digits; the parser of HTTP has refused lengths of more than 64 bits.
        self._content_length = int(length[:MAX_LENGTH_DIGITS]) if length.isdigit() else 0
        self._has_body = self._content_length > 0 or b"transfer-encoding" in headers
        is_form = limit.is_streamed and headers.get(b"content-type", b"").lower().startswith(b"multipart/")
        self._form_bytes = UNCOUNTED_BYTES if is_form else 0
        """Allowance for the parts of a form beside its file."""
        scope.setdefault("state", {})["request_id"] = self.id

    async def begin(self, owner: OwnerId | None) -> None:
        """Wait for the turn of the request. From now on, memory is taken from the share of the sender's key."""
        self._owner = owner
        self._buffers = self._shares.of(owner)
        await self._turns.take(owner, 0 if self._limit.is_streamed else self._content_length)

    def check_content_length(self) -> None:
        """Refuse a body that is too large by its Content-Length."""
        self._check(self._content_length)

    async def receive(self) -> Message:
        """Receive a message of the client, within the limits of the body. A body that is not streamed is one message."""
        message = await self._receive_part()
        if self._limit.is_streamed or message["type"] != "http.request":
            return message
        body: bytes | bytearray = message.get("body", b"")
        if self._more:
            body = bytearray(body)
            while self._more:
                message = await self._receive_part()
                if message["type"] != "http.request":
                    return message
                body += message.get("body", b"")
        if len(body) > INLINE_MAX_BYTES and not (body.isascii() and b"\\u" not in body):
            self._hold(len(body) * WIDE_TEXT)
        if body and not self._content_length:
            self._turns.charge(self._owner, len(body))
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    async def _receive_part(self) -> Message:
        try:
            # After the end of the body, the only message to wait for is the disconnection.
            async with asyncio.timeout(BODY_TIMEOUT_S if self._has_body and self._more else None):
                message = await self._receive()
        except TimeoutError:
            raise BodyRefusedError(errors.body_timeout_error(BODY_TIMEOUT_S)) from None
        if message["type"] == "http.request":
            self._received_bytes += len(message.get("body", b""))
            self._more = message.get("more_body", False)
            self._check(self._received_bytes)
            self._hold(self._received_bytes)
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the app. Large bodies are sent in chunks."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            headers: list[tuple[bytes, bytes]] = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
            if not self.has_key:
                pass
            elif self.status in _DRAINED:
                await self._drain(DRAIN_TIMEOUT_S)
            elif self.status >= HTTPStatus.BAD_REQUEST and self.status != HTTPStatus.REQUEST_TIMEOUT:  # that client sends nothing
                await self._drain(SHORT_DRAIN_TIMEOUT_S)
            if self._has_body and self._more and (self.status >= HTTPStatus.BAD_REQUEST or not self.has_key):
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        body = message.get("body", b"")
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if len(body) <= CHUNK_BYTES:
            await self._send(message)
            self.is_complete = is_last
            if body and not is_last:
                await self._turns.pause(self._owner, len(body))
            return
        # The connection accepts everything at once, however slowly the client reads. After each chunk, sending waits for the client.
        self._buffers.take_anyway(len(body))
        try:
            for at in range(0, len(body), CHUNK_BYTES):
                last = at + CHUNK_BYTES >= len(body)
                await self._send({**message, "body": body[at : at + CHUNK_BYTES], "more_body": not last or message.get("more_body", False)})
                if not last:
                    await self._turns.pause(self._owner, CHUNK_BYTES)
            self.is_complete = is_last
        finally:
            self._buffers.give(len(body))

    def close(self) -> None:
        """Give the memory of the body back."""
        self._buffers.give(self._held_bytes)
        self._held_bytes = 0

    async def refuse(self, error: SandlotError) -> None:
        """Send an error response, unless a response has begun."""
        if not self.status:
            errors.record_failure(self._scope, error)
            await errors.problem_response(error, self.id, error_format=self._error_format)(self._scope, self.receive, self.send)

    def log(self, metrics: RequestMetrics) -> None:
        """Count and log the request."""
        took_s = time.perf_counter() - self._started_s
        failure = self._scope["state"].get("failure")
        route = getattr(self._scope.get("route"), "path", None)  # without the prefix of a compatibility API
        metrics.requested(self._scope["method"], route and self._error_format.prefix + route, self.status, took_s)
        if failure is not None:
            metrics.failed(failure)
        _log.info(
            "request",
            request=self.id,
            method=self._scope["method"],
            path=self._scope.get("raw_path", b"")[:200].decode("ascii", "replace"),
            status=self.status,
            ms=round(took_s * 1000, 1),
            **({} if failure is None else {"code": str(failure)}),
        )

    def _check(self, size_bytes: int) -> None:
        """Refuse a body of this size if it exceeds the limit or the quota."""
        if size_bytes > self._limit.max_bytes + self._form_bytes:
            raise BodyRefusedError(errors.body_too_large_error(self._limit.max_bytes, is_upload=self._limit.is_streamed))
        if self._limit.is_streamed:
            try:
                check_upload(self.quota, size_bytes - self._form_bytes)
            except LimitError as error:
                raise BodyRefusedError(error) from None

    def _hold(self, size_bytes: int) -> None:
        """Take the memory of a body that is held to be parsed."""
        more = 0 if self._limit.is_streamed else max(0, size_bytes - UNCOUNTED_BYTES) - self._held_bytes
        try:
            self._buffers.take(more)
        except UnavailableError as error:
            raise BodyRefusedError(error) from None
        self._held_bytes += more

    async def _drain(self, timeout_s: float) -> None:
        """Read and drop the rest of the body."""
        drained = 0
        try:
            async with asyncio.timeout(timeout_s):
                while self._has_body and self._more and drained < DRAIN_MAX_BYTES:
                    message = await self._receive()
                    drained += len(message.get("body", b""))
                    self._more = message.get("more_body", False)
        except TimeoutError:
            pass  # the connection is closed instead
