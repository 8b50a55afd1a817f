"""Records of the files in the file store. ``blobs.py`` stores the content of these files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select
from sqlalchemy import insert as plain_insert

from sandlot.model.access import OwnerId
from sandlot.model.records import FileId, FileRecord
from sandlot.model.repositories import Position
from sandlot.store.engine import Database
from sandlot.store.schema import files
from sandlot.store.statements import filter_by, is_before

_COLUMNS = tuple(column.name for column in files.columns)


class SqlFileRepository:
    """Implements :class:`sandlot.model.repositories.FileRepository`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: FileRecord) -> None:
        """Insert the record of a stored file."""
        await self._database.apply(plain_insert(files).values({name: getattr(record, name) for name in _COLUMNS}))

    async def get(self, file: FileId) -> FileRecord | None:
        """Return the record of a stored file, or None if there is no record with this id."""
        rows = await self._database.rows(select(files).where(files.c.id == file))
        return _record(rows[0]) if rows else None

    async def page(self, *, owner: OwnerId | None, before: Position | None, limit: int) -> Sequence[FileRecord]:
        """Return a page of records in the order of ``created_at`` and id, the newest first.

        Args:
            owner: Owner of the files. None: all owners.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        query = filter_by(select(files), files, owner=owner)
        if before is not None:
            query = query.where(is_before(files, before))
        return [_record(row) for row in await self._database.rows(query.order_by(files.c.created_at.desc(), files.c.id.desc()).limit(limit))]

    async def page_by_offset(self, *, owner: OwnerId | None, offset: int, limit: int) -> tuple[Sequence[FileRecord], int]:
        """Return a page of records, the newest first, and the number of records on all pages.

        The page and the number are read in one transaction.

        Args:
            owner: Owner of the files. None: all owners.
            offset: Number of records before the page.
            limit: Maximum number of records in the page.
        """
        query = filter_by(select(files), files, owner=owner).order_by(files.c.created_at.desc(), files.c.id.desc()).offset(offset).limit(limit)
        count = filter_by(select(func.count()).select_from(files), files, owner=owner)

        def work(connection: Connection) -> tuple[Sequence[FileRecord], int]:
            total = int(connection.execute(count).scalar_one())
            return [_record(row) for row in connection.execute(query)], total

        return await self._database.read(work)

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's files and the sum of their sizes in bytes."""
        query = select(func.count().label("files"), func.coalesce(func.sum(files.c.size_bytes), 0).label("size")).where(files.c.owner == owner)
        (row,) = await self._database.rows(query)
        return int(row.files), int(row.size)

    async def remove(self, file: FileId) -> bool:
        """Delete the record of a stored file. Return False if there is no such record."""
        return await self._database.apply(delete(files).where(files.c.id == file)) > 0

    async def ids(self) -> frozenset[FileId]:
        """Return the ids of all files that have a record."""
        return frozenset(FileId(row.id) for row in await self._database.rows(select(files.c.id)))


def _record(row: Row[Any]) -> FileRecord:
    return FileRecord(**{name: getattr(row, name) for name in _COLUMNS})
