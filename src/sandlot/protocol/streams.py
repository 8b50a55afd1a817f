"""One stream's state: what waits to be sent, what the far side still takes, what it may still send.

Laws:
- DATA and MESSAGE count against credit, OPEN does not; the first window is the same for everybody, so that a stream can
  start without a round trip.
- A DATA frame or a message may begin while any credit is left, and is charged whole: its payload, ``COST_MIN`` at least.
  So one that has begun never waits for credit in the middle, and what a receiver holds of a stream is bounded by a window
  and one frame or message, however small or however many its pieces are.
- A receiver that sees something begin without credit ends the connection.
- Order within a stream is kept, across channels too.
"""

from __future__ import annotations

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.fast_imports import deque

WINDOW_BYTES = 256 * 1024
"""Credit of a new stream in either direction, and the most that is ever outstanding."""

COST_MIN = 128
"""What the smallest frame costs: about what it takes to keep one in memory."""

QUEUE_BYTES = 128 * 1024
"""A sender should stop at this many queued bytes of one stream until it is told ``Writable``."""


def cost(size: int) -> int:
    """What a DATA frame or a whole message of that many payload bytes is charged."""
    return max(size, COST_MIN)


class Outgoing:
    """A piece of work for the wire: one OPEN, MESSAGE, DATA or END and how far it got."""

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
        """Whether the far side has heard of it, that is, whether its OPEN left."""
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
        """Queue something to send; False after the END, where nothing can follow."""
        if self.end_queued:
            return False
        self.end_queued = item.type == frames.END
        self.queue.append(item)
        self.queued_bytes += item.size
        return True

    @property
    def lacks_credit(self) -> bool:
        """Whether the next thing to send has to wait for the far side."""
        item = self.queue[0]
        return self.credit_out <= 0 and (item.type == frames.DATA or (item.type == frames.MESSAGE and not item.at))

    def take(self, max_payload: int, *, may_fragment: bool) -> tuple[bytes, bool] | None:
        """The next frame of this stream, and whether a message is in pieces after it.

        Args:
            max_payload: The direction's frame size less the header.
            may_fragment: Whether this stream may be (or is) the one whose message is in pieces.

        Returns:
            None where another stream's message has to be finished first. Not called where :attr:`lacks_credit`.
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
        """The far side takes that many more.

        Raises:
            ProtocolError: It grants nothing, or more than it was sent.
        """
        self.credit_out += size
        if not size or self.credit_out > WINDOW_BYTES:
            raise ProtocolError(f"stream {self.id} was granted {size} bytes of credit, which is not what it sent")

    # -- receiving --------------------------------------------------------------------------------------------------

    def begins(self) -> None:
        """A DATA frame or a message begins to arrive.

        Raises:
            ProtocolError: There is no credit for it.
        """
        if self.credit_in <= 0:
            raise ProtocolError(f"stream {self.id} was sent more than its credit")

    def arrived(self, size: int) -> int:
        """A DATA frame or a whole message of that size has arrived; what it costs."""
        price = cost(size)
        self.credit_in -= price
        return price

    def owes(self, price: int) -> bool:
        """Something was dealt with: whether it is time to tell the far side so."""
        self.owed += price
        if self.credit_due or self.remote_ended or self.owed * 2 < WINDOW_BYTES:
            return False
        self.credit_due = True
        return True

    def grant(self) -> int:
        """How much credit to tell the far side of now."""
        granted, self.owed = self.owed, 0
        self.credit_due = False
        self.credit_in += granted
        return granted


class Assembly:
    """The one message of a direction that is in pieces."""

    __slots__ = ("_bytes", "_limit", "opening", "stream")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Forget the pieces."""
        self.stream = 0
        self.opening = False
        self._bytes = bytearray()

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
        if len(self._bytes) + len(frame.payload) > self._limit:
            raise ProtocolError(f"a message of more than {self._limit} bytes")
        self._bytes += frame.payload
        if frame.more:
            return None
        whole = bytes(self._bytes)
        self.clear()
        return whole
