"""Connections to one service: repeated requests, event streams, paged lists, WebSockets, and the start of the local service."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import httpx

from sandlot import __version__
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, UnavailableError
from sandlot.sdk import local_service, requests, responses, retries
from sandlot.sdk._async import backend
from sandlot.sdk.config import Target
from sandlot.sdk.converter import structure_list
from sandlot.sdk.http import ConnectionFailedError, ConnectionLostError, sendable, translated, unreachable_error
from sandlot.sdk.local_service import LocalService
from sandlot.sdk.sse import Decoder, Event

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
"""Seconds for which the service may be silent during a call; event streams carry a comment every 15 s."""
FOLLOW_WAIT_S = 1.0
"""Seconds until a broken stream is continued."""
FOLLOW_TRIES = 10
"""Attempts to continue a broken stream that receive no event."""


class AsyncTransport:
    """One pool of keep-alive connections to a service; all resources of a client share it.

    Args:
        target: The service.
        autostart: Start the local service before the first request if it does not run.
    """

    def __init__(self, target: Target, *, autostart: bool) -> None:
        self.target = target
        self._autostart = autostart
        self._http = self._connections()
        self._reopening = threading.Lock()
        """Held while closed connections are replaced, so that several threads share the new ones; never during a request."""
        self._is_socket_checked: bool | None = None if target.socket is None else False
        """True while the unix socket is known to accept connections; None for TCP, which is not checked before a request."""
        self._has_connected = False
        """True once the service accepted a connection. If the service stops after that, requests wait until it is started again."""

    @property
    def can_wait_silently(self) -> bool:
        """True if a response may take any time to begin.

        On a unix socket, the end of the service is noticed at once. Over TCP it is not, and proxies close silent connections: there, long calls ask
        for an event stream, in which the service sends keep-alive comments.
        """
        return self.target.socket is not None

    async def aclose(self) -> None:
        """Close the connections; a later request opens new ones."""
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        idempotent: bool = False,
        read_timeout_s: float | None = READ_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Send a request and read the whole response.

        A request whose connection broke is repeated only if it is idempotent, or if a hibernation of its sandbox cut it.

        Args:
            method: HTTP method.
            path: Path below the service's address, beginning with a slash.
            params: Query parameters.
            body: JSON body.
            content: Bytes to send in place of JSON, or chunks of bytes; a request with chunks is never repeated.
            headers: Additional headers.
            idempotent: The service carries the request out once, however often it arrives.
            read_timeout_s: Seconds until the response must begin; None waits without limit.

        Returns:
            The JSON object of the response; empty for an empty response.

        Raises:
            SandlotError: The service refused the request.
            UnavailableError: The service cannot be reached, or the connection broke.
        """
        _, response = await self.exchange(
            method, path, params=params, body=body, content=content, headers=headers, idempotent=idempotent, read_timeout_s=read_timeout_s
        )
        return response

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        idempotent: bool = False,
        read_timeout_s: float | None = READ_TIMEOUT_S,
    ) -> tuple[int, dict[str, Any]]:
        """Send a request and return the status and the JSON object of the response. Arguments and errors are those of :meth:`request`."""
        tries = 0
        while True:
            tries += 1
            try:
                async with self.stream(
                    method, path, params=params, body=body, content=content, headers=headers, read_timeout_s=read_timeout_s
                ) as response:
                    return response.status_code, responses.decode_object(await self._read(response))
            except (ConnectionLostError, ConflictError) as error:
                if isinstance(error, ConflictError) and not responses.cut_by_hibernation(error):
                    raise
                wait_s = retries.cut_wait_s(tries, once=idempotent, luck=retries.roll())
                if wait_s is None:
                    raise
            await backend.sleep(wait_s)

    @asynccontextmanager
    async def event_stream(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[AsyncEventStream]:
        """Send a request whose response is an event stream; leaving the context closes the stream.

        Raises:
            SandlotError: The service refused the request, or sent a failure in the stream.
            UnavailableError: The stream was cut.
        """
        async with self.stream(method, path, params=params, body=body, headers=headers, accept="text/event-stream") as response:
            yield AsyncEventStream(self.target, response)

    async def follow(self, path: str, *, after: int | None, params: Mapping[str, Any]) -> AsyncGenerator[Event]:
        """Iterate over an endless event stream. A broken stream is continued without a gap, after the last event with an id.

        Args:
            path: Path of the stream.
            after: Start with the events that have a larger number. None: the server chooses the start, and sends it as the event ``position``.
            params: Further parameters of the request.

        Raises:
            SandlotError: The service refused the request.
            UnavailableError: The service cannot be reached, also after ``FOLLOW_TRIES`` attempts.
        """
        params, headers, tries = requests.omit_none(**params, after=after), dict[str, str](), 0
        while True:
            try:
                async with self.event_stream("GET", path, params=params, headers=headers) as stream:
                    async for message in stream:
                        tries = 0
                        if message.id:
                            headers = {"Last-Event-ID": message.id}
                        if message.name != "position":
                            yield message
            except UnavailableError:
                tries += 1
                if tries > FOLLOW_TRIES:
                    raise
            await backend.sleep(FOLLOW_WAIT_S)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        accept: str = "application/json",
        read_timeout_s: float | None = READ_TIMEOUT_S,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and yield the head of its response; the caller reads the body. The arguments are those of :meth:`request`.

        A refused request is repeated only if the error is retryable, and never if its body is sent in chunks.
        """
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None, read=read_timeout_s)
        sent = {"Accept": accept, "Content-Type": "application/json" if content is None else "application/octet-stream", **(headers or {})}
        if body is not None:
            content = requests.encode_body(body)
        with self._reopening:
            if self._http.is_closed:
                self._http = self._connections()
        tries = 0
        while True:
            tries += 1
            with sendable():
                request = self._http.build_request(method, path, params=params, content=content, headers=sent, timeout=timeout)
            response = await self._response(request)
            try:
                if response.is_success:
                    yield response
                    return
                error, wait_s = await self._rejection(response, tries)
            finally:
                await response.aclose()
            if wait_s is None or not (content is None or isinstance(content, bytes)):
                raise error
            await backend.sleep(wait_s)

    async def _response(self, request: httpx.Request) -> httpx.Response:
        """Send a request; while a service that was reached before is away, try again for some seconds."""
        tries, waited_s = 0, 0.0
        while True:
            tries += 1
            try:
                await self._ensure_service()
                with translated(self.target):
                    response = await self._http.send(request, stream=True)
            except ConnectionFailedError:
                if self._is_socket_checked:
                    self._is_socket_checked = False  # the local service has stopped since
                wait_s = retries.unreached_wait_s(tries, waited_s, met=self._has_connected, luck=retries.roll())
                if wait_s is None:
                    raise
            else:
                self._has_connected = True
                return response
            await backend.sleep(wait_s)
            waited_s += wait_s

    async def paginate(
        self, path: str, key: str, cls: type[T], *, params: Mapping[str, Any] | None = None, limit: int | None = None
    ) -> AsyncIterator[T]:
        """Iterate over the items of a paged list; a page is requested when the items before it are used up.

        Args:
            path: Path of the list.
            key: Field of a page that has the items.
            cls: Value that the items are converted to.
            params: Query parameters.
            limit: Maximum number of items; None is all.
        """
        cursor: str | None = None
        left = limit
        while True:
            page = await self.request("GET", path, params={**(params or {}), **requests.omit_none(cursor=cursor, limit=requests.page_size(left))})
            for item in structure_list(cls, page, key)[:left]:
                yield item
            left = None if left is None else left - len(page[key])
            if (left is not None and left <= 0) or (cursor := responses.next_cursor(page, cursor)) is None:
                return

    async def web_socket(self, path: str) -> backend.Socket:
        """Open a WebSocket.

        Args:
            path: Path below the service's address, with its query.

        Raises:
            SandlotError: The service refused the connection.
            UnavailableError: The service cannot be reached.
        """
        await self._ensure_service()
        return await backend.web_socket(self.target, path)

    async def _ensure_service(self) -> None:
        """Before the first request over a unix socket: start the local service, or check that a service listens."""
        if self._is_socket_checked is False and self.target.socket is not None:
            if self.target.local is not None and self._autostart:
                await backend.in_thread(LocalService(self.target.local).ensure)
            elif not await backend.in_thread(local_service.is_listening, self.target.socket):
                raise unreachable_error(self.target)
            self._is_socket_checked = self._has_connected = True

    def _connections(self) -> httpx.AsyncClient:
        headers = {"User-Agent": f"sandlot-python/{__version__}"}
        if self.target.api_key is not None:
            headers["Authorization"] = f"Bearer {self.target.api_key}"
        return backend.http_client(self.target, headers, httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None))

    async def _read(self, response: httpx.Response) -> bytes:
        with translated(self.target):
            return await response.aread()

    async def _rejection(self, response: httpx.Response, tries: int) -> tuple[SandlotError, float | None]:
        body = await self._read(response)
        headers = response.headers
        error = responses.error_from_response(response.status_code, headers.get("content-type", ""), body, headers.get("x-request-id", ""))
        return error, retries.refused_wait_s(
            tries, retryable=responses.is_retryable(body), retry_after=headers.get("retry-after"), luck=retries.roll()
        )


class AsyncEventStream:
    """Events of one response. Iterate over it once."""

    def __init__(self, target: Target, response: httpx.Response) -> None:
        self._target = target
        self._response = response

    async def __aiter__(self) -> AsyncGenerator[Event]:
        decoder = Decoder()
        with translated(self._target):
            async for piece in self._response.aiter_bytes():
                for event in decoder.feed(piece):
                    if event.name == "failure":
                        raise responses.error_from_problem(event.data)
                    yield event

    def interrupt(self) -> None:
        """Shut down the connection, so that an iteration that waits, also in another thread or task, raises ``UnavailableError`` at once."""
        connection = self._response.extensions["network_stream"].get_extra_info("socket")
        # By a descriptor of its own, because the socket of uvloop and that of TLS have no usable shutdown().
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


async def wait_before_resuming(error: SandlotError, tries: int) -> None:
    """Wait before the next attempt to continue a stream that was cut.

    Args:
        error: Error that ended the stream; raised again if it is not a cut, or after too many attempts.
        tries: Attempts that received nothing, at least 1.
    """
    cut = (
        isinstance(error, ConnectionLostError)
        or error.code in {ErrorCode.SERVICE_STOPPING, ErrorCode.SERVICE_UNAVAILABLE}
        or responses.cut_by_hibernation(error)
    )
    wait_s = retries.cut_wait_s(tries, once=cut, luck=retries.roll())
    if wait_s is None:
        raise error
    await backend.sleep(wait_s)
