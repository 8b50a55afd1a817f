"""The I/O shell of a link: bytes between a :class:`ByteStream` and the connection, events to whom they belong.

Laws:
- Each ``try_send`` is of whole frames, 4,096 bytes at most: a service that is killed leaves no half frame in the pipe.
- One task reads and one waits for room; neither waits for a consumer, so a stream that nobody reads stops only itself.
- After every chunk the other tasks of the service get their turn, however fast a guest writes; one whose bytes take long
  to deal with waits as long as they took, so that a flood of tiny frames gets half of the loop at most.
- The end comes once, for one reason, and everyone who waits is told; nobody is left hanging.
- After the OPEN of the stream that is said to be the last nothing is written, nor its END, until :meth:`Pump.go_on`: who has answered it
  has read all that was sent, and the pipe stays empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from sandlot.link.types import LinkLost, LostReason
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ports import ByteStream
from sandlot.protocol import events
from sandlot.protocol.connection import HOST, Connection
from sandlot.protocol.errors import ProtocolError, TooLarge, TooMany
from sandlot.protocol.frames import HOST_FRAME_MAX
from sandlot.protocol.values import BadValue

READ_BYTES = 64 * 1024
"""What is dealt with before others get their turn: a pipe's default capacity, pipe(7)."""
_LONG_TURN_S = 0.002
"""A full pipe of ordinary output takes a tenth of it; one of the smallest frames takes ten times as long."""
_LAST_WORDS_S = 1.0
"""How long what a dead guest wrote is still read after a write failed."""

_log = logging.getLogger(__name__)


class Handler(Protocol):
    """Who a stream's events belong to."""

    def on_event(self, event: events.StreamEvent) -> None:
        """Something happened on the stream. Raises ProtocolError where the guest broke a law."""
        ...

    def on_lost(self, error: SandlotError) -> None:
        """The stream is gone with the connection."""
        ...


class Pump:
    """Moves bytes until the link is over.

    Args:
        stream: The host's end of the link; the pump uses it alone and closes it in :meth:`aclose`.
        on_event: Told of what is no open stream's: ``Ready``, ``Quiesced``, ``Opened``.
    """

    def __init__(self, stream: ByteStream, on_event: Callable[[events.Event], None]) -> None:
        self._stream = stream
        self._on_event = on_event
        self._unsent: bytes | None = None
        self._ahead: bytes | None = None
        self._last: int | None = None
        """The stream whose OPEN is the last that is sent until it goes on."""
        self._full = asyncio.Event()
        self._write_failed = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._last_words: asyncio.TimerHandle | None = None
        self.connection = Connection(HOST)
        self.handlers: dict[int, Handler] = {}
        self.lost: asyncio.Future[LinkLost] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Begin to read."""
        self._tasks = [asyncio.create_task(self._read(), name="link-read"), asyncio.create_task(self._write(), name="link-write")]

    def open(self, head: dict[str, Any], handler: Handler, *, is_last: bool = False) -> int:
        """Open a stream; its id. :meth:`flush` sends it.

        Args:
            head: Its first message; one frame of it where it is the last.
            handler: Whose it is.
            is_last: Whether nothing is sent after it until :meth:`go_on`.

        Raises:
            SandboxEndedError: The link is over.
            UnavailableError: It was closed by this end, is coming to rest, or carries as many calls as it can.
            LimitError: ``head`` is too large.
            InvalidRequestError: ``head`` holds what the wire does not carry.
        """
        if self.lost.done():
            raise ended(self.lost.result())
        try:
            id_ = self.connection.open(head)
        except TooMany:
            raise UnavailableError("The sandbox has too many calls under way.", code=ErrorCode.BUSY, hint="Try again when one has ended.") from None
        except TooLarge as error:
            raise LimitError(
                f"The request is too large: {error}.", code=ErrorCode.TOO_LARGE, hint="Write it to a file in the sandbox and pass its path."
            ) from None
        except BadValue as error:
            raise InvalidRequestError(f"The request cannot be sent: {error}.", hint="Pass text, bytes and 64-bit numbers only.") from None
        except ProtocolError as error:
            raise UnavailableError(f"The sandbox takes no calls now: {error}.", code=ErrorCode.BUSY, hint="Try again.") from None
        self.handlers[id_] = handler
        if is_last:
            self._last = id_
        return id_

    def go_on(self) -> None:
        """Send again, also what waits since something was the last. Idempotent."""
        if self._last is not None:
            self._last = None
            self.flush()

    def consumed(self, stream: int, credit: int) -> None:
        """Something of a stream was dealt with."""
        self.connection.consumed(stream, credit)
        self.flush()

    def forget(self, stream: int) -> None:
        """The stream's events belong to nobody any more."""
        self.handlers.pop(stream, None)

    def reset(self, stream: int, code: str, message: str) -> None:
        """End a stream at once and forget it."""
        self.forget(stream)
        self.connection.reset(stream, code, message)
        self.flush()

    def fail_all(self, error: SandlotError) -> None:
        """Every stream is gone."""
        handlers, self.handlers = self.handlers, {}
        for handler in handlers.values():
            handler.on_lost(error)

    def flush(self) -> None:
        """Write what may be written without waiting; the rest follows by itself."""
        if self._full.is_set() or self._write_failed or self.lost.done():
            return
        try:
            while (batch := self._unsent or self._next_batch()) is not None:
                self._unsent = batch
                if not self._stream.try_send(batch):
                    self._full.set()
                    break
                self._unsent = None
        except OSError as error:
            # What a guest wrote before it died, its last result for example, is still in the pipe.
            self._write_failed = str(error)
            self._last_words = asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.lose, LostReason.BROKEN, str(error))
        self._dispatch(self.connection.take_events())

    def _next_batch(self) -> bytes | None:
        """Frames for one write: a call and its end wake the guest once."""
        batch, self._ahead = self._ahead, None
        while not self._stands_still() and (frame := self.connection.next_frame()) is not None:
            if batch is None:
                batch = frame
            elif len(batch) + len(frame) <= HOST_FRAME_MAX:
                batch += frame
            else:
                self._ahead = frame
                break
        return batch

    def _stands_still(self) -> bool:
        return self._last is not None and self.connection.has_left(self._last)

    def lose(self, reason: LostReason, detail: str = "") -> None:
        """The link is over. The first reason stays."""
        if self.lost.done():
            return
        lost = LinkLost(reason, detail)
        self.lost.set_result(lost)
        if self._last_words is not None:
            self._last_words.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self.fail_all(ended(lost))

    async def aclose(self) -> None:
        """Stop and close the stream; the sandbox lives on. Idempotent."""
        self.lose(LostReason.CLOSED)
        await asyncio.gather(*(task for task in self._tasks if task is not asyncio.current_task()), return_exceptions=True)
        await self._stream.aclose()

    def _dispatch(self, happened: Iterable[events.Event]) -> None:
        for event in happened:
            if isinstance(event, events.Opened) or not isinstance(event, events.StreamEvent):
                self._on_event(event)
                continue
            handler = self.handlers.get(event.stream)
            if handler is not None:
                handler.on_event(event)

    async def _read(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while data := await self._stream.receive(READ_BYTES):
                began_s = clock()
                self._dispatch(self.connection.receive(data))
                self.flush()
                spent_s = clock() - began_s
                await asyncio.sleep(spent_s if spent_s > _LONG_TURN_S else 0)
            self.lose(LostReason.EOF)
        except ProtocolError as error:
            self.lose(LostReason.VIOLATION, str(error))
        except OSError as error:
            self.lose(LostReason.BROKEN, str(error))
        except Exception as error:  # noqa: BLE001 - see below; it is logged with its traceback
            # A defect of ours that this guest's bytes led to: it must not take other sandboxes with it.
            _log.exception("the link failed on what the guest sent")
            self.lose(LostReason.VIOLATION, f"{type(error).__name__}: {error}")

    async def _write(self) -> None:
        while True:
            await self._full.wait()
            await self._stream.wait_writable()
            self._full.clear()
            self.flush()


def ended(lost: LinkLost) -> SandlotError:
    """The error of everyone who waited for a link that is over."""
    if lost.reason is LostReason.CLOSED:
        return UnavailableError("The connection to the sandbox was closed.", code=ErrorCode.SERVICE_UNAVAILABLE, hint="Try again.")
    text = {
        LostReason.EOF: "The sandbox has ended.",
        LostReason.BROKEN: "The sandbox has ended: it no longer reads.",
        LostReason.VIOLATION: f"The sandbox was ended, because its guest broke the protocol: {lost.detail}.",
    }[lost.reason]
    return SandboxEndedError(text, code=ErrorCode.SANDBOX_ENDED, hint="Create a new one.", fields={"link": lost.reason.value})
