"""Share of links in the time of the event loop, with simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sandlot.link.turns import LONG_TURN_S, PAUSE, READ_BYTES, SLOW_FOR_S, SLOW_READ_BYTES, LinkReader, LinkTurns
from tests.support.simulation import simulate

LINKS = 10
FLOOD_S = 60.0


class Processor:
    """Clock of the processor time that the links have used."""

    def __init__(self, seconds_per_byte: float) -> None:
        self.spent_s = 0.0
        self._seconds_per_byte = seconds_per_byte

    def now_s(self) -> float:
        return self.spent_s

    def handle(self, data: bytes) -> None:
        self.spent_s += len(data) * self._seconds_per_byte


def run(program: Callable[[Processor, LinkTurns], Awaitable[None]], seconds_per_byte: float) -> None:
    async def simulated() -> None:
        processor = Processor(seconds_per_byte)
        await program(processor, LinkTurns(processor.now_s))

    simulate(simulated, seed=1)


SMALL_FRAMES_S = 10 * LONG_TURN_S / READ_BYTES
"""Seconds for each byte of the smallest frames."""


def test_floods_of_all_links_together_get_a_fifth_of_the_time() -> None:
    async def flood(reader: LinkReader) -> None:
        while True:
            await reader.handle(bytes(reader.read_bytes))

    async def program(processor: Processor, turns: LinkTurns) -> None:
        floods = [asyncio.create_task(flood(LinkReader(turns, processor.handle))) for _ in range(LINKS)]
        await asyncio.sleep(FLOOD_S)
        for task in floods:
            task.cancel()
        first_s = LINKS * READ_BYTES * SMALL_FRAMES_S
        assert FLOOD_S - first_s <= PAUSE * processor.spent_s <= FLOOD_S + PAUSE * first_s, "simulated time passes in pauses only"

    run(program, SMALL_FRAMES_S)


def test_reading_pauses_four_times_as_long_as_handling_took() -> None:
    async def program(processor: Processor, turns: LinkTurns) -> None:
        loop = asyncio.get_running_loop()
        reader, began_s = LinkReader(turns, processor.handle), loop.time()
        await reader.handle(bytes(READ_BYTES))
        assert loop.time() - began_s == 4 * processor.spent_s

    run(program, SMALL_FRAMES_S)


def test_slow_link_reads_small_chunks_for_a_second() -> None:
    async def program(processor: Processor, turns: LinkTurns) -> None:
        reader = LinkReader(turns, processor.handle)
        assert reader.read_bytes == READ_BYTES
        await reader.handle(bytes(READ_BYTES))
        assert reader.read_bytes == SLOW_READ_BYTES
        await asyncio.sleep(SLOW_FOR_S)
        assert reader.read_bytes == READ_BYTES

    run(program, SMALL_FRAMES_S)


def test_ordinary_output_and_a_flood_of_another_link_pause_no_link() -> None:
    async def program(processor: Processor, turns: LinkTurns) -> None:
        loop = asyncio.get_running_loop()
        slow, ordinary = LinkReader(turns, lambda _: processor.handle(bytes(100 * READ_BYTES))), LinkReader(turns, processor.handle)
        flooding = asyncio.create_task(slow.handle(b"x"))
        await asyncio.sleep(0)
        began_s = loop.time()
        for _ in range(10):
            await ordinary.handle(bytes(READ_BYTES))
        assert loop.time() == began_s
        assert not flooding.done()
        await flooding

    run(program, LONG_TURN_S / 10 / READ_BYTES)
