"""Cells: code that runs in a kernel of the sandbox and keeps its variables there.

Laws:
- One cell at a time for each kernel, in the order in which they were asked for; waiting takes nothing of a cell's own timeout.
- A client that goes away interrupts its cell, and no other; the kernel and its variables stay.
- What is collected of a cell is bounded: its output like a process's, its results by size, number and the sandbox's budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sandlot.core.records.executions import NATIVE, Label, Line
from sandlot.core.runs.outcomes import Collected, finite
from sandlot.core.runs.processes import STDERR, STDOUT
from sandlot.core.sandbox import GRACE_S, Sandbox
from sandlot.link.client import CellCall
from sandlot.link.types import CellError, CellResult, CellStarted, Cleared, Display, Lost, Output
from sandlot.model.capture import Capture
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ids import ProcessId
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, MAX_CODE_BYTES, MAX_TIMEOUT_S, MIB, check_env, check_text

LANGUAGES: Mapping[str, str] = {"python": "default", "python3": "default"}
"""language -> the kernel that runs it."""

MAX_RESULTS = 1000
MAX_RESULT_BYTES = 32 * MIB

INTERRUPT_PATIENCE_S = 10.0
"""How long a cell that nobody waits for any more may take to heed its interrupt."""

Event = Output | Lost | CellStarted | Display | Cleared | CellError


@dataclass(frozen=True, slots=True)
class Cell:
    """Code to run.

    Args:
        code: At most 4 MiB.
        language: A key of ``LANGUAGES``.
        env: Set for this cell only.
        timeout_s: Seconds until it is interrupted; None is never.
    """

    code: str
    language: str = "python"
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = DEFAULT_COMMAND_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse what no kernel takes."""
        if self.language not in LANGUAGES:
            raise InvalidRequestError(
                f"Code in {self.language[:50]!r} cannot be run as a cell.",
                hint=f"Cells can be: {', '.join(LANGUAGES)}. Anything else runs as a command, from a file.",
                fields={"field": "language"},
            )
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a cell ended: status ok, error, timeout, killed or died."""

    execution: ProcessId
    status: str
    execution_count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Executed:
    """A cell that was run to its end, and all that it gave."""

    outcome: Outcome
    stdout: Capture
    stderr: Capture
    results: Sequence[Display]
    results_omitted: int
    error: CellError | None


class Execution:
    """One cell that somebody follows. Iterate it, then ask for the outcome; in the end detach or abandon it.

    Args:
        box: Where it runs.
        call: The link's end of it.
        kernel: What runs it.
        turn: Held while the cell may run.
        line: Its line in the log.
    """

    __slots__ = ("_box", "_call", "_hold", "_kernel", "_line", "_over", "_turn")

    def __init__(self, box: Sandbox, call: CellCall, kernel: str, turn: asyncio.Lock, line: Line | None = None) -> None:
        self._box = box
        self._line = line
        self._hold = box.hold()
        self._call = call
        self._kernel = kernel
        self._turn: asyncio.Lock | None = turn
        self._over = False

    @property
    def id(self) -> ProcessId:
        """Its id."""
        return self._call.id

    async def __aiter__(self) -> AsyncIterator[Event]:
        """What it gives as it comes, until its end. One that is not iterated stops the cell.

        Raises:
            SandboxEndedError: The sandbox ended meanwhile; says why.
        """
        try:
            async for event in self._call:
                self._note(event)
                yield event
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._box.explain(error) from None

    async def outcome(self) -> Outcome:
        """How it ended; waits for that.

        Raises:
            SandboxEndedError: The sandbox ended first; says why.
        """
        try:
            result: CellResult = await self._call.result()
        except (SandboxEndedError, UnavailableError) as error:
            self._over = True
            raise await self._box.explain(error) from None
        self._over = True
        outcome = Outcome(self._call.id, result.status, result.execution_count, finite(result.duration_s))
        if self._line is not None:
            self._line.end(outcome.status, duration_s=outcome.duration_s)
        return outcome

    def _note(self, event: Event) -> None:
        """Let the log see what it gives."""
        if self._line is None:
            return
        if isinstance(event, Output | Lost):
            self._line.add(event)
        elif isinstance(event, CellError):
            self._line.raised(event)

    async def close(self) -> None:
        """Stop following a cell that is done, and interrupt one that is not. Idempotent."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        self._hold.release()
        if self._line is not None:
            self._line.cut()
        if self._over:
            await self._call.aclose()
            turn.release()
        else:
            self._box.keep(asyncio.create_task(self._interrupt(turn)))

    async def _interrupt(self, turn: asyncio.Lock) -> None:
        try:
            with suppress(SandlotError):
                async with self._box.using() as link:
                    await link.interrupt(self._kernel)
                # The next cell must wait until this one has ended. One that ignores the interrupt loses its kernel.
                ended = asyncio.ensure_future(self._drain())
                await asyncio.wait({ended}, timeout=INTERRUPT_PATIENCE_S)
                if not ended.done():
                    async with self._box.using() as link:
                        await link.restart(self._kernel)
                await ended
        finally:
            turn.release()
            await self._call.aclose()

    async def _drain(self) -> None:
        async for _ in self._call:
            pass


async def start(box: Sandbox, cell: Cell, *, label: Label = NATIVE) -> Execution:
    """Start a cell and follow it; waits for the cells before it.

    Args:
        box: Where.
        cell: It.
        label: What the log says of it beyond what it is.

    Raises:
        SandlotError: There is no such kernel, or the sandbox has ended.
    """
    kernel = LANGUAGES[cell.language]
    turn = box.kernels.setdefault(kernel, asyncio.Lock())
    await turn.acquire()
    try:
        with box.counted():
            async with box.using() as link:
                call = await link.execute(cell.code, kernel=kernel, env=dict(cell.env), timeout_s=cell.timeout_s)
        line = None if box.journal is None else box.journal.cell(box, call.id, cell.language, cell.code, label)
        return Execution(box, call, kernel, turn, line)
    except BaseException:
        turn.release()
        raise


async def execute(box: Sandbox, cell: Cell, *, label: Label = NATIVE) -> Executed:
    """Run a cell to its end and collect what it gives. Cancelling interrupts it.

    Args:
        box: Where.
        cell: It.
        label: What the log says of it beyond what it is.

    Raises:
        SandlotError: There is no such kernel, or the sandbox ended.
    """
    execution = await start(box, cell, label=label)
    output = Collected(box.budget, (STDOUT, STDERR))
    results: list[Display] = []
    room, omitted = MAX_RESULT_BYTES, 0
    error: CellError | None = None
    try:
        # The guest ends it on time; this is for a guest that does not.
        async with box.using(None if cell.timeout_s is None else cell.timeout_s + GRACE_S):
            async for event in execution:
                if isinstance(event, Output | Lost):
                    output.add(event)
                elif isinstance(event, CellError):
                    error = event
                elif isinstance(event, Display):
                    size = _size(event.data)
                    room -= size
                    if room >= 0 and len(results) < MAX_RESULTS and output.try_take(size):
                        results.append(event)
                    else:
                        omitted += 1
            outcome = await execution.outcome()
    finally:
        output.close()
        await execution.close()
    return Executed(outcome, output[STDOUT], output[STDERR], results, omitted, error)


def _size(data: Mapping[str, str | bytes]) -> int:
    """About how many bytes of memory a result takes."""
    return 200 + sum(200 + len(mime) + len(item) for mime, item in data.items())
