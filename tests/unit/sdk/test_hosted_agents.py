"""Agents of the service through the SDK: requests, pages, and event streams that are continued."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandlot.sdk import AsyncClient, ConflictError, InvalidRequestError, NotFoundError
from sandlot.sdk._async import hosted_agents
from tests.support.scripted_model.endpoint import Endpoint, scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Hang, Say, Step
from tests.support.service import Bench, bench, client
from tests.unit.server.v1.test_agents import settings


def think(conversation: Conversation) -> Step:
    """Compute, or wait if the user asks for it."""
    if conversation.prompts[-1] == "wait":
        return Hang()
    if len(conversation.results) < len(conversation.prompts):
        return Call("run_code", {"code": "print(6 * 7)"})
    return Say(f"It is {conversation.results[-1].text.split()[0]}.")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with scripted_model(think) as opened:
        yield opened


@pytest.fixture
async def at(tmp_path: Path, endpoint: Endpoint) -> AsyncIterator[Bench]:
    async with bench(tmp_path / "data", settings(tmp_path, endpoint)) as here, client(here.service):
        yield here


@pytest.fixture
async def sandlot(at: Bench) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"unix://{at.service.settings.socket}") as made:
        yield made


async def test_agent_is_created_changed_archived_and_deleted(sandlot: AsyncClient) -> None:
    agent = await sandlot.agents.create("Analyst", "large", system="Be short.", metadata={"a": "b"})
    assert (agent.name, agent.model, agent.system, agent.version, agent.metadata) == ("Analyst", "large", "Be short.", 1, {"a": "b"})
    assert agent.tools == ({"type": "mcp", "server": "code-exec"},)
    assert await sandlot.agents.get(agent.id) == agent
    changed = await sandlot.agents.update(agent.id, description="x", tools=(), version=1)
    assert (changed.description, changed.tools, changed.version) == ("x", (), 2)
    with pytest.raises(ConflictError):
        await sandlot.agents.update(agent.id, name="y", version=1)
    assert await sandlot.agents.list() == [changed]
    archived = await sandlot.agents.archive(agent.id)
    assert (await sandlot.agents.list(), await sandlot.agents.list(archived=True)) == ([], [archived])
    await sandlot.agents.delete(agent.id)
    with pytest.raises(NotFoundError):
        await sandlot.agents.get(agent.id)
    with pytest.raises(InvalidRequestError, match="not configured"):
        await sandlot.agents.create("Analyst", "small")


async def test_session_runs_messages_and_its_events_are_followed(sandlot: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_agents, "EVENTS_PAGE", 2)
    agent = await sandlot.agents.create("Analyst", "large")
    session = await sandlot.agent_sessions.create(agent.id, template="base", timeout=600, title="T", metadata={"a": "b"})
    assert (session.status, session.title, session.metadata, session.last_event) == ("idle", "T", {"a": "b"}, 0)
    begun = await sandlot.agent_sessions.send(session.id, "What is 6 * 7?")
    assert begun.status == "running"
    followed = [event async for event in sandlot.agent_sessions.follow(session.id)]
    assert [event.type for event in followed][-2:] == ["agent.message", "session.status_idle"]
    assert followed[-2].text == "It is 42."
    assert await sandlot.agent_sessions.events(session.id) == followed
    assert await sandlot.agent_sessions.events(session.id, after=2) == followed[2:]
    rest = [event async for event in sandlot.agent_sessions.follow(session.id, after=3)]
    assert rest == followed[3:]
    done = await sandlot.agent_sessions.get(session.id)
    assert (done.status, done.stop_reason, done.usage.tool_calls, done.last_event) == ("idle", "end_turn", 1, len(followed))
    assert (await sandlot.agent_sessions.update(session.id, title="U")).title == "U"
    assert [each.id for each in await sandlot.agent_sessions.list(agent=agent.id)] == [session.id]
    await sandlot.agent_sessions.delete(session.id)
    with pytest.raises(NotFoundError):
        await sandlot.agent_sessions.get(session.id)


async def test_run_is_interrupted(sandlot: AsyncClient) -> None:
    agent = await sandlot.agents.create("Analyst", "large", tools=())
    session = await sandlot.agent_sessions.create(agent.id)
    await sandlot.agent_sessions.send(session.id, "wait")
    with pytest.raises(ConflictError):
        await sandlot.agent_sessions.send(session.id, "wait")
    assert await sandlot.agent_sessions.interrupt(session.id)
    assert not await sandlot.agent_sessions.interrupt(session.id)
    archived = await sandlot.agent_sessions.archive(session.id)
    assert archived.status == "terminated"
    assert [event.type async for event in sandlot.agent_sessions.follow(session.id, after=archived.last_event - 1)] == ["session.status_terminated"]
