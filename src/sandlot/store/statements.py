"""Builders for SQL statements that several repositories need. They only build statements and execute nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, Table, and_, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from sandlot.model.access import OwnerId
from sandlot.model.repositories import Position, Stored


def insert(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT statement with SQLAlchemy's methods for ON CONFLICT.

    Args:
        dialect: ``sqlite`` or ``postgresql``.
        table: The table.
    """
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def upsert(
    dialect: str, table: Table, where: Callable[[postgresql.Insert | sqlite.Insert], ColumnElement[bool]] | None = None
) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT statement that replaces all columns of an existing row with the same primary key.

    Args:
        dialect: ``sqlite`` or ``postgresql``.
        table: The table.
        where: Function that returns the condition under which an existing row is replaced. None: the row is always replaced.
    """
    statement = insert(dialect, table)
    key = {column.name for column in table.primary_key}
    others = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in key}
    return statement.on_conflict_do_update(index_elements=sorted(key), set_=others, where=None if where is None else where(statement))


def is_after(table: Table, position: Position) -> ColumnElement[bool]:
    """Return the SQL condition for rows of a table that follow a position in the order of ``created_at`` and id."""
    created_at, row_id = table.c.created_at, table.c.id
    return and_(created_at >= position.at, or_(created_at > position.at, row_id > position.id))


def is_before(table: Table, position: Position) -> ColumnElement[bool]:
    """Return the SQL condition for rows of a table that precede a position in the order of ``created_at`` and id."""
    created_at, row_id = table.c.created_at, table.c.id
    return and_(created_at <= position.at, or_(created_at < position.at, row_id < position.id))


def first_beyond(table: Table, at: Column[Any], owner: OwnerId, keep: Stored) -> Select[Any]:
    """Return a SELECT statement for the newest row that is too much if an owner may keep an amount of rows. Its columns are ``at`` and ``id``.

    Args:
        table: A table with the columns ``id``, ``owner`` and ``size_bytes``.
        at: Column with the time by which the rows are ordered. Rows without a time do not count.
        owner: Owner of the rows.
        keep: The newest rows up to this number and size are not too much.
    """
    newest_first = at.desc(), table.c.id.desc()
    each = (
        select(
            at.label("at"),
            table.c.id,
            func.row_number().over(order_by=newest_first).label("number"),
            func.sum(table.c.size_bytes).over(order_by=newest_first, rows=(None, 0)).label("size"),
        )
        .where(table.c.owner == owner, at.is_not(None))
        .subquery()
    )
    return select(each.c.at, each.c.id).where(or_(each.c.number > keep.rows, each.c.size > keep.bytes)).order_by(each.c.number).limit(1)


def filter_by(statement: Select[Any], table: Table, **values: object) -> Select[Any]:
    """Restrict a SELECT statement to rows with certain values.

    Args:
        statement: The statement.
        table: Table that has the columns.
        values: Required value by name of the column. A value of None is ignored.
    """
    for name, value in values.items():
        if value is not None:
            statement = statement.where(table.c[name] == value)
    return statement
