"""What happened, as it can be listed and followed.

Laws:
- A reader pages from the store and remembers where it is: however slowly it reads, nothing is kept for it, and nothing is lost to it.
- What is told was committed before. Numbers only grow, so a reader that comes back with the last one that it saw goes on behind it.
- One sees what happened to one's own; an operator sees all. What happens to others costs nobody a look at the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.records import EventRecord, NewEvent
from sandlot.model.storage import EventTable

PAGE = 100
"""Read from the store at once for somebody who follows."""

MOST_PAGE = 10_000
"""Numbers that are looked at in one step backwards."""

LOOK_S = 5.0
"""How often somebody who follows looks without having been told: other processes write to the same store."""


class EventFeed:
    """All events of this service.

    Args:
        table: Where they are.
    """

    def __init__(self, table: EventTable) -> None:
        self._table = table
        self._waiting: dict[OwnerId | None, set[asyncio.Event]] = {}
        self._closed = False

    def notify(self, owner: OwnerId) -> None:
        """Something of an owner's was committed: of those who follow, the owner and operators look."""
        self._wake(owner, None)

    def _wake(self, *whom: OwnerId | None) -> None:
        for one in whom:
            for told in self._waiting.get(one, ()):
                told.set()

    async def publish(self, *events: NewEvent) -> None:
        """Commit some events that belong to no record, and tell of them."""
        await self._table.add(events)
        self._wake(None, *{event.owner for event in events})

    def close(self) -> None:
        """The service is about to stop: whoever follows is told so. Idempotent."""
        self._closed = True
        self._wake(*self._waiting)

    async def last(self) -> int:
        """The number of the newest; 0 where nothing happened yet."""
        return await self._table.last()

    async def page(self, principal: Principal, *, sandbox: SandboxId | None = None, after: int = 0, limit: int = PAGE) -> Sequence[EventRecord]:
        """What happened, oldest first.

        Args:
            principal: For whom.
            sandbox: What happened to that one only.
            after: What has a larger number than that.
            limit: At most so many.
        """
        return await self._table.page(owner=None if principal.operator else principal.owner, sandbox=sandbox, after=after, limit=limit)

    async def latest(self, principal: Principal, *, kinds: Collection[str], limit: int, sandbox: SandboxId | None = None) -> Sequence[EventRecord]:
        """What happened last, newest first.

        Args:
            principal: For whom.
            kinds: Of these types only.
            limit: At most so many.
            sandbox: What happened to that one only.
        """
        found: list[EventRecord] = []
        end, width = await self.last(), 4 * limit
        while end > 0 and len(found) < limit:
            page = await self.page(principal, sandbox=sandbox, after=max(0, end - width), limit=width)
            found += [record for record in reversed(page) if record.sequence <= end and record.event.type in kinds]
            end, width = end - width, min(4 * width, MOST_PAGE)
        return found[:limit]

    async def follow(self, principal: Principal, *, sandbox: SandboxId | None = None, after: int | None = None) -> AsyncIterator[EventRecord]:
        """What happens, as it happens, for as long as it is iterated.

        Args:
            principal: For whom.
            sandbox: What happens to that one only.
            after: First what has a larger number than that; None is what happens from now on.

        Raises:
            UnavailableError: The service stops.
        """
        with self.listening(principal) as told:
            seen = await self.last() if after is None else after
            while not self._closed:
                told.clear()  # before the look: what is committed after it is told to this one
                page = await self.page(principal, sandbox=sandbox, after=seen)
                for record in page:
                    yield record
                    seen = record.sequence
                if len(page) < PAGE:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await told.wait()
        raise UnavailableError(
            "The service is stopping.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint=f"Go on with after={seen} once it has started anew.",
            fields={"after": seen, "retry_after_s": 1},
        )

    @contextmanager
    def listening(self, principal: Principal) -> Iterator[asyncio.Event]:
        """What is set whenever something of somebody's was committed by this service, and once it stops."""
        told, whose = asyncio.Event(), None if principal.operator else principal.owner
        waiting = self._waiting.setdefault(whose, set())
        waiting.add(told)
        try:
            yield told
        finally:
            waiting.discard(told)
            if not waiting and self._waiting.get(whose) is waiting:
                del self._waiting[whose]
