"""Volumes; their bytes are in the state directory of their node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Executable, delete, func, select
from sqlalchemy.exc import IntegrityError

from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import NodeId, VolumeId
from sandlot.model.records import NewEvent, VolumeRecord
from sandlot.store.engine import Database
from sandlot.store.events import append
from sandlot.store.rows import of, replacing
from sandlot.store.schema import volumes

_COLUMNS = tuple(column.name for column in volumes.columns)


class Volumes:
    """Fills :class:`sandlot.model.storage.VolumeTable`.

    Args:
        database: Where.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._replacing = replacing(database.dialect, volumes)

    async def save(self, record: VolumeRecord, event: NewEvent | None = None) -> None:
        """Insert or replace by id, and tell of it.

        Raises:
            ConflictError: Another one of the same owner has its name.
        """
        await self._write(self._replacing.values({name: getattr(record, name) for name in _COLUMNS}), event)

    async def of_node(self, node: NodeId) -> Sequence[VolumeRecord]:
        """All of a node, oldest first, those that are not ready included."""
        query = select(volumes).where(volumes.c.node == node).order_by(volumes.c.created_at, volumes.c.id)
        return [VolumeRecord(**{name: getattr(row, name) for name in _COLUMNS}) for row in await self._database.rows(query)]

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """How many an owner has, on any node, and their sizes together."""
        counted = select(func.count().label("number"), func.coalesce(func.sum(volumes.c.size_bytes), 0).label("size"))
        query: Any = of(counted, volumes, owner=owner)
        (row,) = await self._database.rows(query)
        return int(row.number), int(row.size)

    async def remove(self, volume: VolumeId, event: NewEvent | None = None) -> bool:
        """Drop one, and tell of it; whether it was there."""
        return await self._write(delete(volumes).where(volumes.c.id == volume), event)

    async def _write(self, statement: Executable, event: NewEvent | None) -> bool:
        """Touch one row and tell of it; whether there was one to touch."""

        def work(connection: Connection) -> bool:
            try:
                touched = connection.execute(statement).rowcount > 0
            except IntegrityError as error:
                raise ConflictError(
                    "There is a volume of this name already.",
                    code=ErrorCode.CONFLICT,
                    hint="Choose another name, or delete that one first.",
                ) from error
            if touched and event is not None:
                append(connection, [event])
            return touched

        return await self._database.write(work)
