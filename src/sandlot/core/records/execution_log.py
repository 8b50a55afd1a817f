"""One run as the log is told of it: what it is called, what it writes, how it ends.

Law: What a line is told takes no time of its run: it is kept in memory within bounds, and who follows the log takes it from there.

The log of runs: every cell and every process that a client began, written behind it.

Laws:
- No run waits for the log, or fails because of it: beginning and ending a line is work in memory, and what the store does not take is lost with
  a warning and a count.
- A line is in the store a second after it changed, at the latest, while the store answers; a stop of the service writes what is left.
- What waits here is bounded, in lines and in bytes, and one owner takes at most a quarter of it; of what a run wrote, head and tail are kept,
  and the number of bytes between them.
- A run that outlives the service keeps its line: the next service finishes it from what the guest knows, or marks it as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import structlog

from sandlot.core.node.buffer_budget import PART
from sandlot.core.ports import Clock
from sandlot.core.records.log_followers import LogFollowers
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.write_behind import WriteBehind
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.link.types import CellError, Lost, Output
from sandlot.model.access import OwnerId, Principal
from sandlot.model.capture import Capture, shortened, shortened_argv
from sandlot.model.errors import ErrorCode, HostError, NotFoundError, UnavailableError
from sandlot.model.ids import PROCESS_ID, NodeId, ProcessId, SandboxId, node_of
from sandlot.model.records import FOREGROUND, ExecutionId, ExecutionRecord
from sandlot.model.specs import KIB, MIB
from sandlot.model.storage import ExecutionTable, Position
from sandlot.protocol.schema import STDERR, STDOUT

__all__ = ["KILLED", "LOST", "NATIVE", "RUNNING", "ExecutionDescription", "ExecutionLog", "LogEntry"]


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
        self._close()
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
            self.execution_log.left(self._sandbox, self._record)
            self._close()

    def _close(self) -> None:
        self._over = True
        self.execution_log.log_followers.ended(self)
        self.execution_log.hold(self._record.owner, -sum(capture.held_bytes for capture in self._captures.values()))


BATCH = 200
MAX_LINES = 20_000
MAX_BYTES = 64 * MIB
"""Of everything that waits here, lines of runs that go on included."""
RUNNING, LOST = "running", "lost"
MAX_UNFINISHED = 10_000
_log = structlog.get_logger("sandlot.core")


class ExecutionLog:
    """The log of runs of one service.

    Args:
        table: Where it is kept.
        node: Whose runs.
        clock: The time.
        metrics: Where runs and failures are counted.
    """

    def __init__(self, table: ExecutionTable, node: NodeId, clock: Clock, metrics: Metrics) -> None:
        self._table = table
        self._node = node
        self._clock = clock
        self._metrics = metrics
        self._pending: dict[ExecutionId, ExecutionRecord] = {}
        self._files: dict[ExecutionId, int] = {}
        self._writer = WriteBehind(self._write_pending)
        self._lost = 0
        self._held: Counter[OwnerId] = Counter()
        self.held_bytes = 0
        """What waits here, and what runs that go on have written."""
        self.log_followers = LogFollowers()
        """Who follows what is written (:mod:`sandlot.core.records.log_stream`)."""
        self._left: SandboxLocal[dict[ExecutionId, ExecutionRecord]] = SandboxLocal(lambda _: {})

    # -- what core/runs says ----------------------------------------------------------------------------------------

    def cell(self, sandbox: Sandbox, id_: ProcessId, language: str, code: str, description: ExecutionDescription = NATIVE) -> LogEntry:
        """A cell was begun."""
        return self._begin(sandbox, id_, replace(description, language=language, code=code), ())

    def command(self, sandbox: Sandbox, id_: ProcessId, argv: Sequence[str], description: ExecutionDescription = NATIVE) -> LogEntry:
        """A process was begun."""
        return self._begin(sandbox, id_, description, argv)

    def tell_files(self, id_: ProcessId, files: int) -> None:
        """How many files a run made or changed, where that is known after its end only."""
        if len(self._files) < MAX_LINES:
            self._files[ExecutionId(id_)] = files
            self._writer.put()

    def _begin(self, sandbox: Sandbox, id_: ProcessId, description: ExecutionDescription, argv: Sequence[str]) -> LogEntry:
        record = ExecutionRecord(
            id=ExecutionId(id_),
            owner=sandbox.owner,
            sandbox=sandbox.id,
            kind="command" if description.language is None else "code",
            created_at=self._clock.now(),
            status=RUNNING,
            language=description.language,
            code=None if description.code is None else shortened(description.code),
            argv=None if description.language is not None else shortened_argv(argv),
            origin=description.origin,
            mode=description.mode,
        )
        self._metrics.execution_started(record.kind)
        self._put(record)
        return LogEntry(self, record, sandbox, self._clock.monotonic_s())

    # -- what lines say ---------------------------------------------------------------------------------------------

    def has(self, owner: OwnerId, size: int) -> bool:
        """Whether there is room for so many bytes more of an owner's."""
        return self.held_bytes + size <= MAX_BYTES and self._held[owner] + size <= MAX_BYTES // PART

    def hold(self, owner: OwnerId, more: int) -> None:
        """So many bytes more of an owner's are held here."""
        self.held_bytes += more
        self._held[owner] += more
        if not self._held[owner]:
            del self._held[owner]

    def monotonic_s(self) -> float:
        """The clock's."""
        return self._clock.monotonic_s()

    def ended(self, record: ExecutionRecord) -> None:
        """A run has ended."""
        self._metrics.execution_ended(record.kind, record.status)
        self._put(record)

    def _put(self, record: ExecutionRecord) -> None:
        self._forget(record.id)
        self._pending[record.id] = record
        self.hold(record.owner, _size(record))
        if not self.has(record.owner, 0):
            self._give_up([record.id])
        self._writer.put()

    def _forget(self, id_: ExecutionId) -> None:
        if (record := self._pending.pop(id_, None)) is not None:
            self.hold(record.owner, -_size(record))

    async def get(self, principal: Principal, id_: str) -> ExecutionRecord:
        """One run.

        Raises:
            NotFoundError: ``execution_not_found``.
        """
        await self._caught_up()
        record = await self._table.get(ExecutionId(id_)) if PROCESS_ID.fullmatch(id_) else None
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no execution {id_[:64]!r}.",
                code=ErrorCode.EXECUTION_NOT_FOUND,
                hint="It may be older than what is kept: list the executions.",
                fields={"execution": id_[:64]},
            )
        return record

    async def page(
        self, principal: Principal, *, sandbox: SandboxId | None = None, before: Position | None = None, limit: int = 50
    ) -> Sequence[ExecutionRecord]:
        """Runs, newest first.

        Args:
            principal: For whom.
            sandbox: Those in that one only.
            before: The last one of the page before.
            limit: At most so many.
        """
        await self._caught_up()
        return await self._table.page(owner=None if principal.operator else principal.owner, sandbox=sandbox, before=before, limit=limit)

    async def _caught_up(self) -> None:
        """What was said so far is in the store, if that takes it: whoever reads finds the run that it has just made."""
        if self._pending or self._files or self._writer.is_writing:
            await self.flush()

    async def run(self) -> None:
        """Write whenever something is pending, until the task is cancelled."""
        await self._writer.run()

    async def aclose(self) -> None:
        """Write what is left; what the store does not take is lost."""
        await self._writer.close()
        self._give_up(list(self._pending))
        self._warn()

    async def flush(self) -> bool:
        """Write what is pending now, and return whether the store took all of it."""
        return await self._writer.flush()

    async def _write_pending(self) -> bool:
        taken = await self._write_files()
        while taken and self._pending:
            batch = list(islice(self._pending.values(), BATCH))
            taken = await self._write(batch)
        self._warn()
        return taken

    async def _write(self, batch: Sequence[ExecutionRecord]) -> bool:
        try:
            await self._table.save(batch)
        except (HostError, UnavailableError) as error:
            self._failed(error)  # a full disk may be emptied: they stay, as long as there is room
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is: one that it does not take must not keep others from being written
            if len(batch) > 1:
                for record in batch:
                    if not await self._write([record]):
                        return False
                return True
            self._failed(error, 1)
        for record in batch:
            if self._pending.get(record.id) is record:
                self._forget(record.id)
        return True

    async def _write_files(self) -> bool:
        told, self._files = self._files, {}
        for id_, files in told.items():
            try:
                record = self._pending.get(id_) or await self._table.get(id_)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(error)
                self._files = told | self._files
                return False
            if record is not None:
                self._put(replace(self._pending.get(id_, record), files=files))
        return True

    def _failed(self, error: Exception, lost: int = 0) -> None:
        self._lost += lost
        self._metrics.store_failed("executions", lost)
        _log.warning("executions.not_written", error=str(error), waiting=len(self._pending))

    def _give_up(self, ids: Sequence[ExecutionId]) -> None:
        for id_ in ids:
            self._forget(id_)
        self._lost += len(ids)
        if ids:
            self._metrics.store_failed("executions", len(ids))

    def _warn(self) -> None:
        if self._lost:
            _log.warning("executions.lost", lines=self._lost, hint="The log of runs has gaps; nothing else has. See to the store's disk.")
            self._lost = 0

    # -- runs of an earlier service ---------------------------------------------------------------------------------

    async def unfinished(self) -> Sequence[ExecutionRecord]:
        """Runs that an earlier service of this node has left without an end."""
        return [record for record in await self._table.running(limit=MAX_UNFINISHED) if node_of(record.sandbox) == self._node]

    def go_on(self, sandbox: Sandbox, record: ExecutionRecord) -> LogEntry:
        """The line of a run of an earlier service. Say again what it wrote, from the beginning."""
        return LogEntry(self, record, sandbox, self._clock.monotonic_s() - (self._clock.now() - record.created_at).total_seconds())

    def left(self, sandbox: Sandbox, record: ExecutionRecord) -> None:
        """Keep the record of an execution whose entry was left without an end, until the sandbox wakes."""
        if not sandbox.is_removed:
            self._left.of(sandbox)[record.id] = record

    def take_left(self, sandbox: Sandbox) -> Sequence[ExecutionRecord]:
        """Return the records that were left since the last call, and forget them."""
        left = self._left.get(sandbox) or {}
        records = list(left.values())
        left.clear()
        return records

    def lose(self, record: ExecutionRecord) -> None:
        """Nobody will ever know how that run ended."""
        self.ended(replace(record, status=LOST))


def _size(record: ExecutionRecord) -> int:
    """About how much memory a record takes; at least its part of the lines, so that one bound is both."""
    texts = (record.code, record.stdout, record.stderr, record.error, *(record.argv or ()))
    return max(MAX_BYTES // MAX_LINES, 500 + sum(50 + len(text) for text in texts if text))
