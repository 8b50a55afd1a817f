"""One client connection of the preview listener: reads requests, forwards each to its program, and sends the response.

Invariants:
- Each request is authorized for itself: the requests of one connection may be for several sandboxes.
- Each message is parsed, and written anew by its own rules of framing. Bytes that follow a request are never part of what its program receives.
- Bodies pass in pieces, and each side is read only as fast as the other one takes. After an upgrade, bytes are copied.
- The handshake of TLS and the first head must arrive within 30 s, the next request within 75 s, and each further piece of a body within 120 s. A
  client that reads nothing of a response for 120 s is disconnected. A program has any time to respond, and 600 s to read each further piece of a
  body.
- Access that ends, with its token, its key or public ports, ends open requests and WebSockets within 10 s.
- If the client leaves, its program sees the end of the connection. If the program ends in the middle of a response, the client's connection is reset,
  so that no client takes a part for the whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Protocol

import h11
import structlog
from starlette.types import ASGIApp

from sandlot.compat.vendor import VendorApi
from sandlot.core.node import Node
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandlotError, UnavailableError
from sandlot.model.previews import PreviewAccess
from sandlot.server.preview import forwarding
from sandlot.server.preview.app_exchange import AppExchange, AppRequest, decoded_path, find_app_request
from sandlot.server.preview.client_stream import ClientStream
from sandlot.server.preview.forwarding import Client, Headers, PreviewRequest
from sandlot.server.preview.http_events import HttpEvents
from sandlot.server.preview.program_connection import ProgramConnection, ProgramConnections
from sandlot.server.preview.responses import OwnResponse, ProgramError, bad_response_error, error_response, not_listening
from sandlot.web.connections import Connection
from sandlot.web.errors import body_timeout_error
from sandlot.web.preview_urls import PreviewAddress
from sandlot.web.request_id import choose_request_id
from sandlot.web.request_turns import RequestTurns

HEAD_TIMEOUT_S: Final = 30.0
KEEP_ALIVE_S: Final = 75.0
BODY_TIMEOUT_S: Final = 120.0
STALL_TIMEOUT_S: Final = 120.0
MAX_REFUSALS: Final = 16
"""Number of wrong requests in a row after which a connection is closed."""
MAX_INFORMATIONAL: Final = 32
"""Largest number of informational responses of a program to one request."""
ACCESS_CHECK_S: Final = 10.0
"""Interval at which the access of a request that takes long is checked again."""
DRAIN_TIMEOUT_S: Final = 2.0
DRAIN_MAX_BYTES: Final = 64 * 1024 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEAD_FIELDS: Final = 128

_REPEATABLE = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_CLOSING = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
"""Responses after which the connection is closed: the client may have another opinion of where its request ends."""
_log = structlog.get_logger("sandlot.preview")


class Forwarder(Protocol):
    """Parts of the listener that all its connections use."""

    node: Node
    address: PreviewAddress
    programs: ProgramConnections
    turns: RequestTurns
    app: ASGIApp
    vendors: Sequence[VendorApi]

    def client_of(self, peer: str, headers: Headers, *, is_tls: bool) -> Client:
        """Return the client of a request, which a trusted proxy may have forwarded."""
        ...


class ClientConnection:
    """One client connection.

    Args:
        stream: Bytes of the connection.
        share: Place of the connection among all connections.
        forwarder: Parts that all connections use.
    """

    def __init__(self, stream: ClientStream, share: Connection, forwarder: Forwarder) -> None:
        self._stream = stream
        self._share = share
        self._forwarder = forwarder
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.events = HttpEvents(self._http, stream.read)
        """Events of the client."""
        self.refusals = 0
        """Number of the latest requests in a row that were wrong."""

    async def serve(self) -> None:
        """Serve requests until the connection ends."""
        timeout_s = HEAD_TIMEOUT_S
        try:
            while True:
                request = await self._next_request(timeout_s)
                if request is None:
                    return
                await asyncio.sleep(0)  # requests that arrived together do not hold up the event loop
                self._share.begin_request()
                try:
                    await self._respond_to(request)
                finally:
                    self._share.end_request()
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    return
                self._http.start_next_cycle()
                timeout_s = KEEP_ALIVE_S
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, str(error))
        except UnavailableError as error:
            await self._respond_and_close(error_response(error, "", is_page=False))
        except (ConnectionResetError, TimeoutError):
            self._stream.transport.abort()

    async def _respond_to(self, request: h11.Request) -> None:
        self._share.count_for_address(request.headers)
        peer = self._forwarder.client_of(self._stream.address, list(request.headers), is_tls=self._stream.is_tls)
        app_request = self._find_app_request(request)
        if app_request is None:
            exchange = _Exchange(self, self._stream, self._share, self._forwarder, request, peer)
            self.refusals = self.refusals + 1 if await exchange.run() else 0
        else:
            for_app = AppExchange(self._http, self.events, self._stream, self._share, self._forwarder.app, STALL_TIMEOUT_S)
            await for_app.run(request, app_request, peer)
            await self.drain()

    def rest(self) -> bytes:
        """Return the bytes that arrived behind the request for an upgrade."""
        return bytes(self._http.trailing_data[0])

    async def send(self, event: h11.Event) -> None:
        """Send an event of the response, and wait while the client does not read.

        Raises:
            ConnectionResetError: The connection is closed.
            TimeoutError: The client does not read.
        """
        if data := self._http.send(event):
            await self._stream.write(data, STALL_TIMEOUT_S)

    def _find_app_request(self, request: h11.Request) -> AppRequest | None:
        headers: Headers = list(request.headers)
        if len(headers) > MAX_HEAD_FIELDS or forwarding.has_two_lengths(headers):
            return None  # refused as every other request
        host = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
        return find_app_request(host, decoded_path(request.target), headers, self._forwarder.address, self._forwarder.vendors)

    async def drain(self) -> None:
        """Read and drop the rest of a body whose request was answered before its end: a client that is cut off seldom reads the response."""
        drained = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self._http.their_state is h11.SEND_BODY and drained < DRAIN_MAX_BYTES:
                    event = await self.events.next()
                    drained += len(event.data) if isinstance(event, h11.Data) else 0

    async def _next_request(self, timeout_s: float) -> h11.Request | None:
        """Return the next request; None at the end of the connection."""
        async with asyncio.timeout(timeout_s) as waiting:
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    return event
                if event is not h11.NEED_DATA:
                    return None
                data = await self._stream.read()
                if timeout_s != HEAD_TIMEOUT_S:  # the next head has begun
                    timeout_s = HEAD_TIMEOUT_S
                    waiting.reschedule(asyncio.get_running_loop().time() + HEAD_TIMEOUT_S)
                self._http.receive_data(data)

    async def _refuse(self, status: int, reason: str) -> None:
        """Respond to bytes that are no request, if a response can be sent."""
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE} or self._stream.transport.is_closing():
            return
        code = ErrorCode.TOO_LARGE if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE else ErrorCode.INVALID_REQUEST
        error = InvalidRequestError(f"The request is not valid HTTP: {reason}.", code=code, hint="Send an HTTP/1.1 request.")
        await self._respond_and_close(replace(error_response(error, "", is_page=False), status=status))

    async def _respond_and_close(self, response: OwnResponse) -> None:
        headers = [*response.headers, (b"connection", b"close")]
        with suppress(ConnectionResetError, TimeoutError, h11.LocalProtocolError):
            await self.send(h11.Response(status_code=response.status, reason=HTTPStatus(response.status).phrase, headers=headers))
            await self.send(h11.Data(data=response.body))
            await self.send(h11.EndOfMessage())


class _Exchange:
    """A request and its response."""

    def __init__(
        self, client: ClientConnection, stream: ClientStream, share: Connection, forwarder: Forwarder, request: h11.Request, peer: Client
    ) -> None:
        self._client = client
        self._stream = stream
        self._share = share
        self._forwarder = forwarder
        self._peer = peer
        self._method: bytes = request.method
        self._target: bytes = request.target
        self._headers: Headers = list(request.headers)
        self._is_http_1_0 = request.http_version == b"1.0"
        self._has_body = any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in self._headers)
        self._is_page = self._method in {b"GET", b"HEAD"} and any(name == b"accept" and b"text/html" in value for name, value in self._headers)
        self._id = choose_request_id(self._headers)
        self._started_s = time.perf_counter()
        self._status = 0
        self._access: PreviewAccess | None = None
        self._next_check: asyncio.TimerHandle

    async def run(self) -> bool:
        """Forward the request, or respond with an error. Returns True if the request itself was wrong.

        Raises:
            ConnectionResetError: The connection must be closed.
            TimeoutError: The client does not read or send.
            h11.RemoteProtocolError: The client has sent something else than HTTP.
        """
        code: ErrorCode | None = None
        if not self._has_body:
            await self._client.events.next()  # the end of the request, which has arrived with its head
        try:
            await self._respond_or_forward()
        except SandlotError as error:
            code = error.code
            if self._status:  # a part of the response was sent
                raise ConnectionResetError from None
            await self._respond(error_response(error, self._id, is_page=self._is_page))
        finally:
            self._log(code)
        await self._client.drain()
        return code is not None and self._is_wrong

    async def _respond_or_forward(self) -> None:
        if len(self._headers) > MAX_HEAD_FIELDS or sum(len(name) + len(value) for name, value in self._headers) > MAX_HEAD_BYTES:
            message = f"The head of the request has more than {MAX_HEAD_FIELDS} fields or {MAX_HEAD_BYTES} bytes."
            raise LimitError(message, code=ErrorCode.TOO_LARGE, hint="Send fewer or shorter header fields.")
        node = self._forwarder.node
        request = forwarding.parse_request(self._method, self._target, self._headers, self._forwarder.address, self._peer.scheme)
        tokens = (*request.tokens, *request.cookie_tokens)
        access = self._access = node.previews.authorize(request.sandbox, request.port, tokens, request.header_tokens)
        if access.token is not None:
            self._share.count_for_key(access.principal.owner)
        if request.redeem:
            headers = forwarding.redemption(request, access.token, self._peer.scheme, access.lifetime_s)
            await self._respond(OwnResponse(HTTPStatus.FOUND, headers))
        elif request.is_preflight:
            await self._respond(OwnResponse(HTTPStatus.OK, forwarding.preflight_headers(self._headers)))
        else:
            await self._forwarder.turns.take(access.principal.owner)
            self._plan_check(access)
            try:
                await self._forward(request, access)
            finally:
                self._next_check.cancel()

    def _plan_check(self, access: PreviewAccess) -> None:
        self._next_check = asyncio.get_running_loop().call_later(ACCESS_CHECK_S, self._check, access)

    def _check(self, access: PreviewAccess) -> None:
        """Close the connection if the access has ended, or the client has left while nothing was read from it."""
        tokens = () if access.token is None else (access.token,)
        try:
            self._forwarder.node.previews.authorize(access.sandbox, access.port, tokens, tokens)
            is_over = self._stream.has_hung_up()
        except SandlotError:
            is_over = True
        if is_over:
            self._stream.transport.abort()
        else:
            self._plan_check(access)

    async def _forward(self, request: PreviewRequest, access: PreviewAccess) -> None:
        head = h11.Request(
            method=self._method, target=request.target, headers=forwarding.request_to_program(self._headers, request, access.host, self._peer)
        )
        is_repeatable = self._method in _REPEATABLE and not self._has_body and not request.upgrade
        programs = self._forwarder.programs
        try:
            program = await programs.take(access, self._stream.gone, is_repeatable=is_repeatable)
            if await self._exchange(program, head, request, access, may_be_stale=is_repeatable and program.is_reused):
                return
            program = await programs.open(access, self._stream.gone)
            await self._exchange(program, head, request, access, may_be_stale=False)
        except NotFoundError as error:
            raise not_listening(error, access.port) if error.code is ErrorCode.PORT_NOT_FOUND else error from None

    async def _exchange(
        self, program: ProgramConnection, head: h11.Request, request: PreviewRequest, access: PreviewAccess, *, may_be_stale: bool
    ) -> bool:
        """Send the request over a connection, and relay the response. The connection is kept or closed. Return False if the connection was stale.

        A connection is stale if the program has closed it before the request, which the program then has not processed.
        """
        sending: asyncio.Task[None] | None = None
        is_reusable, is_open = False, True

        def leave(_: object) -> None:
            if is_open:  # the call may have been scheduled before the connection was given back
                program.abort()

        self._stream.gone.add_done_callback(leave)
        try:
            await program.send(head)
            if self._has_body:
                sending = asyncio.create_task(self._send_body(program))
                sending.add_done_callback(lambda task: program.abort() if not task.cancelled() and task.exception() is not None else None)
            else:
                await program.send(h11.EndOfMessage())
            await self._relay(program, request, access)
            is_reusable = not request.upgrade and (sending is None or sending.done())
        except (h11.ProtocolError, ConflictError, UnavailableError) as error:
            if sending is not None and sending.done() and (invalid := sending.exception()) is not None:
                raise invalid from None  # the client has sent no valid body
            if self._stream.gone.done() or self._status:
                raise ConnectionResetError from None
            if not may_be_stale or program.has_received:
                raise bad_response_error(access.port) if isinstance(error, h11.ProtocolError | ConflictError) else error from None
            return False
        finally:
            is_open = False
            self._stream.gone.remove_done_callback(leave)
            if sending is not None:
                sending.cancel()
            if is_reusable and not self._stream.gone.done():
                self._forwarder.programs.give_back(access, program)
            else:
                self._forwarder.programs.close(access.sandbox, program)
        return True

    async def _relay(self, program: ProgramConnection, request: PreviewRequest, access: PreviewAccess) -> None:
        """Relay the responses to a request: any number of informational ones, then a final one or a switch to WebSocket."""
        response = await program.events.next()
        informational = 0
        while isinstance(response, h11.InformationalResponse) and response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            informational += 1
            if informational > MAX_INFORMATIONAL:
                raise bad_response_error(access.port)
            if not self._is_http_1_0:
                headers = forwarding.response_to_client(response.headers, request, access.host)
                await self._client.send(h11.InformationalResponse(status_code=response.status_code, reason=response.reason, headers=headers))
            response = await program.events.next()
        if isinstance(response, h11.InformationalResponse) and request.upgrade:
            await self._switch(program, response, request, access)
        elif isinstance(response, h11.Response):
            await self._relay_response(program, response, request, access)
        else:
            raise bad_response_error(access.port)

    async def _send_body(self, program: ProgramConnection) -> None:
        """Send the body of the request.

        Raises:
            h11.RemoteProtocolError: The client has sent something else than a body.
            TimeoutExceededError: The client sends nothing.
            ProgramError: The program reads nothing.
        """
        while True:
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    event = await self._client.events.next()
            except TimeoutError:
                raise body_timeout_error(BODY_TIMEOUT_S) from None
            if not isinstance(event, h11.Data | h11.EndOfMessage):
                return
            try:
                await program.send(h11.Data(data=event.data) if isinstance(event, h11.Data) else h11.EndOfMessage())
            except ProgramError:
                raise
            except (SandlotError, h11.LocalProtocolError):
                return  # the program may have responded before the end of the body; the response says more
            if isinstance(event, h11.EndOfMessage):
                return

    async def _relay_response(self, program: ProgramConnection, response: h11.Response, request: PreviewRequest, access: PreviewAccess) -> None:
        origin_is_null = request.is_path_form and (b"origin", b"null") in self._headers
        headers = forwarding.response_to_client(response.headers, request, access.host, origin_is_null=origin_is_null)
        if access.token is not None:
            headers = forwarding.without_shared_caches(headers)
        self._status = response.status_code
        await self._client.send(h11.Response(status_code=response.status_code, reason=response.reason, headers=headers))
        while isinstance(event := await program.events.next(), h11.Data):
            await self._client.send(h11.Data(data=event.data))
            await self._forwarder.turns.pause(access.principal.owner, len(event.data))
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError
        await self._client.send(h11.EndOfMessage())  # trailers are dropped: few clients read them, and none of these was checked

    async def _switch(self, program: ProgramConnection, response: h11.InformationalResponse, request: PreviewRequest, access: PreviewAccess) -> None:
        """Complete an upgrade, and copy bytes until one side ends."""
        self._status = response.status_code
        headers = [*forwarding.response_to_client(response.headers, request, access.host), (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        await self._client.send(h11.InformationalResponse(status_code=response.status_code, reason=response.reason, headers=headers))
        sending = asyncio.create_task(self._copy_to_program(program))
        try:
            data = program.rest() or await program.read()
            while data:
                await self._stream.write(data, STALL_TIMEOUT_S)
                await self._forwarder.turns.pause(access.principal.owner, len(data))
                data = await program.read()
        finally:
            sending.cancel()
            await asyncio.wait({sending})

    async def _copy_to_program(self, program: ProgramConnection) -> None:
        data = self._client.rest() or await self._stream.read()
        with suppress(SandlotError):  # the other direction reports it
            while data:
                await program.write(data)
                data = await self._stream.read()

    async def _respond(self, response: OwnResponse) -> None:
        self._status = int(response.status)
        is_last = response.status in _CLOSING or (self._is_wrong and self._client.refusals + 1 >= MAX_REFUSALS)
        headers = [*response.headers, (b"connection", b"close")] if is_last else response.headers
        await self._client.send(h11.Response(status_code=response.status, reason=HTTPStatus(response.status).phrase, headers=headers))
        if response.body and self._method != b"HEAD":
            await self._client.send(h11.Data(data=response.body))
        await self._client.send(h11.EndOfMessage())

    @property
    def _is_wrong(self) -> bool:
        return HTTPStatus.BAD_REQUEST <= self._status < HTTPStatus.INTERNAL_SERVER_ERROR

    def _log(self, code: ErrorCode | None) -> None:
        access = self._access
        _log.info(
            "preview.request",
            request=self._id,
            method=self._method[:20].decode("ascii", "replace"),
            status=self._status,
            ms=round((time.perf_counter() - self._started_s) * 1000, 1),
            **({} if access is None else {"sandbox": access.sandbox, "port": access.port}),
            **({} if code is None else {"code": str(code)}),
        )
