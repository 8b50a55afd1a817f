"""Turns of requests, with simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sandlot.model.access import OwnerId
from sandlot.web.request_turns import ACTIVE_S, BODY_BYTES_PER_S, CREDIT_S, SENT_BYTES_PER_S, SHARES, RequestTurns
from tests.support.simulation import simulate

FIRST, SECOND = OwnerId("first"), OwnerId("second")
COST_S = 0.002
"""Processor time that passes from the beginning of one request to that of the next."""
ATTACK_S = 30.0


class Requests:
    """Requests that record the order in which they begin."""

    def __init__(self) -> None:
        self.begun: list[OwnerId | None] = []
        self.turns = RequestTurns(lambda: len(self.begun) * COST_S)

    def send(self, owner: OwnerId | None, count: int = 1, body_bytes: int = 0) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._begin(owner, body_bytes)) for _ in range(count)]

    async def repeat(self, owner: OwnerId | None, pause_s: float) -> None:
        """Send one request after another."""
        while True:
            await self._begin(owner, 0)
            await asyncio.sleep(pause_s)

    async def _begin(self, owner: OwnerId | None, body_bytes: int) -> None:
        await self.turns.take(owner, body_bytes)
        self.begun.append(owner)


def run(program: Callable[[Requests], Awaitable[None]]) -> None:
    async def simulated() -> None:
        await program(Requests())

    simulate(simulated, seed=1)


def test_request_of_a_key_waits_for_one_request_of_another_key() -> None:
    async def program(requests: Requests) -> None:
        many = requests.send(FIRST, 200)
        await asyncio.sleep(0)
        (one,) = requests.send(SECOND)
        await one
        assert requests.begun.count(FIRST) <= 3
        await asyncio.gather(*many)
        assert requests.begun.count(FIRST) == 200

    run(program)


def test_requests_begin_in_turn() -> None:
    async def program(requests: Requests) -> None:
        await asyncio.gather(*requests.send(FIRST, 4), *requests.send(SECOND, 2), *requests.send(None, 2))
        assert requests.begun == [FIRST, FIRST, SECOND, None, FIRST, SECOND, None, FIRST]

    run(program)


def test_request_whose_client_has_left_holds_up_no_other() -> None:
    async def program(requests: Requests) -> None:
        _, cancelled, last = requests.send(FIRST, 3)
        await asyncio.sleep(0)
        cancelled.cancel()
        await last
        assert requests.begun == [FIRST, FIRST]
        await asyncio.gather(*requests.send(SECOND))
        assert requests.begun == [FIRST, FIRST, SECOND]

    run(program)


def test_key_gets_a_share_of_the_time_while_another_is_active() -> None:
    async def program(requests: Requests) -> None:
        began_s = asyncio.get_running_loop().time()
        flood, calls = requests.send(FIRST, 6000), asyncio.create_task(requests.repeat(SECOND, 0.1))
        await asyncio.sleep(ATTACK_S)
        calls.cancel()
        share = requests.begun.count(FIRST) * COST_S / ATTACK_S
        assert 0.9 / SHARES < share < 1.1 / SHARES + CREDIT_S
        assert requests.begun.count(SECOND) == round(ATTACK_S / 0.1)
        await asyncio.gather(*flood)  # the key is alone now
        assert asyncio.get_running_loop().time() - began_s < ATTACK_S + 2 * ACTIVE_S

    run(program)


def test_output_of_a_key_gets_a_share_of_the_time_while_another_is_active() -> None:
    async def program(requests: Requests) -> None:
        sent = 0

        async def stream() -> None:
            nonlocal sent
            while True:
                sent += 65536
                await requests.turns.pause(FIRST, 65536)
                await asyncio.sleep(0.0001)

        async with asyncio.timeout(ATTACK_S):
            calls = asyncio.create_task(requests.repeat(SECOND, 0.1))
            streams = [asyncio.create_task(stream()) for _ in range(4)]
            await asyncio.sleep(ATTACK_S / 2)
            share = sent / SENT_BYTES_PER_S / (ATTACK_S / 2)
            assert 0.9 / SHARES < share < 1.1 / SHARES + CREDIT_S
            assert requests.begun.count(SECOND) >= round(ATTACK_S / 2 / 0.1)
            calls.cancel()
            await asyncio.sleep(ACTIVE_S)
            before = sent
            await asyncio.sleep(1)
            assert sent - before > SENT_BYTES_PER_S  # the key is alone now
            for task in streams:
                task.cancel()

    run(program)


def test_key_that_is_alone_does_not_wait() -> None:
    async def program(requests: Requests) -> None:
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*requests.send(FIRST, 2000))
        assert asyncio.get_running_loop().time() == began_s

    run(program)


def test_requests_without_a_key_slow_no_key_down() -> None:
    async def program(requests: Requests) -> None:
        checks = asyncio.create_task(requests.repeat(None, 0.1))
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*requests.send(FIRST, 2000))
        assert asyncio.get_running_loop().time() == began_s
        floods = requests.send(None, 2000)
        calls = asyncio.create_task(requests.repeat(FIRST, 0.1))
        await asyncio.sleep(1)
        assert not floods[-1].done()
        for task in (*floods, checks, calls):
            task.cancel()

    run(program)


def test_two_floods_leave_time_for_a_third_key() -> None:
    async def program(requests: Requests) -> None:
        floods = [*requests.send(FIRST, 3000), *requests.send(SECOND, 3000)]
        calls = asyncio.create_task(requests.repeat(OwnerId("third"), 0.1))
        await asyncio.sleep(ATTACK_S)
        assert requests.begun.count(OwnerId("third")) == round(ATTACK_S / 0.1)
        for task in (*floods, calls):
            task.cancel()

    run(program)


def test_large_bodies_count_by_their_size() -> None:
    async def program(requests: Requests) -> None:
        calls = asyncio.create_task(requests.repeat(SECOND, 0.1))
        bodies = requests.send(FIRST, 1000, BODY_BYTES_PER_S // 10)
        await asyncio.sleep(ATTACK_S)
        assert requests.begun.count(FIRST) <= ATTACK_S / SHARES / 0.1 + 1
        requests.begun.clear()
        for task in bodies:
            task.cancel()
        chunked = requests.send(FIRST)
        await asyncio.gather(*chunked)
        began_s = asyncio.get_running_loop().time()
        requests.turns.charge(FIRST, BODY_BYTES_PER_S)
        await asyncio.gather(*requests.send(FIRST))
        assert asyncio.get_running_loop().time() - began_s >= SHARES * (1 - CREDIT_S) - 1e-6
        calls.cancel()

    run(program)
