"""Shares of the lookups that run at once."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.egress.outbound.lookup_shares import LookupShares


async def take(shares: LookupShares, consumer: str) -> int:
    """Return the number of lookups that a consumer may begin at once."""
    taken = 0
    while True:
        turn = asyncio.ensure_future(shares.acquire(consumer))
        await asyncio.sleep(0)
        if not turn.done():
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            return taken
        taken += 1


async def test_consumers_that_never_release_leave_lookups_for_others() -> None:
    shares = LookupShares(64, 16)
    assert [await take(shares, f"c{number}") for number in range(6)] == [16, 16, 11, 7, 5, 3]
    assert await take(shares, "other") >= 1


async def test_lookup_that_ends_lets_the_next_one_begin_in_order() -> None:
    shares = LookupShares(64, 1)
    await shares.acquire("one")
    order: list[int] = []

    async def wait(number: int) -> None:
        await shares.acquire("one")
        order.append(number)

    waiting = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    assert order == []
    shares.release("one")
    await waiting[1]
    assert order == [1]
    shares.release("one")
    await waiting[2]


async def test_cancelled_turn_passes_its_share_on() -> None:
    shares = LookupShares(64, 1)
    await shares.acquire("one")
    first, second = (asyncio.create_task(shares.acquire("one")) for _ in range(2))
    await asyncio.sleep(0)
    shares.release("one")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await second
