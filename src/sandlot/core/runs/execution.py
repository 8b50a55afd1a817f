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

from sandlot.core.activity import Presence
from sandlot.core.records.executions import Line
from sandlot.core.runs import contexts
from sandlot.core.runs.cells import RUNNING, Outcome, Position, outcome_of
from sandlot.core.runs.processes import STDOUT
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import CellCall
from sandlot.link.types import CellError, CellStarted, Cleared, Display, Lost, Output
from sandlot.model.errors import NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ids import ProcessId

AWAY_S: Final = 3.0
"""How long a cell goes on that nobody is there for any more: a client tries again after less."""

Event = Output | Lost | CellStarted | Display | Cleared | CellError


class Execution:
    """One cell that somebody follows. Iterate it, then ask for the outcome; in the end close it.

    Args:
        box: Where it runs.
        call: The link's end of it.
        owned: Whether whoever follows asked for it, so that it ends with the last of them.
        presence: Who else is there for it; None where nobody else can be.
        start: Where it is followed from.
    """

    __slots__ = ("_attends", "_box", "_call", "_closed", "_hold", "_over", "_owned", "_presence", "line", "position")

    def __init__(self, box: Sandbox, call: CellCall, *, owned: bool, presence: Presence | None = None, start: Position | None = None) -> None:
        self._box = box
        self._hold = box.hold()
        self._call = call
        self._owned = owned
        self._presence = presence
        self._attends = owned and presence is not None and not presence.attended
        self._over = False
        self._closed = False
        self.line: Line | None = None
        """Its line in the log, of whoever began it."""
        self.position = start or Position()
        if presence is not None:
            presence.enter()
            presence.attended = presence.attended or owned

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
        if self.line is not None and outcome.status != RUNNING:
            self.line.end(outcome.status, duration_s=outcome.duration_s)
        return outcome

    async def close(self) -> None:
        """Stop following; one that is owned and not done is interrupted if nobody else is there for it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._presence is not None:
            self._presence.leave()
        if self._presence is not None and self._attends and not self._over:
            self._box.spawn(self._linger(self._presence))  # the hold is let go with it
            return
        self._hold.release()
        if self.line is not None:
            self.line.cut()
        self._forget()
        if self._owned and self._presence is None and not self._over:
            self._box.spawn(interrupted(self._box, self._call))
        else:
            await self._call.aclose()

    async def release(self) -> None:
        """Stop following, and interrupt nothing. Idempotent."""
        self._over = True
        await self.close()

    async def attend(self, back_s: float) -> None:
        """See to its end for whoever comes back for it, who has so many seconds; it needs a presence, and is closed with this."""
        if self._presence is None:
            raise RuntimeError("nobody can come back for it")
        self._closed = True
        self._presence.leave()
        await self._linger(self._presence, back_s)

    async def _linger(self, presence: Presence, first_s: float | None = None) -> None:
        """Go on with the log while somebody is there for it; when nobody has been for a while, interrupt it."""
        reading = asyncio.create_task(self._read())
        away = asyncio.create_task(presence.away(AWAY_S, first_s))
        try:
            await asyncio.wait({reading, away}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                if self.line is not None:
                    self.line.cut()
                await interrupted(self._box, self._call)
        finally:
            for task in (reading, away):
                task.cancel()
            if self.line is not None:
                self.line.cut()
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
        if self._attends and self._box.present.get(self.id) is self._presence:
            del self._box.present[self.id]

    def _note(self, event: Event) -> None:
        """Count, and let the log see what it gives."""
        at = self.position
        if isinstance(event, Output | Lost):
            end = event.offset + (len(event.data) if isinstance(event, Output) else event.bytes)
            self.position = Position(at.events, end, at.stderr) if event.channel == STDOUT else Position(at.events, at.stdout, end)
        else:
            self.position = Position(at.events + 1, at.stdout, at.stderr)
        if self.line is not None:
            note(self.line, event)


def note(line: Line, event: Event) -> None:
    """Let the log see what a cell gives."""
    if isinstance(event, Output | Lost):
        line.add(event)
    elif isinstance(event, CellError):
        line.raised(event)


async def interrupted(box: Sandbox, call: CellCall) -> None:
    """Nobody waits for a cell any more. One that ignores the interrupt loses its kernel: the guest sees to that."""
    if box.asleep:
        return  # nobody has left it: its sandbox's sleep cut the link
    with suppress(SandlotError):
        async with box.using() as link:
            await link.interrupt(execution=call.id)
    await call.aclose()
