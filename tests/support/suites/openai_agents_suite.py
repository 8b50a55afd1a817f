"""The OpenAI Agents SDK with a scripted model: function tools, and its Runner on our provider with shell, patch, terminals and ports."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner
from agents.sandbox import SandboxAgent, SandboxRunConfig
from openai import AsyncOpenAI

from sandlot import AsyncClient, AsyncSandbox
from sandlot.agents import AsyncSandboxTools
from sandlot.agents.openai_agents import SandlotSandboxClient, SandlotSandboxClientOptions, function_tools
from tests.support.scripted_model.endpoint import Endpoint, scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Script, Step

TEMPLATE = os.environ["SUITE_TEMPLATE"]
OPTIONS = SandlotSandboxClientOptions(template=TEMPLATE, exposed_ports=(8000,))


@pytest.fixture
async def connections() -> AsyncIterator[AsyncClient]:
    async with AsyncClient() as client:
        yield client


@pytest.fixture
def provider(connections: AsyncClient) -> SandlotSandboxClient:
    return SandlotSandboxClient(client=connections)


async def run(agent: Agent[Any], script: Script, config: RunConfig | None = None) -> tuple[str, Endpoint]:
    with scripted_model(script) as endpoint:
        async with AsyncOpenAI(base_url=endpoint.openai_url, api_key="k") as client:
            agent.model = OpenAIResponsesModel("scripted", client)
            result = await Runner.run(agent, "Go.", run_config=config, max_turns=20)
    return str(result.final_output), endpoint


def one_by_one(*steps: Step) -> Script:
    return lambda conversation: steps[len(conversation.results)]


async def test_function_tools_work_in_one_sandbox(connections: AsyncClient) -> None:
    def script(conversation: Conversation) -> Step:
        match len(conversation.results):
            case 0:
                return Call("write_file", {"path": "numbers", "content": "6 7"})
            case 1:
                return Call("run_code", {"code": "a, b = map(int, open('numbers').read().split())\nprint(a * b)"})
            case _:
                return Say(f"It is {conversation.results[1].text}.")

    async with AsyncSandboxTools(template=TEMPLATE, client=connections) as tools:
        answer, _ = await run(Agent(name="Analyst", tools=[*function_tools(tools)]), script)
    assert answer == "It is 42."
    assert await connections.sandboxes.list() == []


async def test_wrong_call_of_a_function_tool_is_answered(connections: AsyncClient) -> None:
    script = one_by_one(Call("run_code", {"code": 1}), Call("run_code", '{"code": '), Say("I see."))
    async with AsyncSandboxTools(template=TEMPLATE, client=connections) as tools:
        answer, endpoint = await run(Agent(name="Analyst", tools=[*function_tools(tools)]), script)
    assert answer == "I see."
    assert ["must be a text" in endpoint.conversations[-1].results[0].text, "JSON" in endpoint.conversations[-1].results[1].text] == [True, True]


PATCH = "*** Begin Patch\n*** Add File: notes.txt\n+first\n+second\n*** End Patch"
CHANGE = "*** Begin Patch\n*** Update File: notes.txt\n@@\n first\n-second\n+changed\n*** End Patch"


async def test_runner_uses_shell_patch_and_terminals(provider: SandlotSandboxClient, connections: AsyncClient) -> None:
    program = "python3 -u -c \"name = input('name? '); print('hello', name)\""
    steps = [
        Call("exec_command", {"cmd": "echo $((6 * 7)); echo err >&2; exit 3", "login": False}),
        Call("apply_patch", PATCH),
        Call("apply_patch", CHANGE),
        Call("exec_command", {"cmd": "cat notes.txt", "login": False}),
        Call("exec_command", {"cmd": program, "tty": True, "login": False, "yield_time_ms": 1000}),
    ]

    def script(conversation: Conversation) -> Step:
        results = [result.text for result in conversation.results]
        if len(results) < len(steps):
            return steps[len(results)]
        if len(results) > len(steps):
            return Say(json.dumps(results))
        session = re.search(r"session ID (\d+)", results[-1])
        assert session, results[-1]
        return Call("write_stdin", {"session_id": int(session[1]), "chars": "world\n", "yield_time_ms": 5000})

    config = RunConfig(sandbox=SandboxRunConfig(client=provider, options=OPTIONS))
    answer, _ = await run(SandboxAgent(name="Coder", instructions="Work."), script, config)
    shell, added, changed, content, asked, answered = json.loads(answer)
    assert "42" in shell
    assert "code 3" in shell
    assert "notes.txt" in added
    assert "notes.txt" in changed
    assert "first\nchanged" in content
    assert "name?" in asked
    assert "hello world" in answered
    assert await connections.sandboxes.list() == []  # the end of the run has ended its sandbox


async def test_background_program_outlives_its_call(provider: SandlotSandboxClient) -> None:
    def script(conversation: Conversation) -> Step:
        results = [result.text for result in conversation.results]
        match len(results):
            case 0:
                loop = "while [ ! -e go ]; do sleep 0.05; done; echo went"
                return Call("exec_command", {"cmd": loop, "login": False, "yield_time_ms": 250})
            case 1:
                return Call("exec_command", {"cmd": "touch go", "login": False})
            case 2:
                session = re.search(r"session ID (\d+)", results[0])
                assert session, results[0]
                return Call("write_stdin", {"session_id": int(session[1]), "yield_time_ms": 5000})
            case _:
                return Say(results[-1])

    config = RunConfig(sandbox=SandboxRunConfig(client=provider, options=OPTIONS))
    answer, _ = await run(SandboxAgent(name="Coder"), script, config)
    assert "went" in answer


async def test_exposed_port_is_reached_from_outside(provider: SandlotSandboxClient) -> None:
    session = await provider.create(options=OPTIONS)
    async with session:
        server = (
            "echo hello > index.html; python3 -m http.server 8000 > /dev/null 2>&1 & until curl -sf localhost:8000 > /dev/null; do sleep 0.05; done"
        )
        await session.exec("sh", "-c", server, shell=False)
        endpoint = await session.resolve_exposed_port(8000)
        url = endpoint.url_for("http")
        async with httpx.AsyncClient(trust_env=False, follow_redirects=True, verify=False) as client:  # noqa: S501 - loopback
            headers = {"Host": f"{endpoint.host}:{endpoint.port}"}
            response = await client.get(url.replace(endpoint.host, "127.0.0.1") + "index.html" * ("?" not in url), headers=headers)
    assert response.status_code == 200
    assert "hello" in response.text


async def test_session_is_saved_and_resumed(provider: SandlotSandboxClient, connections: AsyncClient) -> None:
    session = await provider.create(options=OPTIONS)
    await session.start()
    await session.write(Path("kept"), io.BytesIO(b"yes"))
    payload = provider.serialize_session_state(session.state)
    assert "api_key" not in json.dumps(payload)
    resumed = await provider.resume(provider.deserialize_session_state(payload))
    async with resumed:
        assert (await resumed.read(Path("kept"))).read() == b"yes"
        archive = await resumed.persist_workspace()
    other = await provider.create(options=OPTIONS)
    async with other:
        await other.hydrate_workspace(archive)
        assert (await other.read(Path("kept"))).read() == b"yes"
    assert [await AsyncSandbox.list(client=connections), (await session.running())] == [[], False]
