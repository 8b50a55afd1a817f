"""Pipes between the guest and a child process: output is read into bounded buffers, and input from the host is written to the child."""

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
"""Maximum number of reads in :meth:`OutputPipe.drain`. This many reads empty even the largest pipe."""
PIPE_BYTES = 262144
"""Capacity of an output pipe in bytes. More than the default, so that reads are fewer and larger (F_SETPIPE_SZ, fcntl(2))."""


def open_pipe(*, roomy: bool = False) -> tuple[int, int]:
    """Open a pipe whose descriptors are both close-on-exec.

    Args:
        roomy: True to enlarge the pipe to ``PIPE_BYTES``. If the kernel refuses, the pipe keeps its default capacity.

    Returns:
        Descriptor of the read end, descriptor of the write end.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    if roomy:
        try:
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            return reading, writing
    return reading, writing


class OutputPipe:
    """Read end of a pipe. The output is read from the pipe into the buffer of one channel, as long as the buffer accepts more bytes.

    Args:
        loop: The guest's loop.
        fd: Descriptor of the read end; ownership passes to this object.
        channel: Channel of the output.
        outputs: Log with the buffer of the channel.
        changed: Called after each read that the loop has triggered, including a read that closes the pipe.

    Attributes:
        fd: Descriptor of the read end; -1 once the pipe is closed.
    """

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
        """True if the pipe is open. The pipe is closed when its end of file is read, or by :meth:`close`."""
        return self.fd >= 0

    def redirect(self, outputs: OutputLog) -> None:
        """Append output to another log from now on, because the next cell of the kernel begins."""
        self._outputs = outputs
        self.refresh()

    def refresh(self) -> None:
        """Watch the pipe if the pipe is open and the buffer accepts more bytes. Otherwise stop watching the pipe."""
        wanted = self.is_open and self._outputs.may_read(self._channel)
        if wanted and not self._watching:
            self._loop.watch(self.fd, READ, self._readable)
        elif not wanted and self._watching:
            self._loop.unwatch(self.fd)
        self._watching = wanted

    def drain(self) -> bool:
        """Read all bytes that are in the pipe now. Return False if bytes may be left because the buffer accepts no more."""
        for _ in range(DRAIN_READS):
            if self.is_open and not self._outputs.may_read(self._channel):
                return False
            if not self._read():
                break
        return True

    def settle(self) -> None:
        """Handle the end of the process. Does nothing for a pipe: children of the process may keep the pipe open and continue to write."""

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
        """Handle a read that has failed: treat the error as the end of the pipe."""
        self.close()


class InputPipe:
    """Write end of a pipe that is the standard input of a child process. Queued bytes are written as fast as the child process reads.

    Args:
        loop: The guest's loop.
        fd: Descriptor of the write end; ownership passes to this object.
        on_closed: Called when ``is_open`` has become False.

    Attributes:
        accepted: Total number of bytes that were passed to :meth:`write`.
    """

    __slots__ = ("_closing", "_fd", "_loop", "_on_closed", "_queue", "accepted")

    def __init__(self, loop: Loop, fd: int, on_closed: Callable[[], object]) -> None:
        os.set_blocking(fd, False)
        self._loop = loop
        self._fd = fd
        self._queue: deque[tuple[memoryview, Callable[[], object]]] = deque()
        self._on_closed = on_closed
        self._closing = False
        self.accepted = 0

    @property
    def is_open(self) -> bool:
        """True until :meth:`finish` or :meth:`close` was called, or the child has closed its standard input."""
        return self._fd >= 0 and not self._closing

    def write(self, data: bytes, taken: Callable[[], object]) -> None:
        """Queue bytes for the child.

        Args:
            data: Bytes to write.
            taken: Called when all these bytes were written, or were dropped because the pipe is closed.
        """
        self.accepted += len(data)
        if self._fd < 0:
            taken()
            return
        self._queue.append((memoryview(data), taken))
        self._flush()

    def finish(self) -> None:
        """Close the pipe as soon as the queued bytes were written. Idempotent."""
        was_open, self._closing = self.is_open, True
        self._flush()
        if was_open:
            self._on_closed()

    def close(self) -> None:
        """Close the pipe now, and drop the bytes that are queued. Idempotent."""
        was_open = self.is_open
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
        while self._queue:
            _, taken = self._queue.popleft()
            taken()
        if was_open:
            self._on_closed()

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
