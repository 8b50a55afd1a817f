"""Cells: the output, the events and the result of one execution. A follower is a call that receives the output, events and result of a cell.

Invariants:
- A follower receives standard output, standard error and events in the order in which the cell produced them. The guest remembers this order only
  for the newest output and events: at most ``MAX_RUNS`` entries of :class:`OutputInterleaving`.
- If a follower does not read and the buffer of the running cell is full, the guest stops reading from the kernel. The kernel then blocks when it
  writes.
- After the cell was interrupted or has ended, the guest reads from the kernel even if a follower does not read. Output that a follower has not
  read may then be dropped, and the follower gets an event with the number of dropped bytes.
- A follower that was attached with ``wait=False`` receives the output and events that existed when it was attached. This call then ends, even if
  the cell is still running.
- Threads and child processes of a cell may write output after the cell has ended. The guest adds this output to the cell as long as it remembers
  the cell.
- The results of a cell together take at most ``MAX_RESULTS_BYTES``; cleared and replaced results are not counted. A result that would exceed this
  limit is dropped, and the follower gets a note in place of the first dropped result. Errors have a separate limit, ``MAX_ERRORS_BYTES``.
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
"""Maximum total size in bytes of the results (``display`` events) that the guest keeps for one cell."""
MAX_ERRORS_BYTES = 1 << 20
"""Maximum total size in bytes of the errors of one cell. If a new error would exceed it, the texts of all earlier errors are dropped."""
LEFT_OUT = "This result and perhaps later ones are left out, because the results of this cell are too large in total."
EVENT_BYTES = 512
"""Estimated memory in bytes that the guest needs for an event in addition to the event's content."""
MAX_EVENTS = MAX_RESULTS_BYTES // EVENT_BYTES
"""Maximum number of events that the guest keeps for one cell."""
RESERVED_ERRORS = 256
"""Number of events, out of ``MAX_EVENTS``, that only errors may use, so that a cell with too many other events can still report errors."""
MAX_RUNS = 4096
"""Maximum number of entries in ``OutputInterleaving.runs``. When there would be more, the oldest entry is dropped."""
SHORT_CELL_S = 0.005
"""Seconds after the start of a cell during which its output and events are delayed by up to a millisecond.

Most cells end within this time. Their output, events and result are then sent to a follower in one write.
"""
ERROR_LINES = 25
"""Number of lines that are kept, from the end of the traceback, if an error is larger than ``MAX_ERRORS_BYTES``. A line has at most 32,000 bytes."""
CLEARED = {"event": "clear", "wait": False}
FORGOTTEN = {"event": "error", "name": "Error", "value": "The text of this error was dropped to make room for later errors.", "traceback": []}
EVENTS = 0
"""Kind of an entry in ``OutputInterleaving.runs`` that covers events. The kind of an entry that covers output is its channel (1 or 2)."""


class OutputInterleaving:
    """The order in which a cell wrote output and sent events.

    Each entry of ``runs`` covers consecutive bytes of one channel, or consecutive events.

    Attributes:
        first: Number of entries that were dropped from ``runs``.
        runs: Kind and end of each entry, oldest first. The kind is a channel (1 or 2) or ``EVENTS``. The end is the byte offset in the channel
            after the bytes that the entry covers, or the number of events of the cell up to the last event that the entry covers.
    """

    __slots__ = ("first", "runs")

    def __init__(self) -> None:
        self.first = 0
        self.runs: deque[tuple[int, int]] = deque()

    def note(self, kind: int, end: int) -> None:
        """Record that the cell has written output or sent an event. If the newest entry of ``runs`` has the same kind, extend it.

        Args:
            kind: Channel of the output (1 or 2), or ``EVENTS``.
            end: Byte offset in the channel after the output, or number of events of the cell, the new event included.
        """
        if self.runs and self.runs[-1][0] == kind:
            self.runs.pop()
        elif len(self.runs) == MAX_RUNS:
            self.runs.popleft()
            self.first += 1
        self.runs.append((kind, end))


class CellOutputBuffer(Buffer):
    """Buffer for the output of one channel of a cell. Each write is also recorded in the cell's :class:`OutputInterleaving`."""

    __slots__ = ("_channel", "_order")

    def __init__(self, channel: int, order: OutputInterleaving) -> None:
        super().__init__()
        self._channel = channel
        self._order = order

    def append(self, data: bytes) -> None:
        """Append bytes that the cell has written to this channel, and record that they follow all earlier output and events of the cell."""
        super().append(data)
        self._order.note(self._channel, self.end)


class CellOutputs(OutputLog):
    """Standard output and standard error of a cell.

    Attributes:
        order: Order in which the cell wrote output and sent events.
        ignores_backpressure: True if the guest reads output from the kernel even while the buffer is full because a follower does not read.
    """

    __slots__ = ("ignores_backpressure", "order")

    def __init__(self) -> None:
        super().__init__((STDOUT, STDERR))
        self.order = OutputInterleaving()
        self.buffers = {channel: CellOutputBuffer(channel, self.order) for channel in self.buffers}
        self.ignores_backpressure = False

    def may_read(self, channel: int) -> bool:
        """Return True if the guest may read more output of ``channel`` (1 or 2) from the kernel now."""
        return self.ignores_backpressure or super().may_read(channel)


class Cell:
    """One execution: its output, its events and its result.

    Args:
        loop: The guest's loop.
        id_: Id of the call that submitted the cell.
        args: Arguments of ``kernel.execute``.

    Attributes:
        kernel: Id of the context that the cell belongs to.
        interrupt_cause: ``interrupt`` or ``timeout`` if the cell was interrupted; empty if the cell was not interrupted.
        result: Status, execution count and duration of the ended cell; None until the cell has ended.
        on_sent: Called while the cell runs, whenever the buffers may have room again, so that the guest can read more from the kernel.
        on_late: Called when a cell that has ended may have received more output from its threads or child processes.
        request_bytes: Size in bytes of the code and the environment, for the limits on queued cells; 0 after the end of the cell.
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
        self._sizes: dict[int, int] = {}  # index of a result in self.events -> its size in bytes; only results that were not cleared or replaced
        self._updates: dict[str, int] = {}  # display id -> index in self.events of the last update of this display
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
        """Estimated memory in bytes that the guest needs for this cell: output, events and request."""
        return self.outputs.kept_bytes + self._results_bytes + self._errors_bytes + EVENT_BYTES * len(self.events) + self.request_bytes

    def begin(self) -> None:
        """Start to measure the duration of the cell. Called when the cell is sent to the kernel."""
        self._began_s = self._loop.time()

    def add_event(self, event: dict[str, Any], size: int) -> None:
        """Keep an event of the kernel, if the limits of the cell allow it, and send the event to the followers.

        Args:
            event: Event as :func:`~sandlot.guest.kernels.kernel_events.parse_event` returns it, without the field ``cell``.
            size: Encoded size in bytes of the message that contained the event.
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
        """Apply the cell's limits to a new result: ``MAX_RESULTS_BYTES`` and the number of events. Return the event to keep.

        Returns:
            The result, if the limits allow it. A note for the first result that exceeds a limit; None for every later result that exceeds a limit.
        """
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
        """Drop all results that the cell has displayed so far. A follower that attaches later receives ``clear`` events instead of the results."""
        for number in self._sizes:
            self.events[number] = CLEARED
        self._sizes.clear()
        self._updates.clear()
        self._results_bytes = 0

    def _add_error(self, event: dict[str, Any], size: int) -> dict[str, Any] | None:
        """Return the event to keep for an error, or None if the cell already has ``MAX_EVENTS`` events.

        An error that is larger than ``MAX_ERRORS_BYTES`` is shortened. If all errors of the cell together would exceed this limit, the texts of
        all earlier errors are dropped.
        """
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
        """Add an error that the guest reports for this cell, such as the death of the kernel.

        Args:
            name: Class name of the error, such as ``KernelDied``.
            text: Message of the error.
        """
        self.add_event({"event": "error", "name": name, "value": text, "traceback": []}, 0)

    def finish(self, status: str, count: int) -> None:
        """End the cell and send its result to the followers.

        Args:
            status: ``ok``, ``error``, ``timeout``, ``aborted``, ``killed``, ``died`` or ``oom``.
            count: Execution count that the result reports; 0 if the cell did not run.
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
        """Send a call the output and events of the cell and, when the cell has ended, its result.

        Args:
            call: ``kernel.execute`` or ``kernel.attach`` call that becomes a follower.
            events_from: Number of events to skip, because the client has received them already.
            stdout_from: Byte offset in standard output to start at; None for the oldest byte that is kept.
            stderr_from: Byte offset in standard error to start at; None for the oldest byte that is kept.
            wait: True to keep the call open until the cell ends; False to end the call after sending the output and events that exist now.

        Raises:
            RpcError: ``stdout_from`` or ``stderr_from`` is negative or beyond the end of the output.
        """
        wanted = {STDOUT: stdout_from, STDERR: stderr_from}
        ends = {channel: buffer.end for channel, buffer in self.outputs.buffers.items()}
        if not self.outputs.has(wanted):
            out, err = ends[STDOUT], ends[STDERR]
            raise RpcError(
                "invalid_request",
                f"`stdout_from` is {stdout_from} and `stderr_from` is {stderr_from}; the cell has {out} bytes of stdout and {err} of stderr.",
                f"Pass `stdout_from` from 0 to {out} and `stderr_from` from 0 to {err}.",
            )
        follower = CellFollower(call, self.outputs.attach(call, wanted), max(0, events_from), None if wait else (ends, len(self.events)))
        self.followers.append(follower)
        call.on_writable = self.pump
        call.on_gone = lambda: self._on_lost(follower)
        self.pump()

    def pump(self) -> None:
        """Send each follower the output and events that its stream accepts now. Send the result to followers that have received everything."""
        is_short = self._began_s is not None and self.result is None and self._loop.time() - self._began_s < SHORT_CELL_S
        for follower in list(self.followers):
            follower.call.is_patient = is_short
            has_all = follower.pump(self)
            if (has_all and self.result is not None) or follower.has_enough:
                self._remove(follower)
                follower.call.on_gone = None
                # A follower with ``wait=False`` that has not received all output and events gets the status "running", even if the cell has ended.
                follower.call.result(**((has_all and self.result) or self._state("running")))
        self._resume_reading()
        if self.result is not None and self.on_late is not None:
            self.on_late()

    def _on_lost(self, follower: CellFollower) -> None:
        self._remove(follower)
        # A restarted service may attach to the cell again. For HOLD_S seconds, a full buffer therefore blocks the kernel, and no output is dropped.
        self.outputs.hold(self._loop, HOLD_S, self._resume_reading)
        self._resume_reading()

    def _resume_reading(self) -> None:
        if self.on_sent is not None:
            self.on_sent()

    def _remove(self, follower: CellFollower) -> None:
        if follower in self.followers:
            self.followers.remove(follower)
            self.outputs.detach(follower.reader)


class CellFollower:
    """A call that receives the output, the events and the result of a cell.

    Args:
        call: Call that receives the output.
        reader: Reader that keeps, for each channel, the offset of the next byte to send.
        next_event: Index of the next event to send, counted from 0.
        until: Byte offset in each channel, and number of events, after which the call ends. None if the call ends when the cell ends.
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
        """True if the call was attached with ``wait=False`` and has received all output and events that existed at that time."""
        if self._until is None:
            return False
        ends, events = self._until
        return self._next_event >= events and all(self.reader.at[channel] >= end for channel, end in ends.items())

    def pump(self, cell: Cell) -> bool:
        """Send output and events of ``cell`` in their original order, as far as the call's stream accepts them.

        Returns:
            True if the call has received all output and events of the cell so far.
        """
        order = cell.outputs.order
        self._run = max(self._run, order.first)
        last = order.first + len(order.runs) - 1
        while self._run <= last:
            kind, end = order.runs[self._run - order.first]
            if not (self._send_events(cell, end) if kind == EVENTS else self.reader.send(cell.outputs.buffers[kind], kind, end)):
                return False
            if self._run == last:
                break  # the cell may still extend the newest entry
            self._run += 1
        # Also send output and events whose entries were dropped, because only the newest MAX_RUNS entries are kept. Their order is no longer known.
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


def kernel_death_message(status: str, language: str, *, began: bool, late: bool, timeout_s: float | None = None) -> str:
    """Return the error message for a cell whose kernel has ended.

    Args:
        status: Status of the cell: ``killed``, ``died`` or ``oom``.
        language: Language of the cell.
        began: True if the cell was sent to the kernel; False if the kernel ended during its start.
        late: If the cell was sent to the kernel, True means that the cell was interrupted before the kernel ended. Otherwise, True means that
            the kernel was killed because it did not start in time.
        timeout_s: Timeout of the cell in seconds, if the timeout interrupted the cell; otherwise None.
    """
    if timeout_s is not None and status in {"killed", "died"}:
        end = "The kernel did not react to the interrupt and was killed" if status == "killed" else "The interrupt ended the kernel"
        return f"The cell exceeded its timeout of {timeout_s:g} s. {end}, so its variables are lost."
    if status == "oom":
        return "The kernel was killed because the sandbox ran out of memory. Its variables are lost."
    if status == "killed":
        return (
            "The kernel was killed because it did not react to an interrupt. Its variables are lost."
            if late
            else "The kernel was killed because its context was restarted."
        )
    if not began:
        when = "in time" if late else "at all"
        program = {"javascript": "node", "typescript": "node", "r": "R"}.get(language, language)
        return f"The {program} of the image did not start {when}, so the code was not run; see stderr. Commands and files still work."
    return "The kernel died. Its variables are lost."
