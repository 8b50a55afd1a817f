"""Events of sandboxes, snapshots and forks: list them, and follow them as they are committed.

Invariants:
- A reader reads pages of events from the store and remembers its own position. A slow reader therefore takes no memory and misses no event.
- Readers get committed events only. Sequence numbers only grow, so a reader that returns with its last received number continues without a gap.
- A principal sees its own events; an operator sees all. An event of one owner causes no read of the store for another owner.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.records import EventRecord, NewEvent
from sandlot.model.repositories import EventRepository

PAGE = 100
"""Maximum number of events that one read of the store returns, unless the caller sets another limit."""
MAX_WINDOW = 10_000
"""Maximum number of sequence numbers that :meth:`EventFeed.latest` searches in one read of the store."""
POLL_S = 5.0
"""Seconds after which a follower reads the store even without a notification, because other processes may have written to the store."""


class EventFeed:
    """All events of this service."""

    def __init__(self, table: EventRepository) -> None:
        self._table = table
        self._wakeups: dict[OwnerId | None, set[asyncio.Event]] = {}
        """Owner -> wakeups of the owner's followers. The wakeups of followers that are operators are under None."""
        self._closed = False

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
        """End all :meth:`follow` iterations, because the service stops. Idempotent."""
        self._closed = True
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

    async def latest(self, principal: Principal, *, kinds: Collection[str], limit: int, sandbox: SandboxId | None = None) -> Sequence[EventRecord]:
        """Return the latest events, newest first.

        Args:
            principal: Reader of the events.
            kinds: Return only events of these types.
            limit: Largest number of events.
            sandbox: Return only events of this sandbox.
        """
        found: list[EventRecord] = []
        end, width = await self.last_sequence(), 4 * limit
        while end > 0 and len(found) < limit:
            page = await self.page(principal, sandbox=sandbox, after=max(0, end - width), limit=width)
            found += [record for record in reversed(page) if record.sequence <= end and record.event.type in kinds]
            end, width = end - width, min(4 * width, MAX_WINDOW)
        return found[:limit]

    async def follow(self, principal: Principal, *, sandbox: SandboxId | None = None, after: int | None = None) -> AsyncIterator[EventRecord]:
        """Yield events as they are committed, until the iterator is closed.

        Args:
            principal: Reader of the events.
            sandbox: Yield only events of this sandbox.
            after: First yield the stored events with a larger sequence number. None yields only events that are committed from now on.

        Raises:
            UnavailableError: The service is stopping. The hint has the sequence number with which to continue.
        """
        with self.subscribe(principal) as wakeup:
            last = await self.last_sequence() if after is None else after
            while not self._closed:
                wakeup.clear()  # before the read, so that a commit during the read sets the wakeup again
                page = await self.page(principal, sandbox=sandbox, after=last)
                for record in page:
                    yield record
                    last = record.sequence
                if len(page) < PAGE:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_S):
                            await wakeup.wait()
        raise UnavailableError(
            "The service is stopping.",
            hint=f"Continue with after={last} when the service has restarted.",
            fields={"after": last, "retry_after_s": 1},
        )

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
