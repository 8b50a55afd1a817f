"""OpenAI's chat completions for the agent loop, also of compatible services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from sandlot.agents.models.base import Answer, OnText, Requests, Setup, Stop, ToolCall, Usage, cut_stream
from sandlot.toolset.output import ToolResult
from sandlot.toolset.tools import Tool

_STOPS: Final[Mapping[str, Stop]] = {"tool_calls": "called", "function_call": "called", "length": "truncated", "content_filter": "refused"}
"""``finish_reason`` -> end of the answer; others mean a complete answer."""


class ChatModel:
    """A conversation over ``client.chat.completions``."""

    def __init__(self, client: Any, setup: Setup, messages: list[Any]) -> None:  # noqa: ANN401 - of a package that is not imported
        self._client = client
        self._requests = Requests(client, setup.options)
        self._fixed = {
            "model": setup.model,
            "max_completion_tokens": setup.max_output_tokens,
            "tools": definitions(setup.tools),
            "stream_options": {"include_usage": True},
        }
        if not setup.tools:
            del self._fixed["tools"]
        self._system = [{"role": "system", "content": setup.system}] if setup.system else []
        self.messages = messages

    async def ask(self, on_text: OnText) -> Answer:
        """See :class:`sandlot.agents.models.base.ModelConversation`, like all methods."""
        texts: list[str] = []
        refusals: list[str] = []
        calls: dict[int, dict[str, str]] = {}
        reason, usage = None, Usage()
        arguments = {**self._fixed, "messages": [*self._system, *self.messages]}
        async with aclosing(self._requests.events(self._client.chat.completions.create, arguments)) as chunks:
            async for chunk in chunks:
                if chunk.usage is not None:
                    usage = _usage(chunk.usage)
                for choice in chunk.choices:
                    reason = choice.finish_reason or reason
                    if choice.delta.content:
                        texts.append(choice.delta.content)
                        await on_text(choice.delta.content)
                    refusals.append(choice.delta.refusal or "")
                    for piece in choice.delta.tool_calls or ():
                        _add_piece(calls, piece)
        if reason is None:
            raise cut_stream()
        stop = _STOPS.get(reason, "answered")
        if "".join(refusals):
            stop = "refused"
        return self._append("".join(texts) or "".join(refusals), calls, stop, usage)

    def append_results(self, results: Sequence[tuple[ToolCall, ToolResult]]) -> None:
        """Append the results of all calls."""
        self.messages += [result_message(call.id, result) for call, result in results]

    def _append(self, text: str, calls: Mapping[int, Mapping[str, str]], stop: Stop, usage: Usage) -> Answer:
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls.values()
            ]
        if text or calls:
            self.messages.append(message)
        last = max(calls, default=-1)
        made = [ToolCall(call["id"], call["name"], call["arguments"], stop == "truncated" and index == last) for index, call in sorted(calls.items())]
        return Answer(text, tuple(made), "called" if made and stop == "answered" else stop, usage)


def definitions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the definitions of tools."""
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in tools]
    return [{"type": "function", "function": function} for function in functions]


def result_message(call: str, result: ToolResult) -> dict[str, Any]:
    """Return the message that answers a call, by its id. It has text only."""
    hidden = f"\n[{len(result.images)} images cannot be shown here]" if result.images else ""
    return {"role": "tool", "tool_call_id": call, "content": result.text + hidden}


def _add_piece(calls: dict[int, dict[str, str]], piece: Any) -> None:  # noqa: ANN401 - a model of the client
    call = calls.setdefault(piece.index, {"id": f"call_{len(calls)}", "name": "", "arguments": ""})
    call["id"] = piece.id or call["id"]
    if piece.function is not None:
        call["name"] += piece.function.name or ""
        call["arguments"] += piece.function.arguments or ""


def _usage(usage: Any) -> Usage:  # noqa: ANN401 - a model of the client
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens, (details.cached_tokens or 0) if details is not None else 0)
