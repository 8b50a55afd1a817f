"""Executions that have no client, and their entries in the execution log.

These are background processes, unfinished executions of an earlier service, and executions whose sandbox was hibernated.

Invariants:
- The end of every execution is written to its log entry. If the service stops first, the next service writes the end.
- A process continues without clients until its own timeout. Its output is read once for the log, after its end, if the guest still has the output.
- Waiting for the end of a process does not count as activity of the sandbox. At most :data:`MAX_WAITS` calls wait for the processes of one sandbox.
- A background cell keeps its sandbox from being idle until the cell ends.
- Clients have :data:`BACK_S` seconds to join a foreground cell of an earlier service. After that, the cell is interrupted once it has had no
  follower for some seconds (:mod:`sandlot.core.execution.followers`). Otherwise an endless cell would keep its sandbox alive forever.
- If the service restarts during an installation of packages, the access to the package indexes stays open until the installation ends.
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
"""Seconds in which a client can join an unfinished foreground cell after the service restarted or the sandbox woke, before the cell is interrupted. A
disconnected client repeats its request after pauses of up to 8 s (``sdk/retries.py``), so this time is longer than ``AWAY_S``."""
MAX_WAITS: Final = 16
"""Maximum number of calls that wait for the processes of one sandbox. A link has 192 concurrent calls (``protocol/stream_table.py``)."""
POLL_S: Final = 20.0
"""Seconds between two reads of the process list while ``MAX_WAITS`` calls already wait. The list shows whether a further process has ended."""
BUSY_RETRY_S: Final = 1.0

_Result = TypeVar("_Result")


class UnattendedExecutions:
    """Waits for the end of executions that have no client, and completes their log entries.

    Args:
        log: Execution log.
        code: Service that runs the cells.
        package_access: Access to the package indexes.

    Attributes:
        waits: Sandbox -> number of calls that wait for the end of a process.
    """

    def __init__(self, log: ExecutionLog, code: CodeService, package_access: PackageAccess) -> None:
        self._log = log
        self._code = code
        self._package_access = package_access
        self.waits: Counter[SandboxId] = Counter()

    def watch(self, sandbox: Sandbox, entry: LogEntry) -> None:
        """Start a task that waits for the end of a process, and then writes the end and the output to the log entry. Return at once."""
        sandbox.tasks.spawn(_finish(entry, self._read_process(sandbox, entry)))

    async def settle(self, find: Callable[[SandboxId], Sandbox | None]) -> None:
        """Start to wait for the unfinished executions of earlier services. Return without waiting for the recovery of the sandboxes.

        Args:
            find: Function that takes the id of a sandbox and returns the sandbox if it is alive or being recovered, otherwise None.
        """
        for record in await self._log.unfinished():
            if (sandbox := find(record.sandbox)) is None:
                self._log.lose(record)
            else:
                self._resume(sandbox, record)

    def resume(self, sandbox: Sandbox) -> None:
        """Start to wait for the unfinished executions of a sandbox that was hibernated. Call this method as soon as the sandbox runs again."""
        self._code.state.of(sandbox).guest_knows_more = True
        for record in self._log.take_open(sandbox):
            self._resume(sandbox, record)

    def _resume(self, sandbox: Sandbox, record: ExecutionRecord) -> None:
        # Both steps come before the first request to the guest. Afterwards, an installation may already read a package index, and a client may
        # already join a cell.
        if record.mode == INSTALL:
            self._package_access.open(sandbox)
        if record.mode == FOREGROUND and record.kind == "code":
            expect(sandbox, ProcessId(record.id))
        sandbox.tasks.spawn(self._settle(sandbox, record, self._log.reopen(sandbox, record)))

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
        """Wait for the end of a process, and write its output and its end to the log entry.

        Raises:
            NotFoundError: The guest does not remember the process.
            SandlotError: The sandbox or the link ended.
        """
        link = sandbox.require_link()
        outcome = process_outcome(entry.id, await self._wait_process(sandbox, link, entry.id))
        entry.drop_output()
        with suppress(NotFoundError):  # the guest keeps a limited amount of output, of the latest processes only
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
        """Read a background cell to its end. Until then, its sandbox does not count as idle."""
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
    """Read a foreground cell to its end. Interrupt the cell if no client joins it in time."""
    try:
        await retry_while_busy(lambda: find_cell(link, entry.id))
        execution = CodeExecution(sandbox, await retry_while_busy(lambda: link.kernels.attach(entry.id)), owned=True, followers=followers)
        execution.entry = entry
        await execution.attend(BACK_S)
    finally:
        if not followers.is_attended:
            followers.forget()  # the guest does not remember the cell


async def _finish(entry: LogEntry, work: Coroutine[Any, Any, None]) -> None:
    """Run the work that completes a log entry. If the work fails, mark the entry as lost or killed, or leave the entry to the next service."""
    try:
        await work
    except NotFoundError:
        entry.end(LOST)
    except SandlotError:
        entry.cut()
    except asyncio.CancelledError:
        entry.cut()  # this task is cancelled when the sandbox ends or the service stops
        raise
    finally:
        entry.end(RUNNING)


async def retry_while_busy(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Call a function, and repeat the call as long as it fails because the sandbox has too many calls in progress.

    The number of attempts is not limited: when the sandbox ends or the service stops, the calling task is cancelled.
    """
    while True:
        try:
            return await call()
        except UnavailableError as error:
            if error.code is not ErrorCode.BUSY:
                raise
        await asyncio.sleep(BUSY_RETRY_S)
