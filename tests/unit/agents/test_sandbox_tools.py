"""One sandbox for a conversation: created on first use, replaced when it has ended, and ended with the conversation."""

from __future__ import annotations

import os
import signal

import anyio
import anyio.to_thread
import pytest

from sandlot.agents import AsyncSandboxTools, SandboxTools
from sandlot.agents.sandbox_tools import run_parallel
from sandlot.model.errors import InvalidRequestError
from sandlot.sdk import AsyncClient, AsyncSandbox, Client, Sandbox
from sandlot.testing.memory.driver import MemoryDriver


async def test_nothing_is_created_before_the_first_call(tools: AsyncSandboxTools, driver: MemoryDriver) -> None:
    assert tools.sandbox_id is None
    assert [schema["name"] for schema in tools.schemas][:2] == ["run_code", "run_command"]
    assert "no tool 'rm'" in (await tools.call("rm", {})).text
    assert "not valid JSON" in (await tools.call("run_code", '{"code": ')).text
    assert driver.booted == []


async def test_simultaneous_first_calls_share_one_sandbox(tools: AsyncSandboxTools, driver: MemoryDriver) -> None:
    results = await tools.call_all([("run_code", {"code": f"print({number})"}) for number in range(12)])
    assert [result.text for result in results] == [str(number) for number in range(12)]
    assert len(driver.booted) == 1


async def test_ended_sandbox_is_an_error_and_the_next_call_gets_a_new_one(tools: AsyncSandboxTools, connections: AsyncClient) -> None:
    await tools.call("run_code", {"code": "x = 1"})
    first = tools.sandbox_id
    assert first is not None
    await connections.sandboxes.kill(first)
    ended = await tools.call("run_code", {"code": "x"})
    assert (ended.is_error, ended.sandbox_ended) == (True, True)
    assert ended.text.endswith("The next call starts in a new, empty sandbox.")
    again = await tools.call("run_code", {"code": "print('x' in globals())"})
    assert (again.text, again.is_error) == ("False", False)
    assert tools.sandbox_id not in {None, first}


async def test_own_sandbox_ends_with_the_conversation(connections: AsyncClient) -> None:
    async with AsyncSandboxTools(template="base", client=connections) as tools:
        await tools.call("run_code", {"code": "1"})
        assert len(await connections.sandboxes.list()) == 1
    assert await connections.sandboxes.list() == []


async def test_sandbox_of_the_caller_stays_and_is_not_replaced(connections: AsyncClient) -> None:
    async with AsyncSandbox.create("base", client=connections) as sandbox:
        async with AsyncSandboxTools(sandbox) as tools:
            assert (await tools.call("run_code", {"code": "print(1)"})).text == "1"
            assert tools.sandbox_id == sandbox.id
        assert await sandbox.is_running()
        await connections.sandboxes.kill(sandbox.id)
        for _ in range(2):
            ended = await tools.call("run_code", {"code": "1"})
            assert ended.sandbox_ended
            assert "new, empty" not in ended.text


async def test_sandbox_whose_creation_was_cancelled_ends_with_the_conversation(connections: AsyncClient, driver: MemoryDriver) -> None:
    async with AsyncSandboxTools(template="base", client=connections) as tools:
        driver.hold("boot")
        async with anyio.create_task_group() as group:
            group.start_soon(tools.sandbox)
            await driver.faults.reach("boot")
            group.cancel_scope.cancel()
            driver.faults.release("boot")
        assert [info.id for info in await connections.sandboxes.list()] == [tools.sandbox_id]
    assert await connections.sandboxes.list() == []


async def test_call_after_the_end_is_an_error_and_creates_nothing(connections: AsyncClient, driver: MemoryDriver) -> None:
    async with AsyncSandboxTools(template="base", client=connections) as tools:
        pass
    assert "conversation has ended" in (await tools.call("run_code", {"code": "1"})).text
    assert driver.booted == []


async def test_only_chosen_tools_can_be_called(connections: AsyncClient) -> None:
    async with AsyncSandboxTools(tools=["run_command"], template="base", client=connections) as tools:
        assert [schema["name"] for schema in tools.schemas] == ["run_command"]
        assert "no tool 'run_code'" in (await tools.call("run_code", {"code": "1"})).text
        assert (await tools.call("run_command", {"command": "echo hi"})).text == "hi"


def test_unknown_tool_and_options_beside_a_sandbox_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no tool 'format_disk'"):
        AsyncSandboxTools(tools=["format_disk"])
    with pytest.raises(InvalidRequestError, match="cannot be combined"):
        AsyncSandboxTools(object(), template="base")  # type: ignore[arg-type]


async def test_synchronous_tools_end_their_sandbox(url: str, driver: MemoryDriver) -> None:
    def work() -> list[str]:
        with Client(url) as client, SandboxTools(template="base", client=client) as tools:
            pieces: list[str] = []
            tools.call("run_code", {"code": "x = 20"})
            tools.call("run_command", {"command": "echo seen"}, on_output=pieces.append)
            texts = [result.text for result in tools.call_all([("run_code", '{"code": "x + 1"}'), ("run_code", {"code": "x + 2"})])]
            assert [info.id for info in client.sandboxes.list()] == [tools.sandbox_id]
            tools.close()
            assert client.sandboxes.list() == []
            return [*pieces, *texts]

    assert await anyio.to_thread.run_sync(work) == ["seen\n", "21", "22"]
    assert len(driver.booted) == 1


async def test_synchronous_tools_use_the_sandbox_of_the_caller(url: str) -> None:
    def work() -> str:
        with Client(url) as client, Sandbox.create("base", client=client) as sandbox:
            with SandboxTools(sandbox) as tools:
                text = tools.call("run_command", {"command": "echo hi"}).text
            assert sandbox.is_running()
            return text

    assert await anyio.to_thread.run_sync(work) == "hi"


def test_interrupt_cancels_what_synchronous_tools_do() -> None:
    ended = []

    async def work(_: AsyncSandboxTools) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), SandboxTools() as tools:
            tools.drive(work)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended == [True]


async def test_first_error_of_parallel_functions_is_raised_and_cancels_the_others() -> None:
    ended = []

    async def fail() -> None:
        raise ValueError("no")

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    with pytest.raises(ValueError, match="no"):
        await run_parallel([wait, fail])
    assert ended == [True]
