"""Turns of requests that begin at the same time."""

from __future__ import annotations

import asyncio

from sandlot.model.access import OwnerId
from sandlot.web.request_turns import RequestTurns

FIRST, SECOND = OwnerId("first"), OwnerId("second")


class Requests:
    """Requests that record the order in which they begin."""

    def __init__(self) -> None:
        self.turns = RequestTurns()
        self.begun: list[OwnerId | None] = []

    def send(self, owner: OwnerId | None, count: int = 1) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._begin(owner)) for _ in range(count)]

    async def _begin(self, owner: OwnerId | None) -> None:
        await self.turns.take(owner)
        self.begun.append(owner)


async def test_request_of_a_key_waits_for_one_request_of_another_key() -> None:
    requests = Requests()
    many = requests.send(FIRST, 200)
    await asyncio.sleep(0)
    (one,) = requests.send(SECOND)
    await one
    assert requests.begun.count(FIRST) <= 3
    await asyncio.gather(*many)
    assert requests.begun.count(FIRST) == 200


async def test_requests_begin_in_turn() -> None:
    requests = Requests()
    await asyncio.gather(*requests.send(FIRST, 4), *requests.send(SECOND, 2), *requests.send(None, 2))
    assert requests.begun == [FIRST, FIRST, SECOND, None, FIRST, SECOND, None, FIRST]


async def test_request_whose_client_has_left_holds_up_no_other() -> None:
    requests = Requests()
    _, cancelled, last = requests.send(FIRST, 3)
    await asyncio.sleep(0)
    cancelled.cancel()
    await last
    assert requests.begun == [FIRST, FIRST]
    await asyncio.gather(*requests.send(SECOND))
    assert requests.begun == [FIRST, FIRST, SECOND]
