"""Operations on one sandbox, run one at a time by its supervisor.

Invariants:
- An operation that has begun is finished, even if its caller is cancelled. An operation that has not begun is withdrawn when its caller
  is cancelled. Only the requested end of the sandbox cuts an operation that has begun; see ``SandboxSupervisor.serve``.
- Every caller gets a result or an error, even when the sandbox ends or the service detaches from the sandbox.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sandlot.core.ports import Clock
from sandlot.model.errors import SandlotError

ResultT = TypeVar("ResultT")

Operation = Callable[[Any], Coroutine[Any, Any, ResultT]]
"""Work on a sandbox. The argument is the sandbox's supervisor (``lifecycle/supervisor.py``), whose type this module must not import."""


class QueuedOperation:
    """A submitted operation and its result.

    Args:
        on_end: Function that is called when the operation has ended or will never begin.
    """

    __slots__ = ("begun", "done", "on_end", "operation", "submitted_monotonic_s")

    def __init__(self, operation: Operation[Any], on_end: Callable[[], None], submitted_monotonic_s: float) -> None:
        self.operation = operation
        self.on_end = on_end
        self.submitted_monotonic_s = submitted_monotonic_s
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.begun = False

    async def run(self, supervisor: object) -> None:
        """Run the operation and resolve ``done``.

        Exceptions other than ``SandlotError`` propagate and end the sandbox; ``OperationQueue.close`` then resolves ``done``.
        """
        self.begun = True
        try:
            result = await self.operation(supervisor)
        except SandlotError as error:
            if not self.done.done():
                self.done.set_exception(error)
                self.done.exception()  # marks the exception as retrieved, because the caller may have been cancelled
        else:
            if not self.done.done():
                self.done.set_result(result)
        finally:
            self.on_end()


class OperationQueue:
    """Queue of operations on one sandbox, which the sandbox's supervisor runs one at a time."""

    __slots__ = ("_clock", "_closed", "_running", "_waiting", "there")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[QueuedOperation] = deque()
        self._running: QueuedOperation | None = None
        self._closed: Callable[[], SandlotError] | None = None
        self.there = asyncio.Event()
        """Event that is set while an operation waits."""

    async def submit(self, operation: Operation[ResultT], on_end: Callable[[], None] = lambda: None) -> ResultT:
        """Submit an operation and wait for its result.

        Args:
            operation: Operation to run.
            on_end: Function that is called once when the operation has ended or will never begin. A cut operation may end after its caller got an
                error, and any operation after its caller was cancelled.
        """
        if self._closed is not None:
            on_end()
            raise self._closed()
        queued = QueuedOperation(operation, on_end, self._clock.monotonic_s())
        self._waiting.append(queued)
        self.there.set()
        try:
            result: ResultT = await asyncio.shield(queued.done)
        except asyncio.CancelledError:
            if not queued.begun and queued in self._waiting:
                self._waiting.remove(queued)
                on_end()
            raise
        return result

    def has_earlier(self, monotonic_s: float) -> bool:
        """Return True if an operation waits that was submitted before a moment."""
        return bool(self._waiting) and self._waiting[0].submitted_monotonic_s < monotonic_s

    async def run_next(self, supervisor: object) -> None:
        """Run the operation that was submitted first, if there is one."""
        self._running = self._waiting.popleft() if self._waiting else None
        if not self._waiting:
            self.there.clear()
        if self._running is not None:
            await self._running.run(supervisor)
            self._running = None

    def close(self, closed: Callable[[], SandlotError]) -> None:
        """Refuse all waiting and future operations. The caller of the running operation gets an error, too.

        Args:
            closed: Returns a new error. Called for each operation that is refused or running.
        """
        self._closed = closed
        for queued in (self._running, *self._waiting):
            if queued is not None and not queued.done.done():
                queued.done.set_exception(closed())
                queued.done.exception()
        for queued in self._waiting:
            queued.on_end()
        self._waiting.clear()
        self._running = None
