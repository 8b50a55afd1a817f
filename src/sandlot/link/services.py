"""Streams that a guest opens: services of the host, by name.

- A service must not trust its input: the arguments and all bytes and messages are the guest's, unchecked.
- A service is cancelled when its stream is over. At most as many services run as a guest may have streams, so that a guest that opens and
  resets streams without end keeps nothing alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from sandlot.link.stream_end import StreamEnd
from sandlot.link.transport import FrameTransport
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, from_code
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.stream_table import GUEST_STREAMS_MAX

_log = logging.getLogger(__name__)


class GuestStream:
    """A stream that the guest opened. Iterate for its bytes and messages until the guest's END.

    Args:
        transport: Sends and receives the frames.
        stream: Number of the stream.
    """

    def __init__(self, transport: FrameTransport, stream: int) -> None:
        self._transport = transport
        self._stream: StreamEnd[Any] = StreamEnd(transport, stream)
        self._is_over = False
        self._guest_ended = False
        self._host_ended = False
        self.task: asyncio.Task[None] | None = None
        """The task that serves the stream; cancelled when the stream is over."""
        transport.handlers[stream] = self

    def on_event(self, event: events.StreamEvent) -> None:
        """Handle an event of the stream.

        Raises:
            ProtocolError: The guest violated the protocol.
        """
        if isinstance(event, events.Bytes):
            if event.channel != schema.BODY:
                raise ProtocolError(f"a service was sent channel {event.channel}")
            self._stream.put(event.data, event.credit)
        elif isinstance(event, events.Received):
            self._stream.put(event.message, event.credit)
        elif isinstance(event, events.Writable):
            self._stream.on_writable()
        elif isinstance(event, events.Ended):
            self._guest_ended = True
            self._stream.end_receiving()
            self._forget_if_over()
        elif isinstance(event, events.WasReset):
            # The guest's own text is of no use to a service.
            self.on_closed(from_code(ErrorCode.CONFLICT, "The sandbox closed the stream."))

    def on_closed(self, error: SandlotError) -> None:
        """End the stream and cancel the service, because the link or the stream is over."""
        self._is_over = True
        self._transport.forget(self._stream.id)
        self._stream.finish(error)
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - bytes, or a message that the service checks
        return await self._stream.next()

    async def write(self, data: bytes) -> None:
        """Send bytes as fast as the guest takes them.

        Raises:
            SandlotError: The stream is over.
        """
        await self._stream.send(data)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message once the guest has room for it.

        Raises:
            SandlotError: The stream is over.
        """
        await self._stream.wait_for_room()
        self._transport.connection.send(self._stream.id, dict(message))
        self._transport.flush()

    def end(self) -> None:
        """Send nothing more."""
        self._host_ended = True
        self._stream.end_sending()
        self._forget_if_over()

    def reset(self, code: str, message: str) -> None:
        """End the stream for both sides."""
        self._transport.reset(self._stream.id, code, message)
        self.on_closed(ConflictError("The stream was reset.", code=ErrorCode.CONFLICT))

    def finish(self) -> None:
        """End the stream after the service has returned: data that still arrives is dropped until the guest's END."""
        self._stream.discard()
        self.end()

    def _forget_if_over(self) -> None:
        if self._host_ended and self._guest_ended:
            self._transport.forget(self._stream.id)


Service = Callable[[GuestStream, Mapping[str, Any]], Awaitable[None]]
"""Serves one stream, which ends when the service returns. A SandlotError that the service raises becomes the RESET."""


class Services:
    """The services of one link, and the streams that they serve.

    Args:
        transport: Sends and receives the frames.
        services: Each service by its name.
    """

    def __init__(self, transport: FrameTransport, services: Mapping[str, Service]) -> None:
        self._transport = transport
        self._services = dict(services)
        self._tasks: set[asyncio.Task[None]] = set()

    def replace(self, services: Mapping[str, Service]) -> None:
        """Serve these from now on, and no others."""
        self._services = dict(services)

    def on_opened(self, event: events.Opened) -> None:
        """Start the service that the guest asks for.

        Raises:
            ProtocolError: The stream's first message is not the name of a service with arguments.
        """
        head = event.head
        if type(head) is not dict or set(head) != {"service", "args"} or type(head["service"]) is not str or type(head["args"]) is not dict:
            raise ProtocolError("a stream of the guest asks for no service")
        service = self._services.get(head["service"])
        if service is None:
            self._transport.connection.reset(event.stream, "unknown_service", "this host has no such service")
            return
        if len(self._tasks) >= GUEST_STREAMS_MAX:
            self._transport.connection.reset(event.stream, "busy", "services of streams that were reset are still ending")
            return
        stream = GuestStream(self._transport, event.stream)
        stream.task = asyncio.create_task(self._serve(service, stream, head["args"]), name="link-service")
        self._tasks.add(stream.task)
        stream.task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel every service, and wait until they have ended."""
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
            _log.exception("A service for a sandbox failed.")
            stream.reset("internal", "the service failed")
        else:
            stream.finish()
