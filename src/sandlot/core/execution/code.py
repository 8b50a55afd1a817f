"""Cells as values: what is to be run, how it ended, and what it gave.

One cell that somebody follows, and who is there for it.

Laws:
- A cell in the foreground belongs to everybody who asked for it: who began it, and who asked for the same again. It is interrupted, or
  aborted where it waits, when the last of them has left, and not before.
- One that can be asked for again, because its client chose its id, is given :data:`AWAY_S` in which somebody may come back for it: a
  connection that breaks interrupts nothing. Whoever follows it meanwhile counts as well.
- Who began it logs it, to its end and whoever leaves.

Cells: code that runs in a context of the sandbox and keeps its variables there.

Laws:
- The guest has the queue: one cell at a time for each context, in the order in which they were asked for, and waiting takes nothing of
  a cell's own timeout. Cells, begun or waiting, outlive the service.
- A client that goes away from a cell that it ran in the foreground interrupts that one, and no other, unless somebody else is there for it
  (:mod:`sandlot.core.execution.code`); the context and its variables stay. From one in the background nobody's leaving takes anything.
- A cell that is asked for again under its id is joined: it is begun, counted and logged once.
- A cell that waits or runs keeps its sandbox from being idle.
- What is collected of a cell is bounded: its output like a process's, its results by size, number and the sandbox's budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from sandlot.core.execution import contexts
from sandlot.core.execution.output import CodeOutputCollector, finite
from sandlot.core.execution.processes import STDERR, STDOUT
from sandlot.core.execution.stdin import check_id
from sandlot.core.records.execution_log import NATIVE, ExecutionDescription, LogEntry
from sandlot.core.sandbox import GRACE_S, ExecutionFollowers, Sandbox
from sandlot.link.client import CellCall, Link
from sandlot.link.types import CellError, CellResult, CellStarted, Cleared, Display, Lost, Output
from sandlot.model.capture import Capture
from sandlot.model.errors import (
    ErrorCode,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    SandboxEndedError,
    SandlotError,
    TimeoutExceededError,
    UnavailableError,
)
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.records import BACKGROUND
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, MAX_CODE_BYTES, MAX_TIMEOUT_S, check_env, check_text

__all__ = ["RUNNING", "CellSpec", "CodeExecution", "CodeExecutionResult", "CodeExecutionStatus", "OutputPosition"]


RUNNING = "running"
"""The status of one that is not over."""


@dataclass(frozen=True, slots=True)
class CellSpec:
    """Code to run.

    Args:
        code: At most 4 MiB.
        language: A key of ``contexts.LANGUAGES``; None is the context's, or python.
        context: Where; None is the default one of the language.
        env: Set for this cell only.
        timeout_s: Seconds from its beginning until it is interrupted; None is never.
        silent: Whether its last expression is shown to nobody, and it counts for nothing.
        store_history: Whether it counts.
        stop_on_error: Whether those that wait behind it are aborted where it fails.
    """

    code: str
    language: str | None = "python"
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = DEFAULT_COMMAND_TIMEOUT_S
    context: str | None = None
    silent: bool = False
    store_history: bool = True
    stop_on_error: bool = False

    def __post_init__(self) -> None:
        """Refuse what no context takes."""
        if self.language is not None:
            contexts.language_of(self.language)
        if self.context is not None:
            contexts.check_id(self.context)
        if "\0" in self.code:
            raise InvalidRequestError(
                "The code contains a NUL character, which is not allowed in source code.",
                hint="Write '\\0' as an escape, or upload binary content as a file and read it in the code.",
                fields={"field": "code"},
            )
        size = len(check_text("code", self.code))
        if size > MAX_CODE_BYTES:
            raise LimitError(
                f"The code has {size} bytes; at most {MAX_CODE_BYTES} are allowed.",
                code=ErrorCode.TOO_LARGE,
                hint="Upload it as a file and run that, or upload the data in it as a file and read it in the code.",
                fields={"field": "code", "bytes": size, "max_bytes": MAX_CODE_BYTES},
            )
        check_env(self.env)
        if self.timeout_s is not None and not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise InvalidRequestError(
                f"timeout is {self.timeout_s:g}; it must be more than 0 and at most {MAX_TIMEOUT_S:g}.", fields={"field": "timeout"}
            )

    @property
    def kernel(self) -> str:
        """The context's id."""
        return self.context or contexts.default_of(self.language or "python")

    @property
    def speaks(self) -> str | None:
        """Its language by the name that contexts have it by; None where it said none."""
        return None if self.language is None else contexts.language_of(self.language)


@dataclass(frozen=True, slots=True)
class CodeExecutionStatus:
    """How a cell ended: status ok, error, timeout, killed, died, oom or aborted; or running, where it has not."""

    execution: ProcessId
    status: str
    execution_count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """How far a cell has been followed: where to go on.

    Args:
        events: Of started, displays, clears and errors.
        stdout: Byte offset.
        stderr: The same.
    """

    events: int = 0
    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, slots=True)
class CodeExecutionResult:
    """A cell that was run to its end, or as far as it has come, and all that it gave."""

    outcome: CodeExecutionStatus
    stdout: Capture
    stderr: Capture
    results: Sequence[Display]
    results_omitted: int
    error: CellError | None
    position: OutputPosition = OutputPosition()


def execution_status(execution: ProcessId, result: CellResult) -> CodeExecutionStatus:
    """What a guest's result comes to."""
    return CodeExecutionStatus(execution, result.status, result.execution_count, finite(result.duration_s))


AWAY_S: Final = 3.0
"""How long a cell goes on that nobody is there for any more: a client tries again after less."""
Event = Output | Lost | CellStarted | Display | Cleared | CellError


class CodeExecution:
    """One cell that somebody follows. Iterate it, then ask for the outcome; in the end close it.

    Args:
        sandbox: Where it runs.
        call: The link's end of it.
        owned: Whether whoever follows asked for it, so that it ends with the last of them.
        followers: Who else is there for it; None where nobody else can be.
        start: Where it is followed from.
    """

    __slots__ = ("_attends", "_call", "_closed", "_followers", "_hold", "_over", "_owned", "_sandbox", "entry", "position")

    def __init__(
        self, sandbox: Sandbox, call: CellCall, *, owned: bool, followers: ExecutionFollowers | None = None, start: OutputPosition | None = None
    ) -> None:
        self._sandbox = sandbox
        self._hold = sandbox.hold()
        self._call = call
        self._owned = owned
        self._followers = followers
        self._attends = owned and followers is not None and not followers.attended
        self._over = False
        self._closed = False
        self.entry: LogEntry | None = None
        """Its line in the log, of whoever began it."""
        self.position = start or OutputPosition()
        if followers is not None:
            followers.enter()
            followers.attended = followers.attended or owned

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
            raise await self._sandbox.explain(error) from None
        except NotFoundError as error:
            raise contexts.not_found(error) from None

    async def outcome(self) -> CodeExecutionStatus:
        """How it ended; waits for that.

        Raises:
            SandboxEndedError: The sandbox ended first; says why.
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
        outcome = execution_status(self._call.id, result)
        if self.entry is not None and outcome.status != RUNNING:
            self.entry.end(outcome.status, duration_s=outcome.duration_s)
        return outcome

    async def close(self) -> None:
        """Stop following; one that is owned and not done is interrupted if nobody else is there for it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._followers is not None:
            self._followers.leave()
        if self._followers is not None and self._attends and not self._over:
            self._sandbox.spawn(self._linger(self._followers))  # the hold is let go with it
            return
        self._hold.release()
        if self.entry is not None:
            self.entry.cut()
        self._forget()
        if self._owned and self._followers is None and not self._over:
            self._sandbox.spawn(interrupted(self._sandbox, self._call))
        else:
            await self._call.aclose()

    async def release(self) -> None:
        """Stop following, and interrupt nothing. Idempotent."""
        self._over = True
        await self.close()

    async def attend(self, back_s: float) -> None:
        """See to its end for whoever comes back for it, who has so many seconds; it needs a presence, and is closed with this."""
        if self._followers is None:
            raise RuntimeError("nobody can come back for it")
        self._closed = True
        self._followers.leave()
        await self._linger(self._followers, back_s)

    async def _linger(self, followers: ExecutionFollowers, first_s: float | None = None) -> None:
        """Go on with the log while somebody is there for it; when nobody has been for a while, interrupt it."""
        reading = asyncio.create_task(self._read())
        away = asyncio.create_task(followers.away(AWAY_S, first_s))
        try:
            await asyncio.wait({reading, away}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                if self.entry is not None:
                    self.entry.cut()
                await interrupted(self._sandbox, self._call)
        finally:
            for task in (reading, away):
                task.cancel()
            if self.entry is not None:
                self.entry.cut()
            self._forget()
            self._hold.release()
            await self._call.aclose()

    async def _read(self) -> None:
        with suppress(SandlotError):
            async for event in self._call:
                self._note(event)
            await self.outcome()

    def _forget(self) -> None:
        """Nobody attends to it here any more."""
        if self._attends and self._sandbox.present.get(self.id) is self._followers:
            del self._sandbox.present[self.id]

    def _note(self, event: Event) -> None:
        """Count, and let the log see what it gives."""
        at = self.position
        if isinstance(event, Output | Lost):
            end = event.offset + (len(event.data) if isinstance(event, Output) else event.bytes)
            self.position = OutputPosition(at.events, end, at.stderr) if event.channel == STDOUT else OutputPosition(at.events, at.stdout, end)
        else:
            self.position = OutputPosition(at.events + 1, at.stdout, at.stderr)
        if self.entry is not None:
            note(self.entry, event)


def note(entry: LogEntry, event: Event) -> None:
    """Let the log see what a cell gives."""
    if isinstance(event, Output | Lost):
        entry.add(event)
    elif isinstance(event, CellError):
        entry.raised(event)


async def interrupted(sandbox: Sandbox, call: CellCall) -> None:
    """Nobody waits for a cell any more. One that ignores the interrupt loses its kernel: the guest sees to that."""
    if sandbox.is_hibernated:
        return  # nobody has left it: its sandbox's sleep cut the link
    with suppress(SandlotError):
        async with sandbox.connection() as link:
            await link.interrupt(execution=call.id)
    await call.aclose()


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
