"""Cells: what one execution printed, displayed and came to, and the calls that follow it.

Laws:
- What a follower is told has the order in which it came, across both channels and the events, as far as the last ``RUNS``
  changes from one to another.
- While a cell runs, a follower that does not read stops its kernel. One that is interrupted, or over, stops nobody any more:
  what its follower has not read by then may be lost, and is told as lost.
- A cell that is over still takes what its threads and children write, for as long as it is remembered.
"""

from __future__ import annotations

import time

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.outputs import HOLD_S, Buffer, Outputs
from sandlot.protocol.connection import MESSAGE_MAX_BYTES
from sandlot.protocol.lean import deque
from sandlot.protocol.schema import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandlot.guest.calls import Call
    from sandlot.guest.flow.loop import Loop
    from sandlot.guest.flow.outputs import Reader

EVENTS_BYTES = MESSAGE_MAX_BYTES - 65536
"""Results of one cell that are kept and sent; more are left out, and an error event says so."""
EVENT_BYTES = 512
"""At least so much memory each of them counts for."""
RUNS = 4096
EVENTS = 0
"""In an order, where the number of a channel stands: an event."""


class Order:
    """In which order pieces of the channels and events came: runs of one kind, each with where it ends."""

    __slots__ = ("first", "runs")

    def __init__(self) -> None:
        self.first = 0
        self.runs: deque[tuple[int, int]] = deque()

    def note(self, kind: int, end: int) -> None:
        """Something came.

        Args:
            kind: A channel, or ``EVENTS``.
            end: The offset after it; of events, their number.
        """
        if self.runs and self.runs[-1][0] == kind:
            self.runs.pop()
        elif len(self.runs) == RUNS:
            self.runs.popleft()
            self.first += 1
        self.runs.append((kind, end))


class Noted(Buffer):
    """A channel of a cell."""

    __slots__ = ("_channel", "_order")

    def __init__(self, channel: int, order: Order) -> None:
        super().__init__()
        self._channel = channel
        self._order = order

    def append(self, data: bytes) -> None:
        """Keep more."""
        super().append(data)
        self._order.note(self._channel, self.end)


class CellOutputs(Outputs):
    """Both channels of a cell."""

    __slots__ = ("order", "rushes")

    def __init__(self) -> None:
        super().__init__((STDOUT, STDERR))
        self.order = Order()
        self.buffers = {channel: Noted(channel, self.order) for channel in self.buffers}
        self.rushes = False
        """Whether nobody waits for its followers any more."""

    def wants(self, channel: int) -> bool:
        """Whether more should be read now."""
        return self.rushes or super().wants(channel)


class Cell:
    """One execution: its output, its events, its outcome."""

    __slots__ = (
        "_began_s",
        "_events_bytes",
        "_loop",
        "code",
        "count",
        "env",
        "events",
        "id",
        "kernel",
        "on_sent",
        "outputs",
        "readers",
        "result",
        "silent",
        "stop_on_error",
        "store_history",
        "timeout_s",
    )

    def __init__(self, loop: Loop, id_: str, args: dict[str, Any]) -> None:
        self._loop = loop
        self.id = id_
        self.kernel: str = args["kernel"]
        self.code: str = args["code"]
        self.env: dict[str, str] = args["env"]
        self.timeout_s: float | None = args["timeout_s"]
        self.silent = bool(args["silent"])
        self.store_history = args["store_history"] is not False
        self.stop_on_error = bool(args["stop_on_error"])
        self.outputs = CellOutputs()
        self.events: list[dict[str, Any]] = []
        self._events_bytes = 0
        self.readers: list[Follower] = []
        self.result: dict[str, Any] | None = None
        self.count = 0
        self._began_s: float | None = None
        self.on_sent: Callable[[], object] | None = None
        """Called when there may be room for more output: whoever stopped reading it goes on."""

    @property
    def kept_bytes(self) -> int:
        """Memory that it takes."""
        return self.outputs.kept_bytes + min(self._events_bytes, EVENTS_BYTES) + len(self.code)

    def begin(self) -> None:
        """Its turn has come."""
        self._began_s = time.monotonic()

    def tell(self, event: dict[str, Any], size: int) -> None:
        """Keep an event and pass it on."""
        size = max(size, EVENT_BYTES)
        self._events_bytes += size
        if self._events_bytes > EVENTS_BYTES:
            if self._events_bytes - size > EVENTS_BYTES:
                return
            event = {
                "event": "error",
                "name": "OutputLimit",
                "value": "Further results were left out: they are too large.",
                "traceback": [],
            }
        self.events.append(event)
        self.outputs.order.note(EVENTS, len(self.events))
        self.pump()

    def fail(self, name: str, text: str) -> None:
        """Tell an error of which no kernel speaks."""
        self.tell({"event": "error", "name": name, "value": text, "traceback": []}, 0)

    def finish(self, status: str, count: int) -> None:
        """The cell is over."""
        self.count = count
        self.code = ""
        self.result = self._state(status)
        self.outputs.rushes = True
        self.on_sent = None
        self.pump()

    def _state(self, status: str) -> dict[str, Any]:
        passed_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
        return {"status": status, "execution_count": self.count, "duration_s": passed_s}

    def attach(self, call: Call, events_from: int, stdout_from: int | None, stderr_from: int | None, *, wait: bool = True) -> None:
        """Let a call follow.

        Args:
            call: It.
            events_from: How many events it has seen.
            stdout_from: The offset to go on from; None is the oldest that is kept.
            stderr_from: The same.
            wait: Whether until the cell's end.

        Raises:
            Refusal: There is no such offset yet.
        """
        wanted = {STDOUT: stdout_from, STDERR: stderr_from}
        if not self.outputs.has(wanted):
            raise Refusal("invalid_request", "The offset is beyond what the cell has written.", "Use an offset that was given before.")
        follower = Follower(call, self.outputs.attach(call, wanted), max(0, events_from), wait=wait)
        self.readers.append(follower)
        call.on_writable = self.pump
        call.on_gone = lambda: self._gone(follower)
        self.pump()

    def pump(self) -> None:
        """Send on what can be sent, and answer where all is done."""
        for follower in list(self.readers):
            if follower.pump(self) and (self.result is not None or not follower.wait):
                self._leave(follower)
                follower.call.on_gone = None
                follower.call.result(**(self.result or self._state("running")))
        if self.on_sent is not None:
            self.on_sent()

    def _gone(self, follower: Follower) -> None:
        self._leave(follower)
        # Nothing is dropped for a moment, in which a service that was restarted comes back.
        self.outputs.held = True
        self._loop.after(HOLD_S, self._release)
        if self.on_sent is not None:
            self.on_sent()

    def _release(self) -> None:
        self.outputs.held = False
        if self.on_sent is not None:
            self.on_sent()

    def _leave(self, follower: Follower) -> None:
        if follower in self.readers:
            self.readers.remove(follower)
            self.outputs.detach(follower.reader)


class Follower:
    """A call that follows a cell."""

    __slots__ = ("_at", "_next_event", "call", "reader", "wait")

    def __init__(self, call: Call, reader: Reader, next_event: int, *, wait: bool) -> None:
        self.call = call
        self.reader = reader
        self.wait = wait
        self._at = 0
        self._next_event = next_event

    def pump(self, cell: Cell) -> bool:
        """Send what the stream takes, in order; whether everything that is there has been sent."""
        order = cell.outputs.order
        self._at = max(self._at, order.first)
        last = order.first + len(order.runs) - 1
        while self._at <= last:
            kind, end = order.runs[self._at - order.first]
            if not (self._tell(cell, end) if kind == EVENTS else self.reader.send(cell.outputs.buffers[kind], kind, end)):
                return False
            if self._at == last:
                break  # it may grow
            self._at += 1
        # What was in runs that are forgotten by now.
        return self.reader.pump(cell.outputs.buffers) and self._tell(cell, len(cell.events))

    def _tell(self, cell: Cell, end: int) -> bool:
        while self._next_event < end:
            if self.call.room() <= 0:
                return False
            event = cell.events[self._next_event]
            self.call.event(event["event"], **{key: item for key, item in event.items() if key != "event"})
            self._next_event += 1
        return True


def epitaph(status: str, language: str, *, began: bool, late: bool) -> str:
    """What became of a kernel that ended in the middle of a cell. Pure.

    Args:
        status: The cell's: killed, died or oom.
        language: The cell's.
        began: Whether the kernel ever came as far as taking the cell.
        late: Whether the cell was interrupted before, or the start took too long.
    """
    if status == "oom":
        return "The kernel was killed because the sandbox had no memory left; its variables are gone."
    if status == "killed":
        return "The kernel was killed: it did not stop when it was interrupted." if late else "The kernel was killed: it was started anew."
    if not began:
        when = "in time" if late else "at all"
        program = "node" if language == "javascript" else language
        return f"The image's {program} did not start {when}, so nothing was run; see stderr. Commands and files work without it."
    return "The kernel died; its variables are gone."
