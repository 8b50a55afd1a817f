"""pydantic-ai in sandboxes of the in-memory service; its own suite runs in tests/service."""

from __future__ import annotations

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.workspaces import WorkspaceRef, WorkspaceTimeoutError, WorkspaceUnavailableError

from sandlot.agents import AsyncSandboxTools
from sandlot.agents.pydantic_ai import SandboxWorkspace, sandbox_toolset
from sandlot.sdk import AsyncClient
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step
from tests.unit.agents.conftest import PNG


@pytest.fixture
def workspace(connections: AsyncClient) -> SandboxWorkspace:
    return SandboxWorkspace(template="base", client=connections)


async def test_agent_with_a_toolset_runs_to_its_answer(tools: AsyncSandboxTools) -> None:
    def script(conversation: Conversation) -> Step:
        return Say(f"It is {conversation.results[0].text}.") if conversation.results else Call("run_code", {"code": "print(6 * 7)"})

    with scripted_model(script) as endpoint:
        async with AsyncOpenAI(base_url=endpoint.openai_url, api_key="k") as client:
            model = OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=client))
            result = await Agent(model, toolsets=[sandbox_toolset(tools)]).run("Go.")
    assert result.output == "It is 42."


async def test_image_of_a_tool_is_binary_content(tools: AsyncSandboxTools) -> None:
    await (await tools.sandbox()).files.write("/tmp/dot.png", PNG)
    tool = sandbox_toolset(tools).tools["read_file"]
    content = await tool.function(path="/tmp/dot.png")  # type: ignore[call-arg]
    assert isinstance(content[1], BinaryContent)
    assert content[1].data == PNG


async def test_nothing_is_created_before_the_first_operation(workspace: SandboxWorkspace, driver: MemoryDriver) -> None:
    assert workspace.ref is None
    assert driver.booted == []
    await workspace.write_bytes("/tmp/a", b"x")
    assert await workspace.read_bytes("/tmp/a") == b"x"
    assert len(driver.booted) == 1


async def test_attached_workspace_is_the_same_and_stays_when_closed(workspace: SandboxWorkspace, connections: AsyncClient) -> None:
    await workspace.write_bytes("/tmp/a", b"x")
    assert workspace.ref is not None
    attached = SandboxWorkspace(workspace.ref, client=connections)
    assert await attached.read_bytes("/tmp/a") == b"x"
    await attached.aclose()
    assert [info.id for info in await connections.sandboxes.list()] == [workspace.ref.id]


async def test_ended_workspace_is_unavailable_and_not_replaced(workspace: SandboxWorkspace, connections: AsyncClient) -> None:
    await workspace.sandbox()
    assert workspace.ref is not None
    await connections.sandboxes.kill(workspace.ref.id)
    with pytest.raises(WorkspaceUnavailableError):
        await workspace.run(["true"])
    with pytest.raises(WorkspaceUnavailableError):
        await SandboxWorkspace(workspace.ref, client=connections).working_dir()
    assert await connections.sandboxes.list() == []


async def test_files_have_errors_of_python(workspace: SandboxWorkspace) -> None:
    with pytest.raises(FileNotFoundError):
        await workspace.read_bytes("/tmp/none")
    with pytest.raises(IsADirectoryError):
        await workspace.read_bytes("/tmp")
    with pytest.raises(ValueError, match="contains the working directory"):
        await workspace.remove("/")


async def test_command_has_exit_code_and_timeout(workspace: SandboxWorkspace) -> None:
    result = await workspace.run("echo out; exit 3", shell=True)  # noqa: S604 - in the sandbox
    assert (result.exit_code, result.stdout) == (3, "out\n")
    assert (await workspace.run(["no-such-program"])).exit_code == 127
    with pytest.raises(WorkspaceTimeoutError):
        await workspace.run(["sleep", "60"], timeout=0.1)
    with pytest.raises(TypeError):
        await workspace.run("true")


def test_workspace_of_another_provider_is_refused() -> None:
    with pytest.raises(ValueError, match="'other'"):
        SandboxWorkspace(WorkspaceRef(provider="other", id="x"))
