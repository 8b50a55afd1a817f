"""The state of a connection on one side: received bytes become events, and method calls become frames. No I/O, no clock, no randomness.

One class serves both sides. The owner passes the bytes that it read to :meth:`Connection.receive`, and writes the frames of
:meth:`Connection.next_frame` whenever the peer can take them.

- The host sends HELLO with a nonce that was never used before, and discards every byte until the guest returns this nonce in WELCOME.
- After the event ``Greeted`` (guest) or ``Ready`` (host), no event of an earlier connection follows.
- A guest that reads invalid bytes drops everything, sends LOST and searches for the next HELLO. A host raises :class:`ProtocolError`.
- At most one message at a time is sent in pieces in each direction, so a receiver buffers at most ``MESSAGE_MAX_BYTES`` of unfinished messages.
- Streams take turns, frame by frame. A stream without credit delays no other stream.
- Frames of a stream that either side has closed are ignored, because the peer may have sent them before it knew that the stream was closed.
- A guest is armed while a checkpoint of the guest is taken. If an armed guest receives the HELLO of a new connection, the guest is asleep
  afterwards, because it may have been restored from the checkpoint, as another sandbox.
- After QUIESCE, the host sends nothing but HELLO until the guest has sent QUIESCED, so that no frame of the old streams arrives after QUIESCE.
"""

from __future__ import annotations

from sandlot.protocol import events, frames, handshake, values
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.send_queue import SendQueue, encode, parse_credit
from sandlot.protocol.stream_table import StreamTable
from sandlot.protocol.streams import Assembly, Outgoing, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GENERATION = 1
"""Generation of the whole protocol: frames, calls and their meanings. Every change of the frozen schema needs a new generation."""

OLDEST_GENERATION = 1
"""Oldest generation of the protocol that this host accepts from a guest."""

HOST = "host"
GUEST = "guest"

MESSAGE_MAX_BYTES = 8 * 1024 * 1024
"""Largest size of an encoded message in bytes."""


class Connection:
    """One side of the link: the host or the guest.

    Args:
        side: ``HOST`` or ``GUEST``.
        asleep: For a guest: True if the guest serves only ``guest.wake``, as after boot.

    Attributes:
        armed: For a guest: True while a checkpoint of the guest is taken. The owner of the connection sets this attribute.
        asleep: True if the guest serves only ``guest.wake``.
        generation: Generation of the protocol that the guest speaks.
    """

    __slots__ = (
        "_assembly",
        "_decoder",
        "_events",
        "_failure",
        "_greeted",
        "_is_host",
        "_max_payload",
        "_nonce",
        "_quiescing",
        "_search",
        "_send_queue",
        "_table",
        "armed",
        "asleep",
        "generation",
    )

    def __init__(self, side: str, *, asleep: bool = True) -> None:
        self._is_host = side == HOST
        self._max_payload = (frames.HOST_FRAME_MAX if self._is_host else frames.GUEST_FRAME_MAX) - frames.HEADER_BYTES
        self._nonce = b""
        self._greeted = False
        self._failure = ""
        self._search = handshake.Search.for_hello()
        self._decoder = frames.Decoder(from_host=not self._is_host)
        self._events: list[events.Event] = []
        self._send_queue = SendQueue(self._max_payload)
        self._assembly = Assembly(MESSAGE_MAX_BYTES)
        self._table = StreamTable(self._send_queue, self._assembly, is_host=self._is_host)
        self._quiescing = self.armed = False
        self.asleep = asleep
        self.generation = GENERATION

    def _forget_streams(self) -> None:
        self._table.clear()
        self._quiescing = False

    # -- handshake --------------------------------------------------------------------------------------------------

    def hello(self, nonce: bytes) -> None:
        """Begin a new connection (host only). If the guest does not respond, the caller must call the method again with the same nonce.

        Args:
            nonce: 16 random bytes that were never used before.
        """
        if nonce != self._nonce:
            self._forget_streams()
            self._decoder.take_all()
            self._events = []
            self._nonce = nonce
            self._greeted = False
            self._failure = ""
            self._search = handshake.Search.for_welcome(nonce)
        if not self._greeted:
            self._send_queue.put_control(handshake.hello(nonce, OLDEST_GENERATION, GENERATION))

    @property
    def is_ready(self) -> bool:
        """True if the handshake is complete."""
        return self._greeted

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._table.streams)

    # -- receiving --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[events.Event]:
        """Take bytes from the peer, and return the events that they cause.

        Raises:
            ProtocolError: Host only: the guest violated the protocol. Nothing is received or sent until :meth:`hello` is called with a new nonce.
        """
        if self._failure:
            raise ProtocolError(self._failure)
        try:
            while data:
                if not self._greeted:
                    data = self._find_handshake(data)
                if self._greeted and data:
                    data = self._decode(data)
        except ProtocolError as error:
            self._forget_streams()
            self._greeted = False
            self._failure = str(error)
            raise
        received, self._events = self._events, []
        return received

    def _find_handshake(self, data: bytes) -> bytes:
        """Search for the HELLO or WELCOME, discard the bytes before it, and return the bytes after it. Return empty bytes if it is not found yet."""
        payload, rest = self._search.feed(data)
        if payload:
            (self._welcomed if self._is_host else self._helloed)(payload)
        return rest

    def _decode(self, data: bytes) -> bytes:
        """Handle the complete frames in ``data``. Return the remaining bytes if a guest finds an error, otherwise return empty bytes.

        The caller must then search for a HELLO in the returned bytes.
        """
        self._decoder.feed(data)
        try:
            while (frame := self._decoder.next()) is not None:
                self._take(frame)
        except (ProtocolError, values.EncodingError) as error:
            if self._is_host:
                raise ProtocolError(str(error)) from None
            self._forget_streams()
            self._greeted = False
            self._send_queue.put_control(frames.encode(frames.LOST, 0, str(error)[:200].encode("utf-8", "replace")))
            self._events.append(events.Lost(str(error)))
            return self._decoder.take_all()
        return b""

    def _welcomed(self, payload: bytes) -> None:
        welcome = handshake.parse_welcome(payload)
        if welcome is None or not OLDEST_GENERATION <= welcome[1] <= GENERATION:
            shown = "an unknown generation" if welcome is None else f"generation {welcome[1]}"
            raise ProtocolError(f"the guest speaks {shown} of the protocol; generations {OLDEST_GENERATION} to {GENERATION} are supported")
        _, self.generation, self.asleep = welcome
        self._greeted = True
        self._send_queue.clear()
        self._events.append(events.Ready(self.generation, asleep=self.asleep))

    def _helloed(self, payload: bytes) -> None:
        hello = handshake.parse_hello(payload)
        if hello is None:
            raise ProtocolError("a HELLO is invalid")
        if not self._greeted or hello[0] != self._nonce:
            self._forget_streams()
            self._nonce, self._greeted = hello[0], True
            self.asleep, self.armed = self.asleep or self.armed, False
            self._events = [event for event in self._events if isinstance(event, events.Lost)]
            self._events.append(events.Greeted())
        self._send_queue.put_control(handshake.welcome(self._nonce, GENERATION, asleep=self.asleep))

    def _take(self, frame: frames.Frame) -> None:
        type_ = frame.type
        if not frame.stream:
            self._take_on_connection(frame)
        elif type_ == frames.OPEN:
            self._take_open(frame)
        elif (stream := self._table.find(frame)) is None:
            pass
        elif type_ == frames.DATA:
            self._take_data(stream, frame)
        elif type_ == frames.MESSAGE:
            self._take_message(stream, frame)
        elif type_ == frames.CREDIT:
            self._take_credit(stream, frame)
        elif type_ == frames.END:
            self._take_end(stream)
        else:
            self._take_reset(stream, frame)

    def _take_on_connection(self, frame: frames.Frame) -> None:
        if frame.type == frames.HELLO:
            self._helloed(frame.payload)
        elif frame.type == frames.WELCOME:
            welcome = handshake.parse_welcome(frame.payload)
            if welcome is None or welcome[0] != self._nonce:
                raise ProtocolError("a WELCOME does not contain the nonce of the HELLO")
        elif frame.type == frames.QUIESCE:
            self._quiescing = True
            self._events.append(events.QuiesceRequested())
        elif frame.type == frames.QUIESCED:
            if not self._quiescing or frame.payload or not self._decoder.at_boundary:
                raise ProtocolError("a QUIESCED was not requested, has a payload, or is not the last frame")
            self._forget_streams()
            self.asleep = True
            self._events.append(events.Quiesced())
        else:
            raise ProtocolError(f"the guest received invalid bytes: {frame.payload[:200].decode('utf-8', 'replace')}")

    def _take_open(self, frame: frames.Frame) -> None:
        self._table.opened(frame)
        whole = self._assembly.add(frame)
        if whole is not None:
            self._events.append(events.Opened(frame.stream, values.decode(whole)))

    def _take_data(self, stream: Stream, frame: frames.Frame) -> None:
        if not frame.payload:
            raise ProtocolError("a DATA frame has no bytes")
        stream.begins()
        self._events.append(events.Bytes(stream.id, frame.channel, frame.payload, stream.arrived(len(frame.payload))))

    def _take_message(self, stream: Stream, frame: frames.Frame) -> None:
        continues = self._assembly.stream == stream.id
        opening = continues and self._assembly.opening
        if not continues:
            stream.begins()
        whole = self._assembly.add(frame)
        if whole is None:
            return
        message = values.decode(whole)
        if opening:
            self._events.append(events.Opened(stream.id, message))
        else:
            self._events.append(events.Received(stream.id, message, stream.arrived(len(whole))))

    def _take_credit(self, stream: Stream, frame: frames.Frame) -> None:
        granted = parse_credit(frame.payload)
        if granted is None:
            raise ProtocolError("the payload of a CREDIT is not 4 bytes")
        stream.granted(granted)
        self._send_queue.wake(stream)

    def _take_end(self, stream: Stream) -> None:
        stream.remote_ended = True
        stream.credit_due = False
        self._events.append(events.Ended(stream.id))
        self._table.drop_if_over(stream)

    def _take_reset(self, stream: Stream, frame: frames.Frame) -> None:
        reason = values.decode(frame.payload)
        if type(reason) is not dict or type(reason.get("code")) is not str or type(reason.get("message")) is not str:
            raise ProtocolError("a RESET has no code or no message")
        self._table.drop(stream)
        self._events.append(events.WasReset(stream.id, reason))

    # -- sending ----------------------------------------------------------------------------------------------------

    def open(self, head: Any) -> int:
        """Open a stream with its first message, and return the id of the stream.

        Raises:
            TooMany: This side has opened the maximum number of streams. A stream whose RESET is not sent yet counts as open.
            TooLarge: The message is too long. The first message of a guest's stream must fit into one frame.
            EncodingError: The message has a value that cannot be encoded.
            ProtocolError: The handshake is not complete, the guest is being quiesced, or all stream ids are used up.
        """
        if not self._greeted or (self._is_host and self._quiescing):
            raise ProtocolError(f"a stream cannot be opened {'during a quiesce' if self._greeted else 'before the handshake'}")
        self._table.check_open()
        payload = encode(head, MESSAGE_MAX_BYTES if self._is_host else self._max_payload)
        stream = self._table.open()
        self._send_queue.put(stream, Outgoing(frames.OPEN, payload))
        return stream.id

    @property
    def is_full(self) -> bool:
        """True if :meth:`open` would raise TooMany now. It becomes False when a stream ends or a RESET is sent."""
        return self._table.is_full

    def has_left(self, stream_id: int) -> bool:
        """Return True if the OPEN of a stream was taken from the send queue, or if the stream is over."""
        stream = self._table.streams.get(stream_id)
        return stream is None or stream.is_known

    def send(self, stream_id: int, message: Any) -> None:
        """Queue a message on a stream. Does nothing if the stream is over or if its END was queued.

        Raises:
            TooLarge: The message is too long.
            EncodingError: The message has a value that cannot be encoded.
        """
        stream = self._table.streams.get(stream_id)
        if stream is not None:
            self._send_queue.put(stream, Outgoing(frames.MESSAGE, encode(message, MESSAGE_MAX_BYTES)))

    def send_bytes(self, stream_id: int, channel: int, data: bytes) -> None:
        """Queue bytes on a channel of a stream. Does nothing if the stream is over or if its END was queued.

        Args:
            stream_id: Id of the stream.
            channel: Channel of the bytes, such as ``schema.STDOUT``.
            data: Bytes to send. The caller must not change them afterwards.
        """
        stream = self._table.streams.get(stream_id)
        if stream is not None and data:
            self._send_queue.put(stream, Outgoing(frames.DATA, data, channel))

    def room(self, stream_id: int) -> int:
        """Return the number of bytes that may be queued on a stream now.

        Return 0 if the stream is over, if its END was queued, or if its send queue is full. If the queue is full, a ``Writable`` event follows.
        """
        stream = self._table.streams.get(stream_id)
        if stream is None or stream.end_queued:
            return 0
        room = self._table.queue_bytes(stream) - stream.queued_bytes
        if room > 0:
            return room
        stream.wants_writable = True
        return 0

    def end(self, stream_id: int) -> None:
        """Queue the END of a stream: this side sends nothing more on the stream. Idempotent."""
        stream = self._table.streams.get(stream_id)
        if stream is not None:
            self._send_queue.put(stream, Outgoing(frames.END, b""))

    def reset(self, stream_id: int, code: str, message: str, **fields: Any) -> None:
        """End a stream in both directions, drop the items in its send queue, and queue a RESET.

        Args:
            stream_id: Id of the stream.
            code: Code that tells the peer the reason.
            message: Reason as text.
            fields: Further fields of the reason, such as ``hint``.
        """
        stream = self._table.streams.get(stream_id)
        if stream is not None:
            self._table.drop(stream)
            self._send_queue.put_reset(stream, code, message, fields)

    def is_open(self, stream_id: int) -> bool:
        """Return True if the stream is not over."""
        return stream_id in self._table.streams

    def consumed(self, stream_id: int, credit: int) -> None:
        """Give credit back to the peer after an event was handled.

        Args:
            stream_id: Id of the stream.
            credit: Number of bytes in the field ``credit`` of the event.
        """
        stream = self._table.streams.get(stream_id)
        if stream is not None and stream.release_credit(credit):
            self._send_queue.put_credit(stream)

    def quiesce(self) -> None:
        """Request a quiesce (host only). Queued frames are dropped, and nothing else is sent until the guest is quiesced.

        Raises:
            ProtocolError: The handshake is not complete.
        """
        if not self._greeted:
            raise ProtocolError("the guest cannot be quiesced before the handshake")
        if not self._quiescing:
            self._quiescing = True
            self._send_queue.clear()
            self._send_queue.put_control(frames.encode(frames.QUIESCE, 0))

    def quiesced(self) -> bool:
        """Drop all streams, serve only ``guest.wake`` from now on, and queue QUIESCED as the last frame (guest only).

        Returns:
            True if the guest is quiesced. False, and nothing changes, if the host cancelled the quiesce with a HELLO.
        """
        if not self._quiescing or not self._greeted:
            return False
        self._forget_streams()
        self.asleep, self.armed = True, False
        self._send_queue.put_control(frames.encode(frames.QUIESCED, 0))
        return True

    def next_frame(self) -> bytes | None:
        """Return the next frame to write; None if nothing may be sent now. The caller must write the frames in the order of the calls."""
        if not self._greeted or (self._is_host and self._quiescing):
            return self._send_queue.next_control()
        taken = self._send_queue.next()
        if taken is None:
            return None
        frame, stream = taken
        if stream is not None:
            self._table.drop_if_over(stream)
        return frame

    def next_batch(self, max_bytes: int = frames.GUEST_FRAME_MAX) -> bytes:
        """Return several whole frames, joined so that one write can send them (guest only). Return empty bytes if nothing may be sent now.

        Args:
            max_bytes: Number of bytes after which no further frame is added. The last frame may exceed this number.
        """
        batch = []
        size = 0
        while size < max_bytes and (frame := self.next_frame()) is not None:
            batch.append(frame)
            size += len(frame)
        return batch[0] if len(batch) == 1 else b"".join(batch)

    def take_events(self) -> list[events.Event]:
        """Return the ``Writable`` events that :meth:`next_frame` and :meth:`next_batch` have caused since the last call of this method."""
        writable, self._send_queue.writable = self._send_queue.writable, []
        return [events.Writable(id_) for id_ in writable if id_ in self._table.streams]
