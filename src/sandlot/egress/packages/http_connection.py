"""HTTP/1.1 server for one connection, which is a stream that a guest opened (RFC 9112).

Invariants:
- All input is untrusted. The size of a request's head and body and the time for receiving them are limited. Request bodies are discarded.
- After a protocol error the client gets an error response, and the connection is closed.
- One request of a connection is handled at a time. Further requests stay unread in the stream until the response is sent, so they take no memory
  of the service.
- If a response fails after its head was sent, the connection is reset before the body ends, so that the client does not treat the body as complete.
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
"""Maximum size of a request's head, in bytes."""
MAX_BODY_BYTES = 1024 * 1024
"""Maximum size of a request's body, in bytes. Bodies are discarded, but some requests of npm have a body and need a response."""
REQUEST_S = 30.0
"""Seconds that a client may take from the first byte of a request to the last."""
IDLE_S = 30.0
"""Seconds after which a connection without a request is closed."""
WRITE_S = 120.0
"""Seconds that a client may take to read one piece of a response. After that, the connection is cut."""

NO_PACKAGES = (
    "The network policy of this sandbox does not include the package indexes. Packages are installed from outside, by the sandbox's install() call, "
    'which opens the indexes while it runs. A sandbox with network "packages" can always use the indexes.'
)
_NOT_MODIFIED = 304
_FIRST_ERROR = 400
_METHODS = frozenset({b"GET", b"HEAD"})
_log = logging.getLogger(__name__)


class Stream(Protocol):
    """A stream that a guest opened, such as :class:`sandlot.link.services.GuestStream`."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the bytes that the guest sends, in pieces, until the guest ends its side of the stream."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes to the guest. Wait until the guest has read enough that more bytes can be sent."""
        ...

    def end(self) -> None:
        """End this side of the stream: no more bytes are sent to the guest."""
        ...


class _ConnectionEnded(Exception):  # noqa: N818 - control flow, not a failure
    """The client has closed the connection or sends no further request."""


class HttpConnection:
    """Server side of one HTTP connection from a sandbox.

    Args:
        stream: The stream that carries the bytes of the connection.
        allowed: Returns whether the sandbox may use the package index now. Called for each request and before each piece of a response.
        respond: Returns the response to a request, or raises :class:`~sandlot.egress.packages.http.HttpError`.
        slots: Semaphore that limits the concurrent requests of the sandbox. A request holds the semaphore until its response is sent.
        counters: Counters of the package cache, updated by each request.
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
        """Handle requests, one after another, until the client closes the connection or a time limit is reached.

        Raises:
            SandlotError: The stream has failed, or a response cannot be completed: the caller must then reset the stream.
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
        """Receive one request and send its response. Return whether another request may follow on this connection."""
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
            text = f"The request body is larger than {MAX_BODY_BYTES} bytes. Uploads are not supported."
            await self._send(request, error_response(HttpError(413, text, (("Connection", "close"),))))
            return False
        async with self._slots:
            response = await self._respond_or_fail(request)
            try:
                await self._send(request, response)
            finally:
                await response.close()
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _next_event(self, deadline: asyncio.Timeout | None = None) -> h11.Event:
        """Return the next event (part of a request) that the client sends.

        Args:
            deadline: Timeout of the caller. It is set to :data:`REQUEST_S` from now when the first byte arrives. None: no timeout is changed.

        Raises:
            _ConnectionEnded: The client has closed the connection or sends no further request.
        """
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise _ConnectionEnded
            if isinstance(event, h11.Event):
                return event
            data = await anext(self._incoming, b"")
            if not isinstance(data, bytes):
                raise _ConnectionEnded  # a message of the link that is not part of an HTTP connection
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
            return error_response(HttpError(500, "The package cache has an internal error. The service's log has the details."))

    def _parse(self, request: h11.Request) -> Request:
        if not self._allowed():
            self._counters.refused += 1
            raise HttpError(403, NO_PACKAGES)
        segments, is_folder = parse_target(request.target)
        if request.method not in _METHODS:
            # npm requests security audits by POST. Status 404 tells npm that the registry does not support audits.
            status = 404 if segments[:2] == ("npm", "-") else 405
            raise HttpError(
                status,
                f"The package cache is read-only and refuses {request.method.decode('ascii', 'replace')[:16]}: use GET or HEAD.",
                (("Allow", "GET, HEAD"),),
            )
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        query = request.target.partition(b"?")[2].decode("latin-1")
        return Request(segments, is_folder, headers, head=request.method == b"HEAD", query=query)

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
            _log.warning("a response of the package cache to a sandbox was cut off: %s", error)
            raise _cut("A package file could not be downloaded completely, so its response was cut off.") from None
        except h11.LocalProtocolError:
            raise _cut("A response was cut off: its body does not have the length in its Content-Length header.") from None

    async def _send_body(self, response: Response) -> None:
        async with contextlib.aclosing(response.body()) as pieces:
            async for piece in pieces:
                if response.status < _FIRST_ERROR and not self._allowed():  # the text of an error may be sent even without permission
                    raise _cut("A response was cut off: the sandbox's network policy no longer allows the package index.")
                await self._write(self._http.send(h11.Data(data=piece)))
                self._counters.served_bytes += len(piece)

    async def _write(self, data: bytes | None) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._stream.write(data or b"")
        except TimeoutError:
            raise _cut(f"The sandbox read nothing of the response for {WRITE_S:g} s.") from None

    async def _send_protocol_error(self, error: h11.RemoteProtocolError) -> None:
        """Send an error response to a malformed request. Do nothing if a part of another response has been sent."""
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        text = f"The request is not valid HTTP/1.1: {str(error)[:200]}."
        response = error_response(HttpError(error.error_status_hint, text, (("Connection", "close"),)))
        head = h11.Response(status_code=response.status, headers=[*response.headers, ("Content-Length", str(response.length))])
        await self._write(self._http.send(head))
        async for piece in response.body():
            await self._write(self._http.send(h11.Data(data=piece)))


def _cut(message: str) -> UnavailableError:
    return UnavailableError(message, code=ErrorCode.SERVICE_UNAVAILABLE)
