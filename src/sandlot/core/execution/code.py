"""Cells: code that runs in a context of a sandbox and keeps its variables there.

Invariants:
- The guest queues the cells: each context runs one cell at a time, in the order of the requests. The timeout of a cell does not include the time
  in the queue. Cells that run or wait continue when the service stops.
- When the client of a foreground cell disconnects, the cell is interrupted if it runs, and aborted if it waits. No other cell is affected, and the
  context keeps its variables.
- A client can choose the id of a cell. Further requests with this id join the cell, so the cell is started, counted and logged only once. In the
  foreground, the cell then continues as long as any client is connected to it (:mod:`sandlot.core.execution.followers`).
- A background cell continues after its clients have disconnected.
- While a cell waits or runs, its sandbox is not idle.
- The collected output of a cell has the same limits as the output of a process. Results are limited by size, by number and by the buffer budget of
  the sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from sandlot.core.execution import contexts
from sandlot.core.execution.followers import FOLLOWED, ExecutionFollowers, join
from sandlot.core.execution.output import OutputCollector
from sandlot.core.execution.stdin import check_id
from sandlot.core.records.execution_log import NATIVE, RUNNING, ExecutionDescription, ExecutionLog, LogEntry
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.core.sandbox import GRACE_S, Hold, Sandbox, SandboxLocal
from sandlot.link.client import Link
from sandlot.link.kernels import CellCall
from sandlot.link.types import CellError, CellStarted, Cleared, Display, Output, OutputGap
from sandlot.model.errors import (
    LimitError,
    NotFoundError,
    SandboxEndedError,
    SandlotError,
    TimeoutExceededError,
    UnavailableError,
)
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.output_capture import OutputCapture
from sandlot.model.records import BACKGROUND
from sandlot.model.specs import CellSpec
from sandlot.protocol.schema import STDERR, STDOUT

MAX_BACKGROUND: Final = 64
"""Maximum number of cells of one sandbox that run or wait in the background. Each of them takes one of the 192 concurrent calls of a link."""
MAX_RECENT: Final = 256
"""Maximum number of cell ids that the service keeps for one sandbox; the oldest ids are dropped first. A guest remembers fewer cells."""

Event = Output | OutputGap | CellStarted | Display | Cleared | CellError


@dataclass(frozen=True, slots=True)
class CodeExecutionStatus:
    """Status of a cell.

    Args:
        execution: Id of the cell.
        status: ``running``, or how the cell ended: ``ok``, ``error``, ``timeout``, ``killed``, ``died``, ``oom`` or ``aborted``.
        execution_count: Number of the cell in its context.
        duration_s: Seconds from start to end, measured by the guest.
    """

    execution: ProcessId
    status: str
    execution_count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """Position in the events and the output of a cell.

    Args:
        events: Number of start, display, clear and error events before the position.
        stdout: Byte offset in standard output.
        stderr: Byte offset in standard error.
    """

    events: int = 0
    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, slots=True)
class CodeExecutionResult:
    """Status of a cell, and the output, results and error that were collected."""

    outcome: CodeExecutionStatus
    stdout: OutputCapture
    stderr: OutputCapture
    results: Sequence[Display]
    results_omitted: int
    error: CellError | None
    position: OutputPosition = OutputPosition()


class SandboxCodeState:
    """Ids of the cells that the service has started in one sandbox, or whose end the service waits for.

    Attributes:
        background: Ids of the background cells that the service reads until they end.
        recent: Ids of the cells that the service started most recently, oldest first.
        guest_knows_more: True if the guest may have cells whose ids are not in ``recent``, because an earlier service created the sandbox, or
            because the sandbox was hibernated.
    """

    __slots__ = ("background", "guest_knows_more", "recent")

    def __init__(self, sandbox: Sandbox) -> None:
        self.background: set[ProcessId] = set()
        self.recent: dict[ProcessId, None] = {}
        self.guest_knows_more = sandbox.inherited


class CodeExecution:
    """One client's connection to a cell. Iterate over the execution for its events, then await :meth:`outcome`, and close the execution at the end.

    Args:
        sandbox: Sandbox of the cell.
        call: Call to the guest that started the cell or is attached to it.
        owned: True if the client requested the cell, False if the client only reads the events. When the last client has disconnected, an owned cell
            is interrupted.
        followers: All clients that are connected to the cell; None if other clients cannot join the cell.
        start: Position at which the iteration begins; None is the beginning of the cell.

    Attributes:
        id: Id of the cell.
        entry: Entry in the execution log. None if this execution does not write the entry, or after the entry has ended.
        position: Position after the last event that the iteration has yielded.
    """

    __slots__ = ("_attends", "_call", "_closed", "_followers", "_hold", "_over", "_owned", "_sandbox", "entry", "id", "position")

    def __init__(
        self, sandbox: Sandbox, call: CellCall, *, owned: bool, followers: ExecutionFollowers | None = None, start: OutputPosition | None = None
    ) -> None:
        self._sandbox = sandbox
        self._hold = Hold(sandbox.activity)
        self._call = call
        self._owned = owned
        self._followers = followers
        self._attends = followers is not None and followers.enter(attend=owned)
        self._over = False
        self._closed = False
        self.id = call.id
        self.entry: LogEntry | None = None
        self.position = start or OutputPosition()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield the events of the cell until its end. If the client stops iterating, the cell blocks when it writes more output.

        Raises:
            SandboxEndedError: The sandbox ended; the error has the reason.
            NotFoundError: There is no such context (code ``context_not_found``), or no such cell (code ``execution_not_found``).
        """
        try:
            async for event in self._call:
                at = self.position
                if isinstance(event, Output | OutputGap):
                    end = event.offset + (len(event.data) if isinstance(event, Output) else event.bytes)
                    stdout, stderr = (end, at.stderr) if event.channel == STDOUT else (at.stdout, end)
                    self.position = OutputPosition(at.events, stdout, stderr)
                    if self.entry is not None:
                        self.entry.add(event)
                else:
                    self.position = OutputPosition(at.events + 1, at.stdout, at.stderr)
                    if self.entry is not None and isinstance(event, CellError):
                        self.entry.set_error(event)
                yield event
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None
        except NotFoundError as error:
            raise contexts.not_found(error) from None

    async def outcome(self) -> CodeExecutionStatus:
        """Wait for the end of the cell and return its status.

        If :meth:`CodeService.follow` opened the execution with ``to_end=False``, return the current status without waiting.

        Raises:
            SandboxEndedError: The sandbox ended first; the error has the reason.
            NotFoundError: There is no such context (code ``context_not_found``), or no such cell (code ``execution_not_found``).
        """
        try:
            result = await self._call.result()
        except (SandboxEndedError, UnavailableError) as error:
            self._over = True
            raise await self._sandbox.explain(error) from None
        except NotFoundError as error:
            self._over = True
            raise contexts.not_found(error) from None
        self._over = True
        if self.entry is not None and result.status != RUNNING:
            self.entry.end(result.status, duration_s=result.duration_s)
            self.entry = None
        return CodeExecutionStatus(self.id, result.status, result.execution_count, result.duration_s)

    async def read(self) -> None:
        """Read the cell to its end, so that the execution log gets the whole output.

        Raises:
            SandlotError: The cell could not be read to its end.
        """
        async for _ in self:
            pass
        await self.outcome()

    async def close(self) -> None:
        """Stop reading the cell. If the client requested the cell, interrupt it, unless it has ended or has other followers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._followers is not None:
            self._followers.leave()
            if self._attends and not self._over:
                self._sandbox.tasks.spawn(self._attend(self._followers))  # the task releases the hold
                return
            if self._attends:
                self._followers.forget()
        self._hold.release()
        if self.entry is not None:
            self.entry.cut()
        if self._owned and self._followers is None and not self._over:
            self._sandbox.tasks.spawn(self._interrupt())
        else:
            await self._call.aclose()

    async def release(self) -> None:
        """Stop reading the cell without interrupting it. Idempotent."""
        self._over = True
        await self.close()

    async def attend(self, first_s: float) -> None:
        """Read the cell to its end for the execution log, and close the execution. Meanwhile, clients can join the cell.

        The cell is interrupted when it has had no follower for ``followers.AWAY_S`` seconds.

        Args:
            first_s: Seconds until the cell is interrupted if no client ever joins.
        """
        if self._followers is None:
            raise RuntimeError("this execution was opened without ExecutionFollowers, so no client can join it")
        self._closed = True
        self._followers.leave()
        await self._attend(self._followers, first_s)

    async def _attend(self, followers: ExecutionFollowers, first_s: float | None = None) -> None:
        try:
            if not await followers.attend(self._read_quietly(), first_s):
                if self.entry is not None:
                    self.entry.cut()
                await self._interrupt()
        finally:
            if self.entry is not None:
                self.entry.cut()
            followers.forget()
            self._hold.release()
            await self._call.aclose()

    async def _read_quietly(self) -> None:
        with suppress(SandlotError):
            await self.read()

    async def _interrupt(self) -> None:
        """Interrupt a cell that has no clients. If the cell ignores the interrupt, the guest ends the kernel."""
        if self._sandbox.is_hibernated:
            return  # the hibernation closed the link to the guest; the client has not disconnected
        with suppress(SandlotError):
            async with self._sandbox.connection() as link:
                await link.kernels.interrupt(execution=self.id)
        await self._call.aclose()


class CodeService:
    """Runs cells in sandboxes.

    Args:
        log: Execution log.
        usage: Counts executions against the quota of their owner.

    Attributes:
        state: Cells of each sandbox.
    """

    def __init__(self, log: ExecutionLog, usage: MonthlyExecutionCounter) -> None:
        self._log = log
        self._usage = usage
        self.state: SandboxLocal[SandboxCodeState] = SandboxLocal(SandboxCodeState)

    async def run(self, sandbox: Sandbox, cell: CellSpec, description: ExecutionDescription = NATIVE) -> CodeExecutionResult:
        """Run a cell to its end and collect its output.

        If the caller is cancelled, the cell is interrupted, unless another client is connected to it.

        Args:
            sandbox: Sandbox of the cell.
            cell: Code to run.
            description: Description for the execution log, with an optional id that the client chose. If the guest already has a cell with this id,
                no new cell is started, and the result is that of the existing cell.

        Raises:
            NotFoundError: The sandbox has no such context (code ``context_not_found``).
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
            SandlotError: The cell could not be started, or the sandbox ended.
        """
        execution = await self.start(sandbox, cell, description)
        output, loop = OutputCollector(sandbox.buffers), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as guard:  # ends the wait if the guest does not enforce the cell's timeout
                async for event in execution:
                    output.add(event)
                    if isinstance(event, CellStarted) and cell.timeout_s is not None:
                        guard.reschedule(loop.time() + cell.timeout_s + GRACE_S)
            return _result(await execution.outcome(), execution.position, output)
        except TimeoutError:
            raise TimeoutExceededError(
                f"A cell in sandbox {sandbox.id} had not ended {GRACE_S:g} s after its timeout.",
                hint="Kill the sandbox and create a new one. A process in the sandbox may keep it from responding.",
                fields={"sandbox": sandbox.id},
            ) from None
        finally:
            output.close()
            await execution.close()

    async def start(self, sandbox: Sandbox, cell: CellSpec, description: ExecutionDescription = NATIVE) -> CodeExecution:
        """Start a cell in the foreground. Iterate over the returned execution for the events of the cell.

        Args:
            sandbox: Sandbox of the cell.
            cell: Code to run.
            description: Description for the execution log, with an optional id that the client chose. If the guest already has a cell with this id,
                no new cell is started, and the result is that of the existing cell.

        Raises:
            NotFoundError: The sandbox has no such context (code ``context_not_found``).
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
            SandlotError: The cell could not be started, or the sandbox has ended.
        """
        confirm = cell.context is not None and cell.context not in contexts.CONFIRMED.of(sandbox)
        id_ = description.id
        if id_ is None:
            return await self._submit(sandbox, cell, new_process_id(), description, confirm=confirm)
        state = self.state.of(sandbox)
        async with join(sandbox, id_) as followers:
            # Ask the guest about the cell only if the guest may have it already: the round trip would delay the start of a new cell.
            if (id_ in state.recent or state.guest_knows_more) and await _is_known(sandbox, id_):
                async with sandbox.connection() as link:
                    return CodeExecution(sandbox, await link.kernels.attach(id_), owned=True, followers=followers)
            return await self._submit(sandbox, cell, id_, description, confirm=confirm, followers=followers)

    async def launch(self, sandbox: Sandbox, cell: CellSpec, description: ExecutionDescription = NATIVE) -> ProcessId:
        """Start a cell in the background. Return the id of the cell once the guest has accepted the cell.

        Args:
            sandbox: Sandbox of the cell.
            cell: Code to run.
            description: Description for the execution log, with an optional id that the client chose. If the guest already has a cell with this id,
                no new cell is started, and the id is returned.

        Raises:
            NotFoundError: The sandbox has no such context (code ``context_not_found``).
            LimitError: Too many cells run or wait in the background (code ``limit_exceeded``), or the quota is used up (code ``quota_exceeded``).
            SandlotError: The cell could not be started, or the sandbox has ended.
        """
        state, id_ = self.state.of(sandbox), description.id
        background = state.background
        if id_ is not None and (id_ in background or ((id_ in state.recent or state.guest_knows_more) and await _is_known(sandbox, id_))):
            return id_
        if len(background) >= MAX_BACKGROUND:
            raise LimitError(
                f"Sandbox {sandbox.id} runs {len(background)} executions in the background; at most {MAX_BACKGROUND} are allowed.",
                hint="Wait until some of these executions have ended, or interrupt some of them.",
                fields={"sandbox": sandbox.id, "max_background": MAX_BACKGROUND},
            )
        chosen = id_ or new_process_id()
        background.add(chosen)  # before the first await, so that concurrent requests keep to the limit
        try:
            execution = await self._submit(sandbox, cell, chosen, replace(description, mode=BACKGROUND), confirm=True)
        except BaseException:
            background.discard(chosen)
            raise
        sandbox.tasks.spawn(self._read_in_background(execution, background))
        return chosen

    async def check_known(self, sandbox: Sandbox, execution: str) -> None:
        """Raise an error if the guest has no cell with the id ``execution``.

        Raises:
            NotFoundError: The guest has no such cell (code ``execution_not_found``).
            SandboxEndedError: The sandbox has ended.
        """
        async with contexts.reaching(sandbox) as link:
            await find_cell(link, check_id(execution))

    async def follow(
        self,
        sandbox: Sandbox,
        execution: str,
        *,
        events_from: int = 0,
        stdout_from: int | None = 0,
        stderr_from: int | None = 0,
        to_end: bool = True,
    ) -> CodeExecution:
        """Return an execution that reads a cell that was started earlier. The cell may have ended already.

        Closing the execution does not interrupt the cell.

        Args:
            sandbox: Sandbox of the cell.
            execution: Id of the cell.
            events_from: Number of start, display, clear and error events to skip, because the client has them already.
            stdout_from: Byte offset from which standard output is read; None reads from the oldest byte that the guest keeps.
            stderr_from: Byte offset from which standard error is read; None reads from the oldest byte that the guest keeps.
            to_end: True to read until the cell ends. False to read only events that exist already; if the cell has not ended, the status is
                ``running``.

        Raises:
            NotFoundError: The guest has no such cell (code ``execution_not_found``). The iteration raises this error.
            SandboxEndedError: The sandbox has ended.
        """
        async with sandbox.connection() as link:
            call = await link.kernels.attach(
                check_id(execution), events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from, wait=to_end
            )
        start = OutputPosition(events_from, stdout_from or 0, stderr_from or 0)
        return CodeExecution(sandbox, call, owned=False, followers=FOLLOWED.of(sandbox).get(call.id), start=start)

    async def collect(
        self,
        sandbox: Sandbox,
        execution: str,
        *,
        events_from: int = 0,
        stdout_from: int | None = None,
        stderr_from: int | None = None,
        wait_s: float | None = 0,
    ) -> CodeExecutionResult:
        """Collect the output and the results of a cell, beginning at a given position.

        Args:
            sandbox: Sandbox of the cell.
            execution: Id of the cell.
            events_from: Number of start, display, clear and error events to skip, because the client has them already.
            stdout_from: Byte offset from which standard output is read; None reads from the oldest byte that the guest keeps.
            stderr_from: Byte offset from which standard error is read; None reads from the oldest byte that the guest keeps.
            wait_s: Seconds to wait for the end of the cell; None waits until the end, 0 does not wait.

        Returns:
            The collected output and results; their status is ``running`` if the cell has not ended.

        Raises:
            NotFoundError: The guest has no such cell (code ``execution_not_found``).
            SandboxEndedError: The sandbox ended.
        """
        output = OutputCollector(sandbox.buffers)
        try:
            if wait_s != 0:
                followed = await self.follow(sandbox, execution, events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from)
                try:
                    return await _collect(followed, output, wait_s)
                except TimeoutError:
                    at = followed.position
                    events_from, stdout_from, stderr_from = at.events, at.stdout, at.stderr
            rest = await self.follow(sandbox, execution, events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from, to_end=False)
            return await _collect(rest, output, None)
        finally:
            output.close()

    async def interrupt(self, sandbox: Sandbox, execution: str) -> bool:
        """Interrupt a running cell as Ctrl-C would, or abort a cell that waits for its context. Return False if the cell had ended.

        Raises:
            NotFoundError: The guest has no such cell (code ``execution_not_found``).
            SandboxEndedError: The sandbox has ended.
        """
        async with contexts.reaching(sandbox) as link:
            return await link.kernels.interrupt(execution=check_id(execution))

    async def _submit(
        self,
        sandbox: Sandbox,
        cell: CellSpec,
        id_: ProcessId,
        description: ExecutionDescription,
        *,
        confirm: bool,
        followers: ExecutionFollowers | None = None,
    ) -> CodeExecution:
        """Send a cell to the guest, and count and log the cell. If ``confirm`` is True, wait until the guest has accepted the cell."""
        with self._usage.count(sandbox.owner):  # a cell that cannot be started is not counted
            async with sandbox.connection() as link:
                call = await link.kernels.execute(
                    cell.code,
                    kernel=cell.context_id,
                    language=cell.language,
                    env=dict(cell.env),
                    timeout_s=cell.timeout_s,
                    silent=cell.silent,
                    store_history=cell.store_history,
                    stop_on_error=cell.stop_on_error,
                    id=id_,
                )
                execution = CodeExecution(sandbox, call, owned=True, followers=followers)
                if confirm:
                    await _confirm(link, call, execution)
                    if cell.context is not None:
                        contexts.CONFIRMED.of(sandbox).add(cell.context)
        execution.entry = self._log.begin(sandbox, id_, replace(description, language=cell.language or "python", code=cell.code))
        recent = self.state.of(sandbox).recent
        recent[id_] = None
        while len(recent) > MAX_RECENT:
            del recent[next(iter(recent))]
        return execution

    async def _read_in_background(self, execution: CodeExecution, background: set[ProcessId]) -> None:
        """Read a background cell to its end, so that the execution log gets the output. Until the cell ends, its sandbox does not count as idle."""
        try:
            with suppress(SandlotError):
                await execution.read()
        finally:
            background.discard(execution.id)
            await execution.release()


async def _is_known(sandbox: Sandbox, id_: ProcessId) -> bool:
    try:
        async with sandbox.connection() as link:
            await find_cell(link, id_)
    except NotFoundError:
        return False
    return True


async def find_cell(link: Link, id_: ProcessId) -> None:
    """Raise an error if the guest has no cell with the id ``id_``.

    Raises:
        NotFoundError: The guest has no such cell.
    """
    call = await link.kernels.attach(id_, wait=False)
    try:
        await call.result()
    finally:
        await call.aclose()


async def _confirm(link: Link, call: CellCall, execution: CodeExecution) -> None:
    """Wait until the guest has accepted a cell.

    The function sends a second request on the same link. The guest handles requests in order, so the response shows whether the cell was accepted.
    If the function raises an error, the execution is closed.

    Raises:
        NotFoundError: The context does not exist (code ``context_not_found``).
        SandlotError: The guest refused the cell.
    """
    try:
        try:
            await find_cell(link, call.id)
        except NotFoundError:
            await call.result()  # raises the error with which the guest refused the cell
            raise
    except BaseException as error:
        await execution.close()
        if isinstance(error, NotFoundError):
            raise contexts.not_found(error) from None
        raise


async def _collect(execution: CodeExecution, output: OutputCollector, timeout_s: float | None) -> CodeExecutionResult:
    """Collect the events of an execution until the execution yields no more events, and close the execution.

    Raises:
        TimeoutError: The timeout has passed. ``output`` contains the events that were read until then.
    """
    try:
        async with asyncio.timeout(timeout_s):
            async for event in execution:
                output.add(event)
            return _result(await execution.outcome(), execution.position, output)
    finally:
        await execution.close()


def _result(status: CodeExecutionStatus, position: OutputPosition, output: OutputCollector) -> CodeExecutionResult:
    captures = output.captures
    return CodeExecutionResult(status, captures[STDOUT], captures[STDERR], output.displays, output.omitted, output.error, position)
