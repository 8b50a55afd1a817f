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
- While less than half of a resource's reserve is free on the host, every request for more of that resource is refused,
  however little is reserved: other software runs on the host too.
- An amount that can never fit is refused with ``invalid_request``. Whether an amount can fit depends on the size of the
  host, not on what other software stores on its disk.
- An amount that could fit but does not fit now is refused with ``busy`` and ``retry_after_s``.
- A resize checks only the resources that grow.
- Warm sandboxes hold reservations like all other sandboxes. They are evicted before a request is refused: see
  :meth:`Reservations.make_room`.

Two nodes on one host do not see each other's reservations. Give each node a share of the host through the ratios.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from sandlot.core.ports import Clock
from sandlot.model.errors import ErrorCode, HostError, InternalError, InvalidRequestError, UnavailableError
from sandlot.model.ids import VOLUME_ID
from sandlot.model.ports import HostReading, Resources
from sandlot.model.specs import GIB, MIB

READING_MAX_AGE_S: Final = 1.0
"""Age in seconds after which the host is read again. All requests of one second share a reading. The reservations themselves are exact."""
BUSY_RETRY_AFTER_S: Final = 2
"""``retry_after_s`` when other sandboxes hold the resources: about the time that removing a sandbox takes."""
PRESSURE_RETRY_AFTER_S: Final = 5
"""``retry_after_s`` when other software on the host holds the resources."""

RESERVE_DIVISOR: Final = 20
"""The default reserve is a twentieth of each resource, clamped to ``MIN_RESERVE`` and ``MAX_RESERVE``."""
MIN_RESERVE: Final = Resources(memory_bytes=512 * MIB, disk_bytes=GIB, pids=512)
"""Smallest default reserve. An idle Debian system and the service together use about 200 MiB and 150 tasks."""
MAX_RESERVE: Final = Resources(memory_bytes=4 * GIB, disk_bytes=4 * GIB, pids=4096)
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
    """

    memory_ratio: float = 1.0
    disk_ratio: float = 1.0
    pids_ratio: float = 1.0
    memory_reserve_bytes: int | None = None
    disk_reserve_bytes: int | None = None
    pids_reserve: int | None = None


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Capacity of a node, and the part of it that is reserved.

    Args:
        allocatable: Maximum total of all reservations at present.
        reserved: Total of all reservations.
        available: ``allocatable - reserved``, never negative.
        sandboxes: Number of reservations, those of volumes excluded.
    """

    allocatable: Resources
    reserved: Resources
    available: Resources
    sandboxes: int


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
        memory_bytes=_scaled(reading.total.memory_bytes - kept.memory_bytes, overcommit.memory_ratio),
        # Sandbox disks are sparse files: space that sandboxes have written is not free on the host, but reservations cover it.
        disk_bytes=_scaled(reading.free.disk_bytes + reading.sandbox_disk_bytes - kept.disk_bytes, overcommit.disk_ratio),
        pids=_scaled(reading.total.pids - kept.pids, overcommit.pids_ratio),
    )


def max_allocatable(reading: HostReading, overcommit: OvercommitConfig) -> Resources:
    """Return the maximum total of all reservations on a host whose disk no other software uses; see :func:`allocatable`."""
    now = allocatable(reading, overcommit)
    disk_bytes = _scaled(reading.total.disk_bytes - host_reserve(reading, overcommit).disk_bytes, overcommit.disk_ratio)
    return Resources(memory_bytes=now.memory_bytes, disk_bytes=max(now.disk_bytes, disk_bytes), pids=now.pids)


def node_capacity(reserved: Mapping[str, Resources], reading: HostReading, overcommit: OvercommitConfig) -> NodeCapacity:
    """Return the capacity of a node.

    Args:
        reserved: Reservation key -> amount.
        reading: Reading of the host.
        overcommit: Share of the host that may be reserved.
    """
    limit, total = allocatable(reading, overcommit), combine(sum, *reserved.values())
    available = Resources(
        memory_bytes=max(0, limit.memory_bytes - total.memory_bytes),
        disk_bytes=max(0, limit.disk_bytes - total.disk_bytes),
        pids=max(0, limit.pids - total.pids),
    )
    sandboxes = sum(1 for key in reserved if not VOLUME_ID.fullmatch(key))
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


class Evictor(Protocol):
    """Removes warm sandboxes when their resources are needed. Implemented by the refiller of the pools."""

    async def evict_one(self) -> bool:
        """Remove one warm sandbox and return True once its resources are free. Return False if there is no warm sandbox."""
        ...


class Resize:
    """A resize in progress.

    Attributes:
        actual: Amount that the sandbox holds if a change succeeded only in part; the body of the ``with`` block sets it. None in all other cases.
    """

    __slots__ = ("actual",)

    def __init__(self) -> None:
        self.actual: Resources | None = None


class Reservations:
    """All reservations of this node, by key.

    The key is the id of a sandbox or volume, or the reservation key of a pooled sandbox.

    Args:
        read_host: Function that reads the host's resources. The function blocks for some milliseconds, so it is called in a thread.
        overcommit: Share of the host that may be reserved.
        clock: Clock of the service.
    """

    def __init__(self, read_host: Callable[[], HostReading], overcommit: OvercommitConfig, clock: Clock) -> None:
        self._read_host = read_host
        self._overcommit = overcommit
        self._clock = clock
        self._reserved: dict[str, Resources] = {}
        self._latest: tuple[float, HostReading] | None = None
        self._reading: asyncio.Task[HostReading] | None = None
        self._evictors: list[Evictor] = []

    def add_evictor(self, evictor: Evictor) -> None:
        """Register an object that removes warm sandboxes when their resources are needed. Without an evictor, nothing is evicted.

        The composition root registers the refiller of the pools, which is built after the reservations.
        """
        self._evictors.append(evictor)

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

    async def make_room(self, needed: Resources, *, ignoring: str | None = None) -> HostReading:
        """Evict warm sandboxes until an amount fits or no warm sandbox is left. Return the reading of the host for the reservation.

        Call :meth:`reserve` or :meth:`resize` before the next ``await``: until then no other request can take the room.
        If the amount still does not fit, :meth:`reserve` or :meth:`resize` raises an error.

        Args:
            needed: The amount that is about to be reserved.
            ignoring: Key of a reservation that does not count, because the amount replaces it.

        Raises:
            InvalidRequestError: The amount can never fit on this node.
            HostError: The host cannot be read.
        """
        ignored = () if ignoring is None else (ignoring,)
        while True:
            reading = await self.read_host()
            if self.fits(needed, reading, ignoring=ignored) or not await self.evict_one():
                return reading
            self._latest = None  # read the host again, because the eviction has freed resources

    def fits(self, needed: Resources, reading: HostReading, *, ignoring: Collection[str] = ()) -> bool:
        """Return whether an amount could be reserved now.

        Args:
            needed: The amount.
            reading: Reading of the host.
            ignoring: Keys of reservations that do not count.

        Raises:
            InvalidRequestError: The amount can never fit on this node.
        """
        others = [amount for key, amount in self._reserved.items() if key not in ignoring]
        try:
            check_available(needed, others, reading, self._overcommit)
            check_pressure(needed, reading, self._overcommit)
        except UnavailableError:
            return False
        return True

    def check_feasible(self, needed: Resources, reading: HostReading) -> None:
        """Refuse an amount that can never fit; see :func:`check_feasible`."""
        check_feasible(needed, reading, self._overcommit)

    def check_pressure(self, needed: Resources, reading: HostReading) -> None:
        """Refuse an amount that includes a resource of which the host is short; see :func:`check_pressure`."""
        check_pressure(needed, reading, self._overcommit)

    async def check_disk_pressure(self) -> None:
        """Refuse to write more to the host's disk while the host is short of disk space.

        Raises:
            UnavailableError: Less than half of the reserve is free on the disk (``busy``).
            HostError: The host cannot be read.
        """
        self.check_pressure(Resources(memory_bytes=0, disk_bytes=1, pids=0), await self.read_host())

    def reserve(self, key: str, needed: Resources, reading: HostReading) -> None:
        """Make a new reservation.

        Args:
            key: Key of the reservation; must not exist yet.
            needed: The amount.
            reading: Reading of the host, from :meth:`make_room` or :meth:`read_host`.

        Raises:
            InvalidRequestError: The amount can never fit on this node.
            UnavailableError: The amount does not fit now (``busy``).
        """
        if key in self._reserved:
            raise InternalError(f"{key} already has a reservation.")
        # An amount that can never fit must not get the retryable error of check_pressure, so check_available comes first.
        check_available(needed, self._reserved.values(), reading, self._overcommit)
        check_pressure(needed, reading, self._overcommit)
        self._reserved[key] = needed

    def record(self, key: str, amount: Resources) -> None:
        """Record the reservation of a sandbox or volume that already holds its resources. Nothing is checked.

        Used after a restart of the service, when a sandbox hibernates, and when a claimed warm sandbox does not work.

        Args:
            key: Key of the reservation. An existing reservation of the key is replaced.
            amount: Amount that the sandbox or volume holds.
        """
        self._reserved[key] = amount

    def transfer(self, key: str, to: str, amount: Resources) -> None:
        """Rename a reservation and shrink it to an amount.

        Args:
            key: Key of the existing reservation.
            to: New key; must not exist yet.
            amount: New amount; no resource may exceed the existing reservation.

        Raises:
            InternalError: A condition for ``key``, ``to`` or ``amount`` does not hold. Nothing is changed.
        """
        if to in self._reserved or key not in self._reserved:
            raise InternalError(f"The reservation of {key} cannot be transferred to {to}: {key} has no reservation, or {to} already has one.")
        if combine(max, self._reserved[key], amount) != self._reserved[key]:
            raise InternalError(f"{to} needs more than {key} has reserved.")
        del self._reserved[key]
        self._reserved[to] = amount

    def draw(self, key: str, to: str, amount: Resources) -> None:
        """Move a part of a reservation to a new key. A reservation that is used up is removed.

        Args:
            key: Key of the existing reservation.
            to: New key; must not exist yet.
            amount: Amount to move; no resource may exceed the existing reservation.

        Raises:
            InternalError: A condition for ``key``, ``to`` or ``amount`` does not hold. Nothing is changed.
        """
        if to in self._reserved or key not in self._reserved:
            raise InternalError(f"No part of the reservation of {key} can be moved to {to}: {key} has no reservation, or {to} already has one.")
        before = self._reserved[key]
        if combine(max, before, amount) != before:
            raise InternalError(f"{to} needs more than {key} has reserved.")
        rest = Resources(
            memory_bytes=before.memory_bytes - amount.memory_bytes,
            disk_bytes=before.disk_bytes - amount.disk_bytes,
            pids=before.pids - amount.pids,
        )
        if any((rest.memory_bytes, rest.disk_bytes, rest.pids)):
            self._reserved[key] = rest
        else:
            del self._reserved[key]
        self._reserved[to] = amount

    def release(self, key: str) -> None:
        """Remove a reservation whose resources have all been freed. Idempotent."""
        self._reserved.pop(key, None)

    @contextmanager
    def resize(self, key: str, target: Resources, reading: HostReading) -> Iterator[Resize]:
        """Resize a reservation while the body of the ``with`` block applies the new limits.

        If the body of the ``with`` block succeeds, the target is reserved; if the body raises, the old amount is reserved.
        A body that leaves the sandbox with any other amount sets :attr:`Resize.actual`. A resource that does not grow is never refused.
        Only one resize of a key may run at a time.

        Args:
            key: Key of an existing reservation.
            target: The new amount.
            reading: Reading of the host, from :meth:`make_room`.

        Raises:
            InvalidRequestError: The target can never fit on this node.
            UnavailableError: The target does not fit now (``busy``).
            InternalError: The key has no reservation.
        """
        before = self._reserved.get(key)
        if before is None:
            raise InternalError(f"{key} has no reservation to resize.")
        during = combine(max, before, target)
        if during != before:
            grown = grown_amounts(before, target)
            others = [amount for other, amount in self._reserved.items() if other != key]
            check_available(grown, others, reading, self._overcommit)
            check_pressure(grown, reading, self._overcommit)
        self._reserved[key] = during
        resize, after = Resize(), before
        try:
            yield resize
            after = target
        finally:
            if key in self._reserved:  # the sandbox may have ended during the body
                self._reserved[key] = after if resize.actual is None else resize.actual

    async def capacity(self) -> NodeCapacity:
        """Return the capacity of this node.

        Raises:
            HostError: The host cannot be read.
        """
        return node_capacity(self._reserved, await self.read_host(), self._overcommit)

    async def evict_one(self) -> bool:
        """Evict one warm sandbox. Return False if there is no warm sandbox."""
        for evictor in self._evictors:
            if await evictor.evict_one():
                return True
        return False

    async def _refresh(self) -> HostReading:
        try:
            reading = await asyncio.to_thread(self._read_host)
        except OSError as error:
            raise HostError(
                f"The host's resources cannot be read: {error.strerror or error} ({error.filename}).",
                hint="Run 'sandlot doctor' to check the host.",
            ) from error
        else:
            self._latest = self._clock.monotonic_s(), reading
            return reading
        finally:
            self._reading = None
