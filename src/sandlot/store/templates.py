"""Records of the templates of users, of their builds, and of the logs of the builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, func, select, update
from sqlalchemy import insert as plain_insert
from sqlalchemy.exc import IntegrityError

from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import NodeId, TemplateId
from sandlot.model.repositories import Position
from sandlot.model.templates import BuildLine, BuildRecord, BuildStatus, LogLevel, TemplateRecord
from sandlot.store.engine import Database
from sandlot.store.schema import template_build_lines, template_builds, templates
from sandlot.store.statements import filter_by, is_before

_ENDED = [status for status in BuildStatus if status.has_ended]


class SqlTemplateRepository:
    """Implements :class:`sandlot.model.repositories.TemplateRepository`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: TemplateRecord) -> None:
        """Insert a template.

        Raises:
            ConflictError: The owner has another template of this name.
        """

        def work(connection: Connection) -> None:
            try:
                connection.execute(plain_insert(templates), _values(record))
            except IntegrityError as error:
                raise ConflictError(
                    "A template with this name exists already.",
                    code=ErrorCode.CONFLICT,
                    hint="Build the existing template again, or choose another name.",
                    fields={"template": record.name},
                ) from error

        await self._database.write(work)

    async def get(self, template: TemplateId) -> TemplateRecord | None:
        """Return a template, or None if there is no template with this id."""
        rows = await self._database.rows(select(templates).where(templates.c.id == template))
        return _template(rows[0]) if rows else None

    async def find(self, owner: OwnerId, name: str) -> TemplateRecord | None:
        """Return the template of an owner by its name, or None if there is none."""
        rows = await self._database.rows(select(templates).where(templates.c.owner == owner, templates.c.name == name))
        return _template(rows[0]) if rows else None

    async def list(self, *, owner: OwnerId | None, before: Position | None, limit: int) -> Sequence[TemplateRecord]:
        """Return a page of templates, the newest first.

        Args:
            owner: Owner of the templates. None: all owners.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        query = filter_by(select(templates), templates, owner=owner)
        return [_template(row) for row in await self._page(query, templates, before, limit)]

    async def change_tags(self, template: TemplateId, tags: Mapping[str, str | None], *, at: datetime) -> TemplateRecord | None:
        """Set and remove tags of a template. Return the changed template, or None if there is no template with this id.

        Args:
            template: Id of the template.
            tags: Tag -> id of the build that it names from now on. None: the tag is removed.
            at: Time of the change.
        """
        return await self._database.write(lambda connection: _change(connection, template, tags, {"updated_at": at}))

    async def remove(self, template: TemplateId) -> bool:
        """Delete a template with its builds and their logs. Return whether the template existed."""
        return await self._database.apply(delete(templates).where(templates.c.id == template)) > 0

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's templates, and the size in bytes of the root file systems and snapshots of all their builds."""
        number = select(func.count()).select_from(templates).where(templates.c.owner == owner).scalar_subquery()
        size = select(func.coalesce(func.sum(template_builds.c.size_bytes), 0)).where(template_builds.c.owner == owner).scalar_subquery()
        (row,) = await self._database.rows(select(number.label("number"), size.label("size")))
        return int(row.number), int(row.size)

    async def add_build(self, record: BuildRecord) -> bool:
        """Insert a build. Return False, and insert nothing, if its template does not exist."""
        template = select(templates.c.id).where(templates.c.id == record.template).with_for_update()

        def work(connection: Connection) -> bool:
            if connection.execute(template).first() is None:
                return False
            connection.execute(plain_insert(template_builds), {**_build_values(record), "last_line": 0})
            return True

        return await self._database.write(work)

    async def get_build(self, build: str) -> BuildRecord | None:
        """Return a build, or None if there is no build with this id."""
        rows = await self._database.rows(select(template_builds).where(template_builds.c.id == build))
        return _build(rows[0]) if rows else None

    async def list_builds(
        self, *, owner: OwnerId | None, template: TemplateId | None = None, before: Position | None = None, limit: int
    ) -> Sequence[BuildRecord]:
        """Return a page of builds, the newest first.

        Args:
            owner: Owner of the builds. None: all owners.
            template: Template of the builds. None: all templates.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        query = filter_by(select(template_builds), template_builds, owner=owner, template=template)
        return [_build(row) for row in await self._page(query, template_builds, before, limit)]

    async def list_open_builds(self, node: NodeId) -> Sequence[BuildRecord]:
        """Return the builds of a node that have not ended, the oldest first."""
        return await self._builds_in(node, [status for status in BuildStatus if not status.has_ended])

    async def list_ready_builds(self, node: NodeId) -> Sequence[BuildRecord]:
        """Return the builds of a node that are ready, the oldest first."""
        return await self._builds_in(node, [BuildStatus.READY])

    async def save_build(self, record: BuildRecord) -> bool:
        """Replace a build that has not ended. If the new record is ready, its template gets the limits and the tags of the build.

        Returns:
            False, with nothing changed, if the stored build has ended or does not exist.
        """
        is_open = template_builds.c.status.not_in(_ENDED)
        statement = update(template_builds).where(template_builds.c.id == record.id, is_open).values(**_build_values(record))

        def work(connection: Connection) -> bool:
            if connection.execute(statement).rowcount == 0:
                return False
            if record.status is BuildStatus.READY:
                values = {"limits": record.limits, "updated_at": record.ended_at}
                _change(connection, record.template, dict.fromkeys(record.tags, record.id), values)
            return True

        return await self._database.write(work)

    async def remove_build(self, build: str) -> bool:
        """Delete a build with its log. Return whether the build existed."""
        return await self._database.apply(delete(template_builds).where(template_builds.c.id == build)) > 0

    async def add_lines(self, build: str, lines: Sequence[BuildLine]) -> bool:
        """Add lines to the log of a build, with the next numbers. Return False, and add nothing, if the build does not exist."""
        columns = template_builds.c
        statement = update(template_builds).where(columns.id == build).values(last_line=columns.last_line + len(lines)).returning(columns.last_line)

        def work(connection: Connection) -> bool:
            row = connection.execute(statement).first()
            if row is None:
                return False
            first = row.last_line - len(lines) + 1
            if lines:
                rows = [{**_values(line), "build": build, "number": number} for number, line in enumerate(lines, first)]
                connection.execute(plain_insert(template_build_lines), rows)
            return True

        return await self._database.write(work)

    async def list_lines(self, build: str, *, after: int, limit: int) -> Sequence[BuildLine]:
        """Return lines of the log of a build in their order.

        Args:
            build: Id of the build.
            after: Number of the line before the first one; 0 for all lines.
            limit: Maximum number of lines.
        """
        columns = template_build_lines.c
        query = select(template_build_lines).where(columns.build == build, columns.number > after).order_by(columns.number).limit(limit)
        rows = await self._database.rows(query)
        return [BuildLine(row.at, LogLevel(row.level), row.text, row.step, row.number) for row in rows]

    async def _builds_in(self, node: NodeId, statuses: Sequence[BuildStatus]) -> Sequence[BuildRecord]:
        query = select(template_builds).where(template_builds.c.node == node, template_builds.c.status.in_(statuses))
        return [_build(row) for row in await self._database.rows(query.order_by(template_builds.c.created_at, template_builds.c.id))]

    async def _page(self, query: Any, table: Table, before: Position | None, limit: int) -> Sequence[Row[Any]]:  # noqa: ANN401 - a SELECT
        if before is not None:
            query = query.where(is_before(table, before))
        return await self._database.rows(query.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit))


def _change(connection: Connection, template: TemplateId, tags: Mapping[str, str | None], values: Mapping[str, Any]) -> TemplateRecord | None:
    """Change the tags and other values of a template whose row is locked until the transaction ends."""
    row = connection.execute(select(templates).where(templates.c.id == template).with_for_update()).first()
    if row is None:
        return None
    merged = {tag: build for tag, build in {**row.tags, **tags}.items() if build is not None}
    changed = update(templates).where(templates.c.id == template).values(tags=merged, **values).returning(*templates.columns)
    return _template(connection.execute(changed).one())


def _values(record: TemplateRecord | BuildRecord | BuildLine) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _build_values(record: BuildRecord) -> dict[str, Any]:
    return {**_values(record), "size_bytes": record.size_bytes}


def _template(row: Row[Any]) -> TemplateRecord:
    return TemplateRecord(**row._mapping)  # noqa: SLF001 - SQLAlchemy's name of a public attribute


def _build(row: Row[Any]) -> BuildRecord:
    values = {field.name: getattr(row, field.name) for field in fields(BuildRecord)}
    return BuildRecord(**{**values, "status": BuildStatus(row.status)})
