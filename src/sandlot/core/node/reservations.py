"""What a node may promise to its sandboxes, and whether one more promise can be kept. Pure.

Laws:
- A sandbox is promised the most that it can take (``Driver.takes``), from the request that creates it until its last trace is
  gone. Memory is its limit, which its runtime and its keeper are charged to as well.
- All promises together are never more than what the host has, less a reserve for the host and the service, times a ratio that
  only the operator can raise. A promise counts in full from its beginning, however little of it is used.
- Disks are sparse: what the sandboxes have written is free no more and promised still, so it counts on both sides.
- Whatever the promises say, nothing is created while less than half of the reserve is really free: this node is not alone
  on its host.
- What can never fit is refused for good and says what there is; what does not fit now is refused with when to ask again. Never is
  what the size of the host says, not what somebody else has on its disk for the moment.
- What does not grow is not asked for: a change of one resource is not refused for another.

Two nodes on one host do not know of each other's promises: give each a part by its ratios. The last law holds for both.

The promises that this node has made, and the one place where one more is made.

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
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sandlot.core.ports import Clock
from sandlot.model.errors import ErrorCode, HostError, InternalError, InvalidRequestError, UnavailableError
from sandlot.model.ids import VOLUME_ID
from sandlot.model.ports import HostReading, Resources
from sandlot.model.specs import GIB, MIB

RETRY_AFTER_S = 2
"""What a client is told to wait when the node is full: about the time in which a sandbox is removed."""
PRESSURE_RETRY_AFTER_S = 5
"""The same when the host itself is short of something: that is nobody's to end here."""
RESERVE_SHARE = 20
"""What is kept where the operator says nothing: one part in so many, but neither less nor more than this."""
LEAST_RESERVE = Resources(memory_bytes=512 * MIB, disk_bytes=GIB, pids=512)
"""An idle Debian and the service take about 200 MiB and 150 tasks."""
MOST_RESERVE = Resources(memory_bytes=4 * GIB, disk_bytes=4 * GIB, pids=4096)
"""They do not take more because the machine is large."""
_NAMES = {"memory_bytes": "memory", "disk_bytes": "disk", "pids": "tasks"}
_SETTINGS = {"memory_bytes": "SANDLOT_MEMORY_RATIO", "disk_bytes": "SANDLOT_DISK_RATIO", "pids": "SANDLOT_PIDS_RATIO"}


@dataclass(frozen=True, slots=True)
class OvercommitConfig:
    """How much of the host may be promised.

    Args:
        memory: Promised memory to real memory; 1.0 promises what there is.
        disk: The same of disk space.
        pids: The same of tasks.
        memory_reserve_bytes: Kept for the host and the service, before the ratio; None is a twentieth of what there is, within bounds.
        disk_reserve_bytes: The same of disk space.
        pids_reserve: The same of tasks.
    """

    memory: float = 1.0
    disk: float = 1.0
    pids: float = 1.0
    memory_reserve_bytes: int | None = None
    disk_reserve_bytes: int | None = None
    pids_reserve: int | None = None


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What a node may promise, and what it has promised.

    Args:
        total: All that may be promised now.
        promised: What is promised.
        free: What is left; nothing is negative.
        sandboxes: How many promises there are.
    """

    total: Resources
    promised: Resources
    free: Resources
    sandboxes: int


def host_reserve(reading: HostReading, shares: OvercommitConfig) -> Resources:
    """What is kept for the host and the service."""
    part = Resources(
        memory_bytes=reading.has.memory_bytes // RESERVE_SHARE,
        disk_bytes=reading.has.disk_bytes // RESERVE_SHARE,
        pids=reading.has.pids // RESERVE_SHARE,
    )
    usual = smaller(larger(part, LEAST_RESERVE), MOST_RESERVE)
    return Resources(
        memory_bytes=usual.memory_bytes if shares.memory_reserve_bytes is None else shares.memory_reserve_bytes,
        disk_bytes=usual.disk_bytes if shares.disk_reserve_bytes is None else shares.disk_reserve_bytes,
        pids=usual.pids if shares.pids_reserve is None else shares.pids_reserve,
    )


def allocatable(reading: HostReading, shares: OvercommitConfig) -> Resources:
    """All that may be promised on a host."""
    kept = host_reserve(reading, shares)
    return Resources(
        memory_bytes=_part(reading.has.memory_bytes - kept.memory_bytes, shares.memory),
        disk_bytes=_part(reading.free.disk_bytes + reading.held_disk_bytes - kept.disk_bytes, shares.disk),
        pids=_part(reading.has.pids - kept.pids, shares.pids),
    )


def max_allocatable(reading: HostReading, shares: OvercommitConfig) -> Resources:
    """All that may ever be promised on a host: what :func:`total` is once nobody else has anything on its disk."""
    disk = _part(reading.has.disk_bytes - host_reserve(reading, shares).disk_bytes, shares.disk)
    now = allocatable(reading, shares)
    return Resources(memory_bytes=now.memory_bytes, disk_bytes=max(now.disk_bytes, disk), pids=now.pids)


def node_capacity(promises: Iterable[Resources], reading: HostReading, shares: OvercommitConfig) -> NodeCapacity:
    """How a node stands."""
    all_of_them = tuple(promises)
    may, promised = allocatable(reading, shares), added(all_of_them)
    free = Resources(
        memory_bytes=max(0, may.memory_bytes - promised.memory_bytes),
        disk_bytes=max(0, may.disk_bytes - promised.disk_bytes),
        pids=max(0, may.pids - promised.pids),
    )
    return NodeCapacity(total=may, promised=promised, free=free, sandboxes=len(all_of_them))


def check_feasible(asked: Resources, reading: HostReading, shares: OvercommitConfig) -> None:
    """Refuse what could not be kept even if nothing else were promised.

    Raises:
        InvalidRequestError: So it is; the fields say what there is.
    """
    most = max_allocatable(reading, shares)
    for name, what in _NAMES.items():
        want, has = getattr(asked, name), getattr(most, name)
        if want > has:
            raise InvalidRequestError(
                f"This needs {amount(name, want)} of {what} on the host; the node has {amount(name, has)} to give to all of its sandboxes.",
                hint=f"Ask for less, or for another node. Its operator may raise {_SETTINGS[name]}, or enlarge the host.",
                fields={"field": f"limits.{name}", "needed": want, "capacity": has},
            )


def check_available(asked: Resources, promised: Iterable[Resources], reading: HostReading, shares: OvercommitConfig) -> None:
    """Refuse a promise that could not be kept.

    Args:
        asked: The promise; a resource of which nothing is asked is not looked at.
        promised: All others.
        reading: The host.
        shares: How much of it may be promised.

    Raises:
        InvalidRequestError: It does not fit here even when nothing else is promised; the fields say what there is.
        UnavailableError: ``busy``: it does not fit beside the others, or beside what somebody else has on the disk.
    """
    check_feasible(asked, reading, shares)
    may, others = allocatable(reading, shares), added(promised)
    for name, what in _NAMES.items():
        want, most = getattr(asked, name), getattr(may, name)
        left = max(0, most - getattr(others, name))
        if want > most:
            raise UnavailableError(
                f"The host has {amount(name, most)} of {what} for sandboxes at the moment, {amount(name, want)} are needed: "
                "something else has the rest.",
                code=ErrorCode.BUSY,
                hint="Ask for less, or try again once there is more room on the host.",
                fields={"retry_after_s": PRESSURE_RETRY_AFTER_S, "resource": name, "needed": want, "free": left},
            )
        if want > left:
            raise UnavailableError(
                f"The node has promised its {what} to other sandboxes: {amount(name, left)} of {amount(name, most)} are left, "
                f"{amount(name, want)} are needed.",
                code=ErrorCode.BUSY,
                hint="Kill a sandbox that is not needed, ask for less, or try again later.",
                fields={"retry_after_s": RETRY_AFTER_S, "resource": name, "needed": want, "free": left},
            )


def check_pressure(asked: Resources, reading: HostReading, shares: OvercommitConfig) -> None:
    """Refuse to give anything of which the host itself runs short, whoever took it.

    Args:
        asked: The promise; a resource of which nothing is asked is not looked at.
        reading: The host.
        shares: How much of it may be promised.

    Raises:
        UnavailableError: ``busy``: less than half of the reserve is free.
    """
    kept = host_reserve(reading, shares)
    for name, what in _NAMES.items():
        floor, left = getattr(kept, name) // 2, getattr(reading.free, name)
        if getattr(asked, name) and left < floor:
            raise UnavailableError(
                f"The host is short of {what}: {amount(name, left)} are free, and below {amount(name, floor)} nothing is created.",
                code=ErrorCode.BUSY,
                hint="Something else on the host may take it. Try again later.",
                fields={"retry_after_s": PRESSURE_RETRY_AFTER_S, "resource": name, "free": left},
            )


def grown(before: Resources, after: Resources) -> Resources:
    """Of each resource the amount that is asked for, where it is more than before; otherwise nothing."""
    return Resources(
        memory_bytes=after.memory_bytes if after.memory_bytes > before.memory_bytes else 0,
        disk_bytes=after.disk_bytes if after.disk_bytes > before.disk_bytes else 0,
        pids=after.pids if after.pids > before.pids else 0,
    )


def added(amounts: Iterable[Resources]) -> Resources:
    """The sum of some amounts."""
    memory = disk = pids = 0
    for each in amounts:
        memory, disk, pids = memory + each.memory_bytes, disk + each.disk_bytes, pids + each.pids
    return Resources(memory_bytes=memory, disk_bytes=disk, pids=pids)


def larger(one: Resources, other: Resources) -> Resources:
    """Of each resource the larger amount."""
    return Resources(
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        disk_bytes=max(one.disk_bytes, other.disk_bytes),
        pids=max(one.pids, other.pids),
    )


def smaller(one: Resources, other: Resources) -> Resources:
    """Of each resource the smaller amount."""
    return Resources(
        memory_bytes=min(one.memory_bytes, other.memory_bytes),
        disk_bytes=min(one.disk_bytes, other.disk_bytes),
        pids=min(one.pids, other.pids),
    )


def amount(name: str, value: int) -> str:
    """An amount for a person: ``1.5 GiB``, ``320 MiB``, ``512``."""
    if name == "pids":
        return str(value)
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value // MIB} MiB"


def _part(amount: int, ratio: float) -> int:
    return max(0, int(amount * ratio))


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
            check_available(asked, others, reading, self._shares)
            check_pressure(asked, reading, self._shares)
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
        if larger(had, promised) != had:
            self._promises[holder] = had
            raise InternalError(f"{to} would be promised more than {holder} had.")
        self._promises[to] = promised

    def check_feasible(self, asked: Resources, reading: HostReading) -> None:
        """Refuse what can never fit, whatever else is promised.

        Raises:
            InvalidRequestError: So it is.
        """
        check_feasible(asked, reading, self._shares)

    def check_pressure(self, asked: Resources, reading: HostReading) -> None:
        """Refuse to give anything of which the host itself runs short.

        Raises:
            UnavailableError: ``busy``: so it is.
        """
        check_pressure(asked, reading, self._shares)

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
        check_available(asked, self._promises.values(), reading, self._shares)
        check_pressure(asked, reading, self._shares)
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
        meanwhile = larger(before, asked)
        if meanwhile != before:
            others = [promise for name, promise in self._promises.items() if name != holder]
            more = grown(before, asked)
            check_available(more, others, reading, self._shares)
            check_pressure(more, reading, self._shares)
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
        found = node_capacity(self._promises.values(), reading, self._shares)
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
