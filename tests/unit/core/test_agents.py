"""Stored agents and sessions: who sees them, how they change, and followers that miss no event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandlot.core import agents as module
from sandlot.core.agents import AgentService
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.agents import AgentChange, AgentConfig, AgentEventRecord, SessionChange, SessionEnvironment, SessionStatus
from sandlot.model.errors import ConflictError, ErrorCode, ForbiddenError, InvalidRequestError, LimitError, NotFoundError, UnavailableError
from sandlot.model.ids import NodeId
from sandlot.model.repositories import Position
from sandlot.model.specs import KIB
from sandlot.testing.memory.store import MemoryDatabase, MemoryStore
from tests.support.clock import ManualClock
from tests.support.until import until

ALICE = Principal(OwnerId("a11ce0a11ce0"), "alice", operator=False, quota=Quota())
BOB = Principal(OwnerId("b0bb0bb0bb0b"), "bob", operator=False, quota=Quota())
CONFIG = AgentConfig(name="Analyst", model="large")
BASE = SessionEnvironment("base")
HELLO = ("user.message", {"content": [{"type": "text", "text": "hello"}]})
ANSWER = ("agent.message", {"content": [{"type": "text", "text": "hi"}]})
IDLE = SessionChange(status=SessionStatus.IDLE, stop_reason="end_turn")


@pytest.fixture
def database() -> MemoryDatabase:
    return MemoryDatabase()


@pytest.fixture
async def service(database: MemoryDatabase) -> AsyncIterator[AgentService]:
    async with MemoryStore(database) as store:
        yield AgentService(node=NodeId("node"), agents=store.agents, clock=ManualClock())


async def session(service: AgentService, principal: Principal = ALICE) -> str:
    """Create an agent and a session, and return the id of the session."""
    return (await service.create_session(principal, (await service.create(principal, CONFIG)).id, BASE)).id


async def test_strangers_see_no_agents_and_sessions(service: AgentService) -> None:
    agent = await service.create(ALICE, CONFIG)
    own = await service.create_session(ALICE, agent.id, BASE)
    for work in (
        service.get(BOB, agent.id),
        service.update(BOB, agent.id, AgentChange(name="x")),
        service.archive(BOB, agent.id),
        service.delete(BOB, agent.id),
        service.create_session(BOB, agent.id, BASE),
        service.get(ALICE, "agent_aaaaaaaaaaaaaaaa"),
        service.get(ALICE, "../agents"),
    ):
        with pytest.raises(NotFoundError) as missing:
            await work
        assert missing.value.code is ErrorCode.AGENT_NOT_FOUND
    for other in (
        service.get_session(BOB, own.id),
        service.update_session(BOB, own.id, title="x"),
        service.delete_session(BOB, own.id),
        service.begin_run(BOB, own.id, [HELLO]),
        service.events(BOB, own.id),
        service.follow_events(BOB, own.id),
    ):
        with pytest.raises(NotFoundError) as missing:
            await other
        assert missing.value.code is ErrorCode.SESSION_NOT_FOUND
    assert (await service.list(BOB)).items == []
    assert (await service.list_sessions(BOB)).items == []
    assert (await service.list(OPERATOR)).items == [agent] == (await service.list(ALICE)).items
    assert (await service.list_sessions(OPERATOR)).items == [own]


async def test_update_makes_a_new_version_and_leaves_sessions_alone(service: AgentService) -> None:
    agent = await service.create(ALICE, CONFIG)
    old = await service.create_session(ALICE, agent.id, BASE)
    changed = await service.update(ALICE, agent.id, AgentChange(system="Be short.", tools=({"type": "mcp", "server": "code-exec"},)), version=1)
    assert (changed.version, changed.config) == (2, replace(CONFIG, system="Be short.", tools=({"type": "mcp", "server": "code-exec"},)))
    with pytest.raises(ConflictError):
        await service.update(ALICE, agent.id, AgentChange(name="x"), version=1)
    assert (await service.get_session(ALICE, old.id)).config == CONFIG
    assert (await service.create_session(ALICE, agent.id, BASE)).agent_version == 2


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, name=""),
        replace(CONFIG, name="x" * 257),
        replace(CONFIG, model=""),
        replace(CONFIG, system="x" * (256 * KIB + 1)),
        replace(CONFIG, system="a\0b"),
        replace(CONFIG, description="x" * (4 * KIB + 1)),
        replace(CONFIG, tools=({},) * 65),
        replace(CONFIG, metadata={"k": "v" * (17 * KIB)}),
    ],
)
async def test_configurations_beyond_the_limits_are_refused(service: AgentService, config: AgentConfig) -> None:
    with pytest.raises(InvalidRequestError):
        await service.create(ALICE, config)
    agent = await service.create(ALICE, CONFIG)
    with pytest.raises(InvalidRequestError):
        await service.update(
            ALICE, agent.id, AgentChange(config.name, config.model, config.system, config.tools, config.description, config.metadata)
        )


async def test_number_of_agents_and_sessions_is_limited(service: AgentService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_AGENTS", 1)
    monkeypatch.setattr(module, "MAX_SESSIONS", 1)
    agent = await service.create(ALICE, CONFIG)
    await service.create_session(ALICE, agent.id, BASE)
    with pytest.raises(LimitError):
        await service.create(ALICE, CONFIG)
    with pytest.raises(LimitError):
        await service.create_session(ALICE, agent.id, BASE)


async def test_agents_and_sessions_are_listed_in_pages(service: AgentService) -> None:
    agents = [await service.create(ALICE, CONFIG) for _ in range(3)]
    sessions = [await service.create_session(ALICE, agents[0].id, BASE) for _ in range(3)]
    first = await service.list(ALICE, limit=2)
    rest = await service.list(ALICE, before=Position(first.items[-1].created_at, first.items[-1].id), limit=2)
    assert (first.more, rest.more, {each.id for each in (*first.items, *rest.items)}) == (True, False, {each.id for each in agents})
    found = await service.list_sessions(ALICE, agent=agents[0].id)
    assert {each.id for each in found.items} == {each.id for each in sessions}
    assert (await service.list_sessions(ALICE, agent=agents[1].id)).items == []


async def test_archived_agent_gets_no_sessions_and_no_changes_and_its_sessions_continue(service: AgentService) -> None:
    own = await service.create_session(ALICE, (await service.create(ALICE, CONFIG)).id, BASE)
    archived = await service.archive(ALICE, own.agent)
    assert ((await service.list(ALICE)).items, (await service.list(ALICE, archived=True)).items) == ([], [archived])
    assert await service.archive(ALICE, archived.id) == archived
    assert (await service.begin_run(ALICE, own.id, [HELLO])).status is SessionStatus.RUNNING
    for work in (service.create_session(ALICE, archived.id, BASE), service.update(ALICE, archived.id, AgentChange(name="x"))):
        with pytest.raises(ConflictError):
            await work


async def test_sessions_of_a_deleted_agent_take_no_messages(service: AgentService) -> None:
    own = await service.create_session(ALICE, (await service.create(ALICE, CONFIG)).id, BASE)
    await service.delete(ALICE, own.agent)
    with pytest.raises(ConflictError, match="deleted"):
        await service.begin_run(ALICE, own.id, [HELLO])
    assert await service.get_session(ALICE, own.id) == own


async def test_a_message_during_a_run_is_a_conflict(service: AgentService) -> None:
    own = await session(service)
    begun = await service.begin_run(ALICE, own, [HELLO])
    assert (begun.status, begun.last_sequence) == (SessionStatus.RUNNING, 1)
    assert await service.running() == [begun]
    with pytest.raises(ConflictError):
        await service.begin_run(ALICE, own, [HELLO])
    assert (await service.append(begun.id, [ANSWER], messages=["m"], change=IDLE)).status is SessionStatus.IDLE
    assert await service.messages(begun.id) == ["m"]
    assert await service.running() == []
    events = await service.events(ALICE, own)
    assert [(each.sequence, each.type) for each in events.items] == [(1, "user.message"), (2, "agent.message")]
    assert [each.sequence for each in (await service.events(ALICE, own, after=1, limit=1)).items] == [2]
    assert (await service.begin_run(ALICE, own, [HELLO])).last_sequence == 3


@pytest.mark.parametrize("timeout_s", [0.5, -1, 604_801, float("inf"), float("nan")])
async def test_timeout_of_the_environment_out_of_range_is_refused(service: AgentService, timeout_s: float) -> None:
    agent = await service.create(ALICE, CONFIG)
    with pytest.raises(InvalidRequestError, match="1 to 604800"):
        await service.create_session(ALICE, agent.id, SessionEnvironment("base", timeout_s))


async def test_timeout_of_the_environment_is_within_the_quota(service: AgentService) -> None:
    agent = await service.create(ALICE, CONFIG)
    brief = replace(ALICE, quota=Quota(lifetime_s=60))
    assert (await service.create_session(brief, agent.id, SessionEnvironment("base", 60))).environment.timeout_s == 60
    with pytest.raises(LimitError):
        await service.create_session(brief, agent.id, SessionEnvironment("base", 61))


async def test_only_the_owner_of_a_session_sends_messages(service: AgentService) -> None:
    own = await session(service)
    with pytest.raises(ForbiddenError):
        await service.begin_run(OPERATOR, own, [HELLO])
    await service.begin_run(ALICE, own, [HELLO], messages=["m"])
    assert await service.messages((await service.get_session(ALICE, own)).id) == ["m"]


async def test_session_with_too_many_events_takes_no_message(service: AgentService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 1)
    own = await session(service)
    begun = await service.begin_run(ALICE, own, [HELLO])
    await service.append(begun.id, change=IDLE)
    with pytest.raises(LimitError):
        await service.begin_run(ALICE, own, [HELLO])


async def test_follower_gets_stored_and_new_events_once(service: AgentService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_PAGE", 2)
    monkeypatch.setattr(module, "EVENTS_POLL_S", 300)
    own = await session(service)
    begun = await service.begin_run(ALICE, own, [HELLO] * 5)
    stream = await service.follow_events(ALICE, own, after=1)
    received: list[AgentEventRecord] = []

    async def follow() -> None:
        async for event in stream:
            received.append(event)  # noqa: PERF401 - a list that grows while the test looks

    task = asyncio.create_task(follow())
    for number in range(6, 12):
        await until(lambda: len(received) >= number - 2)  # noqa: B023 - awaited at once
        await service.append(begun.id, [ANSWER])
    await service.delete_session(ALICE, own)
    await task
    assert [each.sequence for each in received][:9] == list(range(2, 11))


async def test_follower_ends_when_the_service_stops(service: AgentService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_POLL_S", 300)
    own = await session(service)
    await service.begin_run(ALICE, own, [HELLO])
    stream = await service.follow_events(ALICE, own)
    assert (await anext(stream)).sequence == 1
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    service.close()
    with pytest.raises(UnavailableError) as stopped:
        await waiting
    assert stopped.value.fields["after"] == 1


async def test_deleted_session_takes_no_events(service: AgentService) -> None:
    own = await session(service)
    begun = await service.begin_run(ALICE, own, [HELLO])
    await service.delete_session(ALICE, own)
    with pytest.raises(NotFoundError):
        await service.append(begun.id, [ANSWER], change=IDLE)


async def test_title_and_metadata_of_a_session_change(service: AgentService) -> None:
    own = await session(service)
    await service.update_session(ALICE, own, title="Sales", metadata={"a": "b"})
    changed = await service.update_session(ALICE, own, title="Costs")
    assert (changed.title, changed.metadata) == ("Costs", {"a": "b"})
    with pytest.raises(InvalidRequestError):
        await service.update_session(ALICE, own, title="x" * 257)
