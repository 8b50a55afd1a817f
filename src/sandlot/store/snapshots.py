"""Snapshots of sandboxes; their bytes are in the state directory of the node that took them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Executable, Row, Select, delete, func, select, true, update
from sqlalchemy.exc import IntegrityError

from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import NodeId, SnapshotId
from sandlot.model.records import NewEvent, SnapshotRecord
from sandlot.model.specs import SnapshotKind
from sandlot.model.storage import Position
from sandlot.store.engine import Database
from sandlot.store.events import append
from sandlot.store.rows import later, of, replacing
from sandlot.store.schema import snapshots

_COLUMNS = tuple(column.name for column in snapshots.columns if column.name != "kind")


class Snapshots:
    """Fills :class:`sandlot.model.storage.SnapshotTable`.

    Args:
        database: Where.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._replacing = replacing(database.dialect, snapshots)

    async def save(self, record: SnapshotRecord, event: NewEvent | None = None) -> None:
        """Insert or replace by id, and tell of it.

        Raises:
            ConflictError: Another one of the same owner has its name, or its idempotency key.
        """
        await self._write(self._replacing.values(_row(record)), event)

    async def update(self, record: SnapshotRecord, event: NewEvent | None = None) -> bool:
        """Replace one that is there, and tell of it; whether it was there."""
        return await self._write(update(snapshots).where(snapshots.c.id == record.id).values(_row(record)), event)

    async def get(self, snapshot: SnapshotId) -> SnapshotRecord | None:
        """One."""
        return await self._one(select(snapshots).where(snapshots.c.id == snapshot))

    async def named(self, owner: OwnerId, name: str) -> SnapshotRecord | None:
        """The one that its owner calls so."""
        return await self._one(of(select(snapshots), snapshots, owner=owner, name=name))

    async def by_idempotency_key(self, owner: OwnerId, key: str) -> SnapshotRecord | None:
        """What a request of that name made."""
        return await self._one(of(select(snapshots), snapshots, owner=owner, idempotency_key=key))

    async def page(self, *, owner: OwnerId | None, after: Position | None, limit: int) -> Sequence[SnapshotRecord]:
        """Those that are ready, by ``created_at`` and id, oldest first; None is everybody's."""
        query = of(select(snapshots).where(snapshots.c.ready.is_(true())), snapshots, owner=owner)
        if after is not None:
            query = query.where(later(snapshots, after))
        return await self._all(query.order_by(snapshots.c.created_at, snapshots.c.id).limit(limit))

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """How many an owner has, those that are not ready included, and their bytes together."""
        query = of(select(func.count().label("number"), func.coalesce(func.sum(snapshots.c.size_bytes), 0).label("size")), snapshots, owner=owner)
        (row,) = await self._database.rows(query)
        return int(row.number), int(row.size)

    async def of_node(self, node: NodeId) -> Sequence[SnapshotRecord]:
        """All that a node took, those that are not ready included, oldest first."""
        query = select(snapshots).where(snapshots.c.node == node)
        return await self._all(query.order_by(snapshots.c.created_at, snapshots.c.id))

    async def remove(self, snapshot: SnapshotId, event: NewEvent | None = None) -> bool:
        """Drop one, and tell of it; whether it was there."""
        return await self._write(delete(snapshots).where(snapshots.c.id == snapshot), event)

    async def _write(self, statement: Executable, event: NewEvent | None) -> bool:
        """Touch one row and tell of it; whether there was one to touch."""

        def work(connection: Connection) -> bool:
            try:
                touched = connection.execute(statement).rowcount > 0
            except IntegrityError as error:
                raise ConflictError(
                    "There is a snapshot of this name, or of this idempotency key, already.",
                    code=ErrorCode.CONFLICT,
                    hint="Choose another name, or delete that one first.",
                ) from error
            if touched and event is not None:
                append(connection, [event])
            return touched

        return await self._database.write(work)

    async def _one(self, query: Select[Any]) -> SnapshotRecord | None:
        return next(iter(await self._all(query)), None)

    async def _all(self, query: Select[Any]) -> list[SnapshotRecord]:
        return [_record(row) for row in await self._database.rows(query)]


def _row(record: SnapshotRecord) -> dict[str, Any]:
    return {"kind": record.kind.value, **{name: getattr(record, name) for name in _COLUMNS}}


def _record(row: Row[Any]) -> SnapshotRecord:
    return SnapshotRecord(kind=SnapshotKind(row.kind), **{name: getattr(row, name) for name in _COLUMNS})
