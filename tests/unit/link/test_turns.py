"""Share of links in the time of the event loop, with simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sandlot.link.turns import MAX_EXCESS_S, ORDINARY_BYTE_S, PAUSE, READ_BYTES, SLOW_FOR_S, SLOW_READ_BYTES, LinkReader, LinkTurns
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


SMALL_FRAMES_S = 10 * ORDINARY_BYTE_S
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
        # Simulated time passes in pauses only. A tenth of the handling is that of ordinary output.
        assert FLOOD_S - PAUSE * first_s <= PAUSE * 0.9 * processor.spent_s <= FLOOD_S + PAUSE * first_s

    run(program, SMALL_FRAMES_S)


def test_flood_in_small_chunks_is_paused_as_well() -> None:
    async def program(processor: Processor, turns: LinkTurns) -> None:
        loop = asyncio.get_running_loop()
        reader, began_s = LinkReader(turns, processor.handle), loop.time()
        for _ in range(1000):
            await reader.handle(bytes(100))
        assert 0.9 * processor.spent_s - 2 * MAX_EXCESS_S <= (loop.time() - began_s) / PAUSE <= 0.9 * processor.spent_s

    run(program, SMALL_FRAMES_S)


def test_reading_pauses_four_times_as_long_as_the_excess() -> None:
    async def program(processor: Processor, turns: LinkTurns) -> None:
        loop = asyncio.get_running_loop()
        reader, began_s = LinkReader(turns, processor.handle), loop.time()
        await reader.handle(bytes(READ_BYTES))
        assert loop.time() - began_s == PAUSE * (processor.spent_s - ORDINARY_BYTE_S * READ_BYTES)

    run(program, SMALL_FRAMES_S)


def test_calls_with_small_messages_pause_no_link() -> None:
    async def program(processor: Processor, turns: LinkTurns) -> None:
        loop = asyncio.get_running_loop()
        reader, paused_s = LinkReader(turns, processor.handle), 0.0
        for _ in range(1000):  # a message takes 25 us, twice in a millisecond
            await asyncio.sleep(0.0005)
            began_s = loop.time()
            await reader.handle(bytes(1))
            paused_s += loop.time() - began_s
        assert paused_s == 0

    run(program, 0.000025)


def test_large_frames_that_arrive_in_small_chunks_pause_no_link() -> None:
    async def program(processor: Processor, turns: LinkTurns) -> None:
        loop = asyncio.get_running_loop()
        arrived = 0

        def handle(data: bytes) -> None:  # the last chunk of a frame costs as much as the whole frame
            nonlocal arrived
            arrived += len(data)
            if arrived % READ_BYTES == 0:
                processor.handle(bytes(READ_BYTES))

        reader, began_s = LinkReader(turns, handle), loop.time()
        for _ in range(100 * READ_BYTES // SLOW_READ_BYTES):
            await reader.handle(bytes(SLOW_READ_BYTES))
        assert loop.time() == began_s

    run(program, ORDINARY_BYTE_S / 2)


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

    run(program, ORDINARY_BYTE_S / 10)
