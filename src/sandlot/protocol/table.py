"""The streams of a connection: which are open, which were, which may be opened.

Laws:
- Odd ids are the host's, even ids the guest's; ids of one side only rise, until both ends forget everything.
- A frame on a stream that is over is ignored (it may have been under way); one on a stream that never was is a violation.
"""

from __future__ import annotations

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError, TooMany
from sandlot.protocol.outbox import Outbox
from sandlot.protocol.streams import Assembly, Stream

HOST_STREAMS_MAX = 192
"""Streams that the host opened, at once."""
GUEST_STREAMS_MAX = 64
"""Streams that the guest opened, at once."""
STREAM_ID_MAX = 0xFFFFFFFF

_MAY_FOLLOW_END = frozenset((frames.CREDIT, frames.RESET))
_NOT_WITHIN_MESSAGE = frozenset((frames.DATA, frames.END))


class Table:
    """The streams of one end.

    Args:
        is_host: Whether this end is the host.
        outbox: Where their frames wait.
        assembly: The message that is arriving in pieces.
    """

    __slots__ = ("_assembly", "_is_host", "_last_local", "_last_remote", "_ours", "_outbox", "_theirs", "streams")

    def __init__(self, outbox: Outbox, assembly: Assembly, *, is_host: bool) -> None:
        self._is_host = is_host
        self._outbox = outbox
        self._assembly = assembly
        self.clear()

    def clear(self) -> None:
        """Forget every stream and everything queued, as both ends do at HELLO and at QUIESCED."""
        self.streams: dict[int, Stream] = {}
        self._outbox.clear()
        self._assembly.clear()
        self._ours = self._theirs = 0
        self._last_local = -1 if self._is_host else 0
        self._last_remote = 0 if self._is_host else -1

    def check_open(self) -> None:
        """Whether this end may open a stream now.

        Raises:
            TooMany: As many are open as are allowed, or may still seem open to the far side.
            ProtocolError: All ids are used up: greet anew.
        """
        if self._last_local + 2 > STREAM_ID_MAX:
            raise ProtocolError("all stream ids are used up: greet anew")
        if self.is_full:
            raise TooMany("as many streams are open as are allowed at once")

    @property
    def is_full(self) -> bool:
        """Whether as many streams of this end are open as are allowed, or may still seem open to the far side."""
        return self._ours + self._resetting(self._last_local) >= (HOST_STREAMS_MAX if self._is_host else GUEST_STREAMS_MAX)

    def open(self) -> Stream:
        """A new stream of this end; :meth:`check_open` comes first."""
        self._last_local += 2
        self._ours += 1
        stream = self.streams[self._last_local] = Stream(self._last_local, is_known=False)
        return stream

    def opened(self, frame: frames.Frame) -> None:
        """The far side opens a stream.

        Raises:
            ProtocolError: The id is not the next of its side, too many are open, or a guest's OPEN is in pieces.
        """
        id_ = frame.stream
        if id_ <= self._last_remote or self._is_ours(id_):
            raise ProtocolError(f"stream {id_} cannot be opened by the far side now")
        if self._is_host and frame.more:
            raise ProtocolError("a guest's OPEN in pieces")
        if self._theirs + self._resetting(id_) >= (GUEST_STREAMS_MAX if self._is_host else HOST_STREAMS_MAX):
            raise ProtocolError("more streams than are allowed at once")
        self._last_remote = id_
        self._theirs += 1
        self.streams[id_] = Stream(id_, is_known=True)

    def find(self, frame: frames.Frame) -> Stream | None:
        """The stream of a frame; None where it is over.

        Raises:
            ProtocolError: There never was such a stream, or the frame cannot come now.
        """
        id_ = frame.stream
        stream = self.streams.get(id_)
        if stream is None:
            if id_ > (self._last_local if self._is_ours(id_) else self._last_remote):
                raise ProtocolError(f"a {frames.NAMES[frame.type]} on stream {id_}, which nobody opened")
        elif not stream.is_known:
            raise ProtocolError(f"a {frames.NAMES[frame.type]} on stream {id_}, which is not open yet")
        elif stream.remote_ended and frame.type not in _MAY_FOLLOW_END:
            raise ProtocolError(f"stream {id_} goes on after its END")
        elif self._assembly.stream == id_ and frame.type in _NOT_WITHIN_MESSAGE:
            raise ProtocolError(f"a {frames.NAMES[frame.type]} on stream {id_} within a message")
        return stream

    def drop(self, stream: Stream) -> None:
        """The stream is over, whatever was queued or arriving on it."""
        del self.streams[stream.id]
        if self._is_ours(stream.id):
            self._ours -= 1
        else:
            self._theirs -= 1
        self._outbox.forget(stream)
        if self._assembly.stream == stream.id:
            self._assembly.clear()

    def drop_if_over(self, stream: Stream) -> None:
        """Forget a stream that both ends have ended."""
        if stream.sent_end and stream.remote_ended and stream.id in self.streams:
            self.drop(stream)

    def _is_ours(self, id_: int) -> bool:
        return (id_ % 2 == 1) == self._is_host

    def _resetting(self, like: int) -> int:
        """Streams of that id's side whose RESET the far side cannot have seen yet, so that it still counts them."""
        resets = self._outbox.resets
        return sum(1 for id_ in resets if id_ % 2 == like % 2) if resets else 0
