"""The output of the kernel in its original order: text of cells, displays, errors, and starts and ends of cells.

Invariants:
- Output is sent in the order in which it was written, across both streams, displays and errors, and across threads.
- Text is delayed by at most ``FLUSH_DELAY_S`` or ``MAX_DELAYED_CHARS``, and never beyond a display, an error, the end of a cell, a fork
  or the start of a program. ``flush`` sends at once. The guest reads the output of programs through pipes. So before a program starts,
  the main thread waits until the guest has read all earlier output; other threads, and tasks between cells, do not wait.
- A thread flushes delayed text. Waking the thread takes 0.1 ms or more, longer than most cells run. So the thread is not woken at the
  start of a cell; the guest requests a flush a little later if the cell still runs.
- The first ``IMMEDIATE_LINES`` lines of a cell, and the first lines after ``SILENCE_S`` without output, are sent by the thread that writes them.
  Later lines wait for the flusher, which code that does not release the interpreter lock delays (``sum(range(10**9))``, a long match).
- Output never fails because of its characters: characters that UTF-8 cannot encode are written with backslashes.
- In a forked child, output goes to descriptors 1 and 2 line by line, never to the guest's socket.
"""

from __future__ import annotations

import time
from _thread import allocate_lock, get_ident
from collections import deque

from .channel import write_all
from .flusher import Flusher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .channel import Channel
    from .interrupts import Interrupts

STDOUT, STDERR = 1, 2
MAX_DELAYED_CHARS = 32768
FLUSH_DELAY_S = 0.03
SILENCE_S = 0.01
IMMEDIATE_LINES = 4
CHUNK_CHARS = 65536
ENCODING, ERRORS = "utf-8", "backslashreplace"


class Output:
    """A queue of the kernel's output.

    Args:
        interrupts: Interrupts are postponed while the main thread sends.

    Attributes:
        parts: Unsent output: (cell, channel, text or bytes) or (None, 0, message).
        size: Approximate number of unsent characters and bytes.
        is_flush_scheduled: True if a flush of the delayed output is scheduled.
        needs_attention: True if the next write must call :meth:`on_write`.
        is_muted: True if output is dropped.
        was_flush_requested: True if the guest has requested a flush since the last cell ended.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self.parts: deque[tuple[Any, int, Any]] = deque()
        self.size = 0
        self.is_flush_scheduled = True
        self.needs_attention = False
        self.is_muted = False
        self.was_flush_requested = False
        self._interrupts = interrupts
        self._channel: Channel | None = None
        self._main_thread = get_ident()
        self._lock = allocate_lock()
        self._lock_owner = 0
        self._flusher: Flusher | None = None
        self._flush_fd = -1
        """Pipe on which the guest requests a flush; -1 if there is none or a cell has closed it."""
        self._immediate_lines = IMMEDIATE_LINES
        self._sent_s = 0.0

    def connect(self, channel: Channel, flush_fd: int = -1) -> None:
        """Send to the guest from now on.

        Args:
            channel: Messages to the guest.
            flush_fd: Pipe on which the guest requests a flush of a cell that runs for a while; -1 for none.
        """
        self._channel = channel
        self._main_thread = get_ident()
        self._flush_fd = flush_fd
        if flush_fd >= 0:
            self._start_flusher()
        self.begin_cell()

    def begin_cell(self) -> None:
        """Prepare for the output of a new cell. An interrupt may have left the state of an earlier cell."""
        self._immediate_lines = IMMEDIATE_LINES
        flusher = self._flusher
        # A flush may be requested for this cell before the kernel has read the cell from its socket.
        self.is_flush_scheduled = flusher is not None and flusher.is_requested_by_guest and not self.was_flush_requested
        self.needs_attention = True

    def send_start(self, message: dict[str, Any]) -> None:
        """Send the start of a cell, together with its first output or when the guest requests a flush."""
        self.parts.append((None, 0, message))
        if not self.is_flush_scheduled:
            self.flush()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message after all earlier output."""
        self.parts.append((None, 0, message))
        self.flush()

    def on_write(self, *, ends_line: bool) -> None:
        """Send new output now, or schedule a flush."""
        now_s = time.monotonic()
        if now_s - self._sent_s >= SILENCE_S:
            self._immediate_lines = IMMEDIATE_LINES
        if ends_line and self._immediate_lines:
            self._immediate_lines -= 1
            self._sent_s = now_s
            self.flush()
            return
        self.needs_attention = self._immediate_lines > 0
        if not self.is_flush_scheduled:
            self._schedule_flush()

    def flush_delayed(self) -> None:
        """Send the delayed output. Called by the flusher's thread."""
        self.is_flush_scheduled = False
        self.needs_attention = True
        self._sent_s = time.monotonic()
        self.flush()

    def _schedule_flush(self) -> None:
        self.is_flush_scheduled = True
        flusher = self._flusher
        if flusher is None or flusher.is_over:
            flusher = self._start_flusher()
        if flusher is None:  # without a flusher, output cannot be delayed
            self.is_flush_scheduled, self.needs_attention = False, True
            self.flush()
            return
        flusher.wake()

    def _start_flusher(self) -> Flusher | None:
        """Start the flusher's thread. Return None if no further thread or descriptor is allowed."""
        is_main = get_ident() == self._main_thread
        self._interrupts.depth += is_main
        try:
            self._keep_flush_fd()
            self._flusher = Flusher(self.flush_delayed, self._on_flush_request, self._flush_fd, FLUSH_DELAY_S)
        except (RuntimeError, OSError):
            self._flusher = None
        finally:
            self._interrupts.depth -= is_main
        return self._flusher

    def _keep_flush_fd(self) -> None:
        """Take over the state of the flush pipe from the flusher: a cell may have closed the pipe."""
        if self._flusher is not None:
            self._flush_fd = self._flusher.request_fd

    def _on_flush_request(self) -> None:
        self.was_flush_requested = True

    def flush(self) -> None:
        """Send all output.

        Raises:
            OSError: The guest or a cell has closed the socket.
        """
        ident = get_ident()
        if self._lock_owner == ident:
            return  # called by a finalizer or a signal handler during a flush, which sends its output too
        interrupts = self._interrupts
        if ident != self._main_thread:
            with self._lock:
                self._lock_owner = ident
                try:
                    self._drain(bool)  # bool() is False: never give up
                finally:
                    self._lock_owner = 0
            return
        interrupts.depth += 1
        try:
            while not self._lock.acquire(timeout=0.1):
                if interrupts.pending and interrupts.in_user_code:
                    break
            else:
                self._lock_owner = ident
                try:
                    self._drain(lambda: interrupts.pending and interrupts.in_user_code)
                finally:
                    self._lock_owner = 0
                    self._lock.release()
        finally:
            interrupts.depth -= 1
        interrupts.check()

    def flush_and_sync(self) -> None:
        """Send all output, and wait until the guest has read it, so that the output of a program that is started now comes later."""
        channel, interrupts = self._channel, self._interrupts
        if channel is None or not interrupts.in_cell or get_ident() != self._main_thread:  # another thread reads the guest's messages
            self.flush()
        elif self.parts or not channel.is_synced:
            self.send({"event": "sync", "number": channel.next_sync()})
            interrupts.depth += 1
            try:
                channel.wait_synced(lambda: interrupts.pending and interrupts.in_user_code)
            finally:
                interrupts.depth -= 1
            interrupts.check()

    def before_fork(self) -> None:
        """Send all output, and end the flusher, because Python warns about a fork with several threads."""
        try:
            self.flush_and_sync()
        except OSError:
            pass
        self._keep_flush_fd()
        flusher, self._flusher = self._flusher, None
        if flusher is not None:
            flusher.end()
        self.is_flush_scheduled, self.needs_attention = False, True

    def after_fork_in_child(self) -> None:
        """Write to the descriptors of this child from now on, because the channel belongs to the kernel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._lock = allocate_lock()
        self._lock_owner = 0
        self._flusher = None
        self._main_thread = get_ident()
        self.parts.clear()
        self.is_flush_scheduled, self.needs_attention = True, False

    def _drain(self, give_up: Callable[[], bool]) -> None:
        parts = self.parts
        while parts:
            self.size = 0
            cell, channel, first = parts.popleft()
            if cell is None:
                self._queue(first, give_up)
                continue
            kind = type(first)
            run = [first]
            size = len(first)
            while parts and size < CHUNK_CHARS:
                part = parts[0]
                if part[1] != channel or part[0] != cell or type(part[2]) is not kind:
                    break
                run.append(part[2])
                size += len(part[2])
                parts.popleft()
            whole = first if len(run) == 1 else kind().join(run)
            for at in range(0, len(whole), CHUNK_CHARS):
                piece = whole[at : at + CHUNK_CHARS]
                data = piece if kind is bytes else piece.encode(ENCODING, ERRORS)
                if not self._queue({"event": "output", "cell": cell, "channel": channel, "data": data}, give_up):
                    break  # interrupted while the guest did not read: the rest of this write is lost
        if self._channel is not None:
            self._channel.send_queued(give_up)

    def _queue(self, message: dict[str, Any], give_up: Callable[[], bool]) -> bool:
        """Queue a message, and send if a chunk is full. Return False if sending was given up. In a child, write the output instead."""
        if self.is_muted:
            return True
        channel = self._channel
        if channel is not None:
            channel.queue(message)
            return channel.queued_bytes < CHUNK_CHARS or channel.send_queued(give_up)
        if message["event"] == "output":
            write_all(message["channel"], message["data"])
        elif message["event"] == "display" and "text/plain" in message["data"]:
            write_all(STDOUT, message["data"]["text/plain"].encode(ENCODING, ERRORS) + b"\n")
        return True
