"""Stored agents, their sessions and events. The runner above core calls models and tools and records its work here.

Invariants:
- A principal sees its own agents and sessions; an operator sees those of all owners.
- An event is stored before a follower gets it. A follower reads pages from the store and remembers its own position, so that a slow follower takes
  no memory and misses no event.
- A session has one active run at most. A message during a run is a conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final

from sandlot.core.access.quotas import check_lifetime
from sandlot.core.concurrency import GeneratorStream, Wakeups
from sandlot.core.ports import Clock
from sandlot.model.access import OwnerId, Principal
from sandlot.model.agents import (
    AgentChange,
    AgentConfig,
    AgentEventRecord,
    AgentRecord,
    AgentSessionRecord,
    NewAgentEvent,
    SessionChange,
    SessionEnvironment,
    SessionStatus,
)
from sandlot.model.errors import ConflictError, ErrorCode, ForbiddenError, InvalidRequestError, LimitError, NotFoundError, UnavailableError
from sandlot.model.ids import AGENT_ID, AGENT_SESSION_ID, AgentId, AgentSessionId, NodeId, new_agent_event_id, new_agent_id, new_agent_session_id
from sandlot.model.repositories import AgentRepository, Position
from sandlot.model.sandboxes import check_metadata
from sandlot.model.specs import KIB, check_text, check_timeout
from sandlot.model.streams import Page, Stream

MAX_AGENTS: Final = 1000
"""Maximum number of agents of one owner."""
MAX_SESSIONS: Final = 10_000
"""Maximum number of sessions of one owner."""
MAX_EVENTS: Final = 10_000
"""Number of events after which a session takes no more messages."""
MAX_NAME_BYTES: Final = 256
MAX_DESCRIPTION_BYTES: Final = 4 * KIB
MAX_SYSTEM_BYTES: Final = 256 * KIB
MAX_TOOLS: Final = 64
EVENTS_PAGE: Final = 100
"""Number of events that a follower reads from the store at once."""
EVENTS_POLL_S: Final = 5.0
"""Seconds after which a follower reads the store even without a notification, because another node may run the session."""

Event = tuple[str, Mapping[str, Any]]
"""Type and fields of an event."""


class AgentService:
    """Agents, sessions and events of all owners."""

    def __init__(self, *, node: NodeId, agents: AgentRepository, clock: Clock) -> None:
        self._node = node
        self._agents = agents
        self._clock = clock
        self._wakeups = Wakeups()

    def close(self) -> None:
        """End all followers, because the service stops. Idempotent."""
        self._wakeups.close()

    # Agents ----------------------------------------------------------------------------------------------------------

    async def create(self, principal: Principal, config: AgentConfig) -> AgentRecord:
        """Create an agent.

        Raises:
            InvalidRequestError: A field of the configuration is too long or empty.
            LimitError: The owner has ``MAX_AGENTS`` agents.
        """
        _check(config)
        now = self._clock.now()
        record = AgentRecord(new_agent_id(), principal.owner, 1, config, now, now)
        if not await self._agents.add_agent(record, max_per_owner=MAX_AGENTS):
            raise _too_many("agents", MAX_AGENTS)
        return record

    async def get(self, principal: Principal, agent: str) -> AgentRecord:
        """Return an agent.

        Raises:
            NotFoundError: There is no such agent (``agent_not_found``).
        """
        record = await self._agents.get_agent(AgentId(agent)) if AGENT_ID.fullmatch(agent) else None
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no agent {agent[:64]!r}.",
                code=ErrorCode.AGENT_NOT_FOUND,
                hint="List the agents to find their ids.",
                fields={"agent": agent[:64]},
            )
        return record

    async def list(self, principal: Principal, *, archived: bool = False, before: Position | None = None, limit: int = 100) -> Page[AgentRecord]:
        """Return agents, newest first.

        Args:
            principal: Caller.
            archived: Include archived agents.
            before: Position of the last agent of the previous page. None: the first page.
            limit: Maximum number of agents.
        """
        found = await self._agents.list_agents(owner=_owner(principal), archived=archived, before=before, limit=limit + 1)
        return Page(found[:limit], more=len(found) > limit)

    async def update(self, principal: Principal, agent: str, change: AgentChange, *, version: int | None = None) -> AgentRecord:
        """Change the configuration of an agent. Existing sessions keep the configuration with which they were created.

        Args:
            principal: Caller.
            agent: Id of the agent.
            change: New values.
            version: Version that the caller has read. None: any version.

        Raises:
            NotFoundError: There is no such agent.
            ConflictError: The agent has another version, or is archived.
        """
        before = await self.get(principal, agent)
        if before.archived_at is not None:
            raise ConflictError(f"The agent {before.id} is archived.", hint="Create another agent.", fields={"agent": before.id})
        if version is not None and version != before.version:
            raise _changed(before.id, before.version)
        values = {each.name: value for each in fields(change) if (value := getattr(change, each.name)) is not None}
        config = replace(before.config, **values)
        _check(config)
        return await self._replace(before, replace(before, version=before.version + 1, config=config, updated_at=self._clock.now()))

    async def archive(self, principal: Principal, agent: str) -> AgentRecord:
        """Archive an agent: it gets no new sessions and cannot be changed. Its sessions continue. Idempotent.

        Raises:
            NotFoundError: There is no such agent.
        """
        before = await self.get(principal, agent)
        if before.archived_at is not None:
            return before
        now = self._clock.now()
        return await self._replace(before, replace(before, version=before.version + 1, updated_at=now, archived_at=now))

    async def delete(self, principal: Principal, agent: str) -> None:
        """Delete an agent. Its sessions stay readable, and take no more messages.

        Raises:
            NotFoundError: There is no such agent.
        """
        await self._agents.remove_agent((await self.get(principal, agent)).id)

    async def _replace(self, before: AgentRecord, after: AgentRecord) -> AgentRecord:
        if not await self._agents.replace_agent(after, version=before.version):
            raise _changed(before.id, None)
        return after

    # Sessions --------------------------------------------------------------------------------------------------------

    async def create_session(
        self,
        principal: Principal,
        agent: str,
        environment: SessionEnvironment,
        *,
        title: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AgentSessionRecord:
        """Create a session with the current configuration of an agent. The session belongs to the principal.

        Raises:
            NotFoundError: There is no such agent.
            InvalidRequestError: The timeout of the environment is out of range.
            ConflictError: The agent is archived.
            LimitError: The owner has ``MAX_SESSIONS`` sessions, or its quota does not allow the timeout.
        """
        if environment.timeout_s is not None:
            check_timeout(environment.timeout_s)
            check_lifetime(principal.quota, environment.timeout_s)
        found = await self.get(principal, agent)
        if found.archived_at is not None:
            raise ConflictError(f"The agent {found.id} is archived.", hint="Create a session of another agent.", fields={"agent": found.id})
        _check_session(title, metadata)
        now = self._clock.now()
        record = AgentSessionRecord(
            id=new_agent_session_id(),
            owner=principal.owner,
            agent=found.id,
            agent_version=found.version,
            config=found.config,
            environment=environment,
            title=title,
            metadata=metadata or {},
            created_at=now,
            updated_at=now,
        )
        if not await self._agents.add_session(record, max_per_owner=MAX_SESSIONS):
            raise _too_many("sessions", MAX_SESSIONS)
        return record

    async def get_session(self, principal: Principal, session: str) -> AgentSessionRecord:
        """Return a session.

        Raises:
            NotFoundError: There is no such session (``session_not_found``).
        """
        record = await self._agents.get_session(AgentSessionId(session)) if AGENT_SESSION_ID.fullmatch(session) else None
        if record is None or not principal.sees(record.owner):
            raise _session_not_found(session)
        return record

    async def list_sessions(
        self, principal: Principal, *, agent: str | None = None, archived: bool = True, before: Position | None = None, limit: int = 100
    ) -> Page[AgentSessionRecord]:
        """Return sessions, newest first.

        Args:
            principal: Caller.
            agent: Id of the agent of the sessions. None: all agents.
            archived: Include archived sessions.
            before: Position of the last session of the previous page. None: the first page.
            limit: Maximum number of sessions.
        """
        of = None if agent is None else AgentId(agent)
        found = await self._agents.list_sessions(owner=_owner(principal), agent=of, archived=archived, before=before, limit=limit + 1)
        return Page(found[:limit], more=len(found) > limit)

    async def update_session(
        self, principal: Principal, session: str, *, title: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> AgentSessionRecord:
        """Change the title or the metadata of a session. None keeps a value.

        Raises:
            NotFoundError: There is no such session.
        """
        found = await self.get_session(principal, session)
        _check_session(title, metadata)
        return await self.append(found.id, change=SessionChange(title=title, metadata=metadata))

    async def archive_session(self, principal: Principal, session: str) -> AgentSessionRecord:
        """Archive a session without an active run: it takes no more messages and stays readable. Idempotent.

        Raises:
            NotFoundError: There is no such session.
        """
        found = await self.get_session(principal, session)
        if found.status is SessionStatus.TERMINATED:
            return found
        return await self.append(found.id, [("session.status_terminated", {})], change=SessionChange(SessionStatus.TERMINATED))

    async def delete_session(self, principal: Principal, session: str) -> None:
        """Delete a session with its events.

        Raises:
            NotFoundError: There is no such session.
        """
        found = await self.get_session(principal, session)
        await self._agents.remove_session(found.id)
        self._wakeups.wake(found.id)

    # Runs ------------------------------------------------------------------------------------------------------------

    async def begin_run(self, principal: Principal, session: str, events: Sequence[Event], *, messages: Sequence[str] = ()) -> AgentSessionRecord:
        """Begin a run of a session with its first events. Only the owner of the session may do this, because the run uses the owner's sandboxes.

        Args:
            principal: Caller.
            session: Id of the session.
            events: Events in order.
            messages: Messages of the conversation with the model, in order.

        Raises:
            ForbiddenError: The session belongs to another owner.
            NotFoundError: There is no such session.
            ConflictError: A run is active, the session is archived, or its agent was deleted.
            LimitError: The session has ``MAX_EVENTS`` events.
        """
        found = await self.get_session(principal, session)
        if found.owner != principal.owner:
            raise ForbiddenError(f"The session {found.id} belongs to another key.", hint="Use the key that created the session.")
        if found.last_sequence >= MAX_EVENTS:
            raise LimitError(
                f"The session {found.id} has {found.last_sequence} events; {MAX_EVENTS} are allowed.",
                hint="Create another session.",
                fields={"session": found.id, "max": MAX_EVENTS},
            )
        if found.status is SessionStatus.TERMINATED or await self._agents.get_agent(found.agent) is None:
            raise ConflictError(
                f"The session {found.id} takes no more messages, because it is archived or its agent was deleted.",
                hint="Create another session.",
                fields={"session": found.id},
            )
        begun = await self._agents.begin_run(found.id, self._node, self._new(events), messages=messages)
        if begun is None:
            raise ConflictError(
                f"The session {found.id} is running.",
                hint="Wait until its status is `idle`, or interrupt the run first.",
                fields={"session": found.id},
            )
        self._wakeups.wake(found.id)
        return begun

    async def append(
        self, session: AgentSessionId, events: Sequence[Event] = (), *, messages: Sequence[str] = (), change: SessionChange | None = None
    ) -> AgentSessionRecord:
        """Store events of a run, with messages of its conversation and a change of its session, together.

        Args:
            session: Id of the session.
            events: Events in order.
            messages: Messages of the conversation with the model, in order.
            change: Change of the session. Any other status than ``running`` ends the run.

        Raises:
            NotFoundError: The session was deleted.
        """
        changed = await self._agents.append(session, self._new(events), messages=messages, change=change)
        self._wakeups.wake(session)
        if changed is None:
            raise _session_not_found(session)
        return changed

    async def messages(self, session: AgentSessionId) -> Sequence[str]:
        """Return the conversation of a session with its model."""
        return await self._agents.list_messages(session)

    async def running(self) -> Sequence[AgentSessionRecord]:
        """Return the sessions whose run is active on this node. After a start of the service, these runs are lost."""
        return await self._agents.list_running_sessions(self._node)

    async def unused(self, for_s: float, *, limit: int) -> Sequence[AgentSessionRecord]:
        """Return sessions of all owners without an active run and without a new event for ``for_s`` seconds, the longest unused first."""
        return await self._agents.list_unused_sessions(before=self._clock.now() - timedelta(seconds=for_s), limit=limit)

    async def last_events(self, session: AgentSessionId, count: int) -> Sequence[AgentEventRecord]:
        """Return the newest ``count`` events of a session, oldest first."""
        found = await self._agents.get_session(session)
        return [] if found is None else await self._agents.list_events(session, after=max(0, found.last_sequence - count), limit=count)

    # Events ----------------------------------------------------------------------------------------------------------

    async def events(self, principal: Principal, session: str, *, after: int = 0, limit: int = 100) -> Page[AgentEventRecord]:
        """Return events of a session, oldest first.

        Args:
            principal: Caller.
            session: Id of the session.
            after: Return only events with a larger sequence number.
            limit: Maximum number of events.

        Raises:
            NotFoundError: There is no such session.
        """
        found = await self.get_session(principal, session)
        events = await self._agents.list_events(found.id, after=after, limit=limit + 1)
        return Page(events[:limit], more=len(events) > limit)

    async def follow_events(self, principal: Principal, session: str, *, after: int = 0) -> Stream[AgentEventRecord]:
        """Follow the events of a session as they are stored. The stream ends when the session is deleted.

        The stream raises ``UnavailableError`` when the service stops.

        Args:
            principal: Caller.
            session: Id of the session.
            after: Follow the events with a larger sequence number, stored events first.

        Raises:
            NotFoundError: There is no such session.
        """
        found = await self.get_session(principal, session)
        return GeneratorStream(self._follow(found.id, after))

    async def _follow(self, session: AgentSessionId, last: int) -> AsyncGenerator[AgentEventRecord]:
        with self._wakeups.follower(session) as wakeup:
            while not self._wakeups.is_closed:
                wakeup.clear()  # before the read, so that an event that is stored during the read sets the wakeup again
                page = await self._agents.list_events(session, after=last, limit=EVENTS_PAGE)
                for record in page:
                    yield record
                    last = record.sequence
                if len(page) < EVENTS_PAGE:
                    if not page and await self._agents.get_session(session) is None:
                        return
                    with suppress(TimeoutError):
                        async with asyncio.timeout(EVENTS_POLL_S):
                            await wakeup.wait()
        raise UnavailableError(
            "The service is stopping.",
            hint=f"Continue with after={last} when the service has restarted.",
            fields={"after": last, "retry_after_s": 1},
        )

    def _new(self, events: Sequence[Event]) -> Sequence[NewAgentEvent]:
        now = self._clock.now()
        return [NewAgentEvent(new_agent_event_id(), type_, now, data) for type_, data in events]


def _owner(principal: Principal) -> OwnerId | None:
    return None if principal.operator else principal.owner


def _check(config: AgentConfig) -> None:
    for name, least, most in (("name", 1, MAX_NAME_BYTES), ("model", 1, MAX_NAME_BYTES), ("system", 0, MAX_SYSTEM_BYTES)):
        _check_size(name, getattr(config, name), least, most)
    _check_size("description", config.description, 0, MAX_DESCRIPTION_BYTES)
    check_metadata(config.metadata)
    if len(config.tools) > MAX_TOOLS:
        raise InvalidRequestError(f"`tools` has {len(config.tools)} entries; {MAX_TOOLS} are allowed.", fields={"field": "tools"})


def _check_session(title: str | None, metadata: Mapping[str, str] | None) -> None:
    _check_size("title", title or "", 0, MAX_NAME_BYTES)
    check_metadata(metadata or {})


def _check_size(field: str, text: str, least: int, most: int) -> None:
    size = len(check_text(field, text))
    if not least <= size <= most:
        raise InvalidRequestError(f"`{field}` has {size} bytes; {least} to {most} are allowed.", fields={"field": field})


def _too_many(what: str, most: int) -> LimitError:
    return LimitError(f"This key has {most} {what}, the maximum.", hint=f"Delete {what} that are no longer needed.", fields={"max": most})


def _changed(agent: AgentId, version: int | None) -> ConflictError:
    current = "" if version is None else f" Its version is {version}."
    return ConflictError(f"The agent {agent} was changed meanwhile.{current}", hint="Get the agent, and repeat the update.", fields={"agent": agent})


def _session_not_found(session: str) -> NotFoundError:
    return NotFoundError(
        f"There is no session {session[:64]!r}.",
        code=ErrorCode.SESSION_NOT_FOUND,
        hint="List the sessions to find their ids.",
        fields={"session": session[:64]},
    )
