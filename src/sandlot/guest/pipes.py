"""Pipes of a child process: its output into bounded buffers, and input of the host to it."""

from __future__ import annotations

import fcntl
import os

from sandlot.guest.loop import READ, WRITE
from sandlot.protocol.fast_imports import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.loop import Loop
    from sandlot.guest.output import OutputLog

DRAIN_READS = 64
"""Maximum number of reads that drain a pipe, enough for any pipe."""
PIPE_BYTES = 262144
"""Size of an output pipe, for fewer and larger reads (F_SETPIPE_SZ, fcntl(2))."""


def open_pipe(*, roomy: bool = False) -> tuple[int, int]:
    """Open a close-on-exec pipe.

    Args:
        roomy: True to enlarge the pipe to ``PIPE_BYTES``, if the limits of the sandbox allow it.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    if roomy:
        try:
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            return reading, writing
    return reading, writing


class OutputPipe:
    """The pipe of one channel, which is read into the buffer of the channel as long as the buffer has room."""

    __slots__ = ("_changed", "_channel", "_loop", "_outputs", "_watching", "fd")

    def __init__(self, loop: Loop, fd: int, channel: int, outputs: OutputLog, changed: Callable[[], object]) -> None:
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
        """True until the end of the pipe was read, or the pipe was closed."""
        return self.fd >= 0

    def redirect(self, outputs: OutputLog) -> None:
        """Read into another log from now on, for the next cell."""
        self._outputs = outputs
        self.refresh()

    def refresh(self) -> None:
        """Watch the pipe, unless the buffer is full and has a slow reader."""
        wanted = self.is_open and self._outputs.may_read(self._channel)
        if wanted and not self._watching:
            self._loop.watch(self.fd, READ, self._readable)
        elif not wanted and self._watching:
            self._loop.unwatch(self.fd)
        self._watching = wanted

    def drain(self) -> bool:
        """Read all bytes that the pipe holds now. Return False if the buffer has no room for all of them."""
        for _ in range(DRAIN_READS):
            if self.is_open and not self._outputs.may_read(self._channel):
                return False
            if not self._read():
                break
        return True

    def settle(self) -> None:
        """Handle the end of the process. A pipe needs nothing: children may keep it open and continue to write."""

    def close(self) -> None:
        """Close the pipe. Idempotent."""
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
            data = self._loop.read_buffer.read(self.fd)
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
        """Handle a failed read, which is the end of a pipe."""
        self.close()


class InputPipe:
    """The standard input of a child. Bytes of the host are written as fast as the child reads.

    Attributes:
        accepted: Number of bytes that were queued so far.
    """

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
        """True until the input was ended or the pipe was closed."""
        return self._fd >= 0 and not self._closing

    def write(self, data: bytes, taken: Callable[[], object]) -> None:
        """Queue bytes. ``taken`` is called when they were written, or dropped because the child is gone."""
        self.accepted += len(data)
        if self._fd < 0:
            taken()
            return
        self._queue.append((memoryview(data), taken))
        self._flush()

    def finish(self) -> None:
        """Close the pipe after the queued bytes. Idempotent."""
        self._closing = True
        self._flush()

    def close(self) -> None:
        """Close the pipe now, and drop the queued bytes. Idempotent."""
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
