"""Promises over time: made at once or not at all, kept until given up, changed around the work that changes them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.core.node.reservations import READING_MAX_AGE_S, OvercommitConfig, Reservations
from sandlot.model.errors import HostError, InternalError, InvalidRequestError, UnavailableError
from sandlot.model.ports import HostReading, Resources
from tests.support.clock import ManualClock

SHARES = OvercommitConfig(memory_reserve_bytes=0, disk_reserve_bytes=0, pids_reserve=0)
NOTHING = Resources(0, 0, 0)
HAS = Resources(100, 100, 100)
TEN = Resources(10, 10, 10)


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
        reservations.reserve("a", TEN, await reservations.read_host())
    with pytest.raises(InvalidRequestError):
        reservations.reserve("a", replace(TEN, memory_bytes=61), await reservations.read_host())


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
    reservations.reserve("a", TEN, reading)

    def work() -> None:
        with reservations.resize("a", Resources(20, 20, 20), reading) as resize:
            resize.actual = Resources(20, 10, 10)
            raise OSError("half of it")

    with pytest.raises(OSError, match="half of it"):
        work()
    assert await promised(reservations) == Resources(20, 10, 10)


@pytest.mark.parametrize("name", ["memory_bytes", "disk_bytes", "pids"])
async def test_resize_checks_only_resources_that_grow(reservations: Reservations, host: Host, clock: ManualClock, name: str) -> None:
    """Another program may fill the disk, but a sandbox whose disk does not grow may still get more memory."""
    reservations = Reservations(host.read, replace(SHARES, memory_reserve_bytes=20, disk_reserve_bytes=20, pids_reserve=20), clock)
    reservations.reserve("a", TEN, await reservations.read_host())
    for what in {"memory_bytes", "disk_bytes", "pids"} - {name}:
        for reading in (  # less than was promised, and less free than the reserve
            HostReading(total=replace(HAS, **{what: 5}), free=replace(HAS, **{what: 5}), sandbox_disk_bytes=0),
            HostReading(total=HAS, free=replace(HAS, **{what: 5}), sandbox_disk_bytes=90 if what == "disk_bytes" else 0),
        ):
            with reservations.resize("a", replace(TEN, **{name: 11}), reading):
                pass
            with pytest.raises((UnavailableError, InvalidRequestError)), reservations.resize("a", replace(TEN, **{what: 20}), reading):
                raise AssertionError("not refused")
            with reservations.resize("a", TEN, reading):
                pass


async def test_release_during_a_resize_leaves_no_reservation(reservations: Reservations) -> None:
    reservations.reserve("a", TEN, await reservations.read_host())
    with reservations.resize("a", Resources(20, 20, 20), await reservations.read_host()):
        reservations.release("a")
    assert await promised(reservations) == NOTHING
    with pytest.raises(InternalError), reservations.resize("a", TEN, await reservations.read_host()):
        raise AssertionError("nobody was promised that")


async def test_host_is_read_again_after_each_eviction(host: Host, clock: ManualClock) -> None:
    reservations = Reservations(host.read, replace(SHARES, memory_reserve_bytes=20), clock)
    waiting = ["pool-1", "pool-2"]
    for holder in waiting:
        reservations.reserve(holder, TEN, await reservations.read_host())
    clock.advance(READING_MAX_AGE_S)
    host.reading = replace(host.reading, free=replace(HAS, memory_bytes=5))  # less than half of the reserve

    class Pools:
        async def evict_one(self) -> bool:
            reservations.release(waiting.pop())
            host.reading = replace(host.reading, free=replace(HAS, memory_bytes=15))
            return bool(waiting)

    reservations.add_evictor(Pools())
    reservations.reserve("sandbox", TEN, await reservations.make_room(TEN))

    assert waiting == ["pool-1"]


async def test_draw_moves_a_part_and_removes_a_reservation_that_is_used_up(reservations: Reservations) -> None:
    reservations.reserve("batch", replace(TEN, pids=20), await reservations.read_host())

    reservations.draw("batch", "a", TEN)
    with pytest.raises(InternalError):
        reservations.draw("batch", "b", TEN)
    assert await promised(reservations) == replace(TEN, pids=20)
    reservations.draw("batch", "b", replace(NOTHING, pids=10))

    assert (await reservations.capacity()).sandboxes == 2
