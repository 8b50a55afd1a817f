"""Parts of the guest for tests of single modules: a loop whose time a test moves, and a call that records its messages."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from sandlot.guest.flow.loop import READ_BYTES, Timer
from sandlot.guest.flow.outputs import Outputs


class ManualLoop:
    """A loop with timers only.

    Attributes:
        now_s: Its time.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Timer]] = []

    def time(self) -> float:
        return self.now_s

    def after(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(self.now_s + delay_s, callback)
        heapq.heappush(self._timers, (timer.due_s, next(self._numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass, and call back what becomes due meanwhile."""
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            self.now_s, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        self.now_s = end_s


class RecordingCall:
    """A call whose client reads everything at once.

    Attributes:
        id: Its id.
        args: Its arguments.
        told: Events by name, output as ``(channel, bytes)`` and results as dictionaries, in order.
    """

    def __init__(self, args: dict[str, Any] | None = None, *, room: int = 1 << 30) -> None:
        self.id = "call"
        self.args = args or {}
        self.told: list[Any] = []
        self._room = room
        self.is_patient = False
        self.on_bytes: Any = None
        self.on_end: Any = None
        self.on_gone: Any = None
        self.on_writable: Any = None

    def room(self) -> int:
        return self._room

    def data(self, channel: int, piece: bytes) -> None:
        self.told.append((channel, piece))

    def lost(self, channel: int, size: int) -> None:
        self.told.append(("lost", channel, size))

    def event(self, event: str, /, **_fields: object) -> None:
        self.told.append(event)

    def result(self, **fields: Any) -> None:  # noqa: ANN401 - any field
        self.told.append(fields)


def flood(outputs: Outputs, channels: Iterable[int]) -> bool:
    """Write as long as the guest reads, at most four times what it keeps; whether it stopped before it dropped anything."""
    for channel in channels:
        buffer = outputs.buffers[channel]
        while outputs.wants(channel) and buffer.end < 4 * buffer.limit:
            buffer.append(b"x" * READ_BYTES)
    return all(outputs.buffers[channel].start == 0 for channel in channels)
