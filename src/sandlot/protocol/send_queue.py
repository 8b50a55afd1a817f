"""The frames that one side of the link has to send, and the order in which they are sent. No I/O.

- Frames of the connection itself are sent first, then RESETs, then CREDITs, then all other frames. Streams take turns, one frame each.
- At most one message at a time is sent in pieces, so that the peer has to assemble only one message at a time.
- OPENs are sent in the order of their stream ids, even if a large OPEN has to wait until a message of another stream was sent completely.
- A stream without credit is skipped until it gets credit, and delays no other stream.
- The peer can cause only a limited number of queued frames: one CREDIT for each stream, and one RESET for each stream that is still open for the
  peer. Nothing is kept of a stream that is over but its RESET.
- The time for one frame does not depend on the number of streams.
"""

from __future__ import annotations

import struct

from sandlot.protocol import frames, values
from sandlot.protocol.errors import TooLarge
from sandlot.protocol.fast_imports import OrderedDict, deque
from sandlot.protocol.streams import QUEUE_BYTES, Outgoing, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CREDIT = struct.Struct(">I")
_REASON_CHARS = 800
"""Largest number of characters in the text of a RESET. At 4 bytes for each character, the text still fits into one frame of the host."""


class SendQueue:
    """The frames of one connection that wait to be sent.

    Args:
        max_payload: Largest payload of a frame in this direction, in bytes.
    """

    __slots__ = ("_control", "_credits", "_fragmenting", "_max_payload", "_opening", "_reset_counts", "_resets", "_turns", "writable")

    def __init__(self, max_payload: int) -> None:
        self._max_payload = max_payload
        self.clear()

    def clear(self) -> None:
        """Drop all queued frames."""
        self._control: deque[bytes] = deque()
        self._resets: deque[tuple[int, bytes]] = deque()
        self._reset_counts = [0, 0]
        self._credits: OrderedDict[int, Stream] = OrderedDict()
        self._turns: OrderedDict[int, Stream] = OrderedDict()
        self._opening: OrderedDict[int, Stream] = OrderedDict()
        self._fragmenting = 0
        self.writable: list[int] = []
        """Ids of streams whose send queues were full and are now at most half full. The connection takes the ids and reports ``Writable`` events."""

    def resetting(self, like: int) -> int:
        """Return the number of streams whose RESET is not sent yet. For the peer these streams are still open.

        Args:
            like: Id of a stream. Only streams that were opened by the same side as this stream are counted.
        """
        return self._reset_counts[like % 2]

    def put_control(self, frame: bytes) -> None:
        """Queue a frame of the connection itself, unless an equal frame is queued already."""
        if frame not in self._control:
            self._control.append(frame)

    def put(self, stream: Stream, item: Outgoing) -> None:
        """Add an item to the send queue of a stream."""
        if item.type == frames.OPEN:
            self._opening[stream.id] = stream
        if stream.put(item):
            self.wake(stream)

    def put_credit(self, stream: Stream) -> None:
        """Queue a CREDIT for a stream. The number of bytes that the CREDIT grants is determined only when the frame is sent."""
        self._credits[stream.id] = stream

    def put_reset(self, stream: Stream, code: str, message: str, fields: dict[str, Any]) -> None:
        """Queue a RESET, unless the OPEN of the stream was never sent. The caller must remove the stream from the stream table first.

        Args:
            stream: Stream to reset.
            code: Code that tells the peer the reason.
            message: Reason as text; shortened to 800 characters.
            fields: Further fields of the reason. They are left out if the frame would be too long.
        """
        if not stream.is_known:
            return
        reason: dict[str, Any] = {"code": code, "message": message[:_REASON_CHARS], **fields}
        payload = values.encode(reason)
        if len(payload) > self._max_payload:
            payload = values.encode({"code": code, "message": message[:_REASON_CHARS]})
        self._resets.append((stream.id, frames.encode(frames.RESET, stream.id, payload)))
        self._reset_counts[stream.id % 2] += 1

    def wake(self, stream: Stream) -> None:
        """Add a stream to the streams whose frames are sent in turn, if the stream has a frame that may be sent now. Idempotent."""
        if stream.queue and not stream.has_turn and not stream.lacks_credit:
            stream.has_turn = True
            self._turns[stream.id] = stream

    def forget(self, stream: Stream) -> None:
        """Drop all items in the send queue of a stream that is over, and its CREDIT if one is queued."""
        stream.queue.clear()
        stream.queued_bytes = 0
        stream.credit_due = False
        self._credits.pop(stream.id, None)
        self._turns.pop(stream.id, None)
        self._opening.pop(stream.id, None)
        if self._fragmenting == stream.id:
            self._fragmenting = 0

    def next_control(self) -> bytes | None:
        """Remove and return the next frame of the connection itself; return None if no such frame is queued."""
        return self._control.popleft() if self._control else None

    def next(self) -> tuple[bytes, Stream | None] | None:
        """Remove the next frame to send, and return the frame and its stream. Return None if nothing can be sent now.

        Returns:
            The encoded frame, and its stream if the frame is an OPEN, MESSAGE, DATA or END. For other frames, the stream is None.
        """
        if self._control:
            return self._control.popleft(), None
        if self._resets:
            id_, reset = self._resets.popleft()
            self._reset_counts[id_ % 2] -= 1
            return reset, None
        while self._credits:
            _, stream = self._credits.popitem(last=False)
            if stream.credit_due:
                return frames.encode(frames.CREDIT, stream.id, _CREDIT.pack(stream.take_grant())), None
        return self._next_of_streams()

    def _next_of_streams(self) -> tuple[bytes, Stream] | None:
        turns = self._turns
        for _ in range(len(turns)):
            id_, stream = turns.popitem(last=False)
            if not stream.queue or stream.lacks_credit:
                stream.has_turn = False
                continue
            is_new = not stream.is_known
            has_to_wait = is_new and stream.id != next(iter(self._opening))
            taken = None if has_to_wait else stream.take(self._max_payload, may_fragment=self._fragmenting in {0, stream.id})
            if taken is None:
                turns[id_] = stream
                continue
            if is_new:
                del self._opening[stream.id]
            frame, in_pieces = taken
            if in_pieces:
                self._fragmenting = stream.id
            elif self._fragmenting == stream.id:
                self._fragmenting = 0
            if stream.queue:
                turns[id_] = stream
            else:
                stream.has_turn = False
            if stream.wants_writable and stream.queued_bytes * 2 <= QUEUE_BYTES:
                stream.wants_writable = False
                self.writable.append(stream.id)
            return frame, stream
        return None


def parse_credit(payload: bytes) -> int | None:
    """Return the number of bytes that a CREDIT grants; None if the payload is invalid."""
    return int(_CREDIT.unpack(payload)[0]) if len(payload) == _CREDIT.size else None


def encode(message: Any, limit: int) -> bytes:
    """Encode a message.

    Args:
        message: Value to encode.
        limit: Largest allowed number of encoded bytes.

    Raises:
        TooLarge: The encoded message has more than ``limit`` bytes.
        EncodingError: The message has a value that cannot be encoded.
    """
    payload = values.encode(message)
    if len(payload) > limit:
        raise TooLarge(f"the message has {len(payload)} bytes; at most {limit} are allowed")
    return payload
