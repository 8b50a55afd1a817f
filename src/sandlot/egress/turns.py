"""Turns of one sandbox: however many connections it opens, only so many of its requests are dealt with at once, and the others wait for these."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

AT_ONCE = 12
"""A quarter of what upstream is asked at once by all together. pip asks one thing at a time, npm fifteen, uv up to fifty."""


@dataclass(slots=True)
class _Sandbox:
    turns: asyncio.Semaphore
    connections: int = 0


class Turns:
    """Those of all sandboxes that have a connection.

    Args:
        at_once: How many each has.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._sandboxes: dict[str, _Sandbox] = {}

    @contextmanager
    def of(self, sandbox: str) -> Iterator[asyncio.Semaphore]:
        """The turns of a sandbox, for one of its connections: each request takes one until it is answered.

        Args:
            sandbox: Its id.
        """
        found = self._sandboxes.setdefault(sandbox, _Sandbox(asyncio.Semaphore(self._at_once)))
        found.connections += 1
        try:
            yield found.turns
        finally:
            found.connections -= 1
            if not found.connections:
                del self._sandboxes[sandbox]
