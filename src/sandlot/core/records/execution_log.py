"""Execution log: one entry for each cell and each process that a client started. The entries are written in the background.

Invariants:
- No execution waits for the log or fails because of the log. Starting, filling and ending an entry changes only memory. If an entry cannot be
  stored, it is lost; a warning is logged, and a metric counts the lost entries.
- While the store responds, an entry is in the store at most a second after it changed. A stopping service writes the remaining entries.
- The entries in the store stay within the quota of their owner and the limits of the node (:mod:`sandlot.core.records.retention`).
- The entries in memory are limited in number and bytes, and one owner can use at most a quarter of this memory. An entry keeps the
  beginning and the end of each output stream, and the number of bytes between them.
- The entry of an execution that outlives the service stays open. The next service finishes the entry with data from the guest, or marks
  the entry as lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Final
from weakref import WeakValueDictionary

import structlog

from sandlot.core.ports import Clock
from sandlot.core.records import cell_results
from sandlot.core.records.cell_results import ResultCapture
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.retention import Retention
from sandlot.core.records.write_behind import WriteBehind
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import HostError, LimitError, UnavailableError
from sandlot.model.executions import LOST, NATIVE, RUNNING, CellError, CellResults, CellStarted, Channel, ExecutionOptions, Output, OutputGap
from sandlot.model.ids import NodeId, ProcessId, SandboxId, node_of
from sandlot.model.output_capture import OutputCapture, shorten, shorten_argv
from sandlot.model.records import FOREGROUND, ExecutionId, ExecutionRecord
from sandlot.model.repositories import ExecutionRepository, Stored
from sandlot.model.specs import KIB, MIB

OUTPUT_BYTES: Final = 64 * KIB
"""Bytes of each output stream that are kept: half from the beginning, half from the end."""
MAX_ENTRIES: Final = 20_000
"""Maximum number of entries that wait for the store. Each entry counts as at least ``MAX_BYTES / MAX_ENTRIES`` bytes, so the limit ``MAX_BYTES``
also limits the number of entries."""
MAX_BYTES: Final = 64 * MIB
"""Maximum memory of the entries that wait for the store and of the output of running executions."""
MAX_UNFINISHED: Final = 10_000
"""Maximum number of unfinished entries of an earlier service that are continued or ended. Older entries stay unfinished."""
BATCH: Final = 200
"""Maximum number of entries in one write to the store."""
BATCH_BYTES: Final = 8 * MIB
"""Memory of the entries after which a write takes no further entry."""
NO_RESULTS: Final = CellResults()

OutputListener = Callable[[ProcessId, Output | OutputGap | None], None]
"""Function that gets the output of an execution, and None at its end. It must return at once."""

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class _Pending:
    """Record that waits for the store.

    Args:
        results: Results of a cell; empty if there are none, or if they are stored already.
        memory_bytes: Memory that was taken for the record and the results.
    """

    record: ExecutionRecord
    results: CellResults
    memory_bytes: int


class OpenLogEntry:
    """Log entry of one running execution. Add the output of the execution, then end the entry or leave it to the next service.

    Args:
        record: Record of the execution, without its output and its result.

    Attributes:
        captures: Channel -> kept part of the output that was added.
        results: Kept results of a cell.
        owner: Owner of the sandbox.
        is_over: True after the entry ended or was left to the next service.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_execution_count",
        "_execution_log",
        "_record",
        "_sandbox",
        "_started_monotonic_s",
        "captures",
        "id",
        "is_over",
        "owner",
        "results",
    )

    def __init__(self, execution_log: ExecutionLog, sandbox: Sandbox, record: ExecutionRecord, started_monotonic_s: float) -> None:
        self._execution_log = execution_log
        self._sandbox = sandbox
        self._record = record
        self._started_monotonic_s = started_monotonic_s
        self._error: str | None = None
        self._execution_count: int | None = None
        self.id = ProcessId(record.id)
        self.owner = record.owner
        self.captures: dict[int, OutputCapture] = {channel: OutputCapture(OUTPUT_BYTES // 2, OUTPUT_BYTES // 2) for channel in Channel}
        self.results = ResultCapture(execution_log.memory_of[record.owner])
        self.is_over = False
        execution_log.running[self.id] = self

    def add(self, event: object) -> None:
        """Add an event of the execution: output, a gap in the output, or the start, a result or the exception of a cell."""
        self.results.add(event)
        if isinstance(event, CellStarted):
            self._execution_count = event.count
        if isinstance(event, CellError):
            self._error = shorten(f"{event.name}: {event.value}" if event.value else event.name)
        if not isinstance(event, Output | OutputGap):
            return
        for listener in self._execution_log.listeners.get(self._sandbox.id, ()):
            listener(self.id, event)
        memory = self._execution_log.memory_of[self._record.owner]
        capture = self.captures[event.channel]
        if isinstance(event, Output) and memory.try_take(min(len(event.data), capture.room_bytes)):
            capture.add(event.data)
        else:
            held_bytes = capture.held_bytes
            capture.skip(event.bytes if isinstance(event, OutputGap) else len(event.data))
            memory.give(held_bytes - capture.held_bytes)

    def drop_output(self) -> None:
        """Drop the output that was added until now. The caller then adds all output again, from the beginning."""
        self._execution_log.memory_of[self._record.owner].give(sum(capture.held_bytes for capture in self.captures.values()))
        self.captures = {channel: OutputCapture(OUTPUT_BYTES // 2, OUTPUT_BYTES // 2) for channel in Channel}

    def end(self, status: str, *, exit_code: int | None = None, duration_s: float | None = None) -> None:
        """Record the end of the execution. Idempotent.

        Args:
            status: See :class:`ExecutionRecord`. If it is ``running``, the entry stays open, and the next service or the next
                wake of the sandbox ends the entry.
            exit_code: Exit code of a command.
            duration_s: Duration that the guest measured; None measures from the start of the entry to now.
        """
        if self.is_over:
            return
        self.is_over = True
        execution_log, record = self._execution_log, self._record
        execution_log.running.pop(self.id, None)
        for listener in execution_log.listeners.get(self._sandbox.id, ()):
            listener(self.id, None)
        execution_log.memory_of[record.owner].give(sum(capture.held_bytes for capture in self.captures.values()))
        self.results.close()
        if status == RUNNING:
            execution_log.keep_open(self._sandbox, record)
            return
        if duration_s is None:
            duration_s = max(0.0, execution_log.clock.monotonic_s() - self._started_monotonic_s)
        out, err = self.captures[Channel.STDOUT], self.captures[Channel.STDERR]
        execution_log.metrics.execution_ended(record.kind, status)
        execution_log.put(
            replace(
                record,
                status=status,
                exit_code=exit_code,
                stdout=out.text(),
                stderr=err.text(),
                stdout_omitted_bytes=out.omitted,
                stderr_omitted_bytes=err.omitted,
                duration_s=duration_s,
                error=self._error,
                execution_count=self._execution_count,
            ),
            self.results.results(),
        )


class ExecutionLog:
    """Execution log of one service.

    Attributes:
        running: Id -> entry of an execution that has not ended.
        listeners: Sandbox -> functions that get the output of the sandbox's executions.
        memory: Memory of the entries that wait for the store, and of the output of running executions.
        memory_of: Owner -> the owner's share of the memory.
        writer: Writes the entries to the store.
    """

    def __init__(self, table: ExecutionRepository, node: NodeId, clock: Clock, metrics: Metrics, retention: Retention) -> None:
        self._table = table
        self._retention = retention
        self._node = node
        self._pending: dict[ExecutionId, _Pending] = {}
        self._files: dict[tuple[ExecutionId, Principal], int] = {}
        self._lost = 0
        self._open: SandboxLocal[dict[ExecutionId, ExecutionRecord]] = SandboxLocal(lambda _: {})
        self.clock = clock
        self.metrics = metrics
        self.running: WeakValueDictionary[ProcessId, OpenLogEntry] = WeakValueDictionary()
        self.listeners: dict[SandboxId, set[OutputListener]] = {}
        self.memory = BufferBudget(MAX_BYTES)
        self.memory_of: defaultdict[OwnerId, BufferBudget] = defaultdict(self.memory.part)
        self.writer = WriteBehind(self._write_pending)

    # Executions ------------------------------------------------------------------------------------------------------

    def begin(
        self, sandbox: Sandbox, id_: ProcessId, options: ExecutionOptions = NATIVE, *, mode: str = FOREGROUND, argv: Sequence[str] = ()
    ) -> OpenLogEntry:
        """Start the entry of a cell or process.

        Args:
            sandbox: Sandbox of the execution.
            id_: Id of the cell or process.
            options: Description of the execution. An execution with a language is logged as code, any other as a command.
            mode: Mode of the execution, see :class:`ExecutionRecord`.
            argv: Command line of a process.
        """
        is_code = options.language is not None
        record = ExecutionRecord(
            id=ExecutionId(id_),
            owner=sandbox.owner,
            sandbox=sandbox.id,
            kind="code" if is_code else "command",
            created_at=self.clock.now(),
            status=RUNNING,
            language=options.language,
            code=None if options.code is None else shorten(options.code),
            argv=None if is_code else shorten_argv(options.argv or argv),
            origin=options.origin,
            mode=mode,
        )
        self.metrics.execution_started(record.kind)
        self.put(record)
        return OpenLogEntry(self, sandbox, record, self.clock.monotonic_s())

    def set_files(self, id_: ProcessId, files: int, principal: Principal = OPERATOR) -> None:
        """Add the number of created and changed files to the entry of an execution that has ended, if the principal may see the execution."""
        if len(self._files) < MAX_ENTRIES:
            self._files[ExecutionId(id_), principal] = files
            self.writer.changed.set()

    def lose(self, record: ExecutionRecord) -> None:
        """Record an execution as lost, because its end cannot be determined."""
        self.metrics.execution_ended(record.kind, LOST)
        self.put(replace(record, status=LOST))

    # Executions that continue after a restart of the service or a wake of the sandbox ----------------------------------

    async def unfinished(self) -> Sequence[ExecutionRecord]:
        """Return the unfinished executions of earlier services of this node."""
        return [record for record in await self._table.list_running(limit=MAX_UNFINISHED) if node_of(record.sandbox) == self._node]

    def reopen(self, sandbox: Sandbox, record: ExecutionRecord) -> OpenLogEntry:
        """Open the entry of an unfinished execution again. The caller adds all output from the beginning."""
        return OpenLogEntry(self, sandbox, record, self.clock.monotonic_s() - (self.clock.now() - record.created_at).total_seconds())

    def keep_open(self, sandbox: Sandbox, record: ExecutionRecord) -> None:
        """Keep the record of an unfinished execution in memory until its sandbox wakes."""
        if not sandbox.is_removed:
            self._open.of(sandbox)[record.id] = record

    def take_open(self, sandbox: Sandbox) -> Sequence[ExecutionRecord]:
        """Return the records that :meth:`keep_open` has kept for a sandbox, and forget these records."""
        kept = self._open.get(sandbox) or {}
        records = list(kept.values())
        kept.clear()
        return records

    # Writing ---------------------------------------------------------------------------------------------------------

    async def write_for_reader(self) -> None:
        """Write the pending entries, so that a client finds an execution that it has just started."""
        if self._pending or self._files or self.writer.is_writing:
            await self.writer.flush()

    async def aclose(self) -> None:
        """Write the pending entries. Entries that the store refuses are lost."""
        await self.writer.close()
        if self._pending:
            lost = len(self._pending)
            for id_ in list(self._pending):
                self._drop(id_)
            self._count_lost(lost)
        self._warn_of_lost()

    def put(self, record: ExecutionRecord, results: CellResults = NO_RESULTS) -> None:
        """Queue a record to be written, in place of a pending record of the same execution. If there is no memory for the record, it is lost.

        Args:
            record: Record to write.
            results: Results of a cell that has ended. If there is memory only for the record, they are counted as omitted.
        """
        self._drop(record.id)
        texts = (record.code, record.stdout, record.stderr, record.error, *(record.argv or ()))
        size = max(MAX_BYTES // MAX_ENTRIES, 500 + sum(50 + len(text) for text in texts if text))
        memory, results_bytes = self.memory_of[record.owner], cell_results.memory_bytes(results)
        if not memory.try_take(results_bytes):
            results, results_bytes = CellResults(omitted=results.omitted + len(results.results)), 0
        if memory.try_take(size):
            self._pending[record.id] = _Pending(record, results, size + results_bytes)
        else:
            memory.give(results_bytes)
            self._count_lost(1)
        self.writer.changed.set()

    def _drop(self, id_: ExecutionId) -> None:
        if (pending := self._pending.pop(id_, None)) is not None:
            self.memory_of[pending.record.owner].give(pending.memory_bytes)

    async def _write_pending(self) -> bool:
        taken = await self._write_files()
        while taken and self._pending:
            taken = await self._write(self._next_batch())
        self._warn_of_lost()
        busy = {entry.owner for entry in self.running.values()}  # their entries keep the budget
        for owner in [owner for owner, memory in self.memory_of.items() if not memory.taken_bytes and owner not in busy]:
            del self.memory_of[owner]
        return taken

    def _next_batch(self) -> list[_Pending]:
        sizes = accumulate((each.memory_bytes for each in islice(self._pending.values(), BATCH)), initial=0)
        return [each for each, before in zip(self._pending.values(), sizes, strict=False) if before < BATCH_BYTES][:BATCH]

    async def _write(self, batch: Sequence[_Pending]) -> bool:
        records, results = [], {}
        for each in batch:
            encoded = cell_results.encode(each.results)
            if encoded:
                results[each.record.id] = encoded
            records.append(replace(each.record, results_bytes=len(encoded)) if encoded else each.record)
        try:
            await self._table.save(records, results)
        except (HostError, LimitError, UnavailableError) as error:
            self._failed(error)  # the store may work again later, so the entries stay pending
            return False
        except Exception as error:  # noqa: BLE001 - one record that the store always refuses must not block the others
            if len(batch) > 1:
                for each in batch:
                    if not await self._write([each]):
                        return False
                return True
            self._failed(error, 1)
        for each in batch:
            if self._pending.get(each.record.id) is each:
                self._drop(each.record.id)
        await self._retention.add_executions(Stored(len(batch), sum(record.size_bytes for record in records)))
        return True

    async def _write_files(self) -> bool:
        pending, self._files = self._files, {}
        for (id_, principal), files in pending.items():
            try:
                record = await self._table.get(id_) if id_ not in self._pending else None
            except Exception as error:  # noqa: BLE001 - an entry that cannot be read must not end the writer
                self._failed(error)
                self._files = pending | self._files
                return False
            results = NO_RESULTS
            if id_ in self._pending:
                record, results = self._pending[id_].record, self._pending[id_].results
            if record is not None and principal.sees(record.owner):
                self.put(replace(record, files=files), results)
        return True

    def _failed(self, error: Exception, lost: int = 0) -> None:
        self._count_lost(lost)
        _log.warning("execution_log.not_written", error=str(error), waiting=len(self._pending))

    def _count_lost(self, lost: int) -> None:
        self._lost += lost
        self.metrics.store_failed("executions", lost)

    def _warn_of_lost(self) -> None:
        if self._lost:
            _log.warning("execution_log.entries_lost", entries=self._lost, detail="no execution was affected", hint="Check the disk of the store.")
            self._lost = 0
