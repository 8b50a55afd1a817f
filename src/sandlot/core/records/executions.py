"""The log of runs: every cell and every process that a client began, written behind it.

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
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from sandlot.core.node.budget import PART
from sandlot.core.ports import Clock
from sandlot.core.records.logs.lines import KILLED, NATIVE, ExecutionDescription, LogEntry
from sandlot.core.records.logs.tails import LogFollowers
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.write_behind import WriteBehind
from sandlot.model.access import OwnerId, Principal
from sandlot.model.capture import shortened, shortened_argv
from sandlot.model.errors import ErrorCode, HostError, NotFoundError, UnavailableError
from sandlot.model.ids import PROCESS_ID, NodeId, ProcessId, SandboxId, node_of
from sandlot.model.records import ExecutionId, ExecutionRecord
from sandlot.model.specs import MIB
from sandlot.model.storage import ExecutionTable, Position

if TYPE_CHECKING:
    from sandlot.core.sandbox import Sandbox

__all__ = ["KILLED", "LOST", "NATIVE", "RUNNING", "ExecutionDescription", "ExecutionLog", "LogEntry"]

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
        """Who follows what is written (:mod:`sandlot.core.records.logs.reading`)."""
        self.waits: Counter[SandboxId] = Counter()
        """Calls that wait for the end of a process, by sandbox (:mod:`sandlot.core.records.following`)."""

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

    def lose(self, record: ExecutionRecord) -> None:
        """Nobody will ever know how that run ended."""
        self.ended(replace(record, status=LOST))


def _size(record: ExecutionRecord) -> int:
    """About how much memory a record takes; at least its part of the lines, so that one bound is both."""
    texts = (record.code, record.stdout, record.stderr, record.error, *(record.argv or ()))
    return max(MAX_BYTES // MAX_LINES, 500 + sum(50 + len(text) for text in texts if text))
