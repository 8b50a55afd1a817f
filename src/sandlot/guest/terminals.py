"""Terminals for processes: the pair, its size, and what its user types.

Laws:
- A terminal's far end never holds up the guest: what a program does not read waits here, what nobody reads waits there.
- When the leader of a terminal's session has ended, the session is told so (SIGHUP), and the terminal is closed once it was read.
"""

from __future__ import annotations

import fcntl
import os
import struct

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.pipes import InputPipe, OutputPipe
from sandlot.guest.tasks import send, tasks
from sandlot.protocol.fast_imports import signal
from sandlot.protocol.schema import LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.flow.loop import Loop, Timer
    from sandlot.guest.flow.outputs import Outputs
    from sandlot.guest.spawn import Account

TERM = "xterm-256color"
TIOCSWINSZ = 0x5414
TIOCGPGRP = 0x540F
SIZE = struct.Struct("HHHH")
PAUSE_S = 0.05
END_OF_FILE = b"\x04"
"""Ctrl-D: what a terminal in its usual mode takes for the end of the input (VEOF, termios(3))."""


def open_terminal(rows: int, cols: int, who: Account) -> tuple[int, int]:
    """A pair of that size, close-on-exec: the guest's end, and the one that belongs to an account.

    Raises:
        Refusal: No such size, or no more terminals.
    """
    _check(rows, cols)
    try:
        ours, theirs = os.openpty()
    except OSError as error:
        raise Refusal("limit_exceeded", f"No terminal could be made: {error.strerror}.", "End some processes.") from None
    try:
        _set_size(ours, rows, cols)
        os.fchown(theirs, who.uid, -1)  # its group stays tty, as grantpt(3) has it
    except OSError as error:
        os.close(ours)
        os.close(theirs)
        raise Refusal("unsupported", f"The terminal cannot be used: {error.strerror}.", "Run it without one.") from None
    return ours, theirs


def resize(fd: int, rows: int, cols: int, session: int) -> None:
    """Give a terminal another size; those who use it hear of it (SIGWINCH).

    Args:
        fd: The guest's end.
        rows: Of characters.
        cols: The same.
        session: Whose terminal it is.

    Raises:
        Refusal: No such size.
    """
    _check(rows, cols)
    _set_size(fd, rows, cols)
    try:
        fcntl.ioctl(fd, TIOCGPGRP, bytes(4))
    except OSError:
        # A kernel that does not tell this end of the foreground group (gVisor) does not tell the group of the size either.
        # Whoever does not know the signal does not notice it: its default is to be ignored (signal(7)).
        for task in tasks():
            if task.session == session:
                send(task.pid, signal.SIGWINCH)


def _check(rows: int, cols: int) -> None:
    for what, value in (("rows", rows), ("columns", cols)):
        if not 1 <= value <= LIMITS["screen"]:
            raise Refusal("invalid_request", f"A terminal has no {value} {what}.", f"Use 1 to {LIMITS['screen']}.")


def _set_size(fd: int, rows: int, cols: int) -> None:
    fcntl.ioctl(fd, TIOCSWINSZ, SIZE.pack(rows, cols, 0, 0))


class TerminalOutput(OutputPipe):
    """What is shown on a terminal.

    A terminal that nobody holds open any more says so (EIO) and is not over: cat(1) lets go of it before it exits, and would be ended by
    SIGHUP if it was closed then; and whoever it controls can open it again. So it is looked at again, until its process has ended.
    """

    __slots__ = ("_is_final", "_pause")

    def __init__(self, loop: Loop, fd: int, channel: int, outputs: Outputs, changed: Callable[[], object]) -> None:
        self._is_final = False
        self._pause: Timer | None = None
        super().__init__(loop, fd, channel, outputs, changed)

    def refresh(self) -> None:
        """Watch it, or stop where the buffer is full or nobody holds its other end."""
        if self._pause is None:
            super().refresh()

    def settle(self) -> None:
        """Its process has ended: read what is there; from now on nobody's terminal is over."""
        self._is_final = True
        self._resume()
        self.drain()

    def close(self) -> None:
        """Stop for good. Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        super().close()

    def _failed(self) -> None:
        if self._is_final:
            self.close()
        elif self._pause is None:
            if self._watching:
                self._loop.unwatch(self.fd)
                self._watching = False
            self._pause = self._loop.after(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self.refresh()


class TerminalInput(InputPipe):
    """What is typed at a terminal. Its end is a character: closing would take the terminal away."""

    __slots__ = ("_in_line",)

    def __init__(self, loop: Loop, fd: int) -> None:
        super().__init__(loop, fd)
        self._in_line = False

    def write(self, data: bytes, taken: Callable[[], object]) -> None:
        """Queue bytes; ``taken`` is called once they were dealt with."""
        self._in_line = data[-1:] not in {b"\n", b"\r", END_OF_FILE}
        super().write(data, taken)

    def finish(self) -> None:
        """Say that nothing follows, after what is queued. Idempotent."""
        if self.is_open:
            # In the middle of a line, the first only hands over what there is of it.
            self._queue.append((memoryview(END_OF_FILE * (2 if self._in_line else 1)), _nothing))
        super().finish()


def _nothing() -> None:
    """Nobody waits for it."""
