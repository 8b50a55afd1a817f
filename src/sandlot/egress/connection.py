"""HTTP/1.1 on one stream that a guest opened: one connection of a program inside (RFC 9112).

Laws:
- Everything that comes is the sandbox's: heads are bounded, bodies thrown away and bounded, times too. What breaks the protocol is answered
  and the connection closed.
- One request is dealt with at a time; what is sent ahead waits unread, so that nothing piles up here.
- An answer that turns out wrong in the middle is cut: the connection ends before the body does, never as if it were whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import h11

from sandlot.egress.answers import Answer, Refusal, of_refusal
from sandlot.egress.counters import Counters
from sandlot.egress.registries.asked import Request, segments
from sandlot.egress.upstream import UpstreamError
from sandlot.model.errors import ErrorCode, UnavailableError

HEAD_MAX = 32 * 1024
"""Bytes of a request's head."""
BODY_MAX = 1024 * 1024
"""Bytes of a request's body: none has any meaning, but npm sends some, and waits for an answer."""
HEAD_S = 30.0
"""From the first byte of a request to its last."""
IDLE_S = 30.0
"""Between two requests."""
WRITE_S = 120.0
"""Until the sandbox has taken a piece of an answer."""

FORBIDDEN = (
    'This sandbox has no network: its policy is "none". Packages are installed from outside, by the sandbox\'s install() call, which opens the '
    'package index for as long as it runs. A sandbox that is created with network "packages" has the package index always.'
)
_NOT_MODIFIED = 304
_FAILED = 400
_METHODS = frozenset({b"GET", b"HEAD"})
_log = logging.getLogger(__name__)


class Stream(Protocol):
    """A stream that a guest opened; :class:`sandlot.link.services.GuestStream` is one."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Its bytes, until the guest ends."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes as the guest takes them."""
        ...

    def end(self) -> None:
        """Send no more."""
        ...


class _Over(Exception):  # noqa: N818 - no error: the other side has had enough
    """The connection is over."""


class Connection:
    """One connection.

    Args:
        stream: Its bytes.
        allowed: Whether the sandbox may ask at all; asked anew at every request and between the pieces of an answer.
        answer: Answers a request; raises :class:`~sandlot.egress.answers.Refusal`.
        turns: Of its sandbox; each request takes one until it is answered.
        counters: What is counted.
    """

    def __init__(
        self,
        stream: Stream,
        allowed: Callable[[], bool],
        answer: Callable[[Request], Awaitable[Answer]],
        turns: asyncio.Semaphore,
        counters: Counters,
    ) -> None:
        self._stream = stream
        self._incoming = aiter(stream)
        self._allowed = allowed
        self._answer = answer
        self._turns = turns
        self._counters = counters
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)

    async def serve(self) -> None:
        """Answer until the connection is over.

        Raises:
            SandlotError: It has to be cut, or the stream is over.
        """
        try:
            while await self._one():
                self._http.start_next_cycle()
        except (_Over, TimeoutError):
            pass
        except h11.RemoteProtocolError as error:
            await self._complain(error)
        self._stream.end()

    async def _one(self) -> bool:
        """Answer one request; whether there may be another one."""
        async with asyncio.timeout(IDLE_S) as patience:
            request = await self._event(patience)
            if not isinstance(request, h11.Request):
                return False
            patience.reschedule(asyncio.get_running_loop().time() + HEAD_S)
            size = 0
            while isinstance(event := await self._event(), h11.Data):
                size += len(event.data)
                if size > BODY_MAX:
                    break
        if size > BODY_MAX:
            await self._send(request, of_refusal(Refusal(413, "Nothing is uploaded here.", (("Connection", "close"),))))
            return False
        async with self._turns:
            answer = await self._answered(request)
            try:
                await self._send(request, answer)
            finally:
                await answer.close()
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _event(self, patience: asyncio.Timeout | None = None) -> h11.Event:
        """The next thing that the client says.

        Raises:
            _Over: It says no more.
        """
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise _Over
            if isinstance(event, h11.Event):
                return event
            data = await anext(self._incoming, b"")
            if not isinstance(data, bytes):
                raise _Over  # a message of the link: no connection has one
            self._http.receive_data(data)
            if patience is not None and data:
                patience.reschedule(asyncio.get_running_loop().time() + HEAD_S)
                patience = None

    async def _answered(self, request: h11.Request) -> Answer:
        """The answer to a request, whatever happens."""
        try:
            return await self._answer(self._parsed(request))
        except Refusal as refusal:
            return of_refusal(refusal)
        except Exception:  # noqa: BLE001 - one request must not end the others; it is logged with its traceback
            self._counters.errors += 1
            _log.exception("a request of a sandbox to the package cache failed")
            return of_refusal(Refusal(500, "The package cache failed; the service's log says why."))

    def _parsed(self, request: h11.Request) -> Request:
        if not self._allowed():
            self._counters.refused += 1
            raise Refusal(403, FORBIDDEN)
        names, folder = segments(request.target)
        if request.method not in _METHODS:
            # npm asks for audits by POST, and takes this for a registry without.
            status = 404 if names[:2] == ("npm", "-") else 405
            raise Refusal(status, "This cache is for reading: GET and HEAD only.", (("Allow", "GET, HEAD"),))
        return Request(names, folder, {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}, request.method == b"HEAD")

    async def _send(self, request: h11.Request, answer: Answer) -> None:
        unchanged = answer.status == _NOT_MODIFIED
        length = () if answer.length is None or unchanged else (("Content-Length", str(answer.length)),)
        await self._write(self._http.send(h11.Response(status_code=answer.status, headers=[*answer.headers, *length])))
        try:
            if request.method != b"HEAD" and not unchanged:
                await self._send_body(answer)
            await self._write(self._http.send(h11.EndOfMessage()))
        except UpstreamError as error:
            self._counters.errors += 1
            _log.warning("an answer to a sandbox was cut: %s", error)
            raise _cut("The package could not be fetched to its end.") from None
        except h11.LocalProtocolError:
            raise _cut("The package is not as long as its index says.") from None

    async def _send_body(self, answer: Answer) -> None:
        async with contextlib.aclosing(answer.body()) as pieces:
            async for piece in pieces:
                if answer.status < _FAILED and not self._allowed():  # what says why nothing is given is given
                    raise _cut("The policy of the sandbox closed the package index in the middle of an answer.")
                await self._write(self._http.send(h11.Data(data=piece)))
                self._counters.served_bytes += len(piece)

    async def _write(self, data: bytes | None) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._stream.write(data or b"")
        except TimeoutError:
            raise _cut("The sandbox does not take what it asked for.") from None

    async def _complain(self, error: h11.RemoteProtocolError) -> None:
        """Tell what is wrong, where nothing has been told yet."""
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        refusal = of_refusal(Refusal(error.error_status_hint, "That is no request of HTTP/1.1.", (("Connection", "close"),)))
        head = h11.Response(status_code=refusal.status, headers=[*refusal.headers, ("Content-Length", str(refusal.length))])
        await self._write(self._http.send(head))
        async for piece in refusal.body():
            await self._write(self._http.send(h11.Data(data=piece)))


def _cut(message: str) -> UnavailableError:
    return UnavailableError(message, code=ErrorCode.SERVICE_UNAVAILABLE)
