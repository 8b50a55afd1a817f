"""The execution log: a record of each execution, and the number of executions of each owner in each month."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Row, delete, func, or_, select

from sandlot.model.access import OwnerId
from sandlot.model.ids import SandboxId
from sandlot.model.records import ExecutionId, ExecutionRecord
from sandlot.model.repositories import Position, Stored
from sandlot.store.engine import Database
from sandlot.store.events import BATCH
from sandlot.store.schema import RUNNING, execution_counts, execution_results, executions
from sandlot.store.statements import filter_by, first_beyond, insert, is_before, upsert

_COLUMNS = tuple(column.name for column in executions.columns if column.name not in {"argv", "size_bytes"})


class SqlExecutionRepository:
    """Implements :class:`sandlot.model.repositories.ExecutionRepository`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = upsert(database.dialect, executions)
        self._upsert_results = upsert(database.dialect, execution_results)
        insertion = insert(database.dialect, execution_counts)
        self._increment = insertion.on_conflict_do_update(
            index_elements=["month", "owner"], set_={"number": execution_counts.c.number + insertion.excluded.number}
        )

    async def save(self, records: Sequence[ExecutionRecord], results: Mapping[ExecutionId, bytes] = MappingProxyType({})) -> None:
        """Insert records or replace the records with the same ids, all in one transaction.

        Args:
            records: Records to save.
            results: Id of one of the records -> its results, encoded. Records without an entry keep the results that are stored.
        """
        if not records:
            return
        # Rows are saved in the order of their ids, so that two transactions that save the same rows cannot deadlock.
        rows = [_row(record) for record in sorted(records, key=lambda record: record.id)]
        contents = [{"execution": id_, "content": content} for id_, content in sorted(results.items())]

        def work(connection: Connection) -> None:
            connection.execute(self._upsert, rows)
            if contents:
                connection.execute(self._upsert_results, contents)

        await self._database.write(work)

    async def results(self, execution: ExecutionId) -> bytes | None:
        """Return the encoded results that were saved with a record; None if there are none."""
        rows = await self._database.rows(select(execution_results.c.content).where(execution_results.c.execution == execution))
        return bytes(rows[0].content) if rows else None

    async def get(self, execution: ExecutionId) -> ExecutionRecord | None:
        """Return the record of an execution, or None if there is no record with this id."""
        rows = await self._database.rows(select(executions).where(executions.c.id == execution))
        return _record(rows[0]) if rows else None

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, before: Position | None, limit: int) -> Sequence[ExecutionRecord]:
        """Return a page of records in the order of ``created_at`` and id, the newest first.

        Args:
            owner: Owner of the executions. None: all owners.
            sandbox: Sandbox of the executions. None: all sandboxes.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        query = filter_by(select(executions), executions, owner=owner, sandbox=sandbox)
        if before is not None:
            query = query.where(is_before(executions, before))
        rows = await self._database.rows(query.order_by(executions.c.created_at.desc(), executions.c.id.desc()).limit(limit))
        return [_record(row) for row in rows]

    async def list_running(self, *, limit: int) -> Sequence[ExecutionRecord]:
        """Return at most ``limit`` records with status ``running``, the newest first."""
        query = filter_by(select(executions), executions, status=RUNNING)
        rows = await self._database.rows(query.order_by(executions.c.created_at.desc(), executions.c.id.desc()).limit(limit))
        return [_record(row) for row in rows]

    async def totals(self, *, owner: OwnerId | None = None) -> Mapping[OwnerId, Stored]:
        """For each owner, return the number of records and the sum of their sizes in bytes. If ``owner`` is not None, only for this owner."""
        size = func.sum(executions.c.size_bytes).label("size")
        query = filter_by(select(executions.c.owner, func.count().label("number"), size), executions, owner=owner).group_by(executions.c.owner)
        return {OwnerId(row.owner): Stored(int(row.number), int(row.size)) for row in await self._database.rows(query)}

    async def trim(self, owner: OwnerId, *, keep: Stored) -> int:
        """Delete the oldest records of an owner until at most ``keep.rows`` records with ``keep.bytes`` bytes are left. Return their number."""
        newest_old = await self._database.rows(first_beyond(executions, executions.c.created_at, owner, keep))
        if not newest_old:
            return 0
        position = Position(newest_old[0].at, newest_old[0].id)
        old = (
            select(executions.c.id)
            .where(executions.c.owner == owner, or_(is_before(executions, position), executions.c.id == position.id))
            .limit(BATCH)
        )
        return await self._database.apply_until_done(delete(executions).where(executions.c.id.in_(old)))

    async def delete_before(self, before: datetime) -> int:
        """Delete the records of all executions that began before a time. Return the number of deleted records."""
        old = select(executions.c.id).where(executions.c.created_at < before).limit(BATCH)
        return await self._database.apply_until_done(delete(executions).where(executions.c.id.in_(old)))

    async def monthly_counts(self, month: str) -> Mapping[OwnerId, int]:
        """For each owner, return the number of executions that began in the given month. Deleting records does not change these numbers.

        Args:
            month: The month in UTC, such as ``2026-11``.
        """
        rows = await self._database.rows(select(execution_counts).where(execution_counts.c.month == month))
        return {OwnerId(row.owner): int(row.number) for row in rows}

    async def add_monthly_counts(self, month: str, more: Mapping[OwnerId, int]) -> None:
        """Increase the counts of executions that began in the given month.

        Args:
            month: The month in UTC, such as ``2026-11``.
            more: Number of executions to add, by owner.
        """
        if more:
            rows = [{"month": month, "owner": owner, "number": number} for owner, number in sorted(more.items())]

            def work(connection: Connection) -> None:
                connection.execute(self._increment, rows)

            await self._database.write(work)


def _row(record: ExecutionRecord) -> dict[str, Any]:
    argv = None if record.argv is None else list(record.argv)
    return {"argv": argv, "size_bytes": record.size_bytes, **{name: getattr(record, name) for name in _COLUMNS}}


def _record(row: Row[Any]) -> ExecutionRecord:
    return ExecutionRecord(argv=None if row.argv is None else tuple(row.argv), **{name: getattr(row, name) for name in _COLUMNS})
