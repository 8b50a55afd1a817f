"""OpenAI's chat completions (API reference, "The chat completion object" and "The chat completion chunk object")."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.support.scripted_model.steps import INPUT_TOKENS, OUTPUT_TOKENS, Call, Conversation, Pairs, Say, Step, Truncate, pieces, text_of

PATH = "/v1/chat/completions"


def read(body: Mapping[str, Any]) -> Conversation:
    """Return the conversation of a request."""
    pairs, prompts, system = Pairs(), list[str](), list[str]()
    for message in body["messages"]:
        text, images = text_of(message.get("content"))
        if message["role"] == "tool":
            pairs.result(message["tool_call_id"], text, images=images)
            continue
        pairs.settle()
        match message["role"]:
            case "system" | "developer":
                system.append(text)
            case "user":
                prompts.append(text)
            case _:
                for call in message.get("tool_calls") or ():
                    pairs.call(call["id"], call["function"]["name"], call["function"]["arguments"])
    pairs.settle()
    tools = tuple(tool["function"]["name"] for tool in body.get("tools") or ())
    return Conversation(body["model"], "\n".join(system), tuple(prompts), tuple(pairs.results), tools, body)


def answer(body: Mapping[str, Any], steps: Sequence[Step], number: int) -> dict[str, Any]:
    """Return the answer that is not streamed."""
    calls = [step for step in steps if isinstance(step, Call)]
    texts = [step.text for step in steps if isinstance(step, Say)]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{number}_{index}", "type": "function", "function": {"name": call.name, "arguments": call.raw}}
            for index, call in enumerate(calls)
        ]
    reason = "length" if any(isinstance(step, Truncate) for step in steps) else "tool_calls" if calls else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS}
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 0, "model": body["model"]}
    return {**head, "choices": [choice], "usage": usage}


def events(body: Mapping[str, Any], whole: Mapping[str, Any], steps: Sequence[Step]) -> Iterator[str]:
    """Return the same answer as a stream. Usage is sent only if the request asks for it."""
    del steps
    (choice,) = whole["choices"]
    message = choice["message"]

    def chunk(delta: Mapping[str, Any], reason: str | None = None) -> str:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        return _event({**whole, "object": "chat.completion.chunk", "choices": choices, "usage": None})

    yield chunk({"role": "assistant", "content": None if message.get("tool_calls") else "", "refusal": None})
    for piece in pieces(message["content"] or ""):
        yield chunk({"content": piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = {"name": call["function"]["name"], "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]})
        for piece in pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _event({**whole, "object": "chat.completion.chunk", "choices": []})
    yield "data: [DONE]\n\n"


def error(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    kind = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}.get(status, "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"
