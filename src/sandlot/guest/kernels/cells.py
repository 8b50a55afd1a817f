"""Cells: what one execution printed, displayed and came to, and the calls that follow it."""

from __future__ import annotations

import time

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.outputs import Outputs
from sandlot.protocol.connection import MESSAGE_MAX_BYTES
from sandlot.protocol.schema import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandlot.guest.calls import Call
    from sandlot.guest.flow.outputs import Reader

EVENTS_BYTES = MESSAGE_MAX_BYTES - 65536
"""Results of one cell that are kept and sent; more are left out, and an error event says so."""


class Cell:
    """One execution: its output, its events, its outcome."""

    __slots__ = ("_events_bytes", "code", "env", "events", "id", "on_sent", "outputs", "readers", "result", "started_s", "timeout_s")

    def __init__(self, id_: str, args: dict[str, Any]) -> None:
        self.id = id_
        self.code = args["code"]
        self.env = args["env"]
        self.timeout_s = args["timeout_s"]
        self.outputs = Outputs((STDOUT, STDERR))
        self.events: list[dict[str, Any]] = []
        self._events_bytes = 0
        self.readers: list[Follower] = []
        self.result: dict[str, Any] | None = None
        self.started_s = time.monotonic()
        self.on_sent: Callable[[], object] | None = None
        """Called when there may be room for more output: whoever stopped reading it goes on."""

    def tell(self, event: dict[str, Any], size: int) -> None:
        """Keep an event and pass it on."""
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
        self.pump()

    def finish(self, status: str, count: int) -> None:
        """The cell is over."""
        self.result = {"status": status, "execution_count": count, "duration_s": time.monotonic() - self.started_s}
        self.pump()

    def attach(self, call: Call, events_from: int, stdout_from: int | None, stderr_from: int | None) -> None:
        """Let a call follow."""
        wanted = {STDOUT: stdout_from, STDERR: stderr_from}
        if not self.outputs.has(wanted):
            raise Refusal("invalid_request", "The offset is beyond what the cell has written.", "Use an offset that was given before.")
        reader = self.outputs.attach(call, wanted)
        follower = Follower(call, reader, max(0, events_from))
        self.readers.append(follower)
        call.on_writable = self.pump
        call.on_gone = lambda: self._gone(follower)
        self.pump()

    def pump(self) -> None:
        """Send on what can be sent, and answer where all is done."""
        for follower in list(self.readers):
            if follower.pump(self) and self.result is not None:
                self.leave(follower)
                follower.call.on_gone = None
                follower.call.result(**self.result)
        if self.on_sent is not None:
            self.on_sent()

    def _gone(self, follower: Follower) -> None:
        self.leave(follower)
        self.outputs.held = True

    def leave(self, follower: Follower) -> None:
        """A reader is gone."""
        if follower in self.readers:
            self.readers.remove(follower)
            self.outputs.detach(follower.reader)


class Follower:
    """A call that follows a cell."""

    __slots__ = ("call", "next_event", "reader")

    def __init__(self, call: Call, reader: Reader, next_event: int) -> None:
        self.call = call
        self.reader = reader
        self.next_event = next_event

    def pump(self, cell: Cell) -> bool:
        """Send what the stream takes; whether everything that is there has been sent."""
        done = self.reader.pump(cell.outputs.buffers)
        while self.next_event < len(cell.events) and self.call.room() > 0:
            event = cell.events[self.next_event]
            self.call.event(event["event"], **{key: item for key, item in event.items() if key != "event"})
            self.next_event += 1
        return done and self.next_event >= len(cell.events)


def epitaph(status: str, *, began: bool, late: bool) -> str:
    """What became of a kernel that ended in the middle of a cell. Pure.

    Args:
        status: The cell's: killed or died.
        began: Whether the kernel ever came as far as saying something.
        late: Whether the cell's timeout had passed.
    """
    if status == "killed" and not late:
        return "The kernel was killed: it was started anew."
    if not began:
        when = "within the cell's timeout" if late else "at all"
        return f"The image's python did not start {when}, so nothing was run; see stderr. Commands and files work without it."
    if status == "killed":
        return "The kernel was killed: it did not stop at its timeout."
    return "The kernel died; its variables are gone."
