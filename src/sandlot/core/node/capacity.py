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
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sandlot.model.errors import ErrorCode, InvalidRequestError, UnavailableError
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
