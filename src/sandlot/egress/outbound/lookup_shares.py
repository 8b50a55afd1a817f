"""Shares of the name lookups that run at once.

Invariants:
- A consumer has at most ``per_consumer`` lookups at once, and at most half of those that are free. A few consumers whose name servers never respond
  therefore leave lookups for others.
- Lookups that wait for their share begin in the order of their requests, for each consumer.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque


class LookupShares:
    """Counts the running lookups of each consumer.

    Args:
        total: Maximum number of lookups at once.
        per_consumer: Maximum number of lookups of one consumer at once.
    """

    def __init__(self, total: int, per_consumer: int) -> None:
        self._total = total
        self._per_consumer = per_consumer
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, consumer: str) -> None:
        """Wait until a consumer may begin a lookup. The caller must call :meth:`release` when the lookup has ended."""
        if consumer not in self._waiting and self._has_share(consumer):
            self._running[consumer] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(consumer, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(consumer)
            self._begin_next()
            raise

    def release(self, consumer: str) -> None:
        """Count a lookup of a consumer as ended."""
        self._running[consumer] -= 1
        if not self._running[consumer]:
            del self._running[consumer]
        self._begin_next()

    def _has_share(self, consumer: str) -> bool:
        free = self._total - self._running.total()
        return free > 0 and self._running[consumer] < min(self._per_consumer, max(1, free // 2))

    def _begin_next(self) -> None:
        """Begin the lookups that have their share now, one of each consumer after the other."""
        for consumer, turns in list(self._waiting.items()):
            while turns and turns[0].done():  # cancelled meanwhile
                del turns[0]
            if turns and self._has_share(consumer):
                self._running[consumer] += 1
                turns.popleft().set_result(None)
            if not turns:
                del self._waiting[consumer]
