"""Slots of starting sandboxes, handed out in turn to the owners that wait for one.

Invariants:
- A free slot goes to the waiting owner that holds the fewest slots. Of several such owners, it goes to the one that has waited for a turn the
  longest. Starts of one owner begin in the order of their requests.
- At most ``count`` starts hold a slot, and one more of an owner that holds none: starts of one owner, however long they take, hold up no other.
- A slot is never lost: if a start is cancelled while it gets the slot, the next start gets it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from sandlot.model.access import OwnerId


class StartSlots:
    """Limit of the number of sandboxes that start at the same time.

    Args:
        count: Number of slots.
    """

    __slots__ = ("_count", "_held", "_waiting")

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: Counter[OwnerId] = Counter()
        self._waiting: dict[OwnerId, deque[asyncio.Future[None]]] = {}
        """Owners in the order of their turns -> waiting starts."""

    def locked(self) -> bool:
        """Return True if a start of some owner would have to wait."""
        return self._held.total() >= self._count

    async def acquire(self, owner: OwnerId) -> None:
        """Wait for a slot, and take it. The caller must call :meth:`release`."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        starts = self._waiting.setdefault(owner, deque())
        starts.append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._forget(owner, granted)
            else:
                self.release(owner)
            raise

    def release(self, owner: OwnerId) -> None:
        """Give a slot back."""
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            owner = min(self._waiting, key=self._held.__getitem__)
            if self._held.total() >= self._count + (owner not in self._held):
                return
            granted = self._waiting[owner][0]
            self._forget(owner, granted)
            if granted.done():
                continue  # its caller was cancelled
            if owner in self._waiting:
                self._waiting[owner] = self._waiting.pop(owner)  # its next turn comes after those of all others
            self._held[owner] += 1
            granted.set_result(None)

    def _forget(self, owner: OwnerId, granted: asyncio.Future[None]) -> None:
        starts = self._waiting.get(owner)
        if starts is not None and granted in starts:
            starts.remove(granted)
            if not starts:
                del self._waiting[owner]
