"""Tools for OpenAI's chat completions and Responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from sandlot.agents import sandbox_tools
from sandlot.agents.extras import extra
from sandlot.agents.models import chat, responses
from sandlot.toolset.output import ToolResult

with extra("openai", "openai"):
    from openai.types.chat import ChatCompletion, ChatCompletionFunctionToolParam, ChatCompletionToolMessageParam
    from openai.types.responses import FunctionToolParam, Response
    from openai.types.responses.response_input_param import FunctionCallOutput

Call: TypeAlias = tuple[str, tuple[str, object] | ToolResult]
"""Id of a call, and the call or its result, as ``call_all`` takes them."""


class AsyncChatTools(sandbox_tools.AsyncSandboxTools):
    """Tools of one sandbox for ``client.chat.completions``; see :class:`sandlot.agents.AsyncSandboxTools` for the arguments.

    A request has ``tools=tools.definitions``. After a completion with calls, the conversation continues with its message and with
    ``*await tools.results(completion)``. Results are text only: images are saved in the sandbox, and the text names their paths.
    """

    def __init__(self, sandbox: Any = None, **options: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(sandbox, **{"images": False, **options})

    @property
    def definitions(self) -> list[ChatCompletionFunctionToolParam]:
        """Value of ``tools``."""
        return cast("list[ChatCompletionFunctionToolParam]", chat.definitions(self.tools))

    async def results(self, completion: ChatCompletion) -> list[ChatCompletionToolMessageParam]:
        """Run the tool calls of a completion at the same time, and return the next messages; empty if there are no calls."""
        calls = chat_calls(completion)
        return _chat_messages(calls, await self.call_all([call for _, call in calls]))


class ChatTools(sandbox_tools.SandboxTools):
    """The same for synchronous programs."""

    @classmethod
    def _asynchronous(cls) -> type[sandbox_tools.AsyncSandboxTools]:
        return AsyncChatTools

    @property
    def definitions(self) -> list[ChatCompletionFunctionToolParam]:
        """Value of ``tools``."""
        return cast("list[ChatCompletionFunctionToolParam]", chat.definitions(self.tools))

    def results(self, completion: ChatCompletion) -> list[ChatCompletionToolMessageParam]:
        """Run the tool calls of a completion; see :meth:`AsyncChatTools.results`."""
        calls = chat_calls(completion)
        return _chat_messages(calls, self.call_all([call for _, call in calls]))


class AsyncResponsesTools(sandbox_tools.AsyncSandboxTools):
    """Tools of one sandbox for ``client.responses``; see :class:`sandlot.agents.AsyncSandboxTools` for the arguments.

    A request has ``tools=tools.definitions``. After a response with calls, the input continues with ``*response.output`` and with
    ``*await tools.results(response)``.
    """

    @property
    def definitions(self) -> list[FunctionToolParam]:
        """Value of ``tools``."""
        return cast("list[FunctionToolParam]", responses.definitions(self.tools))

    async def results(self, response: Response) -> list[FunctionCallOutput]:
        """Run the tool calls of a response at the same time, and return the next input items; empty if there are no calls."""
        calls = response_calls(response)
        return _items(calls, await self.call_all([call for _, call in calls]))


class ResponsesTools(sandbox_tools.SandboxTools):
    """The same for synchronous programs."""

    @classmethod
    def _asynchronous(cls) -> type[sandbox_tools.AsyncSandboxTools]:
        return AsyncResponsesTools

    @property
    def definitions(self) -> list[FunctionToolParam]:
        """Value of ``tools``."""
        return cast("list[FunctionToolParam]", responses.definitions(self.tools))

    def results(self, response: Response) -> list[FunctionCallOutput]:
        """Run the tool calls of a response; see :meth:`AsyncResponsesTools.results`."""
        calls = response_calls(response)
        return _items(calls, self.call_all([call for _, call in calls]))


def chat_calls(completion: ChatCompletion) -> list[Call]:
    """Return the tool calls of a completion; the last one may be cut off."""
    choice = completion.choices[0]
    calls = choice.message.tool_calls or []
    is_cut = choice.finish_reason == "length"
    return [
        (call.id, sandbox_tools.call_or_result(call.function.name, call.function.arguments, is_cut=is_cut and call is calls[-1]))
        for call in calls
        if call.type == "function"
    ]


def response_calls(response: Response) -> list[Call]:
    """Return the tool calls of a response; the last one may be cut off."""
    is_cut = response.status == "incomplete"
    return [
        (item.call_id, sandbox_tools.call_or_result(item.name, item.arguments, is_cut=is_cut and item is response.output[-1]))
        for item in response.output
        if item.type == "function_call"
    ]


def _chat_messages(calls: Sequence[Call], results: Sequence[ToolResult]) -> list[ChatCompletionToolMessageParam]:
    return [cast("ChatCompletionToolMessageParam", chat.result_message(call_id, result)) for (call_id, _), result in zip(calls, results, strict=True)]


def _items(calls: Sequence[Call], results: Sequence[ToolResult]) -> list[FunctionCallOutput]:
    return [cast("FunctionCallOutput", responses.result_item(call_id, result)) for (call_id, _), result in zip(calls, results, strict=True)]
