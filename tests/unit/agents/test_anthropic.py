"""Tools for Anthropic's package: a conversation as its documentation shows it, against a scripted model."""

from __future__ import annotations

import base64
from typing import Any

import anthropic
import anyio.to_thread
from anthropic.types import Message

from sandlot.agents.anthropic import AsyncMessagesTools, MessagesTools
from sandlot.sdk import AsyncClient, Client
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step
from tests.unit.agents.conftest import PNG


def script(conversation: Conversation) -> Step | list[Step]:
    if not conversation.results:
        return [Call("run_code", {"code": "print(6 * 7)"}), Call("no_such_tool", {})]
    first, second = conversation.results
    assert second.is_error
    return Say(f"{first.text}; {second.text.splitlines()[0]}")


async def test_conversation_runs_to_its_answer(connections: AsyncClient) -> None:
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    with scripted_model(script) as endpoint:
        async with (
            anthropic.AsyncAnthropic(base_url=endpoint.address, api_key="k") as client,
            AsyncMessagesTools(template="base", client=connections) as tools,
        ):
            while True:
                message = await client.messages.create(model="m", max_tokens=100, tools=tools.definitions, messages=messages)
                messages.append({"role": "assistant", "content": message.content})
                if not (results := await tools.results(message)):
                    break
                messages.append({"role": "user", "content": results})
    assert message.content[0].type == "text"
    assert message.content[0].text.startswith("42; Error: There is no tool 'no_such_tool'.")


async def test_synchronous_conversation_runs_to_its_answer(url: str) -> None:
    def work() -> str:
        messages: list[Any] = [{"role": "user", "content": "Go."}]
        with (
            scripted_model(script) as endpoint,
            anthropic.Anthropic(base_url=endpoint.address, api_key="k") as client,
            Client(url) as connections,
            MessagesTools(template="base", client=connections) as tools,
        ):
            while True:
                message = client.messages.create(model="m", max_tokens=100, tools=tools.definitions, messages=messages)
                messages.append({"role": "assistant", "content": message.content})
                if not (results := tools.results(message)):
                    return "".join(block.text for block in message.content if block.type == "text")
                messages.append({"role": "user", "content": results})

    assert (await anyio.to_thread.run_sync(work)).startswith("42; ")


async def test_tool_runner_of_the_package_runs_the_tools(connections: AsyncClient) -> None:
    def steps(conversation: Conversation) -> Step:
        if not conversation.results:
            return Call("read_file", {"path": "/no-such-file"})
        if len(conversation.results) == 1:
            return Call("run_code", {"code": "print(6 * 7)"})
        missing, found = conversation.results
        assert (missing.is_error, found.is_error) == (True, False)
        return Say(f"{found.text}; {missing.text}")

    with scripted_model(steps) as endpoint:
        async with (
            anthropic.AsyncAnthropic(base_url=endpoint.address, api_key="k") as client,
            AsyncMessagesTools(template="base", client=connections) as tools,
        ):
            runner = client.beta.messages.tool_runner(
                model="m", max_tokens=100, tools=tools.runnable, thread=False, messages=[{"role": "user", "content": "Go."}]
            )
            message = await runner.until_done()
    assert message.content[0].type == "text"
    assert message.content[0].text.startswith("42; Error: ")


async def test_synchronous_tool_runner_runs_the_tools(url: str) -> None:
    def work() -> str:
        with (
            scripted_model(script_of_one_call) as endpoint,
            anthropic.Anthropic(base_url=endpoint.address, api_key="k") as client,
            Client(url) as connections,
            MessagesTools(template="base", client=connections) as tools,
        ):
            prompt: Any = [{"role": "user", "content": "Go."}]
            message = client.beta.messages.tool_runner(model="m", max_tokens=100, tools=tools.runnable, thread=False, messages=prompt).until_done()
            return "".join(block.text for block in message.content if block.type == "text")

    assert await anyio.to_thread.run_sync(work) == "42"


def script_of_one_call(conversation: Conversation) -> Step:
    return Say(conversation.results[0].text) if conversation.results else Call("run_code", {"code": "print(6 * 7)"})


def message_with(call: dict[str, Any], stop_reason: str = "tool_use") -> Message:
    usage = {"input_tokens": 1, "output_tokens": 1}
    body = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": stop_reason, "stop_sequence": None, "usage": usage}
    return Message.model_validate({**body, "content": [{"type": "tool_use", "id": "c", **call}]})


async def test_image_is_a_block_of_the_result(connections: AsyncClient) -> None:
    async with AsyncMessagesTools(template="base", client=connections) as tools:
        await (await tools.sandbox()).files.write("/tmp/dot.png", PNG)
        (result,) = await tools.results(message_with({"name": "read_file", "input": {"path": "/tmp/dot.png"}}))
    content: Any = result["content"]
    text, image = content
    assert text["type"] == "text"
    assert image == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}}


async def test_call_that_was_cut_off_is_not_run(connections: AsyncClient, driver: MemoryDriver) -> None:
    async with AsyncMessagesTools(template="base", client=connections) as tools:
        (result,) = await tools.results(message_with({"name": "run_code", "input": {"code": "1"}}, "max_tokens"))
    assert result["is_error"]
    assert driver.booted == []
