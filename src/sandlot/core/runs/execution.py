"""One cell that somebody follows, and who is there for it.

Laws:
- A cell in the foreground belongs to everybody who asked for it: who began it, and who asked for the same again. It is interrupted, or
  aborted where it waits, when the last of them has left, and not before.
- One that can be asked for again, because its client chose its id, is given :data:`AWAY_S` in which somebody may come back for it: a
  connection that breaks interrupts nothing. Whoever follows it meanwhile counts as well.
- Who began it logs it, to its end and whoever leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from sandlot.core.activity import ExecutionFollowers
from sandlot.core.records.executions import LogEntry
from sandlot.core.runs import contexts
from sandlot.core.runs.cells import RUNNING, CodeExecutionStatus, OutputPosition, execution_status
from sandlot.core.runs.processes import STDOUT
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import CellCall
from sandlot.link.types import CellError, CellStarted, Cleared, Display, Lost, Output
from sandlot.model.errors import NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ids import ProcessId

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
