"""The state of a connection at one end: bytes in, events out; calls in, frames out. No I/O, no clock, no randomness.

One class serves both ends. The owner feeds what it read to :meth:`Connection.receive`, and writes what
:meth:`Connection.next_frame` gives whenever the far side can take it.

Laws:
- The host says HELLO with a nonce that was never used before, and discards every byte until the guest echoes it.
- After ``Greeted`` (guest) and ``Ready`` (host) nothing of an earlier connection is told any more.
- A guest that reads garbage drops everything, says LOST and looks for the next HELLO; a host raises :class:`ProtocolError`.
- At most one message is in pieces at a time in each direction, so a receiver assembles at most ``MESSAGE_MAX_BYTES``.
- Streams take turns, frame by frame; one without credit delays no other.
- Everything of a stream that either end closed is ignored, because it may still have been under way.
- An armed guest falls asleep at the next HELLO, whoever says it: it may be another life, restored from a checkpoint.
- After QUIESCE the host sends nothing but HELLO until QUIESCED, so that no frame of the old streams can come after it.
"""

from __future__ import annotations

from sandlot.protocol import events, frames, greeting, values
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.outbox import Outbox, encode, parse_credit
from sandlot.protocol.streams import QUEUE_BYTES, Assembly, Outgoing, Stream
from sandlot.protocol.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GENERATION = 1
"""Of the whole wire: frames, calls, meanings. Any change to the frozen schema is a new one."""

OLDEST_GENERATION = 1
"""The oldest guest that this host still talks to."""

HOST = "host"
GUEST = "guest"

MESSAGE_MAX_BYTES = 8 * 1024 * 1024


class Connection:
    """One end of the link.

    Args:
        side: ``HOST`` or ``GUEST``.
        asleep: Guest: whether it waits for its first ``guest.wake`` (true at boot). ``armed`` is the guest's to set, around checkpoints.
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
        "_outbox",
        "_quiescing",
        "_search",
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
        self._search = greeting.Search.for_hello()
        self._decoder = frames.Decoder(from_host=not self._is_host)
        self._events: list[events.Event] = []
        self._outbox = Outbox(self._max_payload)
        self._assembly = Assembly(MESSAGE_MAX_BYTES)
        self._table = Table(self._outbox, self._assembly, is_host=self._is_host)
        self._quiescing = self.armed = False
        self.asleep = asleep
        self.generation = GENERATION

    def _forget_streams(self) -> None:
        self._table.clear()
        self._quiescing = False

    # -- greeting ---------------------------------------------------------------------------------------------------

    def hello(self, nonce: bytes) -> None:
        """Host: begin, or begin anew. Say it again with the same nonce where no echo comes.

        Args:
            nonce: 16 bytes, fresh from the system's randomness.
        """
        if nonce != self._nonce:
            self._forget_streams()
            self._decoder.take_all()
            self._events = []
            self._nonce = nonce
            self._greeted = False
            self._failure = ""
            self._search = greeting.Search.for_welcome(nonce)
        if not self._greeted:
            self._outbox.put_control(greeting.hello(nonce, OLDEST_GENERATION, GENERATION))

    @property
    def is_ready(self) -> bool:
        """Whether both ends have greeted."""
        return self._greeted

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._table.streams)

    # -- receiving --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[events.Event]:
        """Bytes from the far side in, events out.

        Raises:
            ProtocolError: Host only: the guest broke a law. Nothing is received or sent any more until a new ``hello``.
        """
        if self._failure:
            raise ProtocolError(self._failure)
        try:
            while data:
                if not self._greeted:
                    data = self._look_for_greeting(data)
                if self._greeted and data:
                    data = self._decode(data)
        except ProtocolError as error:
            self._forget_streams()
            self._greeted = False
            self._failure = str(error)
            raise
        happened, self._events = self._events, []
        return happened

    def _look_for_greeting(self, data: bytes) -> bytes:
        """Discard up to the greeting; what follows it."""
        payload, rest = self._search.feed(data)
        if payload:
            (self._welcomed if self._is_host else self._helloed)(payload)
        return rest

    def _decode(self, data: bytes) -> bytes:
        """Take whole frames in; a guest that cannot go on gives back what it has to look for a HELLO in."""
        self._decoder.feed(data)
        try:
            while (frame := self._decoder.next()) is not None:
                self._take(frame)
        except (ProtocolError, values.BadValue) as error:
            if self._is_host:
                raise ProtocolError(str(error)) from None
            self._forget_streams()
            self._greeted = False
            self._outbox.put_control(frames.encode(frames.LOST, 0, str(error)[:200].encode("utf-8", "replace")))
            self._events.append(events.Lost(str(error)))
            return self._decoder.take_all()
        return b""

    def _welcomed(self, payload: bytes) -> None:
        welcome = greeting.parse_welcome(payload)
        if welcome is None or not OLDEST_GENERATION <= welcome[1] <= GENERATION:
            raise ProtocolError(f"the guest does not speak generation {OLDEST_GENERATION} to {GENERATION}")
        _, self.generation, self.asleep = welcome
        self._greeted = True
        self._outbox.clear()
        self._events.append(events.Ready(self.generation, asleep=self.asleep))

    def _helloed(self, payload: bytes) -> None:
        hello = greeting.parse_hello(payload)
        if hello is None:
            raise ProtocolError("a HELLO that is none")
        if not self._greeted or hello[0] != self._nonce:
            self._forget_streams()
            self._nonce, self._greeted = hello[0], True
            self.asleep, self.armed = self.asleep or self.armed, False
            self._events = [event for event in self._events if isinstance(event, events.Lost)]
            self._events.append(events.Greeted())
        self._outbox.put_control(greeting.welcome(self._nonce, GENERATION, asleep=self.asleep))

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
            welcome = greeting.parse_welcome(frame.payload)
            if welcome is None or welcome[0] != self._nonce:
                raise ProtocolError("a WELCOME that answers no HELLO")
        elif frame.type == frames.QUIESCE:
            self._quiescing = True
            self._events.append(events.QuiesceAsked())
        elif frame.type == frames.QUIESCED:
            if not self._quiescing or frame.payload or not self._decoder.at_boundary:
                raise ProtocolError("a QUIESCED that was not asked for, that holds something, or that is not the last frame")
            self._forget_streams()
            self.asleep = True
            self._events.append(events.Quiesced())
        else:
            raise ProtocolError(f"the guest lost the connection: {frame.payload[:200].decode('utf-8', 'replace')}")

    def _take_open(self, frame: frames.Frame) -> None:
        self._table.opened(frame)
        whole = self._assembly.add(frame)
        if whole is not None:
            self._events.append(events.Opened(frame.stream, values.decode(whole)))

    def _take_data(self, stream: Stream, frame: frames.Frame) -> None:
        if not frame.payload:
            raise ProtocolError("a DATA without bytes")
        stream.begins()
        self._events.append(events.Bytes(stream.id, frame.channel, frame.payload, stream.arrived(len(frame.payload))))

    def _take_message(self, stream: Stream, frame: frames.Frame) -> None:
        goes_on = self._assembly.stream == stream.id
        opening = goes_on and self._assembly.opening
        if not goes_on:
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
            raise ProtocolError("a CREDIT that is not 4 bytes")
        stream.granted(granted)
        self._outbox.wake(stream)

    def _take_end(self, stream: Stream) -> None:
        stream.remote_ended = True
        stream.credit_due = False
        self._events.append(events.Ended(stream.id))
        self._table.drop_if_over(stream)

    def _take_reset(self, stream: Stream, frame: frames.Frame) -> None:
        reason = values.decode(frame.payload)
        if type(reason) is not dict or type(reason.get("code")) is not str or type(reason.get("message")) is not str:
            raise ProtocolError("a RESET without code and message")
        self._table.drop(stream)
        self._events.append(events.WasReset(stream.id, reason))

    # -- sending ----------------------------------------------------------------------------------------------------

    def open(self, head: Any) -> int:
        """Open a stream with its first message; the stream's id.

        Raises:
            TooMany: As many streams of this side are open as are allowed, or may still seem open to the far side.
            TooLarge: The message; a guest's has to fit one frame.
            BadValue: The message holds what the wire does not carry.
            ProtocolError: Not greeted, coming to rest, or all stream ids are used up: greet anew.
        """
        if not self._greeted or (self._is_host and self._quiescing):
            raise ProtocolError("no stream can be opened before the greeting, or on the way to rest")
        self._table.check_open()
        payload = encode(head, MESSAGE_MAX_BYTES if self._is_host else self._max_payload)
        stream = self._table.open()
        self._outbox.put(stream, Outgoing(frames.OPEN, payload))
        return stream.id

    @property
    def is_full(self) -> bool:
        """Whether :meth:`open` would raise TooMany now. Every stream that ends, and every RESET that is sent, may change that."""
        return self._table.is_full

    def has_left(self, stream_id: int) -> bool:
        """Whether nothing keeps a stream's OPEN here any more: it was taken for the wire, or the stream is over."""
        stream = self._table.streams.get(stream_id)
        return stream is None or stream.is_known

    def send(self, stream_id: int, message: Any) -> None:
        """Queue a message; nothing happens where the stream is over or was ended.

        Raises:
            TooLarge: The message.
            BadValue: The message holds what the wire does not carry.
        """
        stream = self._table.streams.get(stream_id)
        if stream is not None:
            self._outbox.put(stream, Outgoing(frames.MESSAGE, encode(message, MESSAGE_MAX_BYTES)))

    def send_bytes(self, stream_id: int, channel: int, data: bytes) -> None:
        """Queue bytes of a channel, which nobody changes afterwards; nothing happens where the stream is over or was ended."""
        stream = self._table.streams.get(stream_id)
        if stream is not None and data:
            self._outbox.put(stream, Outgoing(frames.DATA, data, channel))

    def room(self, stream_id: int) -> int:
        """How many bytes a polite sender may queue now; 0 where the stream is over, or full (``Writable`` will come)."""
        stream = self._table.streams.get(stream_id)
        if stream is None or stream.end_queued:
            return 0
        room = QUEUE_BYTES - stream.queued_bytes
        if room > 0:
            return room
        stream.wants_writable = True
        return 0

    def end(self, stream_id: int) -> None:
        """Queue the END: this side sends no more. Saying it twice is saying it once."""
        stream = self._table.streams.get(stream_id)
        if stream is not None:
            self._outbox.put(stream, Outgoing(frames.END, b""))

    def reset(self, stream_id: int, code: str, message: str, **fields: Any) -> None:
        """End a stream for both sides at once; what was queued on it is dropped."""
        stream = self._table.streams.get(stream_id)
        if stream is not None:
            self._table.drop(stream)
            self._outbox.put_reset(stream, code, message, fields)

    def is_open(self, stream_id: int) -> bool:
        """Whether the stream is still there."""
        return stream_id in self._table.streams

    def consumed(self, stream_id: int, credit: int) -> None:
        """The owner dealt with something: let the far side send as much more.

        Args:
            stream_id: The stream.
            credit: What the event said that it cost.
        """
        stream = self._table.streams.get(stream_id)
        if stream is not None and stream.owes(credit):
            self._outbox.put_credit(stream)

    def quiesce(self) -> None:
        """Host: ask the guest to come to rest. Nothing else is sent until it has; what was queued is dropped.

        Raises:
            ProtocolError: Not greeted.
        """
        if not self._greeted:
            raise ProtocolError("no guest can come to rest before the greeting")
        if not self._quiescing:
            self._quiescing = True
            self._outbox.clear()
            self._outbox.put_control(frames.encode(frames.QUIESCE, 0))

    def quiesced(self) -> bool:
        """Guest: at rest. Every stream is gone, QUIESCED is the last frame, and only ``guest.wake`` is served.

        Returns:
            False where nobody waits for it any more, because a HELLO came in between: then stay awake.
        """
        if not self._quiescing or not self._greeted:
            return False
        self._forget_streams()
        self.asleep, self.armed = True, False
        self._outbox.put_control(frames.encode(frames.QUIESCED, 0))
        return True

    def next_frame(self) -> bytes | None:
        """The next frame for the wire, whole; None where nothing may be sent now. Not called again until it is written."""
        if not self._greeted or (self._is_host and self._quiescing):
            return self._outbox.next_control()
        taken = self._outbox.next()
        if taken is None:
            return None
        frame, stream = taken
        if stream is not None:
            self._table.drop_if_over(stream)
        return frame

    def next_batch(self, max_bytes: int = frames.GUEST_FRAME_MAX) -> bytes:
        """Guest: whole frames joined for one write, until they are ``max_bytes`` or more; b"" where nothing may be sent now."""
        batch = []
        size = 0
        while size < max_bytes and (frame := self.next_frame()) is not None:
            batch.append(frame)
            size += len(frame)
        return batch[0] if len(batch) == 1 else b"".join(batch)

    def take_events(self) -> list[events.Event]:
        """Events that sending made (``Writable``); call it after :meth:`next_frame`."""
        writable, self._outbox.writable = self._outbox.writable, []
        return [events.Writable(id_) for id_ in writable if id_ in self._table.streams]
