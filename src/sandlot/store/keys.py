"""Records of API keys. The secrets of the keys are not stored, only their hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, or_, select, update
from sqlalchemy import insert as plain_insert
from sqlalchemy.exc import IntegrityError

from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.records import KeyChange, KeyRecord
from sandlot.store.engine import Database
from sandlot.store.schema import keys

_COLUMNS = tuple(column.name for column in keys.columns)


class SqlKeyRepository:
    """Implements :class:`sandlot.model.repositories.KeyRepository`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: KeyRecord) -> None:
        """Insert the record of a new API key.

        Raises:
            ConflictError: A key that is not revoked has the same name.
        """

        def work(connection: Connection) -> None:
            try:
                connection.execute(plain_insert(keys), {name: getattr(record, name) for name in _COLUMNS})
            except IntegrityError as error:
                raise _name_taken(record.name) from error

        await self._database.write(work)

    async def revoke(self, name_or_id: str, at: datetime) -> KeyRecord | None:
        """Mark an API key as revoked and return its record. Return None if no key that is not revoked has this id or name.

        Args:
            name_or_id: Id or name of the key. If one key has this id and another has this name, the key with this id is revoked.
            at: Time of the revocation.
        """

        def work(connection: Connection) -> KeyRecord | None:
            return _change(connection, name_or_id, {"revoked_at": at})

        return await self._database.write(work)

    async def update(self, name_or_id: str, change: KeyChange) -> KeyRecord | None:
        """Change an API key and return its record. Return None if no key that is not revoked has this id or name.

        Args:
            name_or_id: Id or name of the key. If one key has this id and another has this name, the key with this id is changed.
            change: New values.

        Raises:
            ConflictError: A key that is not revoked has the new name.
        """
        values: dict[str, Any] = {"name": change.name, "quota": change.quota, "expires_at": change.expires_at}
        values = {name: value for name, value in values.items() if value is not None}
        if change.removes_expiry:
            values["expires_at"] = None

        def work(connection: Connection) -> KeyRecord | None:
            try:
                return _change(connection, name_or_id, values)
            except IntegrityError as error:
                raise _name_taken(change.name) from error

        return await self._database.write(work)

    async def list(self) -> Sequence[KeyRecord]:
        """Return the records of all API keys that are not revoked, expired keys included, the oldest first."""
        query = select(keys).where(keys.c.revoked_at.is_(None)).order_by(keys.c.created_at, keys.c.id)
        return [_record(row) for row in await self._database.rows(query)]


def _change(connection: Connection, name_or_id: str, values: Mapping[str, Any]) -> KeyRecord | None:
    not_revoked = keys.c.revoked_at.is_(None)
    matching = connection.execute(select(keys).where(not_revoked, or_(keys.c.id == name_or_id, keys.c.name == name_or_id))).all()
    chosen = next((row for row in matching if row.id == name_or_id), next(iter(matching), None))
    if chosen is None or not values:
        return None if chosen is None else _record(chosen)
    row = connection.execute(update(keys).where(keys.c.id == chosen.id, not_revoked).values(**values).returning(*keys.columns)).first()
    return None if row is None else _record(row)


def _name_taken(name: str | None) -> ConflictError:
    return ConflictError(
        f"An API key named {name!r} exists already.", code=ErrorCode.CONFLICT, hint="Choose another name, or revoke the existing key first."
    )


def _record(row: Row[Any]) -> KeyRecord:
    return KeyRecord(**{name: getattr(row, name) for name in _COLUMNS})
