"""The streams of a connection, and the rules for opening them.

- The host opens streams with odd ids, the guest with even ids. The ids of each side increase, and start again after a new handshake or a quiesce.
- A frame of a closed stream is ignored, because the sender may not have known yet that the stream was closed. A frame of a stream that was never
  opened violates the protocol.
"""

from __future__ import annotations

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError, TooMany
from sandlot.protocol.send_queue import SendQueue
from sandlot.protocol.streams import QUEUE_BYTES, Assembly, Stream

HOST_STREAMS_MAX = 192
"""Maximum number of streams opened by the host that may be open at the same time."""
GUEST_STREAMS_MAX = 1088
"""Maximum number of streams opened by the guest that may be open at the same time: 1,024 connections, and 64 for packages and DNS queries."""
FULL_QUEUES = 32
"""Number of streams opened by the guest up to which each of them has a full send queue. Further streams share the size of these queues."""
MIN_QUEUE_BYTES = 4096
"""Size at which the send queue of a stream is full at least, whatever the number of streams is."""
STREAM_ID_MAX = 0xFFFFFFFF

_MAY_FOLLOW_END = frozenset((frames.CREDIT, frames.RESET))
_NOT_WITHIN_MESSAGE = frozenset((frames.DATA, frames.END))


class StreamTable:
    """The open streams of a connection, as seen from one side.

    Args:
        send_queue: Queue of the frames that this side sends.
        assembly: Buffer for a message that arrives in several frames.
        is_host: True if this side is the host.
    """

    __slots__ = ("_assembly", "_is_host", "_last_local", "_last_remote", "_ours", "_send_queue", "_theirs", "streams")

    def __init__(self, send_queue: SendQueue, assembly: Assembly, *, is_host: bool) -> None:
        self._is_host = is_host
        self._send_queue = send_queue
        self._assembly = assembly
        self.clear()

    def clear(self) -> None:
        """Drop all streams and all queued frames. Called at a new handshake, when the guest is quiesced, and after invalid bytes."""
        self.streams: dict[int, Stream] = {}
        self._send_queue.clear()
        self._assembly.clear()
        self._ours = self._theirs = 0
        self._last_local = -1 if self._is_host else 0
        self._last_remote = 0 if self._is_host else -1

    def check_open(self) -> None:
        """Check that this side may open a stream now.

        Raises:
            TooMany: This side has opened the maximum number of streams. A stream whose RESET is not sent yet counts as open.
            ProtocolError: All stream ids of this side are used up; a new handshake is needed.
        """
        if self._last_local + 2 > STREAM_ID_MAX:
            raise ProtocolError("all stream ids are used up: a new handshake is needed")
        if self.is_full:
            raise TooMany("the maximum number of streams is open")

    @property
    def is_full(self) -> bool:
        """True if this side can open no further stream until a stream ends. A stream whose RESET is not sent yet counts as open."""
        return self._ours + self._send_queue.resetting(self._last_local) >= (HOST_STREAMS_MAX if self._is_host else GUEST_STREAMS_MAX)

    def open(self) -> Stream:
        """Create a stream with a new id for this side, add the stream to the table, and return it. The caller must call :meth:`check_open` first."""
        self._last_local += 2
        self._ours += 1
        stream = self.streams[self._last_local] = Stream(self._last_local, is_known=False)
        return stream

    def opened(self, frame: frames.Frame) -> None:
        """Add a stream that the peer opened.

        Raises:
            ProtocolError: The stream id is not a new id of the peer, too many streams are open, or a guest sent an OPEN in more than one frame.
        """
        id_ = frame.stream
        if id_ <= self._last_remote or self._is_ours(id_):
            raise ProtocolError(f"the peer opened stream {id_}, but this id is not new, or belongs to this side")
        if self._is_host and frame.more:
            raise ProtocolError("the guest sent an OPEN in more than one frame, which only the host may do")
        if self._theirs + self._send_queue.resetting(id_) >= (GUEST_STREAMS_MAX if self._is_host else HOST_STREAMS_MAX):
            raise ProtocolError("the peer opened more streams than are allowed")
        self._last_remote = id_
        self._theirs += 1
        self.streams[id_] = Stream(id_, is_known=True)

    def find(self, frame: frames.Frame) -> Stream | None:
        """Return the stream of a frame; None if the stream is over.

        Raises:
            ProtocolError: The stream was never opened, or its state does not allow the frame.
        """
        id_ = frame.stream
        stream = self.streams.get(id_)
        if stream is None:
            if id_ > (self._last_local if self._is_ours(id_) else self._last_remote):
                raise ProtocolError(f"a {frames.NAMES[frame.type]} frame arrived on stream {id_}, which was never opened")
        elif not stream.is_known:
            raise ProtocolError(f"a {frames.NAMES[frame.type]} frame arrived on stream {id_}, which is not open yet")
        elif stream.remote_ended and frame.type not in _MAY_FOLLOW_END:
            raise ProtocolError(f"a {frames.NAMES[frame.type]} frame arrived on stream {id_} after the END of this stream")
        elif self._assembly.stream == id_ and frame.type in _NOT_WITHIN_MESSAGE:
            raise ProtocolError(f"a {frames.NAMES[frame.type]} frame arrived on stream {id_} in the middle of a message")
        return stream

    def queue_bytes(self, stream: Stream) -> int:
        """Return the size at which the send queue of a stream is full. It bounds the memory for streams of a guest that does not read."""
        opened = self._theirs if self._is_host else self._ours
        if stream.id % 2 or opened <= FULL_QUEUES:
            return QUEUE_BYTES
        return max(QUEUE_BYTES * FULL_QUEUES // opened, MIN_QUEUE_BYTES)

    def drop(self, stream: Stream) -> None:
        """Remove a stream from the table. Drop the items in its send queue, and the received parts of its incomplete message."""
        del self.streams[stream.id]
        if self._is_ours(stream.id):
            self._ours -= 1
        else:
            self._theirs -= 1
        self._send_queue.forget(stream)
        if self._assembly.stream == stream.id:
            self._assembly.clear()

    def drop_if_over(self, stream: Stream) -> None:
        """Remove a stream from the table if both sides have sent their END."""
        if stream.sent_end and stream.remote_ended and stream.id in self.streams:
            self.drop(stream)

    def _is_ours(self, id_: int) -> bool:
        return (id_ % 2 == 1) == self._is_host
