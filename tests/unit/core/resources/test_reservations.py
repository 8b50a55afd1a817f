"""Promises over time: made at once or not at all, kept until given up, changed around the work that changes them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.core.resources.reservations import READING_MAX_AGE_S, ROOM_TIMEOUT_S, OvercommitConfig, Purpose, Reservation, Reservations
from sandlot.model.access import OwnerId
from sandlot.model.errors import HostError, InternalError, InvalidRequestError, UnavailableError
from sandlot.model.ports import HostReading, Resources
from sandlot.model.specs import Limits
from tests.support.clock import ManualClock
from tests.support.node import settled as settle

SHARES = OvercommitConfig(memory_reserve_bytes=0, disk_reserve_bytes=0, pids_reserve=0)
NOTHING = Resources(0, 0, 0)
HAS = Resources(100, 100, 100)
TEN = Resources(10, 10, 10)
LIMITS = Limits()


class Host:
    """Host whose resources a test sets."""

    def __init__(self) -> None:
        self.reading = HostReading(total=HAS, free=HAS, sandbox_disk_bytes=0)
        self.looks = 0

    def read(self) -> HostReading:
        self.looks += 1
        return self.reading


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def reservations(host: Host, clock: ManualClock) -> Reservations:
    return Reservations(host.read, SHARES, clock)


async def promised(reservations: Reservations) -> Resources:
    return (await reservations.capacity()).reserved


async def test_reservation_that_can_never_fit_is_invalid_while_the_host_is_short(host: Host, clock: ManualClock) -> None:
    reservations = Reservations(host.read, replace(SHARES, memory_reserve_bytes=40), clock)
    host.reading = replace(host.reading, free=replace(HAS, memory_bytes=10))
    with pytest.raises(UnavailableError):
        reservations.reserve(Purpose.SANDBOX, TEN, await reservations.read_host())
    with pytest.raises(InvalidRequestError):
        reservations.reserve(Purpose.SANDBOX, replace(TEN, memory_bytes=61), await reservations.read_host())


async def test_host_is_read_at_most_once_a_second(reservations: Reservations, host: Host, clock: ManualClock) -> None:
    await asyncio.gather(*(reservations.read_host() for _ in range(50)))
    assert host.looks == 1
    clock.advance(READING_MAX_AGE_S)
    host.reading = replace(host.reading, sandbox_disk_bytes=7)
    assert (await reservations.read_host()).sandbox_disk_bytes == 7
    assert host.looks == 2


async def test_failed_reading_is_repeated(clock: ManualClock) -> None:
    failures = [OSError("no")]

    def read() -> HostReading:
        if failures:
            raise failures.pop()
        return HostReading(total=HAS, free=HAS, sandbox_disk_bytes=0)

    reservations = Reservations(read, SHARES, clock)
    with pytest.raises(HostError, match="no"):
        await reservations.read_host()
    assert (await reservations.read_host()).total == HAS


async def test_failed_resize_reserves_the_actual_amount(reservations: Reservations) -> None:
    reading = await reservations.read_host()
    reservation = reservations.reserve(Purpose.SANDBOX, TEN, reading)

    def work() -> None:
        with reservation.resize(Resources(20, 20, 20), LIMITS, reading) as resize:
            resize.actual = Resources(20, 10, 10), LIMITS
            raise OSError("half of it")

    with pytest.raises(OSError, match="half of it"):
        work()
    assert await promised(reservations) == Resources(20, 10, 10)


@pytest.mark.parametrize("name", ["memory_bytes", "disk_bytes", "pids"])
async def test_resize_checks_only_resources_that_grow(reservations: Reservations, host: Host, clock: ManualClock, name: str) -> None:
    """Another program may fill the disk, but a sandbox whose disk does not grow may still get more memory."""
    reservations = Reservations(host.read, replace(SHARES, memory_reserve_bytes=20, disk_reserve_bytes=20, pids_reserve=20), clock)
    reservation = reservations.reserve(Purpose.SANDBOX, TEN, await reservations.read_host())
    for what in {"memory_bytes", "disk_bytes", "pids"} - {name}:
        for reading in (  # less than was promised, and less free than the reserve
            HostReading(total=replace(HAS, **{what: 5}), free=replace(HAS, **{what: 5}), sandbox_disk_bytes=0),
            HostReading(total=HAS, free=replace(HAS, **{what: 5}), sandbox_disk_bytes=90 if what == "disk_bytes" else 0),
        ):
            with reservation.resize(replace(TEN, **{name: 11}), LIMITS, reading):
                pass
            with pytest.raises((UnavailableError, InvalidRequestError)), reservation.resize(replace(TEN, **{what: 20}), LIMITS, reading):
                raise AssertionError("not refused")
            with reservation.resize(TEN, LIMITS, reading):
                pass


async def test_larger_limits_count_during_a_resize(reservations: Reservations) -> None:
    reading, owner = await reservations.read_host(), OwnerId("anne")
    small, large = Limits(cpus=1, memory_bytes=1 << 30), Limits(cpus=2, memory_bytes=1 << 29)
    reservation = reservations.reserve(Purpose.SANDBOX, TEN, reading, owner=owner, limits=small)
    with reservation.resize(TEN, large, reading):
        (during,) = reservations.live_limits(owner)
    assert (during.cpus, during.memory_bytes) == (2, 1 << 30)
    assert reservations.live_limits(owner) == [large]
    assert reservations.live_limits(owner, besides=reservation) == reservations.live_limits(OwnerId("bob")) == []


async def test_release_during_a_resize_leaves_no_reservation(reservations: Reservations) -> None:
    reading = await reservations.read_host()
    reservation = reservations.reserve(Purpose.SANDBOX, TEN, reading)
    with reservation.resize(Resources(20, 20, 20), LIMITS, reading):
        reservation.release()
    assert await promised(reservations) == NOTHING
    with pytest.raises(InternalError), reservation.resize(TEN, LIMITS, reading):
        raise AssertionError("nobody was promised that")


async def test_second_release_frees_no_other_reservation(reservations: Reservations) -> None:
    reading = await reservations.read_host()
    first, _second = (reservations.reserve(Purpose.SANDBOX, TEN, reading) for _ in range(2))
    first.release()
    first.release()
    assert await promised(reservations) == TEN


async def test_claim_shrinks_a_reservation_and_counts_for_its_owner(reservations: Reservations) -> None:
    owner = OwnerId("anne")
    reservation = reservations.reserve(Purpose.POOL, TEN, await reservations.read_host())
    assert reservations.count_live() == 0
    with pytest.raises(InternalError):
        reservation.claim(owner, LIMITS, replace(TEN, pids=11))
    reservation.claim(owner, LIMITS, replace(TEN, pids=5))
    assert await promised(reservations) == replace(TEN, pids=5)
    assert (reservations.live_limits(owner), reservations.count_live()) == ([LIMITS], 1)


class Pools:
    """Warm sandboxes that are evicted in order. Their removal ends when the test releases the reservation."""

    def __init__(self, reservations: Reservations, *warm: Reservation) -> None:
        self.waiting = list(warm)
        reservations.evict_with(self.evict_next)

    def evict_next(self) -> Reservation | None:
        if not self.waiting:
            return None
        evicted = self.waiting.pop(0)
        evicted.set_leaving(True)
        return evicted


async def fill(reservations: Reservations, *amounts: int) -> list[Reservation]:
    reading = await reservations.read_host()
    return [reservations.reserve(Purpose.POOL, replace(NOTHING, memory_bytes=amount), reading) for amount in amounts]


def memory(amount: int) -> Resources:
    return replace(NOTHING, memory_bytes=amount)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_only_as_many_sandboxes_are_evicted_as_are_needed(reservations: Reservations) -> None:
    warm = await fill(reservations, 40, 40, 20)
    pools = Pools(reservations, *warm)
    making = asyncio.create_task(reservations.make_room(memory(50)))
    await settle(lambda: len(pools.waiting) == 1)
    await turns()
    assert not making.done()
    warm[0].release()
    await turns()
    assert not making.done()
    warm[1].release()
    reservations.reserve(Purpose.SANDBOX, memory(50), await making)
    assert pools.waiting == warm[2:]


async def test_release_of_another_reservation_ends_the_wait_for_room(reservations: Reservations) -> None:
    warm, other = await fill(reservations, 50, 50)
    Pools(reservations, warm)
    making = asyncio.create_task(reservations.make_room(memory(50)))
    await settle(lambda: warm.is_leaving)
    other.release()
    reservations.reserve(Purpose.SANDBOX, memory(50), await making)


async def test_room_of_a_failed_removal_is_not_expected(reservations: Reservations) -> None:
    warm = await fill(reservations, 50, 50)
    pools = Pools(reservations, *warm)
    making = asyncio.create_task(reservations.make_room(memory(50)))
    await settle(lambda: pools.waiting == warm[1:])
    warm[0].set_leaving(False)
    await settle(lambda: not pools.waiting)
    warm[1].release()
    reservations.reserve(Purpose.SANDBOX, memory(50), await making)


async def test_wait_for_room_ends_after_a_while(reservations: Reservations, clock: ManualClock) -> None:
    (warm,) = await fill(reservations, 100)
    Pools(reservations, warm)
    making = asyncio.create_task(reservations.make_room(memory(50)))
    await settle(lambda: warm.is_leaving)
    await clock.pass_s(ROOM_TIMEOUT_S - 1, 0.5)
    assert not making.done()
    await clock.pass_s(2, 0.5)
    with pytest.raises(UnavailableError):
        reservations.reserve(Purpose.SANDBOX, memory(50), await making)


async def test_host_is_read_again_after_each_eviction(host: Host, clock: ManualClock) -> None:
    reservations = Reservations(host.read, replace(SHARES, memory_reserve_bytes=20), clock)
    warm = await fill(reservations, 10, 10)
    clock.advance(READING_MAX_AGE_S)
    host.reading = replace(host.reading, free=replace(HAS, memory_bytes=5))  # less than half of the reserve
    pools = Pools(reservations, *warm)
    making = asyncio.create_task(reservations.make_room(TEN))
    await settle(lambda: pools.waiting == warm[1:])
    await turns()
    assert pools.waiting == warm[1:], "while the host is short, one sandbox is evicted at a time"
    host.reading = replace(host.reading, free=replace(HAS, memory_bytes=15))
    warm[0].release()
    reservations.reserve(Purpose.SANDBOX, TEN, await making)
    assert pools.waiting == warm[1:]


def disk(amount: int) -> Resources:
    return replace(NOTHING, disk_bytes=amount)


class Cache:
    """A cache on the disk of the host, from which bytes can be taken."""

    def __init__(self, host: Host, reservations: Reservations, cached: int) -> None:
        self.host = host
        self.cached = cached
        self.host.reading = replace(host.reading, free=replace(HAS, disk_bytes=HAS.disk_bytes - cached))
        reservations.reclaim_with(self.reclaim)

    async def reclaim(self, wanted: int) -> int:
        if wanted > self.cached:
            return 0
        self.cached -= wanted
        self.host.reading = replace(self.host.reading, free=replace(HAS, disk_bytes=self.host.reading.free.disk_bytes + wanted))
        return wanted


async def test_cached_disk_space_is_freed_before_a_sandbox_is_evicted(reservations: Reservations, host: Host) -> None:
    cache = Cache(host, reservations, 60)
    warm = reservations.reserve(Purpose.POOL, disk(10), await reservations.read_host())
    pools = Pools(reservations, warm)
    reservations.reserve(Purpose.SANDBOX, disk(50), await reservations.make_room(disk(50)))
    assert (cache.cached, pools.waiting) == (40, [warm])
    making = asyncio.create_task(reservations.make_room(disk(45)))  # all of the cache is too little
    await settle(lambda: not pools.waiting)
    warm.release()
    reservations.reserve(Purpose.SANDBOX, disk(45), await making)
    assert cache.cached == 5


async def test_cached_disk_space_is_not_freed_for_memory(reservations: Reservations, host: Host) -> None:
    cache = Cache(host, reservations, 60)
    await fill(reservations, 100)
    with pytest.raises(UnavailableError):
        reservations.reserve(Purpose.SANDBOX, TEN, await reservations.make_room(TEN))
    assert cache.cached == 60


async def test_cache_leaves_what_is_reserved_and_not_written(host: Host, clock: ManualClock) -> None:
    reservations = Reservations(host.read, replace(SHARES, disk_reserve_bytes=7), clock)
    assert await reservations.disk_to_leave() == 7
    sandbox = reservations.reserve(Purpose.SANDBOX, disk(50), await reservations.read_host())
    assert await reservations.disk_to_leave() == 57
    clock.advance(READING_MAX_AGE_S)
    host.reading = replace(host.reading, free=replace(HAS, disk_bytes=80), sandbox_disk_bytes=20)
    assert await reservations.disk_to_leave() == 37
    sandbox.release()
    assert await reservations.disk_to_leave() == 7


async def test_written_disk_space_counts_until_the_host_shows_it(reservations: Reservations, host: Host, clock: ManualClock) -> None:
    writing = reservations.reserve(Purpose.FILE, disk(60), await reservations.read_host())
    writing.settle(70)  # at most what is reserved
    writing.release()
    with pytest.raises(UnavailableError):
        reservations.reserve(Purpose.FILE, disk(41), await reservations.read_host())
    clock.advance(READING_MAX_AGE_S)
    host.reading = replace(host.reading, free=replace(HAS, disk_bytes=40))
    with pytest.raises(UnavailableError):
        reservations.reserve(Purpose.FILE, disk(41), await reservations.read_host())
    reservations.reserve(Purpose.FILE, disk(40), await reservations.read_host())
