"""Cells: what one execution printed, displayed and came to, and the calls that follow it.

Laws:
- What a follower is told has the order in which it came, across both channels and the events, as far as the last ``RUNS``
  changes from one to another.
- While a cell runs, a follower that does not read stops its kernel. One that is interrupted, or over, stops nobody any more:
  what its follower has not read by then may be lost, and is told as lost.
- A follower that does not wait is told what there was when it came, and is done then, however fast more comes.
- A cell that is over still takes what its threads and children write, for as long as it is remembered.
- Results take up to ``EVENTS_BYTES``, of which what was cleared or updated gives its part back; one that does not fit is left out,
  which the first of them says. Errors have room of their own, so that no result keeps them from being told.
"""

from __future__ import annotations

from sandlot.guest.errors import RpcError
from sandlot.guest.output import HOLD_S, Buffer, OutputLog
from sandlot.protocol.connection import MESSAGE_MAX_BYTES
from sandlot.protocol.fast_imports import deque
from sandlot.protocol.schema import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandlot.guest.loop import Loop
    from sandlot.guest.output import Reader
    from sandlot.guest.rpc import Call

EVENTS_BYTES = MESSAGE_MAX_BYTES - 65536
"""Results of one cell that are kept."""
ERRORS_BYTES = 1 << 20
"""Errors, beside that; where one does not fit any more, those before it are told without what they said."""
LEFT_OUT = "A result was left out here, and maybe others after it: this cell's results are too large together."
EVENT_BYTES = 512
"""So much memory each event takes besides, at least."""
EVENTS_MOST = EVENTS_BYTES // EVENT_BYTES
ERRORS_MOST = 256
"""Of that number, for errors alone."""
RUNS = 4096
YOUNG_S = 0.005
"""What a cell tells before that goes with its end where that follows at once, as it does most times."""
ERROR_LINES = 25
"""What is kept of the traceback of an error that takes all that errors may: each line has up to 32 KB."""
CLEARED = {"event": "clear", "wait": False}
FORGOTTEN = {"event": "error", "name": "Error", "value": "It was forgotten: many errors came after it.", "traceback": []}
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


class CellOutputs(OutputLog):
    """Both channels of a cell."""

    __slots__ = ("order", "rushes")

    def __init__(self) -> None:
        super().__init__((STDOUT, STDERR))
        self.order = Order()
        self.buffers = {channel: Noted(channel, self.order) for channel in self.buffers}
        self.rushes = False
        """Whether nobody waits for its followers any more."""

    def may_read(self, channel: int) -> bool:
        """Whether more should be read now."""
        return self.rushes or super().may_read(channel)


class Cell:
    """One execution: its output, its events, its outcome."""

    __slots__ = (
        "_began_s",
        "_clears",
        "_errors",
        "_errors_bytes",
        "_has_left_out",
        "_loop",
        "_results_bytes",
        "_sizes",
        "_updates",
        "asked_bytes",
        "code",
        "count",
        "env",
        "events",
        "id",
        "kernel",
        "on_late",
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
        self._sizes: dict[int, int] = {}  # of the results that stand: those not cleared or updated since
        self._updates: dict[str, int] = {}  # the last update of each display
        self._errors: list[int] = []
        self._results_bytes = self._errors_bytes = 0
        self._has_left_out = False
        self._clears = False
        self.readers: list[Follower] = []
        self.result: dict[str, Any] | None = None
        self.count = 0
        self._began_s: float | None = None
        self.on_sent: Callable[[], object] | None = None
        """Called when there may be room for more output: whoever stopped reading it goes on."""
        self.on_late: Callable[[], object] | None = None
        """Called when it may have grown although it is over."""
        self.asked_bytes = len(self.code.encode("utf-8", "surrogatepass")) + sum(len(name) + len(value) for name, value in self.env.items())
        """What it takes of memory until it is over."""

    @property
    def kept_bytes(self) -> int:
        """Memory that it takes."""
        return self.outputs.kept_bytes + self._results_bytes + self._errors_bytes + EVENT_BYTES * len(self.events) + self.asked_bytes

    def begin(self) -> None:
        """Its turn has come."""
        self._began_s = self._loop.time()

    def tell(self, event: dict[str, Any], size: int) -> None:
        """Keep an event and pass it on.

        Args:
            event: It.
            size: How long its message was.
        """
        kind = event["event"]
        if kind == "display":
            kept = self._show(event, size)
        elif kind == "error":
            kept = self._blame(event, size)
        else:
            kept = event if len(self.events) < EVENTS_MOST - ERRORS_MOST else None
            if kind == "clear" and not event["wait"]:
                self._clear()
            self._clears = kind == "clear" and event["wait"]
        if kept is not None:
            self.events.append(kept)
            self.outputs.order.note(EVENTS, len(self.events))
            self.pump()

    def _show(self, event: dict[str, Any], size: int) -> dict[str, Any] | None:
        """What is to be kept of a result."""
        if self._clears:
            self._clears = False
            self._clear()
        id_ = event.get("display_id") if event.get("update") else None
        before = None if id_ is None else self._updates.get(id_)
        given_back = 0 if before is None else self._sizes[before]
        if len(self.events) >= EVENTS_MOST - ERRORS_MOST or self._results_bytes - given_back + size > EVENTS_BYTES:
            if self._has_left_out:
                return None
            self._has_left_out = True
            return _display({"text/plain": LEFT_OUT})
        if before is not None:
            del self._sizes[before]
            self.events[before] = _display({}, id_)
        if id_ is not None:
            self._updates[id_] = len(self.events)
        self._sizes[len(self.events)] = size
        self._results_bytes += size - given_back
        return event

    def _clear(self) -> None:
        """Nothing that was shown so far stands: who comes later is told that it was cleared."""
        for number in self._sizes:
            self.events[number] = CLEARED
        self._sizes.clear()
        self._updates.clear()
        self._results_bytes = 0

    def _blame(self, event: dict[str, Any], size: int) -> dict[str, Any] | None:
        """What is to be kept of an error."""
        if len(self.events) >= EVENTS_MOST:
            return None
        if size > ERRORS_BYTES:
            event = {**event, "traceback": event["traceback"][-ERROR_LINES:]}
            size = ERRORS_BYTES
        if self._errors_bytes + size > ERRORS_BYTES:
            for number in self._errors:
                self.events[number] = FORGOTTEN
            self._errors.clear()
            self._errors_bytes = 0
        self._errors.append(len(self.events))
        self._errors_bytes += size
        return event

    def fail(self, name: str, text: str) -> None:
        """Tell an error of which no kernel speaks."""
        self.tell({"event": "error", "name": name, "value": text, "traceback": []}, 0)

    def finish(self, status: str, count: int) -> None:
        """The cell is over."""
        self.count = count
        self.code = ""
        self.env = {}
        self.asked_bytes = 0
        self.result = self._state(status)
        self.outputs.rushes = True
        self.on_sent = None
        self.pump()

    def _state(self, status: str) -> dict[str, Any]:
        passed_s = 0.0 if self._began_s is None else self._loop.time() - self._began_s
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
            RpcError: There is no such offset yet.
        """
        wanted = {STDOUT: stdout_from, STDERR: stderr_from}
        if not self.outputs.has(wanted):
            raise RpcError("invalid_request", "The offset is beyond what the cell has written.", "Use an offset that was given before.")
        ends = {channel: buffer.end for channel, buffer in self.outputs.buffers.items()}
        follower = Follower(call, self.outputs.attach(call, wanted), max(0, events_from), None if wait else (ends, len(self.events)))
        self.readers.append(follower)
        call.on_writable = self.pump
        call.on_gone = lambda: self._gone(follower)
        self.pump()

    def pump(self) -> None:
        """Send on what can be sent, and answer where all is done."""
        is_young = self._began_s is not None and self.result is None and self._loop.time() - self._began_s < YOUNG_S
        for follower in list(self.readers):
            follower.call.is_patient = is_young
            has_all = follower.pump(self)
            if (has_all and self.result is not None) or follower.has_enough:
                self._leave(follower)
                follower.call.on_gone = None
                # Who has not been told all of it has not seen its end.
                follower.call.result(**((has_all and self.result) or self._state("running")))
        if self.on_sent is not None:
            self.on_sent()
        if self.result is not None and self.on_late is not None:
            self.on_late()

    def _gone(self, follower: Follower) -> None:
        self._leave(follower)
        # Nothing is dropped for a moment, in which a service that was restarted comes back.
        self.outputs.held = True
        self._loop.call_later(HOLD_S, self._release)
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
    """A call that follows a cell.

    Args:
        call: It.
        reader: Where it is in both channels.
        next_event: How many events it has seen.
        enough: Both channels' ends and the number of events that it wants; None is all there ever will be.
    """

    __slots__ = ("_at", "_enough", "_next_event", "call", "reader")

    def __init__(self, call: Call, reader: Reader, next_event: int, enough: tuple[dict[int, int], int] | None) -> None:
        self.call = call
        self.reader = reader
        self._enough = enough
        self._at = 0
        self._next_event = next_event

    @property
    def has_enough(self) -> bool:
        """Whether it has been told what it wants."""
        if self._enough is None:
            return False
        ends, events = self._enough
        return self._next_event >= events and all(self.reader.at[channel] >= end for channel, end in ends.items())

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


def _display(data: dict[str, Any], update_of: str | None = None) -> dict[str, Any]:
    return {"event": "display", "data": data, "main": False, "metadata": {}, "display_id": update_of, "update": update_of is not None}


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
