"""Moves bytes between a :class:`ByteStream` and the protocol's connection, and passes each event to the owner of its stream.

- Each write consists of whole frames and has at most 4,096 bytes, which a pipe accepts as a whole or not at all (PIPE_BUF in pipe(7)). A service
  that is killed therefore leaves no partial frame in the pipe.
- One task reads from the link. Another task waits while the pipe to the guest is full. Neither task waits for the consumer of a stream, so a
  consumer that does not read delays only its own stream.
- After each chunk of received bytes, other tasks of the service run. Chunks that take long are followed by a pause (``turns.py``).
- A link ends only once. The owner of each open stream then gets the error.
- After the first message of a stream opened with ``is_last=True``, nothing is written until :meth:`FrameTransport.resume_sending` is
  called, not even the stream's END. Once the guest has responded on this stream, the guest has read every byte, and the pipe stays empty.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from sandlot.link.turns import LinkReader, LinkTurns
from sandlot.link.types import LinkClosed, LinkClosedReason
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ports import ByteStream
from sandlot.protocol import events
from sandlot.protocol.connection import HOST, Connection
from sandlot.protocol.errors import ProtocolError, TooLarge, TooMany
from sandlot.protocol.frames import HOST_FRAME_MAX
from sandlot.protocol.values import EncodingError

if TYPE_CHECKING:
    from sandlot.link.stream_end import StreamEnd

_READ_AFTER_BROKEN_S = 1.0
"""Seconds for which the transport continues to read after a write has failed. A guest that died may have left its last output in the pipe."""

_log = logging.getLogger(__name__)


class StreamHandler(Protocol):
    """The owner of a stream: gets each event of the stream from the transport."""

    def on_event(self, event: events.StreamEvent) -> None:
        """Handle an event of the stream.

        Raises:
            ProtocolError: The guest violated the protocol; the link ends.
        """
        ...

    def on_closed(self, error: SandlotError) -> None:
        """Handle the end of the stream. Called when the link has ended or all its streams were closed.

        Args:
            error: Error to report to callers.
        """
        ...


class FrameTransport:
    """Sends and receives the frames of one link.

    Args:
        stream: The host's end of the link. The transport is its only user, and closes it in :meth:`aclose`.
        on_event: Called with each event that belongs to no open stream: ``Ready``, ``Quiesced``, ``Opened``.
        turns: Pauses of all links of the service.
    """

    def __init__(self, stream: ByteStream, on_event: Callable[[events.Event], None], turns: LinkTurns) -> None:
        self._stream = stream
        self._reader = LinkReader(turns, self._handle)
        self._on_event = on_event
        self._unsent: bytes | None = None
        self._next_frame: bytes | None = None
        self._last_stream: int | None = None
        """Id of the stream opened with ``is_last=True``; None while sending is not stopped."""
        self._is_full = asyncio.Event()
        self._write_failed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._close_timer: asyncio.TimerHandle | None = None
        self.connection = Connection(HOST)
        self.handlers: dict[int, StreamHandler] = {}
        self.large: WeakSet[StreamEnd[Any]] = WeakSet()
        """Streams that have received a large message; see ``StreamEnd.has_room``."""
        self.closed: asyncio.Future[LinkClosed] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Start the tasks that read from the link and write to the link."""
        self._tasks = [asyncio.create_task(self._read(), name="link-read"), asyncio.create_task(self._write(), name="link-write")]

    def open(self, head: dict[str, Any], handler: StreamHandler, *, is_last: bool = False) -> int:
        """Open a stream, and return its id. The first message is queued; the caller must call :meth:`flush` to send the message.

        Args:
            head: First message of the stream. If ``is_last`` is True, the message must fit into one frame.
            handler: Owner of the stream.
            is_last: True to send no other frame on the link after this message until :meth:`resume_sending` is called.

        Raises:
            SandboxEndedError: The link is closed.
            UnavailableError: The host closed the link, the guest is being quiesced, or too many streams are open.
            LimitError: ``head`` is too large.
            InvalidRequestError: ``head`` has a value that the protocol cannot encode.
        """
        if self.closed.done():
            raise error_of_closed_link(self.closed.result())
        try:
            id_ = self.connection.open(head)
        except TooMany:
            raise UnavailableError("The sandbox has too many calls in progress.", code=ErrorCode.BUSY, hint="Retry when a call has ended.") from None
        except TooLarge as error:
            raise LimitError(
                f"The request is too large: {error}.", code=ErrorCode.TOO_LARGE, hint="Write the content to a file in the sandbox, and pass the path."
            ) from None
        except EncodingError as error:
            raise InvalidRequestError(f"The request cannot be sent: {error}.", hint="Pass text, bytes and 64-bit numbers only.") from None
        except ProtocolError as error:
            raise UnavailableError(f"The sandbox accepts no calls now: {error}.", code=ErrorCode.BUSY, hint="Retry.") from None
        self.handlers[id_] = handler
        if is_last:
            self._last_stream = id_
        return id_

    def resume_sending(self) -> None:
        """Allow sending again after a stream was opened with ``is_last=True``. Idempotent."""
        if self._last_stream is not None:
            self._last_stream = None
            self.flush()

    def consumed(self, stream: int, credit: int) -> None:
        """Allow the guest to send ``credit`` more bytes on a stream."""
        self.connection.consumed(stream, credit)
        self.flush()

    def forget(self, stream: int) -> None:
        """Remove the owner of a stream. Later events of the stream are ignored."""
        self.handlers.pop(stream, None)

    def reset(self, stream: int, code: str, message: str) -> None:
        """Send a RESET, which ends both directions of a stream at once. Later events of the stream are ignored.

        Args:
            stream: Id of the stream.
            code: Code that tells the guest the reason.
            message: Reason as text.
        """
        self.forget(stream)
        self.connection.reset(stream, code, message)
        self.flush()

    def close_streams(self, error: SandlotError) -> None:
        """Remove the owners of all streams, and report an error to each owner."""
        handlers, self.handlers = self.handlers, {}
        for handler in handlers.values():
            handler.on_closed(error)

    def flush(self) -> None:
        """Write queued frames until the pipe to the guest is full. A task writes the remaining frames when the pipe accepts bytes again."""
        if self._is_full.is_set() or self._write_failed or self.closed.done():
            return
        try:
            while (batch := self._unsent or self._next_batch()) is not None:
                self._unsent = batch
                if not self._stream.try_send(batch):
                    self._is_full.set()
                    break
                self._unsent = None
        except OSError as error:
            self._write_failed = True
            self._close_timer = asyncio.get_running_loop().call_later(_READ_AFTER_BROKEN_S, self.close, LinkClosedReason.BROKEN, str(error))
        self._dispatch(self.connection.take_events())

    def _next_batch(self) -> bytes | None:
        """Return the bytes of the next write: as many whole frames as fit into 4,096 bytes. Return None if nothing may be sent.

        A call and its END are sent in one write, so that they wake the guest only once.
        """
        batch, self._next_frame = self._next_frame, None
        while (self._last_stream is None or not self.connection.has_left(self._last_stream)) and (frame := self.connection.next_frame()) is not None:
            if batch is None:
                batch = frame
            elif len(batch) + len(frame) <= HOST_FRAME_MAX:
                batch += frame
            else:
                self._next_frame = frame
                break
        return batch

    def close(self, reason: LinkClosedReason, detail: str = "") -> None:
        """End the link, and report the error to the owner of each stream. Does nothing if the link has ended.

        Args:
            reason: Reason why the link ends.
            detail: Further information for the text of the error.
        """
        if self.closed.done():
            return
        closed = LinkClosed(reason, detail)
        self.closed.set_result(closed)
        if self._close_timer is not None:
            self._close_timer.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self.close_streams(error_of_closed_link(closed))

    async def aclose(self) -> None:
        """Close the host's end of the link. The sandbox keeps running. Idempotent."""
        self.close(LinkClosedReason.CLOSED)
        await asyncio.gather(*(task for task in self._tasks if task is not asyncio.current_task()), return_exceptions=True)
        await self._stream.aclose()

    def _dispatch(self, received: Iterable[events.Event]) -> None:
        for event in received:
            if isinstance(event, events.Opened) or not isinstance(event, events.StreamEvent):
                self._on_event(event)
                continue
            handler = self.handlers.get(event.stream)
            if handler is not None:
                handler.on_event(event)

    def _handle(self, data: bytes) -> None:
        self._dispatch(self.connection.receive(data))
        self.flush()

    async def _read(self) -> None:
        try:
            while data := await self._stream.receive(self._reader.read_bytes):
                await self._reader.handle(data)
            self.close(LinkClosedReason.EOF)
        except ProtocolError as error:
            self.close(LinkClosedReason.VIOLATION, str(error))
        except OSError as error:
            self.close(LinkClosedReason.BROKEN, str(error))
        except Exception as error:  # noqa: BLE001 - if bytes of this guest trigger a defect of the service, other sandboxes must not end
            _log.error("Bytes from a guest caused an internal error (%s). The link is closed, and the guest's sandbox ends.", place_of(error))
            self.close(LinkClosedReason.VIOLATION, f"internal error {type(error).__name__}")

    async def _write(self) -> None:
        while True:
            await self._is_full.wait()
            await self._stream.wait_writable()
            self._is_full.clear()
            self.flush()


def place_of(error: Exception) -> str:
    """Return the type of an unexpected exception and the line that raised it, for a log that a guest may fill: no traceback, and no text.

    The guest may have chosen the text of the exception.
    """
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def error_of_closed_link(closed: LinkClosed) -> SandlotError:
    """Return the error for calls on a link that has ended.

    Args:
        closed: Description of how the link ended.
    """
    if closed.reason is LinkClosedReason.CLOSED:
        return UnavailableError("The connection to the sandbox was closed.", code=ErrorCode.SERVICE_UNAVAILABLE, hint="Retry.")
    text = {
        LinkClosedReason.EOF: "The sandbox has ended.",
        LinkClosedReason.BROKEN: "The sandbox has ended: it no longer reads its input.",
        LinkClosedReason.VIOLATION: f"The sandbox was ended, because its guest violated the protocol: {closed.detail}.",
    }[closed.reason]
    return SandboxEndedError(text, code=ErrorCode.SANDBOX_ENDED, hint="Create a new sandbox.", fields={"link": closed.reason.value})
