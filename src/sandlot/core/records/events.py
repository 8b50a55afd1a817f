"""Events of sandboxes, snapshots and forks: commit them, read them, and learn of new ones.

Invariants:
- Readers get committed events only. Sequence numbers only grow, so a reader that returns with its last received number continues without a gap.
- A principal sees its own events; an operator sees all. An event of one owner wakes no reader of another owner.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sandlot.model.access import OwnerId, Principal
from sandlot.model.ids import SandboxId
from sandlot.model.records import EventRecord, NewEvent
from sandlot.model.repositories import EventRepository

PAGE = 100
"""Maximum number of events that one read of the store returns, unless the caller sets another limit."""


class EventFeed:
    """All events of this service."""

    def __init__(self, table: EventRepository) -> None:
        self._table = table
        self._wakeups: dict[OwnerId | None, set[asyncio.Event]] = {}
        """Owner -> wakeups of the owner's followers. The wakeups of followers that are operators are under None."""
        self.is_closed = False

    def notify(self, *owners: OwnerId) -> None:
        """Wake the clients that follow events of these owners, and all operators that follow events. Call this method after a commit of events."""
        for owner in (*owners, None):
            for wakeup in self._wakeups.get(owner, ()):
                wakeup.set()

    async def publish(self, *events: NewEvent) -> None:
        """Commit events that are not committed together with a record, and wake the followers that may see these events."""
        await self._table.add(events)
        self.notify(*{event.owner for event in events})

    def close(self) -> None:
        """Wake all followers to end, because the service stops. Idempotent."""
        self.is_closed = True
        for wakeup in itertools.chain(*self._wakeups.values()):
            wakeup.set()

    async def last_sequence(self) -> int:
        """Return the sequence number of the newest event; 0 if there is none."""
        return await self._table.last_sequence()

    async def page(self, principal: Principal, *, sandbox: SandboxId | None = None, after: int = 0, limit: int = PAGE) -> Sequence[EventRecord]:
        """Return events, oldest first.

        Args:
            principal: Reader of the events.
            sandbox: Return only events of this sandbox.
            after: Return only events with a larger sequence number.
            limit: Largest number of events.
        """
        return await self._table.page(owner=None if principal.operator else principal.owner, sandbox=sandbox, after=after, limit=limit)

    @contextmanager
    def subscribe(self, principal: Principal) -> Iterator[asyncio.Event]:
        """Yield an asyncio event that is set when this service commits an event that the principal may see, and when the service stops."""
        wakeup, owner = asyncio.Event(), None if principal.operator else principal.owner
        wakeups = self._wakeups.setdefault(owner, set())
        wakeups.add(wakeup)
        try:
            yield wakeup
        finally:
            wakeups.discard(wakeup)
            if not wakeups and self._wakeups.get(owner) is wakeups:
                del self._wakeups[owner]
