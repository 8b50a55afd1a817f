"""Threads of the cache: a file that was opened for a cancelled caller is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from sandlot.egress.packages.store.threads import DiskThreads


class Thing:
    """Something that has to be closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
async def threads() -> AsyncIterator[DiskThreads]:
    found = DiskThreads()
    yield found
    await found.aclose()


async def test_what_a_cancelled_caller_had_opened_is_closed(threads: DiskThreads) -> None:
    go, thing = threading.Event(), Thing()

    def slow() -> Thing:
        go.wait()
        return thing

    opening = asyncio.create_task(threads.open(slow))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    closing = asyncio.create_task(threads.aclose())
    await asyncio.sleep(0)
    assert not thing.closed
    go.set()
    await closing
    assert thing.closed
