"""What is asked of a sandbox's life: works that its own coroutine carries out, one after the other.

Laws:
- A work that has begun is finished, whether whoever asked for it waits or has gone away; one that has not begun is dropped with them.
- What is asked of a sandbox that has ended, or that the service leaves, is answered so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from sandlot.model.errors import SandlotError

if TYPE_CHECKING:
    from sandlot.core.lifecycle.dependencies import SandboxSupervisor

_Result = TypeVar("_Result")

Work = Callable[["SandboxSupervisor"], Coroutine[Any, Any, _Result]]
"""What is to be done to a sandbox by its life."""


class QueuedOperation:
    """One work that was asked for.

    Args:
        work: It.
    """

    __slots__ = ("begun", "done", "work")

    def __init__(self, work: Work[Any]) -> None:
        self.work = work
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.begun = False

    async def run(self, supervisor: SandboxSupervisor) -> None:
        """Do it, and answer; what is no error of ours, and the end of the sandbox, go on to the caller, and are answered by the end."""
        self.begun = True
        try:
            result = await self.work(supervisor)
        except SandlotError as error:
            if not self.done.done():
                self.done.set_exception(error)
                self.done.exception()  # whoever asked may be gone; then nobody fetches it
        else:
            if not self.done.done():
                self.done.set_result(result)


class OperationQueue:
    """The works that a sandbox is asked for."""

    __slots__ = ("_now", "_over", "_waiting", "there")

    def __init__(self) -> None:
        self._waiting: deque[QueuedOperation] = deque()
        self._now: QueuedOperation | None = None
        self._over: Callable[[], SandlotError] | None = None
        self.there = asyncio.Event()
        """Set while one waits."""

    async def submit(self, work: Work[_Result]) -> _Result:
        """Ask for one, and wait for it.

        Raises:
            SandlotError: The work's; or the sandbox has ended, or the service leaves it.
        """
        if self._over is not None:
            raise self._over()
        order = QueuedOperation(work)
        self._waiting.append(order)
        self.there.set()
        try:
            result: _Result = await asyncio.shield(order.done)
        except asyncio.CancelledError:
            if not order.begun and order in self._waiting:
                self._waiting.remove(order)
            raise
        return result

    async def run_next(self, supervisor: SandboxSupervisor) -> None:
        """Carry out the one that was asked for first."""
        self._now = self._waiting.popleft() if self._waiting else None
        if not self._waiting:
            self.there.clear()
        if self._now is not None:
            await self._now.run(supervisor)
            self._now = None

    def close(self, over: Callable[[], SandlotError]) -> None:
        """Nothing is carried out any more.

        Args:
            over: What everybody who asked, or asks from now on, is told.
        """
        self._over = over
        for order in (self._now, *self._waiting):
            if order is not None and not order.done.done():
                order.done.set_exception(over())
                order.done.exception()
        self._waiting.clear()
        self._now = None
