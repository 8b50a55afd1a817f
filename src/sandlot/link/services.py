"""Streams that a guest opens: services of the host, by name.

Laws:
- A service stands on hostile ground: its arguments and everything it is sent are the guest's, given as they are.
- A service is cancelled when its stream is over, and at most as many run as a guest may have streams, so that a guest
  that opens and resets without end keeps nothing alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from sandlot.link.calls import CHUNK_BYTES
from sandlot.link.pump import Pump
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, from_code
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.table import GUEST_STREAMS_MAX

_log = logging.getLogger(__name__)


class GuestStream:
    """A stream that the guest opened. Iterate for bytes and messages until the guest's END.

    Args:
        pump: The link.
        stream: The stream's id.
    """

    def __init__(self, pump: Pump, stream: int) -> None:
        self._pump = pump
        self._stream = stream
        self._items: deque[tuple[Any, int]] = deque()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._error: SandlotError | None = None
        self._guest_ended = False
        self._we_ended = False
        self._drops = False
        self.task: asyncio.Task[None] | None = None
        """What serves it, cancelled when the stream is over before."""
        pump.handlers[stream] = self

    def on_event(self, event: events.StreamEvent) -> None:
        """One event of the stream.

        Raises:
            ProtocolError: The guest broke a law.
        """
        if isinstance(event, events.Bytes):
            if event.channel != schema.BODY:
                raise ProtocolError(f"a service was sent channel {event.channel}")
            self._put(event.data, event.credit)
        elif isinstance(event, events.Received):
            self._put(event.message, event.credit)
        elif isinstance(event, events.Ended):
            self._guest_ended = True
            self._forget_if_over()
        elif isinstance(event, events.WasReset):
            # The guest gave it up; its words are of no use to a service.
            self.on_lost(from_code(ErrorCode.CONFLICT, "The sandbox gave the stream up."))
        self._news.set()
        self._writable.set()

    def on_lost(self, error: SandlotError) -> None:
        """The stream is over."""
        self._error = error
        self._pump.forget(self._stream)
        self._news.set()
        self._writable.set()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - bytes, or a message that the service checks
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._guest_ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        item, credit = self._items.popleft()
        self._pump.consumed(self._stream, credit)
        return item

    async def write(self, data: bytes) -> None:
        """Send bytes as the guest takes them.

        Raises:
            SandlotError: The stream is over.
        """
        view = memoryview(data)
        while view:
            room = await self._room()
            piece = view[: min(room, CHUNK_BYTES)]
            self._pump.connection.send_bytes(self._stream, schema.BODY, bytes(piece))
            self._pump.flush()
            view = view[len(piece) :]

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message when there is room for it.

        Raises:
            SandlotError: The stream is over.
        """
        await self._room()
        self._pump.connection.send(self._stream, dict(message))
        self._pump.flush()

    def end(self) -> None:
        """Send no more."""
        self._we_ended = True
        self._pump.connection.end(self._stream)
        self._pump.flush()
        self._forget_if_over()

    def reset(self, code: str, message: str) -> None:
        """End the stream for both sides."""
        self._pump.reset(self._stream, code, message)
        self.on_lost(ConflictError("The stream was reset.", code=ErrorCode.CONFLICT))

    def finish(self) -> None:
        """The service is done: nothing more is sent, and what still comes is dropped until the guest's END."""
        self._drops = True
        for _, credit in self._items:
            self._pump.connection.consumed(self._stream, credit)
        self._items.clear()
        self.end()

    def _forget_if_over(self) -> None:
        if self._we_ended and self._guest_ended:
            self._pump.forget(self._stream)

    async def _room(self) -> int:
        while self._error is None and self._pump.connection.is_open(self._stream):
            room = self._pump.connection.room(self._stream)
            if room:
                return room
            self._writable.clear()
            await self._writable.wait()
        raise self._error or ConflictError("The stream is over.", code=ErrorCode.CONFLICT)

    def _put(self, item: object, credit: int) -> None:
        if self._drops:
            self._pump.connection.consumed(self._stream, credit)
        else:
            self._items.append((item, credit))


Service = Callable[[GuestStream, Mapping[str, Any]], Awaitable[None]]
"""Serves one stream; it is over when the service returns. A SandlotError that it raises becomes the RESET."""


class Services:
    """The services of one link, and the streams that they serve.

    Args:
        pump: The link.
        services: name -> service.
    """

    def __init__(self, pump: Pump, services: Mapping[str, Service]) -> None:
        self._pump = pump
        self._services = dict(services)
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self, services: Mapping[str, Service]) -> None:
        """Serve these from now on, and no others."""
        self._services = dict(services)

    def on_opened(self, event: events.Opened) -> None:
        """The guest opened a stream.

        Raises:
            ProtocolError: Not with the name of a service and its arguments.
        """
        head = event.head
        if type(head) is not dict or set(head) != {"service", "args"} or type(head["service"]) is not str or type(head["args"]) is not dict:
            raise ProtocolError("a stream of the guest that asks for no service")
        service = self._services.get(head["service"])
        if service is None:
            self._pump.connection.reset(event.stream, "unknown_service", "this host has no such service")
            return
        if len(self._tasks) >= GUEST_STREAMS_MAX:
            self._pump.connection.reset(event.stream, "busy", "services of streams that were reset are still ending")
            return
        stream = GuestStream(self._pump, event.stream)
        stream.task = asyncio.create_task(self._serve(service, stream, head["args"]), name="link-service")
        self._tasks.add(stream.task)
        stream.task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """End every service."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, service: Service, stream: GuestStream, args: Mapping[str, Any]) -> None:
        try:
            await service(stream, args)
        except SandlotError as error:
            stream.reset(error.code.value, error.message)
        except Exception:  # noqa: BLE001 - one service must not end the others; it is logged with its traceback
            _log.exception("a service of a sandbox failed")
            stream.reset("internal", "the service failed")
        else:
            stream.finish()
