"""The state of a connection at one end: bytes in, events out; calls in, frames out. No I/O, no clock, no randomness.

One class serves both ends; ``Side`` says which. The owner feeds what it read to :meth:`Connection.receive`, and writes
what :meth:`Connection.next_frame` gives whenever the far side can take it.

Laws:
- The host says HELLO with a nonce that was never used before, and discards every byte until the guest echoes it.
- A guest that reads garbage drops everything and looks for the next HELLO; a host raises :class:`ProtocolError`.
- At most one message is in pieces at a time in each direction, so a receiver assembles at most ``MESSAGE_MAX_BYTES``.
- Streams take turns, frame by frame; one without credit delays no other.
- Everything of a stream that either end closed is ignored, because it may still have been under way.
"""

from __future__ import annotations

import struct
from collections import deque

from sandlot.protocol import events, frames, greeting, values
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.streams import QUEUE_BYTES, Assembly, Outgoing, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

GENERATION = 1
"""Of the whole wire: frames, calls, meanings. Any change to the frozen schema is a new one."""

OLDEST_GENERATION = 1
"""The oldest guest that this host still talks to."""

HOST = "host"
GUEST = "guest"

MESSAGE_MAX_BYTES = 8 * 1024 * 1024
HOST_STREAMS_MAX = 192
GUEST_STREAMS_MAX = 64

_CREDIT = struct.Struct(">I")


class Connection:
    """One end of the link.

    Args:
        side: ``HOST`` or ``GUEST``.
        asleep: Guest: whether it waits for its first ``guest.wake`` (true at boot).
    """

    __slots__ = (
        "_assembly",
        "_control",
        "_decoder",
        "_events",
        "_fragmenting",
        "_greeted",
        "_is_host",
        "_last_local",
        "_last_remote",
        "_max_payload",
        "_nonce",
        "_search",
        "_streams",
        "_turns",
        "asleep",
        "generation",
    )

    def __init__(self, side: str, *, asleep: bool = True) -> None:
        self._is_host = side == HOST
        self._max_payload = (frames.HOST_FRAME_MAX if self._is_host else frames.GUEST_FRAME_MAX) - frames.HEADER_BYTES
        self._nonce = b""
        self._greeted = False
        self._search = greeting.Search.for_hello()
        self._events: list[events.Event] = []
        self.asleep = asleep
        self.generation = GENERATION
        self._clear()

    def _clear(self) -> None:
        """Forget every stream and everything queued, as both ends do at HELLO and at QUIESCED."""
        self._decoder = frames.Decoder(from_host=not self._is_host)
        self._streams: dict[int, Stream] = {}
        self._turns: deque[int] = deque()
        self._control: deque[bytes] = deque()
        self._fragmenting = 0
        self._assembly = Assembly(MESSAGE_MAX_BYTES)
        self._last_local = -1 if self._is_host else 0
        self._last_remote = 0 if self._is_host else -1

    # -- greeting ---------------------------------------------------------------------------------------------------

    def hello(self, nonce: bytes) -> None:
        """Host: begin, or begin anew. Say it again with the same nonce where no echo comes.

        Args:
            nonce: 16 bytes, fresh from the system's randomness.
        """
        if nonce != self._nonce:
            self._clear()
            self._nonce = nonce
            self._greeted = False
            self._search = greeting.Search.for_welcome(nonce)
        self._control.append(greeting.hello(nonce, OLDEST_GENERATION, GENERATION))

    @property
    def is_ready(self) -> bool:
        """Whether both ends have greeted."""
        return self._greeted

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    # -- receiving --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[events.Event]:
        """Bytes from the far side in, events out.

        Raises:
            ProtocolError: Host only: the guest broke a law. The connection is good for nothing afterwards.
        """
        while data:
            if not self._greeted:
                data = self._look_for_greeting(data)
            if not self._greeted or not data:
                break
            self._decoder.feed(data)
            data = b""
            try:
                while (frame := self._decoder.next()) is not None:
                    self._take(frame)
            except (ProtocolError, values.BadValue) as error:
                if self._is_host:
                    raise ProtocolError(str(error)) from None
                data = self._lose(str(error))
        happened, self._events = self._events, []
        return happened

    def _look_for_greeting(self, data: bytes) -> bytes:
        """Discard up to the greeting; what follows it."""
        found = self._search.feed(data)
        if found is None:
            return b""
        payload, rest = found
        if self._is_host:
            self._welcomed(payload)
        else:
            self._helloed(payload)
        return rest

    def _welcomed(self, payload: bytes) -> None:
        welcome = greeting.parse_welcome(payload)
        if welcome is None or not OLDEST_GENERATION <= welcome[1] <= GENERATION:
            raise ProtocolError(f"the guest does not speak generation {OLDEST_GENERATION} to {GENERATION}")
        _, self.generation, self.asleep = welcome
        self._greeted = True
        self._events.append(events.Ready(self.generation, asleep=self.asleep))

    def _helloed(self, payload: bytes) -> None:
        hello = greeting.parse_hello(payload)
        if hello is None:
            raise ProtocolError("a HELLO that is none")
        again = self._greeted and hello[0] == self._nonce
        if not again:
            rest = self._decoder.take_all()
            self._clear()
            self._decoder.feed(rest)
            self._nonce = hello[0]
            self._greeted = True
            self._events.append(events.Greeted())
        self._control.append(greeting.welcome(self._nonce, GENERATION, asleep=self.asleep))

    def _lose(self, reason: str) -> bytes:
        """Guest: back to looking for a HELLO; the bytes to look in."""
        rest = self._decoder.take_all()
        self._clear()
        self._greeted = False
        self._nonce = b""
        self._events.append(events.Lost(reason))
        return rest

    def _take(self, frame: frames.Frame) -> None:
        if frame.type == frames.HELLO:
            self._helloed(frame.payload)
        elif frame.type == frames.WELCOME:
            welcome = greeting.parse_welcome(frame.payload)
            if welcome is None or welcome[0] != self._nonce:
                raise ProtocolError("a WELCOME that answers no HELLO")
        elif frame.type == frames.QUIESCE:
            self._events.append(events.QuiesceAsked())
        elif frame.type == frames.QUIESCED:
            self._clear()
            self.asleep = True
            self._events.append(events.Quiesced())
        elif frame.type == frames.OPEN:
            self._take_open(frame)
        else:
            stream = self._find(frame)
            if stream is not None:
                self._take_on(stream, frame)

    def _take_open(self, frame: frames.Frame) -> None:
        if frame.stream <= self._last_remote or frame.stream % 2 == self._last_local % 2:
            raise ProtocolError(f"stream {frame.stream} cannot be opened by the far side now")
        self._last_remote = frame.stream
        theirs = sum(1 for id_ in self._streams if id_ % 2 == frame.stream % 2)
        if theirs >= (GUEST_STREAMS_MAX if self._is_host else HOST_STREAMS_MAX):
            raise ProtocolError("more streams than are allowed at once")
        self._streams[frame.stream] = Stream(frame.stream)
        self._turns.append(frame.stream)
        whole = self._assembly.add(frame)
        if whole is not None:
            self._events.append(events.Opened(frame.stream, values.decode(whole)))

    def _find(self, frame: frames.Frame) -> Stream | None:
        stream = self._streams.get(frame.stream)
        if stream is None:
            known = self._last_local if frame.stream % 2 == self._last_local % 2 else self._last_remote
            if frame.stream > known:
                raise ProtocolError(f"a {frames.NAMES[frame.type]} on stream {frame.stream}, which nobody opened")
        return stream

    def _take_on(self, stream: Stream, frame: frames.Frame) -> None:
        if frame.type == frames.DATA:
            stream.arrived(len(frame.payload))
            self._events.append(events.Bytes(stream.id, frame.channel, frame.payload))
        elif frame.type == frames.MESSAGE:
            self._take_message(stream, frame)
        elif frame.type == frames.CREDIT:
            if len(frame.payload) != _CREDIT.size:
                raise ProtocolError("a CREDIT that is not 4 bytes")
            stream.granted(_CREDIT.unpack(frame.payload)[0])
            self._offer(stream)
        elif frame.type == frames.END:
            stream.arrived(0)
            if self._assembly.stream == stream.id:
                raise ProtocolError(f"stream {stream.id} ended within a message")
            stream.remote_ended = True
            self._events.append(events.Ended(stream.id))
            self._drop_if_over(stream)
        else:
            reason = values.decode(frame.payload)
            if type(reason) is not dict or type(reason.get("code")) is not str or type(reason.get("message")) is not str:
                raise ProtocolError("a RESET without code and message")
            self._drop(stream.id)
            self._events.append(events.WasReset(stream.id, reason))

    def _take_message(self, stream: Stream, frame: frames.Frame) -> None:
        """A whole message, or a piece; pieces are granted back at once, because the assembly is bounded by itself."""
        stream.arrived(len(frame.payload))
        opening = self._assembly.stream == stream.id and self._assembly.opening
        whole = self._assembly.add(frame)
        if whole is None or opening:
            self.consumed(stream.id, len(frame.payload))
        if whole is None:
            return
        message = values.decode(whole)
        self._events.append(events.Opened(stream.id, message) if opening else events.Received(stream.id, message, len(frame.payload)))

    # -- sending ----------------------------------------------------------------------------------------------------

    def open(self, head: Any) -> int:
        """Open a stream with its first message; the stream's id.

        Raises:
            ProtocolError: Not greeted, or as many streams of this side open as are allowed.
        """
        if not self._greeted:
            raise ProtocolError("no stream can be opened before the greeting")
        ours = sum(1 for id_ in self._streams if id_ % 2 == self._last_local % 2)
        if ours >= (HOST_STREAMS_MAX if self._is_host else GUEST_STREAMS_MAX):
            raise ProtocolError("as many streams are open as are allowed at once")
        payload = self._encode(head)
        self._last_local += 2
        stream = Stream(self._last_local)
        self._streams[stream.id] = stream
        stream.put(Outgoing(frames.OPEN, payload))
        self._turns.append(stream.id)
        return stream.id

    def send(self, stream_id: int, message: Any) -> None:
        """Queue a message; nothing happens where the stream is over."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.put(Outgoing(frames.MESSAGE, self._encode(message)))

    def send_bytes(self, stream_id: int, channel: int, data: bytes) -> None:
        """Queue bytes of a channel; nothing happens where the stream is over."""
        stream = self._streams.get(stream_id)
        if stream is not None and data:
            stream.put(Outgoing(frames.DATA, data, channel))

    def room(self, stream_id: int) -> int:
        """How many bytes a polite sender may queue now; 0 where the stream is over or full (``Writable`` will come)."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        room = max(0, QUEUE_BYTES - stream.queued_bytes)
        if room == 0:
            stream.wants_writable = True
        return room

    def end(self, stream_id: int) -> None:
        """Queue the END: this side sends no more."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.put(Outgoing(frames.END, b""))

    def reset(self, stream_id: int, code: str, message: str, **fields: Any) -> None:
        """End a stream for both sides at once; what was queued on it is dropped."""
        if stream_id in self._streams:
            self._drop(stream_id)
            reason = values.encode({"code": code, "message": message[:1024], **fields})
            self._control.append(frames.encode(frames.RESET, stream_id, reason))

    def is_open(self, stream_id: int) -> bool:
        """Whether the stream is still there."""
        return stream_id in self._streams

    def consumed(self, stream_id: int, size: int) -> None:
        """The owner dealt with that many bytes: let the far side send as many more."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.remote_ended:
            granted = stream.grant(size)
            if granted:
                self._control.append(frames.encode(frames.CREDIT, stream_id, _CREDIT.pack(granted)))

    def quiesce(self) -> None:
        """Host: ask the guest to come to rest."""
        self._control.append(frames.encode(frames.QUIESCE, 0))

    def quiesced(self) -> None:
        """Guest: at rest. Every stream is gone, QUIESCED is the last frame, and only ``guest.wake`` is served."""
        self._clear()
        self.asleep = True
        self._control.append(frames.encode(frames.QUIESCED, 0))

    def next_frame(self) -> bytes | None:
        """The next frame for the wire, whole; None where nothing may be sent now. Not called again until it is written."""
        if self._control:
            return self._control.popleft()
        if not self._greeted:
            return None
        for _ in range(len(self._turns)):
            id_ = self._turns.popleft()
            stream = self._streams.get(id_)
            if stream is None:
                continue
            self._turns.append(id_)
            taken = stream.take(self._max_payload, may_fragment=self._fragmenting in {0, id_})
            if taken is None:
                continue
            frame, fragmented = taken
            if fragmented:
                self._fragmenting = id_
            elif self._fragmenting == id_ and frame[1] != frames.DATA:
                self._fragmenting = 0
            self._offer(stream)
            self._drop_if_over(stream)
            return frame
        return None

    def take_events(self) -> Iterator[events.Event]:
        """Events that sending made (``Writable``); :meth:`receive` gives all others."""
        happened, self._events = self._events, []
        return iter(happened)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _encode(self, message: Any) -> bytes:
        payload = values.encode(message)
        if len(payload) > MESSAGE_MAX_BYTES:
            raise ProtocolError(f"a message of {len(payload)} bytes; at most {MESSAGE_MAX_BYTES} are allowed")
        return payload

    def _offer(self, stream: Stream) -> None:
        if stream.wants_writable and stream.queued_bytes < QUEUE_BYTES:
            stream.wants_writable = False
            self._events.append(events.Writable(stream.id))

    def _drop(self, stream_id: int) -> None:
        del self._streams[stream_id]
        if self._fragmenting == stream_id:
            self._fragmenting = 0
        if self._assembly.stream == stream_id:
            self._assembly.clear()

    def _drop_if_over(self, stream: Stream) -> None:
        if stream.sent_end and stream.remote_ended and stream.id in self._streams:
            self._drop(stream.id)
