"""Streams of the link: a table of the open streams by id, and the handlers of their events.

Invariants:
- An event of a stream reaches only the handler of that stream.
- Every send schedules a write to the link.
- A stream is closed when the host or the guest has reset the stream, or when both have sent END. A closed stream is not in the
  table, and sending on a closed stream has no effect.
- All streams are closed when the guest is quiesced, when the guest receives invalid bytes, and when the host connects again. After
  a new connection, the host may reuse the ids of earlier streams.
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
            """Handle bytes from the host.

            Args:
                channel: Channel of the bytes.
                data: The bytes.
                credit: Number that the handler must pass to ``Stream.consumed`` when it has used the bytes, so that the host may send
                    further bytes.
            """

        def on_end(self) -> None:
            """Handle an END frame from the host: the host sends nothing on this stream afterwards."""

        def on_writable(self) -> None:
            """Continue to send, because the stream accepts bytes again after ``Stream.room`` has returned 0."""

        def on_gone(self) -> None:
            """Handle the loss of the stream. Called at most once.

            A stream is lost when the host resets the stream or connects again, when the guest receives invalid bytes, and when the
            guest is quiesced.
            """


class Stream:
    """One stream between host and guest. Created by :class:`StreamRouter`.

    Args:
        router: Table of the open streams, from which a closed stream removes itself.
        link: Link of the stream.
        id_: Id of the stream on the link.
        handler: Receiver of the stream's events. If None, bytes from the host are dropped.

    Attributes:
        handler: Receiver of the stream's events. If None, bytes from the host are dropped.
        id: Id of the stream on the link.
        is_open: True until the stream is closed. Methods that send have no effect on a closed stream.
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
        """Encode a message and queue it for the host. Does nothing on a closed stream.

        Args:
            message: Message to send.
            later: True to delay the write by about a millisecond, so that the message is written to the link together with later messages.
        """
        if self.is_open:
            self._link.protocol.send(self.id, message)
            self._flush(later=later)

    def send_bytes(self, channel: int, data: bytes, *, later: bool = False) -> None:
        """Queue bytes for the host. Does nothing on a closed stream.

        Args:
            channel: Channel of the bytes.
            data: Bytes to send. The caller must not change them afterwards.
            later: True to delay the write by about a millisecond, so that the bytes are written to the link together with later messages.
        """
        if self.is_open:
            self._link.protocol.send_bytes(self.id, channel, data)
            self._flush(later=later)

    def room(self) -> int:
        """Return the number of bytes that may be queued now. If the number is 0 and the stream is open, ``on_writable`` is called later."""
        return self._link.protocol.room(self.id) if self.is_open else 0

    def consumed(self, credit: int) -> None:
        """Allow the host to send further bytes on this stream, because the handler has used bytes from the host (flow control).

        Args:
            credit: Number of further bytes that the host may send. Pass the value that the handler's ``on_bytes`` received with the
                used bytes.
        """
        if self.is_open:
            self._link.protocol.consumed(self.id, credit)
            self._link.flush_soon()

    def end(self) -> None:
        """Queue an END frame after everything that is queued on this stream. The guest can then send nothing more. Idempotent."""
        if self.is_open:
            self._sent_end = True
            self._link.protocol.end(self.id)
            self._link.flush_soon()
            if self._was_ended:
                self._close()

    def reset(self, code: str, message: str, hint: str = "") -> None:
        """Close the stream with an error for the host, and drop bytes and messages that are queued. Idempotent.

        Args:
            code: Value of a member of ``sandlot.model.errors.ErrorCode``.
            message: Description of the failure.
            hint: One action that the user can take. Empty if there is no advice.
        """
        if self.is_open:
            self._link.protocol.reset(self.id, code, message, hint=hint)
            self._link.flush_soon()
            self._close()

    def dispatch(self, event: events.StreamEvent) -> None:
        """Pass an event of this stream to its handler. Called by :class:`StreamRouter` only."""
        handler = self.handler
        if isinstance(event, events.Bytes):
            if handler is None:
                self.consumed(event.credit)
            else:
                handler.on_bytes(event.channel, event.data, event.credit)
        elif isinstance(event, events.Received):
            self.consumed(event.credit)  # ignore the message: after the first message of a stream, the host sends only bytes
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
        """Close the stream without sending a frame to the host, and call the handler's ``on_gone``. Does nothing on a closed stream.

        Called by :class:`StreamRouter`, and when the host has reset the stream.
        """
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
    """Table of the open streams of the link, by stream id.

    Args:
        link: The guest's end of the link.
    """

    __slots__ = ("_link", "_streams")

    def __init__(self, link: LinkConnection) -> None:
        self._link = link
        self._streams: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def is_full(self) -> bool:
        """True while the guest cannot open another stream, because it has opened the maximum number of streams."""
        return self._link.protocol.is_full

    def open(self, head: dict[str, Any], handler: LinkStreamHandler | None = None) -> Stream:
        """Open a stream to the host.

        Args:
            head: First message of the stream. It names the service of the host to which the stream is opened.
            handler: Receiver of the stream's events. If None, the caller must set the handler before it returns to the loop.

        Raises:
            ProtocolError: No host is connected, the guest is asleep, or all stream ids are used up.
            CannotSend: Too many streams are open, or ``head`` does not fit into one frame.
        """
        if self._link.is_asleep():
            raise ProtocolError("a guest cannot open a stream before guest.wake")
        stream = Stream(self, self._link, self._link.protocol.open(head), handler)
        self._streams[stream.id] = stream
        self._link.flush_soon()
        return stream

    def stream(self, id_: int) -> Stream:
        """Return a stream that the host has opened. If the stream is not in the table, add it without a handler."""
        stream = self._streams.get(id_)
        if stream is None:
            stream = self._streams[id_] = Stream(self, self._link, id_, None)
        return stream

    def dispatch(self, event: events.StreamEvent) -> None:
        """Pass an event to the handler of its stream. Events of closed streams are dropped."""
        stream = self._streams.get(event.stream)
        if stream is not None:
            stream.dispatch(event)

    def drop_all(self) -> None:
        """Close all streams and notify their handlers. Called after a new handshake, a quiesce, or invalid bytes from the host."""
        for stream in list(self._streams.values()):
            stream.drop()

    def forget(self, id_: int) -> None:
        """Remove a closed stream from the table. Called by :class:`Stream` only."""
        self._streams.pop(id_, None)
