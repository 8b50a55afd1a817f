"""What happened, numbered in the order of commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update
from sqlalchemy import insert as plain_insert

from sandlot.model.access import OwnerId
from sandlot.model.ids import SandboxId
from sandlot.model.records import EventRecord, NewEvent
from sandlot.store.engine import Database
from sandlot.store.rows import of
from sandlot.store.schema import EVENTS, counters, events

PIECE = 1000
"""Rows that are dropped in one transaction."""


class Events:
    """Fills :class:`sandlot.model.storage.EventTable`.

    Args:
        database: Where.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, events: Sequence[NewEvent]) -> None:
        """Append some, in this order."""
        if events:
            await self._database.write(lambda connection: append(connection, events))

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, after: int, limit: int) -> Sequence[EventRecord]:
        """By sequence number, oldest first, those with a larger one than ``after``."""
        query = of(select(events).where(events.c.sequence > after), events, owner=owner, sandbox=sandbox).order_by(events.c.sequence).limit(limit)
        return [_event(row) for row in await self._database.rows(query)]

    async def last(self) -> int:
        """The largest sequence number that was ever given; 0 where nothing happened yet."""
        query = select(counters.c.value).where(counters.c.name == EVENTS)
        (row,) = await self._database.rows(query)
        return int(row.value)

    async def forget(self, *, before: datetime) -> int:
        """Drop those from before then; how many."""
        old = select(events.c.sequence).where(events.c.at < before).limit(PIECE)
        return await self._database.apply_all(delete(events).where(events.c.sequence.in_(old)))

    async def trim(self, *, keep: int) -> int:
        """Drop the oldest, so that at most ``keep`` are left; how many were dropped."""
        first = await self._database.rows(select(events.c.sequence).order_by(events.c.sequence.desc()).offset(keep).limit(1))
        if not first:
            return 0
        old = select(events.c.sequence).where(events.c.sequence <= first[0].sequence).limit(PIECE)
        return await self._database.apply_all(delete(events).where(events.c.sequence.in_(old)))


def append(connection: Connection, new: Sequence[NewEvent]) -> None:
    """Append some within a transaction. The last thing that it does: the counter stays locked until the transaction has committed."""
    taken = update(counters).where(counters.c.name == EVENTS).values(value=counters.c.value + len(new)).returning(counters.c.value)
    first = int(connection.execute(taken).scalar_one()) - len(new) + 1
    rows = [
        {"sequence": number, "type": one.type, "at": one.at, "owner": one.owner, "sandbox": one.sandbox, "data": dict(one.data)}
        for number, one in enumerate(new, first)
    ]
    connection.execute(plain_insert(events), rows)


def _event(row: Row[Any]) -> EventRecord:
    return EventRecord(sequence=row.sequence, event=NewEvent(type=row.type, at=row.at, owner=row.owner, sandbox=row.sandbox, data=row.data))
