"""What holds of the store as a whole: what returned is there, nothing is half there, and numbers follow the order of commits."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from itertools import pairwise

import pytest

from sandlot.model.storage import Position
from sandlot.testing.stores.bench import ALICE, StoreBench, ended, event, every_event, execution, key, sandbox
from sandlot.testing.traces import descriptors, settled

_KILLS = 2
_ROUNDS = 20
_MANY = 10_000
_PAGE = 1000


@contextlib.contextmanager
def running(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """End some processes in the end, by SIGKILL."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


class LawsSuite:
    """See the module."""

    async def test_opening_and_closing_leaves_nothing_open(self, bench: StoreBench) -> None:
        async with bench.open():
            pass
        before = descriptors()
        async with bench.open() as store:
            await asyncio.gather(*(store.sandboxes.save(sandbox()) for _ in range(8)), *(store.events.last() for _ in range(8)))
        assert settled(lambda: descriptors() - before) == {}

    async def test_what_was_written_is_there_when_it_is_opened_again(self, bench: StoreBench) -> None:
        record, made = sandbox(), key("name")
        async with bench.open() as store:
            await store.sandboxes.save(record, event(sandbox=record.id))
            await store.keys.add(made)
        async with bench.open() as store:
            assert await store.sandboxes.get(record.id) == record
            assert list(await store.keys.all()) == [made]
            assert await store.events.last() == 1

    async def test_two_that_open_a_new_one_at_once_both_get_it(self, bench: StoreBench) -> None:
        async def one(name: str) -> None:
            async with bench.open() as store:
                await store.keys.add(key(name))

        await asyncio.gather(*(one(f"key{number}") for number in range(4)))
        async with bench.open() as store:
            assert {record.name for record in await store.keys.all()} == {f"key{number}" for number in range(4)}

    async def test_a_killed_writer_loses_nothing_that_returned_and_leaves_no_half(self, bench: StoreBench) -> None:
        told: list[str] = []
        async with bench.open() as store:
            for kill in range(_KILLS):
                writer = bench.writer("churn")
                with running(writer):
                    assert writer.stdout is not None
                    seen = [writer.stdout.readline().strip() for _ in range(10 + 7 * kill)]
                    writer.kill()
                    told += [line for line in [*seen, *writer.stdout.read().splitlines()] if line]
                await store.sandboxes.save(sandbox(name="between"), event(type="sandbox.between"))
            records = [record for record in await store.sandboxes.unfinished(sandbox().node) if record.name == "churn"]
            events = await every_event(store)
        assert len(told) >= 10 * _KILLS
        assert set(told) <= {record.id for record in records}, "a write that returned is lost"
        about = [one.event.sandbox for one in events if one.event.type == "sandbox.created"]
        assert sorted(str(one) for one in about) == sorted(record.id for record in records), (
            "a record without its event, or an event without its record"
        )

    async def test_two_processes_that_write_at_once_are_numbered_in_the_order_of_commits(self, bench: StoreBench) -> None:
        async with bench.open() as store:
            writers = [bench.writer("events", str(_ROUNDS)) for _ in range(2)]
            seen: list[int] = []
            with running(*writers):
                own = asyncio.gather(*(store.events.add([event(number), event(number)]) for number in range(_ROUNDS)))
                # Whoever follows by the last number that it saw misses nothing: none becomes visible below it later.
                while not own.done() or any(writer.poll() is None for writer in writers):
                    seen += [one.sequence for one in await store.events.page(owner=None, sandbox=None, after=seen[-1] if seen else 0, limit=50)]
                    await asyncio.sleep(0.01)
                await own
                assert [writer.wait() for writer in writers] == [0, 0]
            seen += [one.sequence for one in await store.events.page(owner=None, sandbox=None, after=seen[-1], limit=_MANY)]
            total = 4 * _ROUNDS
            assert seen == list(range(1, total + 1))
            assert await store.events.last() == total

    async def test_what_another_process_writes_is_seen(self, bench: StoreBench) -> None:
        async with bench.open() as store:
            writer = bench.writer("key", "from-elsewhere")
            with running(writer):
                assert writer.stdout is not None
                made = (await asyncio.to_thread(writer.stdout.readline)).strip()
                assert [record.id for record in await store.keys.all()] == [made]

    async def test_many_tasks_write_and_read_at_once(self, bench: StoreBench) -> None:
        async with bench.open() as store:
            records = [sandbox(metadata={"n": "1"}) for _ in range(60)]
            await asyncio.gather(
                *(store.sandboxes.save(record, event(sandbox=record.id)) for record in records),
                *(store.events.page(owner=None, sandbox=None, after=0, limit=10) for _ in range(60)),
            )
            assert {record.id for record in await store.sandboxes.unfinished(records[0].node)} == {record.id for record in records}
            assert [one.sequence for one in await every_event(store)] == list(range(1, 61))

    async def test_whoever_is_cancelled_leaves_it_whole(self, bench: StoreBench) -> None:
        async with bench.open() as store:
            records = [sandbox() for _ in range(30)]
            tasks = [asyncio.create_task(store.sandboxes.save(record, event(sandbox=record.id))) for record in records]
            for number, task in enumerate(tasks):
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            there = {record.id for record in await store.sandboxes.unfinished(records[0].node)}
            assert there == {one.event.sandbox for one in await every_event(store)}
            await store.sandboxes.save(sandbox())  # and it goes on

    async def test_ten_thousand_rows_are_paged_without_a_gap(self, bench: StoreBench) -> None:
        async with bench.open() as store:
            for begin in range(0, _MANY, _PAGE):
                await store.executions.save([execution(number // 3) for number in range(begin, begin + _PAGE)])
                await store.events.add([event(number) for number in range(_PAGE)])
            seen: list[Position] = []
            while page := await store.executions.page(owner=ALICE, sandbox=None, before=seen[-1] if seen else None, limit=_PAGE):
                seen += [Position(record.created_at, record.id) for record in page]
            assert len(seen) == len({position.id for position in seen}) == _MANY
            assert all((later.at, later.id) > (earlier.at, earlier.id) for later, earlier in pairwise(seen))
            assert [one.sequence for one in await every_event(store)] == list(range(1, _MANY + 1))
            assert await store.executions.trim(keep=10) == _MANY - 10
            assert await store.events.trim(keep=10) == _MANY - 10
            assert [one.sequence for one in await every_event(store)] == list(range(_MANY - 9, _MANY + 1))

    @pytest.mark.parametrize("limit", [1, 2])
    async def test_a_page_is_no_longer_than_asked(self, bench: StoreBench, limit: int) -> None:
        async with bench.open() as store:
            for number in range(3):
                await store.sandboxes.save(ended(number), event(number))
                await store.executions.save([execution(number)])
            assert len(await store.sandboxes.ended(owner=None, metadata={}, states=(), after=None, limit=limit)) == limit
            assert len(await store.executions.page(owner=None, sandbox=None, before=None, limit=limit)) == limit
            assert len(await store.events.page(owner=None, sandbox=None, after=0, limit=limit)) == limit
