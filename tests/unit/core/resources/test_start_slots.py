"""Slots of starting sandboxes: limits, turns of owners, and cancellations."""

from __future__ import annotations

import asyncio

from sandlot.core.resources.start_slots import StartSlots
from sandlot.model.access import OwnerId

FIRST, SECOND, THIRD = OwnerId("first"), OwnerId("second"), OwnerId("third")


class Starts:
    """Starts that hold their slots until they are ended."""

    def __init__(self, slots: StartSlots) -> None:
        self._slots = slots
        self.begun: list[OwnerId] = []
        """Owners of the starts, in the order in which the starts got a slot."""

    async def request(self, owner: OwnerId, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._start(owner)) for _ in range(count)]
        await turn()
        return tasks

    async def end(self, owner: OwnerId) -> None:
        self._slots.release(owner)
        await turn()

    async def _start(self, owner: OwnerId) -> None:
        await self._slots.acquire(owner)
        self.begun.append(owner)


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_owner_with_many_waiting_starts_delays_another_owner_by_no_start() -> None:
    starts = Starts(StartSlots(4))
    waiting = await starts.request(FIRST, 200)
    assert starts.begun == [FIRST] * 4
    await starts.request(SECOND)
    assert starts.begun == [FIRST] * 4 + [SECOND]
    for task in waiting:
        task.cancel()


async def test_slots_go_to_owners_in_turn() -> None:
    starts = Starts(StartSlots(2))
    waiting = [*await starts.request(FIRST, 10), *await starts.request(SECOND, 10), *await starts.request(THIRD, 10)]
    assert starts.begun == [FIRST, FIRST, SECOND]
    await starts.end(FIRST)
    assert starts.begun[3:] == [THIRD]
    await starts.end(FIRST)
    assert starts.begun[4:] == [FIRST]
    await starts.end(SECOND)
    assert starts.begun[5:] == [SECOND]
    for task in waiting:
        task.cancel()


async def test_starts_beyond_the_limit_wait() -> None:
    slots = StartSlots(2)
    starts = Starts(slots)
    waiting = await starts.request(FIRST, 2)
    assert slots.locked()
    waiting += [*await starts.request(SECOND, 2), *await starts.request(THIRD, 2)]
    assert starts.begun == [FIRST, FIRST, SECOND], "one more of an owner that holds none, and no other"
    for task in waiting:
        task.cancel()


async def test_cancelled_start_leaves_its_slot_to_the_next() -> None:
    slots = StartSlots(1)
    starts = Starts(slots)
    await starts.request(FIRST)
    waiting, cancelled, granted, last = await starts.request(FIRST, 4)
    waiting.cancel()
    await turn()
    cancelled.cancel()  # it has not run since
    slots.release(FIRST)
    granted.cancel()  # it has got the slot, and has not run since
    await turn()
    assert granted.cancelled()
    assert last.done()
    assert starts.begun == [FIRST, FIRST]
    slots.release(FIRST)
    assert not slots.locked()
