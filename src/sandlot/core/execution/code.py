"""Cells: code that runs in a context of a sandbox and keeps its variables there.

Invariants:
- The guest has the queue: each context runs one cell at a time, in the order of the requests. Waiting does not use the timeout of a cell. Cells
  that run or wait outlive the service.
- A cell in the foreground belongs to every client that requested the cell. The cell is interrupted, or aborted while it waits, when the last of
  these clients has left. No other cell is affected, and the context keeps its variables.
- A cell whose client chose the id can be requested again: the cell is begun, counted and logged once, and it goes on while it has followers
  (:mod:`sandlot.core.execution.followers`).
- No client's leaving affects a cell in the background.
- A cell that waits or runs keeps its sandbox from being idle.
- The output collected of a cell is bounded like a process's; results are bounded by size, number and the sandbox's buffer budget.
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
from sandlot.model.capture import Capture
from sandlot.model.errors import (
    ErrorCode,
    LimitError,
    NotFoundError,
    SandboxEndedError,
    SandlotError,
    TimeoutExceededError,
    UnavailableError,
)
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.records import BACKGROUND
from sandlot.model.specs import CellSpec
from sandlot.protocol.schema import STDERR, STDOUT

MAX_BACKGROUND: Final = 64
"""Cells of one sandbox that run or wait in the background: each takes one of the 192 concurrent calls of a link."""
MAX_RECENT: Final = 256
"""Ids kept of the latest cells of a sandbox: more than a guest remembers cells."""

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
    """Position up to which a cell was followed.

    Args:
        events: Number of starts, displays, clears and errors.
        stdout: Byte offset.
        stderr: Byte offset.
    """

    events: int = 0
    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, slots=True)
class CodeExecutionResult:
    """Status of a cell, and everything collected of the cell up to a position."""

    outcome: CodeExecutionStatus
    stdout: Capture
    stderr: Capture
    results: Sequence[Display]
    results_omitted: int
    error: CellError | None
    position: OutputPosition = OutputPosition()


class SandboxCodeState:
    """Cells of one sandbox that the service knows.

    Attributes:
        background: Cells in the background that the service follows to their end.
        recent: Cells begun lately, oldest first.
        guest_knows_more: True if the guest may know cells that this service did not begin: an earlier service did, or the sandbox was hibernated.
    """

    __slots__ = ("background", "guest_knows_more", "recent")

    def __init__(self, sandbox: Sandbox) -> None:
        self.background: set[ProcessId] = set()
        self.recent: dict[ProcessId, None] = {}
        self.guest_knows_more = sandbox.inherited


class CodeExecution:
    """One cell that a client follows. Iterate the execution, then await :meth:`outcome`; close the execution at the end.

    Args:
        sandbox: Sandbox of the cell.
        call: Call that follows the cell in the guest.
        owned: True if the client requested the cell, so that the cell ends with the last of these clients.
        followers: Other clients of the cell; None if the cell cannot be joined.
        start: Position from which the cell is followed.

    Attributes:
        id: Id of the cell.
        entry: Entry in the execution log; None if another follower writes the entry, or after the end.
        position: Position up to which the cell was followed.
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
        """Yield the events of the cell until its end. A client that stops iterating stops the cell's output, and so the cell.

        Raises:
            SandboxEndedError: The sandbox ended; the error has the reason.
            NotFoundError: ``context_not_found``, or ``execution_not_found`` if the guest does not remember the cell.
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
        """Return the status at the end of the cell; without ``to_end``, the status now.

        Raises:
            SandboxEndedError: The sandbox ended first; the error has the reason.
            NotFoundError: ``context_not_found`` or ``execution_not_found``.
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
        """Read the cell to its end, for the execution log.

        Raises:
            SandlotError: The cell could not be followed to its end.
        """
        async for _ in self:
            pass
        await self.outcome()

    async def close(self) -> None:
        """Stop following. An owned cell that has not ended is interrupted, unless it has other followers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._followers is not None:
            self._followers.leave()
            if self._attends and not self._over:
                self._sandbox.spawn(self._attend(self._followers))  # releases the hold
                return
            if self._attends:
                self._followers.forget()
        self._hold.release()
        if self.entry is not None:
            self.entry.cut()
        if self._owned and self._followers is None and not self._over:
            self._sandbox.spawn(self._interrupt())
        else:
            await self._call.aclose()

    async def release(self) -> None:
        """Stop following without interrupting the cell. Idempotent."""
        self._over = True
        await self.close()

    async def attend(self, first_s: float) -> None:
        """Read the cell to its end for the clients that may join it, and close the execution.

        Args:
            first_s: Seconds until the cell is interrupted if no client joins.
        """
        if self._followers is None:
            raise RuntimeError("the execution has no followers to wait for")
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
        """Interrupt a cell without clients. The guest ends the kernel of a cell that ignores the interrupt."""
        if self._sandbox.is_hibernated:
            return  # the hibernation cut the link; the client did not leave
        with suppress(SandlotError):
            async with self._sandbox.connection() as link:
                await link.kernels.interrupt(execution=self.id)
        await self._call.aclose()


class CodeService:
    """Runs cells.

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
        """Run a cell to its end and collect its output. Cancelling interrupts the cell, unless another client follows it.

        Args:
            sandbox: Sandbox of the cell.
            cell: Code to run.
            description: Facts for the execution log, and an id of the client: a cell that the guest knows under this id is joined and not run again.

        Raises:
            NotFoundError: ``context_not_found``.
            LimitError: ``quota_exceeded``.
            SandlotError: The cell could not be begun, or the sandbox ended.
        """
        execution = await self.start(sandbox, cell, description)
        output, loop = OutputCollector(sandbox.buffers), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as guard:  # if the guest does not enforce the cell's timeout
                async for event in execution:
                    output.add(event)
                    if isinstance(event, CellStarted) and cell.timeout_s is not None:
                        guard.reschedule(loop.time() + cell.timeout_s + GRACE_S)
            return _result(await execution.outcome(), execution.position, output)
        except TimeoutError:
            raise TimeoutExceededError(
                f"Sandbox {sandbox.id} did not end a cell {GRACE_S:g} s after its timeout.",
                code=ErrorCode.TIMEOUT,
                hint="Kill the sandbox and create a new one: a process inside may keep it from responding.",
                fields={"sandbox": sandbox.id},
            ) from None
        finally:
            output.close()
            await execution.close()

    async def start(self, sandbox: Sandbox, cell: CellSpec, description: ExecutionDescription = NATIVE) -> CodeExecution:
        """Run a cell in the foreground, and follow it.

        Args:
            sandbox: Sandbox of the cell.
            cell: Code to run.
            description: Facts for the execution log, and an id of the client: a cell that the guest knows under this id is joined and not run again.

        Raises:
            NotFoundError: ``context_not_found``.
            LimitError: ``quota_exceeded``.
            SandlotError: The cell could not be begun, or the sandbox has ended.
        """
        confirm = cell.context is not None and cell.context not in contexts.CONFIRMED.of(sandbox)
        id_ = description.id
        if id_ is None:
            return await self._submit(sandbox, cell, new_process_id(), description, confirm=confirm)
        state = self.state.of(sandbox)
        async with join(sandbox, id_) as followers:
            # The guest is asked only if it may know the id: a round trip is long for a new cell.
            if (id_ in state.recent or state.guest_knows_more) and await _is_known(sandbox, id_):
                async with sandbox.connection() as link:
                    return CodeExecution(sandbox, await link.kernels.attach(id_), owned=True, followers=followers)
            return await self._submit(sandbox, cell, id_, description, confirm=confirm, followers=followers)

    async def launch(self, sandbox: Sandbox, cell: CellSpec, description: ExecutionDescription = NATIVE) -> ProcessId:
        """Run a cell in the background. Return its id once the guest has accepted the cell.

        Args:
            sandbox: Sandbox of the cell.
            cell: Code to run.
            description: Facts for the execution log, and an id of the client: a cell that the guest knows under this id is not run again.

        Raises:
            NotFoundError: ``context_not_found``.
            LimitError: ``limit_exceeded``: too many cells run or wait in the background; ``quota_exceeded``.
            SandlotError: The cell could not be begun, or the sandbox has ended.
        """
        state, id_ = self.state.of(sandbox), description.id
        background = state.background
        if id_ is not None and (id_ in background or ((id_ in state.recent or state.guest_knows_more) and await _is_known(sandbox, id_))):
            return id_
        if len(background) >= MAX_BACKGROUND:
            raise LimitError(
                f"Sandbox {sandbox.id} runs {len(background)} executions in the background; at most {MAX_BACKGROUND} are allowed.",
                code=ErrorCode.LIMIT_EXCEEDED,
                hint="Wait until some have ended, or interrupt them.",
                fields={"sandbox": sandbox.id, "max_background": MAX_BACKGROUND},
            )
        chosen = id_ or new_process_id()
        background.add(chosen)  # before the first await, so that concurrent requests keep to the limit
        try:
            execution = await self._submit(sandbox, cell, chosen, replace(description, mode=BACKGROUND), confirm=True)
        except BaseException:
            background.discard(chosen)
            raise
        sandbox.spawn(self._read_in_background(execution, background))
        return chosen

    async def check_known(self, sandbox: Sandbox, execution: str) -> None:
        """Refuse the id of a cell that the guest does not remember.

        Raises:
            NotFoundError: ``execution_not_found``.
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
        """Follow a cell that was begun before and may have ended. Closing the execution does not interrupt the cell.

        Args:
            sandbox: Sandbox of the cell.
            execution: Id of the cell.
            events_from: Number of starts, displays, clears and errors that the client has seen.
            stdout_from: Byte offset to continue from; None is the oldest byte that the guest keeps.
            stderr_from: Byte offset to continue from; None is the oldest byte that the guest keeps.
            to_end: Follow the cell to its end. Otherwise follow what exists now; the status is ``running`` if the cell has not ended.

        Raises:
            NotFoundError: ``execution_not_found``, on iteration.
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
        """Collect what a cell has produced so far, from a position on.

        Args:
            sandbox: Sandbox of the cell.
            execution: Id of the cell.
            events_from: Number of starts, displays, clears and errors that the client has seen.
            stdout_from: Byte offset to continue from; None is the oldest byte that the guest keeps.
            stderr_from: Byte offset to continue from; None is the oldest byte that the guest keeps.
            wait_s: Seconds to wait for the end of the cell; None waits until the end, 0 does not wait.

        Returns:
            Collected output and results; the status is ``running`` if the cell has not ended.

        Raises:
            NotFoundError: ``execution_not_found``.
            SandboxEndedError: The sandbox ended.
        """
        output = OutputCollector(sandbox.buffers)
        try:
            if wait_s != 0:
                followed = await self.follow(sandbox, execution, events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from)
                try:
                    async with asyncio.timeout(wait_s):
                        async for event in followed:
                            output.add(event)
                        return _result(await followed.outcome(), followed.position, output)
                except TimeoutError:
                    at = followed.position
                    events_from, stdout_from, stderr_from = at.events, at.stdout, at.stderr
                finally:
                    await followed.close()
            rest = await self.follow(sandbox, execution, events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from, to_end=False)
            try:
                async for event in rest:
                    output.add(event)
                return _result(await rest.outcome(), rest.position, output)
            finally:
                await rest.close()
        finally:
            output.close()

    async def interrupt(self, sandbox: Sandbox, execution: str) -> bool:
        """Interrupt a cell as Ctrl-C would, or abort a waiting cell. Return False if the cell had ended.

        Raises:
            NotFoundError: ``execution_not_found``.
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
        """Send a cell to the guest, count and log it; with ``confirm`` wait until the guest has accepted the cell."""
        with self._usage.count(sandbox.owner):  # not counted if the cell cannot be begun
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
        """Follow a cell in the background for the log; the execution keeps the sandbox from being idle."""
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
    """Ask the guest for a cell.

    Raises:
        NotFoundError: The guest does not know the cell.
    """
    call = await link.kernels.attach(id_, wait=False)
    try:
        await call.result()
    finally:
        await call.aclose()


async def _confirm(link: Link, call: CellCall, execution: CodeExecution) -> None:
    """Wait until the guest has accepted a cell, by a second request on the same link: the guest handles requests in order.

    Raises:
        NotFoundError: ``context_not_found``. The execution is closed after this and every other error.
        SandlotError: The guest refused the cell.
    """
    try:
        try:
            await find_cell(link, call.id)
        except NotFoundError:
            await call.result()  # raises the guest's reason
            raise
    except BaseException as error:
        await execution.close()
        if isinstance(error, NotFoundError):
            raise contexts.not_found(error) from None
        raise


def _result(status: CodeExecutionStatus, position: OutputPosition, output: OutputCollector) -> CodeExecutionResult:
    captures = output.captures
    return CodeExecutionResult(status, captures[STDOUT], captures[STDERR], output.displays, output.omitted, output.error, position)
