"""Interface of a model for the agent loop, and the requests that its protocols share.

The clients of Anthropic and OpenAI are used through their methods only; their packages are not imported.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import anyio.to_thread

from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.toolset.output import ToolResult
from sandlot.toolset.tools import Tool

Stop: TypeAlias = Literal["answered", "called", "paused", "truncated", "refused", "failed"]
"""End of a model's answer: the answer is complete, has tool calls, continues with another request, reached the limit of output tokens, was refused by
the model, or failed."""
_BROKEN: Final = frozenset({"APIConnectionError", "TransportError"})
"""Errors of the clients, and of httpx and httpx2 below them, when a connection breaks in a stream."""

OnText: TypeAlias = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer or of several.

    Args:
        input_tokens: Tokens of the input, cached ones included.
        output_tokens: Tokens of the output.
        cache_read_tokens: Tokens of the input that were read from a cache.
        cache_write_tokens: Tokens of the input that were written to a cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        """Return the sum of two usages."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool.

    Args:
        id: Id of the call.
        name: Name of the tool, as the model wrote it.
        arguments: Arguments as JSON text, as the model wrote them.
        is_cut: True if the answer was cut off in this call.
    """

    id: str
    name: str
    arguments: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a model.

    Args:
        text: Text of the answer.
        calls: Tool calls.
        stop: End of the answer.
        usage: Tokens of the request and its answer.
        problem: Message of a failed answer.
    """

    text: str
    calls: tuple[ToolCall, ...]
    stop: Stop
    usage: Usage
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """The constant part of all requests of a conversation.

    Args:
        model: Name of the model.
        system: System prompt; empty for none.
        tools: Tools that are offered.
        max_output_tokens: Limit of output tokens of one answer.
        options: Further arguments of each request.
    """

    model: str
    system: str
    tools: Sequence[Tool]
    max_output_tokens: int
    options: Mapping[str, Any]


class ModelConversation(Protocol):
    """A conversation with a model, in the form of one protocol."""

    @property
    def messages(self) -> list[Any]:
        """The conversation so far, as the client takes it."""
        ...

    async def ask(self, on_text: OnText) -> Answer:
        """Send the conversation, and append the answer to it. An answer whose stream breaks is not appended."""
        ...

    def append_results(self, results: Sequence[tuple[ToolCall, ToolResult]]) -> None:
        """Append the results of all calls of the last answer."""
        ...


class Requests:
    """Requests of a client, in its event loop or in a thread.

    Args:
        client: Synchronous or asynchronous client.
        options: Arguments of each request.
    """

    def __init__(self, client: object, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._is_async = any(each.__name__.startswith("Async") for each in type(client).__mro__)

    async def events(self, create: Callable[..., Any], arguments: Mapping[str, Any]) -> AsyncGenerator[Any]:
        """Send a request, and iterate over the events of its stream.

        Raises:
            UnavailableError: The connection broke in the stream.
        """
        stream = await self._call(create, {**arguments, **self.options, "stream": True})
        try:
            if self._is_async:
                async for event in stream:
                    yield event
            else:
                events = iter(stream)
                # A request that is abandoned at a limit ends in its thread, at the timeout of its client.
                while (event := await anyio.to_thread.run_sync(next, events, None, abandon_on_cancel=True)) is not None:
                    yield event
        except Exception as error:
            if _BROKEN.isdisjoint(each.__name__ for each in type(error).__mro__):
                raise
            raise cut_stream() from error
        finally:
            with anyio.CancelScope(shield=True):
                if self._is_async:
                    await stream.close()
                else:
                    await anyio.to_thread.run_sync(stream.close)

    async def _call(self, create: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the client's stream
        if self._is_async:
            return await create(**arguments)
        return await anyio.to_thread.run_sync(lambda: create(**arguments), abandon_on_cancel=True)


def cut_stream() -> UnavailableError:
    """Return the error for a stream that ended before its last event."""
    return UnavailableError("The model's answer ended before it was complete.", code=ErrorCode.SERVICE_UNAVAILABLE, hint="Repeat the request.")
