"""Records of snapshots. The saved memory and files of a snapshot are in the data directory of the node that took the snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Executable, Row, Select, delete, func, select, true, update
from sqlalchemy.exc import IntegrityError

from sandlot.model.access import INTERNAL, OwnerId
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import NodeId, SnapshotId
from sandlot.model.records import NewEvent, SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.specs import SnapshotKind
from sandlot.store.engine import Database
from sandlot.store.events import append
from sandlot.store.schema import snapshots
from sandlot.store.statements import filter_by, is_after, upsert

_COLUMNS = tuple(column.name for column in snapshots.columns if column.name != "kind")


class SqlSnapshotRepository:
    """Implements :class:`sandlot.model.repositories.SnapshotRepository`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = upsert(database.dialect, snapshots)

    async def save(self, record: SnapshotRecord, event: NewEvent | None = None) -> None:
        """Insert a record or replace the record with the same id, and append an event, in one transaction.

        Args:
            record: The record to save.
            event: Event to append. None for no event.

        Raises:
            ConflictError: Another snapshot of the owner has the same name or idempotency key.
        """
        await self._write(self._upsert.values(_row(record)), event)

    async def update(self, record: SnapshotRecord, event: NewEvent | None = None) -> bool:
        """Replace the record with the same id, and append ``event`` unless it is None. Return False, and append nothing, if there is no record."""
        return await self._write(update(snapshots).where(snapshots.c.id == record.id).values(_row(record)), event)

    async def get(self, snapshot: SnapshotId) -> SnapshotRecord | None:
        """Return the record of a snapshot, or None if there is no record with this id."""
        return await self._one(select(snapshots).where(snapshots.c.id == snapshot))

    async def get_by_name(self, owner: OwnerId, name: str) -> SnapshotRecord | None:
        """Return the record of the owner's snapshot with a name, or None if there is no such snapshot."""
        return await self._one(filter_by(select(snapshots), snapshots, owner=owner, name=name))

    async def get_by_idempotency_key(self, owner: OwnerId, key: str) -> SnapshotRecord | None:
        """Return the record of the owner's snapshot that was created with an idempotency key. Return None if there is no such snapshot."""
        return await self._one(filter_by(select(snapshots), snapshots, owner=owner, idempotency_key=key))

    async def page(self, *, owner: OwnerId | None, after: Position | None, limit: int) -> Sequence[SnapshotRecord]:
        """Return a page of ready snapshots in the order of ``created_at`` and id, the oldest first.

        Args:
            owner: Owner of the snapshots. None: all owners except the service itself.
            after: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        query = filter_by(select(snapshots).where(snapshots.c.ready.is_(true())), snapshots, owner=owner)
        if owner is None:
            query = query.where(snapshots.c.owner != INTERNAL.owner)
        if after is not None:
            query = query.where(is_after(snapshots, after))
        return await self._all(query.order_by(snapshots.c.created_at, snapshots.c.id).limit(limit))

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's snapshots and the sum of their sizes in bytes. Snapshots that are not ready are included."""
        sums = select(func.count().label("number"), func.coalesce(func.sum(snapshots.c.size_bytes), 0).label("size"))
        (row,) = await self._database.rows(filter_by(sums, snapshots, owner=owner))
        return int(row.number), int(row.size)

    async def list_by_node(self, node: NodeId) -> Sequence[SnapshotRecord]:
        """Return the records of all snapshots that a node took, including snapshots that are not ready yet, the oldest first."""
        query = select(snapshots).where(snapshots.c.node == node)
        return await self._all(query.order_by(snapshots.c.created_at, snapshots.c.id))

    async def remove(self, snapshot: SnapshotId, event: NewEvent | None = None) -> bool:
        """Delete the record of a snapshot and append ``event``, if it is not None. Return False, and append nothing, if there is no such record."""
        return await self._write(delete(snapshots).where(snapshots.c.id == snapshot), event)

    async def _write(self, statement: Executable, event: NewEvent | None) -> bool:
        """Execute a statement that changes at most one row. If a row was changed, append the event. Return whether a row was changed."""

        def work(connection: Connection) -> bool:
            try:
                is_changed = connection.execute(statement).rowcount > 0
            except IntegrityError as error:
                raise ConflictError(
                    "A snapshot with this name or this idempotency key exists already.",
                    code=ErrorCode.CONFLICT,
                    hint="Choose another name and idempotency key, or delete the existing snapshot first.",
                ) from error
            if is_changed and event is not None:
                append(connection, [event])
            return is_changed

        return await self._database.write(work)

    async def _one(self, query: Select[Any]) -> SnapshotRecord | None:
        return next(iter(await self._all(query)), None)

    async def _all(self, query: Select[Any]) -> list[SnapshotRecord]:
        return [_record(row) for row in await self._database.rows(query)]


def _row(record: SnapshotRecord) -> dict[str, Any]:
    return {"kind": record.kind.value, **{name: getattr(record, name) for name in _COLUMNS}}


def _record(row: Row[Any]) -> SnapshotRecord:
    return SnapshotRecord(kind=SnapshotKind(row.kind), **{name: getattr(row, name) for name in _COLUMNS})
