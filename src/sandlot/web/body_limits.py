"""The maximum size of a request body, by method and path. Pure.

A route whose endpoint is marked with :func:`streams_request_body` uses the body while it arrives and takes uploads. All other requests
have the limit of JSON bodies, also requests to unknown paths and with wrong methods.

Invariant: The limit is known before the first byte of the body is read, and depends on nothing but the method and the path.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sandlot.model.specs import MIB
from sandlot.web.error_formats import first_segment
from sandlot.web.route_table import RouteEntry

JSON_MAX_BYTES: Final = 8 * MIB

_MARK = "_sandlot_streams_request_body"

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def streams_request_body(endpoint: _Endpoint) -> _Endpoint:
    """Mark the endpoint of a route that uses the request body while it arrives. Put it below the decorator of the route."""
    setattr(endpoint, _MARK, True)
    return endpoint


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """The limit of one request's body.

    Args:
        max_bytes: Maximum size of the body.
        is_streamed: The route uses the body while it arrives, so the body is not held in memory, and the quota of its sender applies.
    """

    max_bytes: int
    is_streamed: bool


class BodyLimits:
    """The limits of an application's routes.

    Args:
        routes: All routes of the application.
        upload_max_bytes: Limit of streamed bodies.
        json_max_bytes: Limit of all other bodies.
    """

    __slots__ = ("_json", "_streaming", "_upload")

    def __init__(self, routes: Iterable[RouteEntry] = (), *, upload_max_bytes: int, json_max_bytes: int = JSON_MAX_BYTES) -> None:
        self._json = BodyLimit(json_max_bytes, is_streamed=False)
        self._upload = BodyLimit(upload_max_bytes, is_streamed=True)
        # By the first part of the path, so that a request is compared with few patterns.
        self._streaming: defaultdict[tuple[str, str], list[re.Pattern[str]]] = defaultdict(list)
        for route in routes:
            if hasattr(route.endpoint, _MARK):
                for method in route.methods:
                    self._streaming[method, first_segment(route.path)].append(route.pattern)

    def find(self, method: str, path: str) -> BodyLimit:
        """Return the limit of a request."""
        patterns = self._streaming.get((method, first_segment(path)), ())
        return self._upload if any(pattern.match(path) for pattern in patterns) else self._json
