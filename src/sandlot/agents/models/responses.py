"""OpenAI's Responses for the agent loop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from sandlot.agents.models.base import Answer, OnText, Requests, Setup, Stop, ToolCall, Usage, cut_stream
from sandlot.toolset.output import Image, ToolResult
from sandlot.toolset.tools import Tool


class ResponsesModel:
    """A conversation over ``client.responses``."""

    def __init__(self, client: Any, setup: Setup, messages: list[Any]) -> None:  # noqa: ANN401 - of a package that is not imported
        self._client = client
        self._requests = Requests(client, setup.options)
        self._fixed: dict[str, Any] = {
            "model": setup.model,
            "max_output_tokens": setup.max_output_tokens,
            "tools": definitions(setup.tools),
        }
        if setup.system:
            self._fixed["instructions"] = setup.system
        self.messages = messages

    async def ask(self, on_text: OnText) -> Answer:
        """See :class:`sandlot.agents.models.base.ModelConversation`, like all methods."""
        response: Any = None
        async with aclosing(self._requests.events(self._client.responses.create, {**self._fixed, "input": self.messages})) as events:
            async for event in events:
                match event.type:
                    case "response.output_text.delta" | "response.refusal.delta":
                        await on_text(event.delta)
                    case "response.completed" | "response.incomplete" | "response.failed":
                        response = event.response
                    case _:
                        pass
        if response is None:
            raise cut_stream()
        usage = _usage(response.usage)
        if response.status == "failed":
            return Answer("", (), "failed", usage, "" if response.error is None else response.error.message)
        self.messages += [item.model_dump(mode="json", exclude_none=True) for item in response.output]
        is_cut = response.status == "incomplete"
        calls = [
            ToolCall(item.call_id, item.name, item.arguments, is_cut and item is response.output[-1])
            for item in response.output
            if item.type == "function_call"
        ]
        text, refusal = _texts(response.output)
        return Answer(text or refusal, tuple(calls), _stop(response, calls, refusal), usage)

    def append_results(self, results: Sequence[tuple[ToolCall, ToolResult]]) -> None:
        """Append the results of all calls."""
        self.messages += [result_item(call.id, result) for call, result in results]


def _stop(response: Any, calls: Sequence[ToolCall], refusal: str) -> Stop:  # noqa: ANN401 - a model of the client
    if response.status == "incomplete":
        reason = response.incomplete_details.reason if response.incomplete_details is not None else None
        return "refused" if reason == "content_filter" else "truncated"
    if refusal:
        return "refused"
    return "called" if calls else "answered"


def _texts(output: Sequence[Any]) -> tuple[str, str]:
    """Return the text of an output, and its refusal."""
    parts = [part for item in output if item.type == "message" for part in item.content]
    text = "".join(part.text for part in parts if part.type == "output_text")
    return text, "".join(part.refusal for part in parts if part.type == "refusal")


def definitions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the definitions of tools."""
    return [
        {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": False} for tool in tools
    ]


def result_item(call: str, result: ToolResult) -> dict[str, Any]:
    """Return the input item that answers a call, by its id."""
    parts = [
        {"type": "input_image", "image_url": f"data:{each.media_type};base64,{each.data}", "detail": "auto"}
        if isinstance(each, Image)
        else {"type": "input_text", "text": each.text}
        for each in result.content
    ]
    return {"type": "function_call_output", "call_id": call, "output": parts if result.images else result.text}


def _usage(usage: Any) -> Usage:  # noqa: ANN401 - a model of the client
    if usage is None:
        return Usage()
    return Usage(usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens or 0)
