"""A script in place of a model: the conversation of a request, and the steps that answer it.

A script is one function from the conversation to a step or several: text and tool calls, or one kind of misbehaviour. It does not see which protocol
the client speaks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

MIB = 1024 * 1024


@dataclass(frozen=True)
class Say:
    """Text of the model."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool call. Arguments that are text are sent as they are, broken JSON included; a tool that was not offered may be called."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)

    @property
    def raw(self) -> str:
        """Arguments as the model writes them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)

    @property
    def parsed(self) -> Mapping[str, Any]:
        """Arguments for protocols that carry an object; empty if they are broken."""
        try:
            value = json.loads(self.raw)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Truncate:
    """End the answer as the limit of output tokens does: after the steps before this one."""


@dataclass(frozen=True)
class Cut:
    """Close the connection after half of the answer that the other steps make."""


@dataclass(frozen=True)
class Fail:
    """Refuse the request with an HTTP status, such as 429 or 500."""

    status: int
    message: str = "The model is overloaded."


@dataclass(frozen=True)
class Hang:
    """Send nothing until the endpoint closes."""


Content: TypeAlias = Say | Call
Step: TypeAlias = Content | Truncate | Cut | Fail | Hang


@dataclass(frozen=True)
class Result:
    """Result of a tool call, as the client sent it back.

    Args:
        call: Call that it answers.
        text: Its text; of several parts joined.
        images: Number of images in it.
        is_error: Error flag, which only one protocol has.
    """

    call: Call
    text: str
    images: int = 0
    is_error: bool = False


@dataclass(frozen=True)
class Conversation:
    """What a request says, in the same form for every protocol.

    Args:
        model: Name of the model.
        system: System prompt.
        prompts: Texts of the user in order.
        results: Results of tool calls in order.
        tools: Names of the tools that are offered.
        body: The request itself.
    """

    model: str
    system: str
    prompts: tuple[str, ...]
    results: tuple[Result, ...]
    tools: tuple[str, ...]
    body: Mapping[str, Any]


Script: TypeAlias = Callable[[Conversation], Step | Sequence[Step]]


class RefusedRequestError(Exception):
    """The request is one that the real service refuses with 400."""


class Pairs:
    """Pair tool calls with their results. The real services refuse a conversation in which a call has no result directly after it."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self._open: dict[str, Call] = {}

    def call(self, key: str, name: str, arguments: Mapping[str, Any] | str) -> None:
        """Note a call of the model."""
        if key in self._open:
            raise RefusedRequestError(f"Two tool calls have the id {key}.")
        self._open[key] = Call(name, arguments)

    def result(self, key: str, text: str, *, images: int = 0, is_error: bool = False) -> None:
        """Note a result of the client."""
        if key not in self._open:
            raise RefusedRequestError(f"No open tool call has the id {key}.")
        self.results.append(Result(self._open.pop(key), text, images, is_error))

    def settle(self) -> None:
        """Refuse calls that have no result, before the next message and at the end."""
        if self._open:
            raise RefusedRequestError(f"Tool calls without a result: {', '.join(self._open)}.")


def pieces(text: str, size: int = 7) -> Iterator[str]:
    """Split text as a stream does, in at most about 200 pieces."""
    size = max(size, len(text) // 200)
    yield from (text[start : start + size] for start in range(0, len(text), size))


def text_of(content: Any) -> tuple[str, int]:  # noqa: ANN401 - JSON
    """Return the text of a message's content and the number of its images."""
    if content is None or isinstance(content, str):
        return content or "", 0
    texts = [str(part["text"]) for part in content if "text" in part]
    return "".join(texts), sum("image" in str(part["type"]) for part in content)


INPUT_TOKENS = 100
OUTPUT_TOKENS = 10
"""Usage of every answer, so that tests know sums."""
