"""Streamed responses: bytes and events, as server-sent events (HTML standard, 9.2) or as lines of JSON (NDJSON).

Invariants:
- Nothing is produced ahead of the client: the next chunk is requested when the connection has accepted the last one.
- The disconnection of a client is noticed while nothing is sent, and closes the producer.
- An event stream reports its end, by its own last event or by ``failure``. A stream that ends otherwise was cut.
- An event has the same content in both forms. The client selects the form by ``Accept``.
- A chunk is sent whole, however slowly the client reads: a keep-alive is sent between chunks only.
- The JSON of an event contains no line break, also for readers that end lines at U+0085, U+2028 and U+2029, as ``str.splitlines`` does.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandlot.model import utf8
from sandlot.model.errors import SandlotError
from sandlot.model.executions import Channel, Output, OutputGap
from sandlot.web import errors
from sandlot.web.request_id import get_request_id

SSE_MEDIA_TYPE = "text/event-stream"
NDJSON_MEDIA_TYPE = "application/x-ndjson"
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
STREAM_NAMES: Mapping[int, str] = {Channel.STDOUT: "stdout", Channel.STDERR: "stderr"}

_LINE_BREAKS: Mapping[str, str] = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Line breaks that JSON allows in a string -> their escapes."""
_UNBUFFERED = {"X-Accel-Buffering": "no"}

_Item = TypeVar("_Item")

_log = structlog.get_logger("sandlot.http")


class KeepAliveStreamResponse(Response):
    """A response whose body is produced while it is sent.

    Args:
        chunks: The body.
        close: Called once at the end, also after an error or a disconnection.
        media_type: Media type of the body.
        headers: Additional headers.
        keep_alive: Bytes that are sent when nothing was sent for ``keep_alive_s`` seconds; empty for none.
        keep_alive_s: Interval in seconds; None for 15.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        keep_alive: bytes = b"",
        keep_alive_s: float | None = None,
    ) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-store", **(headers or {})})
        del self.headers["content-length"]
        self._chunks = chunks
        self._close = close
        self._keep_alive = keep_alive
        self._keep_alive_s = KEEP_ALIVE_S if keep_alive_s is None else keep_alive_s
        self._sent_s = 0.0
        self._sending = asyncio.Lock()

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response until the body ends or the client disconnects."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            body = asyncio.create_task(self._write(send))
            tasks = [body, asyncio.create_task(wait_for_disconnect(receive))]
            if self._keep_alive:
                tasks.append(asyncio.create_task(self._send_keep_alives(send)))
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._close()
        for task in tasks[:2]:  # a body of the request that is too large ends the response as well
            if not task.cancelled():
                task.result()

    async def _write(self, send: Send) -> None:
        async for chunk in self._chunks:
            await self._send_chunk(send, chunk, more=True)
        await self._send_chunk(send, b"", more=False)

    async def _send_keep_alives(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._keep_alive_s)
            # While a chunk is being sent, the client has something to read.
            if not self._sending.locked() and time.monotonic() - self._sent_s >= self._keep_alive_s:
                await self._send_chunk(send, self._keep_alive, more=True)

    async def _send_chunk(self, send: Send, body: bytes, *, more: bool) -> None:
        async with self._sending:
            await send({"type": "http.response.body", "body": body, "more_body": more})
            self._sent_s = time.monotonic()


class StreamEvent(NamedTuple):
    """An event of a stream.

    Args:
        name: Kind of the event.
        data: JSON-representable content.
        id: Position after this event, with which a client resumes a stream that was cut; None if the stream cannot be resumed there.
    """

    name: str
    data: Mapping[str, Any]
    id: int | str | None = None

    def as_sse(self) -> bytes:
        """Return a server-sent event. Its data is one line."""
        number = "" if self.id is None else f"id: {self.id}\n"
        return f"{number}event: {self.name}\ndata: {_json(self.data)}\n\n".encode("utf-8", "replace")

    def as_line(self) -> bytes:
        """Return a line of JSON."""
        number = {} if self.id is None else {"id": str(self.id)}
        return ndjson_line({"event": self.name, **number, "data": self.data})


KEEP_ALIVE_EVENT = StreamEvent("keep-alive", {})
"""Keep-alive of streams of lines: not every reader of NDJSON accepts a blank line."""


def ndjson_line(data: Mapping[str, Any]) -> bytes:
    """Return JSON followed by a line break."""
    return f"{_json(data)}\n".encode("utf-8", "replace")


def _json(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    if not text.isascii():
        for character, escape in _LINE_BREAKS.items():
            text = text.replace(character, escape)
    return text


def event_response(request: Request, events: AsyncIterator[StreamEvent], close: Callable[[], Awaitable[None]]) -> KeepAliveStreamResponse:
    """Return a response of events in the form that the client accepts. An error of the producer becomes the last event."""
    sse = _accepted_form(request) != NDJSON_MEDIA_TYPE
    return KeepAliveStreamResponse(
        _encoded(events, request, StreamEvent.as_sse if sse else StreamEvent.as_line),
        close,
        media_type=SSE_MEDIA_TYPE if sse else NDJSON_MEDIA_TYPE,
        headers=_UNBUFFERED,
        keep_alive=KEEP_ALIVE if sse else KEEP_ALIVE_EVENT.as_line(),
    )


def ndjson_response(request: Request, items: AsyncIterator[Mapping[str, Any]], close: Callable[[], Awaitable[None]]) -> KeepAliveStreamResponse:
    """Return a response of lines of JSON. An error of the producer becomes the last line, a problem document."""

    async def lines() -> AsyncIterator[bytes]:
        async for item in _with_failure(items, request, lambda problem: problem):
            yield ndjson_line(item)

    return KeepAliveStreamResponse(lines(), close, media_type=NDJSON_MEDIA_TYPE, headers=_UNBUFFERED, keep_alive=b"\n")


async def _encoded(events: AsyncIterator[StreamEvent], request: Request, form: Callable[[StreamEvent], bytes]) -> AsyncIterator[bytes]:
    async for event in _with_failure(events, request, lambda problem: StreamEvent("failure", problem)):
        yield form(event)


async def _with_failure(items: AsyncIterator[_Item], request: Request, failure: Callable[[Mapping[str, Any]], _Item]) -> AsyncIterator[_Item]:
    """Yield the items, and an error of their producer as the last item."""
    request_id = get_request_id(request.scope)
    try:
        async for item in items:
            yield item
    except SandlotError as error:
        errors.record_failure(request.scope, error)
        yield failure(errors.problem_document(error, request_id))
    except Exception:  # noqa: BLE001 - the client gets an internal error
        _log.exception("request.defect", request=request_id)
        errors.record_failure(request.scope, defect := errors.internal_error(get_request_id(request.scope)))
        yield failure(errors.problem_document(defect, request_id))


def accepts_events(request: Request) -> bool:
    """Return True if the client accepts events, in either form."""
    return bool(_accepted_form(request))


def _accepted_form(request: Request) -> str:
    """Return the first media type of events in the Accept header, or an empty string."""
    accepted = request.headers.get("accept", "").lower()
    return min((form for form in (SSE_MEDIA_TYPE, NDJSON_MEDIA_TYPE) if form in accepted), key=accepted.index, default="")


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class TextSplitter:
    """Splits the bytes of one output stream into pieces for JSON, without loss.

    UTF-8 becomes text, other bytes become base64. The first part of a cut character is held until its rest arrives, in base64 too: clients decode
    each piece by itself.
    """

    __slots__ = ("_decoder", "_end", "_held")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._held = b""
        self._end = 0

    def push(self, data: bytes, offset: int) -> dict[str, Any] | None:
        """Return the piece for the next bytes, which begin at ``offset``, or None if all of them are held."""
        start = offset - len(self._held)
        self._end = offset + len(data)
        whole = self._held + data
        try:
            text = self._decoder.decode(data)
        except UnicodeDecodeError:
            self._held = whole[len(whole) - utf8.incomplete_end(whole) :]
            self._decoder.setstate((self._held, 0))
            return {"offset": start, "encoding": "base64", "data": base64.b64encode(whole.removesuffix(self._held)).decode()}
        self._held = bytes(self._decoder.getstate()[0])
        return {"offset": start, "encoding": "utf-8", "data": text} if text else None

    @property
    def held_bytes(self) -> int:
        """Number of held bytes."""
        return len(self._held)

    def flush(self) -> dict[str, Any] | None:
        """Return the held bytes as a piece, before a gap or the end; None if there are none."""
        if not self._held:
            return None
        held, self._held = self._held, b""
        self._decoder.reset()
        return {"offset": self._end - len(held), "encoding": "base64", "data": base64.b64encode(held).decode()}


class OutputEvents:
    """Standard output and error of a process or a cell as events. The id of an event is the position after it: ``STDOUT-STDERR``.

    Args:
        offsets: Channel -> offset of its first byte, by default 0.
    """

    __slots__ = ("_next", "_splitters")

    def __init__(self, offsets: Mapping[int, int] | None = None) -> None:
        self._splitters = {channel: TextSplitter() for channel in STREAM_NAMES}
        self._next = {channel: (offsets or {}).get(channel, 0) for channel in STREAM_NAMES}

    @property
    def position(self) -> str:
        """Offsets of both streams after the last event, as in its id."""
        return "-".join(str(at) for at in self._next.values())

    def feed(self, item: Output | OutputGap) -> list[StreamEvent]:
        """Return the events for one piece of output or gap."""
        splitter = self._splitters[item.channel]
        if isinstance(item, OutputGap):
            flushed = self._flush(item.channel)
            return [*flushed, self._event(item.channel, "lost", item.offset + item.bytes, {"lost_bytes": item.bytes})]
        piece = splitter.push(item.data, item.offset)
        return self._piece(item.channel, piece, item.offset + len(item.data) - splitter.held_bytes)

    def end(self) -> list[StreamEvent]:
        """Return the events for all held bytes, at the end of the output."""
        return [event for channel in STREAM_NAMES for event in self._flush(channel)]

    def _flush(self, channel: int) -> list[StreamEvent]:
        end = self._next[channel] + self._splitters[channel].held_bytes
        return self._piece(channel, self._splitters[channel].flush(), end)

    def _piece(self, channel: int, piece: dict[str, Any] | None, end: int) -> list[StreamEvent]:
        return [] if piece is None else [self._event(channel, "output", end, piece)]

    def _event(self, channel: int, name: str, end: int, data: Mapping[str, Any]) -> StreamEvent:
        self._next[channel] = end
        return StreamEvent(name, {"stream": STREAM_NAMES[channel], **data}, self.position)
