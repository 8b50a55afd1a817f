"""The OpenAI Agents SDK in sandboxes of the in-memory service; its Runner with shell, patch, terminals and ports runs in tests/service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.sandbox.errors import WorkspaceReadNotFoundError
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from openai import AsyncOpenAI

from sandlot.agents import AsyncSandboxTools
from sandlot.agents.openai_agents import SandlotSandboxClient, SandlotSandboxClientOptions, function_tools
from sandlot.sdk import AsyncClient
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step
from tests.unit.agents.conftest import PNG

OPTIONS = SandlotSandboxClientOptions(template="base")


async def test_agent_with_function_tools_runs_to_its_answer(tools: AsyncSandboxTools) -> None:
    def script(conversation: Conversation) -> Step:
        return Say(f"It is {conversation.results[0].text}.") if conversation.results else Call("run_code", {"code": "print(6 * 7)"})

    set_tracing_disabled(True)
    with scripted_model(script) as endpoint:
        async with AsyncOpenAI(base_url=endpoint.openai_url, api_key="k") as client:
            agent = Agent(name="Analyst", tools=[*function_tools(tools)], model=OpenAIChatCompletionsModel("scripted", client))
            result = await Runner.run(agent, "Go.")
    assert result.final_output == "It is 42."


async def test_image_of_a_tool_is_an_image(tools: AsyncSandboxTools) -> None:
    await (await tools.sandbox()).files.write("/tmp/dot.png", PNG)
    (tool,) = [each for each in function_tools(tools) if each.name == "read_file"]
    text, image = await tool.on_invoke_tool(None, json.dumps({"path": "/tmp/dot.png"}))  # type: ignore[arg-type]
    assert text.text.startswith("Image /tmp/dot.png")
    assert image.image_url.startswith("data:image/png;base64,")


async def test_options_of_another_form_are_converted() -> None:
    parsed = BaseSandboxClientOptions.parse({"type": "sandlot", "template": "base", "exposed_ports": [8000]})
    assert parsed == SandlotSandboxClientOptions(template="base", exposed_ports=(8000,))


async def test_state_of_an_ended_sandbox_is_resumed_in_a_new_one(connections: AsyncClient) -> None:
    provider = SandlotSandboxClient(client=connections)
    session = await provider.create(options=OPTIONS)
    payload = provider.serialize_session_state(session.state)
    assert payload["type"] == "sandlot"
    (first,) = [info.id for info in await connections.sandboxes.list()]
    await connections.sandboxes.kill(first)
    await provider.resume(provider.deserialize_session_state(payload))
    (second,) = [info.id for info in await connections.sandboxes.list()]
    assert second != first


async def test_missing_file_is_an_error_of_the_package(connections: AsyncClient) -> None:
    session = await SandlotSandboxClient(client=connections).create(options=OPTIONS)
    with pytest.raises(WorkspaceReadNotFoundError):
        await session._inner.read(Path("/workspace/none"))  # noqa: SLF001 - the provider's part of the session
