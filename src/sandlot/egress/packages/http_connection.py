"""HTTP/1.1 on one stream that a guest opened (RFC 9112).

Invariants:
- All input is untrusted: the sizes of heads and bodies and the time for them are limited, and request bodies are discarded. After a protocol error
  the client gets an error response, and the connection is closed.
- One request is handled at a time. Pipelined requests wait unread in the stream, so that nothing accumulates here.
- If a response fails after its head was sent, the connection is reset before the body ends, so that the client does not take the body for complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import h11

from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.http import HttpError, Request, Response, error_response, parse_target
from sandlot.egress.packages.upstream import UpstreamError
from sandlot.model.errors import ErrorCode, UnavailableError

MAX_HEAD_BYTES = 32 * 1024
"""Size limit of a request head."""
MAX_BODY_BYTES = 1024 * 1024
"""Size limit of a request body. Bodies are ignored, but npm sends some and expects a response."""
REQUEST_S = 30.0
"""Time limit from the first byte of a request to its last."""
IDLE_S = 30.0
"""Time limit between two requests."""
WRITE_S = 120.0
"""Time limit until the sandbox has taken a piece of a response."""

NO_NETWORK = (
    'This sandbox has no network: its policy is "none". Packages are installed from outside, by the sandbox\'s install() call, which opens the '
    'package index for as long as it runs. A sandbox that is created with network "packages" has the package index always.'
)
_NOT_MODIFIED = 304
_FIRST_ERROR = 400
_METHODS = frozenset({b"GET", b"HEAD"})
_log = logging.getLogger(__name__)


class Stream(Protocol):
    """A stream that a guest opened, such as :class:`sandlot.link.services.GuestStream`."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the received bytes until the guest ends the stream."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes as fast as the guest reads them."""
        ...

    def end(self) -> None:
        """Send no more bytes."""
        ...


class _ConnectionEnded(Exception):  # noqa: N818 - control flow, not a failure
    """The client has closed the connection or sends no further request."""


class HttpConnection:
    """Server side of one connection.

    Args:
        stream: Bytes of the connection.
        allowed: Returns whether the sandbox may send requests. Called for each request and between the pieces of a response.
        respond: Returns the response to a request, or raises :class:`~sandlot.egress.packages.http.HttpError`.
        slots: Concurrent requests of the sandbox. Each request holds one until its response is sent.
        counters: Counters of the cache.
    """

    def __init__(
        self,
        stream: Stream,
        allowed: Callable[[], bool],
        respond: Callable[[Request], Awaitable[Response]],
        slots: asyncio.Semaphore,
        counters: Counters,
    ) -> None:
        self._stream = stream
        self._incoming = aiter(stream)
        self._allowed = allowed
        self._respond = respond
        self._slots = slots
        self._counters = counters
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def serve(self) -> None:
        """Handle requests until the connection ends.

        Raises:
            SandlotError: The connection must be cut, or the stream has failed.
        """
        try:
            while await self._serve_request():
                self._http.start_next_cycle()
        except (_ConnectionEnded, TimeoutError):
            pass
        except h11.RemoteProtocolError as error:
            await self._send_protocol_error(error)
        self._stream.end()

    async def _serve_request(self) -> bool:
        """Handle one request and return whether another may follow."""
        async with asyncio.timeout(IDLE_S) as deadline:
            request = await self._next_event(deadline)
            if not isinstance(request, h11.Request):
                return False
            deadline.reschedule(asyncio.get_running_loop().time() + REQUEST_S)
            size = 0
            while isinstance(event := await self._next_event(), h11.Data):
                size += len(event.data)
                if size > MAX_BODY_BYTES:
                    break
        if size > MAX_BODY_BYTES:
            await self._send(request, error_response(HttpError(413, "Uploads are not supported.", (("Connection", "close"),))))
            return False
        async with self._slots:
            response = await self._respond_or_fail(request)
            try:
                await self._send(request, response)
            finally:
                await response.close()
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _next_event(self, deadline: asyncio.Timeout | None = None) -> h11.Event:
        """Return the next event of the client.

        Args:
            deadline: Deadline to extend to :data:`REQUEST_S` when the first byte arrives.

        Raises:
            _ConnectionEnded: There is no further event.
        """
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise _ConnectionEnded
            if isinstance(event, h11.Event):
                return event
            data = await anext(self._incoming, b"")
            if not isinstance(data, bytes):
                raise _ConnectionEnded  # a message of the link, which no HTTP connection contains
            self._http.receive_data(data)
            if deadline is not None and data:
                deadline.reschedule(asyncio.get_running_loop().time() + REQUEST_S)
                deadline = None

    async def _respond_or_fail(self, request: h11.Request) -> Response:
        try:
            return await self._respond(self._parse(request))
        except HttpError as error:
            return error_response(error)
        except Exception:  # noqa: BLE001 - one failed request must not end the connection; the traceback is logged
            self._counters.errors += 1
            _log.exception("a request of a sandbox to the package cache failed")
            return error_response(HttpError(500, "The package cache failed. The service's log has the details."))

    def _parse(self, request: h11.Request) -> Request:
        if not self._allowed():
            self._counters.refused += 1
            raise HttpError(403, NO_NETWORK)
        segments, is_folder = parse_target(request.target)
        if request.method not in _METHODS:
            # npm requests audits by POST. After a 404 it assumes that the registry does not support them.
            status = 404 if segments[:2] == ("npm", "-") else 405
            raise HttpError(status, "The package cache is read-only: use GET or HEAD.", (("Allow", "GET, HEAD"),))
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        return Request(segments, is_folder, headers, head=request.method == b"HEAD")

    async def _send(self, request: h11.Request, response: Response) -> None:
        has_no_body = request.method == b"HEAD" or response.status == _NOT_MODIFIED
        is_sized = response.length is not None and response.status != _NOT_MODIFIED
        length = (("Content-Length", str(response.length)),) if is_sized else ()
        await self._write(self._http.send(h11.Response(status_code=response.status, headers=[*response.headers, *length])))
        try:
            if not has_no_body:
                await self._send_body(response)
            await self._write(self._http.send(h11.EndOfMessage()))
        except UpstreamError as error:
            self._counters.errors += 1
            _log.warning("a response to a sandbox was cut: %s", error)
            raise _cut("The package could not be downloaded completely.") from None
        except h11.LocalProtocolError:
            raise _cut("The package does not have the length that its index names.") from None

    async def _send_body(self, response: Response) -> None:
        async with contextlib.aclosing(response.body()) as pieces:
            async for piece in pieces:
                if response.status < _FIRST_ERROR and not self._allowed():  # the text of an error may always be sent
                    raise _cut("The sandbox's network policy closed the package index during a response.")
                await self._write(self._http.send(h11.Data(data=piece)))
                self._counters.served_bytes += len(piece)

    async def _write(self, data: bytes | None) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._stream.write(data or b"")
        except TimeoutError:
            raise _cut(f"The sandbox read nothing of the response for {WRITE_S:g} s.") from None

    async def _send_protocol_error(self, error: h11.RemoteProtocolError) -> None:
        """Send an error response if no response was begun."""
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        response = error_response(HttpError(error.error_status_hint, "This is not a valid HTTP/1.1 request.", (("Connection", "close"),)))
        head = h11.Response(status_code=response.status, headers=[*response.headers, ("Content-Length", str(response.length))])
        await self._write(self._http.send(head))
        async for piece in response.body():
            await self._write(self._http.send(h11.Data(data=piece)))


def _cut(message: str) -> UnavailableError:
    return UnavailableError(message, code=ErrorCode.SERVICE_UNAVAILABLE)
