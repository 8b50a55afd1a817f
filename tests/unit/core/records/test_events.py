"""Events: pages, followers, and the principals that may see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from sandlot.core import history
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.ids import SandboxId
from sandlot.model.records import EventRecord, NewEvent
from tests.support.clock import START
from tests.support.service import Bench
from tests.support.until import until

ALICE, BOB = (Principal(OwnerId(name * 12), name) for name in "ab")
BOX = SandboxId("sb-aaaa-aaaaaaaaaaaaaaaa")


def happened(principal: Principal, what: str = "sandbox.created", sandbox: SandboxId | None = None) -> NewEvent:
    return NewEvent(what, START, principal.owner, sandbox)


async def taken(feed: AsyncIterator[EventRecord], count: int) -> list[int]:
    return [(await anext(feed)).sequence for _ in range(count)]


async def test_follower_gets_every_event_after_a_number(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVENTS_PAGE", 2)
    monkeypatch.setattr(history, "EVENTS_POLL_S", 1000)  # by being told alone
    feed = at.service.events
    await feed.publish(*(happened(ALICE) for _ in range(5)))
    follower = await at.node.history.follow_events(ALICE, after=2)
    assert await taken(follower, 3) == [3, 4, 5]
    waiting = asyncio.create_task(taken(follower, 2))
    await asyncio.sleep(0.05)
    await feed.publish(happened(BOB))
    await feed.publish(happened(ALICE))
    await feed.publish(happened(ALICE))
    assert await waiting == [7, 8]


async def test_follower_gets_events_of_other_processes(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVENTS_POLL_S", 0.02)
    follower = asyncio.create_task(taken(await at.node.history.follow_events(ALICE, after=0), 1))
    await asyncio.sleep(0.05)
    await at.service.store.events.add([happened(ALICE)])
    assert await follower == [1]


async def test_event_of_another_owner_causes_no_read(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVENTS_POLL_S", 1000)
    feed, looks = at.service.events, []
    page = feed.page

    async def counted(principal: Principal, **asked: Any) -> Sequence[EventRecord]:  # noqa: ANN401 - as it takes them
        looks.append(principal)
        return await page(principal, **asked)

    monkeypatch.setattr(feed, "page", counted)
    followers = [
        asyncio.create_task(taken(await at.node.history.follow_events(principal, after=0), count))
        for principal, count in ((ALICE, 1), (BOB, 5), (OPERATOR, 6))
    ]
    await until(lambda: len(looks) == 3)
    for _ in range(5):
        await feed.publish(happened(BOB))
    assert [await follower for follower in followers[1:2]] == [[1, 2, 3, 4, 5]]
    assert looks.count(ALICE) == 1
    await feed.publish(happened(ALICE))
    assert await followers[0] == [6]
    assert await followers[2] == [1, 2, 3, 4, 5, 6]


async def test_latest_events_are_found_among_many_of_other_owners(at: Bench) -> None:
    feed = at.service.events
    await feed.publish(happened(ALICE), happened(ALICE, "sandbox.ended", BOX))
    await feed.publish(*(happened(BOB) for _ in range(60)), happened(ALICE, "snapshot.created"), happened(ALICE, "sandbox.ended"))
    kinds = {"sandbox.created", "sandbox.ended"}

    async def latest(principal: Principal, **filters: Any) -> tuple[list[int], bool]:  # noqa: ANN401
        page = await at.node.history.latest_events(principal, **filters)
        return [record.sequence for record in page.items], page.more

    assert await latest(ALICE, kinds=kinds, limit=2) == ([64, 2], True)
    assert await latest(ALICE, kinds=kinds, limit=3) == ([64, 2, 1], False)
    assert await latest(ALICE, kinds=kinds, limit=9, sandbox=BOX) == ([2], False)
    assert await latest(ALICE, limit=2) == ([64, 63], True)
    assert await latest(ALICE, limit=2, before=63) == ([2, 1], False)
    assert await latest(ALICE, limit=2, before=1) == ([], False)
    assert await latest(OPERATOR, limit=3, before=1000) == ([64, 63, 62], True)
    assert await latest(Principal(OwnerId("c" * 12), "c"), kinds=kinds, limit=5) == ([], False)


async def test_closed_stream_ends_its_waiting_follower(at: Bench) -> None:
    stream = await at.node.history.follow_events(ALICE, after=0)
    received: list[EventRecord] = []

    async def receive() -> None:
        received.extend([record async for record in stream])

    waiting = asyncio.create_task(receive())
    await asyncio.sleep(0.05)
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await waiting
    assert received == []


async def test_page_of_events_says_whether_more_follow(at: Bench) -> None:
    await at.service.events.publish(*(happened(ALICE) for _ in range(3)))
    first = await at.node.history.events(ALICE, limit=2)
    rest = await at.node.history.events(ALICE, after=first.items[-1].sequence, limit=2)
    assert ([record.sequence for record in first.items], first.more) == ([1, 2], True)
    assert ([record.sequence for record in rest.items], rest.more) == ([3], False)
    assert (await at.node.history.events(BOB, limit=2)).items == []
