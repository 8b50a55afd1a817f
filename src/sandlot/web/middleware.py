"""Around every request: its id, who asks, how much it may send, what became of it, and one line in the log.

Laws:
- Nobody is answered, and no byte of a body is read, before the key was checked; a key that is revoked ends what is under way with it.
- A body that is too large is answered with 413, one that is streamed and larger than its sender's quota with 429. The rest of it is read
  and thrown away within bounds first, because a client that is cut off while it sends seldom reads the answer.
- What a client sends beyond 64 KiB to be parsed, and what waits to be taken of an answer, is counted (``model/buffer_budget.py``); where
  there is no memory for a body, it is answered with 503 in the same way.
- A body of which nothing comes for two minutes is given up.
- A defect is a 500 that tells nothing; where the answer had begun, the connection is cut, so that nobody takes half for whole.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandlot.core.node import Node
from sandlot.model.access import UNBOUNDED, check_upload
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import LimitError, SandlotError, UnavailableError
from sandlot.model.specs import KIB, MIB
from sandlot.web import errors, websocket
from sandlot.web.auth import Keyring, Signatures, VendorAuthenticator, authenticate
from sandlot.web.error_formats import ErrorFormat, ErrorFormatSelector
from sandlot.web.errors import BodyRefusedError
from sandlot.web.metrics import RequestMetrics

JSON_MAX_BYTES = 8 * MIB
UNCOUNTED_BYTES = 64 * KIB
"""Of every body and every answer: not counted, because the number of connections bounds them."""
CHUNK_BYTES = 64 * KIB
"""What of an answer is given to the connection at once; the rest waits here, where it is counted."""
BODY_TIMEOUT_S = 120.0

DRAIN_MAX_BYTES = 64 * MIB
DRAIN_TIMEOUT_S = 10.0
SHORT_DRAIN_TIMEOUT_S = 2.0
"""For what is on its way already: a client that is still sending when its connection is closed never reads why."""

_DRAINED = frozenset({HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_NOT_DRAINED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_TIMEOUT})
"""Nothing more is taken from strangers, nor from who sends nothing."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_log = structlog.get_logger("sandlot.http")


class RequestMiddleware:
    """The outermost layer of the app.

    Args:
        app: What answers.
        keys: Who may ask over TCP.
        upload_max_bytes: The limit of routes that stream their body.
        buffers: Of the memory that is held for clients.
        metrics: Where requests and failures are counted.
        error_formats: Who tells failures.
        signatures: Who knows which URLs need no key; None where none were signed.
        node: What doors ask who sends a request that shows something of theirs in place of a key; None where there are none.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keyring,
        upload_max_bytes: int,
        buffers: BufferBudget,
        metrics: RequestMetrics,
        error_formats: ErrorFormatSelector = errors.NATIVE_FORMATS,
        signatures: Signatures | None = None,
        node: Node | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._upload_max_bytes = upload_max_bytes
        self._buffers = buffers
        self._metrics = metrics
        self._error_formats = error_formats
        self._signatures = signatures
        self._core = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] not in {"http", "websocket"}:
            return  # no lifespan to speak of
        error_format = self._error_formats.select(scope["path"])
        if scope["type"] == "websocket":
            admit = self._admission(error_format)
            await websocket.serve_websocket(
                self._app, scope, receive, send, error_format=error_format, metrics=self._metrics, keys=self._keys, admit=admit
            )
            return
        exchange = _HttpExchange(scope, receive, send, self._buffers, error_format)
        raw = error_format.takes_raw(scope["path"])
        exchange.limit(self._upload_max_bytes + exchange.form_bytes if raw else JSON_MAX_BYTES, raw=raw)
        # Whatever is logged on the way carries the request's id, also in tasks that are begun on the way.
        with structlog.contextvars.bound_contextvars(request=exchange.id):
            await self._answer(scope, exchange, self._admission(error_format))

    def _admission(self, error_format: ErrorFormat) -> VendorAuthenticator | None:
        """Whom the door of a request lets in without a key."""
        admit, node = error_format.authenticate, self._core
        return None if admit is None or node is None else lambda scope: admit(scope, node)

    async def _answer(self, scope: Scope, exchange: _HttpExchange, admit: VendorAuthenticator | None) -> None:
        try:
            scope["state"]["principal"] = principal = await authenticate(scope, self._keys, self._signatures, admit)
            exchange.quota = principal.quota if principal is not None else UNBOUNDED
            exchange.check_announced()
            with nullcontext() if principal is None else self._keys.working_for(principal.owner):
                await self._app(scope, exchange.receive, exchange.send)
        except BodyRefusedError as error:
            await exchange.refuse(error.error)
        except SandlotError as error:
            await exchange.refuse(error)
        except Exception:
            _log.exception("request.defect", request=exchange.id)
            if exchange.status:
                raise
            await exchange.refuse(errors.internal_error())
        finally:
            exchange.close()
            exchange.log(self._metrics)


class _HttpExchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, buffers: BufferBudget, error_format: ErrorFormat) -> None:
        self._buffers = buffers
        self._error_format = error_format
        self._held_bytes = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._began_s = time.perf_counter()
        self._limit = 0
        self._raw = False
        self._taken = 0
        self._more = True
        self.status = 0
        self.quota = UNBOUNDED
        """Of who sends it: bounds a body that is streamed."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        self.id = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        length = headers.get(b"content-length", b"0")
        self.form_bytes = UNCOUNTED_BYTES if headers.get(b"content-type", b"").lower().startswith(b"multipart/") else 0
        """What a form may have beside its file."""
        self._announced = int(length) if length.isdigit() else 0
        self._has_body = self._announced > 0 or b"transfer-encoding" in headers
        scope.setdefault("state", {})["request_id"] = self.id

    def limit(self, limit: int, *, raw: bool) -> None:
        self._limit, self._raw = limit, raw

    def check_announced(self) -> None:
        self._check(self._announced)

    async def receive(self) -> Message:
        try:
            # After the last of it, what is waited for is the client's going away.
            async with asyncio.timeout(BODY_TIMEOUT_S if self._has_body and self._more else None):
                message = await self._receive()
        except TimeoutError:
            raise BodyRefusedError(errors.body_timeout_error(BODY_TIMEOUT_S)) from None
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            self._more = message.get("more_body", False)
            self._check(self._taken)
            self._hold()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            headers: list[tuple[bytes, bytes]] = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
            if self.status in _DRAINED:
                await self._drain(DRAIN_TIMEOUT_S)
            elif self.status >= HTTPStatus.BAD_REQUEST and self.status not in _NOT_DRAINED:
                await self._drain(SHORT_DRAIN_TIMEOUT_S)
            if self._has_body and self._more and self.status >= HTTPStatus.BAD_REQUEST:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        body = message.get("body", b"")
        if len(body) <= CHUNK_BYTES:
            await self._send(message)
            return
        # The connection takes whatever it is given, however slowly its client reads: piece by piece it waits for that.
        self._buffers.take_anyway(len(body))
        try:
            for at in range(0, len(body), CHUNK_BYTES):
                last = at + CHUNK_BYTES >= len(body)
                await self._send({**message, "body": body[at : at + CHUNK_BYTES], "more_body": not last or message.get("more_body", False)})
        finally:
            self._buffers.give(len(body))

    def close(self) -> None:
        self._buffers.give(self._held_bytes)
        self._held_bytes = 0

    async def refuse(self, error: SandlotError) -> None:
        if not self.status:
            errors.record_failure(self._scope, error)
            await errors.problem_response(error, self.id, error_format=self._error_format)(self._scope, self.receive, self.send)

    def log(self, metrics: RequestMetrics) -> None:
        took_s = time.perf_counter() - self._began_s
        failure = self._scope["state"].get("failure")
        route = getattr(self._scope.get("route"), "path", None)  # a door's says nothing of the door's prefix
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
        """Refuse a body of that size."""
        if size_bytes > self._limit:
            raise BodyRefusedError(errors.body_too_large_error(self._limit, raw=self._raw))
        if self._raw:
            try:
                check_upload(self.quota, size_bytes - self.form_bytes)
            except LimitError as error:
                raise BodyRefusedError(error) from None

    def _hold(self) -> None:
        """Count what was read of a body that is kept to be parsed."""
        more = 0 if self._raw else max(0, self._taken - UNCOUNTED_BYTES) - self._held_bytes
        try:
            self._buffers.take(more)
        except UnavailableError as error:
            raise BodyRefusedError(error) from None
        self._held_bytes += more

    async def _drain(self, timeout_s: float) -> None:
        drained = 0
        try:
            async with asyncio.timeout(timeout_s):
                while self._has_body and self._more and drained < DRAIN_MAX_BYTES:
                    message = await self._receive()
                    drained += len(message.get("body", b""))
                    self._more = message.get("more_body", False)
        except TimeoutError:
            pass  # the connection is closed instead


def state(request: Request) -> dict[str, Any]:
    """What the listener and this layer know of a request."""
    known: dict[str, Any] = request.scope.get("state", {})
    return known
