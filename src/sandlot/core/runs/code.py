"""Cells: code that runs in a context of the sandbox and keeps its variables there.

Laws:
- The guest has the queue: one cell at a time for each context, in the order in which they were asked for, and waiting takes nothing of
  a cell's own timeout. Cells, begun or waiting, outlive the service.
- A client that goes away from a cell that it ran in the foreground interrupts that one, and no other, unless somebody else is there for it
  (:mod:`sandlot.core.runs.execution`); the context and its variables stay. From one in the background nobody's leaving takes anything.
- A cell that is asked for again under its id is joined: it is begun, counted and logged once.
- A cell that waits or runs keeps its sandbox from being idle.
- What is collected of a cell is bounded: its output like a process's, its results by size, number and the sandbox's budget.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from sandlot.core.activity import ExecutionFollowers
from sandlot.core.records.executions import NATIVE, ExecutionDescription, LogEntry
from sandlot.core.runs import contexts
from sandlot.core.runs.cells import RUNNING, CellSpec, CodeExecutionResult, CodeExecutionStatus, OutputPosition
from sandlot.core.runs.collecting import CodeOutputCollector
from sandlot.core.runs.execution import CodeExecution
from sandlot.core.runs.inputs import check_id
from sandlot.core.runs.processes import STDERR, STDOUT
from sandlot.core.sandbox import GRACE_S, Sandbox
from sandlot.link.client import CellCall, Link
from sandlot.link.types import CellStarted
from sandlot.model.errors import ErrorCode, LimitError, NotFoundError, SandlotError, TimeoutExceededError
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.records import BACKGROUND

__all__ = ["RUNNING", "CellSpec", "CodeExecution", "CodeExecutionResult", "CodeExecutionStatus", "OutputPosition"]

MAX_BACKGROUND = 64
"""Cells of one sandbox that run or wait in the background: each takes one of the 192 calls that a link carries at once."""
REMEMBERED = 256
"""Ids of the cells of a sandbox that were begun last: more than a guest remembers cells."""


async def start(sandbox: Sandbox, cell: CellSpec, *, description: ExecutionDescription = NATIVE, id: ProcessId | None = None) -> CodeExecution:  # noqa: A002 - the word
    """Run a cell in the foreground: it is followed, and ends with whoever follows.

    Args:
        sandbox: Where.
        cell: It.
        description: What the log says of it beyond what it is.
        id: Its id, where the caller chose one; one that the guest knows is joined, and not run again.

    Raises:
        NotFoundError: ``context_not_found``.
        SandlotError: There is no such context, or the sandbox has ended.
    """
    certain = cell.context is not None and cell.kernel not in sandbox.contexts
    if id is None:
        return await _begun(sandbox, cell, new_process_id(), description, certain=certain)
    followers = sandbox.present.setdefault(id, ExecutionFollowers())
    followers.enter()
    try:
        async with followers.turn:
            if await _is_known(sandbox, id):
                async with sandbox.connection() as link:
                    return CodeExecution(sandbox, await link.attach_cell(id), owned=True, followers=followers)
            return await _begun(sandbox, cell, id, description, certain=certain, followers=followers)
    finally:
        followers.leave()
        if not followers.attended and not followers.people and sandbox.present.get(id) is followers:
            del sandbox.present[id]


async def begin(sandbox: Sandbox, cell: CellSpec, *, description: ExecutionDescription = NATIVE, id: ProcessId | None = None) -> ProcessId:  # noqa: A002 - the word
    """Run a cell in the background: return once the guest has it. It goes on whoever leaves, also the service.

    Args:
        sandbox: Where.
        cell: It.
        description: What the log says of it beyond what it is.
        id: Its id, where the caller chose one; one that the guest knows is not run again.

    Raises:
        NotFoundError: ``context_not_found``.
        LimitError: ``limit_exceeded``: too many run or wait in the background.
        SandlotError: There is no such context, or the sandbox has ended.
    """
    if id is not None and (id in sandbox.background or await _is_known(sandbox, id)):
        return id  # begun before: somebody attends to it, or it is over
    if len(sandbox.background) >= MAX_BACKGROUND:
        raise LimitError(
            f"{MAX_BACKGROUND} executions run or wait in the background of sandbox {sandbox.id}, which is the most.",
            code=ErrorCode.LIMIT_EXCEEDED,
            hint="Wait until some have ended, or interrupt them.",
            fields={"sandbox": sandbox.id, "max_background": MAX_BACKGROUND},
        )
    chosen = id or new_process_id()
    sandbox.background.add(chosen)  # its place is taken before anything is waited for
    try:
        execution = await _begun(sandbox, cell, chosen, replace(description, mode=BACKGROUND), certain=True)
    except BaseException:
        sandbox.background.discard(chosen)
        raise
    sandbox.spawn(_attend(sandbox, execution))
    return chosen


async def check_known(sandbox: Sandbox, execution: str) -> None:
    """Refuse a cell that is not remembered, before anything is told of it.

    Raises:
        NotFoundError: ``execution_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    async with contexts.reaching(sandbox) as link:
        await look(link, check_id(execution))


async def follow(
    sandbox: Sandbox,
    execution: str,
    *,
    events_from: int = 0,
    stdout_from: int | None = 0,
    stderr_from: int | None = 0,
    to_end: bool = True,
) -> CodeExecution:
    """Follow a cell that was begun before, running or over; closing that stops the following only.

    Args:
        sandbox: Where.
        execution: Its id.
        events_from: How many of started, displays, clears and errors the caller has seen.
        stdout_from: Byte offset to go on from; None is the oldest that is kept.
        stderr_from: The same.
        to_end: Until it ends; otherwise what there is by now, and its outcome is ``running`` where it is not over.

    Raises:
        NotFoundError: ``execution_not_found``, when it is iterated.
        SandboxEndedError: The sandbox has ended.
    """
    async with sandbox.connection() as link:
        call = await link.attach_cell(check_id(execution), events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from, wait=to_end)
    at = OutputPosition(events_from, stdout_from or 0, stderr_from or 0)
    return CodeExecution(sandbox, call, owned=False, followers=sandbox.present.get(call.id), start=at)


async def execute(
    sandbox: Sandbox,
    cell: CellSpec,
    *,
    description: ExecutionDescription = NATIVE,
    id: ProcessId | None = None,  # noqa: A002 - the word
) -> CodeExecutionResult:
    """Run a cell to its end and collect what it gives. Cancelling interrupts it.

    Args:
        sandbox: Where.
        cell: It.
        description: What the log says of it beyond what it is.
        id: Its id, where the caller chose one; one that the guest knows is joined, and not run again.

    Raises:
        NotFoundError: ``context_not_found``.
        SandlotError: There is no such context, or the sandbox ended.
    """
    execution = await start(sandbox, cell, description=description, id=id)
    results = CodeOutputCollector(sandbox.buffers)
    try:
        await _gather(sandbox, execution, results, cell.timeout_s)
        return _executed(await execution.outcome(), execution.position, results)
    finally:
        results.close()
        await execution.close()


async def collected(
    sandbox: Sandbox,
    execution: str,
    *,
    events_from: int = 0,
    stdout_from: int | None = None,
    stderr_from: int | None = None,
    wait_s: float | None = 0,
) -> CodeExecutionResult:
    """What there is of a cell by now, from a position on.

    Args:
        sandbox: Where.
        execution: Its id.
        events_from: How many of started, displays, clears and errors the caller has seen.
        stdout_from: Byte offset to go on from; None is the oldest that is kept.
        stderr_from: The same.
        wait_s: How long to wait for its end; None is until then, 0 does not wait.

    Returns:
        What it gave; the outcome's status is ``running`` where it is not over.

    Raises:
        NotFoundError: ``execution_not_found``.
        SandboxEndedError: The sandbox ended.
    """
    results = CodeOutputCollector(sandbox.buffers)
    at = OutputPosition(events_from, stdout_from or 0, stderr_from or 0)
    first: tuple[int | None, int | None] = (stdout_from, stderr_from)
    try:
        if wait_s != 0:
            followed = await follow(sandbox, execution, events_from=events_from, stdout_from=first[0], stderr_from=first[1])
            try:
                async with asyncio.timeout(wait_s):
                    async for event in followed:
                        results.add(event)
                    return _executed(await followed.outcome(), followed.position, results)
            except TimeoutError:
                at = followed.position
                first = (at.stdout, at.stderr)
            finally:
                await followed.close()
        rest = await follow(sandbox, execution, events_from=at.events, stdout_from=first[0], stderr_from=first[1], to_end=False)
        try:
            await _gather(sandbox, rest, results, None)
            return _executed(await rest.outcome(), rest.position, results)
        finally:
            await rest.close()
    finally:
        results.close()


async def interrupt(sandbox: Sandbox, execution: str) -> bool:
    """Interrupt one cell, as Ctrl-C would, or abort it where it waits; whether it was not over.

    Raises:
        NotFoundError: ``execution_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    async with contexts.reaching(sandbox) as link:
        return await link.interrupt(execution=check_id(execution))


async def _begun(
    sandbox: Sandbox, cell: CellSpec, id_: ProcessId, description: ExecutionDescription, *, certain: bool, followers: ExecutionFollowers | None = None
) -> CodeExecution:
    """Give a cell to the guest, count and log it; ``certain``: return only once the guest has taken it."""
    with sandbox.counted():
        async with sandbox.connection() as link:
            call = await link.execute(
                cell.code,
                kernel=cell.kernel,
                language=cell.speaks,
                env=dict(cell.env),
                timeout_s=cell.timeout_s,
                silent=cell.silent,
                store_history=cell.store_history,
                stop_on_error=cell.stop_on_error,
                id=id_,
            )
            execution = CodeExecution(sandbox, call, owned=True, followers=followers)
            if certain:
                try:
                    await _taken(link, call)
                    if cell.context is not None:
                        sandbox.contexts.add(cell.kernel)
                except BaseException as error:
                    await execution.close()
                    if isinstance(error, NotFoundError):
                        raise contexts.not_found(error) from None
                    raise
    execution.entry = _line(sandbox, cell, id_, description)
    sandbox.begun[id_] = None
    while len(sandbox.begun) > REMEMBERED:
        del sandbox.begun[next(iter(sandbox.begun))]
    return execution


async def _is_known(sandbox: Sandbox, id_: ProcessId) -> bool:
    """Whether the guest remembers a cell. It is asked only where it may: a round trip is long for one that is new."""
    if id_ not in sandbox.begun and not sandbox.inherited:
        return False
    try:
        async with sandbox.connection() as link:
            await look(link, id_)
    except NotFoundError:
        return False
    return True


async def look(link: Link, id_: ProcessId) -> None:
    """Return where the guest knows a cell.

    Raises:
        NotFoundError: It does not.
    """
    call = await link.attach_cell(id_, wait=False)
    try:
        await call.result()
    finally:
        await call.aclose()


async def _taken(link: Link, call: CellCall) -> None:
    """Return once the guest has a cell: it is asked for the cell on the same link, behind it.

    Raises:
        SandlotError: The guest has refused it; says why.
    """
    try:
        await look(link, call.id)
    except NotFoundError:
        await call.result()  # raises why
        raise


async def _gather(sandbox: Sandbox, execution: CodeExecution, results: CodeOutputCollector, timeout_s: float | None) -> None:
    """Collect a cell to its end. The guest ends it on time, from its beginning on; this is for a guest that does not."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as guard:
            async for event in execution:
                results.add(event)
                if isinstance(event, CellStarted) and timeout_s is not None:
                    guard.reschedule(loop.time() + timeout_s + GRACE_S)
    except TimeoutError:
        raise TimeoutExceededError(
            f"Sandbox {sandbox.id} did not end a cell {GRACE_S:g} s after its timeout.",
            code=ErrorCode.TIMEOUT,
            hint="Something inside may keep it from answering. Kill it and create a new one.",
            fields={"sandbox": sandbox.id},
        ) from None


async def _attend(sandbox: Sandbox, execution: CodeExecution) -> None:
    """Follow a cell in the background for the log, and keep the sandbox from being idle until it is over."""
    try:
        with suppress(SandlotError):
            async for _ in execution:
                pass
            await execution.outcome()
    finally:
        sandbox.background.discard(execution.id)
        await execution.release()


def _line(sandbox: Sandbox, cell: CellSpec, id_: ProcessId, description: ExecutionDescription) -> LogEntry | None:
    return None if sandbox.execution_log is None else sandbox.execution_log.cell(sandbox, id_, cell.speaks or "python", cell.code, description)


def _executed(outcome: CodeExecutionStatus, position: OutputPosition, results: CodeOutputCollector) -> CodeExecutionResult:
    return CodeExecutionResult(outcome, results[STDOUT], results[STDERR], results.shown, results.omitted, results.error, position)
