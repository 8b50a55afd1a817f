"""Server-sent events, decoded from bytes as they arrive. Pure.

Lines and fields are decoded by httpx-sse (WHATWG HTML standard, 9.2.6 "Interpreting an event stream"). Its public classes read a whole response and
put no bound on an event, so its decoders are used without them.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from typing import Any

from httpx_sse._decoders import SSEDecoder, SSELineDecoder

from sandlot.model.errors import InternalError

MAX_EVENT_BYTES = 256 * 1024 * 1024
"""Largest event. Code may display large images; a larger event is not from a Sandlot service."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Args:
        name: Kind of the event.
        data: Data, decoded from JSON.
        id: Last id of the stream, with which a client continues after this event. Empty if no event has had one.
    """

    name: str
    data: dict[str, Any]
    id: str = ""


class Decoder:
    """Decoder of one event stream. An event is complete with the blank line after it."""

    __slots__ = ("_characters", "_fields", "_lines", "_pending_bytes")

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = SSELineDecoder()
        self._fields = SSEDecoder()
        self._pending_bytes = 0

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that the next bytes complete.

        Raises:
            InternalError: The bytes are not an event stream of a Sandlot service.
        """
        events = []
        self._pending_bytes += len(piece)
        text = self._characters.decode(piece)
        for line in self._lines.decode(text) if text else ():
            if not line:
                self._pending_bytes = 0
            event = self._fields.decode(line)
            if event is not None and event.data:
                events.append(_event(event.event, event.data, event.id))
        if self._pending_bytes > MAX_EVENT_BYTES:
            raise InternalError(
                f"The server sent an event of more than {MAX_EVENT_BYTES} bytes.", hint="Check that SANDLOT_URL is the address of a Sandlot service."
            )
        return events


def _event(name: str, text: str, number: str) -> Event:
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise InternalError(
            f"The server sent an event {name[:100]!r} whose data is not a JSON object.",
            hint="Check that SANDLOT_URL is the address of a Sandlot service.",
        )
    return Event(name, data, number)
