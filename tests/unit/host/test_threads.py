"""Blocking work that outlasts its caller's patience, but not its notice."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sandlot.host.threads import run_blocking


async def test_the_result_and_the_error_come_back() -> None:
    assert await run_blocking(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_blocking(divmod, 7, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_is_told_when_the_work_is_done(fails: bool) -> None:  # noqa: FBT001
    begun, may_end, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        done.set()
        if fails:
            raise OSError("seen by nobody")

    caller = asyncio.create_task(run_blocking(work))
    await asyncio.to_thread(begun.wait)
    caller.cancel()
    await asyncio.sleep(0.02)
    caller.cancel()
    await asyncio.sleep(0.02)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()
