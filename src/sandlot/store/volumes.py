"""Records of volumes. The files in a volume are in the data directory of the volume's node."""

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
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = upsert(database.dialect, volumes)

    async def save(self, record: VolumeRecord, event: NewEvent | None = None) -> None:
        """Insert a record or replace the record with the same id, and append an event, in one transaction.

        Args:
            record: The record to save.
            event: Event to append. None for no event.

        Raises:
            ConflictError: Another volume of the owner has the same name.
        """
        await self._write(self._upsert.values({name: getattr(record, name) for name in _COLUMNS}), event)

    async def list_by_node(self, node: NodeId) -> Sequence[VolumeRecord]:
        """Return the records of all volumes of a node, including volumes that are not ready yet, the oldest first."""
        query = select(volumes).where(volumes.c.node == node).order_by(volumes.c.created_at, volumes.c.id)
        return [VolumeRecord(**{name: getattr(row, name) for name in _COLUMNS}) for row in await self._database.rows(query)]

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's volumes on all nodes, and the sum of the volumes' sizes in bytes."""
        sums = select(func.count().label("number"), func.coalesce(func.sum(volumes.c.size_bytes), 0).label("size"))
        (row,) = await self._database.rows(filter_by(sums, volumes, owner=owner))
        return int(row.number), int(row.size)

    async def remove(self, volume: VolumeId, event: NewEvent | None = None) -> bool:
        """Delete the record of a volume and append ``event``, if it is not None. Return False, and append nothing, if there is no such record."""
        return await self._write(delete(volumes).where(volumes.c.id == volume), event)

    async def _write(self, statement: Executable, event: NewEvent | None) -> bool:
        """Execute a statement that changes at most one row. If a row was changed, append the event. Return whether a row was changed."""

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
