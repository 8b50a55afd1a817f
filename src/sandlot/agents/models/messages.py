"""Anthropic's Messages API for the agent loop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from sandlot.agents.models.base import Answer, OnText, Requests, Setup, Stop, ToolCall, Usage, cut_stream
from sandlot.toolset.output import Image, ToolResult
from sandlot.toolset.tools import Tool

_STOPS: Final[Mapping[str | None, Stop]] = {
    "tool_use": "called",
    "pause_turn": "paused",
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "refusal": "refused",
}
"""``stop_reason`` -> end of the answer; others mean a complete answer."""
_DELTAS: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Type of a delta -> field to which it is appended."""


class MessagesModel:
    """A conversation over ``client.messages``."""

    def __init__(self, client: Any, setup: Setup, messages: list[Any]) -> None:  # noqa: ANN401 - of a package that is not imported
        self._client = client
        self._requests = Requests(client, setup.options)
        self._fixed: dict[str, Any] = {
            "model": setup.model,
            "max_tokens": setup.max_output_tokens,
            "tools": definitions(setup.tools),
        }
        if setup.system:
            self._fixed["system"] = setup.system
        self.messages = messages

    async def ask(self, on_text: OnText) -> Answer:
        """See :class:`sandlot.agents.models.base.ModelConversation`, like all methods."""
        blocks: dict[int, dict[str, Any]] = {}
        raw: dict[int, list[str]] = {}
        usage: dict[str, int] = {}
        reason, is_complete = None, False
        async with aclosing(self._requests.events(self._client.messages.create, {**self._fixed, "messages": self.messages})) as events:
            async for event in events:
                match event.type:
                    case "message_start":
                        usage |= _numbers(event.message.usage)
                    case "content_block_start":
                        blocks[event.index] = event.content_block.model_dump(mode="json", exclude_none=True)
                        raw[event.index] = []
                    case "content_block_delta" if event.delta.type == "input_json_delta":
                        raw[event.index].append(event.delta.partial_json)
                    case "content_block_delta" if event.delta.type in _DELTAS:
                        field = _DELTAS[event.delta.type]
                        piece = getattr(event.delta, field)
                        blocks[event.index][field] = blocks[event.index].get(field, "") + piece
                        if field == "text":
                            await on_text(piece)
                    case "message_delta":
                        reason = event.delta.stop_reason
                        usage |= _numbers(event.usage)
                    case "message_stop":
                        is_complete = True
                    case _:
                        pass
        if not is_complete:
            raise cut_stream()
        stop = _STOPS.get(reason, "answered")
        calls = [
            ToolCall(
                block["id"], block["name"], "".join(raw[index]) or json.dumps(block.get("input") or {}), stop == "truncated" and index == max(blocks)
            )
            for index, block in blocks.items()
            if block["type"] == "tool_use"
        ]
        self._append(blocks, raw)
        text = "".join(block["text"] for block in blocks.values() if block["type"] == "text")
        return Answer(text, tuple(calls), "called" if calls and stop == "answered" else stop, _usage(usage))

    def append_results(self, results: Sequence[tuple[ToolCall, ToolResult]]) -> None:
        """Append the results of all calls."""
        self.messages.append({"role": "user", "content": [result_block(call.id, result) for call, result in results]})

    def _append(self, blocks: Mapping[int, dict[str, Any]], raw: Mapping[int, Sequence[str]]) -> None:
        for index, block in blocks.items():
            if "input" in block and raw[index]:
                block["input"] = _object("".join(raw[index]))
        content = [block for block in blocks.values() if block["type"] != "text" or block["text"]]  # the API refuses empty text
        if content:
            self.messages.append({"role": "assistant", "content": content})


def definitions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the definitions of tools."""
    return [{"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools]


def result_block(call: str, result: ToolResult) -> dict[str, Any]:
    """Return the block that answers a call, by its id."""
    return {"type": "tool_result", "tool_use_id": call, "content": content_blocks(result), "is_error": result.is_error}


def content_blocks(result: ToolResult) -> list[dict[str, Any]]:
    """Return the content of a result as blocks."""
    return [
        {"type": "image", "source": {"type": "base64", "media_type": each.media_type, "data": each.data}}
        if isinstance(each, Image)
        else {"type": "text", "text": each.text}
        for each in result.content
    ]


def _object(text: str) -> dict[str, Any]:
    """Return the arguments of a call for the conversation, in which they must be an object; broken ones are empty."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _numbers(usage: Any) -> dict[str, int]:  # noqa: ANN401 - a model of the client
    return {name: value for name, value in usage.model_dump().items() if isinstance(value, int)}


def _usage(counts: Mapping[str, int]) -> Usage:
    read, written = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
    return Usage(counts.get("input_tokens", 0) + read + written, counts.get("output_tokens", 0), read, written)
