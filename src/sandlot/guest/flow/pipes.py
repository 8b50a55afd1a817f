"""The guest's ends of a child's pipes: output into buffers, input from the host."""

from __future__ import annotations

import fcntl
import os

from sandlot.guest.flow.loop import READ, WRITE
from sandlot.protocol.fast_imports import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.flow.loop import Loop
    from sandlot.guest.flow.outputs import Outputs

DRAIN_READS = 64
"""At an end, how many reads of a pipe at most: far more than any pipe holds."""
PIPE_BYTES = 262144
"""Room in an output pipe: fewer, larger reads (F_SETPIPE_SZ, fcntl(2))."""


def open_pipe(*, roomy: bool = False) -> tuple[int, int]:
    """A close-on-exec pipe, with more room than usual where asked for and allowed."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    if roomy:
        try:
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            return reading, writing
    return reading, writing


class OutputPipe:
    """Reads one channel's pipe into its buffer, as long as the buffer wants more."""

    __slots__ = ("_changed", "_channel", "_loop", "_outputs", "_watching", "fd")

    def __init__(self, loop: Loop, fd: int, channel: int, outputs: Outputs, changed: Callable[[], object]) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._loop = loop
        self._channel = channel
        self._outputs = outputs
        self._changed = changed
        self._watching = False
        self.refresh()

    @property
    def is_open(self) -> bool:
        """Whether the far end may still write."""
        return self.fd >= 0

    def redirect(self, outputs: Outputs) -> None:
        """Into another buffer from now on (the next cell's)."""
        self._outputs = outputs
        self.refresh()

    def refresh(self) -> None:
        """Watch the pipe, or stop where the buffer is full and somebody reads it slowly."""
        wanted = self.is_open and self._outputs.wants(self._channel)
        if wanted and not self._watching:
            self._loop.watch(self.fd, READ, self._readable)
        elif not wanted and self._watching:
            self._loop.unwatch(self.fd)
        self._watching = wanted

    def drain(self) -> bool:
        """Read what is there now, without waiting and without end; False where the buffer wants no more yet."""
        for _ in range(DRAIN_READS):
            if self.is_open and not self._outputs.wants(self._channel):
                return False
            if not self._read():
                break
        return True

    def settle(self) -> None:
        """Its process has ended; others may hold it open and go on writing."""

    def close(self) -> None:
        """Stop for good. Idempotent."""
        if self.is_open:
            if self._watching:
                self._loop.unwatch(self.fd)
            os.close(self.fd)
            self.fd = -1
            self._watching = False

    def _readable(self, _mask: int) -> None:
        self._read()
        self._changed()
        self.refresh()

    def _read(self) -> bool:
        if not self.is_open:
            return False
        try:
            data = self._loop.scratch.read(self.fd)
        except BlockingIOError:
            return False
        except OSError:
            self._failed()
            return False
        if not data:
            self.close()
            return False
        self._outputs.buffers[self._channel].append(data)
        return True

    def _failed(self) -> None:
        """A read failed: of a pipe, that is the end."""
        self.close()


class InputPipe:
    """Writes what the host sends to a child's standard input, as fast as the child reads."""

    __slots__ = ("_closing", "_fd", "_loop", "_queue", "accepted")

    def __init__(self, loop: Loop, fd: int) -> None:
        os.set_blocking(fd, False)
        self._loop = loop
        self._fd = fd
        self._queue: deque[tuple[memoryview, Callable[[], object]]] = deque()
        self._closing = False
        self.accepted = 0

    @property
    def is_open(self) -> bool:
        """Whether the child may still get more."""
        return self._fd >= 0 and not self._closing

    def write(self, data: bytes, taken: Callable[[], object]) -> None:
        """Queue bytes; ``taken`` is called once they were dealt with, also where the child is gone and nobody wants them."""
        self.accepted += len(data)
        if self._fd < 0:
            taken()
            return
        self._queue.append((memoryview(data), taken))
        self._flush()

    def finish(self) -> None:
        """Close after what is queued. Idempotent."""
        self._closing = True
        self._flush()

    def close(self) -> None:
        """Close now. Idempotent."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
        while self._queue:
            _, taken = self._queue.popleft()
            taken()

    def _flush(self, _mask: int = 0) -> None:
        while self._queue and self._fd >= 0:
            rest, taken = self._queue[0]
            try:
                written = os.write(self._fd, rest)
            except BlockingIOError:
                self._loop.watch(self._fd, WRITE, self._flush)
                return
            except OSError:
                self.close()
                return
            if written == len(rest):
                self._queue.popleft()
                taken()
            else:
                self._queue[0] = (rest[written:], taken)
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            if self._closing:
                self.close()
