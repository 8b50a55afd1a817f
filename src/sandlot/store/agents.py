"""Records of agents and their sessions, with the events and the conversation of each session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, func, select, update
from sqlalchemy import insert as plain_insert

from sandlot.model.access import OwnerId
from sandlot.model.agents import (
    AgentConfig,
    AgentEventRecord,
    AgentRecord,
    AgentSessionRecord,
    NewAgentEvent,
    SessionChange,
    SessionEnvironment,
    SessionStatus,
    SessionUsage,
)
from sandlot.model.ids import AgentId, AgentSessionId, NodeId
from sandlot.model.repositories import Position
from sandlot.store.engine import Database
from sandlot.store.schema import agent_events, agent_messages, agent_sessions, agents
from sandlot.store.statements import filter_by, is_before


class SqlAgentRepository:
    """Implements :class:`sandlot.model.repositories.AgentRepository`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_agent(self, record: AgentRecord, *, max_per_owner: int) -> bool:
        """Insert an agent. Return False, and insert nothing, if its owner already has ``max_per_owner`` agents."""
        return await self._add(agents, record.owner, _values(record), max_per_owner)

    async def get_agent(self, agent: AgentId) -> AgentRecord | None:
        """Return an agent, or None if there is no agent with this id."""
        rows = await self._database.rows(select(agents).where(agents.c.id == agent))
        return _agent(rows[0]) if rows else None

    async def list_agents(self, *, owner: OwnerId | None, archived: bool, before: Position | None, limit: int) -> Sequence[AgentRecord]:
        """Return a page of agents, the newest first.

        Args:
            owner: Owner of the agents. None: all owners.
            archived: Include archived agents.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        query = filter_by(select(agents), agents, owner=owner)
        if not archived:
            query = query.where(agents.c.archived_at.is_(None))
        return [_agent(row) for row in await self._page(query, agents, before, limit)]

    async def replace_agent(self, record: AgentRecord, *, version: int) -> bool:
        """Replace an agent if its stored version is ``version``. Return whether the agent was replaced."""
        statement = update(agents).where(agents.c.id == record.id, agents.c.version == version).values(**_values(record))
        return await self._database.apply(statement) > 0

    async def remove_agent(self, agent: AgentId) -> bool:
        """Delete an agent. Its sessions stay. Return whether the agent existed."""
        return await self._database.apply(delete(agents).where(agents.c.id == agent)) > 0

    async def add_session(self, record: AgentSessionRecord, *, max_per_owner: int) -> bool:
        """Insert a session. Return False, and insert nothing, if its owner already has ``max_per_owner`` sessions."""
        return await self._add(agent_sessions, record.owner, {**_values(record), "last_message": 0}, max_per_owner)

    async def get_session(self, session: AgentSessionId) -> AgentSessionRecord | None:
        """Return a session, or None if there is no session with this id."""
        rows = await self._database.rows(select(agent_sessions).where(agent_sessions.c.id == session))
        return _session(rows[0]) if rows else None

    async def list_sessions(
        self, *, owner: OwnerId | None, agent: AgentId | None, archived: bool = True, before: Position | None, limit: int
    ) -> Sequence[AgentSessionRecord]:
        """Return a page of sessions, the newest first.

        Args:
            owner: Owner of the sessions. None: all owners.
            agent: Agent of the sessions. None: all agents.
            archived: Include archived sessions.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        query = filter_by(select(agent_sessions), agent_sessions, owner=owner, agent=agent)
        if not archived:
            query = query.where(agent_sessions.c.status != SessionStatus.TERMINATED)
        return [_session(row) for row in await self._page(query, agent_sessions, before, limit)]

    async def list_unused_sessions(self, *, before: datetime, limit: int) -> Sequence[AgentSessionRecord]:
        """Return sessions without an active run whose ``updated_at`` is earlier than ``before``, the longest unused first."""
        table = agent_sessions
        query = select(table).where(table.c.updated_at < before, table.c.status != SessionStatus.RUNNING)
        return [_session(row) for row in await self._database.rows(query.order_by(table.c.updated_at).limit(limit))]

    async def list_running_sessions(self, node: NodeId) -> Sequence[AgentSessionRecord]:
        """Return the sessions whose run is active on a node."""
        rows = await self._database.rows(select(agent_sessions).where(agent_sessions.c.node == node))
        return [_session(row) for row in rows]

    async def begin_run(
        self, session: AgentSessionId, node: NodeId, events: Sequence[NewAgentEvent], *, messages: Sequence[str] = ()
    ) -> AgentSessionRecord | None:
        """Change the status of an idle session to ``running`` and add events and messages. Return None if the session is not idle."""
        is_idle = agent_sessions.c.status == SessionStatus.IDLE
        return await self._database.write(
            lambda connection: _append(connection, session, events, messages, {"status": SessionStatus.RUNNING, "node": node}, is_idle)
        )

    async def append(
        self, session: AgentSessionId, events: Sequence[NewAgentEvent], *, messages: Sequence[str] = (), change: SessionChange | None = None
    ) -> AgentSessionRecord | None:
        """Add events and messages to a session and change the session. Return None, with nothing changed, if the session does not exist.

        Args:
            session: Id of the session.
            events: Events in order.
            messages: Messages of the conversation with the model, in order.
            change: Change of the session.
        """
        values = {} if change is None else {name: value for name, value in _values(change).items() if value is not None}
        if values.get("status", SessionStatus.RUNNING) is not SessionStatus.RUNNING:
            values["node"] = None
        return await self._database.write(lambda connection: _append(connection, session, events, messages, values))

    async def list_events(self, session: AgentSessionId, *, after: int, limit: int) -> Sequence[AgentEventRecord]:
        """Return the events of a session in their order.

        Args:
            session: Id of the session.
            after: Sequence number of the event before the first one; 0 for all events.
            limit: Maximum number of events.
        """
        query = select(agent_events).where(agent_events.c.session == session, agent_events.c.sequence > after)
        rows = await self._database.rows(query.order_by(agent_events.c.sequence).limit(limit))
        return [AgentEventRecord(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's name of a public attribute

    async def list_messages(self, session: AgentSessionId) -> Sequence[str]:
        """Return the messages of the conversation of a session in their order."""
        query = select(agent_messages.c.message).where(agent_messages.c.session == session).order_by(agent_messages.c.number)
        return [str(row.message) for row in await self._database.rows(query)]

    async def remove_session(self, session: AgentSessionId) -> bool:
        """Delete a session with its events and messages. Return whether the session existed."""
        return await self._database.apply(delete(agent_sessions).where(agent_sessions.c.id == session)) > 0

    async def _add(self, table: Table, owner: OwnerId, row: Mapping[str, Any], max_per_owner: int) -> bool:
        number = select(func.count()).select_from(table).where(table.c.owner == owner)

        def work(connection: Connection) -> bool:
            if int(connection.execute(number).scalar_one()) >= max_per_owner:
                return False
            connection.execute(plain_insert(table), row)
            return True

        return await self._database.write(work)

    async def _page(self, query: Any, table: Table, before: Position | None, limit: int) -> Sequence[Row[Any]]:  # noqa: ANN401 - a SELECT
        if before is not None:
            query = query.where(is_before(table, before))
        return await self._database.rows(query.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit))


def _append(
    connection: Connection,
    session: AgentSessionId,
    events: Sequence[NewAgentEvent],
    messages: Sequence[str],
    values: Mapping[str, Any],
    *conditions: Any,  # noqa: ANN401 - conditions of SQLAlchemy
) -> AgentSessionRecord | None:
    """Change a session, which locks its row, and insert events and messages with the next numbers."""
    statement = (
        update(agent_sessions)
        .where(agent_sessions.c.id == session, *conditions)
        .values(
            last_sequence=agent_sessions.c.last_sequence + len(events),
            last_message=agent_sessions.c.last_message + len(messages),
            **({"updated_at": events[-1].at} if events else {}),
            **values,
        )
    )
    row = connection.execute(statement.returning(*agent_sessions.columns)).first()
    if row is None:
        return None
    if events:
        first = row.last_sequence - len(events) + 1
        rows = [{"session": session, "sequence": sequence, **_values(event)} for sequence, event in enumerate(events, first)]
        connection.execute(plain_insert(agent_events), rows)
    if messages:
        first = row.last_message - len(messages) + 1
        rows = [{"session": session, "number": number, "message": message} for number, message in enumerate(messages, first)]
        connection.execute(plain_insert(agent_messages), rows)
    return _session(row)


def _values(record: AgentRecord | AgentSessionRecord | NewAgentEvent | SessionChange) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _agent(row: Row[Any]) -> AgentRecord:
    return AgentRecord(**{**row._mapping, "config": _config(row.config)})  # noqa: SLF001 - SQLAlchemy's name of a public attribute


def _session(row: Row[Any]) -> AgentSessionRecord:
    values = {name: value for name, value in row._mapping.items() if name != "last_message"}  # noqa: SLF001 - SQLAlchemy's name of a public attribute
    stored = {
        "config": _config(row.config),
        "environment": SessionEnvironment(**row.environment),
        "status": SessionStatus(row.status),
        "usage": SessionUsage(**row.usage),
    }
    return AgentSessionRecord(**{**values, **stored})


def _config(stored: Mapping[str, Any]) -> AgentConfig:
    return AgentConfig(**{**stored, "tools": tuple(stored["tools"])})
