"""Cells: code that runs in a context of the sandbox and keeps its variables there.

Laws:
- The guest has the queue: one cell at a time for each context, in the order in which they were asked for, and waiting takes nothing of
  a cell's own timeout. Cells, begun or waiting, outlive the service.
- A client that goes away from a cell that it ran in the foreground interrupts that one, and no other; the context and its variables
  stay. From one in the background nobody's leaving takes anything.
- A cell that waits or runs keeps its sandbox from being idle.
- What is collected of a cell is bounded: its output like a process's, its results by size, number and the sandbox's budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from sandlot.core.records.executions import NATIVE, Label, Line
from sandlot.core.runs import contexts
from sandlot.core.runs.cells import RUNNING, Cell, Executed, Outcome, Position, outcome_of
from sandlot.core.runs.collecting import Results
from sandlot.core.runs.inputs import check_id
from sandlot.core.runs.processes import STDERR, STDOUT
from sandlot.core.sandbox import GRACE_S, Hold, Sandbox
from sandlot.link.client import CellCall, Link
from sandlot.link.types import CellError, CellStarted, Cleared, Display, Lost, Output
from sandlot.model.errors import ErrorCode, LimitError, NotFoundError, SandboxEndedError, SandlotError, TimeoutExceededError, UnavailableError
from sandlot.model.ids import ProcessId

__all__ = ["RUNNING", "Cell", "Executed", "Outcome", "Position"]

MAX_BACKGROUND = 64
"""Cells of one sandbox that run or wait in the background: each takes one of the 192 calls that a link carries at once."""

Event = Output | Lost | CellStarted | Display | Cleared | CellError


class Execution:
    """One cell that somebody follows. Iterate it, then ask for the outcome; in the end close it.

    Args:
        box: Where it runs.
        call: The link's end of it.
        line: Its line in the log.
        owned: Whether it ends with whoever follows.
        start: Where it is followed from.
    """

    __slots__ = ("_box", "_call", "_closed", "_hold", "_line", "_over", "_owned", "position")

    def __init__(self, box: Sandbox, call: CellCall, *, line: Line | None = None, owned: bool, start: Position | None = None) -> None:
        self._box = box
        self._line = line
        self._hold = box.hold()
        self._call = call
        self._owned = owned
        self._over = False
        self._closed = False
        self.position = start or Position()

    @property
    def id(self) -> ProcessId:
        """Its id."""
        return self._call.id

    async def __aiter__(self) -> AsyncIterator[Event]:
        """What it gives as it comes, until its end. One that is not iterated stops the cell.

        Raises:
            SandboxEndedError: The sandbox ended meanwhile; says why.
            NotFoundError: ``context_not_found``, or ``execution_not_found`` for a cell that is not remembered.
        """
        try:
            async for event in self._call:
                self._note(event)
                yield event
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._box.explain(error) from None
        except NotFoundError as error:
            raise contexts.not_found(error) from None

    async def outcome(self) -> Outcome:
        """How it ended; waits for that.

        Raises:
            SandboxEndedError: The sandbox ended first; says why.
        """
        try:
            result = await self._call.result()
        except (SandboxEndedError, UnavailableError) as error:
            self._over = True
            raise await self._box.explain(error) from None
        except NotFoundError as error:
            self._over = True
            raise contexts.not_found(error) from None
        self._over = True
        outcome = outcome_of(self._call.id, result)
        if self._line is not None and outcome.status != RUNNING:
            self._line.end(outcome.status, duration_s=outcome.duration_s)
        return outcome

    async def close(self) -> None:
        """Stop following; one that is owned and not done is interrupted, or aborted where it waits. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._hold.release()
        if self._line is not None:
            self._line.cut()
        if self._owned and not self._over:
            self._box.keep(asyncio.create_task(_interrupt(self._box, self._call)))
        else:
            await self._call.aclose()

    def _note(self, event: Event) -> None:
        """Count, and let the log see what it gives."""
        at = self.position
        if isinstance(event, Output | Lost):
            end = event.offset + (len(event.data) if isinstance(event, Output) else event.bytes)
            self.position = Position(at.events, end, at.stderr) if event.channel == STDOUT else Position(at.events, at.stdout, end)
        else:
            self.position = Position(at.events + 1, at.stdout, at.stderr)
        if self._line is not None:
            _note(self._line, event)


async def start(box: Sandbox, cell: Cell, *, label: Label = NATIVE, id: ProcessId | None = None) -> Execution:  # noqa: A002 - the word
    """Run a cell in the foreground: it is followed, and ends with whoever follows.

    Args:
        box: Where.
        cell: It.
        label: What the log says of it beyond what it is.
        id: Its id, where the caller chose one; one that the guest knows is joined, and not run again.

    Raises:
        NotFoundError: ``context_not_found``.
        SandlotError: There is no such context, or the sandbox has ended.
    """
    call = await _submit(box, cell, id, certain=cell.context is not None)
    return Execution(box, call, line=_line(box, cell, call.id, label), owned=True)


async def begin(box: Sandbox, cell: Cell, *, label: Label = NATIVE, id: ProcessId | None = None) -> ProcessId:  # noqa: A002 - the word
    """Run a cell in the background: return once the guest has it. It goes on whoever leaves, also the service.

    Args:
        box: Where.
        cell: It.
        label: What the log says of it beyond what it is.
        id: Its id, where the caller chose one; one that the guest knows is not run again.

    Raises:
        NotFoundError: ``context_not_found``.
        LimitError: ``limit_exceeded``: too many run or wait in the background.
        SandlotError: There is no such context, or the sandbox has ended.
    """
    if len(box.background) >= MAX_BACKGROUND and id not in box.background:
        raise LimitError(
            f"{MAX_BACKGROUND} executions run or wait in the background of sandbox {box.id}, which is the most.",
            code=ErrorCode.LIMIT_EXCEEDED,
            hint="Wait until some have ended, or interrupt them.",
            fields={"sandbox": box.id, "max_background": MAX_BACKGROUND},
        )
    call = await _submit(box, cell, id, certain=True)
    if call.id in box.background:  # begun twice: somebody attends to it
        await call.aclose()
    else:
        box.background.add(call.id)
        box.keep(asyncio.create_task(_attend(box, call, _line(box, cell, call.id, label), box.hold())))
    return call.id


async def follow(
    box: Sandbox,
    execution: str,
    *,
    events_from: int = 0,
    stdout_from: int | None = 0,
    stderr_from: int | None = 0,
    to_end: bool = True,
) -> Execution:
    """Follow a cell that was begun before, running or over; closing that stops the following only.

    Args:
        box: Where.
        execution: Its id.
        events_from: How many of started, displays, clears and errors the caller has seen.
        stdout_from: Byte offset to go on from; None is the oldest that is kept.
        stderr_from: The same.
        to_end: Until it ends; otherwise what there is by now, and its outcome is ``running`` where it is not over.

    Raises:
        NotFoundError: ``execution_not_found``, when it is iterated.
        SandboxEndedError: The sandbox has ended.
    """
    async with box.using() as link:
        call = await link.attach_cell(check_id(execution), events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from, wait=to_end)
    return Execution(box, call, owned=False, start=Position(events_from, stdout_from or 0, stderr_from or 0))


async def execute(box: Sandbox, cell: Cell, *, label: Label = NATIVE, id: ProcessId | None = None) -> Executed:  # noqa: A002 - the word
    """Run a cell to its end and collect what it gives. Cancelling interrupts it.

    Args:
        box: Where.
        cell: It.
        label: What the log says of it beyond what it is.
        id: Its id, where the caller chose one; one that the guest knows is joined, and not run again.

    Raises:
        NotFoundError: ``context_not_found``.
        SandlotError: There is no such context, or the sandbox ended.
    """
    execution = await start(box, cell, label=label, id=id)
    results = Results(box.budget)
    try:
        await _gather(box, execution, results, cell.timeout_s)
        return _executed(await execution.outcome(), execution.position, results)
    finally:
        results.close()
        await execution.close()


async def collected(
    box: Sandbox,
    execution: str,
    *,
    events_from: int = 0,
    stdout_from: int | None = None,
    stderr_from: int | None = None,
    wait_s: float | None = 0,
) -> Executed:
    """What there is of a cell by now, from a position on.

    Args:
        box: Where.
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
    results = Results(box.budget)
    at = Position(events_from, stdout_from or 0, stderr_from or 0)
    first: tuple[int | None, int | None] = (stdout_from, stderr_from)
    try:
        if wait_s != 0:
            followed = await follow(box, execution, events_from=events_from, stdout_from=first[0], stderr_from=first[1])
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
        rest = await follow(box, execution, events_from=at.events, stdout_from=first[0], stderr_from=first[1], to_end=False)
        try:
            await _gather(box, rest, results, None)
            return _executed(await rest.outcome(), rest.position, results)
        finally:
            await rest.close()
    finally:
        results.close()


async def interrupt(box: Sandbox, execution: str) -> bool:
    """Interrupt one cell, as Ctrl-C would, or abort it where it waits; whether it was not over.

    Raises:
        NotFoundError: ``execution_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    try:
        async with box.using() as link:
            return await link.interrupt(execution=check_id(execution))
    except NotFoundError as error:
        raise contexts.not_found(error) from None


def _note(line: Line, event: Event) -> None:
    """Let the log see what a cell gives."""
    if isinstance(event, Output | Lost):
        line.add(event)
    elif isinstance(event, CellError):
        line.raised(event)


async def _submit(box: Sandbox, cell: Cell, id_: ProcessId | None, *, certain: bool) -> CellCall:
    """Give a cell to the guest; ``certain``: return only once the guest has taken it."""
    with box.counted():
        async with box.using() as link:
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
            if certain:
                try:
                    await _taken(link, call)
                except NotFoundError as error:
                    raise contexts.not_found(error) from None
                except BaseException:
                    box.keep(asyncio.create_task(_interrupt(box, call)))
                    raise
    return call


async def _taken(link: Link, call: CellCall) -> None:
    """Return once the guest has a cell: it is asked for the cell on the same link, behind it.

    Raises:
        SandlotError: The guest has refused it; says why.
    """
    look = await link.attach_cell(call.id, wait=False)
    try:
        await look.result()
    except NotFoundError:
        await call.result()  # raises why
        raise
    finally:
        await look.aclose()


async def _gather(box: Sandbox, execution: Execution, results: Results, timeout_s: float | None) -> None:
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
            f"Sandbox {box.id} did not end a cell {GRACE_S:g} s after its timeout.",
            code=ErrorCode.TIMEOUT,
            hint="Something inside may keep it from answering. Kill it and create a new one.",
            fields={"sandbox": box.id},
        ) from None


async def _interrupt(box: Sandbox, call: CellCall) -> None:
    """Nobody waits for a cell any more. One that ignores the interrupt loses its kernel: the guest sees to that."""
    with suppress(SandlotError):
        async with box.using() as link:
            await link.interrupt(execution=call.id)
    await call.aclose()


async def _attend(box: Sandbox, call: CellCall, line: Line | None, hold: Hold) -> None:
    """Follow a cell in the background for the log, and keep the sandbox from being idle until it is over."""
    try:
        async for event in call:
            if line is not None:
                _note(line, event)
        outcome = outcome_of(call.id, await call.result())
        if line is not None:
            line.end(outcome.status, duration_s=outcome.duration_s)
    except SandlotError:
        if line is not None:
            line.cut()
    except asyncio.CancelledError:
        if line is not None:
            line.cut()
        raise
    finally:
        box.background.discard(call.id)
        hold.release()
        await call.aclose()


def _line(box: Sandbox, cell: Cell, id_: ProcessId, label: Label) -> Line | None:
    return None if box.journal is None else box.journal.cell(box, id_, cell.speaks or "python", cell.code, label)


def _executed(outcome: Outcome, position: Position, results: Results) -> Executed:
    return Executed(outcome, results[STDOUT], results[STDERR], results.shown, results.omitted, results.error, position)
