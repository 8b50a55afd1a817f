"""Records of events. Sequence numbers of events have the order in which the transactions with the events were committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, update
from sqlalchemy import insert as plain_insert

from sandlot.model.access import OwnerId
from sandlot.model.ids import SandboxId
from sandlot.model.records import EventRecord, NewEvent
from sandlot.store.engine import Database
from sandlot.store.schema import EVENTS, counters, events
from sandlot.store.statements import filter_by

BATCH = 1000
"""Maximum number of rows that one transaction deletes, so that other writers do not wait long."""


class SqlEventRepository:
    """Implements :class:`sandlot.model.repositories.EventRepository`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, events: Sequence[NewEvent]) -> None:
        """Append events, in the given order, in one transaction."""
        if events:
            await self._database.write(lambda connection: append(connection, events))

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, after: int, limit: int) -> Sequence[EventRecord]:
        """Return at most ``limit`` events with a sequence number above ``after``, the oldest first.

        Args:
            owner: Owner of the events. None: all owners.
            sandbox: Sandbox of the events. None: all events, including events that belong to no sandbox.
            after: Sequence number of the last event that the caller has; 0 if the caller has none.
            limit: Maximum number of events.
        """
        query = filter_by(select(events).where(events.c.sequence > after), events, owner=owner, sandbox=sandbox)
        return [_event(row) for row in await self._database.rows(query.order_by(events.c.sequence).limit(limit))]

    async def last_sequence(self) -> int:
        """Return the largest sequence number that was ever assigned to an event, or 0 if there was no event yet."""
        query = select(counters.c.value).where(counters.c.name == EVENTS)
        (row,) = await self._database.rows(query)
        return int(row.value)

    async def delete_before(self, before: datetime) -> int:
        """Delete all events that happened before a time. Return the number of deleted events."""
        old = select(events.c.sequence).where(events.c.at < before).limit(BATCH)
        return await self._database.apply_until_done(delete(events).where(events.c.sequence.in_(old)))

    async def counts(self) -> Mapping[OwnerId, int]:
        """For each owner that has events, return their number."""
        query = select(events.c.owner, func.count().label("number")).group_by(events.c.owner)
        return {OwnerId(row.owner): int(row.number) for row in await self._database.rows(query)}

    async def trim(self, owner: OwnerId, *, keep: int) -> int:
        """Delete the oldest events of an owner until at most ``keep`` are left. Return the number of deleted events."""
        own = select(events.c.sequence).where(events.c.owner == owner)
        newest_old = await self._database.rows(own.order_by(events.c.sequence.desc()).offset(keep).limit(1))
        if not newest_old:
            return 0
        old = own.where(events.c.sequence <= newest_old[0].sequence).limit(BATCH)
        return await self._database.apply_until_done(delete(events).where(events.c.sequence.in_(old)))


def append(connection: Connection, new_events: Sequence[NewEvent]) -> None:
    """Append events as part of a transaction. This must be the transaction's last step, because it locks the event counter until the commit.

    Args:
        connection: Connection with the open transaction.
        new_events: The events, in the order of their sequence numbers.
    """
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
