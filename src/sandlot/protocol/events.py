"""Events that a connection returns to its owner. Plain classes with slots: importing dataclasses would slow the start of the guest."""

from __future__ import annotations

from itertools import groupby

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any


class Event:
    """Base class of all events."""

    __slots__ = ()


class Greeted(Event):
    """A guest received a HELLO that begins a new connection. The streams of the earlier connection are gone; nothing may be sent on them."""

    __slots__ = ()


class Ready(Event):
    """The host received the guest's WELCOME with the host's nonce. The handshake is complete, and calls may be made."""

    __slots__ = ("asleep", "generation")

    def __init__(self, generation: int, *, asleep: bool) -> None:
        self.generation = generation
        self.asleep = asleep


class Lost(Event):
    """A guest received invalid bytes. All streams are gone, a LOST frame informs the host, and the guest waits for the next HELLO."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class QuiesceRequested(Event):
    """A guest received a request to quiesce. The owner must stop sending, and then call ``Connection.quiesced``."""

    __slots__ = ()


class Quiesced(Event):
    """The host received the confirmation that the guest is quiesced. All streams are gone."""

    __slots__ = ()


class StreamEvent(Event):
    """Base class of the events of one stream. ``stream`` is the id of the stream."""

    __slots__ = ("stream",)

    def __init__(self, stream: int) -> None:
        self.stream = stream


class Opened(StreamEvent):
    """The peer opened a stream. ``head`` is the first message of the stream."""

    __slots__ = ("head",)

    def __init__(self, stream: int, head: Any) -> None:
        super().__init__(stream)
        self.head = head


class Received(StreamEvent):
    """A whole message arrived on a stream. After handling the message, the owner must call ``Connection.consumed`` with ``credit`` (bytes)."""

    __slots__ = ("credit", "message")

    def __init__(self, stream: int, message: Any, credit: int) -> None:
        super().__init__(stream)
        self.message = message
        self.credit = credit


class Bytes(StreamEvent):
    """Bytes arrived on a channel of a stream. After handling the bytes, the owner must call ``Connection.consumed`` with ``credit`` (bytes)."""

    __slots__ = ("channel", "credit", "data")

    def __init__(self, stream: int, channel: int, data: bytes, credit: int) -> None:
        super().__init__(stream)
        self.channel = channel
        self.data = data
        self.credit = credit


class Ended(StreamEvent):
    """The peer sends nothing more on this stream."""

    __slots__ = ()


class WasReset(StreamEvent):
    """The peer reset the stream. ``reason`` is a map that has at least the keys ``code`` and ``message``, both with strings."""

    __slots__ = ("reason",)

    def __init__(self, stream: int, reason: dict[str, Any]) -> None:
        super().__init__(stream)
        self.reason = reason


class Writable(StreamEvent):
    """The send queue of the stream was full and is now at most half full. More bytes may be queued."""

    __slots__ = ()


def join_bytes(received: Iterable[Event]) -> Iterator[Event]:
    """Yield events, and instead of successive :class:`Bytes` of the same channel one event with all their bytes.

    The host sends frames of 4 KiB. A guest that handles each of them makes a system call for each, which is slow in gVisor.
    """
    for channel, group in groupby(received, _channel):
        if channel is None:
            yield from group
            continue
        parts = [event for event in group if isinstance(event, Bytes)]
        yield parts[0] if len(parts) == 1 else Bytes(*channel, b"".join([each.data for each in parts]), sum([each.credit for each in parts]))


def _channel(event: Event) -> tuple[int, int] | None:
    return (event.stream, event.channel) if isinstance(event, Bytes) else None
