"""The guest's I/O shell around the protocol: two descriptors, one connection, never a blocking call (law 4)."""

from __future__ import annotations

import os

from sandlot.guest.flow.loop import GONE, READ, WRITE, log
from sandlot.protocol import events
from sandlot.protocol.connection import GUEST, Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.flow.loop import Loop

WRITE_BYTES = 256 * 1024
"""Several frames as one write: every write of the guest costs a trip through its kernel."""
PATIENCE_S = 0.001


class Wire:
    """Moves bytes between the link's descriptors and a :class:`Connection`.

    Args:
        loop: The guest's loop.
        fd_in: Where the host's frames come from.
        fd_out: Where the guest's frames go.
        handle: Called with each event.
    """

    __slots__ = ("_fd_in", "_fd_out", "_flush_due", "_handle", "_is_later", "_loop", "_pending", "_waiting", "connection")

    def __init__(self, loop: Loop, fd_in: int, fd_out: int, handle: Callable[[events.Event], object]) -> None:
        self.connection = Connection(GUEST)
        self._loop = loop
        self._fd_in = fd_in
        self._fd_out = fd_out
        self._handle = handle
        self._pending = memoryview(b"")
        self._waiting = False
        self._flush_due = False
        self._is_later = False
        for fd in (fd_in, fd_out):
            os.set_blocking(fd, False)
        loop.watch(fd_in, READ, self._readable)

    def flush_soon(self) -> None:
        """Write what is queued, once this turn's work is done."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.soon(self._flush)

    def flush_later(self) -> None:
        """Write what is queued in a moment, with what comes until then: each write wakes the host, which takes longer than to make one."""
        if not self._flush_due and not self._is_later:
            self._is_later = True
            self._loop.after(PATIENCE_S, self._flush_what_waited)

    def _flush_what_waited(self) -> None:
        self._is_later = False
        self.flush_soon()

    def _readable(self, mask: int) -> None:
        try:
            data = self._loop.scratch.read(self._fd_in)
        except BlockingIOError:
            return
        if not data:
            # Nobody holds the other end and nobody ever will: without a host there is no reason to live on. Drivers
            # that let a service come back hold the pipe open themselves (a FIFO opened for reading and writing).
            if mask & GONE:
                log("the link was closed")
                self._loop.stop()
            return
        for event in self.connection.receive(data):
            if isinstance(event, events.Greeted):
                self._pending = memoryview(b"")  # half a frame of the connection before is nobody's any more
                self._loop.renew()  # this may be another life, and what waits to be written has to hear of room
            self._handle(event)
        self.flush_soon()

    def _flush(self) -> None:
        self._flush_due = False
        if self._waiting:
            return
        if not self._pending:
            self._pending = memoryview(self.connection.next_batch(WRITE_BYTES))
        if self._pending:
            try:
                written = os.write(self._fd_out, self._pending)
            except BlockingIOError:
                written = 0
            except BrokenPipeError:
                # The service is between two lives; its next HELLO starts anew.
                self._pending = memoryview(b"")
                written = 0
                return
            self._pending = self._pending[written:]
            if self._pending:
                self._waiting = True
                self._loop.watch(self._fd_out, WRITE, self._writable)
            else:
                self._pending = memoryview(self.connection.next_batch(WRITE_BYTES))
                if self._pending:
                    self.flush_soon()
        for event in self.connection.take_events():
            self._handle(event)

    def _writable(self, _mask: int) -> None:
        self._loop.unwatch(self._fd_out)
        self._waiting = False
        self._flush()
