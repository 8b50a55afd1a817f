"""Event loop that simulates time and threads, so that a program with one seed runs the same way each time.

Invariants:
- Time passes only when no callback is ready, and then at once up to the next timer. An hour takes as long as the work that is due in it.
- Work for a thread runs at once in the loop's own thread; its result arrives one turn later. Work takes no processor time.
- Random bytes, such as those of ids, come from the seed. Tasks and futures hash to the number of their creation, so that a set of them has the same
  order in each run.
- A program that can never continue is reported at once: nothing is ready and no timer is set, or ``MAX_TURNS`` turns pass in one moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeVar

import pytest

from tests.support.clock import START

MAX_TURNS: Final = 100_000
"""Turns of the loop in one moment after which the program is stuck. A busy moment of a schedule has some hundred."""
CLEANUP_S: Final = 3600.0
"""Seconds that the tasks of a program have to end after the program. Tasks that are left then are abandoned."""

ResultT = TypeVar("ResultT")


class StuckError(Exception):
    """The program can never continue."""


class _Timers(selectors.SelectSelector):
    """Selector of a loop without files: waiting lets the simulated time pass."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._wait(timeout)
        return []


class _Future(asyncio.Future[Any]):
    def __new__(cls, *, loop: SimulatedLoop) -> Self:
        new = super().__new__(cls)
        new.number = next(loop.numbers)
        return new

    def __hash__(self) -> int:
        return self.number

    number: int


class _Task(asyncio.Task[Any]):
    def __new__(cls, _coro: Coroutine[Any, Any, Any], *, loop: SimulatedLoop, **_options: Any) -> Self:  # noqa: ANN401 - the loop's own
        new = super().__new__(cls)
        new.number = next(loop.numbers)
        return new

    def __hash__(self) -> int:
        return self.number

    number: int


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Event loop whose time is simulated.

    Attributes:
        turns: Number of turns that the loop has made.
        ends_s: Time after which the program counts as stuck.
        errors: Contexts of exceptions that no task has handled.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._turn_of_moment = 0
        self.turns = 0
        self.ends_s = math.inf
        self.numbers = itertools.count(1)
        self.errors: list[dict[str, Any]] = []
        super().__init__(_Timers(self._wait))
        self.set_task_factory(_new_task)
        self.set_exception_handler(lambda _loop, context: self.errors.append(context))

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]  # noqa: ANN401 - the loop's own
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, _executor: object, func: Callable[..., ResultT], *args: Any) -> asyncio.Future[ResultT]:  # type: ignore[override]  # noqa: ANN401 - the loop's own
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - the caller's
            self.call_soon(_resolve, future, None, error)
        else:
            self.call_soon(_resolve, future, result, None)
        return future

    def _wait(self, timeout_s: float | None) -> None:
        self.turns += 1
        self._turn_of_moment += 1
        if timeout_s is None:
            raise StuckError("Nothing is ready and no timer is set: the program waits for ever.")
        if timeout_s > 0:
            self._now_s += timeout_s
            self._turn_of_moment = 0
            if self._now_s > self.ends_s:
                raise StuckError(f"The program has not ended by {self.ends_s:.0f} s.")
        elif self._turn_of_moment > MAX_TURNS:
            raise StuckError(f"{MAX_TURNS} turns have passed in one moment: the program never waits.")


class SimulatedClock:
    """Clock that shows the time of the simulated loop. It has the methods of ``core.ports.Clock``."""

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return START + timedelta(seconds=self.monotonic_s())

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        await asyncio.sleep(max(0.0, moment_monotonic_s - self.monotonic_s()))


class _InlineThread:
    """Thread that has ended when it has been started."""

    def __init__(self, *, target: Callable[[], object], **_options: object) -> None:
        self._target = target

    def start(self) -> None:
        self._target()


def simulate(program: Callable[[], Coroutine[Any, Any, ResultT]], seed: int) -> ResultT:
    """Run a program on a simulated loop and return its result.

    Args:
        program: Function that returns the coroutine to run.
        seed: Seed of the random bytes.

    Raises:
        StuckError: The program can never continue.
    """
    with _seeded(seed):
        runner = asyncio.Runner(loop_factory=SimulatedLoop)
        try:
            return runner.run(program())
        finally:
            loop = runner.get_loop()
            assert isinstance(loop, SimulatedLoop)
            loop.ends_s = loop.time() + CLEANUP_S
            with contextlib.suppress(StuckError):
                runner.close()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Take random bytes from the seed, run threads inline, and let work take no processor time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "_urandom", random.Random(seed).randbytes)  # the source of `secrets`
        patch.setattr(threading, "Thread", _InlineThread)
        patch.setattr(time, "thread_time", lambda: 0.0)
        yield


def _new_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> _Task:  # noqa: ANN401 - the loop's own
    assert isinstance(loop, SimulatedLoop)
    return _Task(coro, loop=loop, **options)


def _resolve(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
