"""The log of runs, and how many there were in a month."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, or_, select

from sandlot.model.access import OwnerId
from sandlot.model.ids import SandboxId
from sandlot.model.records import ExecutionId, ExecutionRecord
from sandlot.model.storage import Position
from sandlot.store.engine import Database
from sandlot.store.events import PIECE
from sandlot.store.rows import earlier, insert, of, replacing
from sandlot.store.schema import RUNNING, executions, runs

_COLUMNS = tuple(column.name for column in executions.columns if column.name != "argv")


class Executions:
    """Fills :class:`sandlot.model.storage.ExecutionTable`.

    Args:
        database: Where.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._replacing = replacing(database.dialect, executions)
        adding = insert(database.dialect, runs)
        self._counting = adding.on_conflict_do_update(index_elements=["month", "owner"], set_={"begun": runs.c.begun + adding.excluded.begun})

    async def save(self, records: Sequence[ExecutionRecord]) -> None:
        """Insert or replace some by id, all or none."""
        if records:
            # In one order everywhere, so that two that save the same rows wait for each other and not in a circle.
            rows = [_row(record) for record in sorted(records, key=lambda record: record.id)]
            await self._database.write(lambda connection: connection.execute(self._replacing, rows))

    async def get(self, execution: ExecutionId) -> ExecutionRecord | None:
        """One."""
        rows = await self._database.rows(select(executions).where(executions.c.id == execution))
        return _record(rows[0]) if rows else None

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, before: Position | None, limit: int) -> Sequence[ExecutionRecord]:
        """Newest first, by ``created_at`` and id."""
        query = of(select(executions), executions, owner=owner, sandbox=sandbox)
        if before is not None:
            query = query.where(earlier(executions, before))
        rows = await self._database.rows(query.order_by(executions.c.created_at.desc(), executions.c.id.desc()).limit(limit))
        return [_record(row) for row in rows]

    async def running(self, *, limit: int) -> Sequence[ExecutionRecord]:
        """Those whose status is ``running``, newest first."""
        query = of(select(executions), executions, status=RUNNING).order_by(executions.c.created_at.desc(), executions.c.id.desc()).limit(limit)
        return [_record(row) for row in await self._database.rows(query)]

    async def trim(self, *, keep: int) -> int:
        """Drop the oldest, so that at most ``keep`` are left; how many were dropped."""
        newest = select(executions.c.created_at, executions.c.id).order_by(executions.c.created_at.desc(), executions.c.id.desc())
        first = await self._database.rows(newest.offset(keep).limit(1))
        if not first:
            return 0
        last = Position(first[0].created_at, first[0].id)
        old = or_(earlier(executions, last), executions.c.id == last.id)
        return await self._database.apply_all(delete(executions).where(executions.c.id.in_(select(executions.c.id).where(old).limit(PIECE))))

    async def forget(self, *, created_before: datetime) -> int:
        """Drop those from before then; how many."""
        old = select(executions.c.id).where(executions.c.created_at < created_before).limit(PIECE)
        return await self._database.apply_all(delete(executions).where(executions.c.id.in_(old)))

    async def counts(self, month: str) -> Mapping[OwnerId, int]:
        """Runs begun in a month (``2026-11``), by owner; retention does not lower them."""
        return {OwnerId(row.owner): int(row.begun) for row in await self._database.rows(select(runs).where(runs.c.month == month))}

    async def count(self, month: str, more: Mapping[OwnerId, int]) -> None:
        """Add to those numbers."""
        if more:
            rows = [{"month": month, "owner": owner, "begun": number} for owner, number in sorted(more.items())]

            def work(connection: Connection) -> None:
                connection.execute(self._counting, rows)

            await self._database.write(work)


def _row(record: ExecutionRecord) -> dict[str, Any]:
    return {"argv": None if record.argv is None else list(record.argv), **{name: getattr(record, name) for name in _COLUMNS}}


def _record(row: Row[Any]) -> ExecutionRecord:
    return ExecutionRecord(argv=None if row.argv is None else tuple(row.argv), **{name: getattr(row, name) for name in _COLUMNS})
