"""Who tells a failure: the API as problem+json, a door in its vendor's words. The path that was asked for decides.

Law: It is decided before anything else is known of a request, so that whatever refuses it speaks the language of its client.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import SandlotError

DEFAULT_RETRY_AFTER_S = 1
"""What a client is told to wait where whoever refused it did not say; nothing that says "again" is without (RFC 9110, 10.2.3)."""


def retry_after_s(error: SandlotError) -> int | None:
    """Seconds after which the same request may succeed; None where waiting does not help, or nobody knows for how long. Pure."""
    known = error.fields.get("retry_after_s", DEFAULT_RETRY_AFTER_S if error.retryable else None)
    return known if isinstance(known, int) else None  # never a text: it is written into an answer's head as it is


@dataclass(frozen=True, slots=True)
class RenderedError:
    """A failure as a client is told it.

    Args:
        status: HTTP's.
        body: JSON-representable.
        media_type: The body's.
        headers: More of them.
    """

    status: int
    body: Mapping[str, Any]
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class ErrorFormat(Protocol):
    """Whoever answers under one prefix."""

    @property
    def prefix(self) -> str:
        """``/`` and one part of a path; empty for whoever answers what is nobody else's."""
        ...

    @property
    def roots(self) -> Collection[str]:
        """Paths that are not below the prefix, and are answered by this one all the same; a part in braces stands for any one part."""
        ...

    @property
    def authenticate(self) -> Callable[[Mapping[str, Any], Node], Awaitable[Principal | None]] | None:
        """Who sends a request that shows no key but something that this service gave in its place; None where there is nothing of that kind."""
        ...

    @property
    def help(self) -> str:
        """What somebody should do who asked for what there is not."""
        ...

    def render_error(self, error: SandlotError, request_id: str, status: int | None) -> RenderedError:
        """Tell a failure.

        Args:
            error: It.
            request_id: The request's.
            status: Where HTTP itself has a word for it that no code has, such as 405.
        """
        ...

    def takes_raw(self, path: str) -> bool:
        """Whether what is sent to that path is used as it comes, instead of being held to be parsed."""
        ...


def path_pattern(paths: Iterable[str]) -> re.Pattern[str]:
    """What matches these paths, and nothing else; a part in braces stands for any one part."""
    return re.compile("|".join(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) for path in paths) or r"(?!)")


class ErrorFormatSelector:
    """Everybody who answers.

    Args:
        own: Who answers what is nobody else's.
        others: Each under its own prefix.
    """

    __slots__ = ("_by_prefix", "_by_root", "_own")

    def __init__(self, own: ErrorFormat, others: Iterable[ErrorFormat] = ()) -> None:
        self._own = own
        self._by_prefix = {other.prefix: other for other in others}
        self._by_root: dict[str, list[tuple[re.Pattern[str], ErrorFormat]]] = {}
        for other in self._by_prefix.values():
            for first in {_first_part(path) for path in other.roots}:
                paths = path_pattern(path for path in other.roots if _first_part(path) == first)
                self._by_root.setdefault(first, []).append((paths, other))

    def select(self, path: str) -> ErrorFormat:
        """Who answers a path."""
        first = _first_part(path)
        if (under := self._by_prefix.get(first)) is not None:
            return under
        return next((other for paths, other in self._by_root.get(first, ()) if paths.fullmatch(path)), self._own)


def _first_part(path: str) -> str:
    """``/`` and the first part of a path."""
    return "/" + path[1:].partition("/")[0]
