"""The guest's event loop: readiness of file descriptors, timers, and tasks that yield.

Laws:
- Nothing that runs on the loop blocks. Long work is a generator that yields every few milliseconds.
- With nothing to do the loop sleeps in epoll without a timeout: an idle guest costs no CPU.
- An exception in a callback is the guest's own defect: it is logged and the loop goes on, because PID 1 must not die.
- Timers go by the time that the sandbox has lived, not by the clock: while it was hibernated, paused, or held for a checkpoint no
  timer comes nearer. gVisor's monotonic clock does not stand still for that: restored after an hour it has gone on by an hour (measured).
"""

from __future__ import annotations

import heapq
import os
import select
import sys
import time

from sandlot.protocol.fast_imports import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
READ_BYTES = 262144
"""At most as much is read at once."""
GONE = select.EPOLLHUP | select.EPOLLERR
STILL_S = 5.0
"""Who comes so late out of a wait that has its end was frozen meanwhile, or is another life of what waited."""
HOLD_MOST_S = 300.0
"""Timers are held for as long at most, lest a guest that nobody wakes any more misses its deadline."""
HOLD_TICK_S = 5.0


class Scratch:
    """Memory that reads go through.

    ``os.read`` of a large size takes fresh memory each time and gives most of it back; with glibc that is an mmap, page
    faults and an munmap for every read, which are dear under gVisor.
    """

    __slots__ = ("_memory", "_view")

    def __init__(self, size: int) -> None:
        self._memory = bytearray(size)
        self._view = memoryview(self._memory)

    def read(self, fd: int) -> bytes:
        """What one read gives; the errors are those of ``os.read``."""
        return bytes(self._view[: os.readv(fd, [self._memory])])


class Timer:
    """A callback due once; ``cancel`` is idempotent."""

    __slots__ = ("callback", "due_s")

    def __init__(self, due_s: float, callback: Callable[[], object]) -> None:
        self.due_s = due_s
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Do not call back."""
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.due_s < other.due_s


class Loop:
    """One loop; the guest has one."""

    __slots__ = ("_epoll", "_held_left_s", "_held_since_s", "_lost_s", "_masks", "_running", "_soon", "_tasks", "_timers", "_watched", "scratch")

    def __init__(self) -> None:
        self.scratch = Scratch(READ_BYTES)
        self._lost_s = 0.0
        self._held_since_s: float | None = None
        self._held_left_s = 0.0
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[int], object]] = {}
        self._masks: dict[int, int] = {}
        self._timers: list[Timer] = []
        self._tasks: deque[Generator[None, None, None]] = deque()
        self._soon: deque[Callable[[], object]] = deque()
        self._running = True

    def time(self) -> float:
        """Seconds that the sandbox has lived, from an arbitrary moment: a monotonic clock less what it stood still."""
        return (time.monotonic() if self._held_since_s is None else self._held_since_s) - self._lost_s

    def hold(self) -> None:
        """Time stands still from now on: a checkpoint is about to be taken. Idempotent."""
        if self._held_since_s is None:
            self._held_since_s = time.monotonic()
            self._held_left_s = HOLD_MOST_S

    def release(self) -> None:
        """Time goes on, in whatever life. Idempotent."""
        if self._held_since_s is not None:
            self._lost_s += time.monotonic() - self._held_since_s
            self._held_since_s = None

    def watch(self, fd: int, mask: int, callback: Callable[[int], object]) -> None:
        """Call back with the ready mask whenever the descriptor is ready; replaces an earlier watch."""
        before = self._masks.get(fd)
        if before is None:
            self._epoll.register(fd, mask)
        elif before != mask:
            self._epoll.modify(fd, mask)
        self._masks[fd] = mask
        self._watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Stop; to be called before the descriptor is closed. Idempotent."""
        if self._watched.pop(fd, None) is not None:
            del self._masks[fd]
            self._epoll.unregister(fd)

    def renew(self) -> None:
        """Ask the kernel anew about everything that is watched; as before where there is no descriptor for it.

        gVisor may keep an entry half that becomes ready while it is saved (measured): its descriptor is never told of again.
        """
        try:
            before, self._epoll = self._epoll, select.epoll()
        except OSError as error:  # whoever asked has more to do: a greeting to answer
            log(f"what is watched is not asked for anew: {error}")
            return
        for fd, mask in list(self._masks.items()):
            try:
                self._epoll.register(fd, mask)
            except OSError as error:
                del self._masks[fd], self._watched[fd]
                log(f"descriptor {fd} is watched no more: {error}")
        before.close()

    def after(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call back once after a delay."""
        timer = Timer(self.time() + delay_s, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def soon(self, callback: Callable[[], object]) -> None:
        """Call back in the next turn."""
        self._soon.append(callback)

    def task(self, work: Generator[None, None, None]) -> None:
        """Run a generator step by step, in turn with everything else."""
        self._tasks.append(work)

    def stop(self) -> None:
        """Let :meth:`run` return."""
        self._running = False

    def run(self) -> None:
        """Run until :meth:`stop`."""
        while self._running:
            self.turn()

    def turn(self) -> None:
        """One turn: wait for whatever is next, then do all that is due."""
        for fd, mask in self._wait():
            callback = self._watched.get(fd)
            if callback is not None:
                self._guarded(lambda callback=callback, mask=mask: callback(mask))  # type: ignore[misc]
        now = self.time()
        while self._timers and self._held_since_s is None and (self._timers[0].callback is None or self._timers[0].due_s <= now):
            timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                callback_, timer.callback = timer.callback, None
                self._guarded(callback_)
        for _ in range(len(self._soon)):
            self._guarded(self._soon.popleft())
        for _ in range(len(self._tasks)):
            work = self._tasks.popleft()
            if self._guarded(lambda work=work: self._step(work)):  # type: ignore[misc]
                self._tasks.append(work)

    def _wait(self) -> list[tuple[int, int]]:
        """What is ready; while that was waited for, time passed or did not."""
        timeout_s = self._timeout_s()
        if timeout_s <= 0:
            return self._epoll.poll(timeout_s)
        before_s = time.monotonic()
        ready = self._epoll.poll(timeout_s)
        passed_s = time.monotonic() - before_s
        if self._held_since_s is not None:
            self._held_left_s -= min(passed_s, timeout_s)
            if self._held_left_s <= 0:
                self.release()
        elif passed_s > timeout_s + STILL_S:
            self._lost_s += passed_s
        return ready

    def _timeout_s(self) -> float:
        if self._soon or self._tasks:
            return 0
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return -1
        return HOLD_TICK_S if self._held_since_s is not None else max(0.0, self._timers[0].due_s - self.time())

    @staticmethod
    def _step(work: Generator[None, None, None]) -> bool:
        try:
            next(work)
        except StopIteration:
            return False
        return True

    @staticmethod
    def _guarded(callback: Callable[[], object]) -> object:
        try:
            return callback()
        except Exception:  # noqa: BLE001 - PID 1 must outlive its own defects
            log_exception()
            return None


def log(text: str) -> None:
    """One line to the guest's own log, which the driver keeps or throws away; never blocks for long, never fails."""
    try:
        os.write(2, f"sandlot-guest: {text}\n".encode("utf-8", "replace")[:2000])
    except OSError:
        pass


def log_exception() -> None:
    """The exception being handled, with its innermost place."""
    kind, error, trace = sys.exc_info()
    place = ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    log(f"{kind.__name__ if kind else 'error'}: {error} at {place}")
