"""Server-sent events, decoded from bytes as they arrive. Sans-I/O.

Follows the WHATWG HTML standard, "9.2.6 Interpreting an event stream", as far as the API uses it: ``event`` and ``data``
fields, comments, and line ends in all three forms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sandlot.model.errors import InternalError

MAX_EVENT_BYTES = 256 * 1024 * 1024
"""Beyond this, whatever answers is not our service; a cell may display large images."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name, and its data decoded from JSON."""

    name: str
    data: dict[str, Any]


@dataclass(slots=True)
class Decoder:
    """Bytes in, events out; an event is given once the blank line after it has come."""

    _rest: bytearray = field(default_factory=bytearray)
    _scanned: int = 0
    _name: str = ""
    _data: list[bytes] = field(default_factory=list)

    def feed(self, piece: bytes) -> list[Event]:
        """Take the next bytes.

        Raises:
            InternalError: What arrives is no event stream of ours.
        """
        self._rest += piece
        events = []
        for line in self._lines():
            if line:
                self._take(line)
            elif self._data:
                events.append(self._event())
            else:
                self._name = ""
        return events

    def _lines(self) -> Iterator[bytes]:
        start = 0
        while (found := _LINE_END.search(self._rest, max(start, self._scanned))) is not None:
            if found.group() == b"\r" and found.end() == len(self._rest):
                break  # the \n of a \r\n may still come
            line = bytes(self._rest[start : found.start()])
            start = found.end()
            yield line
        del self._rest[:start]
        # What is left has no line end, except perhaps a \r as its last byte: the next search starts there.
        self._scanned = max(0, len(self._rest) - 1)
        if len(self._rest) > MAX_EVENT_BYTES:
            raise InternalError("The service sent an event without an end.", hint="Check that SANDLOT_URL is the address of a Sandlot service.")

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"data":
            self._data.append(value)

    def _event(self) -> Event:
        name, text = self._name or "message", b"\n".join(self._data)
        self._name, self._data = "", []
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise InternalError(
                f"The service sent an event {name!r} that is no JSON object.", hint="Check that SANDLOT_URL is the address of a Sandlot service."
            )
        return Event(name, data)
