"""Executions that no client of this service follows, and their entries in the execution log.

These are processes in the background, executions that an earlier service left, and executions whose sandbox was hibernated.

Invariants:
- Every log entry gets an end. An end that cannot be known because the service stops is left to the next service.
- A process goes on without clients and keeps its own timeout. The log reads its output once, after its end, if the guest still keeps it.
- A process makes no sandbox busy: at most :data:`MAX_WAITS` calls of a sandbox wait for process ends, and these waits are not activity.
- A cell in the background keeps its sandbox from being idle until the cell ends.
- A client has :data:`BACK_S` to join an inherited cell in the foreground. After that, the cell is interrupted when it has had no follower for some
  seconds (:mod:`sandlot.core.execution.followers`); otherwise a cell without end would keep its sandbox for ever.
- An inherited install with access to the package indexes keeps the access until it ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from sandlot.core.execution.code import CodeExecution, CodeService, find_cell
from sandlot.core.execution.followers import FOLLOWED, ExecutionFollowers, expect
from sandlot.core.execution.output import process_outcome
from sandlot.core.execution.package_access import PackageAccess
from sandlot.core.records.execution_log import LOST, RUNNING, ExecutionLog, LogEntry
from sandlot.core.sandbox import Hold, Sandbox
from sandlot.link.client import Link
from sandlot.link.types import ProcessResult
from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError, UnavailableError
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.records import FOREGROUND, INSTALL, ExecutionRecord

BACK_S: Final = 10.0
"""Time that clients have to join a cell after a restart of the service, from the recovery of the sandbox on. A client that was cut off repeats its
call after waits that grow to 8 s (``sdk/retries.py``), which is longer than after a broken connection."""
MAX_WAITS: Final = 16
"""Calls of one sandbox that wait for process ends, of the 192 concurrent calls of a link (``protocol/stream_table.py``)."""
POLL_S: Final = 20.0
"""Interval of reading the process list for a process whose end no call waits for."""
BUSY_RETRY_S: Final = 1.0

_Result = TypeVar("_Result")


class UnattendedExecutions:
    """Follows executions without clients to their end.

    Args:
        log: Execution log.
        code: Cells of the sandboxes.
        package_access: Access of inherited installs.

    Attributes:
        waits: Calls that wait for the end of a process, by sandbox.
    """

    def __init__(self, log: ExecutionLog, code: CodeService, package_access: PackageAccess) -> None:
        self._log = log
        self._code = code
        self._package_access = package_access
        self.waits: Counter[SandboxId] = Counter()

    def watch(self, sandbox: Sandbox, entry: LogEntry) -> None:
        """End a process's log entry when the process ends, with the output that the guest keeps. Returns at once."""
        sandbox.spawn(_finish(entry, self._read_process(sandbox, entry)))

    async def settle(self, find: Callable[[SandboxId], Sandbox | None]) -> None:
        """Continue the executions that an earlier service left. Called once the sandboxes are known; does not wait for their recovery.

        Args:
            find: Returns a sandbox that lives or is being recovered; None for any other.
        """
        for record in await self._log.unfinished():
            if (sandbox := find(record.sandbox)) is None:
                self._log.lose(record)
            else:
                self._resume(sandbox, record)

    def resume(self, sandbox: Sandbox) -> None:
        """Continue the executions of a sandbox that was hibernated. Called at the moment at which the sandbox runs again."""
        self._code.state.of(sandbox).guest_knows_more = True
        for record in self._log.take_open(sandbox):
            self._resume(sandbox, record)

    def _resume(self, sandbox: Sandbox, record: ExecutionRecord) -> None:
        # Both before the first request to the guest: a client that joins, or a guest that reads an index, must find them.
        if record.mode == INSTALL:
            self._package_access.open(sandbox)
        if record.mode == FOREGROUND and record.kind == "code":
            expect(sandbox, ProcessId(record.id))
        sandbox.spawn(self._settle(sandbox, record, self._log.reopen(sandbox, record)))

    async def _settle(self, sandbox: Sandbox, record: ExecutionRecord, entry: LogEntry) -> None:
        async def go_on() -> None:
            await sandbox.wait_awake()
            link = sandbox.require_link()
            followers = FOLLOWED.of(sandbox).get(entry.id)
            if any(info.process == entry.id for info in await retry_while_busy(link.processes.list)):
                await self._read_process(sandbox, entry)
            elif followers is not None:
                await _wait_for_clients(sandbox, entry, link, followers)
            else:
                await self._read_cell(sandbox, entry, link)

        try:
            await _finish(entry, go_on())
        finally:
            if record.mode == INSTALL:
                self._package_access.close(sandbox)

    async def _read_process(self, sandbox: Sandbox, entry: LogEntry) -> None:
        """Wait for the end of a process, and end its log entry.

        Raises:
            NotFoundError: The guest does not remember the process.
            SandlotError: The sandbox or the link ended.
        """
        link = sandbox.require_link()
        outcome = process_outcome(entry.id, await self._wait_process(sandbox, link, entry.id))
        entry.drop_output()
        with suppress(NotFoundError):  # the guest keeps the output of the latest processes only, within bounds
            call = await retry_while_busy(lambda: link.processes.attach(entry.id))
            try:
                async for event in call:
                    entry.add(event)
            finally:
                await call.aclose()
        entry.end(outcome.reason, exit_code=outcome.exit_code, duration_s=outcome.duration_s)

    async def _wait_process(self, sandbox: Sandbox, link: Link, process: ProcessId) -> ProcessResult:
        running = True
        while running and self.waits[sandbox.id] >= MAX_WAITS:
            await asyncio.sleep(POLL_S)
            running = any(info.process == process and info.running for info in await retry_while_busy(link.processes.list))
        self.waits[sandbox.id] += 1
        try:
            return await retry_while_busy(lambda: link.processes.wait(process))
        finally:
            self.waits[sandbox.id] -= 1
            if not self.waits[sandbox.id]:
                del self.waits[sandbox.id]

    async def _read_cell(self, sandbox: Sandbox, entry: LogEntry, link: Link) -> None:
        """Follow a cell in the background, which keeps the sandbox from being idle."""
        background = self._code.state.of(sandbox).background
        background.add(entry.id)
        hold = Hold(sandbox.activity)
        try:
            try:
                execution = CodeExecution(sandbox, await retry_while_busy(lambda: link.kernels.attach(entry.id)), owned=False)
            finally:
                hold.release()
            execution.entry = entry
            try:
                await execution.read()
            finally:
                execution.entry = None  # the caller ends the entry after an error
                await execution.release()
        finally:
            background.discard(entry.id)


async def _wait_for_clients(sandbox: Sandbox, entry: LogEntry, link: Link, followers: ExecutionFollowers) -> None:
    """Follow a cell in the foreground, and interrupt the cell if no client joins it."""
    try:
        await retry_while_busy(lambda: find_cell(link, entry.id))
        execution = CodeExecution(sandbox, await retry_while_busy(lambda: link.kernels.attach(entry.id)), owned=True, followers=followers)
        execution.entry = entry
        await execution.attend(BACK_S)
    finally:
        if not followers.is_attended:
            followers.forget()  # the guest does not remember the cell


async def _finish(entry: LogEntry, work: Coroutine[Any, Any, None]) -> None:
    """Run the work that ends a log entry. After a failure the entry is lost, cut, or left to the next service."""
    try:
        await work
    except NotFoundError:
        entry.end(LOST)
    except SandlotError:
        entry.cut()
    except asyncio.CancelledError:
        entry.cut()  # the task learns of its sandbox's end only by the cancellation
        raise
    finally:
        entry.end(RUNNING)


async def retry_while_busy(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Repeat a call while the sandbox has too many calls in progress. The end of the sandbox or of the service cancels this."""
    while True:
        try:
            return await call()
        except UnavailableError as error:
            if error.code is not ErrorCode.BUSY:
                raise
        await asyncio.sleep(BUSY_RETRY_S)
