"""Answers that are sent as they come into being: bytes, and events, which are server-sent (HTML standard, 9.2) or a line of JSON each (NDJSON).

Laws:
- Nothing is read ahead of a client: the next piece is asked for when the last one was taken.
- A client that goes away is noticed while it is waited for, and whoever makes the pieces is closed.
- A stream of events says how it ended: by its own last event, or by ``failure``. One that ends otherwise was cut.
- An event is the same in both forms; the client chooses by ``Accept``.
- A piece is sent whole before anything else is, however slowly its client reads: a beat comes between pieces, never inside of one.
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

from sandlot.model.errors import SandlotError
from sandlot.model.executions import Channel, Output, OutputGap
from sandlot.web import errors

SSE_MEDIA_TYPE = "text/event-stream"
NDJSON_MEDIA_TYPE = "application/x-ndjson"
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
STREAM_NAMES: Mapping[int, str] = {Channel.STDOUT: "stdout", Channel.STDERR: "stderr"}

_UNBUFFERED = {"X-Accel-Buffering": "no"}

_Item = TypeVar("_Item")

_log = structlog.get_logger("sandlot.http")


class KeepAliveStreamResponse(Response):
    """An answer whose body comes piece by piece.

    Args:
        pieces: The body.
        close: Called once in the end, whatever happened.
        media_type: Its type.
        headers: More headers.
        beat: Sent when nothing else was for so long.
        beat_s: How long; None is 15 s.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        beat: bytes = b"",
        beat_s: float | None = None,
    ) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-store", **(headers or {})})
        del self.headers["content-length"]
        self._pieces = pieces
        self._close = close
        self._beat = beat
        self._beat_s = KEEP_ALIVE_S if beat_s is None else beat_s
        self._sent_s = 0.0
        self._sending = asyncio.Lock()

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            body = asyncio.create_task(self._write(send))
            tasks = [body, asyncio.create_task(wait_for_disconnect(receive))]
            if self._beat:
                tasks.append(asyncio.create_task(self._keep_alive(send)))
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._close()
        if not body.cancelled():
            body.result()

    async def _write(self, send: Send) -> None:
        async for piece in self._pieces:
            await self._give(send, piece, more=True)
        await self._give(send, b"", more=False)

    async def _keep_alive(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            # While a piece is being sent, the client has something to read.
            if not self._sending.locked() and time.monotonic() - self._sent_s >= self._beat_s:
                await self._give(send, self._beat, more=True)

    async def _give(self, send: Send, body: bytes, *, more: bool) -> None:
        async with self._sending:
            await send({"type": "http.response.body", "body": body, "more_body": more})
            self._sent_s = time.monotonic()


class StreamEvent(NamedTuple):
    """One event.

    Args:
        name: Of its kind.
        data: JSON-representable.
        id: By it, if it has one, a client that was cut off says how far it was.
    """

    name: str
    data: Mapping[str, Any]
    id: int | str | None = None

    def sent(self) -> bytes:
        """As a server-sent event. JSON has no bare line breaks, so its data is one line."""
        number = "" if self.id is None else f"id: {self.id}\n"
        return f"{number}event: {self.name}\ndata: {_json(self.data)}\n\n".encode("utf-8", "replace")

    def line(self) -> bytes:
        """As a line of JSON."""
        number = {} if self.id is None else {"id": str(self.id)}
        return ndjson_line({"event": self.name, **number, "data": self.data})


KEEP_ALIVE_EVENT = StreamEvent("keep-alive", {})
"""What a stream of lines says when nothing else was said for 15 s: a blank line is none that every reader of JSON takes."""


def ndjson_line(data: Mapping[str, Any]) -> bytes:
    """JSON on a line of its own."""
    return f"{_json(data)}\n".encode("utf-8", "replace")


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def event_response(request: Request, pieces: AsyncIterator[StreamEvent], close: Callable[[], Awaitable[None]]) -> KeepAliveStreamResponse:
    """An answer of events in the form that the client asks for; what fails on the way becomes its last event."""
    sent = _accepted_form(request) != NDJSON_MEDIA_TYPE
    return KeepAliveStreamResponse(
        _encoded(pieces, request, StreamEvent.sent if sent else StreamEvent.line),
        close,
        media_type=SSE_MEDIA_TYPE if sent else NDJSON_MEDIA_TYPE,
        headers=_UNBUFFERED,
        beat=KEEP_ALIVE if sent else KEEP_ALIVE_EVENT.line(),
    )


def ndjson_response(request: Request, pieces: AsyncIterator[Mapping[str, Any]], close: Callable[[], Awaitable[None]]) -> KeepAliveStreamResponse:
    """An answer of lines of JSON, each of its own shape; what fails on the way becomes the last line, a problem document."""

    async def told() -> AsyncIterator[bytes]:
        async for piece in _with_failure(pieces, request, lambda problem: problem):
            yield ndjson_line(piece)

    return KeepAliveStreamResponse(told(), close, media_type=NDJSON_MEDIA_TYPE, headers=_UNBUFFERED, beat=b"\n")


async def _encoded(pieces: AsyncIterator[StreamEvent], request: Request, form: Callable[[StreamEvent], bytes]) -> AsyncIterator[bytes]:
    async for piece in _with_failure(pieces, request, lambda problem: StreamEvent("failure", problem)):
        yield form(piece)


async def _with_failure(pieces: AsyncIterator[_Item], request: Request, failure: Callable[[Mapping[str, Any]], _Item]) -> AsyncIterator[_Item]:
    """The pieces, and what made them fail as the last one."""
    request_id = errors.request_id(request)
    try:
        async for piece in pieces:
            yield piece
    except SandlotError as error:
        errors.record_failure(request.scope, error)
        yield failure(errors.problem_document(error, request_id))
    except Exception:  # noqa: BLE001 - the client is told that there was one
        _log.exception("request.defect", request=request_id)
        errors.record_failure(request.scope, defect := errors.internal_error())
        yield failure(errors.problem_document(defect, request_id))


def accepts_events(request: Request) -> bool:
    """Whether a client asks for events, in either form."""
    return bool(_accepted_form(request))


def _accepted_form(request: Request) -> str:
    """The form of events that a client asks for, the first that it names; empty where it asks for none."""
    accepted = request.headers.get("accept", "").lower()
    return min((form for form in (SSE_MEDIA_TYPE, NDJSON_MEDIA_TYPE) if form in accepted), key=accepted.index, default="")


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


class TextSplitter:
    """Bytes of one output stream as JSON-ready pieces that lose nothing.

    UTF-8 goes as text, anything else as base64. A character that is cut in two waits for its other half.
    """

    __slots__ = ("_decoder", "_end", "_held")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._held = b""
        self._end = 0

    def push(self, data: bytes, offset: int) -> dict[str, Any] | None:
        """The next bytes, which begin at ``offset``; what to tell, or None where it must wait."""
        start = offset - len(self._held)
        self._end = offset + len(data)
        whole = self._held + data
        try:
            text = self._decoder.decode(data)
        except UnicodeDecodeError:
            self._decoder.reset()
            self._held = b""
            return {"offset": start, "encoding": "base64", "data": base64.b64encode(whole).decode()}
        self._held = bytes(self._decoder.getstate()[0])
        return {"offset": start, "encoding": "utf-8", "data": text} if text else None

    @property
    def held_bytes(self) -> int:
        """How many bytes wait for what follows them."""
        return len(self._held)

    def flush(self) -> dict[str, Any] | None:
        """What still waits, where nothing follows, or a gap."""
        if not self._held:
            return None
        held, self._held = self._held, b""
        self._decoder.reset()
        return {"offset": self._end - len(held), "encoding": "base64", "data": base64.b64encode(held).decode()}


class OutputEvents:
    """Standard output and error of a process or a cell, as events. Each says by its id where to go on after it: ``STDOUT-STDERR``.

    Args:
        offsets: Channel -> where its first byte is; 0 where none is given.
    """

    __slots__ = ("_next", "_splitters")

    def __init__(self, offsets: Mapping[int, int] | None = None) -> None:
        self._splitters = {channel: TextSplitter() for channel in STREAM_NAMES}
        self._next = {channel: (offsets or {}).get(channel, 0) for channel in STREAM_NAMES}

    @property
    def position(self) -> str:
        """Where both streams go on after the last event: what its id says."""
        return "-".join(str(at) for at in self._next.values())

    def feed(self, item: Output | OutputGap) -> list[StreamEvent]:
        """The events that tell one piece."""
        splitter = self._splitters[item.channel]
        if isinstance(item, OutputGap):
            flushed = self._flush(item.channel)
            return [*flushed, self._event(item.channel, "lost", item.offset + item.bytes, {"bytes": item.bytes})]
        piece = splitter.push(item.data, item.offset)
        return self._piece(item.channel, piece, item.offset + len(item.data) - splitter.held_bytes)

    def end(self) -> list[StreamEvent]:
        """The events that tell what still waits, at the end."""
        return [told for channel in STREAM_NAMES for told in self._flush(channel)]

    def _flush(self, channel: int) -> list[StreamEvent]:
        end = self._next[channel] + self._splitters[channel].held_bytes
        return self._piece(channel, self._splitters[channel].flush(), end)

    def _piece(self, channel: int, piece: dict[str, Any] | None, end: int) -> list[StreamEvent]:
        return [] if piece is None else [self._event(channel, "output", end, piece)]

    def _event(self, channel: int, name: str, end: int, data: Mapping[str, Any]) -> StreamEvent:
        """One event; its id is where both streams go on after it."""
        self._next[channel] = end
        return StreamEvent(name, {"stream": STREAM_NAMES[channel], **data}, self.position)
