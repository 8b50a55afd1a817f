"""Reservations of host resources: memory, disk space and tasks for sandboxes, warm sandboxes and volumes.

The pure functions decide whether an amount fits on the host. :class:`Reservations` has the current reservations.

Invariants:
- A reservation is made before any of its resources are used and released after the last of them is freed. There is one
  exception: if a driver fails to prepare a sandbox and then fails to remove the remains, the reservation is released at
  once. The remains are at most an empty disk and one Sandlot process. The driver retries the removal for some minutes,
  and again in its next sweep.
- A sandbox reserves the most that it can use (``Driver.max_resources``), not what it uses now. For memory this is the
  sandbox's limit, which includes the runtime and the keeper process.
- A request is admitted only while the sum of all reservations stays within ``(host - reserve) * ratio``. Only the
  operator can raise a ratio.
- Checking and reserving happen in one step without ``await``, so two requests never reserve the same resources.
- During a resize the larger of the old and the new amount is reserved, for each resource separately. A failed resize
  that cannot be undone completely keeps what the sandbox may still use.
- Headroom, the memory that a snapshot or restore uses above the limit of a sandbox, is reserved until the driver has withdrawn it. A hibernation is
  never refused because the node's memory is full: the suspend reserve, which is not allocatable, is kept for it.
- While less than half of a resource's reserve is free on the host, every request for more of that resource is refused,
  however little is reserved: other software runs on the host too.
- An amount that can never fit is refused with ``invalid_request``. Whether an amount can fit depends on the size of the
  host, not on what other software stores on its disk.
- An amount that could fit but does not fit now is refused with ``busy`` and ``retry_after_s``.
- A resize checks only the resources that grow.
- Warm sandboxes hold reservations like all other sandboxes. They are evicted before a request is refused: see
  :meth:`Reservations.make_room`.
- Quotas of owners and the maximum number of sandboxes count reservations: those that have limits.

Two nodes on one host do not see each other's reservations. Give each node a share of the host through the ratios.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sandlot.core.ports import Clock
from sandlot.host import free_space
from sandlot.model.access import OwnerId
from sandlot.model.errors import ErrorCode, HostError, InternalError, InvalidRequestError, UnavailableError
from sandlot.model.ports import HeadroomRange, HostReading, Resources
from sandlot.model.service import Capacity as NodeCapacity
from sandlot.model.specs import GIB, MIB, Limits

READING_MAX_AGE_S: Final = 1.0
"""Age in seconds after which the host is read again. All requests of one second share a reading. The reservations themselves are exact."""
BUSY_RETRY_AFTER_S: Final = 2
"""``retry_after_s`` when other sandboxes hold the resources: about the time that removing a sandbox takes."""
PRESSURE_RETRY_AFTER_S: Final = 5
"""``retry_after_s`` when other software on the host holds the resources."""
ROOM_TIMEOUT_S: Final = 10.0
"""Maximum seconds that a request waits for sandboxes that are being removed. Measured duration of a removal: 0.05 to 2 s."""

RESERVE_DIVISOR: Final = free_space.RESERVE_DIVISOR
"""The default reserve is a twentieth of each resource, clamped to ``MIN_RESERVE`` and ``MAX_RESERVE``."""
MIN_RESERVE: Final = Resources(memory_bytes=512 * MIB, disk_bytes=free_space.MIN_RESERVE_BYTES, pids=512)
"""Smallest default reserve. An idle Debian system and the service together use about 200 MiB and 150 tasks."""
MAX_RESERVE: Final = Resources(memory_bytes=4 * GIB, disk_bytes=free_space.MAX_RESERVE_BYTES, pids=4096)
"""Largest default reserve. On a larger machine, the system and the service do not use more."""


@dataclass(frozen=True, slots=True)
class _Kind:
    field: str
    noun: str
    unit: str
    ratio_setting: str


_KINDS: Final = (
    _Kind("memory_bytes", "memory", "of memory", "SANDLOT_MEMORY_RATIO"),
    _Kind("disk_bytes", "disk space", "of disk space", "SANDLOT_DISK_RATIO"),
    _Kind("pids", "tasks", "tasks", "SANDLOT_PIDS_RATIO"),
)


@dataclass(frozen=True, slots=True)
class OvercommitConfig:
    """Share of the host that may be reserved.

    Args:
        memory_ratio: Reservable memory divided by real memory; 1.0 reserves no more than exists.
        disk_ratio: Reservable disk space divided by real disk space.
        pids_ratio: Reservable tasks divided by the maximum number of tasks of the host.
        memory_reserve_bytes: Memory kept for the host and the service, before the ratio. None: the default, see ``RESERVE_DIVISOR``.
        disk_reserve_bytes: Disk space kept for the host and the service, before the ratio. None: the default.
        pids_reserve: Tasks kept for the host and the service, before the ratio. None: the default.
        suspend_reserve_bytes: Memory kept for hibernations, before the ratio; see :meth:`Reservations.reserve_for_hibernation`.
    """

    memory_ratio: float = 1.0
    disk_ratio: float = 1.0
    pids_ratio: float = 1.0
    memory_reserve_bytes: int | None = None
    disk_reserve_bytes: int | None = None
    pids_reserve: int | None = None
    suspend_reserve_bytes: int = 0


def host_reserve(reading: HostReading, overcommit: OvercommitConfig) -> Resources:
    """Return the resources that are kept for the host and the service."""
    share = Resources(
        memory_bytes=reading.total.memory_bytes // RESERVE_DIVISOR,
        disk_bytes=reading.total.disk_bytes // RESERVE_DIVISOR,
        pids=reading.total.pids // RESERVE_DIVISOR,
    )
    default = combine(min, combine(max, share, MIN_RESERVE), MAX_RESERVE)
    return Resources(
        memory_bytes=default.memory_bytes if overcommit.memory_reserve_bytes is None else overcommit.memory_reserve_bytes,
        disk_bytes=default.disk_bytes if overcommit.disk_reserve_bytes is None else overcommit.disk_reserve_bytes,
        pids=default.pids if overcommit.pids_reserve is None else overcommit.pids_reserve,
    )


def allocatable(reading: HostReading, overcommit: OvercommitConfig) -> Resources:
    """Return the maximum total of all reservations at present."""
    kept = host_reserve(reading, overcommit)
    return Resources(
        memory_bytes=_scaled(reading.total.memory_bytes - kept.memory_bytes - overcommit.suspend_reserve_bytes, overcommit.memory_ratio),
        # Space that the disks of sandboxes hold is not free on the host, but reservations cover it.
        disk_bytes=_scaled(reading.free.disk_bytes + reading.sandbox_disk_bytes - kept.disk_bytes, overcommit.disk_ratio),
        pids=_scaled(reading.total.pids - kept.pids, overcommit.pids_ratio),
    )


def max_allocatable(reading: HostReading, overcommit: OvercommitConfig) -> Resources:
    """Return the maximum total of all reservations on a host whose disk no other software uses; see :func:`allocatable`."""
    now = allocatable(reading, overcommit)
    disk_bytes = _scaled(reading.total.disk_bytes - host_reserve(reading, overcommit).disk_bytes, overcommit.disk_ratio)
    return Resources(memory_bytes=now.memory_bytes, disk_bytes=max(now.disk_bytes, disk_bytes), pids=now.pids)


def node_capacity(reserved: Iterable[Resources], sandboxes: int, reading: HostReading, overcommit: OvercommitConfig) -> NodeCapacity:
    """Return the capacity of a node."""
    limit, total = allocatable(reading, overcommit), combine(sum, *reserved)
    available = Resources(
        memory_bytes=max(0, limit.memory_bytes - total.memory_bytes),
        disk_bytes=max(0, limit.disk_bytes - total.disk_bytes),
        pids=max(0, limit.pids - total.pids),
    )
    return NodeCapacity(allocatable=limit, reserved=total, available=available, sandboxes=sandboxes)


def check_feasible(needed: Resources, reading: HostReading, overcommit: OvercommitConfig) -> None:
    """Refuse an amount that would not fit even if nothing else were reserved.

    Raises:
        InvalidRequestError: The amount can never fit on this node. The error's fields contain the capacity of the node.
    """
    most = max_allocatable(reading, overcommit)
    for kind in _KINDS:
        need, limit = getattr(needed, kind.field), getattr(most, kind.field)
        if need > limit:
            raise InvalidRequestError(
                f"The request needs {_size(kind, need)} {kind.unit}; all sandboxes of this node together can have {_size(kind, limit)}.",
                hint=f"Request less, or ask the operator to raise {kind.ratio_setting}.",
                fields={"field": f"limits.{kind.field}", "needed": need, "capacity": limit},
            )


def check_available(needed: Resources, reserved: Iterable[Resources], reading: HostReading, overcommit: OvercommitConfig) -> None:
    """Refuse an amount that does not fit beside the existing reservations.

    Args:
        needed: The amount; a resource whose amount is 0 is not checked.
        reserved: All other reservations.
        reading: Reading of the host.
        overcommit: Share of the host that may be reserved.

    Raises:
        InvalidRequestError: The amount can never fit on this node.
        UnavailableError: Other sandboxes, or other software on the host's disk, hold too much now (``busy``).
    """
    check_feasible(needed, reading, overcommit)
    limits, others = allocatable(reading, overcommit), combine(sum, *reserved)
    for kind in _KINDS:
        need, limit = getattr(needed, kind.field), getattr(limits, kind.field)
        left = max(0, limit - getattr(others, kind.field))
        if need > limit:
            raise UnavailableError(
                f"The request needs {_size(kind, need)} {kind.unit}; other software on the host leaves {_size(kind, limit)} for sandboxes.",
                code=ErrorCode.BUSY,
                hint="Request less, or retry when less of the host is in use.",
                fields={"retry_after_s": PRESSURE_RETRY_AFTER_S, "resource": kind.field, "needed": need, "free": left},
            )
        if need > left:
            raise UnavailableError(
                f"The request needs {_size(kind, need)} {kind.unit}; {_size(kind, left)} of this node's {_size(kind, limit)} are not reserved.",
                code=ErrorCode.BUSY,
                hint="Kill a sandbox that is no longer needed, or retry later.",
                fields={"retry_after_s": BUSY_RETRY_AFTER_S, "resource": kind.field, "needed": need, "free": left},
            )


def check_pressure(needed: Resources, reading: HostReading, overcommit: OvercommitConfig) -> None:
    """Refuse an amount that includes a resource of which the host is short.

    Args:
        needed: The amount; a resource whose amount is 0 is not checked.
        reading: Reading of the host.
        overcommit: Share of the host that may be reserved.

    Raises:
        UnavailableError: Less than half of the reserve is free on the host (``busy``).
    """
    kept = host_reserve(reading, overcommit)
    for kind in _KINDS:
        floor, free = getattr(kept, kind.field) // 2, getattr(reading.free, kind.field)
        if getattr(needed, kind.field) and free < floor:
            raise UnavailableError(
                f"The host is short of {kind.noun}: {_size(kind, free)} free; below {_size(kind, floor)} no request is admitted.",
                code=ErrorCode.BUSY,
                hint="Stop other software on the host, or retry later.",
                fields={"retry_after_s": PRESSURE_RETRY_AFTER_S, "resource": kind.field, "free": free},
            )


def grown_amounts(before: Resources, after: Resources) -> Resources:
    """Return the new amount of each resource that grows, and 0 for all other resources."""
    return Resources(
        memory_bytes=after.memory_bytes if after.memory_bytes > before.memory_bytes else 0,
        disk_bytes=after.disk_bytes if after.disk_bytes > before.disk_bytes else 0,
        pids=after.pids if after.pids > before.pids else 0,
    )


def combine(fold: Callable[[Iterable[int]], int], *amounts: Resources) -> Resources:
    """Combine amounts into one amount, each resource separately: ``combine(max, old, new)`` has the larger value of each resource."""
    return Resources(
        memory_bytes=fold(each.memory_bytes for each in amounts),
        disk_bytes=fold(each.disk_bytes for each in amounts),
        pids=fold(each.pids for each in amounts),
    )


def _scaled(amount: int, ratio: float) -> int:
    return max(0, int(amount * ratio))


def _size(kind: _Kind, amount: int) -> str:
    """Return an amount as text for a message, such as ``1.5 GiB``, ``320 MiB`` or ``512``."""
    if kind.field == "pids":
        return str(amount)
    return f"{amount / GIB:.1f} GiB" if amount >= GIB else f"{amount // MIB} MiB"


class Purpose(StrEnum):
    """Purpose of a reservation."""

    SANDBOX = "sandbox"
    """A sandbox of an owner. A hibernated sandbox holds nothing: its image is no free space of the host any more."""
    POOL = "pool"
    """A warm or prepared sandbox of a pool, or the sandbox from which a template snapshot is made."""
    VOLUME = "volume"
    SNAPSHOT = "snapshot"
    """Disk space of a snapshot while it is written."""
    FILE = "file"
    """Disk space of a file of the file store while it is written."""
    RECORDS = "records"
    """Disk space that the database and the log of the service may still take."""
    HEADROOM = "headroom"
    """Memory above a sandbox's limit, for the snapshot or restore of the sandbox."""


class Reservation:
    """Resources that are reserved on this node. :class:`Reservations` makes reservations.

    Attributes:
        owner: Owner of the sandbox; None for a reservation of the node itself.
        limits: Limits that count against the owner's quota and as one of the service's sandboxes. None: the reservation counts as no sandbox.
        is_set_aside: True if the amount is the suspend reserve, which is not allocatable and therefore not part of the sum of all reservations.
        is_leaving: True while the resources are being removed from the host, so that they are expected to be free soon.
    """

    __slots__ = ("amount", "is_leaving", "is_set_aside", "limits", "owner", "purpose", "reservations")

    def __init__(self, reservations: Reservations, purpose: Purpose, amount: Resources, owner: OwnerId | None, limits: Limits | None) -> None:
        self.reservations = reservations
        self.purpose = purpose
        self.amount = amount
        self.owner = owner
        self.limits = limits
        self.is_set_aside = False
        self.is_leaving = False

    def claim(self, owner: OwnerId, limits: Limits, amount: Resources) -> None:
        """Make the reservation of a pooled sandbox the reservation of an owner's sandbox, and shrink it to an amount.

        Args:
            owner: Owner of the sandbox.
            limits: Limits of the sandbox.
            amount: New amount; no resource may exceed the reserved amount.
        """
        if combine(max, self.amount, amount) != self.amount:
            raise InternalError(f"A claimed sandbox of {owner} needs more than was reserved for it.")
        self.purpose, self.owner, self.limits, self.amount = Purpose.SANDBOX, owner, limits, amount

    def record_limits(self, limits: Limits, amount: Resources) -> None:
        """Reserve what a sandbox with these limits can use. Nothing is checked, because the limits are in force already."""
        self.limits, self.amount = limits, amount
        self.reservations.notify()

    def grow(self, more: Resources, reading: HostReading) -> None:
        """Reserve an additional amount.

        Raises:
            InvalidRequestError: The additional amount can never fit on this node.
            UnavailableError: The additional amount does not fit now (``busy``).
        """
        self.reservations.check_available(more, reading)
        self.amount = combine(sum, self.amount, more)

    def settle(self, disk_bytes: int) -> None:
        """Stop to reserve disk space that was written, at most the reserved amount. It counts until the next reading of the host shows it as used."""
        settled = max(0, min(disk_bytes, self.amount.disk_bytes))
        self.amount = replace(self.amount, disk_bytes=self.amount.disk_bytes - settled)
        self.reservations.unread_disk_bytes += settled

    def set_leaving(self, leaving: bool) -> None:  # noqa: FBT001 - the argument is the new value of `is_leaving`
        """Set :attr:`is_leaving`, and let requests that wait for room check again."""
        self.is_leaving = leaving
        self.reservations.notify()

    @contextmanager
    def resize(self, target: Resources, limits: Limits, reading: HostReading) -> Iterator[Resize]:
        """Resize the reservation while the body of the ``with`` block applies new limits to the sandbox.

        During the body, the larger of the old and the new amount is reserved, and the larger limits count. If the body succeeds, the target is
        reserved; if the body raises, the old amount is reserved. A body that leaves the sandbox with other limits sets :attr:`Resize.actual`.
        A resource that does not grow is never refused.

        Args:
            target: The new amount.
            limits: The new limits.
            reading: Reading of the host, from :meth:`Reservations.make_room`.

        Raises:
            UnavailableError: The target does not fit now (``busy``).
        """
        self.reservations.check_resize(self, target, reading)
        resize, after = Resize(), (self.amount, self.limits)
        self.amount, self.limits = combine(max, self.amount, target), largest_limits(self.limits or limits, limits)
        try:
            yield resize
            after = target, limits
        finally:
            self.amount, self.limits = resize.actual or after
            self.reservations.notify()

    def release(self) -> None:
        """Release the reservation, whose resources have all been freed. Idempotent."""
        self.reservations.forget(self)


class Resize:
    """A resize in progress.

    Attributes:
        actual: Amount and limits of the sandbox if a change succeeded only in part; the body of the ``with`` block sets it. None in all other cases.
    """

    __slots__ = ("actual",)

    def __init__(self) -> None:
        self.actual: tuple[Resources, Limits] | None = None


class Reservations:
    """All reservations of this node.

    Args:
        read_host: Function that reads the host's resources. The function blocks for some milliseconds, so it is called in a thread.
    """

    def __init__(self, read_host: Callable[[], HostReading], overcommit: OvercommitConfig, clock: Clock) -> None:
        self._read_host = read_host
        self._overcommit = overcommit
        self._clock = clock
        self._all: dict[Reservation, None] = {}
        self._latest: tuple[float, HostReading] | None = None
        self._reading: asyncio.Task[HostReading] | None = None
        self._changed = asyncio.Event()
        """Set, and replaced by a new event, when a reservation is released or changes."""
        self._suspending: Reservation | None = None
        """Reservation of the hibernation that uses the suspend reserve."""
        self._reclaim: Callable[[int], Awaitable[int]] | None = None
        self.unread_disk_bytes = 0
        """Disk space that was reserved and written since the host was last read; see :meth:`Reservation.settle`."""
        self._evict_next: Callable[[], Reservation | None] = lambda: None

    def evict_with(self, evict_next: Callable[[], Reservation | None]) -> None:
        """Set the function that evicts warm sandboxes when their resources are needed. Without it, nothing is evicted.

        The composition root passes ``PoolRefiller.evict_next``, because the refiller is built after the reservations.

        Args:
            evict_next: Function that starts to remove one warm sandbox and returns its reservation, or None if there is no warm sandbox.
        """
        self._evict_next = evict_next

    def reclaim_with(self, reclaim: Callable[[int], Awaitable[int]]) -> None:
        """Set the function that frees disk space which is used only as a cache. Without it, nothing is freed.

        The composition root passes ``PackageCache.reclaim`` if the cache is on the disk of the data directory.

        Args:
            reclaim: Function that frees a number of bytes and returns the number of freed bytes, or frees nothing and returns 0.
        """
        self._reclaim = reclaim

    async def disk_reserve_bytes(self) -> int:
        """Return the disk space that is kept for the host and the service."""
        if self._overcommit.disk_reserve_bytes is not None:
            return self._overcommit.disk_reserve_bytes
        return host_reserve(await self.read_host(), self._overcommit).disk_bytes

    async def read_host(self) -> HostReading:
        """Return a reading of the host that is at most ``READING_MAX_AGE_S`` old. Concurrent callers share one reading.

        Raises:
            HostError: The host cannot be read (``host_not_ready``).
        """
        if self._latest is not None and self._clock.monotonic_s() - self._latest[0] < READING_MAX_AGE_S:
            return self._latest[1]
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh())
        return await asyncio.shield(self._reading)

    async def make_room(self, needed: Resources, *, replacing: Reservation | None = None) -> HostReading:
        """Free cached disk space and evict warm sandboxes until an amount fits, and return the reading of the host for the reservation.

        Call :meth:`reserve` or :meth:`Reservation.resize` before the next ``await``: until then no other request can take the room. If the amount
        still does not fit, these methods raise an error.

        An eviction is only started here, and the method waits for any reservation to be released, at most ``ROOM_TIMEOUT_S`` in all: the removal of
        a sandbox may take long or fail. Nothing is evicted while the sandboxes that are being removed leave enough room.

        Args:
            needed: The amount that is about to be reserved.
            replacing: Reservation that does not count, because the amount replaces it.

        Raises:
            InvalidRequestError: The amount can never fit on this node.
        """
        ignored = set() if replacing is None else {replacing}
        until_s = self._clock.monotonic_s() + ROOM_TIMEOUT_S
        while True:
            reading, changed = await self.read_host(), self._changed
            if self.fits(needed, reading, ignoring=ignored):
                return reading
            leaving = self.leaving()
            is_coming = bool(leaving) and (self._is_pressed(needed, reading) or self.fits(needed, reading, ignoring=ignored | leaving))
            if not is_coming:
                short_bytes = self._disk_shortage(needed, reading, ignored | leaving)
                if short_bytes and self._reclaim is not None and await self._reclaim(short_bytes):
                    self._latest = None
                elif self._evict_next() is None:
                    return reading
            elif not await self._wait_changed(changed, until_s):
                return reading
            else:
                self._latest = None  # read the host again, because resources were freed

    async def disk_to_leave(self) -> int:
        """Return the free disk space that a cache must leave: the reserve of the host, and what is reserved and not written yet.

        Raises:
            HostError: The host cannot be read (``host_not_ready``).
        """
        reading = await self.read_host()
        return max(host_reserve(reading, self._overcommit).disk_bytes, reading.free.disk_bytes - self._unreserved_disk(reading))

    def _unreserved_disk(self, reading: HostReading, ignored: Collection[Reservation] = ()) -> int:
        """Return how much more disk space can be written without breaking a reservation; negative if reservations cannot be kept already."""
        reserved = combine(sum, *self._amounts(ignored)).disk_bytes
        kept = host_reserve(reading, self._overcommit).disk_bytes
        return reading.free.disk_bytes + reading.sandbox_disk_bytes - kept - int(reserved / self._overcommit.disk_ratio)

    def _disk_shortage(self, needed: Resources, reading: HostReading, ignored: Collection[Reservation]) -> int:
        """Return how many bytes must become free on the disk until an amount fits; 0 if disk space is not what is missing."""
        if not needed.disk_bytes:
            return 0
        missing = int(needed.disk_bytes / self._overcommit.disk_ratio) - self._unreserved_disk(reading, ignored)
        pressed = host_reserve(reading, self._overcommit).disk_bytes // 2 - reading.free.disk_bytes
        return max(0, missing, pressed)

    def leaving(self) -> set[Reservation]:
        """Return the reservations whose resources are expected to be free soon."""
        return {each for each in self._all if each.is_leaving}

    async def _wait_changed(self, changed: asyncio.Event, until_s: float) -> bool:
        """Wait until ``changed`` is set. Return False if the monotonic time ``until_s`` comes first."""
        waiting, timer = asyncio.ensure_future(changed.wait()), asyncio.ensure_future(self._clock.sleep_until(until_s))
        try:
            await asyncio.wait({waiting, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            timer.cancel()
        return changed.is_set()

    def _is_pressed(self, needed: Resources, reading: HostReading) -> bool:
        """Return True if the host is short of a resource that is needed. The next reading shows whether a removal has changed that."""
        try:
            check_pressure(needed, reading, self._overcommit)
        except UnavailableError:
            return True
        return False

    def fits(self, needed: Resources, reading: HostReading, *, ignoring: Collection[Reservation] = ()) -> bool:
        """Return whether an amount could be reserved now."""
        try:
            self.check_available(needed, reading, ignoring=ignoring)
        except UnavailableError:
            return False
        return True

    def check_available(self, needed: Resources, reading: HostReading, *, ignoring: Collection[Reservation] = ()) -> None:
        """Refuse an amount that cannot be reserved now; see :meth:`fits`.

        Raises:
            UnavailableError: The amount does not fit now (``busy``).
        """
        # An amount that can never fit must not get the retryable error of check_pressure, so check_available comes first.
        check_available(needed, self._amounts(ignoring), reading, self._overcommit)
        check_pressure(needed, reading, self._overcommit)

    def _amounts(self, ignoring: Collection[Reservation] = ()) -> list[Resources]:
        unread = Resources(memory_bytes=0, disk_bytes=self.unread_disk_bytes, pids=0)
        return [unread, *(each.amount for each in self._all if not each.is_set_aside and each not in ignoring)]

    def check_feasible(self, needed: Resources, reading: HostReading) -> None:
        """Refuse an amount that can never fit; see :func:`check_feasible`."""
        check_feasible(needed, reading, self._overcommit)

    def check_pressure(self, needed: Resources, reading: HostReading) -> None:
        """Refuse an amount that includes a resource of which the host is short; see :func:`check_pressure`."""
        check_pressure(needed, reading, self._overcommit)

    def check_resize(self, reservation: Reservation, target: Resources, reading: HostReading) -> None:
        """Refuse a resize that does not fit. Only resources that grow are checked.

        Raises:
            UnavailableError: The target does not fit now (``busy``).
        """
        if reservation not in self._all:
            raise InternalError("A reservation that was released cannot be resized.")
        self.check_available(grown_amounts(reservation.amount, target), reading, ignoring={reservation})

    def reserve(
        self, purpose: Purpose, amount: Resources, reading: HostReading, *, owner: OwnerId | None = None, limits: Limits | None = None
    ) -> Reservation:
        """Make a new reservation.

        Args:
            purpose: Purpose of the reservation.
            amount: The amount.
            reading: Reading of the host, from :meth:`make_room` or :meth:`read_host`.
            owner: Owner of the sandbox; None for a reservation of the node itself.
            limits: Limits that count against the owner's quota and as one of the service's sandboxes. None: nothing counts.

        Raises:
            InvalidRequestError: The amount can never fit on this node.
            UnavailableError: The amount does not fit now (``busy``).
        """
        self.check_available(amount, reading)
        return self.record(purpose, amount, owner=owner, limits=limits)

    def record(self, purpose: Purpose, amount: Resources, *, owner: OwnerId | None = None, limits: Limits | None = None) -> Reservation:
        """Make the reservation of a sandbox or volume that already holds its resources. Nothing is checked.

        Used after a restart of the service, when a sandbox hibernates, and when a start strategy fails and the next strategy begins.
        The arguments are those of :meth:`reserve`.
        """
        reservation = Reservation(self, purpose, amount, owner, limits)
        self._all[reservation] = None
        return reservation

    async def reserve_headroom(self, needed: HeadroomRange) -> Reservation:
        """Reserve memory for a snapshot or restore: as much of the range as fits. Warm sandboxes are evicted only for the least amount.

        Raises:
            UnavailableError: The least amount does not fit now (``busy``).
        """
        least, reading = _memory(needed.least_bytes), await self.read_host()
        if not self.fits(least, reading):
            reading = await self.make_room(least)
        left_bytes = allocatable(reading, self._overcommit).memory_bytes - combine(sum, *self._amounts()).memory_bytes
        amount = _memory(max(needed.least_bytes, min(needed.most_bytes, left_bytes)))
        return self.reserve(Purpose.HEADROOM, amount if self.fits(amount, reading) else least, reading)

    async def reserve_for_hibernation(self, needed: HeadroomRange) -> Reservation:
        """Reserve memory for a hibernation, which is not refused because the node is full: a hibernation frees memory.

        If the least amount does not fit, the hibernation uses the suspend reserve, which is kept for this. One hibernation at a time uses the
        reserve; the next one waits until the reservation of the first is released.

        Raises:
            InvalidRequestError: The least amount can never fit on this node and exceeds the suspend reserve.
            UnavailableError: The least amount does not fit now and exceeds the suspend reserve (``busy``).
        """
        try:
            return await self.reserve_headroom(needed)
        except (InvalidRequestError, UnavailableError):
            if needed.least_bytes > self._overcommit.suspend_reserve_bytes:
                raise
        while self._suspending is not None:
            await self._changed.wait()
        amount = _memory(min(needed.most_bytes, self._overcommit.suspend_reserve_bytes))
        self._suspending = self.record(Purpose.HEADROOM, amount)
        self._suspending.is_set_aside = True
        return self._suspending

    def forget(self, reservation: Reservation) -> None:
        """Remove a reservation; see :meth:`Reservation.release`."""
        if reservation in self._all:
            del self._all[reservation]
            if reservation is self._suspending:
                self._suspending = None
            self.notify()

    def notify(self) -> None:
        """Let requests that wait for room check again, because a reservation was released or has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def live_limits(self, owner: OwnerId, *, besides: Reservation | None = None) -> list[Limits]:
        """Return the limits that count against an owner's quota: those of sandboxes that are being created, live or being removed.

        Hibernated sandboxes and warm sandboxes do not count. While limits are changed, the larger of the old and the new value counts.
        """
        return [each.limits for each in self._all if each.limits is not None and each.owner == owner and each is not besides]

    def count_live(self) -> int:
        """Return the number of sandboxes of all owners that :meth:`live_limits` counts."""
        return sum(1 for each in self._all if each.limits is not None)

    async def capacity(self) -> NodeCapacity:
        """Return the capacity of this node."""
        reading = await self.read_host()  # first: it changes what counts as unread
        sandboxes = sum(1 for each in self._all if each.purpose in {Purpose.SANDBOX, Purpose.POOL})
        return node_capacity(self._amounts(), sandboxes, reading, self._overcommit)

    async def _refresh(self) -> HostReading:
        settled = self.unread_disk_bytes
        try:
            reading = await asyncio.to_thread(self._read_host)
        except OSError as error:
            raise HostError(
                f"The host's resources cannot be read: {error.strerror or error} ({error.filename}).",
                hint="Run 'sandlot doctor' to check the host.",
            ) from error
        else:
            self._latest = self._clock.monotonic_s(), reading
            self.unread_disk_bytes -= settled
            return reading
        finally:
            self._reading = None


def _memory(memory_bytes: int) -> Resources:
    return Resources(memory_bytes=memory_bytes, disk_bytes=0, pids=0)


def largest_limits(one: Limits, other: Limits) -> Limits:
    """Return the larger value of each limit."""
    return Limits(
        cpus=max(one.cpus, other.cpus),
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        pids=max(one.pids, other.pids),
        disk_bytes=max(one.disk_bytes, other.disk_bytes),
    )
