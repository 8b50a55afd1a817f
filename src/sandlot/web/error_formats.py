"""The format of error responses, by path: problem documents for the native API, a vendor's own format for its paths.

Invariant: The format depends on the path alone, so an error has the format of its API also if the request was refused before anything else was read.
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
"""``Retry-After`` of retryable errors that do not state a time: every retryable response has the header (RFC 9110, 10.2.3)."""


def retry_after_s(error: SandlotError) -> int | None:
    """Return the seconds after which the request may succeed, or None if a retry does not help or the time is unknown. Pure."""
    known = error.fields.get("retry_after_s", DEFAULT_RETRY_AFTER_S if error.retryable else None)
    return known if isinstance(known, int) else None  # never text: the value becomes a response header


@dataclass(frozen=True, slots=True)
class RenderedError:
    """An error as it is sent to the client.

    Args:
        status: HTTP status.
        body: JSON-representable body.
        media_type: Media type of the body.
        headers: Additional headers.
    """

    status: int
    body: Mapping[str, Any]
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class ErrorFormat(Protocol):
    """The errors and the clients of one API."""

    @property
    def prefix(self) -> str:
        """``/`` and one path segment; empty for the native API, which answers all other paths."""
        ...

    @property
    def roots(self) -> Collection[str]:
        """Path templates outside of the prefix that belong to this API."""
        ...

    @property
    def authenticate(self) -> Callable[[Mapping[str, Any], Node], Awaitable[Principal | None]] | None:
        """Returns the principal of a request that has a credential of the vendor instead of an API key; None if the API has no such credentials."""
        ...

    @property
    def help(self) -> str:
        """Hint of the error for unknown paths."""
        ...

    def render_error(self, error: SandlotError, request_id: str, status: int | None) -> RenderedError:
        """Return an error in the format of this API.

        Args:
            error: Error to render.
            request_id: Id of the request.
            status: HTTP status of an error of HTTP itself that no error code has, such as 405.
        """
        ...


class ErrorFormatSelector:
    """Selects the format by path.

    Args:
        native: Format of all paths that belong to no other format.
        others: Formats with their own prefixes.
    """

    __slots__ = ("_by_prefix", "_by_root", "_native")

    def __init__(self, native: ErrorFormat, others: Iterable[ErrorFormat] = ()) -> None:
        self._native = native
        self._by_prefix = {other.prefix: other for other in others}
        self._by_root: dict[str, list[tuple[re.Pattern[str], ErrorFormat]]] = {}
        for other in self._by_prefix.values():
            for first in {first_segment(path) for path in other.roots}:
                paths = _pattern(path for path in other.roots if first_segment(path) == first)
                self._by_root.setdefault(first, []).append((paths, other))

    def select(self, path: str) -> ErrorFormat:
        """Return the format of a path."""
        first = first_segment(path)
        if (below := self._by_prefix.get(first)) is not None:
            return below
        return next((other for paths, other in self._by_root.get(first, ()) if paths.fullmatch(path)), self._native)


def first_segment(path: str) -> str:
    """Return ``/`` and the first segment of a path."""
    return "/" + path[1:].partition("/")[0]


def _pattern(paths: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the paths of some templates."""
    return re.compile("|".join(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) for path in paths))
