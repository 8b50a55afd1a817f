"""A flat list of all routes of an application, for questions that are asked outside of routing. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starlette.routing import BaseRoute, Route, compile_path

_METHOD_ORDER = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class RouteEntry:
    """An HTTP route with its whole path.

    Args:
        path: Path template, including the prefix of its API.
        methods: Upper-case HTTP methods.
        endpoint: Function that answers.
    """

    path: str
    methods: frozenset[str]
    endpoint: Callable[..., Any]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the paths of the route."""
        return compile_path(self.path)[0]


def route_entries(routes: Iterable[BaseRoute], prefix: str = "") -> list[RouteEntry]:
    """Return the HTTP routes among ``routes``, in order.

    Args:
        routes: Routes of one router. Routes of routers that it includes are not found.
        prefix: Prefix under which the router is included.
    """
    return [RouteEntry(prefix + route.path, frozenset(route.methods or ()), route.endpoint) for route in routes if isinstance(route, Route)]


def allowed_methods(entries: Iterable[RouteEntry], path: str) -> list[str]:
    """Return all methods of a path, in the usual order. Several routes can have the same path."""
    methods = {method for entry in entries if entry.pattern.match(path) for method in entry.methods}
    return sorted(methods, key=lambda method: (_METHOD_ORDER.index(method) if method in _METHOD_ORDER else len(_METHOD_ORDER), method))
