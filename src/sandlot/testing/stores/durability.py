"""Tests of a store whose content remains when its process ends.

The tests kill a process that writes, write from several processes, and let several tasks open a new store at the same time. A store in memory cannot
pass these tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator

from sandlot.testing.drivers.leftovers import open_descriptors, wait_until_empty
from sandlot.testing.stores.harness import StoreHarness, event, every_event, key, sandbox

_CREATED_BEFORE_KILL = 17
_EVENTS = 20


class DurabilitySuite:
    """Tests for a durable store. Name the subclass ``Test...``, and define a fixture ``harness`` with a store that was never opened before."""

    async def test_opening_and_closing_leaves_no_descriptor_open(self, harness: StoreHarness) -> None:
        async with harness.open():
            pass
        before = open_descriptors()
        async with harness.open() as store:
            await asyncio.gather(*(store.sandboxes.save(sandbox()) for _ in range(8)), *(store.events.last_sequence() for _ in range(8)))
        assert wait_until_empty(lambda: open_descriptors() - before) == {}

    async def test_concurrent_first_opens_all_succeed(self, harness: StoreHarness) -> None:
        async def add_key(name: str) -> None:
            async with harness.open() as store:
                await store.keys.add(key(name))

        names = [f"key{number}" for number in range(4)]
        await asyncio.gather(*map(add_key, names))

        async with harness.open() as store:
            assert {record.name for record in await store.keys.list()} == set(names)

    async def test_killed_writer_loses_no_committed_record_and_leaves_no_half(self, harness: StoreHarness) -> None:
        async with harness.open() as store:
            writer = harness.writer("churn")
            with killed_at_exit(writer):
                assert writer.stdout is not None
                committed = [writer.stdout.readline().strip() for _ in range(_CREATED_BEFORE_KILL)]
                writer.kill()
                committed += writer.stdout.read().split()
            await store.sandboxes.save(sandbox(name="after the kill"))
            saved = {record.id for record in await store.sandboxes.list_unfinished(sandbox().node) if record.name == "churn"}
            announced = [record.event.sandbox for record in await every_event(store)]

        assert len(committed) >= _CREATED_BEFORE_KILL
        assert set(committed) <= saved, "a committed record is lost"
        assert len(announced) == len(saved)
        assert set(announced) == saved, "a record without its event, or an event without its record"

    async def test_events_of_two_processes_become_visible_in_the_order_of_their_numbers(self, harness: StoreHarness) -> None:
        async with harness.open() as store:
            writer = harness.writer("events", str(_EVENTS))
            seen: list[int] = []

            async def follow() -> None:
                page = await store.events.page(owner=None, sandbox=None, after=seen[-1] if seen else 0, limit=50)
                seen.extend(record.sequence for record in page)

            with killed_at_exit(writer):
                assert writer.stdout is not None
                assert (await asyncio.to_thread(writer.stdout.readline)).strip() == "ready"
                own = asyncio.gather(*(store.events.add([event(number), event(number)]) for number in range(_EVENTS)))
                while not own.done() or writer.poll() is None:
                    await follow()
                    await asyncio.sleep(0.01)
                await own
                assert writer.wait() == 0
            await follow()

            assert seen == list(range(1, 3 * _EVENTS + 1)), "a reader that continued after the last number missed an event"
            assert await store.events.last_sequence() == 3 * _EVENTS


@contextlib.contextmanager
def killed_at_exit(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process with SIGKILL at the end of the block."""
    try:
        yield
    finally:
        process.kill()
        process.communicate()
