"""Records of sandboxes, live and ended.

Invariant: a terminal state is final, and a sandbox that is stopping can only get a terminal state. A late save, over a slower
connection, therefore cannot replace a terminal state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, delete, exists, func, or_, select
from sqlalchemy import insert as plain_insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from sandlot.model.access import INTERNAL, OwnerId
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import NodeId, SandboxId
from sandlot.model.records import NewEvent, SandboxRecord
from sandlot.model.repositories import Position, Stored
from sandlot.model.states import State, is_terminal
from sandlot.store.engine import Database
from sandlot.store.events import BATCH, append
from sandlot.store.schema import sandbox_metadata, sandboxes
from sandlot.store.statements import filter_by, first_beyond, is_after, upsert

_TERMINAL = tuple(state.value for state in State if is_terminal(state))
_LIVE = tuple(state.value for state in State if not is_terminal(state))
_COLUMNS = tuple(column.name for column in sandboxes.columns if column.name not in {"id", "state", "size_bytes"})


class SqlSandboxRepository:
    """Implements :class:`sandlot.model.repositories.SandboxRepository`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = upsert(database.dialect, sandboxes, _may_replace).returning(sandboxes.c.id)

    async def save(self, record: SandboxRecord, event: NewEvent | None = None) -> None:
        """Insert a record or replace the record with the same id, and append an event, in one transaction.

        Do nothing if the stored state is terminal, or if the stored state is ``stopping`` and the new state is neither ``stopping`` nor terminal.

        Args:
            record: The record to save.
            event: Event to append if the record is saved. None for no event.

        Raises:
            ConflictError: Another record of the owner has the same idempotency key.
        """

        def work(connection: Connection) -> None:
            try:
                is_saved = connection.execute(self._upsert, _row(record)).first() is not None
            except IntegrityError as error:
                raise ConflictError(
                    f"A sandbox with the idempotency key {record.idempotency_key!r} exists already.",
                    code=ErrorCode.CONFLICT,
                    hint="Use the existing sandbox, or pass another idempotency key.",
                ) from error
            if not is_saved:
                return
            connection.execute(delete(sandbox_metadata).where(sandbox_metadata.c.sandbox == record.id))
            if entries := [{"sandbox": record.id, "key": key, "value": value} for key, value in record.spec.metadata.items()]:
                connection.execute(plain_insert(sandbox_metadata), entries)
            if event is not None:
                append(connection, [event])

        await self._database.write(work)

    async def list_unfinished(self, node: NodeId) -> Sequence[SandboxRecord]:
        """Return the records of all sandboxes of a node whose state is not terminal, in the order of their creation."""
        query = select(sandboxes).where(sandboxes.c.node == node, sandboxes.c.state.in_(_LIVE))
        return await self._all(query.order_by(sandboxes.c.created_at, sandboxes.c.id))

    async def list_last_ended(self, node: NodeId, *, limit: int) -> Sequence[SandboxRecord]:
        """Return the records of at most ``limit`` ended sandboxes of a node, the most recently ended sandbox first."""
        query = select(sandboxes).where(sandboxes.c.node == node, sandboxes.c.ended_at.is_not(None), sandboxes.c.state.in_(_TERMINAL))
        return await self._all(query.order_by(sandboxes.c.ended_at.desc(), sandboxes.c.id.desc()).limit(limit))

    async def get(self, sandbox: SandboxId) -> SandboxRecord | None:
        """Return the record of a live or ended sandbox. Return None if there is no record with this id."""
        return next(iter(await self._all(select(sandboxes).where(sandboxes.c.id == sandbox))), None)

    async def get_by_idempotency_key(self, owner: OwnerId, key: str) -> SandboxRecord | None:
        """Return the record of the owner's sandbox that was created with an idempotency key. Return None if there is no such sandbox."""
        return next(iter(await self._all(filter_by(select(sandboxes), sandboxes, owner=owner, idempotency_key=key))), None)

    async def list_ended(
        self,
        *,
        owner: OwnerId | None,
        metadata: Mapping[str, str],
        states: Collection[str],
        after: Position | None,
        limit: int,
        name: str | None = None,
    ) -> Sequence[SandboxRecord]:
        """Return a page of ended sandboxes in the order of ``created_at`` and id, the oldest first.

        Args:
            owner: Owner of the sandboxes. None: all owners except the service itself.
            metadata: Keys and values that the metadata of each sandbox must contain.
            states: Terminal states that the sandboxes may have. Empty: all terminal states.
            after: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
            name: Name that each sandbox must have. None: any name.
        """
        states = set(states) & set(_TERMINAL) if states else _TERMINAL
        query = filter_by(select(sandboxes).where(sandboxes.c.state.in_(states)), sandboxes, owner=owner, name=name)
        if owner is None:
            query = query.where(sandboxes.c.owner != INTERNAL.owner)
        entry = sandbox_metadata.c
        for key, value in metadata.items():
            query = query.where(exists().where(entry.sandbox == sandboxes.c.id, entry.key == key, entry.value == value))
        if after is not None:
            query = query.where(is_after(sandboxes, after))
        return await self._all(query.order_by(sandboxes.c.created_at, sandboxes.c.id).limit(limit))

    async def delete_ended(self, before: datetime) -> int:
        """Delete the records of all sandboxes that ended before a time. Return the number of deleted records."""
        old = select(sandboxes.c.id).where(sandboxes.c.ended_at < before, sandboxes.c.state.in_(_TERMINAL)).limit(BATCH)
        return await self._database.apply_until_done(delete(sandboxes).where(sandboxes.c.id.in_(old)))

    async def ended_totals(self) -> Mapping[OwnerId, Stored]:
        """For each owner that has ended sandboxes, return their number and the sum of their sizes in bytes."""
        query = select(sandboxes.c.owner, func.count().label("number"), func.sum(sandboxes.c.size_bytes).label("size"))
        rows = await self._database.rows(query.where(sandboxes.c.ended_at.is_not(None)).group_by(sandboxes.c.owner))
        return {OwnerId(row.owner): Stored(int(row.number), int(row.size)) for row in rows}

    async def trim_ended(self, owner: OwnerId, *, keep: Stored) -> int:
        """Delete the sandboxes of an owner that ended first until at most ``keep`` is left. Return the number of deleted records."""
        ended_at, row_id = sandboxes.c.ended_at, sandboxes.c.id
        newest_old = await self._database.rows(first_beyond(sandboxes, ended_at, owner, keep))
        if not newest_old:
            return 0
        last = newest_old[0]
        is_old = or_(ended_at < last.at, and_(ended_at == last.at, row_id <= last.id))
        old = select(row_id).where(sandboxes.c.owner == owner, is_old).limit(BATCH)
        return await self._database.apply_until_done(delete(sandboxes).where(row_id.in_(old)))

    async def _all(self, query: Select[Any]) -> list[SandboxRecord]:
        return [_record(row) for row in await self._database.rows(query)]


def _may_replace(statement: postgresql.Insert | sqlite.Insert) -> ColumnElement[bool]:
    """Return the SQL condition under which the row to insert may replace the existing row with the same id."""
    ends = statement.excluded.state.in_((State.STOPPING.value, *_TERMINAL))
    return and_(sandboxes.c.state.not_in(_TERMINAL), or_(sandboxes.c.state != State.STOPPING.value, ends))


def _row(record: SandboxRecord) -> dict[str, Any]:
    return {"id": record.id, "state": record.state.value, "size_bytes": record.size_bytes, **{name: getattr(record, name) for name in _COLUMNS}}


def _record(row: Row[Any]) -> SandboxRecord:
    return SandboxRecord(state=State(row.state), **{name: getattr(row, name) for name in _COLUMNS})
