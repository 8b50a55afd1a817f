"""Background tasks, keyed locks, wake-ups of followers and closing of streams, which several services of core use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, Self, TypeVar

import structlog

from sandlot.model.errors import SandlotError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_log = structlog.get_logger("sandlot.core")


class TaskSet:
    """Background tasks of one object. The tasks are not garbage-collected while they run, and their failures are logged.

    Args:
        event: Name of the log event that reports an unexpected exception, for example ``snapshot.internal_error``.
        fields: Fields of that log event.
    """

    __slots__ = ("_event", "_fields", "_tasks")

    def __init__(self, event: str, **fields: str) -> None:
        self._event = event
        self._fields = fields
        self._tasks: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(tuple(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a task that no caller awaits. Every exception of the task is logged."""
        self._start(work).add_done_callback(self._log_failure)

    def create_task(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Start a task that the caller awaits. A ``SandlotError`` of the task is not logged, because the caller gets it."""
        task = self._start(work)
        task.add_done_callback(self._log_defect)
        return task

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all tasks have ended, including tasks that are started meanwhile.

        Args:
            timeout_s: Maximum seconds to wait. None: no limit.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(tuple(self._tasks))
        except TimeoutError:
            return

    def cancel(self) -> None:
        """Cancel all tasks, without waiting for their end."""
        for task in self:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(self._event, exc_info=error, **self._fields)

    def _log_defect(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and not isinstance(task.exception(), SandlotError):
            self._log_failure(task)


class StreamCloser:
    """Closes a stream, also while the consumer of the stream waits for the next value."""

    __slots__ = ("_consumer", "_consumer_left", "_is_closed", "_is_interrupted")

    def __init__(self) -> None:
        self._consumer: asyncio.Task[Any] | None = None
        self._consumer_left = asyncio.Event()
        self._is_closed = False
        self._is_interrupted = False

    async def wait_next(self, step: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Wait for the next value of the stream.

        Args:
            step: Returns the next value, or raises ``StopAsyncIteration`` at the end. The step is cancelled if the stream is closed meanwhile.

        Raises:
            StopAsyncIteration: The stream has ended or is closed.
        """
        if self._is_closed:
            raise StopAsyncIteration
        consumer = asyncio.current_task()
        assert consumer is not None  # noqa: S101 - a coroutine runs in a task
        cancel_requests = consumer.cancelling()
        self._consumer = consumer
        try:
            return await step()
        except asyncio.CancelledError:
            if self._is_interrupted and consumer.uncancel() <= cancel_requests:
                raise StopAsyncIteration from None
            raise
        finally:
            self._consumer = None
            self._consumer_left.set()

    async def aclose(self) -> None:
        """End the stream, and wait until the consumer has left. Idempotent."""
        self._is_closed = True
        if self._consumer is None:
            return
        if not self._is_interrupted:
            self._is_interrupted = True
            self._consumer_left.clear()
            self._consumer.cancel()
        await self._consumer_left.wait()


class GeneratorStream(Generic[ItemT]):
    """Stream of the items of a generator."""

    __slots__ = ("_closer", "_items")

    def __init__(self, items: AsyncGenerator[ItemT]) -> None:
        self._closer = StreamCloser()
        self._items = items

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        return await self._closer.wait_next(self._items.__anext__)

    async def aclose(self) -> None:
        """End the stream. Idempotent."""
        await self._closer.aclose()
        await self._items.aclose()


class KeyedLock:
    """One lock for each key. A key takes memory only while a task holds its lock or waits for it."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, *key: Hashable) -> AsyncIterator[None]:
        """Hold the lock of a key while the block runs. Callers that wait for the lock get it in the order of their calls.

        Args:
            key: Parts of the key, for example the name of an operation and an owner.
        """
        lock, holders = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, holders + 1
        try:
            async with lock:
                yield
        finally:
            lock, holders = self._locks[key]
            if holders == 1:
                del self._locks[key]
            else:
                self._locks[key] = lock, holders - 1


class Wakeups:
    """Wakes the followers of stored records when something is stored. Keys without followers take no memory."""

    __slots__ = ("_waiting", "is_closed")

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[asyncio.Event]] = {}
        self.is_closed = False
        """True once the service stops."""

    @contextmanager
    def follower(self, key: Hashable) -> Iterator[asyncio.Event]:
        """Follow one key in a ``with`` block. The event is set by each :meth:`wake` of the key, and by :meth:`close`; the follower clears it."""
        event = asyncio.Event()
        events = self._waiting.setdefault(key, set())
        events.add(event)
        try:
            yield event
        finally:
            events.discard(event)
            if not events and self._waiting.get(key) is events:
                del self._waiting[key]

    def wake(self, key: Hashable) -> None:
        """Wake the followers of a key."""
        for event in self._waiting.get(key, ()):
            event.set()

    def close(self) -> None:
        """Wake all followers, because the service stops. Idempotent."""
        self.is_closed = True
        for key in self._waiting:
            self.wake(key)
