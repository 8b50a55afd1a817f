"""Time inside a scripted guest: timers on an injected clock that stand still while the guest is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class GuestClock(Protocol):
    """The part of the service's clock that a scripted guest uses."""

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment."""
        ...

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        """Return when :meth:`monotonic_s` has reached a moment."""
        ...


class LoopClock:
    """The time of the running event loop."""

    def monotonic_s(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        """Return when the loop's time has reached a moment."""
        await asyncio.sleep(max(0.0, moment_monotonic_s - self.monotonic_s()))


class Timer:
    """One callback that is due after a delay."""

    __slots__ = ("_timers", "callback", "due_s", "remaining_s", "task")

    def __init__(self, timers: Timers, callback: Callable[[], object]) -> None:
        self._timers = timers
        self.callback = callback
        self.due_s = 0.0
        self.remaining_s = 0.0
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Do not call back. Idempotent."""
        self._timers.discard(self)


class Timers:
    """The timers of one guest.

    Args:
        clock: The clock that they run on.
    """

    def __init__(self, clock: GuestClock) -> None:
        self.clock = clock
        self._pending: set[Timer] = set()
        self._held_since_s: float | None = None
        self._held_total_s = 0.0

    def time_s(self) -> float:
        """Return the guest's own time in seconds. It stops while the guest is held."""
        return (self.clock.monotonic_s() if self._held_since_s is None else self._held_since_s) - self._held_total_s

    def after(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call back after a delay in seconds of the guest's own time."""
        timer = Timer(self, callback)
        timer.remaining_s = max(0.0, delay_s)
        self._pending.add(timer)
        if self._held_since_s is None:
            self._run(timer)
        return timer

    async def sleep(self, delay_s: float) -> None:
        """Wait for a delay in seconds of the guest's own time."""
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        over = asyncio.Event()
        timer = self.after(delay_s, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    def hold(self) -> None:
        """Let no time pass until :meth:`release`. Idempotent."""
        if self._held_since_s is not None:
            return
        self._held_since_s = self.clock.monotonic_s()
        for timer in self._pending:
            timer.remaining_s = max(0.0, timer.due_s - self._held_since_s)
            if timer.task is not None:
                timer.task.cancel()
                timer.task = None

    def release(self) -> None:
        """Let time pass again. Idempotent."""
        if self._held_since_s is None:
            return
        self._held_total_s += self.clock.monotonic_s() - self._held_since_s
        self._held_since_s = None
        for timer in list(self._pending):
            self._run(timer)

    def discard(self, timer: Timer) -> None:
        """Forget a timer. Idempotent."""
        self._pending.discard(timer)
        if timer.task is not None and timer.task is not _current_task():
            timer.task.cancel()

    def close(self) -> None:
        """Forget all timers."""
        for timer in list(self._pending):
            self.discard(timer)

    def _run(self, timer: Timer) -> None:
        timer.due_s = self.clock.monotonic_s() + timer.remaining_s
        timer.task = asyncio.get_running_loop().create_task(self._fire(timer))

    async def _fire(self, timer: Timer) -> None:
        await self.clock.sleep_until(timer.due_s)
        if timer in self._pending:
            self._pending.discard(timer)
            timer.callback()


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
