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


async def test_a_promise_counts_until_it_is_given_up(ledger: Ledger) -> None:
    reading = await ledger.look()
    for number in range(10):
        ledger.promise(f"box-{number}", TEN, reading)
    with pytest.raises(UnavailableError):
        ledger.promise("one more", TEN, reading)
    assert await promised(ledger) == HAS
    ledger.give_up("box-3")
    ledger.give_up("box-3")
    ledger.promise("one more", TEN, reading)
    assert await promised(ledger) == HAS


async def test_nobody_is_promised_twice(ledger: Ledger) -> None:
    reading = await ledger.look()
    ledger.promise("a", TEN, reading)
    with pytest.raises(InternalError):
        ledger.promise("a", TEN, reading)
    assert await promised(ledger) == TEN


async def test_what_was_refused_is_not_promised(ledger: Ledger) -> None:
    with pytest.raises(InvalidRequestError):
        ledger.promise("a", replace(TEN, pids=101), await ledger.look())
    assert await promised(ledger) == NOTHING


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


async def test_a_change_counts_as_the_larger_of_both_until_it_is_done(ledger: Ledger) -> None:
    ledger.promise("a", TEN, await ledger.look())
    with ledger.changing("a", Resources(20, 5, 10), await ledger.look()):
        assert await promised(ledger) == Resources(20, 10, 10)
    assert await promised(ledger) == Resources(20, 5, 10)


async def test_a_change_that_fails_leaves_the_old_promise(ledger: Ledger) -> None:
    ledger.promise("a", TEN, await ledger.look())
    with pytest.raises(OSError, match="it did not work"), ledger.changing("a", Resources(20, 20, 20), await ledger.look()):
        raise OSError("it did not work")
    assert await promised(ledger) == TEN


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


async def test_a_raise_is_refused_where_it_does_not_fit_and_a_cut_never(ledger: Ledger, host: Host, clock: ManualClock) -> None:
    reading = await ledger.look()
    ledger.promise("a", TEN, reading)
    ledger.promise("b", Resources(85, 85, 85), reading)
    with pytest.raises(UnavailableError), ledger.changing("a", replace(TEN, memory_bytes=16), await ledger.look()):
        raise AssertionError("not refused")
    with pytest.raises(InvalidRequestError), ledger.changing("a", replace(TEN, memory_bytes=101), await ledger.look()):
        raise AssertionError("not refused")
    assert await promised(ledger) == Resources(95, 95, 95)
    host.reading = Reading(has=NOTHING, free=NOTHING, held_disk_bytes=0)
    clock.advance(FRESH_S)
    with ledger.changing("a", Resources(10, 1, 1), await ledger.look()):
        pass
    assert await promised(ledger) == Resources(95, 86, 86)


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


async def test_room_is_made_from_what_only_waits(ledger: Ledger) -> None:
    reading = await ledger.look()
    waiting = [f"pool-{number}" for number in range(9)]
    for holder in waiting:
        ledger.promise(holder, TEN, reading)

    async def evict() -> bool:
        if not waiting:
            return False
        ledger.give_up(waiting.pop())
        return True

    ledger.evict = evict
    ledger.promise("box-1", TEN, await ledger.make_room(TEN))
    assert len(waiting) == 9
    ledger.promise("box-2", Resources(30, 30, 30), await ledger.make_room(Resources(30, 30, 30)))
    assert len(waiting) == 6
    reading = await ledger.make_room(Resources(70, 70, 70))  # what the two sandboxes have is not given up
    assert waiting == []
    with pytest.raises(UnavailableError):
        ledger.promise("box-3", Resources(70, 70, 70), reading)
    with pytest.raises(InvalidRequestError):
        await ledger.make_room(Resources(101, 1, 1))


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


async def test_a_promise_is_handed_over_whole_or_in_part_and_never_grows(ledger: Ledger) -> None:
    ledger.promise("pool-1", TEN, await ledger.look())
    with pytest.raises(InternalError):
        ledger.hand_over("pool-1", "box-1", Resources(11, 10, 10))
    ledger.hand_over("pool-1", "box-1", Resources(10, 10, 5))
    assert await promised(ledger) == Resources(10, 10, 5)
    with pytest.raises(InternalError):
        ledger.hand_over("pool-1", "box-2", TEN)
    with pytest.raises(InternalError):
        ledger.hand_over("box-1", "box-1", TEN)
