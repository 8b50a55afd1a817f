"""History of a node: events, executions and their output.

Invariants:
- A principal sees its own history; an operator sees the history of all owners.
- The output comes from the execution log, which keeps the beginning and the end of each stream, even after the sandbox has ended. The output of a
  background process appears when the process has ended.
- Reading sends no request to a sandbox, does not wake the sandbox and does not count as activity.
- A follower of events reads pages from the store and remembers its own position. A slow follower therefore takes no memory and misses no event.
- A follower of output gets the existing output first and then the new output, each byte once. A follower that is too slow gets the number of lost
  bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from typing import Final

from sandlot.core.concurrency import GeneratorStream
from sandlot.core.records.cell_results import decode
from sandlot.core.records.events import EventFeed
from sandlot.core.records.execution_log import ExecutionLog
from sandlot.core.records.log_stream import LogFollower, Progress, output_of
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, NotFoundError, UnavailableError
from sandlot.model.executions import RUNNING, CellResults
from sandlot.model.history import MAX_LOG_EXECUTIONS, LogEnd, LogEntry, LogGap, LogOutput
from sandlot.model.ids import PROCESS_ID, ProcessId, SandboxId
from sandlot.model.records import EventRecord, ExecutionId, ExecutionRecord
from sandlot.model.repositories import ExecutionRepository, Position
from sandlot.model.specs import MIB
from sandlot.model.streams import Page, Stream

MAX_CHARS: Final = 1 * MIB
"""Maximum length of the output that one read returns."""
EVENTS_PAGE: Final = 100
"""Number of events that a follower reads from the store at once."""
EXECUTIONS_PAGE: Final = 50
"""Number of executions that a reader of output reads from the store at once."""
MAX_WINDOW: Final = 10_000
"""Maximum number of sequence numbers that :meth:`HistoryService.latest_events` searches in one read of the store."""
EVENTS_POLL_S: Final = 5.0
"""Seconds after which a follower reads the store even without a notification, because other processes may have written to the store."""
LOGS_POLL_S: Final = 1.0
"""Interval at which a follower of output checks whether the sandbox has ended, or the service is stopping."""


class HistoryService:
    """Reads the history. The results include executions whose records are not saved in the store yet."""

    def __init__(self, *, registry: SandboxRegistry, executions: ExecutionRepository, execution_log: ExecutionLog, events: EventFeed) -> None:
        self._registry = registry
        self._executions = executions
        self._execution_log = execution_log
        self._events = events

    # Events ----------------------------------------------------------------------------------------------------------

    async def last_sequence(self) -> int:
        """Return the sequence number of the newest event of all owners; 0 if there is none."""
        return await self._events.last_sequence()

    async def events(self, principal: Principal, *, sandbox: SandboxId | None = None, after: int = 0, limit: int = 100) -> Page[EventRecord]:
        """Return events, oldest first.

        Args:
            principal: Reader of the events.
            sandbox: Return only events of this sandbox.
            after: Return only events with a larger sequence number.
            limit: Largest number of events.
        """
        found = await self._events.page(principal, sandbox=sandbox, after=after, limit=limit + 1)
        return Page(found[:limit], more=len(found) > limit)

    async def latest_events(
        self, principal: Principal, *, limit: int, kinds: Collection[str] | None = None, sandbox: SandboxId | None = None, before: int | None = None
    ) -> Page[EventRecord]:
        """Return the latest events, newest first.

        Args:
            principal: Reader of the events.
            limit: Largest number of events.
            kinds: Return only events of these types. None: all types.
            sandbox: Return only events of this sandbox.
            before: Return only events with a smaller sequence number, such as that of the last event of the previous page.
        """
        found: list[EventRecord] = []
        end, width = await self._events.last_sequence(), min(4 * limit, MAX_WINDOW)
        if before is not None:
            end = min(end, before - 1)
        while end > 0 and len(found) <= limit:
            page = await self._events.page(principal, sandbox=sandbox, after=max(0, end - width), limit=width)
            found += [record for record in reversed(page) if record.sequence <= end and (kinds is None or record.event.type in kinds)]
            end, width = end - width, min(4 * width, MAX_WINDOW)
        return Page(found[:limit], more=len(found) > limit)

    async def follow_events(self, principal: Principal, *, sandbox: SandboxId | None = None, after: int) -> Stream[EventRecord]:
        """Follow the events as they are committed.

        The stream raises ``UnavailableError`` when the service stops. The hint has the sequence number with which to continue.

        Args:
            principal: Reader of the events.
            sandbox: Follow only events of this sandbox.
            after: Follow the events with a larger sequence number, stored events first.
        """
        return GeneratorStream(self._follow_events(principal, sandbox, after))

    async def _follow_events(self, principal: Principal, sandbox: SandboxId | None, last: int) -> AsyncGenerator[EventRecord]:
        with self._events.subscribe(principal) as wakeup:
            while not self._events.is_closed:
                wakeup.clear()  # before the read, so that a commit during the read sets the wakeup again
                page = await self._events.page(principal, sandbox=sandbox, after=last, limit=EVENTS_PAGE)
                for record in page:
                    yield record
                    last = record.sequence
                if len(page) < EVENTS_PAGE:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(EVENTS_POLL_S):
                            await wakeup.wait()
        raise UnavailableError(
            "The service is stopping.",
            hint=f"Continue with after={last} when the service has restarted.",
            fields={"after": last, "retry_after_s": 1},
        )

    # Executions ------------------------------------------------------------------------------------------------------

    async def execution(self, principal: Principal, id_: str) -> ExecutionRecord:
        """Return the log entry of an execution.

        Raises:
            NotFoundError: The log has no such execution, or the principal may not see it (code ``execution_not_found``).
        """
        await self._execution_log.write_for_reader()
        record = await self._executions.get(ExecutionId(id_)) if PROCESS_ID.fullmatch(id_) else None
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no execution {id_[:64]!r}.",
                code=ErrorCode.EXECUTION_NOT_FOUND,
                hint="List the executions to find their ids. Old executions are removed from the log.",
                fields={"execution": id_[:64]},
            )
        return record

    async def executions(
        self, principal: Principal, *, sandbox: SandboxId | None = None, before: Position | None = None, limit: int = 50
    ) -> Page[ExecutionRecord]:
        """Return log entries of executions, newest first.

        Args:
            principal: Reader of the log.
            sandbox: Return only executions of this sandbox.
            before: Position of the last entry of the previous page.
            limit: Largest number of entries.
        """
        await self._execution_log.write_for_reader()
        owner = None if principal.operator else principal.owner
        found = await self._executions.page(owner=owner, sandbox=sandbox, before=before, limit=limit + 1)
        return Page(found[:limit], more=len(found) > limit)

    async def results(self, principal: Principal, id_: str) -> CellResults:
        """Return the results and the exception of a cell; those so far while the cell runs. A command has none.

        Raises:
            NotFoundError: As :meth:`execution`.
        """
        record = await self.execution(principal, id_)
        if (running := self._execution_log.running.get(ProcessId(record.id))) is not None:
            return running.results.results()
        stored = await self._executions.results(record.id) if record.results_bytes else None
        return CellResults() if stored is None else decode(stored)

    def note_files(self, principal: Principal, execution: ProcessId, count: int) -> None:
        """Add the number of created and changed files to the log entry of an execution that has ended.

        The number is written in the background. An execution that the log does not have, or that the principal may not see, is ignored.
        """
        self._execution_log.set_files(execution, count, principal)

    # Output of executions --------------------------------------------------------------------------------------------

    async def logs(self, principal: Principal, sandbox: str, channels: Collection[int]) -> Page[LogEntry]:
        """Return the output that the executions of a sandbox have written until now, in the order in which the executions started.

        Only the newest output is returned: at most ``MAX_LOG_EXECUTIONS`` executions and ``MAX_CHARS`` characters. ``more`` is True if older output
        was left out. The sandbox may have ended.
        """
        page = await self._logs(principal, await self._registry.load(sandbox, principal), channels)
        return Page([entry for entry in page.items if entry.text], more=page.more)

    async def follow_logs(self, principal: Principal, sandbox: str, channels: Collection[int]) -> Stream[LogEntry | LogOutput | LogGap | LogEnd]:
        """Follow the output of a sandbox's executions: first the existing output as :meth:`logs` returns it, then new output until the sandbox ends.

        The stream raises ``UnavailableError`` when the service stops.
        """
        return GeneratorStream(self._follow_logs(principal, await self._registry.load(sandbox, principal), channels))

    async def _logs(self, principal: Principal, sandbox: Sandbox, channels: Collection[int]) -> Page[LogEntry]:
        records, more = await self._newest(principal, sandbox.id)
        entries: list[LogEntry] = []
        chars = 0
        for record in records:
            found = output_of(record, self._execution_log.running.get(ProcessId(record.id)), channels)
            chars += sum(len(entry.text) for entry in found)
            if entries and chars > MAX_CHARS:
                more = True
                break
            entries += reversed(found)
        return Page(entries[::-1], more=more)

    async def _newest(self, principal: Principal, sandbox: SandboxId) -> tuple[list[ExecutionRecord], bool]:
        records: list[ExecutionRecord] = []
        chars, before = 0, None
        while len(records) < MAX_LOG_EXECUTIONS and chars <= MAX_CHARS:
            page = await self.executions(principal, sandbox=sandbox, before=before, limit=EXECUTIONS_PAGE)
            for record in page.items:
                # The execution may have ended since the store was read.
                if record.status == RUNNING and ProcessId(record.id) not in self._execution_log.running:
                    with suppress(NotFoundError):
                        record = await self.execution(principal, record.id)  # noqa: PLW2901 - the same record, read again
                records.append(record)
                chars += len(records[-1].stdout) + len(records[-1].stderr)
            if not page.more:
                return records, False
            before = Position(page.items[-1].created_at, page.items[-1].id)
        return records, True

    async def _follow_logs(
        self, principal: Principal, sandbox: Sandbox, channels: Collection[int]
    ) -> AsyncGenerator[LogEntry | LogOutput | LogGap | LogEnd]:
        follower, progress = LogFollower(self._execution_log, sandbox), Progress(channels)
        try:
            entries = (await self._logs(principal, sandbox, channels)).items
            for entry in entries:
                progress.skip(entry)
            for entry in entries:
                if entry.text:
                    yield entry
            while True:
                has_ended = sandbox.ended.is_set()  # read before take(), so that this take() returns all output of an ended sandbox
                for piece in follower.take():
                    for item in progress.new_items(piece):
                        yield item
                if has_ended:
                    return
                if sandbox.detaching.is_set():
                    raise sandbox.stopping_error()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOGS_POLL_S):
                        await follower.wakeup.wait()
        finally:
            follower.close()
