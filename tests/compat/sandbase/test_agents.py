"""Agents of Sandbase: the program of its pages with ``requests``, and the package ``anthropic``, with a scripted model and real sandboxes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic, ConflictError, NotFoundError

from tests.compat.sandbase import programs
from tests.support.isolations import CONTAINERS_FIRST
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Hang, Say, Step
from tests.support.tcpservice import TcpService, tcp_service

DATA = """
import csv
rows = [("north", 120), ("south", 80), ("west", 230)]
with open("/workspace/sales.csv", "w", newline="") as file:
    csv.writer(file).writerows([("region", "units"), *rows])
"""
ANALYSIS = """
import pandas as pd, matplotlib.pyplot as plt
sales = pd.read_csv("/workspace/sales.csv")
sales.plot.bar(x="region", y="units")
plt.show()
print("total", sales.units.sum())
"""


def think(conversation: Conversation) -> Step:
    """Analyze the sales data; wait for ever if the user asks to."""
    if conversation.prompts[-1] == "wait":
        return Hang()
    if len(conversation.prompts) > 1:
        return Say("You are welcome.")
    steps = [Call("run_code", {"code": DATA}), Call("run_code", {"code": ANALYSIS})]
    if len(conversation.results) < len(steps):
        return steps[len(conversation.results)]
    result = conversation.results[-1]
    return Say(f"The chart shows {result.images} figure; all regions sold {result.text.split()[result.text.split().index('total') + 1]} units.")


@pytest.fixture(scope="module", params=CONTAINERS_FIRST)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpService]:
    """A service with a model of the name that the vendor's page uses."""
    with scripted_model(think) as endpoint:
        file = tmp_path_factory.mktemp("models") / "models.toml"
        file.write_text(f'[models.claude-sonnet-4]\nkind = "anthropic"\nbase_url = "{endpoint.address}"\napi_key = "key-of-the-model"\n')
        with tcp_service({"SANDLOT_AGENT_MODELS": str(file)}, isolation=request.param) as running:
            yield running


@pytest.fixture(scope="module")
def key(service: TcpService) -> str:
    return service.key("agents")


@pytest.fixture
def anthropic(service: TcpService, key: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=f"{service.url}/sandbase/default", api_key=key, max_retries=0) as made:
        yield made


@pytest.mark.smoke
def test_program_of_the_page_gets_the_answer_and_the_chart(service: TcpService, key: str, tmp_path: Path) -> None:
    base = f"{service.url}/sandbase"
    argv = [sys.executable, "-c", f"BASE, KEY = {base!r}, {key!r}\n{programs.AGENTS}"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    response = told["response"]
    assert (response["type"], response["role"], response["stop_reason"]) == ("message", "assistant", "end_turn")
    assert response["content"] == "The chart shows 1 figure; all regions sold 430 units."
    with httpx.Client(base_url=f"{base}/default/v1/sessions/{told['session']}", headers={"X-API-Key": key}, trust_env=False) as http:
        (chart,) = http.get("files").json()["data"]
        content = http.get(f"files/{chart['id']}")
        assert (content.headers["content-type"], content.content[:8]) == ("image/png", b"\x89PNG\r\n\x1a\n")
        assert http.get("files/file-aaaaaaaaaaaaaaaa").status_code == 404


def wait(session: Any, anthropic: Anthropic) -> list[Any]:  # noqa: ANN401 - objects of the client
    """Read the stream of a session until the agent is idle."""
    events = []
    with anthropic.beta.sessions.events.stream(session.id) as stream:
        for event in stream:
            events.append(event)
            if event.type == "session.status_idle":
                break
    return events


def test_client_of_anthropic_creates_agents_sessions_and_events(anthropic: Anthropic) -> None:
    agent = anthropic.beta.agents.create(name="Analyst", model="claude-sonnet-4", system="Be short.", tools=[{"type": "agent_toolset_20260401"}])
    assert (agent.name, agent.model.id, agent.version) == ("Analyst", "claude-sonnet-4", 1)
    agent = anthropic.beta.agents.update(agent.id, version=1, description="Analyzes data")
    assert (agent.version, anthropic.beta.agents.retrieve(agent.id).description) == (2, "Analyzes data")
    assert agent.id in [each.id for each in anthropic.beta.agents.list()]
    session = anthropic.beta.sessions.create(agent=agent.id, environment_id="code_interpreter", title="Sales")
    assert (session.status, session.title, session.agent.id) == ("idle", "Sales", agent.id)
    message = {"type": "user.message", "content": [{"type": "text", "text": "Analyze the sales data"}]}
    sent = anthropic.beta.sessions.events.send(session.id, events=[message])  # type: ignore[list-item]
    assert [each.type for each in sent.data or ()] == ["user.message"]
    events = wait(session, anthropic)
    assert [each.type for each in events] == [
        "user.message",
        "session.status_running",
        *("agent.tool_use", "agent.tool_result") * 2,
        "agent.message",
        "session.status_idle",
    ]
    assert [events[2].id, events[4].id] == [events[3].tool_use_id, events[5].tool_use_id]
    assert events[-1].stop_reason.type == "end_turn"
    assert "430 units" in events[-2].content[0].text
    assert [each.id for each in anthropic.beta.sessions.events.list(session.id, limit=3)] == [each.id for each in events]
    done = anthropic.beta.sessions.retrieve(session.id)
    assert (done.status, (done.usage.output_tokens or 0) > 0) == ("idle", True)
    anthropic.beta.sessions.events.send(session.id, events=[{"type": "user.message", "content": [{"type": "text", "text": "wait"}]}])
    with pytest.raises(ConflictError):
        anthropic.beta.sessions.events.send(session.id, events=[message])  # type: ignore[list-item]
    anthropic.beta.sessions.events.send(session.id, events=[{"type": "user.interrupt"}])
    assert anthropic.beta.sessions.retrieve(session.id).status == "idle"
    archived = anthropic.beta.sessions.archive(session.id)
    assert (archived.status, archived.archived_at is not None) == ("terminated", True)
    assert [each.type for each in anthropic.beta.sessions.events.list(session.id)][-2:] == ["session.status_idle", "session.status_terminated"]
    with pytest.raises(ConflictError):
        anthropic.beta.sessions.events.send(session.id, events=[message])  # type: ignore[list-item]
    assert session.id not in {each.id for each in anthropic.beta.sessions.list()}
    assert session.id in {each.id for each in anthropic.beta.sessions.list(include_archived=True)}
    anthropic.beta.sessions.delete(session.id)
    with pytest.raises(NotFoundError):
        anthropic.beta.sessions.retrieve(session.id)
    assert anthropic.beta.agents.archive(agent.id).archived_at is not None


def test_every_field_of_the_requests_has_its_effect(service: TcpService, key: str) -> None:
    with httpx.Client(base_url=f"{service.url}/sandbase/v1", headers={"X-API-Key": key}, trust_env=False, timeout=120) as http:

        def post(path: str, body: object, status: int = 201) -> Any:  # noqa: ANN401 - JSON
            response = http.post(path, json=body)
            assert response.status_code == status, response.text
            return response.json()

        tools = [{"type": "mcp", "server": "code-exec"}]
        texts = {"name": "A", "system": "Be short.", "description": "Analyzes", "metadata": {"a": "b"}}
        agent = post("agents", {**texts, "model": {"name": "claude-sonnet-4"}, "tools": tools})
        assert {name: agent[name] for name in texts} == texts
        assert (agent["tools"], agent["model"]["id"]) == (tools, "claude-sonnet-4")
        url, others = f"agents/{agent['id']}", {"name": "B", "system": "x", "description": "y", "metadata": {"c": "d"}, "tools": []}
        changed = post(url, {**others, "model": {"id": "claude-sonnet-4"}, "version": 1}, 200)
        assert {name: changed[name] for name in others} == others
        post(url, {"name": "C", "version": 1}, 409)
        post("agents", {"name": "A", "model": {}}, 400)

        session = post(
            "sessions", {"agent_id": agent["id"], "environment": {"template_id": "base", "timeout": 77}, "title": "T", "metadata": {"e": "f"}}
        )
        assert (session["environment"], session["title"], session["metadata"]) == ({"template_id": "base", "timeout": 77}, "T", {"e": "f"})
        renamed = post(f"sessions/{session['id']}", {"title": "U", "metadata": {"g": "h"}}, 200)
        assert (renamed["title"], renamed["metadata"]) == ("U", {"g": "h"})
        second = post("sessions", {"agent": {"type": "agent", "id": agent["id"]}, "environment_id": "code_interpreter"})
        assert (second["agent_id"], second["environment_id"]) == (agent["id"], "code_interpreter")
        post("sessions", {"agent": agent["id"], "environment_id": "nowhere"}, 404)
        post("sessions", {"environment_id": "base"}, 400)

        events = f"sessions/{session['id']}/events"
        answer = post(events, {"type": "message", "role": "user", "content": [{"type": "text", "text": "Thanks"}]}, 200)
        assert answer["role"] == "assistant"
        sent = post(events, {"events": [{"type": "user.message", "content": "Thanks again"}]}, 200)
        assert sent["data"][0]["content"] == [{"type": "text", "text": "Thanks again"}]
        post(events, {"content": "Hi"}, 400)
        first = http.get(events, params={"limit": 2, "beta": "true"}).json()
        rest = http.get(events, params={"limit": 1000, "page": first["next_page"]}).json()
        assert [each["id"] for each in first["data"]] != [each["id"] for each in rest["data"]][:2]

        pages = [http.get("sessions", params={"agent_id": agent["id"], "limit": 1, "beta": "true"}).json()]
        pages.append(http.get("sessions", params={"agent_id": agent["id"], "limit": 1, "page": pages[0]["next_page"]}).json())
        assert {each["id"] for page in pages for each in page["data"]} == {session["id"], second["id"]}
        post(f"{url}/archive", None, 200)
        assert agent["id"] not in {each["id"] for each in http.get("agents").json()["data"]}
        assert agent["id"] in {each["id"] for each in http.get("agents", params={"include_archived": "true"}).json()["data"]}
        assert http.post(f"sessions/{session['id']}/cancel").json()["status"] == "idle"
        assert http.get(f"sessions/{session['id']}").json()["status"] == "idle"
        for path in (f"sessions/{session['id']}", url):
            assert http.delete(path).status_code == 200
            assert http.get(path).status_code == 404


def test_another_key_sees_nothing(service: TcpService, anthropic: Anthropic) -> None:
    agent = anthropic.beta.agents.create(name="Analyst", model="claude-sonnet-4")
    session = anthropic.beta.sessions.create(agent=agent.id, environment_id="base")
    with Anthropic(base_url=f"{service.url}/sandbase/default", api_key=service.key("other"), max_retries=0) as other:
        with pytest.raises(NotFoundError):
            other.beta.agents.retrieve(agent.id)
        with pytest.raises(NotFoundError):
            other.beta.sessions.retrieve(session.id)
        assert list(other.beta.agents.list()) == []
