"""Cells: code that runs in a context of a sandbox and keeps its variables there.

Invariants:
- The guest queues the cells: each context runs one cell at a time, in the order of the requests. The timeout of a cell does not include the time
  in the queue. Cells that run or wait continue when the service stops.
- When the client of a foreground cell disconnects, the cell is interrupted if it runs, and aborted if it waits. No other cell is affected, and the
  context keeps its variables.
- A client can choose the id of a cell. Further requests with this id join the cell, so the cell is started, counted and logged only once. In the
  foreground, the cell then continues as long as any client is connected to it, and for 3 s after that (:mod:`sandlot.core.execution.state`).
- A background cell continues after its clients have disconnected.
- While a cell waits or runs, its sandbox is not idle.
- The collected output of a cell has the same limits as the output of a process. Results are limited by size, by number and by the buffer budget of
  the sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Self

from sandlot.core.access.idempotency import execution_id
from sandlot.core.execution.contexts import ContextService, not_found, reaching
from sandlot.core.execution.execution import Execution, Executions, ExecutionStream
from sandlot.core.execution.output import OutputCollector
from sandlot.core.execution.state import Kind
from sandlot.core.execution.stdin import check_id
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import GRACE_S, Sandbox
from sandlot.link.client import Link
from sandlot.link.kernels import CellCall
from sandlot.model.access import Principal
from sandlot.model.errors import LimitError, NotFoundError, SandlotError, TimeoutExceededError
from sandlot.model.executions import (
    NATIVE,
    CellError,
    CellStarted,
    Channel,
    Cleared,
    CodeAccepted,
    CodeEnded,
    CodeEvent,
    CodePosition,
    CodeResult,
    CodeStatus,
    Display,
    ExecutionOptions,
    Output,
    OutputGap,
)
from sandlot.model.ids import ProcessId
from sandlot.model.records import BACKGROUND
from sandlot.model.specs import CellSpec
from sandlot.model.streams import Stream

MAX_BACKGROUND: Final = 64
"""Maximum number of cells of one sandbox that run or wait in the background. Each of them takes one of the 192 concurrent calls of a link."""
MAX_RECENT: Final = 256
"""Maximum number of cell ids that the service keeps for one sandbox; the oldest ids are dropped first. A guest remembers fewer cells."""

Event = Output | OutputGap | CellStarted | Display | Cleared | CellError


class CodeExecution(ExecutionStream[CellCall, Event]):
    """One client's stream of a cell. Iterate over it for the events of the cell, then await :meth:`outcome`, and close it at the end.

    Raises:
        NotFoundError: There is no such context (code ``context_not_found``), or no such cell (code ``execution_not_found``). The iteration and
            :meth:`outcome` raise this error.
    """

    async def outcome(self) -> CodeStatus:
        """Wait for the end of the cell and return its status.

        If :meth:`CodeService.follow` opened the stream with ``to_end=False``, return the current status without waiting.
        """
        result = await self.result()
        return CodeStatus(self.id, result.status, result.execution_count, result.duration_s)

    async def collected(self, output: OutputCollector) -> CodeResult:
        """Wait for the end of the cell and return its result with the output and the displays that were collected."""
        status, captures = await self.outcome(), output.captures
        return CodeResult(status, captures[Channel.STDOUT], captures[Channel.STDERR], output.displays, output.omitted, output.error, self.position)

    async def _explain(self, error: SandlotError) -> SandlotError:
        error = await super()._explain(error)
        return not_found(error) if isinstance(error, NotFoundError) else error


class CodeStream:
    """Events of one cell for one client: :class:`CodeAccepted`, the events and the output of the cell, and :class:`CodeEnded`."""

    __slots__ = ("_execution", "_has_begun", "_is_over")

    def __init__(self, execution: CodeExecution) -> None:
        self._execution = execution
        self._has_begun = False
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CodeEvent:
        if self._is_over:
            raise StopAsyncIteration
        if not self._has_begun:
            self._has_begun = True
            return CodeAccepted(self._execution.id)
        try:
            return await anext(self._execution)
        except StopAsyncIteration:
            if self._execution.is_closed:
                raise
        self._is_over = True
        return CodeEnded(await self._execution.outcome())

    async def aclose(self) -> None:
        """Leave the cell: it is interrupted if this client owns it, or after 3 s without clients if a client chose the id. Idempotent."""
        await self._execution.close()


class CodeService:
    """Runs cells in sandboxes."""

    def __init__(self, registry: SandboxRegistry, contexts: ContextService, executions: Executions) -> None:
        self._registry = registry
        self._contexts = contexts
        self.executions = executions

    async def run(
        self,
        principal: Principal,
        sandbox: str,
        cell: CellSpec,
        options: ExecutionOptions = NATIVE,
        *,
        idempotency_key: str | None = None,
        on_output: Callable[[Output], object] | None = None,
    ) -> CodeResult:
        """Run a cell to its end and collect its output.

        If the guest already has a cell with the id that the client chose, no new cell is started, and the result is that of the existing cell.
        If the caller is cancelled, the cell is interrupted; if the client chose the id or an idempotency key, only once the cell has had no client
        for 3 s.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            cell: Code, and the context in which it runs.
            options: Id of the cell, and its description for the execution log.
            idempotency_key: Key of the request. An equal request with the same key joins the cell of the first request.
            on_output: Called with each piece of output as it arrives.

        Raises:
            NotFoundError: The sandbox has no such context (code ``context_not_found``).
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
        """
        live = self._registry.find(sandbox, principal)
        execution = await self.start(live, cell, options, idempotency_key=idempotency_key)
        output, loop = OutputCollector(live.buffers), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as guard:  # ends the wait if the guest does not enforce the cell's timeout
                async for event in execution:
                    output.add(event)
                    if on_output is not None and isinstance(event, Output):
                        on_output(event)
                    if isinstance(event, CellStarted) and cell.timeout_s is not None:
                        guard.reschedule(loop.time() + cell.timeout_s + GRACE_S)
            return await execution.collected(output)
        except TimeoutError:
            raise TimeoutExceededError(
                f"A cell in sandbox {live.id} had not ended {GRACE_S:g} s after its timeout.",
                hint="Kill the sandbox and create a new one. A process in the sandbox may keep it from responding.",
                fields={"sandbox": live.id},
            ) from None
        finally:
            output.close()
            await execution.close()

    async def stream(
        self,
        principal: Principal,
        sandbox: str,
        cell: CellSpec,
        options: ExecutionOptions = NATIVE,
        *,
        idempotency_key: str | None = None,
    ) -> Stream[CodeEvent]:
        """Start a cell, or join the cell with the id that the client chose, and return its events. Closing the stream is as cancelling :meth:`run`.

        If the cell names no context that is known to exist, its errors may arrive in the stream.
        """
        live = self._registry.find(sandbox, principal)
        return CodeStream(await self.start(live, cell, options, idempotency_key=idempotency_key))

    async def launch(
        self,
        principal: Principal,
        sandbox: str,
        cell: CellSpec,
        options: ExecutionOptions = NATIVE,
        *,
        idempotency_key: str | None = None,
    ) -> ProcessId:
        """Start a cell in the background. Return the id of the cell once the guest has accepted the cell.

        If the guest already has a cell with the id that the client chose, no new cell is started. If the caller is cancelled, no uncounted cell
        remains.

        Raises:
            NotFoundError: The sandbox has no such context (code ``context_not_found``).
            LimitError: Too many cells run or wait in the background (code ``limit_exceeded``), or the quota is used up (code ``quota_exceeded``).
        """
        live = self._registry.find(sandbox, principal)
        if idempotency_key is not None:
            options = replace(options, id=execution_id(live.id, idempotency_key, "background", cell))
        id_, known = options.id, self.executions.table.of(live)
        if id_ is not None and id_ not in known.live and (id_ in known.recent or known.guest_knows_more) and await _is_known(live, id_):
            return id_
        background = {each.id for each in known.live.values() if each.mode == BACKGROUND and each.kind is Kind.CELL}
        if len(background) >= MAX_BACKGROUND and id_ not in background:
            raise LimitError(
                f"Sandbox {live.id} runs {len(background)} executions in the background; at most {MAX_BACKGROUND} are allowed.",
                hint="Wait until some of these executions have ended, or interrupt some of them.",
                fields={"sandbox": live.id, "max_background": MAX_BACKGROUND},
            )

        options = replace(options, language=cell.language or "python", code=cell.code)
        return (await self.executions.launch(live, Kind.CELL, options, partial(self._submit, cell, confirm=True))).id

    async def follow(
        self, principal: Principal, sandbox: str, execution: str, start: CodePosition | None = None, *, to_end: bool = True
    ) -> Stream[CodeEvent]:
        """Return the events of a cell that was started earlier, and that may have ended. Closing the stream does not interrupt the cell.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            execution: Id of the cell.
            start: Position after which the events begin; None is the oldest that the guest keeps.
            to_end: False to read only events that exist already; if the cell has not ended, its status is ``running``.

        Raises:
            NotFoundError: The guest has no such cell (code ``execution_not_found``).
        """
        live = self._registry.find(sandbox, principal)
        at = start or CodePosition()
        async with reaching(live) as link:
            await _find_cell(link, check_id(execution))
        return CodeStream(await self._attach(live, execution, at, to_end=to_end))

    async def read(
        self, principal: Principal, sandbox: str, execution: str, start: CodePosition | None = None, *, wait_s: float | None = 0
    ) -> CodeResult:
        """Collect the output and the results of a cell from a position, which is given as for :meth:`follow`.

        ``wait_s`` is the number of seconds to wait for the end of the cell; None waits until the end. If the cell has not ended by then, its status
        is ``running``.

        Raises:
            NotFoundError: The guest has no such cell (code ``execution_not_found``).
        """
        live, at = self._registry.find(sandbox, principal), start or CodePosition()
        output = OutputCollector(live.buffers)
        try:
            if wait_s != 0:
                followed = await self._attach(live, execution, at)
                try:
                    return await _collect(followed, output, wait_s)
                except TimeoutError:
                    at = followed.position
            rest = await self._attach(live, execution, at, to_end=False)
            return await _collect(rest, output, None)
        finally:
            output.close()

    async def interrupt(self, principal: Principal, sandbox: str, execution: str) -> bool:
        """Interrupt a running cell as Ctrl-C would, or abort a cell that waits for its context. Return False if the cell had ended.

        Raises:
            NotFoundError: The guest has no such cell (code ``execution_not_found``).
        """
        async with reaching(self._registry.find(sandbox, principal)) as link:
            return await link.kernels.interrupt(execution=check_id(execution))

    # Operations on a live sandbox -------------------------------------------------------------------------------------

    async def start(
        self, sandbox: Sandbox, cell: CellSpec, options: ExecutionOptions = NATIVE, *, idempotency_key: str | None = None
    ) -> CodeExecution:
        """Start a cell in the foreground, or join the cell with the id that the client chose. See :meth:`run`."""
        if idempotency_key is not None:
            options = replace(options, id=execution_id(sandbox.id, idempotency_key, "foreground", cell))
        known = self.executions.table.of(sandbox)
        confirm = cell.context is not None and cell.context not in self._contexts.confirmed.of(sandbox)

        async def attach(id_: ProcessId) -> CellCall:
            async with sandbox.connection() as link:
                return await link.kernels.attach(id_)

        async def find(id_: ProcessId) -> CellCall | None:
            return await attach(id_) if await _is_known(sandbox, id_) else None

        options = replace(options, language=cell.language or "python", code=cell.code)
        call, client = await self.executions.open(
            sandbox,
            Kind.CELL,
            options,
            partial(self._submit, cell, confirm=confirm),
            # Ask the guest about the cell only if the guest may have it already: the round trip would delay the start of a new cell.
            find=find if options.id in known.recent or (options.id is not None and known.guest_knows_more) else None,
            attach=attach,
        )
        return CodeExecution(sandbox, call, client)

    async def _attach(self, live: Sandbox, execution: str, start: CodePosition, *, to_end: bool = True) -> CodeExecution:
        """Read the events of a cell from a position, to the end of the cell or to the last event that exists."""
        async with live.connection() as link:
            call = await link.kernels.attach(
                check_id(execution), events_from=start.events, stdout_from=start.stdout, stderr_from=start.stderr, wait=to_end
            )
        return CodeExecution(live, call, self.executions.enter(live, call.id), start=start)

    async def _submit(self, cell: CellSpec, execution: Execution, link: Link, *, confirm: bool) -> CellCall:
        """Send a cell to the guest. If ``confirm`` is True, wait until the guest has accepted the cell."""
        execution.was_sent = True
        call = await link.kernels.execute(cell, id=execution.id)
        if confirm:
            await _confirm(link, call)
            if cell.context is not None:
                self._contexts.confirmed.of(execution.sandbox).add(cell.context)
        recent = self.executions.table.of(execution.sandbox).recent
        recent[execution.id] = None
        while len(recent) > MAX_RECENT:
            del recent[next(iter(recent))]
        return call


async def _is_known(sandbox: Sandbox, id_: ProcessId) -> bool:
    """Return True if the guest has a cell with the id that a client chose."""
    try:
        async with sandbox.connection() as link:
            await _find_cell(link, id_)
    except NotFoundError:
        return False
    return True


async def _find_cell(link: Link, id_: ProcessId) -> None:
    """Raise NotFoundError if the guest has no cell with the id ``id_``."""
    call = await link.kernels.attach(id_, wait=False)
    try:
        await call.result()
    finally:
        await call.aclose()


async def _confirm(link: Link, call: CellCall) -> None:
    """Wait until the guest has accepted a cell.

    The function sends a second request on the same link. The guest handles requests in order, so the response shows whether the cell was accepted.
    If the function raises an error, the call is closed.

    Raises:
        NotFoundError: The context does not exist (code ``context_not_found``).
        SandlotError: The guest refused the cell.
    """
    try:
        try:
            await _find_cell(link, call.id)
        except NotFoundError:
            await call.result()  # raises the error with which the guest refused the cell
            raise
    except BaseException as error:
        await call.aclose()
        if isinstance(error, NotFoundError):
            raise not_found(error) from None
        raise


async def _collect(execution: CodeExecution, output: OutputCollector, timeout_s: float | None) -> CodeResult:
    """Collect the events of an execution until the execution yields no more events, and close the execution.

    Raises:
        TimeoutError: The timeout has passed. ``output`` contains the events that were read until then.
    """
    try:
        async with asyncio.timeout(timeout_s):
            async for event in execution:
                output.add(event)
            return await execution.collected(output)
    finally:
        await execution.close()
