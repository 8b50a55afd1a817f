"""Events, numbered in the order of commits."""

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
from sandlot.store.schema import EVENTS, counters, events
from sandlot.store.statements import filter_by

BATCH = 1000
"""Rows that one transaction deletes."""


class SqlEventRepository:
    """Implements :class:`sandlot.model.repositories.EventRepository`.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, events: Sequence[NewEvent]) -> None:
        """Append events in this order."""
        if events:
            await self._database.write(lambda connection: append(connection, events))

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, after: int, limit: int) -> Sequence[EventRecord]:
        """Return events with a larger sequence number than ``after``, the oldest first."""
        query = filter_by(select(events).where(events.c.sequence > after), events, owner=owner, sandbox=sandbox)
        return [_event(row) for row in await self._database.rows(query.order_by(events.c.sequence).limit(limit))]

    async def last_sequence(self) -> int:
        """Return the largest sequence number ever assigned, or 0."""
        query = select(counters.c.value).where(counters.c.name == EVENTS)
        (row,) = await self._database.rows(query)
        return int(row.value)

    async def delete_before(self, before: datetime) -> int:
        """Delete events older than a time. Return their number."""
        old = select(events.c.sequence).where(events.c.at < before).limit(BATCH)
        return await self._database.apply_until_done(delete(events).where(events.c.sequence.in_(old)))

    async def trim(self, *, keep: int) -> int:
        """Delete the oldest events until at most ``keep`` are left. Return the number of deleted events."""
        newest_old = await self._database.rows(select(events.c.sequence).order_by(events.c.sequence.desc()).offset(keep).limit(1))
        if not newest_old:
            return 0
        old = select(events.c.sequence).where(events.c.sequence <= newest_old[0].sequence).limit(BATCH)
        return await self._database.apply_until_done(delete(events).where(events.c.sequence.in_(old)))


def append(connection: Connection, new_events: Sequence[NewEvent]) -> None:
    """Append events within a transaction, as its last step: the counter stays locked until the transaction has committed."""
    next_value = counters.c.value + len(new_events)
    reservation = update(counters).where(counters.c.name == EVENTS).values(value=next_value).returning(counters.c.value)
    first = int(connection.execute(reservation).scalar_one()) - len(new_events) + 1
    rows = [
        {"sequence": sequence, "type": event.type, "at": event.at, "owner": event.owner, "sandbox": event.sandbox, "data": dict(event.data)}
        for sequence, event in enumerate(new_events, first)
    ]
    connection.execute(plain_insert(events), rows)


def _event(row: Row[Any]) -> EventRecord:
    return EventRecord(sequence=row.sequence, event=NewEvent(type=row.type, at=row.at, owner=row.owner, sandbox=row.sandbox, data=row.data))
