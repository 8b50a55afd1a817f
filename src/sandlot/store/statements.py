"""SQL statements that several repositories share. Nothing is executed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, or_
from sqlalchemy.dialects import postgresql, sqlite

from sandlot.model.repositories import Position


def insert(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an insert that supports ON CONFLICT, whose syntax is the same on SQLite and PostgreSQL."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def upsert(
    dialect: str, table: Table, where: Callable[[postgresql.Insert | sqlite.Insert], ColumnElement[bool]] | None = None
) -> postgresql.Insert | sqlite.Insert:
    """Return an insert that replaces all columns of a row with the same primary key.

    Args:
        dialect: Dialect of the database.
        table: The table.
        where: Returns the condition under which an existing row may be replaced; other rows stay as they are. None for no condition.
    """
    statement = insert(dialect, table)
    key = {column.name for column in table.primary_key}
    others = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in key}
    return statement.on_conflict_do_update(index_elements=sorted(key), set_=others, where=None if where is None else where(statement))


def is_after(table: Table, position: Position) -> ColumnElement[bool]:
    """Return a condition for rows after a position, by ``created_at`` and id."""
    created_at, row_id = table.c.created_at, table.c.id
    return and_(created_at >= position.at, or_(created_at > position.at, row_id > position.id))


def is_before(table: Table, position: Position) -> ColumnElement[bool]:
    """Return a condition for rows before a position, by ``created_at`` and id."""
    created_at, row_id = table.c.created_at, table.c.id
    return and_(created_at <= position.at, or_(created_at < position.at, row_id < position.id))


def filter_by(statement: Select[Any], table: Table, **values: object) -> Select[Any]:
    """Restrict a statement to rows with these values. A value of None restricts nothing."""
    for name, value in values.items():
        if value is not None:
            statement = statement.where(table.c[name] == value)
    return statement
