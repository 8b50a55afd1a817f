"""Metrics of requests, as the middleware reports them."""

from __future__ import annotations

from typing import Protocol

from sandlot.model.errors import ErrorCode


class RequestMetrics(Protocol):
    """Counts requests and error responses."""

    def requested(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count a request and its duration.

        Args:
            method: HTTP method.
            route: Template of the path; None if no route matches.
            status: HTTP status; 0 if the client disconnected before the response.
            seconds: Seconds until the end of the response; for a WebSocket until it was accepted.
        """
        ...

    def failed(self, code: ErrorCode) -> None:
        """Count an error response."""
        ...
