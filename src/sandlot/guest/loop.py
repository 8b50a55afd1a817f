"""Event loop of the guest: watches descriptors, calls the callbacks of timers, and runs generators step by step.

Invariants:
- No callback blocks. Long work is a generator that yields every few milliseconds.
- While the loop has no timers and no work, it sleeps in epoll without a timeout, so an idle guest takes no CPU time.
- An exception in a callback is a defect of the guest. The exception is logged and the loop continues, because PID 1 must not end.
- Timers count only the time in which the sandbox runs. They do not advance while the sandbox is hibernated, paused or frozen for a
  checkpoint. gVisor's monotonic clock does advance: after an hour on disk, it shows an hour more (measured).
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
"""Maximum number of bytes that one read returns."""
GONE = select.EPOLLHUP | select.EPOLLERR
"""Bits of an epoll mask that report a closed or failed descriptor."""
FROZEN_AFTER_S = 5.0
"""If epoll returns this many seconds later than its timeout, the loop assumes that the sandbox was frozen or restored meanwhile."""
MAX_HOLD_S = 300.0
"""Maximum number of seconds for which the clock is stopped. Because of this limit, a guest that is never woken still reaches its deadline."""
HOLD_TICK_S = 5.0
"""Maximum number of seconds between two checks of whether the clock was stopped for ``MAX_HOLD_S`` seconds."""


class ReadBuffer:
    """Memory that is reused for every read of a descriptor.

    ``os.read`` with a large size allocates memory for every call and frees most of the memory again. With glibc, each such call causes
    an mmap, page faults and an munmap, which take 465 µs in gVisor (measured).

    Args:
        size: Maximum number of bytes of one read.
    """

    __slots__ = ("_memory", "_view")

    def __init__(self, size: int) -> None:
        self._memory = bytearray(size)
        self._view = memoryview(self._memory)

    def read(self, fd: int) -> bytes:
        """Read a descriptor once and return a copy of the bytes. Raises the same errors as ``os.read``."""
        return bytes(self._view[: os.readv(fd, [self._memory])])


class Timer:
    """A callback that the loop calls once at a given time.

    Args:
        due_s: Time of the call, in seconds of the loop's clock.
        callback: Function to call.
    """

    __slots__ = ("callback", "due_s")

    def __init__(self, due_s: float, callback: Callable[[], object]) -> None:
        self.due_s = due_s
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Prevent the call. Does nothing if the callback was called or the timer was cancelled before."""
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.due_s < other.due_s


class Loop:
    """The event loop of the guest. The guest has exactly one loop and one thread."""

    __slots__ = ("_epoll", "_held_left_s", "_held_since_s", "_lost_s", "_masks", "_running", "_soon", "_tasks", "_timers", "_watched", "read_buffer")

    def __init__(self) -> None:
        self.read_buffer = ReadBuffer(READ_BYTES)
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
        """Return the seconds of the sandbox's monotonic clock, which stands still from :meth:`hold_clock` until :meth:`release_clock`."""
        return (time.monotonic() if self._held_since_s is None else self._held_since_s) - self._lost_s

    def hold_clock(self) -> None:
        """Stop the sandbox's clock until :meth:`release_clock` is called, but for at most ``MAX_HOLD_S`` seconds. Idempotent."""
        if self._held_since_s is None:
            self._held_since_s = time.monotonic()
            self._held_left_s = MAX_HOLD_S

    def release_clock(self) -> None:
        """Start the clock again after :meth:`hold_clock`. Does nothing if the clock is running."""
        if self._held_since_s is not None:
            self._lost_s += time.monotonic() - self._held_since_s
            self._held_since_s = None

    def watch(self, fd: int, mask: int, callback: Callable[[int], object]) -> None:
        """Call a function whenever a descriptor is ready. Replaces an earlier watch of the descriptor.

        Args:
            fd: Descriptor to watch.
            mask: Conditions to wait for: ``READ``, ``WRITE`` or both.
            callback: Called with the epoll mask of the conditions that have occurred.
        """
        before = self._masks.get(fd)
        if before is None:
            self._epoll.register(fd, mask)
        elif before != mask:
            self._epoll.modify(fd, mask)
        self._masks[fd] = mask
        self._watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor. Must be called before the descriptor is closed. Does nothing if the descriptor is not watched."""
        if self._watched.pop(fd, None) is not None:
            del self._masks[fd]
            self._epoll.unregister(fd)

    def rearm(self) -> None:
        """Register all watched descriptors in a new epoll instance. If no new instance can be opened, keep the old instance.

        If a descriptor becomes ready while gVisor saves a checkpoint, the restored epoll instance may never report the descriptor
        (measured).
        """
        try:
            before, self._epoll = self._epoll, select.epoll()
        except OSError as error:  # not raised, because the caller must still respond to the handshake
            log(f"cannot create a new epoll instance ({error}); keeping the old instance")
            return
        for fd, mask in list(self._masks.items()):
            try:
                self._epoll.register(fd, mask)
            except OSError as error:
                del self._masks[fd], self._watched[fd]
                log(f"can no longer watch descriptor {fd}: {error}")
        before.close()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call a function once, after a delay.

        Args:
            delay_s: Seconds of the sandbox's clock, which does not advance while the sandbox is suspended.
            callback: Function to call.

        Returns:
            The timer, with which the caller can cancel the call.
        """
        timer = Timer(self.time() + delay_s, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call a function once, at the end of the current iteration of the loop or in the next iteration."""
        self._soon.append(callback)

    def add_task(self, work: Generator[None, None, None]) -> None:
        """Run a generator to its end. Each iteration of the loop calls ``next`` once."""
        self._tasks.append(work)

    def stop(self) -> None:
        """Make :meth:`run` return after the current iteration."""
        self._running = False

    def run(self) -> None:
        """Run the loop until :meth:`stop` is called."""
        while self._running:
            self.turn()

    def turn(self) -> None:
        """Run one iteration: wait for a ready descriptor, a due timer or queued work, and run all callbacks that are due."""
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
        """Wait for ready descriptors, and return each with its mask. If the sandbox was frozen meanwhile, the clock does not count the wait."""
        timeout_s = self._timeout_s()
        if timeout_s <= 0:
            return self._epoll.poll(timeout_s)
        before_s = time.monotonic()
        ready = self._epoll.poll(timeout_s)
        passed_s = time.monotonic() - before_s
        if self._held_since_s is not None:
            self._held_left_s -= min(passed_s, timeout_s)
            if self._held_left_s <= 0:
                self.release_clock()
        elif passed_s > timeout_s + FROZEN_AFTER_S:
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
        except Exception:  # noqa: BLE001 - PID 1 must not end because of a defect
            log_exception()
            return None


def log(text: str) -> None:
    """Write one line to the guest's standard error. Never raises. The sandbox's driver decides whether to keep the output."""
    try:
        os.write(2, f"sandlot-guest: {text}\n".encode("utf-8", "replace")[:2000])
    except OSError:
        pass


def log_exception() -> None:
    """Log the exception that the caller is handling, with the file and line that raised it."""
    kind, error, trace = sys.exc_info()
    place = ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    log(f"{kind.__name__ if kind else 'error'}: {error} at {place}")
