"""Clock and timers of a scripted guest. The timers use a clock that the test passes, and stop while the guest is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class GuestClock(Protocol):
    """The part of the service's clock that a scripted guest uses."""

    def monotonic_s(self) -> float:
        """Return the seconds since an arbitrary fixed moment."""
        ...

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        """Wait until :meth:`monotonic_s` returns ``moment_monotonic_s`` or more."""
        ...


class LoopClock:
    """Clock that uses the time of the running event loop."""

    def monotonic_s(self) -> float:
        """Return the time of the event loop in seconds."""
        return asyncio.get_running_loop().time()

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        """Wait until the time of the event loop is ``moment_monotonic_s`` or later."""
        await asyncio.sleep(max(0.0, moment_monotonic_s - self.monotonic_s()))


class Timer:
    """Timer that calls a function once, after a delay."""

    __slots__ = ("_timers", "callback", "due_s", "remaining_s", "task")

    def __init__(self, timers: Timers, callback: Callable[[], object]) -> None:
        self._timers = timers
        self.callback = callback
        self.due_s = 0.0
        self.remaining_s = 0.0
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Cancel the timer, so that its function is not called. Idempotent."""
        self._timers.discard(self)


class Timers:
    """The timers of one guest.

    Args:
        clock: Clock that the timers use.
    """

    def __init__(self, clock: GuestClock) -> None:
        self.clock = clock
        self._pending: set[Timer] = set()
        self._held_since_s: float | None = None
        self._held_total_s = 0.0

    def time_s(self) -> float:
        """Return the guest's time in seconds. The guest's time stops between :meth:`hold` and :meth:`release`."""
        return (self.clock.monotonic_s() if self._held_since_s is None else self._held_since_s) - self._held_total_s

    def after(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Start and return a timer that calls a function after ``delay_s`` seconds. Seconds between :meth:`hold` and :meth:`release` do not count."""
        timer = Timer(self, callback)
        timer.remaining_s = max(0.0, delay_s)
        self._pending.add(timer)
        if self._held_since_s is None:
            self._run(timer)
        return timer

    async def sleep(self, delay_s: float) -> None:
        """Wait for ``delay_s`` seconds. Seconds between :meth:`hold` and :meth:`release` do not count."""
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
        """Stop the guest's time and all timers until :meth:`release`. Idempotent."""
        if self._held_since_s is not None:
            return
        self._held_since_s = self.clock.monotonic_s()
        for timer in self._pending:
            timer.remaining_s = max(0.0, timer.due_s - self._held_since_s)
            if timer.task is not None:
                timer.task.cancel()
                timer.task = None

    def release(self) -> None:
        """Let the guest's time and all timers continue after :meth:`hold`. Idempotent."""
        if self._held_since_s is None:
            return
        self._held_total_s += self.clock.monotonic_s() - self._held_since_s
        self._held_since_s = None
        for timer in list(self._pending):
            self._run(timer)

    def discard(self, timer: Timer) -> None:
        """Cancel a timer. Idempotent."""
        self._pending.discard(timer)
        if timer.task is not None and timer.task is not _current_task():
            timer.task.cancel()

    def close(self) -> None:
        """Cancel all timers."""
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
