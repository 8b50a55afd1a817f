"""Promises over time: made at once or not at all, kept until given up, changed around the work that changes them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.core.node.capacity import Shares
from sandlot.core.node.ledger import FRESH_S, Ledger
from sandlot.model.errors import HostError, InternalError, InvalidRequestError, UnavailableError
from sandlot.model.ports import Reading, Resources
from tests.support.clock import ManualClock

SHARES = Shares(memory_reserve_bytes=0, disk_reserve_bytes=0, pids_reserve=0)
NOTHING = Resources(0, 0, 0)
HAS = Resources(100, 100, 100)
TEN = Resources(10, 10, 10)


class Host:
    """What a test says that it is."""

    def __init__(self) -> None:
        self.reading = Reading(has=HAS, free=HAS, held_disk_bytes=0)
        self.looks = 0

    def read(self) -> Reading:
        self.looks += 1
        return self.reading


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def ledger(host: Host, clock: ManualClock) -> Ledger:
    return Ledger(host.read, SHARES, clock)


async def promised(ledger: Ledger) -> Resources:
    return (await ledger.figures()).promised


async def test_reservation_that_can_never_fit_is_invalid_while_the_host_is_short(host: Host, clock: ManualClock) -> None:
    ledger = Ledger(host.read, replace(SHARES, memory_reserve_bytes=40), clock)
    host.reading = replace(host.reading, free=replace(HAS, memory_bytes=10))
    with pytest.raises(UnavailableError):
        ledger.promise("a", TEN, await ledger.look())
    with pytest.raises(InvalidRequestError):
        ledger.promise("a", replace(TEN, memory_bytes=61), await ledger.look())


async def test_however_many_ask_the_host_is_looked_at_once_a_second(ledger: Ledger, host: Host, clock: ManualClock) -> None:
    await asyncio.gather(*(ledger.look() for _ in range(50)))
    assert host.looks == 1
    clock.advance(FRESH_S)
    host.reading = replace(host.reading, held_disk_bytes=7)
    assert (await ledger.look()).held_disk_bytes == 7
    assert host.looks == 2


async def test_a_look_that_fails_is_tried_again(clock: ManualClock) -> None:
    failures = [OSError("no")]

    def read() -> Reading:
        if failures:
            raise failures.pop()
        return Reading(has=HAS, free=HAS, held_disk_bytes=0)

    ledger = Ledger(read, SHARES, clock)
    with pytest.raises(HostError, match="no"):
        await ledger.look()
    assert (await ledger.look()).has == HAS


async def test_what_a_body_says_has_come_of_it_is_what_counts(ledger: Ledger) -> None:
    reading = await ledger.look()
    ledger.promise("a", TEN, reading)

    def work() -> None:
        with ledger.changing("a", Resources(20, 20, 20), reading) as came:
            came(Resources(20, 10, 10))
            raise OSError("half of it")

    with pytest.raises(OSError, match="half of it"):
        work()
    assert await promised(ledger) == Resources(20, 10, 10)


@pytest.mark.parametrize("name", ["memory_bytes", "disk_bytes", "pids"])
async def test_a_raise_of_one_is_not_refused_for_what_stays(ledger: Ledger, host: Host, clock: ManualClock, name: str) -> None:
    """Somebody else fills the disk, say: a sandbox that has its part of it may still have more memory."""
    ledger = Ledger(host.read, replace(SHARES, memory_reserve_bytes=20, disk_reserve_bytes=20, pids_reserve=20), clock)
    ledger.promise("a", TEN, await ledger.look())
    for what in {"memory_bytes", "disk_bytes", "pids"} - {name}:
        for reading in (  # less than was promised, and less free than the reserve
            Reading(has=replace(HAS, **{what: 5}), free=replace(HAS, **{what: 5}), held_disk_bytes=0),
            Reading(has=HAS, free=replace(HAS, **{what: 5}), held_disk_bytes=90 if what == "disk_bytes" else 0),
        ):
            with ledger.changing("a", replace(TEN, **{name: 11}), reading):
                pass
            with pytest.raises((UnavailableError, InvalidRequestError)), ledger.changing("a", replace(TEN, **{what: 20}), reading):
                raise AssertionError("not refused")
            with ledger.changing("a", TEN, reading):
                pass


async def test_a_holder_that_ends_while_its_promise_is_changed_has_none_afterwards(ledger: Ledger) -> None:
    ledger.promise("a", TEN, await ledger.look())
    with ledger.changing("a", Resources(20, 20, 20), await ledger.look()):
        ledger.give_up("a")
    assert await promised(ledger) == NOTHING
    with pytest.raises(InternalError), ledger.changing("a", TEN, await ledger.look()):
        raise AssertionError("nobody was promised that")


async def test_host_is_read_again_after_each_eviction(host: Host, clock: ManualClock) -> None:
    ledger = Ledger(host.read, replace(SHARES, memory_reserve_bytes=20), clock)
    waiting = ["pool-1", "pool-2"]
    for holder in waiting:
        ledger.promise(holder, TEN, await ledger.look())
    clock.advance(FRESH_S)
    host.reading = replace(host.reading, free=replace(HAS, memory_bytes=5))  # less than half of the reserve

    async def evict() -> bool:
        ledger.give_up(waiting.pop())
        host.reading = replace(host.reading, free=replace(HAS, memory_bytes=15))
        return bool(waiting)

    ledger.evict = evict
    ledger.promise("box-1", TEN, await ledger.make_room(TEN))

    assert waiting == ["pool-1"]
