"""Queue of all output of the kernel: text of cells, displays, errors, and the messages that a cell has started or ended.

Invariants:
- Output is sent in the order in which it was written: across standard output, standard error, displays and errors, and across threads.
- Text may be delayed until ``FLUSH_DELAY_S`` have passed or ``MAX_DELAYED_CHARS`` are queued. A display, an error, the end of a cell, a fork, the
  start of a program and ``flush()`` send all delayed text first.
- Programs that cells start do not write to this queue, but to pipes that the guest reads. Before such a program starts, the main thread
  therefore waits until the guest has read all earlier output. Other threads, and tasks between cells, do not wait.
- Delayed text is sent by a separate thread, the flusher. Waking the flusher takes 0.1 ms or more, longer than most cells run. The start of a cell
  therefore does not wake the flusher. Instead, the guest requests a flush a little later if the cell still runs.
- The first ``IMMEDIATE_LINES`` lines of a cell are sent without delay, by the thread that writes the lines. The same is true for the first
  ``IMMEDIATE_LINES`` lines after ``SILENCE_S`` without output. Later lines wait for the flusher, which cannot run while other code holds the
  interpreter lock (``sum(range(10**9))``, a long match of a regular expression).
- Writing never fails because of a character: characters that UTF-8 cannot encode are written as backslash escapes.
- A forked child writes its output to its descriptors 1 and 2, line by line, and never to the guest's socket.
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
"""Number of queued characters above which all output is sent."""
FLUSH_DELAY_S = 0.03
"""Seconds between the first delayed write and the flush by the flusher."""
SILENCE_S = 0.01
"""If no output was sent for this number of seconds, the next ``IMMEDIATE_LINES`` lines are again sent without delay."""
IMMEDIATE_LINES = 4
"""Number of lines that are sent without delay at the start of a cell and after ``SILENCE_S`` without output."""
CHUNK_CHARS = 65536
"""Approximate maximum number of characters in one output message."""
ENCODING, ERRORS = "utf-8", "backslashreplace"


class Output:
    """Queue of the kernel's output, in the order of writing.

    Args:
        interrupts: Handler of SIGINT. While the main thread sends output, the handler must not raise KeyboardInterrupt.

    Attributes:
        parts: Unsent output, oldest first: (cell id, channel 1 or 2, text or bytes) for text, (None, 0, message) for any other message.
        size: Approximate number of unsent characters and bytes.
        is_flush_scheduled: True if the delayed output will be sent by the flusher, either after a delay or when the guest requests a flush.
        needs_attention: True if the next write to a stream must call :meth:`on_write`.
        is_muted: True to drop output instead of sending it, during a rehearsal.
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
        """Descriptor of the pipe on which the guest requests a flush; -1 if there is no pipe or a cell has closed the pipe."""
        self._immediate_lines = IMMEDIATE_LINES
        self._sent_s = 0.0

    def connect(self, channel: Channel, flush_fd: int = -1) -> None:
        """Connect the queue to the guest: output is sent to ``channel`` from now on.

        Args:
            channel: Connection to the guest.
            flush_fd: Descriptor of the pipe on which the guest requests a flush when a cell has run for a while; -1 if there is none.
        """
        self._channel = channel
        self._main_thread = get_ident()
        self._flush_fd = flush_fd
        if flush_fd >= 0:
            self._start_flusher()
        self.begin_cell()

    def begin_cell(self) -> None:
        """Reset, at the start of a cell, the state that controls when output is sent. An interrupt in an earlier cell may have left a wrong state."""
        self._immediate_lines = IMMEDIATE_LINES
        flusher = self._flusher
        # The guest requests only one flush for each cell. If the request for this cell arrived before the kernel read the cell, the guest does not
        # request another flush.
        self.is_flush_scheduled = flusher is not None and flusher.is_requested_by_guest and not self.was_flush_requested
        self.needs_attention = True

    def send_start(self, message: dict[str, Any]) -> None:
        """Queue the message about the start of a cell. It is sent with the first output of the cell, or when the guest requests a flush.

        If the guest requests no flushes, the message is sent now.

        Args:
            message: The ``started`` message.
        """
        self.parts.append((None, 0, message))
        if not self.is_flush_scheduled:
            self.flush()

    def send(self, message: dict[str, Any]) -> None:
        """Send all queued output and then a message.

        Args:
            message: Message of any kind except ``output``.
        """
        self.parts.append((None, 0, message))
        self.flush()

    def on_write(self, *, ends_line: bool) -> None:
        """Decide when output that was added to ``parts`` is sent: now, or later by the flusher.

        Args:
            ends_line: True if the output contains the end of a line.
        """
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
        """Send the delayed output. Called in the flusher's thread."""
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
        """Start a flusher and return it. Return None if no further thread can be started or no further descriptor can be opened."""
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
        """Copy the number of the flush pipe's descriptor from the flusher. The number is -1 if a cell has closed the pipe."""
        if self._flusher is not None:
            self._flush_fd = self._flusher.request_fd

    def _on_flush_request(self) -> None:
        self.was_flush_requested = True

    def flush(self) -> None:
        """Send all queued output to the guest.

        Raises:
            OSError: The guest or a cell has closed the socket.
            KeyboardInterrupt: User code of the main thread has called this method, and an interrupt arrived during the call.
        """
        ident = get_ident()
        if self._lock_owner == ident:
            return  # a finalizer or signal handler has called this method during a flush, which goes on and sends the new output too
        interrupts = self._interrupts
        if ident != self._main_thread:
            with self._lock:
                self._lock_owner = ident
                try:
                    self._drain(bool)  # bool() returns False, so sending is never given up
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
        """Send all queued output and wait until the guest has read the output, so that the output of a program that starts next arrives later.

        Only the main thread waits, and only while a cell runs. In all other cases the output is sent without waiting.

        Raises:
            OSError: The guest or a cell has closed the socket.
            KeyboardInterrupt: User code has called this method, and an interrupt arrived during the call.
        """
        channel, interrupts = self._channel, self._interrupts
        if channel is None or not interrupts.in_cell or get_ident() != self._main_thread:  # only the main thread reads messages
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
        """Send all queued output before this process forks, and end the flusher's thread: Python warns about a fork with several threads."""
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
        """Reset this queue in a forked child. From now on, output is written to the child's descriptors 1 and 2, not to the guest's socket."""
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
                    break  # an interrupt has ended the wait for the guest to read: the rest of this text is dropped
        if self._channel is not None:
            self._channel.send_queued(give_up)

    def _queue(self, message: dict[str, Any], give_up: Callable[[], bool]) -> bool:
        """Add a message to the channel's buffer, and send the buffer if it has at least ``CHUNK_CHARS`` bytes.

        In a forked child, the text of the message is written to a descriptor instead.

        Args:
            message: The message.
            give_up: Function that returns True to stop waiting for the guest to read.

        Returns:
            False if sending stopped because ``give_up`` returned True; otherwise True.
        """
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
