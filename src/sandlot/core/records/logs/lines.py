"""One run as the log is told of it: what it is called, what it writes, how it ends.

Law: What a line is told takes no time of its run: it is kept in memory within bounds, and who follows the log takes it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sandlot.link.types import CellError, Lost, Output
from sandlot.model.capture import Capture, shortened
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.records import FOREGROUND, ExecutionRecord
from sandlot.model.specs import KIB
from sandlot.protocol.schema import STDERR, STDOUT

if TYPE_CHECKING:
    from sandlot.core.records.executions import ExecutionLog
    from sandlot.core.sandbox import Sandbox

OUTPUT_BYTES = 64 * KIB
"""Kept of each stream: half of its beginning, half of its end."""
KILLED = "killed"


@dataclass(frozen=True, slots=True)
class ExecutionDescription:
    """What the log says of a run beyond what it is.

    Args:
        origin: Which API it came by: ``native`` or the name of a door.
        language: Of code that is run by a command; None logs the command as such.
        code: That code.
        argv: What a command is called in place of what was run.
        mode: As in :class:`ExecutionRecord`.
    """

    origin: str = "native"
    language: str | None = None
    code: str | None = None
    argv: Sequence[str] | None = None
    mode: str = FOREGROUND


NATIVE = ExecutionDescription()


class LogEntry:
    """One run that goes on. Add what it writes, and end it; or leave it to the next service.

    Args:
        execution_log: Where it is written.
        record: What is known of it.
        sandbox: Where it runs.
    """

    __slots__ = ("__weakref__", "_began_monotonic_s", "_captures", "_error", "_over", "_record", "_sandbox", "execution_log")

    def __init__(self, execution_log: ExecutionLog, record: ExecutionRecord, sandbox: Sandbox, began_monotonic_s: float) -> None:
        self.execution_log = execution_log
        self._record = record
        self._sandbox = sandbox
        self._began_monotonic_s = began_monotonic_s
        self._captures: dict[int, Capture] = {}
        self._error: str | None = None
        self._over = False
        execution_log.log_followers.begun(self)

    @property
    def id(self) -> ProcessId:
        """Of the process or cell."""
        return ProcessId(self._record.id)

    @property
    def sandbox(self) -> SandboxId:
        """Where it runs."""
        return self._sandbox.id

    def so_far(self, channel: int) -> Capture:
        """What is kept of a channel by now."""
        return self._captures.get(channel) or Capture()

    def add(self, event: Output | Lost) -> None:
        """The next piece that it wrote."""
        if self.execution_log.log_followers.followed:
            self.execution_log.log_followers.tell(self, event)
        capture = self._captures.get(event.channel)
        if capture is None:
            capture = self._captures[event.channel] = Capture(OUTPUT_BYTES // 2, OUTPUT_BYTES // 2)
        before = capture.held_bytes
        if isinstance(event, Lost):
            capture.skip(event.bytes)
        elif self.execution_log.has(self._record.owner, min(len(event.data), capture.room_bytes)):
            capture.add(event.data)
        else:
            capture.skip(len(event.data))
        self.execution_log.hold(self._record.owner, capture.held_bytes - before)

    def raised(self, error: CellError) -> None:
        """The exception that ended a cell."""
        self._error = shortened(f"{error.name}: {error.value}" if error.value else error.name)

    def again(self) -> None:
        """What it wrote is said again, from the beginning."""
        self.execution_log.hold(self._record.owner, -sum(capture.held_bytes for capture in self._captures.values()))
        self._captures.clear()

    @property
    def over(self) -> bool:
        """Whether nothing more is said of it."""
        return self._over

    def end(self, status: str, *, exit_code: int | None = None, duration_s: float | None = None, files: int | None = None) -> None:
        """It has ended. Idempotent.

        Args:
            status: As in :class:`ExecutionRecord`.
            exit_code: Of a command.
            duration_s: As the guest measured it; None is as it was seen from here.
            files: How many files it made or changed, where that was asked for.
        """
        if self._over:
            return
        out, err = self._captures.get(STDOUT, Capture()), self._captures.get(STDERR, Capture())
        record = replace(
            self._record,
            status=status,
            exit_code=exit_code,
            stdout=out.text(),
            stderr=err.text(),
            stdout_omitted_bytes=out.omitted,
            stderr_omitted_bytes=err.omitted,
            duration_s=max(0.0, self.execution_log.monotonic_s() - self._began_monotonic_s) if duration_s is None else duration_s,
            error=self._error,
            files=files,
        )
        self.leave()
        self.execution_log.ended(record)

    def cut(self) -> None:
        """Nobody hears of it any more: it was killed or its sandbox ended; or the service leaves or the sandbox sleeps, and it goes on later."""
        if (self._sandbox.detaching.is_set() or self._sandbox.is_hibernated) and not self._sandbox.end_requested.is_set():
            self.leave()
        else:
            self.end(KILLED)

    def leave(self) -> None:
        """Nothing more is said of it here. Idempotent."""
        if not self._over:
            self._over = True
            self._sandbox.left[self._record.id] = self._record
            self.execution_log.log_followers.ended(self)
            self.execution_log.hold(self._record.owner, -sum(capture.held_bytes for capture in self._captures.values()))
