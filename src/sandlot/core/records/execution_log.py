"""The execution log: an entry for each cell and each process that a client started, written behind the execution.

Invariants:
- No execution waits for the log or fails because of it. Starting, filling and ending an entry is work in memory. An entry that the store does
  not take is lost, with a warning and a metric.
- While the store responds, an entry is in the store at most a second after it changed. A stopping service writes the remaining entries.
- The entries in memory are limited in number and bytes, and one owner has at most a quarter of them. Of each output stream the beginning, the
  end and the number of bytes between them are kept.
- The entry of an execution that outlives the service stays open. The next service finishes the entry from the data of the guest, or marks
  the entry as lost.
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
from sandlot.model.storage import ExecutionRepository, Position
from sandlot.protocol.schema import STDERR, STDOUT

__all__ = ["KILLED", "LOST", "NATIVE", "RUNNING", "ExecutionDescription", "ExecutionLog", "LogEntry"]


OUTPUT_BYTES = 64 * KIB
"""Bytes of each output stream that are kept: half from the beginning, half from the end."""
KILLED = "killed"


@dataclass(frozen=True, slots=True)
class ExecutionDescription:
    """Presentation of an execution in the log.

    Args:
        origin: API of the request: ``native`` or the name of a compatibility API.
        language: Language of code that a command runs; None logs the command itself.
        code: Code that the command runs.
        argv: Command line to log instead of the real one.
        mode: See :class:`ExecutionRecord`.
    """

    origin: str = "native"
    language: str | None = None
    code: str | None = None
    argv: Sequence[str] | None = None
    mode: str = FOREGROUND


NATIVE = ExecutionDescription()


class LogEntry:
    """Entry of one running execution. Add its output, then end the entry or leave it to the next service.

    Args:
        execution_log: Log of the entry.
        record: Record of the execution, without output and end.
        sandbox: Sandbox of the execution.
        started_monotonic_s: Time at which the execution started.
    """

    __slots__ = ("__weakref__", "_captures", "_error", "_over", "_record", "_sandbox", "_started_monotonic_s", "execution_log")

    def __init__(self, execution_log: ExecutionLog, record: ExecutionRecord, sandbox: Sandbox, started_monotonic_s: float) -> None:
        self.execution_log = execution_log
        self._record = record
        self._sandbox = sandbox
        self._started_monotonic_s = started_monotonic_s
        self._captures: dict[int, Capture] = {}
        self._error: str | None = None
        self._over = False
        execution_log.log_followers.started(self)

    @property
    def id(self) -> ProcessId:
        """Id of the process or cell."""
        return ProcessId(self._record.id)

    @property
    def sandbox(self) -> SandboxId:
        """Id of the sandbox."""
        return self._sandbox.id

    def so_far(self, channel: int) -> Capture:
        """Return the kept output of a channel up to now."""
        return self._captures.get(channel) or Capture()

    def add(self, event: Output | Lost) -> None:
        """Add output, or a gap in it."""
        if self.execution_log.log_followers.followed:
            self.execution_log.log_followers.wrote(self, event)
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
        """Record the exception that ended a cell."""
        self._error = shortened(f"{error.name}: {error.value}" if error.value else error.name)

    def again(self) -> None:
        """Drop the output so far, because the caller adds all output again from the beginning."""
        self.execution_log.hold(self._record.owner, -sum(capture.held_bytes for capture in self._captures.values()))
        self._captures.clear()

    @property
    def over(self) -> bool:
        """True after the entry ended or was left to the next service."""
        return self._over

    def end(self, status: str, *, exit_code: int | None = None, duration_s: float | None = None, files: int | None = None) -> None:
        """Record the end of the execution. Idempotent.

        Args:
            status: See :class:`ExecutionRecord`.
            exit_code: Exit code of a command.
            duration_s: Duration that the guest measured; None measures from the start of the entry to now.
            files: Number of created and changed files, if the client requested the changes.
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
            duration_s=max(0.0, self.execution_log.monotonic_s() - self._started_monotonic_s) if duration_s is None else duration_s,
            error=self._error,
            files=files,
        )
        self._close()
        self.execution_log.ended(record)

    def cut(self) -> None:
        """End the entry as killed, because nothing more will arrive. Leave it open if the execution continues after a restart or a wake."""
        if (self._sandbox.detaching.is_set() or self._sandbox.is_hibernated) and not self._sandbox.end_requested.is_set():
            self.leave()
        else:
            self.end(KILLED)

    def leave(self) -> None:
        """Stop following the execution without recording an end. Idempotent."""
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
"""Memory of all entries that wait for the store or are still running."""
RUNNING, LOST = "running", "lost"
MAX_UNFINISHED = 10_000
_log = structlog.get_logger("sandlot.core")


class ExecutionLog:
    """Execution log of one service.

    Args:
        table: Stored entries.
        node: This node.
        clock: Clock of the service.
        metrics: Counts executions and failed writes.
    """

    def __init__(self, table: ExecutionRepository, node: NodeId, clock: Clock, metrics: Metrics) -> None:
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
        """Memory of the entries that wait for the store, and of the output of running executions."""
        self.log_followers = LogFollowers()
        """Followers of the output (:mod:`sandlot.core.records.log_stream`)."""
        self._left: SandboxLocal[dict[ExecutionId, ExecutionRecord]] = SandboxLocal(lambda _: {})

    # Executions ------------------------------------------------------------------------------------------------------

    def cell(self, sandbox: Sandbox, id_: ProcessId, language: str, code: str, description: ExecutionDescription = NATIVE) -> LogEntry:
        """Start the entry of a cell."""
        return self._begin(sandbox, id_, replace(description, language=language, code=code), ())

    def command(self, sandbox: Sandbox, id_: ProcessId, argv: Sequence[str], description: ExecutionDescription = NATIVE) -> LogEntry:
        """Start the entry of a process."""
        return self._begin(sandbox, id_, description, argv)

    def tell_files(self, id_: ProcessId, files: int) -> None:
        """Add the number of created and changed files to an entry that has ended."""
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

    # Memory ----------------------------------------------------------------------------------------------------------

    def has(self, owner: OwnerId, size: int) -> bool:
        """Return whether an owner may have more bytes in memory."""
        return self.held_bytes + size <= MAX_BYTES and self._held[owner] + size <= MAX_BYTES // PART

    def hold(self, owner: OwnerId, more: int) -> None:
        """Count bytes of an owner that are in memory; a negative number frees them."""
        self.held_bytes += more
        self._held[owner] += more
        if not self._held[owner]:
            del self._held[owner]

    def monotonic_s(self) -> float:
        """Return the time of the service's clock."""
        return self._clock.monotonic_s()

    def ended(self, record: ExecutionRecord) -> None:
        """Count and write the record of an execution that ended."""
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
        """Return the entry of an execution.

        Raises:
            NotFoundError: ``execution_not_found``.
        """
        await self._caught_up()
        record = await self._table.get(ExecutionId(id_)) if PROCESS_ID.fullmatch(id_) else None
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no execution {id_[:64]!r}.",
                code=ErrorCode.EXECUTION_NOT_FOUND,
                hint="List the executions; this one may have been removed because of its age.",
                fields={"execution": id_[:64]},
            )
        return record

    async def page(
        self, principal: Principal, *, sandbox: SandboxId | None = None, before: Position | None = None, limit: int = 50
    ) -> Sequence[ExecutionRecord]:
        """Return entries, newest first.

        Args:
            principal: Reader of the log: sees its own executions, an operator all.
            sandbox: Return only executions of this sandbox.
            before: Position of the last entry of the previous page.
            limit: Largest number of entries.
        """
        await self._caught_up()
        return await self._table.page(owner=None if principal.operator else principal.owner, sandbox=sandbox, before=before, limit=limit)

    async def _caught_up(self) -> None:
        """Write what is pending, so that a client finds the execution that it has just made."""
        if self._pending or self._files or self._writer.is_writing:
            await self.flush()

    async def run(self) -> None:
        """Write whenever something is pending, until the task is cancelled."""
        await self._writer.run()

    async def aclose(self) -> None:
        """Write the pending entries. Entries that the store does not take are lost."""
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
            self._failed(error)  # the disk may get free space again: the entries stay as long as there is memory
            return False
        except Exception as error:  # noqa: BLE001 - one record that the store never takes must not block the others
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
        pending, self._files = self._files, {}
        for id_, files in pending.items():
            try:
                record = self._pending.get(id_) or await self._table.get(id_)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(error)
                self._files = pending | self._files
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
            _log.warning(
                "executions.lost", lines=self._lost, hint="The execution log has gaps; no execution was affected. Check the disk of the store."
            )
            self._lost = 0

    # Executions of an earlier service --------------------------------------------------------------------------------

    async def unfinished(self) -> Sequence[ExecutionRecord]:
        """Return the executions that an earlier service of this node left without an end."""
        return [record for record in await self._table.running(limit=MAX_UNFINISHED) if node_of(record.sandbox) == self._node]

    def go_on(self, sandbox: Sandbox, record: ExecutionRecord) -> LogEntry:
        """Open the entry of an execution of an earlier service. The caller adds all output again from the beginning."""
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
        """Record that the end of an execution is unknown for good."""
        self.ended(replace(record, status=LOST))


def _size(record: ExecutionRecord) -> int:
    """Return the approximate memory of a record. It is at least ``MAX_BYTES / MAX_LINES``, so one limit covers both bytes and number."""
    texts = (record.code, record.stdout, record.stderr, record.error, *(record.argv or ()))
    return max(MAX_BYTES // MAX_LINES, 500 + sum(50 + len(text) for text in texts if text))
