"""Anthropic's Messages (API reference, "Create a Message" and "Streaming messages")."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.support.scripted_model.steps import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    Call,
    Conversation,
    Pairs,
    RefusedRequestError,
    Say,
    Step,
    Truncate,
    pieces,
    text_of,
)

PATH = "/v1/messages"


def read(body: Mapping[str, Any]) -> Conversation:
    """Return the conversation of a request."""
    pairs, prompts = Pairs(), list[str]()
    if not isinstance(body.get("max_tokens"), int):
        raise RefusedRequestError("max_tokens: Field required")
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            raise RefusedRequestError("messages: all messages must have non-empty content")
        for block in blocks:
            match block["type"]:
                case "tool_use":
                    if not isinstance(block["input"], dict):
                        raise RefusedRequestError("tool_use.input: Input should be a valid dictionary")
                    pairs.call(block["id"], block["name"], block["input"])
                case "tool_result":
                    text, images = text_of(block.get("content"))
                    pairs.result(block["tool_use_id"], text, images=images, is_error=bool(block.get("is_error")))
                case "text" if message["role"] == "user":
                    pairs.settle()
                    prompts.append(block["text"])
                case _:
                    pass
        if message["role"] == "user":
            pairs.settle()
    pairs.settle()
    tools = tuple(tool["name"] for tool in body.get("tools") or ())
    return Conversation(body["model"], text_of(body.get("system"))[0], tuple(prompts), tuple(pairs.results), tools, body)


def answer(body: Mapping[str, Any], steps: Sequence[Step], number: int) -> dict[str, Any]:
    """Return the answer that is not streamed. Its arguments are objects, so that broken ones are empty."""
    content: list[dict[str, Any]] = []
    for index, step in enumerate(steps):
        match step:
            case Say(text):
                content.append({"type": "text", "text": text, "citations": None})
            case Call(name):
                content.append({"type": "tool_use", "id": f"toolu_{number}_{index}", "name": name, "input": dict(step.parsed)})
            case _:
                pass
    is_call = any(isinstance(step, Call) for step in steps)
    reason = "max_tokens" if any(isinstance(step, Truncate) for step in steps) else "tool_use" if is_call else "end_turn"
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS},
    }


def events(body: Mapping[str, Any], whole: Mapping[str, Any], steps: Sequence[Step]) -> Iterator[str]:
    """Return the same answer as a stream, in which broken arguments are as the model wrote them."""
    del body
    raw = [step.raw for step in steps if isinstance(step, Call)]
    yield _event("message_start", message={**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}})
    yield _event("ping")
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            yield _event("content_block_start", index=index, content_block={**block, "text": ""})
            for piece in pieces(block["text"]):
                yield _event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
        else:
            yield _event("content_block_start", index=index, content_block={**block, "input": {}})
            for piece in pieces(raw.pop(0)):
                yield _event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece})
        yield _event("content_block_stop", index=index)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": whole["usage"]["output_tokens"]})
    yield _event("message_stop")


def error(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    kind = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def _event(kind: str, **fields: Any) -> str:  # noqa: ANN401 - JSON
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"
