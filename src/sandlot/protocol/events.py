"""What a connection tells its owner. Plain slotted classes: the guest cannot afford dataclasses at its start."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Event:
    """Something happened."""

    __slots__ = ()


class Greeted(Event):
    """Guest: a HELLO with a new nonce. Everything of the earlier connection is gone; write nothing of it any more."""

    __slots__ = ()


class Ready(Event):
    """Host: the guest echoed the nonce; calls may be made."""

    __slots__ = ("asleep", "generation")

    def __init__(self, generation: int, *, asleep: bool) -> None:
        self.generation = generation
        self.asleep = asleep


class Lost(Event):
    """Guest: the bytes made no sense; every stream is gone until the next HELLO. The host is told by a LOST."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class QuiesceAsked(Event):
    """Guest: come to rest, then call ``Connection.quiesced``."""

    __slots__ = ()


class Quiesced(Event):
    """Host: the guest is at rest and every stream is gone."""

    __slots__ = ()


class StreamEvent(Event):
    """Something happened on one stream."""

    __slots__ = ("stream",)

    def __init__(self, stream: int) -> None:
        self.stream = stream


class Opened(StreamEvent):
    """The far side opened a stream; ``head`` is its first message."""

    __slots__ = ("head",)

    def __init__(self, stream: int, head: Any) -> None:
        super().__init__(stream)
        self.head = head


class Received(StreamEvent):
    """A message, whole. Give ``credit`` back with ``Connection.consumed`` once it is dealt with."""

    __slots__ = ("credit", "message")

    def __init__(self, stream: int, message: Any, credit: int) -> None:
        super().__init__(stream)
        self.message = message
        self.credit = credit


class Bytes(StreamEvent):
    """Bytes of a channel. Give ``credit`` back with ``Connection.consumed`` once they are dealt with."""

    __slots__ = ("channel", "credit", "data")

    def __init__(self, stream: int, channel: int, data: bytes, credit: int) -> None:
        super().__init__(stream)
        self.channel = channel
        self.data = data
        self.credit = credit


class Ended(StreamEvent):
    """The far side sends no more on this stream."""

    __slots__ = ()


class WasReset(StreamEvent):
    """The stream is over; ``reason`` is a map with at least ``code`` and ``message``."""

    __slots__ = ("reason",)

    def __init__(self, stream: int, reason: dict[str, Any]) -> None:
        super().__init__(stream)
        self.reason = reason


class Writable(StreamEvent):
    """The stream's queue is down to half of what it should hold: more may be queued."""

    __slots__ = ()
