"""Background tasks, keyed locks and closing of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import structlog.testing

from sandlot.core.concurrency import KeyedLock, StreamCloser, TaskSet
from sandlot.model.errors import NotFoundError


async def test_wait_includes_tasks_that_start_meanwhile() -> None:
    tasks, done = TaskSet("test.defect"), []

    async def second() -> None:
        done.append("second")

    async def first() -> None:
        await asyncio.sleep(0)
        tasks.spawn(second())
        done.append("first")

    tasks.spawn(first())
    await tasks.wait()
    assert done == ["first", "second"]
    assert len(tasks) == 0


async def test_wait_ends_at_its_timeout_and_cancelled_tasks_leave() -> None:
    tasks = TaskSet("test.defect")
    tasks.spawn(asyncio.Event().wait())
    await tasks.wait(0.001)
    assert len(tasks) == 1
    tasks.cancel()
    await tasks.wait()
    assert len(tasks) == 0


async def test_exceptions_are_logged_but_for_an_error_that_the_caller_receives() -> None:
    tasks = TaskSet("test.defect", sandbox="sb-test")

    async def fail(error: Exception) -> None:
        raise error

    with structlog.testing.capture_logs() as logged:
        refused = tasks.create_task(fail(NotFoundError("There is no such file.")))
        tasks.spawn(fail(ValueError("a defect")))
        tasks.spawn(fail(NotFoundError("nobody receives it")))
        await tasks.wait()
    assert {(entry["event"], entry["sandbox"], str(entry["exc_info"])) for entry in logged} == {
        ("test.defect", "sb-test", "a defect"),
        ("test.defect", "sb-test", "nobody receives it"),
    }
    with pytest.raises(NotFoundError):
        await refused


async def test_lock_of_a_key_is_held_by_one_at_a_time_in_order() -> None:
    locks, seen = KeyedLock(), []
    may_leave = asyncio.Event()

    async def work(name: str, *key: str) -> None:
        async with locks.hold(*key):
            seen.append(f"{name} begins")
            await may_leave.wait()
            seen.append(f"{name} ends")

    tasks = [asyncio.create_task(work(name, owner, "key")) for name, owner in (("1", "anne"), ("2", "anne"), ("3", "ben"))]
    await asyncio.sleep(0)
    assert seen == ["1 begins", "3 begins"]
    may_leave.set()
    await asyncio.gather(*tasks)
    assert seen.index("1 ends") < seen.index("2 begins") < seen.index("2 ends")


async def test_cancelled_waiter_leaves_the_lock_to_the_next_and_nothing_is_kept() -> None:
    locks = KeyedLock()

    async def wait() -> None:
        async with locks.hold("key"):
            pass

    async with locks.hold("key"):
        cancelled, next_ = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        assert not next_.done()
    await next_
    assert cancelled.cancelled()
    assert locks._locks == {}  # noqa: SLF001 - nothing else shows that keys do not pile up


async def test_closed_stream_ends_a_waiting_consumer() -> None:
    closer, waits = StreamCloser(), asyncio.Event()

    async def step() -> None:
        waits.set()
        await asyncio.Event().wait()

    consumer = asyncio.create_task(_ended(closer, step))
    await waits.wait()
    await asyncio.gather(closer.aclose(), closer.aclose())
    assert await consumer
    assert await _ended(closer, step), "a closed stream has no next value"


async def test_cancelled_consumer_of_a_closed_stream_stays_cancelled() -> None:
    closer, waits = StreamCloser(), asyncio.Event()

    async def step() -> None:
        waits.set()
        await asyncio.Event().wait()

    consumer = asyncio.create_task(_ended(closer, step))
    await waits.wait()
    consumer.cancel()
    await closer.aclose()
    with pytest.raises(asyncio.CancelledError):
        await consumer


async def test_consumer_is_not_cancelled_after_its_last_step() -> None:
    closer = StreamCloser()

    async def consume() -> str:
        assert await closer.wait_next(lambda: asyncio.sleep(0, "value")) == "value"
        await closer.aclose()
        await asyncio.sleep(0)
        return "done"

    assert await asyncio.create_task(consume()) == "done"


async def _ended(closer: StreamCloser, step: Callable[[], Awaitable[None]]) -> bool:
    try:
        await closer.wait_next(step)
    except StopAsyncIteration:
        return True
    return False
