"""Sandboxes, live and ended.

Laws:
- What has ended stays ended, and what is to end goes on to its end: a save that comes later from a slower connection does not bring it back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, delete, exists, or_, select
from sqlalchemy import insert as plain_insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import NodeId, SandboxId
from sandlot.model.records import NewEvent, SandboxRecord
from sandlot.model.states import State, is_terminal
from sandlot.model.storage import Position
from sandlot.store.engine import Database
from sandlot.store.events import PIECE, append
from sandlot.store.rows import later, of, replacing
from sandlot.store.schema import labels, sandboxes

_TERMINAL = tuple(state.value for state in State if is_terminal(state))
_LIVE = tuple(state.value for state in State if not is_terminal(state))
_COLUMNS = tuple(column.name for column in sandboxes.columns if column.name not in {"id", "state"})


class Sandboxes:
    """Fills :class:`sandlot.model.storage.SandboxTable`.

    Args:
        database: Where.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._replacing = replacing(database.dialect, sandboxes, _forward).returning(sandboxes.c.id)

    async def save(self, record: SandboxRecord, event: NewEvent | None = None) -> None:
        """Insert or replace by id, and tell of it; nothing where the one that there is has ended, or is to end and this one says otherwise.

        Raises:
            ConflictError: A live or ended record of the same owner has its idempotency key already.
        """

        def work(connection: Connection) -> None:
            try:
                is_new = connection.execute(self._replacing, _row(record)).first() is not None
            except IntegrityError as error:
                raise ConflictError(
                    "There is a sandbox of this idempotency key already.",
                    code=ErrorCode.CONFLICT,
                    hint="Ask for that one, or use another key for another request.",
                ) from error
            if not is_new:
                return
            connection.execute(delete(labels).where(labels.c.sandbox == record.id))
            if entries := [{"sandbox": record.id, "name": name, "value": value} for name, value in record.spec.metadata.items()]:
                connection.execute(plain_insert(labels), entries)
            if event is not None:
                append(connection, [event])

        await self._database.write(work)

    async def unfinished(self, node: NodeId) -> Sequence[SandboxRecord]:
        """All of a node whose state is not terminal, oldest first."""
        query = select(sandboxes).where(sandboxes.c.node == node, sandboxes.c.state.in_(_LIVE))
        return await self._all(query.order_by(sandboxes.c.created_at, sandboxes.c.id))

    async def ended_last(self, node: NodeId, *, limit: int) -> Sequence[SandboxRecord]:
        """Those of a node that ended last, the latest one first."""
        query = select(sandboxes).where(sandboxes.c.node == node, sandboxes.c.ended_at.is_not(None), sandboxes.c.state.in_(_TERMINAL))
        return await self._all(query.order_by(sandboxes.c.ended_at.desc(), sandboxes.c.id.desc()).limit(limit))

    async def get(self, sandbox: SandboxId) -> SandboxRecord | None:
        """One, ended or not."""
        return next(iter(await self._all(select(sandboxes).where(sandboxes.c.id == sandbox))), None)

    async def by_idempotency_key(self, owner: OwnerId, key: str) -> SandboxRecord | None:
        """What a request of that name made."""
        return next(iter(await self._all(of(select(sandboxes), sandboxes, owner=owner, idempotency_key=key))), None)

    async def ended(
        self,
        *,
        owner: OwnerId | None,
        metadata: Mapping[str, str],
        states: Collection[str],
        after: Position | None,
        limit: int,
        name: str | None = None,
    ) -> Sequence[SandboxRecord]:
        """Those that have ended, by ``created_at`` and id, oldest first; see the protocol."""
        query = of(select(sandboxes).where(sandboxes.c.state.in_(set(states) & set(_TERMINAL) if states else _TERMINAL)), sandboxes, owner=owner)
        if name is not None:
            query = query.where(sandboxes.c.name == name)
        for word, value in metadata.items():
            query = query.where(exists().where(labels.c.sandbox == sandboxes.c.id, labels.c.name == word, labels.c.value == value))
        if after is not None:
            query = query.where(later(sandboxes, after))
        return await self._all(query.order_by(sandboxes.c.created_at, sandboxes.c.id).limit(limit))

    async def forget(self, *, ended_before: datetime) -> int:
        """Drop those that ended before then; how many."""
        old = select(sandboxes.c.id).where(sandboxes.c.ended_at < ended_before, sandboxes.c.state.in_(_TERMINAL)).limit(PIECE)
        return await self._database.apply_all(delete(sandboxes).where(sandboxes.c.id.in_(old)))

    async def _all(self, query: Select[Any]) -> list[SandboxRecord]:
        return [_record(row) for row in await self._database.rows(query)]


def _forward(statement: postgresql.Insert | sqlite.Insert) -> ColumnElement[bool]:
    """Which rows may be replaced by what is inserted."""
    ends = statement.excluded.state.in_((State.STOPPING.value, *_TERMINAL))
    return and_(sandboxes.c.state.not_in(_TERMINAL), or_(sandboxes.c.state != State.STOPPING.value, ends))


def _row(record: SandboxRecord) -> dict[str, Any]:
    return {"id": record.id, "state": record.state.value, **{name: getattr(record, name) for name in _COLUMNS}}


def _record(row: Row[Any]) -> SandboxRecord:
    return SandboxRecord(state=State(row.state), **{name: getattr(row, name) for name in _COLUMNS})
