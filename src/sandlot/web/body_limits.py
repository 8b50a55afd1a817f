"""The maximum size of a request body, by method and path. Pure.

A route whose endpoint is marked with :func:`streams_request_body` passes the body to a sandbox while it arrives. Such a body has no limit here: the
disk of the sandbox and the quota of the sender limit it. A route that is marked with :func:`stores_request_body` writes the body to the file store.
All other requests have the limit of JSON bodies, also requests to unknown paths and with wrong methods.

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

MAX_STREAM_BYTES: Final = (1 << 63) - 1
"""Limit of bodies that are passed to a sandbox: the largest file size of Linux (off_t)."""

_STREAMS, _STORES = "_sandlot_streams_request_body", "_sandlot_stores_request_body"

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def streams_request_body(endpoint: _Endpoint) -> _Endpoint:
    """Mark the endpoint of a route that passes the request body to a sandbox while it arrives. Put it below the decorator of the route."""
    setattr(endpoint, _STREAMS, True)
    return endpoint


def stores_request_body(endpoint: _Endpoint) -> _Endpoint:
    """Mark the endpoint of a route that writes the request body to the file store while it arrives. Put it below the decorator of the route."""
    setattr(endpoint, _STORES, True)
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
        upload_max_bytes: Limit of bodies for the file store.
        json_max_bytes: Limit of all other bodies.
    """

    __slots__ = ("_json", "_streaming")

    def __init__(self, routes: Iterable[RouteEntry] = (), *, upload_max_bytes: int, json_max_bytes: int = JSON_MAX_BYTES) -> None:
        self._json = BodyLimit(json_max_bytes, is_streamed=False)
        marks = {_STREAMS: BodyLimit(MAX_STREAM_BYTES, is_streamed=True), _STORES: BodyLimit(upload_max_bytes, is_streamed=True)}
        # By the first part of the path, so that a request is compared with few patterns.
        self._streaming: defaultdict[tuple[str, str], list[tuple[re.Pattern[str], BodyLimit]]] = defaultdict(list)
        for route in routes:
            for mark, limit in marks.items():
                if hasattr(route.endpoint, mark):
                    for method in route.methods:
                        self._streaming[method, first_segment(route.path)].append((route.pattern, limit))

    def find(self, method: str, path: str) -> BodyLimit:
        """Return the limit of a request."""
        limits = self._streaming.get((method, first_segment(path)), ())
        return next((limit for pattern, limit in limits if pattern.match(path)), self._json)
