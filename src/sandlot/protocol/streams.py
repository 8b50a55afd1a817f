"""The state of one stream: its send queue, and the credit of both directions.

Credit is the number of bytes that one side may still send on a stream.

- DATA and MESSAGE reduce the credit, OPEN does not. Every stream begins with the same credit, so that it can start without a round trip.
- A DATA frame or a message may be started while any credit is left. It reduces the credit by its whole payload, and by at least ``COST_MIN`` bytes.
  The later frames of a message need no credit. A receiver therefore buffers at most ``WINDOW_BYTES`` and one frame or message of each stream.
- A receiver ends the connection if the peer starts a frame or message without credit.
- Frames of a stream arrive in the order in which they were queued, whatever their channels are.
"""

from __future__ import annotations

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.fast_imports import deque

WINDOW_BYTES = 256 * 1024
"""Credit in bytes that a new stream has in each direction. The credit of a stream is never larger."""

COST_MIN = 128
"""Smallest number of bytes by which a DATA frame or message reduces the credit. A receiver needs about this much memory for a small frame."""

QUEUE_BYTES = 128 * 1024
"""Size in bytes at which the send queue of a stream is full; less if very many streams are open (``stream_table.py``).

The sender should then wait for the event ``Writable``."""


def cost(size: int) -> int:
    """Return the number of bytes by which a DATA frame or a whole message reduces the credit of its stream.

    Args:
        size: Number of bytes of the payload.
    """
    return max(size, COST_MIN)


class Outgoing:
    """One OPEN, MESSAGE, DATA or END in the send queue of a stream. ``at`` is the number of payload bytes that were sent already."""

    __slots__ = ("at", "channel", "payload", "size", "type")

    def __init__(self, type_: int, payload: bytes, channel: int = 0) -> None:
        self.type = type_
        self.payload = memoryview(payload)
        self.size = len(payload)
        self.channel = channel
        self.at = 0


class Stream:
    """The state of one stream on one side of the link."""

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
        """True if the peer opened the stream, or if this side opened the stream and its OPEN was sent."""
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
        """Add an item to the send queue. Return False, and add nothing, if the END was queued earlier."""
        if self.end_queued:
            return False
        self.end_queued = item.type == frames.END
        self.queue.append(item)
        self.queued_bytes += item.size
        return True

    @property
    def lacks_credit(self) -> bool:
        """True if the first item of the send queue must wait for credit from the peer."""
        item = self.queue[0]
        return self.credit_out <= 0 and (item.type == frames.DATA or (item.type == frames.MESSAGE and not item.at))

    def take(self, max_payload: int, *, may_fragment: bool) -> tuple[bytes, bool] | None:
        """Remove the next frame from the send queue. The caller must check first that :attr:`lacks_credit` is false.

        Args:
            max_payload: Largest payload of a frame in this direction, in bytes.
            may_fragment: True if a message may be split over several frames now, because no other stream is sending a split message.

        Returns:
            The encoded frame, and True if further frames of the same message follow. None if the message must be split but may not be split now;
            nothing is removed in this case.
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
        """Add the credit of a CREDIT frame from the peer.

        Args:
            size: Number of bytes that the frame grants.

        Raises:
            ProtocolError: ``size`` is 0, or the credit would exceed ``WINDOW_BYTES``.
        """
        self.credit_out += size
        if not size or self.credit_out > WINDOW_BYTES:
            raise ProtocolError(
                f"a CREDIT on stream {self.id} grants {size} bytes; at least 1 is required, and the credit may not exceed its initial size"
            )

    # -- receiving --------------------------------------------------------------------------------------------------

    def begins(self) -> None:
        """Check that the peer has credit to start a DATA frame or a message.

        Raises:
            ProtocolError: The peer has no credit left.
        """
        if self.credit_in <= 0:
            raise ProtocolError(f"data arrived on stream {self.id} without credit")

    def arrived(self, size: int) -> int:
        """Reduce the credit of the peer after a DATA frame or a whole message arrived, and return the subtracted number of bytes.

        Args:
            size: Number of bytes of the payload.
        """
        price = cost(size)
        self.credit_in -= price
        return price

    def release_credit(self, price: int) -> bool:
        """Add to the credit that is collected for the peer, and return True if the caller should queue a CREDIT now.

        A CREDIT is due when half of ``WINDOW_BYTES`` is collected, unless a CREDIT is queued already or the peer has sent its END.

        Args:
            price: Number of bytes that :meth:`arrived` returned for the handled frame or message.
        """
        self.owed += price
        if self.credit_due or self.remote_ended or self.owed * 2 < WINDOW_BYTES:
            return False
        self.credit_due = True
        return True

    def take_grant(self) -> int:
        """Return the collected credit in bytes for a CREDIT that the caller sends now, and reset the collected credit to 0."""
        granted, self.owed = self.owed, 0
        self.credit_due = False
        self.credit_in += granted
        return granted


class Assembly:
    """Assembles a message that arrives in several frames. At most one such message arrives at a time.

    Args:
        limit: Largest number of bytes of a message.
    """

    __slots__ = ("_bytes", "_limit", "opening", "stream")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Drop the received parts of an incomplete message."""
        self.stream = 0
        self.opening = False
        self._bytes = bytearray()

    def add(self, frame: frames.Frame) -> bytes | None:
        """Add the payload of a frame. Return the whole message if the frame completes it, or None if further frames must follow.

        Raises:
            ProtocolError: A message in several frames began before the previous one was complete, or the message is too long.
        """
        if self.stream != frame.stream:
            if not frame.more:
                return frame.payload
            if self.stream:
                raise ProtocolError(f"a message of stream {frame.stream} began before the message of stream {self.stream} was complete")
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
