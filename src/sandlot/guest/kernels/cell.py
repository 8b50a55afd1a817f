"""Cells: the output, the events and the result of one execution, and the calls that follow it.

Invariants:
- A follower receives output and events in their original order, across both channels. The order of the last ``MAX_RUNS`` runs is kept; a
  run is a piece of one channel, or events, without anything else in between.
- While a cell runs, a follower that does not read stops the kernel. After an interrupt or the end of the cell, the kernel is not stopped:
  output that a follower has not read may then be dropped, and the follower gets an event with the number of dropped bytes.
- A follower that does not wait receives the output and events so far, and ends, even if the cell keeps writing.
- A cell that has ended still accepts output of its threads and children, as long as the cell is remembered.
- Results of a cell may take ``MAX_RESULTS_BYTES``. A result that is cleared or updated no longer counts. A result that does not fit is left
  out, and a note replaces the first such result. Errors have a separate limit, so that results never displace errors.
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

MAX_RESULTS_BYTES = MESSAGE_MAX_BYTES - 65536
"""Maximum size of the results of one cell."""
MAX_ERRORS_BYTES = 1 << 20
"""Maximum size of the errors of one cell. If a further error does not fit, the earlier errors lose their text."""
LEFT_OUT = "This result and perhaps later ones are left out, because the results of this cell are too large in total."
EVENT_BYTES = 512
"""Memory in bytes that an event takes in addition to its content."""
MAX_EVENTS = MAX_RESULTS_BYTES // EVENT_BYTES
RESERVED_ERRORS = 256
"""Number of events that are reserved for errors."""
MAX_RUNS = 4096
"""Number of runs whose order is kept."""
SHORT_CELL_S = 0.005
"""Age of a cell in seconds up to which its events are delayed. Most cells end earlier, and everything is sent in one write."""
ERROR_LINES = 25
"""Number of traceback lines that are kept if an error is too large; each line has up to 32 KB."""
CLEARED = {"event": "clear", "wait": False}
FORGOTTEN = {"event": "error", "name": "Error", "value": "The text was dropped, because many errors followed.", "traceback": []}
EVENTS = 0
"""Kind of a run in :class:`OutputInterleaving` that consists of events. Other kinds are numbers of channels."""


class OutputInterleaving:
    """The order of output and events, as a list of runs: pieces of output of one channel, or events.

    Attributes:
        first: Number of the oldest run that is kept.
        runs: Kind and end of each run. The kind is a channel or ``EVENTS``; the end is the offset in the channel or the number of events.
    """

    __slots__ = ("first", "runs")

    def __init__(self) -> None:
        self.first = 0
        self.runs: deque[tuple[int, int]] = deque()

    def note(self, kind: int, end: int) -> None:
        """Add output or an event.

        Args:
            kind: A channel, or ``EVENTS``.
            end: Offset in the channel after the output, or number of events so far.
        """
        if self.runs and self.runs[-1][0] == kind:
            self.runs.pop()
        elif len(self.runs) == MAX_RUNS:
            self.runs.popleft()
            self.first += 1
        self.runs.append((kind, end))


class CellOutputBuffer(Buffer):
    """The output of one channel of a cell, which is also recorded in an interleaving."""

    __slots__ = ("_channel", "_order")

    def __init__(self, channel: int, order: OutputInterleaving) -> None:
        super().__init__()
        self._channel = channel
        self._order = order

    def append(self, data: bytes) -> None:
        """Add output."""
        super().append(data)
        self._order.note(self._channel, self.end)


class CellOutputs(OutputLog):
    """Both channels of a cell.

    Attributes:
        order: Order of output and events.
        ignores_backpressure: True if output is read from the kernel even if followers do not read it.
    """

    __slots__ = ("ignores_backpressure", "order")

    def __init__(self) -> None:
        super().__init__((STDOUT, STDERR))
        self.order = OutputInterleaving()
        self.buffers = {channel: CellOutputBuffer(channel, self.order) for channel in self.buffers}
        self.ignores_backpressure = False

    def may_read(self, channel: int) -> bool:
        """Return True if more output of the channel may be read from the kernel now."""
        return self.ignores_backpressure or super().may_read(channel)


class Cell:
    """One execution: its output, its events and its result.

    Args:
        loop: The guest's loop.
        id_: Id of the call that submitted the cell.
        args: Arguments of ``kernel.execute``.

    Attributes:
        kernel: Id of the context.
        interrupt_cause: ``interrupt`` or ``timeout`` if the cell was interrupted, otherwise empty.
        result: The result, or None before the end of the cell.
        on_sent: Called when more output of the running cell may be read.
        on_late: Called when output may have been added after the end of the cell.
        request_bytes: Memory that the request takes; 0 after the end of the cell.
    """

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
        "code",
        "count",
        "env",
        "events",
        "followers",
        "id",
        "interrupt_cause",
        "kernel",
        "on_late",
        "on_sent",
        "outputs",
        "request_bytes",
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
        self._sizes: dict[int, int] = {}  # number of an event -> size of its result, for results that were not cleared or updated
        self._updates: dict[str, int] = {}  # id of a display -> number of its last update
        self._errors: list[int] = []
        self._results_bytes = self._errors_bytes = 0
        self._has_left_out = False
        self._clears = False
        self.followers: list[CellFollower] = []
        self.result: dict[str, Any] | None = None
        self.interrupt_cause = ""
        self.count = 0
        self._began_s: float | None = None
        self.on_sent: Callable[[], object] | None = None
        self.on_late: Callable[[], object] | None = None
        self.request_bytes = len(self.code.encode("utf-8", "surrogatepass")) + sum(len(name) + len(value) for name, value in self.env.items())

    @property
    def kept_bytes(self) -> int:
        """Memory in bytes that the cell takes."""
        return self.outputs.kept_bytes + self._results_bytes + self._errors_bytes + EVENT_BYTES * len(self.events) + self.request_bytes

    def begin(self) -> None:
        """Begin to measure the duration."""
        self._began_s = self._loop.time()

    def add_event(self, event: dict[str, Any], size: int) -> None:
        """Keep an event and send it to the followers.

        Args:
            event: The event.
            size: Encoded size of its message in bytes.
        """
        kind = event["event"]
        if kind == "display":
            kept = self._add_display(event, size)
        elif kind == "error":
            kept = self._add_error(event, size)
        else:
            kept = event if len(self.events) < MAX_EVENTS - RESERVED_ERRORS else None
            if kind == "clear" and not event["wait"]:
                self._clear()
            self._clears = kind == "clear" and event["wait"]
        if kept is not None:
            self.events.append(kept)
            self.outputs.order.note(EVENTS, len(self.events))
            self.pump()

    def _add_display(self, event: dict[str, Any], size: int) -> dict[str, Any] | None:
        """Return the event to keep for a result: the result, a note, or None."""
        if self._clears:
            self._clears = False
            self._clear()
        id_ = event.get("display_id") if event.get("update") else None
        before = None if id_ is None else self._updates.get(id_)
        given_back = 0 if before is None else self._sizes[before]
        if len(self.events) >= MAX_EVENTS - RESERVED_ERRORS or self._results_bytes - given_back + size > MAX_RESULTS_BYTES:
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
        """Drop all results so far. A later follower receives ``clear`` events instead."""
        for number in self._sizes:
            self.events[number] = CLEARED
        self._sizes.clear()
        self._updates.clear()
        self._results_bytes = 0

    def _add_error(self, event: dict[str, Any], size: int) -> dict[str, Any] | None:
        """Return the event to keep for an error, shortened if it is too large; None to keep none."""
        if len(self.events) >= MAX_EVENTS:
            return None
        if size > MAX_ERRORS_BYTES:
            event = {**event, "traceback": event["traceback"][-ERROR_LINES:]}
            size = MAX_ERRORS_BYTES
        if self._errors_bytes + size > MAX_ERRORS_BYTES:
            for number in self._errors:
                self.events[number] = FORGOTTEN
            self._errors.clear()
            self._errors_bytes = 0
        self._errors.append(len(self.events))
        self._errors_bytes += size
        return event

    def fail(self, name: str, text: str) -> None:
        """Add an error of the guest, not of the kernel."""
        self.add_event({"event": "error", "name": name, "value": text, "traceback": []}, 0)

    def finish(self, status: str, count: int) -> None:
        """End the cell.

        Args:
            status: ``ok``, ``error``, ``timeout``, ``aborted``, ``killed``, ``died`` or ``oom``.
            count: Execution count of the cell.
        """
        self.count = count
        self.code = ""
        self.env = {}
        self.request_bytes = 0
        self.result = self._state(status)
        self.outputs.ignores_backpressure = True
        self.on_sent = None
        self.pump()

    def _state(self, status: str) -> dict[str, Any]:
        passed_s = 0.0 if self._began_s is None else self._loop.time() - self._began_s
        return {"status": status, "execution_count": self.count, "duration_s": passed_s}

    def follow(self, call: Call, events_from: int, stdout_from: int | None, stderr_from: int | None, *, wait: bool = True) -> None:
        """Send output and events to a call, and the result at the end.

        Args:
            call: The call.
            events_from: Number of events to skip.
            stdout_from: Offset in standard output; None for the oldest byte that is kept.
            stderr_from: Offset in standard error; None for the oldest byte that is kept.
            wait: True to follow until the end of the cell; False to send only the output and events so far.

        Raises:
            RpcError: An offset is beyond the end of the output.
        """
        wanted = {STDOUT: stdout_from, STDERR: stderr_from}
        if not self.outputs.has(wanted):
            raise RpcError("invalid_request", "The offset is beyond the end of the output.", "Use an offset up to the end of the output.")
        ends = {channel: buffer.end for channel, buffer in self.outputs.buffers.items()}
        follower = CellFollower(call, self.outputs.attach(call, wanted), max(0, events_from), None if wait else (ends, len(self.events)))
        self.followers.append(follower)
        call.on_writable = self.pump
        call.on_gone = lambda: self._on_lost(follower)
        self.pump()

    def pump(self) -> None:
        """Send output and events as far as followers accept them, and the result to those that have received everything."""
        is_short = self._began_s is not None and self.result is None and self._loop.time() - self._began_s < SHORT_CELL_S
        for follower in list(self.followers):
            follower.call.is_patient = is_short
            has_all = follower.pump(self)
            if (has_all and self.result is not None) or follower.has_enough:
                self._remove(follower)
                follower.call.on_gone = None
                # The result is sent only to a follower that has received everything.
                follower.call.result(**((has_all and self.result) or self._state("running")))
        if self.on_sent is not None:
            self.on_sent()
        if self.result is not None and self.on_late is not None:
            self.on_late()

    def _on_lost(self, follower: CellFollower) -> None:
        self._remove(follower)
        # No output is dropped for a while, in which a restarted service may attach again.
        self.outputs.held = True
        self._loop.call_later(HOLD_S, self._release)
        if self.on_sent is not None:
            self.on_sent()

    def _release(self) -> None:
        self.outputs.held = False
        if self.on_sent is not None:
            self.on_sent()

    def _remove(self, follower: CellFollower) -> None:
        if follower in self.followers:
            self.followers.remove(follower)
            self.outputs.detach(follower.reader)


class CellFollower:
    """A call that follows a cell.

    Args:
        call: The call.
        reader: Offsets of the call in both channels.
        next_event: Number of events that the call has received.
        until: Offsets of both channels and number of events at which the call ends; None to follow until the end of the cell.
    """

    __slots__ = ("_next_event", "_run", "_until", "call", "reader")

    def __init__(self, call: Call, reader: Reader, next_event: int, until: tuple[dict[int, int], int] | None) -> None:
        self.call = call
        self.reader = reader
        self._until = until
        self._run = 0
        self._next_event = next_event

    @property
    def has_enough(self) -> bool:
        """True if the call does not wait for the end of the cell and has received everything that it asked for."""
        if self._until is None:
            return False
        ends, events = self._until
        return self._next_event >= events and all(self.reader.at[channel] >= end for channel, end in ends.items())

    def pump(self, cell: Cell) -> bool:
        """Send output and events in order, as far as the stream accepts them. Return True if everything so far was sent."""
        order = cell.outputs.order
        self._run = max(self._run, order.first)
        last = order.first + len(order.runs) - 1
        while self._run <= last:
            kind, end = order.runs[self._run - order.first]
            if not (self._send_events(cell, end) if kind == EVENTS else self.reader.send(cell.outputs.buffers[kind], kind, end)):
                return False
            if self._run == last:
                break  # the last run may still grow
            self._run += 1
        # The rest belongs to runs that are no longer kept.
        return self.reader.pump(cell.outputs.buffers) and self._send_events(cell, len(cell.events))

    def _send_events(self, cell: Cell, end: int) -> bool:
        while self._next_event < end:
            if self.call.room() <= 0:
                return False
            event = cell.events[self._next_event]
            self.call.event(event["event"], **{key: item for key, item in event.items() if key != "event"})
            self._next_event += 1
        return True


def _display(data: dict[str, Any], update_of: str | None = None) -> dict[str, Any]:
    return {"event": "display", "data": data, "main": False, "metadata": {}, "display_id": update_of, "update": update_of is not None}


def kernel_death_message(status: str, language: str, *, began: bool, late: bool) -> str:
    """Return the error message of a cell whose kernel has ended.

    Args:
        status: ``killed``, ``died`` or ``oom``.
        language: Language of the cell.
        began: True if the cell was sent to the kernel.
        late: True if the cell had been interrupted, or the kernel did not start in time.
    """
    if status == "oom":
        return "The kernel was killed because the sandbox ran out of memory. Its variables are lost."
    if status == "killed":
        return (
            "The kernel was killed because it did not react to an interrupt." if late else "The kernel was killed because its context was restarted."
        )
    if not began:
        when = "in time" if late else "at all"
        program = "node" if language == "javascript" else language
        return f"The {program} of the image did not start {when}, so the code was not run; see stderr. Commands and files still work."
    return "The kernel died. Its variables are lost."
