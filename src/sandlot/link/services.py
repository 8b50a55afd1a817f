"""Services that the host offers to its guests. A guest opens a stream with the name of a service, and the service handles the stream.

- A service must not trust its input: arguments, bytes and messages come from the guest and are not checked.
- A service is cancelled when its stream ends early. At most ``SERVICES_MAX`` services of one guest run at once, even if the guest opens and
  resets streams all the time.
- What the services of one link have not read, or have read and keep, is limited to ``UNREAD_BYTES``. The stream that exceeds the limit is reset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol, Self

from sandlot.link.stream_end import StreamEnd, UnreadBytes
from sandlot.link.transport import FrameTransport, place_of
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, from_code
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.stream_table import GUEST_STREAMS_MAX
from sandlot.protocol.streams import WINDOW_BYTES

UNREAD_BYTES = 64 * WINDOW_BYTES
"""Largest size of what all services of one link together have not read or keep: 64 uploads to servers that do not read for a while."""
SERVICES_MAX = 2 * GUEST_STREAMS_MAX
"""Maximum number of services of one link, together with the cancelled ones that have not ended.

Twice the number of streams: a guest may close all streams and open as many others in one write, before a cancelled service can end.
"""
MESSAGE_BYTES = 64 * 1024
"""Largest size of a message on a stream that a guest opened, apart from the first one, which fits into one frame."""

ARGUMENTS_MAX, ARGUMENT_CHARS = 2, 512
"""Largest number of arguments of a service, and largest length of their names and of texts. A guest has many streams, whose arguments are kept."""

_log = logging.getLogger(__name__)


class GuestStream:
    """A stream that the guest opened to a service. Iterate over the stream to receive the guest's bytes and messages, until the guest sends END.

    An item counts as unread until the service asks for the next one. If the service keeps bytes for longer, it calls :meth:`keep`.

    Args:
        transport: Sends and receives the frames.
        stream: Id of the stream.
        services: Services of the link.
    """

    def __init__(self, transport: FrameTransport, stream: int, services: Services) -> None:
        self._transport = transport
        self._services = services
        self._stream: StreamEnd[Any] = StreamEnd(transport, stream, services.unread)
        self._kept_bytes = 0
        self._is_over = False
        self._guest_ended = False
        self._host_ended = False
        self.task: asyncio.Task[None] | None = None
        """Task that runs the service. It is cancelled when the guest resets the stream or the link ends."""
        transport.handlers[stream] = self

    def on_event(self, event: events.StreamEvent) -> None:
        """Handle an event of the stream. The transport calls this method.

        Raises:
            ProtocolError: The guest violated the protocol.
        """
        if isinstance(event, events.Bytes):
            if event.channel != schema.BODY:
                raise ProtocolError(f"bytes for a service arrived on channel {event.channel}; only channel {schema.BODY} is allowed")
            self._put(event.data, event.credit)
        elif isinstance(event, events.Received):
            if event.credit > MESSAGE_BYTES:
                raise ProtocolError(f"a message for a service has {event.credit} bytes; at most {MESSAGE_BYTES} are allowed")
            self._put(event.message, event.credit)
        elif isinstance(event, events.Writable):
            self._stream.on_writable()
        elif isinstance(event, events.Ended):
            self._guest_ended = True
            self._stream.end_receiving()
            self._forget_if_over()
        elif isinstance(event, events.WasReset):
            # The reason that the guest gave is dropped, because no service uses it.
            self.on_closed(from_code(ErrorCode.CONFLICT, "The sandbox closed the stream."))

    def _put(self, item: object, credit: int) -> None:
        self._stream.put(item, credit)
        if self._services.unread.total > UNREAD_BYTES:
            self._stream.discard()
            self.reset("busy", "the services have not read what was sent before")

    def keep(self, size: int) -> bool:
        """Count bytes of the service as unread, for example the beginning of a message. The number replaces that of an earlier call.

        Args:
            size: Number of bytes that the service keeps, whether they came from the guest or go to the guest.

        Returns:
            False if the services of the link would keep too many. The service must then end the stream.
        """
        total = self._services.unread.total + size - self._kept_bytes
        if size > self._kept_bytes and total > UNREAD_BYTES:
            return False
        self._services.unread.total = total
        self._kept_bytes = size
        return True

    def discard(self) -> None:
        """Drop what the service has not read and will not read."""
        self._stream.discard()
        self.keep(0)

    def on_closed(self, error: SandlotError) -> None:
        """End the stream with an error, and cancel the service. Called when the link has ended or the stream was reset."""
        self._is_over = True
        self._transport.forget(self._stream.id)
        self._stream.finish(error)
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - bytes, or a message that the service checks
        return await self._stream.take()

    async def write(self, data: bytes) -> None:
        """Send bytes to the guest. Wait while the guest does not read.

        Raises:
            SandlotError: The stream has ended, or :meth:`end` was called.
        """
        await self._stream.send(data)

    async def wait_for_room(self) -> int:
        """Wait while the send queue of the stream is full, and return the number of bytes that it can take.

        Raises:
            SandlotError: The stream has ended, or :meth:`end` was called.
        """
        return await self._stream.wait_for_room()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the guest. Wait while the send queue of the stream is full.

        Raises:
            SandlotError: The stream has ended, or :meth:`end` was called.
        """
        await self._stream.wait_for_room()
        self._transport.connection.send(self._stream.id, dict(message))
        self._transport.flush()

    def end(self) -> None:
        """Send the END frame. The host can send nothing more on this stream afterwards."""
        self._host_ended = True
        self._stream.end_sending()
        self._forget_if_over()

    def reset(self, code: str, message: str) -> None:
        """End both directions of the stream with an error.

        Args:
            code: Code that tells the guest the reason.
            message: Reason as text.
        """
        self._transport.reset(self._stream.id, code, message)
        self.on_closed(ConflictError("The stream was reset.", code=ErrorCode.CONFLICT))

    def finish(self) -> None:
        """End the stream after the service has returned. Data that arrives until the guest's END is dropped."""
        self._stream.discard()
        self.end()

    def _forget_if_over(self) -> None:
        if self._host_ended and self._guest_ended:
            self._transport.forget(self._stream.id)


class GuestService(Protocol):
    """A service of the host for one guest."""

    async def serve(self, stream: GuestStream, args: Mapping[str, Any]) -> None:
        """Serve one stream, which ends when this method returns.

        Args:
            stream: Stream that the guest opened.
            args: Arguments of the guest, not checked.

        Raises:
            SandlotError: The stream is reset with the code and the message of the error.
        """
        ...


class Services:
    """The services of one link, and the streams that they serve.

    Args:
        transport: Sends and receives the frames.
        services: Services by name.

    Attributes:
        unread: Size of what all running services of this link together have not read or keep.
    """

    def __init__(self, transport: FrameTransport, services: Mapping[str, GuestService]) -> None:
        self._transport = transport
        self._services = dict(services)
        self.unread = UnreadBytes()
        self._tasks: dict[asyncio.Task[None], GuestStream] = {}
        self._has_failed = False
        """True after a service has failed: further failures of the same link are not logged."""

    def replace(self, services: Mapping[str, GuestService]) -> None:
        """Replace all services. Streams that are open keep their service."""
        self._services = dict(services)

    def on_opened(self, event: events.Opened) -> None:
        """Start the service that the guest named in the first message of a new stream.

        Raises:
            ProtocolError: The first message of the stream does not consist of the name of a service and arguments.
        """
        head = event.head
        if type(head) is not dict or set(head) != {"service", "args"} or type(head["service"]) is not str or type(head["args"]) is not dict:
            raise ProtocolError("the first message of a guest's stream must be a map with exactly two keys: `service` (a string) and `args` (a map)")
        if not _are_short(head["args"]):
            raise ProtocolError(f"a service has at most {ARGUMENTS_MAX} arguments: numbers, and texts of at most {ARGUMENT_CHARS} characters")
        service = self._services.get(head["service"])
        if service is None:
            self._transport.connection.reset(event.stream, "unknown_service", f"the host has no service {head['service'][:50]!r}")
            return
        if len(self._tasks) >= SERVICES_MAX:
            self._transport.connection.reset(event.stream, "busy", "too many services of earlier streams are still running")
            return
        stream = GuestStream(self._transport, event.stream, self)
        stream.task = asyncio.create_task(self._serve(service, stream, head["args"]), name="link-service")
        self._tasks[stream.task] = stream
        stream.task.add_done_callback(self._on_ended)

    async def aclose(self) -> None:
        """Cancel all running services of this link, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task).discard()

    async def _serve(self, service: GuestService, stream: GuestStream, args: Mapping[str, Any]) -> None:
        try:
            await service.serve(stream, args)
        except SandlotError as error:
            stream.reset(error.code.value, error.message)
        except Exception as error:  # noqa: BLE001 - a failed service must not end the link
            if not self._has_failed:
                _log.error("A service of the host failed while it handled a stream of a guest (%s). The stream is reset.", place_of(error))
            self._has_failed = True
            stream.reset("internal", "the service failed")
        else:
            stream.finish()


def _are_short(args: Mapping[Any, Any]) -> bool:
    texts = (*args, *(value for value in args.values() if type(value) is not int))
    return len(args) <= ARGUMENTS_MAX and all(type(text) is str and len(text) <= ARGUMENT_CHARS for text in texts)
