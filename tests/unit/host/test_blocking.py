"""Blocking work in threads: a cancelled caller waits for its end."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from sandlot.host.blocking import finished, run_blocking, run_in_own_thread

WAYS = pytest.mark.parametrize("way", [run_blocking, run_in_own_thread])


@WAYS
@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_is_told_when_the_work_is_done(fails: bool, way: Any) -> None:  # noqa: FBT001, ANN401
    begun, may_end, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        done.set()
        if fails:
            raise OSError("seen by nobody")

    caller = asyncio.create_task(way(work))
    await asyncio.to_thread(begun.wait)
    caller.cancel()
    await asyncio.sleep(0.02)
    caller.cancel()
    await asyncio.sleep(0.02)
    is_told = caller.done()
    may_end.set()
    assert not is_told
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()


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
