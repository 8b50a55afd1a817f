"""The guest's end of the link: two descriptors, one protocol connection, and batched writes.

Each write wakes the host's process. Waking a process takes 150 µs, which is longer than most work of the guest. Therefore the queued
frames are written together at the end of each iteration of the loop. Messages that may be delayed are written together with later
messages.
"""

from __future__ import annotations

import os

from sandlot.guest.loop import GONE, READ, WRITE, log
from sandlot.protocol import events
from sandlot.protocol.connection import GUEST, Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.loop import Loop

WRITE_BYTES = 256 * 1024
"""Number of bytes after which no further frame is added to a write to the link. The last frame may exceed this number."""
FLUSH_LATER_S = 0.001
"""Seconds for which :meth:`LinkConnection.flush_later` waits for further frames."""


class LinkConnection:
    """Moves bytes between the descriptors of the link and a :class:`Connection`, without ever blocking.

    Args:
        loop: The guest's loop.
        fd_in: Descriptor from which the host's frames are read.
        fd_out: Descriptor to which the guest's frames are written.

    Attributes:
        protocol: Protocol state of the link, with the queue of frames to write.
    """

    __slots__ = ("_fd_in", "_fd_out", "_is_flush_due", "_is_flush_timed", "_is_full", "_loop", "_on_event", "_unwritten", "protocol")

    def __init__(self, loop: Loop, fd_in: int, fd_out: int) -> None:
        self.protocol = Connection(GUEST)
        self._loop = loop
        self._fd_in = fd_in
        self._fd_out = fd_out
        self._on_event: Callable[[events.Event], object] = _drop
        self._unwritten = memoryview(b"")
        self._is_full = False
        self._is_flush_due = False
        self._is_flush_timed = False
        for fd in (fd_in, fd_out):
            os.set_blocking(fd, False)

    def start(self, on_event: Callable[[events.Event], object]) -> None:
        """Begin to read the link.

        Args:
            on_event: Called with each protocol event that the received or written frames cause.
        """
        self._on_event = on_event
        self._loop.watch(self._fd_in, READ, self._on_readable)

    def is_asleep(self) -> bool:
        """Return True while the guest is asleep, which means that the guest serves no call except ``guest.wake``."""
        return self.protocol.asleep

    def flush_soon(self) -> None:
        """Write the queued frames at the end of the current iteration of the loop, or in the next iteration."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def flush_later(self) -> None:
        """Write the queued frames after ``FLUSH_LATER_S`` seconds, together with the frames that are queued in that time."""
        if not self._is_flush_due and not self._is_flush_timed:
            self._is_flush_timed = True
            self._loop.call_later(FLUSH_LATER_S, self._on_flush_timer)

    def _on_flush_timer(self) -> None:
        self._is_flush_timed = False
        self.flush_soon()

    def _on_readable(self, mask: int) -> None:
        try:
            data = self._loop.read_buffer.read(self._fd_in)
        except BlockingIOError:
            return
        if not data:
            # EPOLLHUP means that no process has the host's end of the link open. The guest then ends, because no process can open the
            # host's end again. If a driver supports a restart of the service, EPOLLHUP never occurs: a process of the sandbox keeps
            # the FIFO of the link open for reading and writing.
            if mask & GONE:
                log("the link was closed")
                self._loop.stop()
            return
        for event in events.join_bytes(self.protocol.receive(data)):
            if isinstance(event, events.Greeted):
                self._unwritten = memoryview(b"")  # drop the rest of a frame that was meant for the earlier connection
                self._loop.rearm()  # after a restore, the old epoll instance may never report that the link is writable
            self._on_event(event)
        self.flush_soon()

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_full:
            return
        if not self._unwritten:
            self._unwritten = memoryview(self.protocol.next_batch(WRITE_BYTES))
        if self._unwritten:
            try:
                written = os.write(self._fd_out, self._unwritten)
            except BlockingIOError:
                written = 0
            except BrokenPipeError:
                # No service has the link open. Drop the frames that were about to be written, because the handshake of the next service
                # begins a new connection.
                self._unwritten = memoryview(b"")
                return
            self._unwritten = self._unwritten[written:]
            if self._unwritten:
                self._is_full = True
                self._loop.watch(self._fd_out, WRITE, self._on_writable)
            else:
                self._unwritten = memoryview(self.protocol.next_batch(WRITE_BYTES))
                if self._unwritten:
                    self.flush_soon()
        for event in self.protocol.take_events():
            self._on_event(event)

    def _on_writable(self, _mask: int) -> None:
        self._loop.unwatch(self._fd_out)
        self._is_full = False
        self._flush()


def _drop(_event: events.Event) -> None:
    """Ignore an event. This callback is used until :meth:`LinkConnection.start` sets another callback."""
