"""Tools for OpenAI's package: conversations as its documentation shows them, against a scripted model."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import openai
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from sandlot.agents.openai import AsyncChatTools, AsyncResponsesTools, ChatTools, ResponsesTools
from sandlot.sdk import AsyncClient, Client
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step, Truncate
from tests.unit.agents.conftest import PNG


def script(conversation: Conversation) -> Step | list[Step]:
    if not conversation.results:
        return [Call("run_code", {"code": "print(6 * 7)"}), Call("no_such_tool", {})]
    first, second = conversation.results
    return Say(f"{first.text}; {second.text.splitlines()[0]}")


def cut(_: Conversation) -> list[Step]:
    return [Call("run_code", {"code": "1"}), Truncate()]


async def test_chat_runs_to_its_answer(connections: AsyncClient) -> None:
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    with scripted_model(script) as endpoint:
        async with (
            openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key="k") as client,
            AsyncChatTools(template="base", client=connections) as tools,
        ):
            while True:
                completion = await client.chat.completions.create(model="m", tools=tools.definitions, messages=messages)
                results = await tools.results(completion)
                messages += [completion.choices[0].message, *results]
                if not results:
                    break
    assert (completion.choices[0].message.content or "").startswith("42; Error: There is no tool 'no_such_tool'.")


async def test_responses_run_to_their_answer(connections: AsyncClient) -> None:
    items: list[Any] = [{"role": "user", "content": "Go."}]
    with scripted_model(script) as endpoint:
        async with (
            openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key="k") as client,
            AsyncResponsesTools(template="base", client=connections) as tools,
        ):
            while True:
                response = await client.responses.create(model="m", tools=tools.definitions, input=items)
                results = await tools.results(response)
                items += [*response.output, *results]
                if not results:
                    break
    assert response.output_text.startswith("42; ")


async def test_synchronous_conversations_run_to_their_answer(url: str) -> None:
    def chat() -> str:
        messages: list[Any] = [{"role": "user", "content": "Go."}]
        with (
            scripted_model(script) as endpoint,
            openai.OpenAI(base_url=endpoint.openai_url, api_key="k") as client,
            Client(url) as connections,
            ChatTools(template="base", client=connections) as tools,
        ):
            while True:
                completion = client.chat.completions.create(model="m", tools=tools.definitions, messages=messages)
                results = tools.results(completion)
                messages += [completion.choices[0].message, *results]
                if not results:
                    return completion.choices[0].message.content or ""

    def responses() -> str:
        items: list[Any] = [{"role": "user", "content": "Go."}]
        with (
            scripted_model(script) as endpoint,
            openai.OpenAI(base_url=endpoint.openai_url, api_key="k") as client,
            Client(url) as connections,
            ResponsesTools(template="base", client=connections) as tools,
        ):
            while True:
                response = client.responses.create(model="m", tools=tools.definitions, input=items)
                results = tools.results(response)
                items += [*response.output, *results]
                if not results:
                    return response.output_text

    assert (await anyio.to_thread.run_sync(chat)).startswith("42; ")
    assert (await anyio.to_thread.run_sync(responses)).startswith("42; ")


async def completion_of(connections: AsyncClient, step: Call) -> tuple[list[Any], list[Any]]:
    """Return the results of one call over chat completions and over Responses."""
    with scripted_model(lambda _: step) as endpoint:
        async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key="k") as client:
            completion = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go."}])
            response = await client.responses.create(model="m", input="Go.")
    found: list[list[Any]] = []
    async with AsyncChatTools(template="base", client=connections) as chat, AsyncResponsesTools(template="base", client=connections) as responses:
        for tools in (chat, responses):
            await (await tools.sandbox()).files.write("/tmp/dot.png", PNG)
        found = [[*await chat.results(completion)], [*await responses.results(response)]]
    return found[0], found[1]


async def test_image_is_an_item_of_responses_and_text_in_chat(connections: AsyncClient) -> None:
    (chat,), (response,) = await completion_of(connections, Call("read_file", {"path": "/tmp/dot.png"}))
    assert "images cannot be shown here" in chat["content"]
    assert [part["type"] for part in response["output"]] == ["input_text", "input_image"]
    assert response["output"][1]["image_url"].startswith("data:image/png;base64,iVBOR")


async def test_call_that_was_cut_off_is_not_run(connections: AsyncClient, driver: MemoryDriver) -> None:
    with scripted_model(cut) as endpoint:
        async with (
            openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key="k") as client,
            AsyncChatTools(template="base", client=connections) as chat,
            AsyncResponsesTools(template="base", client=connections) as responses,
        ):
            completion: ChatCompletion = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go."}])
            response: Response = await client.responses.create(model="m", input="Go.")
            texts = [str((await chat.results(completion))[0]["content"]), str((await responses.results(response))[0]["output"])]
    assert all("cut off" in text for text in texts)
    assert driver.booted == []
