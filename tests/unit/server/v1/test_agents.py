"""Agents and their sessions over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandlot.model.agents import AgentEventRecord
from sandlot.model.ids import AgentSessionId
from sandlot.server.settings import Settings
from tests.support.http import events, problem
from tests.support.scripted_model.endpoint import Endpoint, scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Hang, Say, Step
from tests.support.service import Bench, bench, client, tcp_client
from tests.support.until import until

TOOLS = [{"type": "mcp", "server": "code-exec"}]
AGENT = {"name": "Analyst", "model": "large", "system": "Be short.", "tools": TOOLS}


def think(conversation: Conversation) -> Step:
    """Compute what the user asks for, unless the user asks to wait."""
    if conversation.prompts[-1] == "wait":
        return Hang()
    if len(conversation.results) < len(conversation.prompts):
        return Call("run_code", {"code": "print(6 * 7)"})
    return Say(f"It is {conversation.results[-1].text.split()[0]}.")


@pytest.fixture(scope="module")
def endpoint() -> Any:  # noqa: ANN401 - a generator
    with scripted_model(think) as opened:
        yield opened


def settings(folder: Path, endpoint: Endpoint) -> Settings:
    """Settings with a file that names the model `large`."""
    file = folder / "models.toml"
    file.write_text(f'[models.large]\nkind = "openai-chat"\nbase_url = "{endpoint.openai_url}"\napi_key = "k"\nmodel = "upstream"\n')
    return Settings(agent_models=file)


@pytest.fixture
async def http(tmp_path: Path, endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    """Client of a service that offers the model."""
    async with bench(tmp_path / "data", settings(tmp_path, endpoint)) as at, client(at.service) as http:
        yield http


async def session(http: httpx.AsyncClient) -> str:
    """Create an agent and a session, and return the path of the session."""
    agent = (await http.post("/v1/agents", json=AGENT)).json()["id"]
    made = await http.post("/v1/agent-sessions", json={"agent": agent, "environment": {"template": "base", "timeout": 600}})
    assert made.status_code == 201, made.text
    return f"/v1/agent-sessions/{made.json()['id']}"


async def until_idle(http: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    """Follow the events until the run has ended, and return them."""
    found = []
    async with http.stream("GET", f"{path}/events", headers={"Accept": "text/event-stream"}) as response:
        async for name, data in events(response):
            assert name == data["type"]
            found.append(data)
            if name == "session.status_idle":
                break
    return found


async def test_agent_is_created_read_updated_archived_and_deleted(http: httpx.AsyncClient) -> None:
    made = (await http.post("/v1/agents", json={**AGENT, "metadata": {"a": "b"}})).json()
    assert made["id"].startswith("agent_")
    assert {name: made[name] for name in AGENT} == AGENT
    assert (made["version"], made["metadata"], made["archived_at"], made["owner"]) == (1, {"a": "b"}, None, "local")
    url = f"/v1/agents/{made['id']}"
    assert (await http.get(url)).json() == made
    changed = (await http.patch(url, json={"system": "Be long.", "version": 1})).json()
    assert (changed["version"], changed["system"], changed["name"]) == (2, "Be long.", "Analyst")
    problem(await http.patch(url, json={"name": "x", "version": 1}), 409, "conflict")
    assert (await http.get("/v1/agents")).json() == {"agents": [changed], "next_cursor": None}
    archived = (await http.post(f"{url}/archive")).json()
    assert archived["archived_at"] is not None
    assert (await http.get("/v1/agents")).json()["agents"] == []
    assert (await http.get("/v1/agents", params={"archived": "true"})).json()["agents"] == [archived]
    assert (await http.delete(url)).status_code == 204
    problem(await http.get(url), 404, "agent_not_found")


async def test_lists_have_pages(http: httpx.AsyncClient) -> None:
    agents = [(await http.post("/v1/agents", json=AGENT)).json()["id"] for _ in range(3)]
    sessions = [(await http.post("/v1/agent-sessions", json={"agent": agents[0]})).json()["id"] for _ in range(3)]
    for path, key, ids in (("/v1/agents", "agents", agents), ("/v1/agent-sessions", "sessions", sessions)):
        first = (await http.get(path, params={"limit": 2})).json()
        rest = (await http.get(path, params={"limit": 2, "cursor": first["next_cursor"]})).json()
        assert {each["id"] for each in (*first[key], *rest[key])} == set(ids)
        assert rest["next_cursor"] is None
    assert (await http.get("/v1/agent-sessions", params={"agent": agents[1]})).json()["sessions"] == []


async def test_message_runs_the_agent_and_its_events_are_streamed(http: httpx.AsyncClient) -> None:
    path = await session(http)
    begun = await http.post(f"{path}/messages", json={"content": "What is 6 * 7?"})
    assert (begun.status_code, begun.json()["status"]) == (202, "running")
    found = await until_idle(http, path)
    assert [each["type"] for each in found][-2:] == ["agent.message", "session.status_idle"]
    assert found[-2]["data"] == {"content": [{"type": "text", "text": "It is 42."}]}
    assert [each["sequence"] for each in found] == list(range(1, len(found) + 1))
    listed = (await http.get(f"{path}/events", params={"limit": 4})).json()
    assert (listed["events"], listed["more"]) == (found[:4], True)
    async with http.stream("GET", f"{path}/events", headers={"Accept": "text/event-stream", "Last-Event-ID": "4"}) as response:
        assert await anext(events(response)) == (found[4]["type"], found[4])
    done = (await http.get(path)).json()
    assert (done["status"], done["stop_reason"], done["last_event"], done["usage"]["tool_calls"]) == ("idle", "end_turn", len(found), 1)
    assert done["environment"] == {"template": "base", "timeout": 600.0, "network": None}
    assert (await http.get(f"/v1/sandboxes/{done['sandbox']}")).json()["state"] == "running"
    assert (await http.delete(path)).status_code == 204
    problem(await http.get(path), 404, "session_not_found")
    assert (await http.get(f"/v1/sandboxes/{done['sandbox']}")).json()["state"] != "running"


async def test_run_is_interrupted_and_a_message_meanwhile_is_refused(http: httpx.AsyncClient) -> None:
    path = await session(http)
    await http.post(f"{path}/messages", json={"content": "wait"})
    problem(await http.post(f"{path}/messages", json={"content": "wait"}), 409, "conflict")
    assert (await http.post(f"{path}/interrupt")).json() == {"running": True}
    assert (await http.post(f"{path}/interrupt")).json() == {"running": False}
    assert (await http.get(path)).json()["status"] == "idle"


async def test_title_and_metadata_of_a_session_are_updated(http: httpx.AsyncClient) -> None:
    path = await session(http)
    changed = (await http.patch(path, json={"title": "Sales", "metadata": {"a": "b"}})).json()
    assert (changed["title"], changed["metadata"]) == ("Sales", {"a": "b"})


async def test_invalid_requests_say_what_to_do(http: httpx.AsyncClient) -> None:
    refused = problem(await http.post("/v1/agents", json={**AGENT, "model": "small"}), 400, "model_not_configured")
    assert "large" in refused["hint"]
    problem(await http.post("/v1/agents", json={**AGENT, "tools": [{"type": "mcp", "server": "x"}]}), 400, "invalid_request")
    agent = (await http.post("/v1/agents", json=AGENT)).json()["id"]
    problem(await http.post("/v1/agent-sessions", json={"agent": agent, "environment": {"template": "nowhere"}}), 404, "template_not_found")
    problem(await http.post("/v1/agent-sessions", json={"agent": agent, "environment": {"network": "x"}}), 400, "invalid_request")
    path = await session(http)
    problem(await http.post(f"{path}/messages", json={"content": ""}), 400, "invalid_request")
    stream = {"Accept": "text/event-stream", "Last-Event-ID": "x"}
    problem(await http.get(f"{path}/events", headers=stream), 400, "invalid_request")


async def test_service_without_models_says_which_setting_is_missing(tmp_path: Path) -> None:
    async with bench(tmp_path) as at, client(at.service) as http:
        refused = problem(await http.post("/v1/agents", json=AGENT), 400, "model_not_configured")
        assert "SANDLOT_AGENT_MODELS" in refused["hint"]


async def test_another_key_sees_nothing(tmp_path: Path, endpoint: Endpoint) -> None:
    async with bench(tmp_path / "data", settings(tmp_path, endpoint)) as at:
        secrets = [(await at.service.api_keys.create(name))[1] for name in ("alice", "bob")]
        async with tcp_client(at.service, secrets[0]) as alice:
            path = await session(alice)
            agent = (await alice.get(path)).json()["agent"]
            alice.headers["Authorization"] = f"Bearer {secrets[1]}"
            problem(await alice.get(path), 404, "session_not_found")
            problem(await alice.get(f"{path}/events"), 404, "session_not_found")
            problem(await alice.post(f"{path}/messages", json={"content": "Hi"}), 404, "session_not_found")
            problem(await alice.get(f"/v1/agents/{agent}"), 404, "agent_not_found")


async def test_slow_reader_of_events_takes_no_memory_and_holds_up_no_run(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(tmp_path / "data", settings(tmp_path, endpoint)) as at, client(at.service) as http:
        await _read_slowly(at, http, monkeypatch)


async def _read_slowly(at: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await session(http)
    own = AgentSessionId(path.rpartition("/")[2])
    count, large = 1000, [("agent.message", {"content": [{"type": "text", "text": "x" * 65536}]})]
    for _ in range(count // 50):
        await at.node.agents.append(own, large * 50)
    read: dict[object, int] = {}
    list_events = at.service.store.agents.list_events

    async def note(session: AgentSessionId, *, after: int, limit: int) -> Sequence[AgentEventRecord]:
        read[asyncio.current_task()] = after
        return await list_events(session, after=after, limit=limit)

    monkeypatch.setattr(at.service.store.agents, "list_events", note)
    async with http.stream("GET", f"{path}/events", headers={"Accept": "text/event-stream"}) as slow:
        await until(lambda: len(read) == 1)
        (reader,) = read
        assert (await http.post(f"{path}/messages", json={"content": "What is 6 * 7?"})).status_code == 202
        found = await until_idle(http, path)  # reads all events, while the slow reader has read none
        assert [event["sequence"] for event in found] == list(range(1, len(found) + 1))
        assert read[reader] < count / 2
        received = 0
        async for _, data in events(slow):
            received += 1
            assert data["sequence"] == received
            if data["type"] == "session.status_idle":
                break
    assert received == len(found) > count
