"""Tools for Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from sandlot.agents import sandbox_tools
from sandlot.agents.extras import extra
from sandlot.agents.models import messages
from sandlot.toolset.output import ToolResult

with extra("anthropic", "anthropic"):
    from anthropic.lib.tools import BetaAsyncBuiltinFunctionTool, BetaBuiltinFunctionTool, BetaFunctionToolResultType, ToolError
    from anthropic.types import Message, ToolParam, ToolResultBlockParam
    from anthropic.types.beta import BetaToolUnionParam

Call: TypeAlias = tuple[str, tuple[str, object] | ToolResult]
"""Id of a call, and the call or its result, as ``call_all`` takes them."""


class AsyncMessagesTools(sandbox_tools.AsyncSandboxTools):
    """Tools of one sandbox for ``client.messages``; see :class:`sandlot.agents.AsyncSandboxTools` for the arguments.

    A request has ``tools=tools.definitions``. After a message with calls, the conversation continues with the message and with
    ``{"role": "user", "content": await tools.results(message)}``.
    """

    @property
    def definitions(self) -> list[ToolParam]:
        """Value of ``tools``."""
        return cast("list[ToolParam]", messages.definitions(self.tools))

    @property
    def runnable(self) -> list[BetaAsyncBuiltinFunctionTool]:
        """Tools for ``client.beta.messages.tool_runner(tools=tools.runnable, ...)``, which runs the calls itself."""
        return [_AsyncRunnable(self, definition) for definition in messages.definitions(self.tools)]

    async def results(self, message: Message) -> list[ToolResultBlockParam]:
        """Run the tool calls of a message at the same time, and return the content of the next user message; empty if there are no calls."""
        calls = calls_of(message)
        return _blocks(calls, await self.call_all([call for _, call in calls]))


class MessagesTools(sandbox_tools.SandboxTools):
    """The same for synchronous programs."""

    @classmethod
    def _asynchronous(cls) -> type[sandbox_tools.AsyncSandboxTools]:
        return AsyncMessagesTools

    @property
    def definitions(self) -> list[ToolParam]:
        """Value of ``tools``."""
        return cast("list[ToolParam]", messages.definitions(self.tools))

    @property
    def runnable(self) -> list[BetaBuiltinFunctionTool]:
        """Tools for ``client.beta.messages.tool_runner``; see :attr:`AsyncMessagesTools.runnable`."""
        return [_Runnable(self, definition) for definition in messages.definitions(self.tools)]

    def results(self, message: Message) -> list[ToolResultBlockParam]:
        """Run the tool calls of a message; see :meth:`AsyncMessagesTools.results`."""
        calls = calls_of(message)
        return _blocks(calls, self.call_all([call for _, call in calls]))


class _AsyncRunnable(BetaAsyncBuiltinFunctionTool):
    def __init__(self, tools: AsyncMessagesTools, definition: Mapping[str, Any]) -> None:
        self._tools = tools
        self._definition = definition

    def to_dict(self) -> BetaToolUnionParam:
        return cast("BetaToolUnionParam", self._definition)

    async def call(self, input: object) -> BetaFunctionToolResultType:  # noqa: A002 - the package's name
        return _runner_content(await self._tools.call(self.name, input))


class _Runnable(BetaBuiltinFunctionTool):
    def __init__(self, tools: MessagesTools, definition: Mapping[str, Any]) -> None:
        self._tools = tools
        self._definition = definition

    def to_dict(self) -> BetaToolUnionParam:
        return cast("BetaToolUnionParam", self._definition)

    def call(self, input: object) -> BetaFunctionToolResultType:  # noqa: A002 - the package's name
        return _runner_content(self._tools.call(self.name, input))


def _runner_content(result: ToolResult) -> BetaFunctionToolResultType:
    content = cast("BetaFunctionToolResultType", messages.content_blocks(result))
    if result.is_error:
        raise ToolError(content)
    return content


def calls_of(message: Message) -> list[Call]:
    """Return the tool calls of a message; the last one may be cut off."""
    blocks = [block for block in message.content if block.type == "tool_use"]
    is_cut = message.stop_reason == "max_tokens"
    return [(block.id, sandbox_tools.call_or_result(block.name, block.input, is_cut=is_cut and block is message.content[-1])) for block in blocks]


def _blocks(calls: Sequence[Call], results: Sequence[ToolResult]) -> list[ToolResultBlockParam]:
    return [cast("ToolResultBlockParam", messages.result_block(call_id, result)) for (call_id, _), result in zip(calls, results, strict=True)]
