"""Blocking work in threads: a cancelled caller waits for the end of the work."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from sandlot.host.blocking import BlockingPool, finished, run_blocking, run_in_own_thread

Call = Callable[[Callable[[], None]], Awaitable[None]]


@pytest.fixture
async def pool() -> AsyncIterator[BlockingPool]:
    found = BlockingPool(1, "test")
    yield found
    await found.aclose()


@pytest.fixture(params=["run_blocking", "run_in_own_thread", "BlockingPool.run"])
def call(request: pytest.FixtureRequest, pool: BlockingPool) -> Call:
    calls: dict[str, Call] = {"run_blocking": run_blocking, "run_in_own_thread": run_in_own_thread, "BlockingPool.run": pool.run}
    return calls[request.param]


@pytest.mark.parametrize("fails", [False, True])
async def test_cancellation_is_raised_when_the_work_has_ended(fails: bool, call: Call) -> None:  # noqa: FBT001
    begun, may_end, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        done.set()
        if fails:
            raise OSError("no caller sees this error")

    caller = asyncio.ensure_future(call(work))
    await asyncio.to_thread(begun.wait)
    for _ in range(2):
        caller.cancel()
        await asyncio.sleep(0.02)
    had_ended = caller.done()
    may_end.set()
    assert not had_ended
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()


async def test_object_that_was_opened_for_a_cancelled_caller_is_closed(pool: BlockingPool) -> None:
    begun, may_end, opened = threading.Event(), threading.Event(), Closable()

    def slow_open() -> Closable:
        begun.set()
        may_end.wait()
        return opened

    opening = asyncio.create_task(pool.open(slow_open))
    await asyncio.to_thread(begun.wait)
    opening.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert opened.is_closed


async def test_close_of_a_pool_waits_for_queued_calls(pool: BlockingPool) -> None:
    may_end = threading.Event()
    calls = [asyncio.ensure_future(pool.run(may_end.wait)) for _ in range(3)]
    await asyncio.sleep(0)  # the calls are queued; the pool has one thread
    closing = asyncio.ensure_future(pool.aclose())
    may_end.set()
    await closing
    assert await asyncio.gather(*calls) == [True] * 3


class Closable:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_long_work_does_not_delay_short_work() -> None:
    may_end = threading.Event()
    long = [asyncio.create_task(run_in_own_thread(may_end.wait)) for _ in range(64)]
    assert await run_blocking(divmod, 7, 2) == (3, 1)
    may_end.set()
    assert await asyncio.gather(*long) == [True] * 64


async def test_wait_for_work_survives_a_cancellation() -> None:
    may_end = asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        raise OSError("seen by its owner")

    going = asyncio.create_task(work())
    waiting = asyncio.create_task(finished(going))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    may_end.set()
    await waiting
    assert isinstance(going.exception(), OSError)


async def test_error_of_work_that_has_ended_counts_as_seen() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))

    async def work() -> None:
        raise OSError("of no interest")

    over = asyncio.ensure_future(work())
    await asyncio.wait([over])
    await finished(over)
    del over
    gc.collect()
    assert reported == []
