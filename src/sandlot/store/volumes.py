"""Records of volumes. Their data is in the data directory of their node."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, Executable, delete, func, select
from sqlalchemy.exc import IntegrityError

from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import NodeId, VolumeId
from sandlot.model.records import NewEvent, VolumeRecord
from sandlot.store.engine import Database
from sandlot.store.events import append
from sandlot.store.schema import volumes
from sandlot.store.statements import filter_by, upsert

_COLUMNS = tuple(column.name for column in volumes.columns)


class SqlVolumeRepository:
    """Implements :class:`sandlot.model.repositories.VolumeRepository`.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = upsert(database.dialect, volumes)

    async def save(self, record: VolumeRecord, event: NewEvent | None = None) -> None:
        """Insert or replace a record by id, and append its event.

        Raises:
            ConflictError: Another volume of the owner has the same name.
        """
        await self._write(self._upsert.values({name: getattr(record, name) for name in _COLUMNS}), event)

    async def list_by_node(self, node: NodeId) -> Sequence[VolumeRecord]:
        """Return all volumes of a node, also those that are not ready, the oldest first."""
        query = select(volumes).where(volumes.c.node == node).order_by(volumes.c.created_at, volumes.c.id)
        return [VolumeRecord(**{name: getattr(row, name) for name in _COLUMNS}) for row in await self._database.rows(query)]

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's volumes on all nodes and the sum of their sizes in bytes."""
        sums = select(func.count().label("number"), func.coalesce(func.sum(volumes.c.size_bytes), 0).label("size"))
        (row,) = await self._database.rows(filter_by(sums, volumes, owner=owner))
        return int(row.number), int(row.size)

    async def remove(self, volume: VolumeId, event: NewEvent | None = None) -> bool:
        """Delete a record and append its event. Return whether the record existed."""
        return await self._write(delete(volumes).where(volumes.c.id == volume), event)

    async def _write(self, statement: Executable, event: NewEvent | None) -> bool:
        """Execute a statement for one row and append its event. Return whether a row was changed."""

        def work(connection: Connection) -> bool:
            try:
                is_changed = connection.execute(statement).rowcount > 0
            except IntegrityError as error:
                raise ConflictError(
                    "A volume with this name exists already.",
                    code=ErrorCode.CONFLICT,
                    hint="Choose another name, or delete the existing volume first.",
                ) from error
            if is_changed and event is not None:
                append(connection, [event])
            return is_changed

        return await self._database.write(work)
