"""The scripted model speaks the protocols of OpenAI and Anthropic as their own packages define them, and misbehaves as its script says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.garbage import collected
from tests.support.scripted_model.endpoint import Endpoint, scripted_model
from tests.support.scripted_model.steps import MIB, Call, Conversation, Cut, Fail, Hang, Say, Script, Step, Truncate

TOOL = {"name": "run", "description": "Run.", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}}}
TOOLS: Mapping[str, list[dict[str, Any]]] = {
    "chat": [{"type": "function", "function": TOOL}],
    "responses": [{"type": "function", **TOOL}, {"type": "custom", "name": "apply_patch"}],
    "messages": [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}],
}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
TYPES: Mapping[str, TypeAdapter[Any]] = {
    "chat": TypeAdapter(ChatCompletion),
    "responses": TypeAdapter(Response),
    "messages": TypeAdapter(Message),
}
EVENTS: Mapping[str, TypeAdapter[Any]] = {
    "chat": TypeAdapter(ChatCompletionChunk),
    "responses": TypeAdapter(ResponseStreamEvent),
    "messages": TypeAdapter(RawMessageStreamEvent),
}
PROTOCOLS = pytest.mark.parametrize("protocol", sorted(PATHS))
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture(autouse=True)
def _streams_are_collected() -> Iterator[None]:
    """Broken streams leave their sockets to the garbage collector, which would find them in another test."""
    with collected():
        yield


def body_of(protocol: str, *, streamed: bool) -> dict[str, Any]:
    prompt = [{"role": "user", "content": "Go."}]
    body: dict[str, Any] = {"model": "scripted", "tools": TOOLS[protocol], "stream": streamed}
    body |= {"input": prompt} if protocol == "responses" else {"messages": prompt}
    if protocol == "chat" and streamed:
        body["stream_options"] = {"include_usage": True}
    return {**body, "max_tokens": 100} if protocol == "messages" else body


def post(endpoint: Endpoint, protocol: str, body: Mapping[str, Any], *, key: str = "k") -> httpx.Response:
    return httpx.post(f"{endpoint.address}{PATHS[protocol]}", json=body, headers={"Authorization": f"Bearer {key}"} if key else {})


def events_in(text: str) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


STEPS: Mapping[str, list[Step]] = {
    "text": [Say("Forty-two is the answer.")],
    "calls": [Say("Both."), Call("run", {"code": "print(1)"}), Call("run", {"code": "print(2)"})],
    "unknown": [Call("no_such_tool", {})],
    "broken": [Call("run", '{"code": "pri')],
    "truncated": [Say("As I was say"), Truncate()],
    "custom": [Call("apply_patch", "*** Begin Patch")],
    "large": [Call("run", {"code": "#" * (2 * MIB)})],
}


@PROTOCOLS
@STREAMED
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_answers_are_valid_for_the_types_of_the_vendor(protocol: str, streamed: bool, steps: list[Step]) -> None:  # noqa: FBT001
    with scripted_model(lambda _: steps) as endpoint:
        response = post(endpoint, protocol, body_of(protocol, streamed=streamed))
    assert response.status_code == 200
    if streamed:
        events = events_in(response.text)
        for event in events:
            if event.get("type") != "ping":  # the client drops it before it looks at types
                EVENTS[protocol].validate_python(event, strict=False)
        assert len(events) > 2
    else:
        TYPES[protocol].validate_json(response.content)


def openai_client(endpoint: Endpoint) -> openai.OpenAI:
    return openai.OpenAI(base_url=endpoint.openai_url, api_key="k", max_retries=2)


def anthropic_client(endpoint: Endpoint) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=endpoint.address, api_key="k", max_retries=2)


Talk = Callable[[Endpoint, bool], tuple[str, list[tuple[str, str]], int]]
"""Sends one request; returns the text, the calls with their arguments, and the number of tokens."""


def chat(endpoint: Endpoint, streamed: bool) -> tuple[str, list[tuple[str, str]], int]:  # noqa: FBT001
    with openai_client(endpoint) as client:
        options: Any = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "tools": TOOLS["chat"]}
        if streamed:
            with client.chat.completions.stream(**options, stream_options={"include_usage": True}) as stream:
                completion: Any = stream.get_final_completion()
        else:
            completion = client.chat.completions.create(**options)
        message = completion.choices[0].message
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        return message.content or "", calls, completion.usage.total_tokens


def responses(endpoint: Endpoint, streamed: bool) -> tuple[str, list[tuple[str, str]], int]:  # noqa: FBT001
    with openai_client(endpoint) as client:
        options: Any = {"model": "m", "input": "Go.", "tools": TOOLS["responses"]}
        if streamed:
            with client.responses.stream(**options) as stream:
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(**options)
        calls = [(item.name, item.arguments) for item in response.output if item.type == "function_call"]
        return response.output_text, calls, response.usage.total_tokens


def messages(endpoint: Endpoint, streamed: bool) -> tuple[str, list[tuple[str, str]], int]:  # noqa: FBT001
    with anthropic_client(endpoint) as client:
        options: Any = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Go."}], "tools": TOOLS["messages"]}
        if streamed:
            with client.messages.stream(**options) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(**options)
        text = "".join(block.text for block in message.content if block.type == "text")
        calls = [(block.name, json.dumps(block.input)) for block in message.content if block.type == "tool_use"]
        return text, calls, message.usage.input_tokens + message.usage.output_tokens


TALKS: Mapping[str, Talk] = {"chat": chat, "messages": messages, "responses": responses}


@PROTOCOLS
@STREAMED
def test_package_of_the_vendor_reads_text_and_parallel_calls(protocol: str, streamed: bool) -> None:  # noqa: FBT001
    with scripted_model(lambda _: STEPS["calls"]) as endpoint:
        text, calls, tokens = TALKS[protocol](endpoint, streamed)
    assert (text, tokens) == ("Both.", 110)
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("run", {"code": "print(1)"}), ("run", {"code": "print(2)"})]
    (conversation,) = endpoint.conversations
    assert (conversation.prompts, conversation.results) == (("Go.",), ())
    assert "run" in conversation.tools


@PROTOCOLS
@STREAMED
def test_package_of_the_vendor_repeats_a_refused_request(protocol: str, streamed: bool) -> None:  # noqa: FBT001
    with scripted_model(once(Fail(429))) as endpoint:
        assert TALKS[protocol](endpoint, streamed)[0] == "Well."
    assert len(endpoint.conversations) == 2


@PROTOCOLS
@pytest.mark.parametrize("status", [429, 500])
def test_lasting_failure_reaches_the_program(protocol: str, status: int) -> None:
    with scripted_model(lambda _: Fail(status)) as endpoint, pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as raised:
        TALKS[protocol](endpoint, False)
    assert getattr(raised.value, "status_code", None) == status
    assert len(endpoint.conversations) == 3


@PROTOCOLS
@STREAMED
def test_cut_answer_is_no_answer(protocol: str, streamed: bool) -> None:  # noqa: FBT001
    cut: list[Step] = [Say("A long answer, of which half arrives."), Cut()]
    with scripted_model(lambda _: cut) as endpoint:
        with httpx.Client() as client, pytest.raises(httpx.RemoteProtocolError):
            client.post(f"{endpoint.address}{PATHS[protocol]}", json=body_of(protocol, streamed=streamed), headers={"x-api-key": "k"})
        assert len(endpoint.conversations) == 1


def test_hanging_request_ends_with_the_endpoint() -> None:
    ended = threading.Event()

    def ask() -> None:
        try:
            post(endpoint, "chat", body_of("chat", streamed=False))
        except httpx.HTTPError:
            ended.set()

    asked = threading.Event()

    def script(_: Conversation) -> Step:
        asked.set()
        return Hang()

    with scripted_model(script) as endpoint:
        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(60)
        assert not ended.is_set()
    thread.join(60)
    assert ended.is_set()


def test_request_without_key_is_refused() -> None:
    with scripted_model(lambda _: Say("No.")) as endpoint:
        assert post(endpoint, "chat", body_of("chat", streamed=False), key="").status_code == 401
    assert endpoint.conversations == []


CALLED: Mapping[str, list[dict[str, Any]]] = {
    "chat": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}]}],
    "responses": [{"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"}],
    "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "run", "input": {}}]}],
}
ANSWERED: Mapping[str, list[dict[str, Any]]] = {
    "chat": [{"role": "tool", "tool_call_id": "c", "content": "1"}],
    "responses": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "1"}]}],
    "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1", "is_error": False}]}],
}


@PROTOCOLS
def test_call_without_result_is_refused_as_by_the_service(protocol: str) -> None:
    with scripted_model(lambda conversation: Say(conversation.results[0].text)) as endpoint:
        body = body_of(protocol, streamed=False)
        field = "input" if protocol == "responses" else "messages"
        answered = post(endpoint, protocol, {**body, field: body[field] + CALLED[protocol] + ANSWERED[protocol]})
        open_call = post(endpoint, protocol, {**body, field: body[field] + CALLED[protocol]})
        no_call = post(endpoint, protocol, {**body, field: body[field] + ANSWERED[protocol]})
    assert [each.status_code for each in (answered, open_call, no_call)] == [200, 400, 400]
    assert endpoint.conversations[0].results[0].call.name == "run"
    assert endpoint.refused == ["Tool calls without a result: c.", "No open tool call has the id c."]


def once(step: Step) -> Script:
    """Answer the first request with a step, and later ones with text."""
    steps = [step]
    return lambda _: steps.pop() if steps else Say("Well.")
