"""Limit on the concurrent requests of each sandbox, over all its connections. Further requests wait until earlier requests have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

REQUESTS_PER_SANDBOX = 12
"""Default limit for one sandbox: a quarter of the limit for all sandboxes together. pip sends one request at a time, npm fifteen, uv up to fifty."""


@dataclass(slots=True)
class _Sandbox:
    slots: asyncio.Semaphore
    connections: int = 0


class ConcurrencyLimiter:
    """Limits the concurrent requests of each sandbox.

    Args:
        limit: Maximum number of concurrent requests of one sandbox.
    """

    def __init__(self, limit: int = REQUESTS_PER_SANDBOX) -> None:
        self._limit = limit
        self._sandboxes: dict[str, _Sandbox] = {}

    @contextmanager
    def slots(self, sandbox: str) -> Iterator[asyncio.Semaphore]:
        """Yield the semaphore that all connections of a sandbox share. The caller must hold it for each request until the response is sent.

        The caller must not use the semaphore after leaving the ``with`` block.

        Args:
            sandbox: Id of the sandbox.
        """
        found = self._sandboxes.setdefault(sandbox, _Sandbox(asyncio.Semaphore(self._limit)))
        found.connections += 1
        try:
            yield found.slots
        finally:
            found.connections -= 1
            if not found.connections:
                del self._sandboxes[sandbox]
