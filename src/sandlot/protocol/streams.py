"""The state of one stream: its send queue, and the credit of both directions.

- DATA and MESSAGE use credit, OPEN does not. Every stream begins with the same credit, so that it can start without a round trip.
- A DATA frame or a message may be started while any credit is left. Its whole payload is charged, at least ``COST_MIN``. The later pieces of a
  message need no credit. So a receiver holds at most a window and one frame or message of each stream.
- A receiver ends the connection if the other end sends without credit.
- The order within a stream is kept, across channels too.
"""

from __future__ import annotations

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.fast_imports import deque

WINDOW_BYTES = 256 * 1024
"""Credit of a new stream in either direction, and the largest amount that is ever outstanding."""

COST_MIN = 128
"""Cost of the smallest frame in bytes: about the memory that a frame takes."""

QUEUE_BYTES = 128 * 1024
"""Number of queued bytes of a stream at which its sender should stop until the event ``Writable``."""


def cost(size: int) -> int:
    """Return the credit in bytes that a DATA frame or a whole message with ``size`` payload bytes costs."""
    return max(size, COST_MIN)


class Outgoing:
    """One OPEN, MESSAGE, DATA or END in a send queue. ``at`` is the number of its payload bytes that were sent."""

    __slots__ = ("at", "channel", "payload", "size", "type")

    def __init__(self, type_: int, payload: bytes, channel: int = 0) -> None:
        self.type = type_
        self.payload = memoryview(payload)
        self.size = len(payload)
        self.channel = channel
        self.at = 0


class Stream:
    """The state of one stream at one end."""

    __slots__ = (
        "credit_due",
        "credit_in",
        "credit_out",
        "end_queued",
        "has_turn",
        "id",
        "is_known",
        "owed",
        "queue",
        "queued_bytes",
        "remote_ended",
        "sent_end",
        "wants_writable",
    )

    def __init__(self, id_: int, *, is_known: bool) -> None:
        self.id = id_
        self.is_known = is_known
        """True if the OPEN of the stream was sent."""
        self.queue: deque[Outgoing] = deque()
        self.queued_bytes = 0
        self.has_turn = False
        self.credit_out = WINDOW_BYTES
        self.credit_in = WINDOW_BYTES
        self.owed = 0
        self.credit_due = False
        self.end_queued = False
        self.sent_end = False
        self.remote_ended = False
        self.wants_writable = False

    # -- sending ----------------------------------------------------------------------------------------------------

    def put(self, item: Outgoing) -> bool:
        """Queue an item; return False after the END, because nothing can follow it."""
        if self.end_queued:
            return False
        self.end_queued = item.type == frames.END
        self.queue.append(item)
        self.queued_bytes += item.size
        return True

    @property
    def lacks_credit(self) -> bool:
        """True if the next item has to wait for credit."""
        item = self.queue[0]
        return self.credit_out <= 0 and (item.type == frames.DATA or (item.type == frames.MESSAGE and not item.at))

    def take(self, max_payload: int, *, may_fragment: bool) -> tuple[bytes, bool] | None:
        """Take the next frame of this stream. Not called while :attr:`lacks_credit` is true.

        Args:
            max_payload: Largest frame of this direction without the header, in bytes.
            may_fragment: True if no other stream has a message in pieces.

        Returns:
            The frame, and True if further pieces of its message follow. None if a message of another stream must be finished first.
        """
        item = self.queue[0]
        if item.type == frames.END:
            self.queue.popleft()
            self.sent_end = True
            return frames.encode(frames.END, self.id), False
        at = item.at
        left = item.size - at
        size = min(left, max_payload)
        more = size < left and item.type != frames.DATA
        if more and not may_fragment:
            return None
        if item.type == frames.DATA:
            self.credit_out -= cost(size)
        elif item.type == frames.MESSAGE and not at:
            self.credit_out -= cost(item.size)
        piece = item.payload[at : at + size]
        frame = frames.encode(frames.MESSAGE if item.type == frames.OPEN and at else item.type, self.id, piece, item.channel, more=more)
        self.is_known = True
        item.at += size
        self.queued_bytes -= size
        if size == left:
            self.queue.popleft()
        return frame, more

    def granted(self, size: int) -> None:
        """Add credit that the other end granted.

        Raises:
            ProtocolError: The credit is 0, or more than the bytes that were sent.
        """
        self.credit_out += size
        if not size or self.credit_out > WINDOW_BYTES:
            raise ProtocolError(f"a CREDIT of {size} bytes on stream {self.id} is 0, or more than the bytes that were sent")

    # -- receiving --------------------------------------------------------------------------------------------------

    def begins(self) -> None:
        """Check that the other end may start a DATA frame or a message.

        Raises:
            ProtocolError: The other end has no credit left.
        """
        if self.credit_in <= 0:
            raise ProtocolError(f"data arrived on stream {self.id} without credit")

    def arrived(self, size: int) -> int:
        """Charge a DATA frame or whole message that has arrived, and return its cost."""
        price = cost(size)
        self.credit_in -= price
        return price

    def release_credit(self, price: int) -> bool:
        """Add credit to grant to the other end; return True if a CREDIT should be sent now."""
        self.owed += price
        if self.credit_due or self.remote_ended or self.owed * 2 < WINDOW_BYTES:
            return False
        self.credit_due = True
        return True

    def take_grant(self) -> int:
        """Return the whole credit to grant, for a CREDIT that is sent now."""
        granted, self.owed = self.owed, 0
        self.credit_due = False
        self.credit_in += granted
        return granted


class Assembly:
    """The message that is arriving in pieces. There is at most one in a direction."""

    __slots__ = ("_bytes", "_limit", "opening", "stream")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Drop the pieces."""
        self.stream = 0
        self.opening = False
        self._bytes = bytearray()

    def add(self, frame: frames.Frame) -> bytes | None:
        """Add the payload of a frame; return the whole message if it is complete.

        Raises:
            ProtocolError: A second message is in pieces, or the message is too long.
        """
        if self.stream != frame.stream:
            if not frame.more:
                return frame.payload
            if self.stream:
                raise ProtocolError(f"messages of streams {self.stream} and {frame.stream} arrive in pieces at the same time")
            self.stream = frame.stream
            self.opening = frame.type == frames.OPEN
        if len(self._bytes) + len(frame.payload) > self._limit:
            raise ProtocolError(f"a message has more than {self._limit} bytes")
        self._bytes += frame.payload
        if frame.more:
            return None
        whole = bytes(self._bytes)
        self.clear()
        return whole
