"""Tests of the repository of agents: saved values, versions, numbered events, and runs of which only one is active."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandlot.model.access import OwnerId
from sandlot.model.agents import (
    AgentConfig,
    AgentRecord,
    AgentSessionRecord,
    NewAgentEvent,
    SessionChange,
    SessionEnvironment,
    SessionStatus,
    SessionUsage,
)
from sandlot.model.ids import AgentId, SandboxId, new_agent_event_id, new_agent_id, new_agent_session_id, new_node_id
from sandlot.model.repositories import Position, Store
from sandlot.testing.stores.harness import ALICE, BOB, HOSTILE_TEXT, StoreOpener, moment

CONFIG = AgentConfig(name="Analyst", model="large")
HOSTILE_CONFIG = AgentConfig(HOSTILE_TEXT, HOSTILE_TEXT, HOSTILE_TEXT, ({"type": "mcp", "server": HOSTILE_TEXT},), HOSTILE_TEXT, {"k": HOSTILE_TEXT})


def agent(at_s: float = 0, owner: OwnerId = ALICE) -> AgentRecord:
    """Return the record of an agent that was created ``at_s`` seconds after ``BEGINNING``."""
    return AgentRecord(new_agent_id(), owner, 1, CONFIG, moment(at_s), moment(at_s))


def session(at_s: float = 0, owner: OwnerId = ALICE, of: AgentId | None = None) -> AgentSessionRecord:
    """Return the record of a session that was created ``at_s`` seconds after ``BEGINNING``."""
    return AgentSessionRecord(
        id=new_agent_session_id(),
        owner=owner,
        agent=of or new_agent_id(),
        agent_version=1,
        config=CONFIG,
        environment=SessionEnvironment("base"),
        title=None,
        metadata={},
        created_at=moment(at_s),
        updated_at=moment(at_s),
    )


def agent_event(at_s: float = 0, text: str = "hello") -> NewAgentEvent:
    """Return an event that occurred ``at_s`` seconds after ``BEGINNING``."""
    return NewAgentEvent(new_agent_event_id(), "user.message", moment(at_s), {"content": [{"type": "text", "text": text}]})


class AgentsSuite:
    """Tests of the repository of agents. Needs a fixture ``harness``."""

    @pytest.fixture
    async def store(self, harness: StoreOpener) -> AsyncIterator[Store]:
        """Open the store for one test, and close the store after the test."""
        async with harness.open() as store:
            yield store

    async def test_agent_is_read_as_it_was_added(self, store: Store) -> None:
        for record in (agent(), replace(agent(), version=7, config=HOSTILE_CONFIG, updated_at=moment(5), archived_at=moment(6))):
            assert await store.agents.add_agent(record, max_per_owner=9)
            assert await store.agents.get_agent(record.id) == record
        assert await store.agents.get_agent(new_agent_id()) is None

    async def test_agents_are_listed_newest_first_in_pages(self, store: Store) -> None:
        mine = [agent(at_s) for at_s in (1, 2, 2, 3)]
        archived, theirs = replace(agent(4), archived_at=moment(9)), agent(5, BOB)
        for record in (*mine, archived, theirs):
            await store.agents.add_agent(record, max_per_owner=9)
        newest_first = sorted(mine, key=lambda record: (record.created_at, record.id), reverse=True)
        assert list(await store.agents.list_agents(owner=None, archived=True, before=None, limit=9)) == [theirs, archived, *newest_first]
        first = await store.agents.list_agents(owner=ALICE, archived=False, before=None, limit=2)
        position = Position(first[-1].created_at, first[-1].id)
        assert [*first, *await store.agents.list_agents(owner=ALICE, archived=False, before=position, limit=9)] == newest_first

    async def test_numbers_of_agents_and_sessions_per_owner_are_limited(self, store: Store) -> None:
        assert [await store.agents.add_agent(agent(), max_per_owner=2) for _ in range(3)] == [True, True, False]
        assert [await store.agents.add_session(session(), max_per_owner=2) for _ in range(3)] == [True, True, False]
        assert await store.agents.add_agent(agent(owner=BOB), max_per_owner=2)
        assert await store.agents.add_session(session(owner=BOB), max_per_owner=2)

    async def test_agent_is_replaced_only_at_the_expected_version(self, store: Store) -> None:
        record = agent()
        await store.agents.add_agent(record, max_per_owner=9)
        second, other = replace(record, version=2, config=HOSTILE_CONFIG), replace(record, version=2)
        done = await asyncio.gather(store.agents.replace_agent(second, version=1), store.agents.replace_agent(other, version=1))
        assert sorted(done) == [False, True]
        assert await store.agents.get_agent(record.id) == (second if done[0] else other)
        assert not await store.agents.replace_agent(replace(agent(), version=2), version=1)

    async def test_session_is_read_as_it_was_added(self, store: Store) -> None:
        full = replace(
            session(),
            config=HOSTILE_CONFIG,
            environment=SessionEnvironment(HOSTILE_TEXT, 600.5, "none"),
            title=HOSTILE_TEXT,
            metadata={"k": HOSTILE_TEXT},
            stop_reason="end_turn",
            sandbox=SandboxId("sb-node-aaaaaaaaaaaaaaaa"),
            status=SessionStatus.TERMINATED,
            usage=SessionUsage(1, 2, 1 << 40, 1 << 41, 0.25),
        )
        for record in (session(), full):
            assert await store.agents.add_session(record, max_per_owner=9)
            assert await store.agents.get_session(record.id) == record
        assert await store.agents.get_session(new_agent_session_id()) is None

    async def test_sessions_are_listed_by_agent_newest_first(self, store: Store) -> None:
        of = new_agent_id()
        mine = [session(at_s, of=of) for at_s in (1, 2, 3)]
        other, theirs = session(4), session(5, BOB)
        for record in (*mine, other, theirs):
            await store.agents.add_session(record, max_per_owner=9)
        assert list(await store.agents.list_sessions(owner=None, agent=None, before=None, limit=9)) == [theirs, other, *reversed(mine)]
        first = await store.agents.list_sessions(owner=ALICE, agent=of, before=None, limit=1)
        position = Position(first[-1].created_at, first[-1].id)
        assert [*first, *await store.agents.list_sessions(owner=ALICE, agent=of, before=position, limit=9)] == mine[::-1]
        await store.agents.append(other.id, [], change=SessionChange(SessionStatus.TERMINATED))
        assert list(await store.agents.list_sessions(owner=None, agent=None, archived=False, before=None, limit=9)) == [theirs, *reversed(mine)]
        await store.agents.append(mine[1].id, [agent_event(6)], change=SessionChange(SessionStatus.TERMINATED))
        assert list(await store.agents.list_sessions(owner=None, agent=of, archived=False, before=None, limit=9)) == [mine[2], mine[0]]

    async def test_unused_sessions_are_those_without_a_run_and_without_late_events(self, store: Store) -> None:
        running, late, first, second = (session(at_s) for at_s in (1, 3, 1, 2))
        for record in (second, late, running, first):
            await store.agents.add_session(record, max_per_owner=9)
        await store.agents.begin_run(running.id, new_node_id(), [])
        assert list(await store.agents.list_unused_sessions(before=moment(3), limit=9)) == [first, second]
        assert list(await store.agents.list_unused_sessions(before=moment(3), limit=1)) == [first]
        await store.agents.append(first.id, [agent_event(5)])
        assert list(await store.agents.list_unused_sessions(before=moment(3), limit=9)) == [second]

    async def test_one_run_of_a_session_is_active_at_a_time(self, store: Store) -> None:
        record, node, event = session(), new_node_id(), agent_event(1)
        await store.agents.add_session(record, max_per_owner=9)
        begun = await asyncio.gather(*(store.agents.begin_run(record.id, node, [agent_event(1)]) for _ in range(5)))
        running = next(each for each in begun if each is not None)
        assert sum(each is not None for each in begun) == 1
        assert running == replace(record, status=SessionStatus.RUNNING, node=node, last_sequence=1, updated_at=moment(1))
        assert list(await store.agents.list_running_sessions(node)) == [running]
        assert list(await store.agents.list_running_sessions(new_node_id())) == []
        ended = await store.agents.append(record.id, [event], change=SessionChange(SessionStatus.IDLE, stop_reason="end_turn"))
        assert ended == replace(running, status=SessionStatus.IDLE, node=None, last_sequence=2, stop_reason="end_turn")
        assert list(await store.agents.list_running_sessions(node)) == []
        assert await store.agents.begin_run(record.id, node, [], messages=[HOSTILE_TEXT]) is not None
        assert list(await store.agents.list_messages(record.id)) == [HOSTILE_TEXT]
        await store.agents.append(record.id, [], change=SessionChange(SessionStatus.TERMINATED))
        assert await store.agents.begin_run(record.id, node, [event], messages=["no"]) is None
        assert list(await store.agents.list_messages(record.id)) == [HOSTILE_TEXT]
        assert await store.agents.begin_run(new_agent_session_id(), node, [event]) is None

    async def test_events_are_numbered_without_gaps(self, store: Store) -> None:
        record = session()
        await store.agents.add_session(record, max_per_owner=9)
        texts = [f"{number}: {HOSTILE_TEXT}" for number in range(12)]
        await asyncio.gather(*(store.agents.append(record.id, [agent_event(0, text), agent_event(1, text)]) for text in texts))
        events = await store.agents.list_events(record.id, after=0, limit=99)
        assert [each.sequence for each in events] == list(range(1, 25))
        pairs = [each.data["content"][0]["text"] for each in events]
        assert pairs[::2] == pairs[1::2]
        assert sorted(pairs[::2]) == sorted(texts)
        assert list(await store.agents.list_events(record.id, after=20, limit=2)) == list(events[20:22])
        assert {(each.session, each.at) for each in events} == {(record.id, moment(0)), (record.id, moment(1))}

    async def test_events_messages_and_changes_are_stored_together(self, store: Store) -> None:
        record = session()
        await store.agents.add_session(record, max_per_owner=9)
        change = SessionChange(
            sandbox=SandboxId("sb-node-aaaaaaaaaaaaaaaa"), usage=SessionUsage(1, 2, 3, 4, 5.5), title=HOSTILE_TEXT, metadata={"a": "b"}
        )
        changed = await store.agents.append(record.id, [agent_event(3)], messages=[HOSTILE_TEXT, "2"], change=change)
        assert changed is not None
        assert changed == await store.agents.get_session(record.id)
        assert (changed.sandbox, changed.usage, changed.title, changed.metadata) == (change.sandbox, change.usage, change.title, change.metadata)
        assert (changed.status, changed.updated_at, changed.last_sequence) == (SessionStatus.IDLE, moment(3), 1)
        await store.agents.append(record.id, [], messages=["3"])
        assert list(await store.agents.list_messages(record.id)) == [HOSTILE_TEXT, "2", "3"]
        assert await store.agents.append(new_agent_session_id(), [agent_event()], messages=["x"]) is None

    async def test_deleted_session_leaves_no_events_and_messages(self, store: Store) -> None:
        record, kept = session(), session()
        for each in (record, kept):
            await store.agents.add_session(each, max_per_owner=9)
            await store.agents.append(each.id, [agent_event()], messages=["m"])
        assert await store.agents.remove_session(record.id)
        assert not await store.agents.remove_session(record.id)
        assert list(await store.agents.list_events(record.id, after=0, limit=9)) == []
        assert list(await store.agents.list_messages(record.id)) == []
        assert len(await store.agents.list_events(kept.id, after=0, limit=9)) == 1
        assert list(await store.agents.list_messages(kept.id)) == ["m"]

    async def test_sessions_outlive_their_agent(self, store: Store) -> None:
        record = agent()
        await store.agents.add_agent(record, max_per_owner=9)
        await store.agents.add_session(of := session(of=record.id), max_per_owner=9)
        assert await store.agents.remove_agent(record.id)
        assert not await store.agents.remove_agent(record.id)
        assert await store.agents.get_session(of.id) == of
