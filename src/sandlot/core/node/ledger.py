"""The promises that this node has made, and the one place where one more is made.

Laws:
- A promise is made before anything of it is taken, and given up only once everything of it has been given back. One exception: where
  a driver fails to prepare a sandbox and then fails to remove what it had of it, nobody holds that any more. The driver tries for
  some minutes and its next sweep again; an empty disk and a process of its own are all that it can be.
- Looking at the host and promising are two steps, and nobody comes between the check and the promise: the second does not wait.
- A change of a promise counts as the larger of both until it is done, and then as what came of it: a change that failed and could
  not be taken back whole counts as what the sandbox may still have.
- What is only kept ready (pools) is promised like everything else, and goes first: who asks for more than is left asks by
  :meth:`Reservations.make_room`, and what is given back for it is promised to whoever asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from sandlot.core.node import capacity
from sandlot.core.node.capacity import NodeCapacity, OvercommitConfig
from sandlot.core.ports import Clock
from sandlot.model.errors import ErrorCode, HostError, InternalError, UnavailableError
from sandlot.model.ids import VOLUME_ID
from sandlot.model.ports import HostReading, Resources

FRESH_S = 1.0
"""How old a look at the host may be: promises are exact all the same, and a flood of requests costs one look a second."""


class Reservations:
    """Who was promised what.

    Args:
        read: Looks at the host; blocks for some milliseconds, so it is called in a thread.
        shares: How much of the host may be promised.
        clock: The time.
    """

    def __init__(self, read: Callable[[], HostReading], shares: OvercommitConfig, clock: Clock) -> None:
        self._read = read
        self._shares = shares
        self._clock = clock
        self._promises: dict[str, Resources] = {}
        self._looking: asyncio.Task[HostReading] | None = None
        self._seen: tuple[float, HostReading] | None = None
        self.evict: Callable[[], Awaitable[bool]] | None = None
        """Gives back something that is only kept ready, and says whether there was anything; it is over when the host has it again."""

    async def read_host(self) -> HostReading:
        """The host as it was at most a second ago."""
        if self._seen is not None and self._clock.monotonic_s() - self._seen[0] < FRESH_S:
            return self._seen[1]
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def make_room(self, asked: Resources, *, besides: str | None = None) -> HostReading:
        """The host, by :meth:`look`, once so much can be promised; what is only kept ready is given back for it, one after the other.

        Where that is not enough, whoever promises now is refused. Promise without waiting in between: nobody else comes before.

        Args:
            asked: What is going to be promised.
            besides: Who has a promise that it replaces.
        """
        while True:
            reading = await self.read_host()
            if self.evict is None or self.fits(asked, reading, besides=() if besides is None else {besides}):
                return reading
            if not await self.evict():
                return reading
            self._seen = None  # what was given back is to be seen

    def fits(self, asked: Resources, reading: HostReading, *, besides: Collection[str] = ()) -> bool:
        """Whether so much could be promised now.

        Args:
            asked: What.
            reading: The host.
            besides: Whose promises do not count.
        """
        others = [promise for holder, promise in self._promises.items() if holder not in besides]
        try:
            capacity.check_available(asked, others, reading, self._shares)
            capacity.check_pressure(asked, reading, self._shares)
        except UnavailableError:
            return False
        return True

    def transfer(self, holder: str, to: str, promised: Resources) -> None:
        """What one was promised is another's from now on.

        Args:
            holder: Who had it.
            to: Who has it.
            promised: What of it; never more.
        """
        if to in self._promises or holder not in self._promises:
            raise InternalError(f"The promise of {holder} cannot be handed over to {to}.")
        had = self._promises.pop(holder)
        if capacity.larger(had, promised) != had:
            self._promises[holder] = had
            raise InternalError(f"{to} would be promised more than {holder} had.")
        self._promises[to] = promised

    def check_feasible(self, asked: Resources, reading: HostReading) -> None:
        """Refuse what can never fit, whatever else is promised.

        Raises:
            InvalidRequestError: So it is.
        """
        capacity.check_feasible(asked, reading, self._shares)

    def check_pressure(self, asked: Resources, reading: HostReading) -> None:
        """Refuse to give anything of which the host itself runs short.

        Raises:
            UnavailableError: ``busy``: so it is.
        """
        capacity.check_pressure(asked, reading, self._shares)

    def reserve(self, holder: str, asked: Resources, reading: HostReading) -> None:
        """Promise something to somebody who has no promise yet.

        Args:
            holder: A sandbox's id.
            asked: What.
            reading: The host, by :meth:`look`.

        Raises:
            InvalidRequestError: It can never fit on this node.
            UnavailableError: ``busy``: not now.
        """
        if holder in self._promises:
            raise InternalError(f"{holder} has a promise already.")
        # First whether it can ever fit: no pressure of the moment makes that worth another try.
        capacity.check_available(asked, self._promises.values(), reading, self._shares)
        capacity.check_pressure(asked, reading, self._shares)
        self._promises[holder] = asked

    def record(self, holder: str, promised: Resources) -> None:
        """An earlier service of this node made this promise, and it is kept, whatever else there is by now."""
        self._promises[holder] = promised

    def release(self, holder: str) -> None:
        """Everything that was promised has been given back. Idempotent."""
        self._promises.pop(holder, None)

    @contextmanager
    def resize(self, holder: str, asked: Resources, reading: HostReading) -> Iterator[Callable[[Resources], None]]:
        """Change a promise around the work that puts it into effect; what fails in the body leaves the old one.

        What becomes smaller, or stays, is never refused. One change of a holder at a time.

        Args:
            holder: Who has one.
            asked: What it is to be.
            reading: The host, by :meth:`look`.

        Yields:
            What the body calls with what really came of the work, where that is neither of both.

        Raises:
            InvalidRequestError: It can never fit on this node.
            UnavailableError: ``busy``: not now.
            InternalError: There is no such promise.
        """
        before = self._promises.get(holder)
        if before is None:
            raise InternalError(f"{holder} has no promise that could be changed.")
        meanwhile = capacity.larger(before, asked)
        if meanwhile != before:
            others = [promise for name, promise in self._promises.items() if name != holder]
            more = capacity.grown(before, asked)
            capacity.check_available(more, others, reading, self._shares)
            capacity.check_pressure(more, reading, self._shares)
        self._promises[holder] = meanwhile
        came: list[Resources] = []
        after = before
        try:
            yield came.append
            after = asked
        finally:
            if holder in self._promises:  # it may have ended meanwhile
                self._promises[holder] = came[-1] if came else after

    async def capacity(self) -> NodeCapacity:
        """How this node stands."""
        reading = await self.read_host()
        found = capacity.node_capacity(self._promises.values(), reading, self._shares)
        return replace(found, sandboxes=sum(1 for holder in self._promises if not VOLUME_ID.fullmatch(holder)))

    async def _look(self) -> HostReading:
        try:
            try:
                reading = await asyncio.to_thread(self._read)
            except OSError as error:
                raise HostError(
                    f"What the host has cannot be read: {error.strerror or error} ({error.filename}).",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="'sandlot doctor' checks the host and names every fix.",
                ) from error
            self._seen = self._clock.monotonic_s(), reading
            return reading
        finally:
            self._looking = None
