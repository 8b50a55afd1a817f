"""One stream's state: what waits to be sent, what the far side still takes, what it may still send.

Laws:
- Only DATA and MESSAGE payloads count against credit; the first window is the same for everybody, so that a stream
  can start without a round trip.
- A sender never exceeds the credit; a receiver that sees it exceeded ends the connection.
- Order within a stream is kept, across channels too.
"""

from __future__ import annotations

from collections import deque

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError

WINDOW_BYTES = 256 * 1024
"""Credit of a new stream in either direction, and the most that is ever outstanding."""

QUEUE_BYTES = 128 * 1024
"""A sender should stop at this many queued bytes of one stream until it is told ``Writable``."""


class Outgoing:
    """A piece of work for the wire: one OPEN, MESSAGE, DATA or END and how far it got."""

    __slots__ = ("at", "channel", "payload", "type")

    def __init__(self, type_: int, payload: bytes, channel: int = 0) -> None:
        self.type = type_
        self.payload = payload
        self.channel = channel
        self.at = 0

    @property
    def left(self) -> int:
        """Payload bytes not yet on the wire."""
        return len(self.payload) - self.at


class Stream:
    """The state of one stream at one end."""

    __slots__ = ("credit_in", "credit_out", "id", "owed", "queue", "queued_bytes", "remote_ended", "sent_end", "wants_writable")

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.queue: deque[Outgoing] = deque()
        self.queued_bytes = 0
        self.credit_out = WINDOW_BYTES
        self.credit_in = WINDOW_BYTES
        self.owed = 0
        self.sent_end = False
        self.remote_ended = False
        self.wants_writable = False

    def put(self, item: Outgoing) -> None:
        """Queue something to send."""
        self.queue.append(item)
        self.queued_bytes += item.left

    def take(self, max_payload: int, *, may_fragment: bool) -> tuple[bytes, bool] | None:
        """The next frame of this stream, and whether a fragmented message is under way after it.

        Args:
            max_payload: The direction's frame size less the header.
            may_fragment: Whether this stream may be (or is) the one that fragments a message.

        Returns:
            None where nothing can be sent now.
        """
        if not self.queue:
            return None
        item = self.queue[0]
        if item.type == frames.END:
            self.queue.popleft()
            self.sent_end = True
            return frames.encode(frames.END, self.id), False
        size = min(item.left, max_payload)
        fragmented = item.type != frames.DATA and size < item.left
        if fragmented and not may_fragment:
            return None
        counts = item.type != frames.OPEN
        if counts and item.left:
            size = min(size, self.credit_out)
            if size == 0:
                return None
            if item.type == frames.MESSAGE and size < item.left:
                if not may_fragment:
                    return None
                fragmented = True
        piece = item.payload[item.at : item.at + size]
        frame = frames.encode(item.type, self.id, piece, item.channel, more=fragmented)
        item.at += size
        self.queued_bytes -= size
        if counts:
            self.credit_out -= size
        if item.left:
            if item.type == frames.OPEN:
                item.type = frames.MESSAGE
        else:
            self.queue.popleft()
        return frame, fragmented

    def arrived(self, size: int) -> None:
        """The far side sent that many bytes.

        Raises:
            ProtocolError: More than it had credit for, or after its END.
        """
        if self.remote_ended:
            raise ProtocolError(f"stream {self.id} goes on after its END")
        self.credit_in -= size
        if self.credit_in < 0:
            raise ProtocolError(f"stream {self.id} was sent {-self.credit_in} bytes beyond its credit")

    def grant(self, size: int) -> int:
        """Bytes were dealt with: how much credit to tell the far side of now (0: not worth a frame yet)."""
        self.owed += size
        if self.owed * 2 < WINDOW_BYTES:
            return 0
        granted, self.owed = self.owed, 0
        self.credit_in += granted
        return granted

    def granted(self, size: int) -> None:
        """The far side takes that many more.

        Raises:
            ProtocolError: It grants more than it was sent.
        """
        self.credit_out += size
        if self.credit_out > WINDOW_BYTES:
            raise ProtocolError(f"stream {self.id} was granted more credit than a window")


class Assembly:
    """The one message of a direction that is in pieces."""

    __slots__ = ("_bytes", "_limit", "_pieces", "opening", "stream")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Forget the pieces."""
        self.stream = 0
        self.opening = False
        self._pieces: list[bytes] = []
        self._bytes = 0

    def add(self, frame: frames.Frame) -> bytes | None:
        """Add a frame's payload; the whole message where it is complete.

        Raises:
            ProtocolError: A second message in pieces, or one beyond the limit.
        """
        if self.stream != frame.stream:
            if not frame.more:
                return frame.payload
            if self.stream:
                raise ProtocolError(f"messages of streams {self.stream} and {frame.stream} in pieces at once")
            self.stream = frame.stream
            self.opening = frame.type == frames.OPEN
        self._pieces.append(frame.payload)
        self._bytes += len(frame.payload)
        if self._bytes > self._limit:
            raise ProtocolError(f"a message of more than {self._limit} bytes")
        if frame.more:
            return None
        whole = b"".join(self._pieces)
        self.clear()
        return whole
