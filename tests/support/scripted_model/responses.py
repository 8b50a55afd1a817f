"""OpenAI's Responses (API reference, "The response object" and "Streaming events")."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from tests.support.scripted_model import chat
from tests.support.scripted_model.steps import INPUT_TOKENS, OUTPUT_TOKENS, Call, Conversation, Pairs, Say, Step, Truncate, pieces, text_of

PATH = "/v1/responses"
error = chat.error


def read(body: Mapping[str, Any]) -> Conversation:
    """Return the conversation of a request."""
    pairs, prompts, system = Pairs(), list[str](), [str(body.get("instructions") or "")]
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        match item.get("type", "message"):
            case "function_call":
                pairs.call(item["call_id"], item["name"], item["arguments"])
            case "custom_tool_call":
                pairs.call(item["call_id"], item["name"], item["input"])
            case "function_call_output" | "custom_tool_call_output":
                text, images = text_of(item["output"])
                pairs.result(item["call_id"], text, images=images)
            case "message" if item["role"] != "assistant":
                pairs.settle()
                (prompts if item["role"] == "user" else system).append(text_of(item["content"])[0])
            case _:
                pass
    pairs.settle()
    tools = tuple(str(tool.get("name", tool["type"])) for tool in body.get("tools") or ())
    return Conversation(body["model"], "\n".join(filter(None, system)), tuple(prompts), tuple(pairs.results), tools, body)


def answer(body: Mapping[str, Any], steps: Sequence[Step], number: int) -> dict[str, Any]:
    """Return the answer that is not streamed."""
    custom = {tool["name"] for tool in body.get("tools") or () if tool["type"] == "custom"}
    cut = any(isinstance(step, Truncate) for step in steps)
    output: list[dict[str, Any]] = []
    for index, step in enumerate(steps):
        key = f"{number}_{index}"
        match step:
            case Say(text):
                content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
                output.append({"id": f"msg_{key}", "type": "message", "role": "assistant", "status": "completed", "content": content})
            case Call(name) if name in custom:
                output.append({"id": f"ctc_{key}", "type": "custom_tool_call", "call_id": f"call_{key}", "name": name, "input": step.raw})
            case Call(name):
                head = {"id": f"fc_{key}", "type": "function_call", "call_id": f"call_{key}", "name": name}
                output.append({**head, "arguments": step.raw, "status": "completed"})
            case _:
                pass
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": {},
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": INPUT_TOKENS,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": OUTPUT_TOKENS,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        },
    }


def events(body: Mapping[str, Any], whole: Mapping[str, Any], steps: Sequence[Step]) -> Iterator[str]:
    """Return the same answer as a stream."""
    del body, steps
    numbers = count()

    def event(kind: str, **fields: Any) -> str:  # noqa: ANN401 - JSON
        return f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': next(numbers), **fields})}\n\n"

    begun = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        where = {"output_index": index, "item_id": item["id"]}
        match item["type"]:
            case "message":
                yield event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "content": []})
                (part,) = item["content"]
                place = {**where, "content_index": 0}
                yield event("response.content_part.added", **place, part={**part, "text": ""})
                for piece in pieces(part["text"]):
                    yield event("response.output_text.delta", **place, delta=piece, logprobs=[])
                yield event("response.output_text.done", **place, text=part["text"], logprobs=[])
                yield event("response.content_part.done", **place, part=part)
            case "function_call":
                yield event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "arguments": ""})
                for piece in pieces(item["arguments"]):
                    yield event("response.function_call_arguments.delta", **where, delta=piece)
                yield event("response.function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"])
            case _:
                yield event("response.output_item.added", output_index=index, item={**item, "input": ""})
                for piece in pieces(item["input"]):
                    yield event("response.custom_tool_call_input.delta", **where, delta=piece)
                yield event("response.custom_tool_call_input.done", **where, input=item["input"])
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{whole['status']}", response=whole)
