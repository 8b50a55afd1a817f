"""Streams of the link: one table from stream ids to the objects that handle them.

Invariants:
- An event of a stream reaches the handler of that stream and nothing else.
- Every send schedules the flush of the link.
- A stream that is over (reset, or ended by both sides) is not in the table, and sending on it has no effect. When the host
  connects again, all streams are over, because their ids may be reused.
"""

from __future__ import annotations

from sandlot.protocol import events
from sandlot.protocol.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from sandlot.guest.connection import LinkConnection

    class LinkStreamHandler(Protocol):
        """Receiver of the events of one stream."""

        def on_bytes(self, channel: int, data: bytes, credit: int) -> None:
            """Handle bytes of the host. After that, return the credit by ``Stream.consumed``."""

        def on_end(self) -> None:
            """Handle the end of the host's bytes."""

        def on_writable(self) -> None:
            """Handle that more can be sent, after ``Stream.room`` was 0."""

        def on_gone(self) -> None:
            """Handle the end of the stream by a reset of the host or a new connection. Called once, as the last event."""


class Stream:
    """One stream. Created by :class:`StreamRouter`.

    Attributes:
        handler: Receiver of the events. Without a handler, bytes of the host are dropped.
        id: Id on the link.
        is_open: False once the stream is over. Sending has no effect then.
    """

    __slots__ = ("_link", "_router", "_sent_end", "_was_ended", "handler", "id", "is_open")

    def __init__(self, router: StreamRouter, link: LinkConnection, id_: int, handler: LinkStreamHandler | None) -> None:
        self._router = router
        self._link = link
        self.id = id_
        self._sent_end = False
        self._was_ended = False
        self.handler = handler
        self.is_open = True

    def send(self, message: dict[str, Any], *, later: bool = False) -> None:
        """Queue a message.

        Args:
            message: Message to encode.
            later: If true, the message may wait about a millisecond to be written together with others.
        """
        if self.is_open:
            self._link.protocol.send(self.id, message)
            self._flush(later=later)

    def send_bytes(self, channel: int, data: bytes, *, later: bool = False) -> None:
        """Queue bytes of a channel. ``data`` must not change afterwards; ``later`` as for :meth:`send`."""
        if self.is_open:
            self._link.protocol.send_bytes(self.id, channel, data)
            self._flush(later=later)

    def room(self) -> int:
        """Return the number of bytes that may be queued now. After 0, the handler's ``on_writable`` is called later."""
        return self._link.protocol.room(self.id) if self.is_open else 0

    def consumed(self, credit: int) -> None:
        """Return the credit of an event, so that the host may send more."""
        if self.is_open:
            self._link.protocol.consumed(self.id, credit)
            self._link.flush_soon()

    def end(self) -> None:
        """Queue the end of the guest's bytes and messages. Idempotent."""
        if self.is_open:
            self._sent_end = True
            self._link.protocol.end(self.id)
            self._link.flush_soon()
            if self._was_ended:
                self._close()

    def reset(self, code: str, message: str, hint: str = "") -> None:
        """End both directions of the stream at once, and drop what is queued on it. Idempotent."""
        if self.is_open:
            self._link.protocol.reset(self.id, code, message, hint=hint)
            self._link.flush_soon()
            self._close()

    def dispatch(self, event: events.StreamEvent) -> None:
        """Pass an event to the handler. For :class:`StreamRouter`."""
        handler = self.handler
        if isinstance(event, events.Bytes):
            if handler is None:
                self.consumed(event.credit)
            else:
                handler.on_bytes(event.channel, event.data, event.credit)
        elif isinstance(event, events.Received):
            self.consumed(event.credit)  # after its first message, the host sends bytes only
        elif isinstance(event, events.Ended):
            self._was_ended = True
            if handler is not None:
                handler.on_end()
            if self._sent_end:
                self._close()
        elif isinstance(event, events.WasReset):
            self.drop()
        elif isinstance(event, events.Writable) and handler is not None:
            handler.on_writable()

    def drop(self) -> None:
        """Report the stream as gone, without a frame to the host. For :class:`StreamRouter`. Idempotent."""
        if self.is_open:
            self._close()
            if self.handler is not None:
                self.handler.on_gone()

    def _close(self) -> None:
        self.is_open = False
        self._router.forget(self.id)

    def _flush(self, *, later: bool) -> None:
        if later:
            self._link.flush_later()
        else:
            self._link.flush_soon()


class StreamRouter:
    """The open streams of the link.

    Args:
        link: Link of the streams.
    """

    __slots__ = ("_link", "_streams")

    def __init__(self, link: LinkConnection) -> None:
        self._link = link
        self._streams: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def is_full(self) -> bool:
        """True while the guest has its maximum number of open streams."""
        return self._link.protocol.is_full

    def open(self, head: dict[str, Any], handler: LinkStreamHandler | None = None) -> Stream:
        """Open a stream to the host.

        Args:
            head: First message.
            handler: Receiver of the stream's events. None if the caller sets the handler before it returns to the loop.

        Raises:
            ProtocolError: No host is connected, ``guest.wake`` has not been called, or too many streams are open.
        """
        if self._link.is_asleep():
            raise ProtocolError("a guest cannot open a stream before guest.wake")
        stream = Stream(self, self._link, self._link.protocol.open(head), handler)
        self._streams[stream.id] = stream
        self._link.flush_soon()
        return stream

    def stream(self, id_: int) -> Stream:
        """Return a stream that the host has opened. A new stream has no handler."""
        stream = self._streams.get(id_)
        if stream is None:
            stream = self._streams[id_] = Stream(self, self._link, id_, None)
        return stream

    def dispatch(self, event: events.StreamEvent) -> None:
        """Pass an event to the handler of its stream. Events of streams that are over are dropped."""
        stream = self._streams.get(event.stream)
        if stream is not None:
            stream.dispatch(event)

    def drop_all(self) -> None:
        """Report all streams as gone, because the host has connected again or the guest was quiesced."""
        for stream in list(self._streams.values()):
            stream.drop()

    def forget(self, id_: int) -> None:
        """Remove a stream that is over. For :class:`Stream`."""
        self._streams.pop(id_, None)
