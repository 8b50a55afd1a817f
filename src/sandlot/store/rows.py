"""What the tables share: inserting or replacing, and pages. Statements only; nothing is executed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, or_
from sqlalchemy.dialects import postgresql, sqlite

from sandlot.model.storage import Position


def insert(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An insert that knows ON CONFLICT, which SQLite took over from PostgreSQL word by word."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def replacing(
    dialect: str, table: Table, where: Callable[[postgresql.Insert | sqlite.Insert], ColumnElement[bool]] | None = None
) -> postgresql.Insert | sqlite.Insert:
    """An insert that replaces a row of the same primary key: all of its columns.

    Args:
        dialect: The database's.
        table: Whose rows.
        where: Gives, for the statement, which rows may be replaced; others stay as they are. None is any.
    """
    statement = insert(dialect, table)
    own = {column.name for column in table.primary_key}
    rest = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in own}
    return statement.on_conflict_do_update(index_elements=sorted(own), set_=rest, where=None if where is None else where(statement))


def later(table: Table, position: Position) -> ColumnElement[bool]:
    """Rows after a position, by ``created_at`` and id."""
    at, row = table.c.created_at, table.c.id
    return and_(at >= position.at, or_(at > position.at, row > position.id))


def earlier(table: Table, position: Position) -> ColumnElement[bool]:
    """Rows before a position, by ``created_at`` and id."""
    at, row = table.c.created_at, table.c.id
    return and_(at <= position.at, or_(at < position.at, row < position.id))


def of(statement: Select[Any], table: Table, **values: object) -> Select[Any]:
    """A statement about those rows only that have these values; None asks for nothing."""
    for name, value in values.items():
        if value is not None:
            statement = statement.where(table.c[name] == value)
    return statement
