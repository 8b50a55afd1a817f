"""The flusher: a thread that sends the output that a kernel has delayed."""

from __future__ import annotations

import os
import select
from _thread import allocate_lock, start_new_thread

from .channel import duplicate_high

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Flusher:
    """A thread that sends delayed output: ``delay_s`` after :meth:`wake`, or as soon as the guest requests a flush.

    The thread is started without the module ``threading``, so that ``threading.enumerate()`` in cells does not list it.

    Args:
        flush: Function that sends the delayed output. Called in the thread.
        on_request: Function that the thread calls before ``flush`` if the guest has requested the flush.
        request_fd: Descriptor of the pipe on which the guest requests a flush; -1 if there is none.
        delay_s: Seconds between :meth:`wake` and the flush.

    Attributes:
        request_fd: The argument ``request_fd``, or -1 after a cell has closed the pipe.
        is_over: True if the thread has ended: after :meth:`end`, or because the socket to the guest or the thread's own pipe was closed.

    Raises:
        RuntimeError: No further thread can be started.
        OSError: No further descriptor can be opened.
    """

    def __init__(self, flush: Callable[[], None], on_request: Callable[[], None], request_fd: int, delay_s: float) -> None:
        self._flush = flush
        self._on_request = on_request
        self._delay_s = delay_s
        self.request_fd = request_fd
        self.is_over = False
        self._wake_fds = _open_high_pipe()
        self._poll = select.poll()
        for fd in (request_fd, self._wake_fds[0]):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)
        self._delay = allocate_lock()
        self._ended = allocate_lock()
        for lock in (self._delay, self._ended):
            lock.acquire()
        self._is_ending = False
        try:
            start_new_thread(self._run, ())
        except RuntimeError:
            self._close()
            raise

    @property
    def is_requested_by_guest(self) -> bool:
        """True if the guest can request flushes from this thread, so that :meth:`wake` need not be called at the start of a cell."""
        return self.request_fd >= 0 and not self.is_over

    def wake(self) -> None:
        """Make the thread flush after ``delay_s``. Does not wait."""
        try:
            os.write(self._wake_fds[1], b"\0")
        except OSError:
            pass  # the pipe is full: the thread is about to run

    def end(self) -> None:
        """End the thread, wait until it has ended, and close its pipe."""
        self._is_ending = True
        self._delay.release()
        self.wake()
        self._ended.acquire()
        self._close()

    def _run(self) -> None:
        try:
            while not self.is_over and not self._is_ending:
                if not self._wait() and not self._is_ending:
                    self._delay.acquire(timeout=self._delay_s)
                if not self._is_ending:
                    self._flush()
        except OSError:
            pass
        finally:
            self.is_over = True
            self._ended.release()

    def _wait(self) -> bool:
        """Wait until a flush is requested. Return True if the guest has requested the flush, False if :meth:`wake` was called."""
        is_requested = False
        for fd, mask in self._poll.poll():
            try:
                is_gone = not (mask & select.POLLIN and os.read(fd, 64))
            except OSError:
                is_gone = True
            if fd == self.request_fd:
                is_requested = True
                self._on_request()
                if is_gone:
                    self.request_fd = -1
            else:
                self.is_over = is_gone
            if is_gone:
                self._poll.unregister(fd)
        return is_requested

    def _close(self) -> None:
        for fd in self._wake_fds:
            os.close(fd)


def _open_high_pipe() -> tuple[int, int]:
    """Return the read end and the write end of a non-blocking pipe, with high descriptor numbers that cells seldom close."""
    pipe = os.pipe()
    high = duplicate_high(pipe[0]), duplicate_high(pipe[1])
    for fd in pipe:
        os.close(fd)
    for fd in high:
        os.set_blocking(fd, False)
    return high
