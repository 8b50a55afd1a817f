"""A limit on the concurrent requests of each sandbox, over all its connections. Further requests wait for those of the same sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

REQUESTS_PER_SANDBOX = 12
"""A quarter of the concurrent upstream requests of all sandboxes. pip sends one request at a time, npm fifteen, uv up to fifty."""


@dataclass(slots=True)
class _Sandbox:
    slots: asyncio.Semaphore
    connections: int = 0


class ConcurrencyLimiter:
    """Limits concurrent work for each sandbox that has a connection.

    Args:
        limit: Concurrent requests of each sandbox.
    """

    def __init__(self, limit: int = REQUESTS_PER_SANDBOX) -> None:
        self._limit = limit
        self._sandboxes: dict[str, _Sandbox] = {}

    @contextmanager
    def slots(self, sandbox: str) -> Iterator[asyncio.Semaphore]:
        """Yield the semaphore of a sandbox, for use during one connection. Each request holds it until its response is sent.

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
