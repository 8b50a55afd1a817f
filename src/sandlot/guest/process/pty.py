"""Pseudoterminals of processes: opening, resizing, output and input.

Invariants:
- A terminal never blocks the guest. Input that the program does not read is queued in the guest. Output that the guest does not
  read stays in the terminal.
- When the leader of a terminal's session has ended, the other processes of the session receive SIGHUP. The guest closes the
  terminal after it has read the output.
"""

from __future__ import annotations

import fcntl
import os
import struct

from sandlot.guest.errors import RpcError
from sandlot.guest.pipes import InputPipe, OutputPipe
from sandlot.guest.process.procfs import live_processes, send_signal
from sandlot.protocol.fast_imports import signal
from sandlot.protocol.schema import LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.loop import Loop, Timer
    from sandlot.guest.output import OutputLog
    from sandlot.guest.process.accounts import Account

READ_AGAIN_S = 0.05
"""Seconds between two reads of a terminal that no process has open."""
END_OF_FILE = b"\x04"
"""Ctrl-D, the end of input for a terminal in canonical mode (VEOF, termios(3))."""

_TIOCSWINSZ = 0x5414
_TIOCGPGRP = 0x540F
_WINSIZE = struct.Struct("HHHH")


def open_terminal(rows: int, cols: int, account: Account) -> tuple[int, int]:
    """Open a pseudoterminal for a process.

    Args:
        rows: Height in characters.
        cols: Width in characters.
        account: Account of the process, which becomes the owner of the terminal.

    Returns:
        Descriptor of the guest's end, descriptor of the process's end. Both are close-on-exec.

    Raises:
        RpcError: The size is invalid, no terminal is free, or the terminal cannot be set up.
    """
    _check_size(rows, cols)
    try:
        ours, theirs = os.openpty()
    except OSError as error:
        raise RpcError("limit_exceeded", f"No terminal could be opened: {error.strerror}.", "End some processes.") from None
    try:
        _set_size(ours, rows, cols)
        os.fchown(theirs, account.uid, -1)  # the group stays tty, as after grantpt(3)
    except OSError as error:
        os.close(ours)
        os.close(theirs)
        raise RpcError("unsupported", f"The terminal cannot be used: {error.strerror}.", "Start the process without a terminal.") from None
    return ours, theirs


def resize(fd: int, rows: int, cols: int, session: int) -> None:
    """Change the size of a terminal, and send SIGWINCH to its processes.

    Args:
        fd: Descriptor of the guest's end of the terminal.
        rows: Height in characters.
        cols: Width in characters.
        session: Id of the session whose controlling terminal this is.

    Raises:
        RpcError: The size is invalid.
    """
    _check_size(rows, cols)
    _set_size(fd, rows, cols)
    try:
        fcntl.ioctl(fd, _TIOCGPGRP, bytes(4))
    except OSError:
        # The failed call shows that the sandbox runs in gVisor, which sends no SIGWINCH to the terminal's foreground group. Send the
        # signal to all processes of the session instead: a process without a handler ignores SIGWINCH (signal(7)).
        for process in live_processes():
            if process.session == session:
                send_signal(process.pid, signal.SIGWINCH)


def _check_size(rows: int, cols: int) -> None:
    for what, value in (("rows", rows), ("columns", cols)):
        if not 1 <= value <= LIMITS["screen"]:
            raise RpcError("invalid_request", f"A terminal cannot have {value} {what}.", f"Use 1 to {LIMITS['screen']}.")


def _set_size(fd: int, rows: int, cols: int) -> None:
    fcntl.ioctl(fd, _TIOCSWINSZ, _WINSIZE.pack(rows, cols, 0, 0))


class TerminalOutput(OutputPipe):
    """Output of a process on a terminal.

    While no process has the terminal open, reads fail with EIO. EIO is not the end of the output, because a process of the session
    may open the terminal again. The guest must not close its end after EIO either: a process that has closed the terminal and is
    about to exit, such as cat(1), would be killed by SIGHUP. So the guest retries every ``READ_AGAIN_S`` until the process has ended.
    """

    __slots__ = ("_has_process_ended", "_pause")

    def __init__(self, loop: Loop, fd: int, channel: int, outputs: OutputLog, changed: Callable[[], object]) -> None:
        self._has_process_ended = False
        self._pause: Timer | None = None
        super().__init__(loop, fd, channel, outputs, changed)

    def refresh(self) -> None:
        """Watch the terminal if its buffer accepts more bytes and a process has the terminal open."""
        if self._pause is None:
            super().refresh()

    def settle(self) -> None:
        """Read the rest of the output, because the process has ended. From now on, EIO is the end of the output."""
        self._has_process_ended = True
        self._resume()
        self.drain()

    def close(self) -> None:
        """Close the guest's end of the terminal. Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        super().close()

    def _failed(self) -> None:
        if self._has_process_ended:
            self.close()
        elif self._pause is None:
            if self._watching:
                self._loop.unwatch(self.fd)
                self._watching = False
            self._pause = self._loop.call_later(READ_AGAIN_S, self._resume)

    def _resume(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self.refresh()


class TerminalInput(InputPipe):
    """Input of a process on a terminal. The end of the input is sent as Ctrl-D, because closing the terminal would send SIGHUP."""

    __slots__ = ("_in_line",)

    def __init__(self, loop: Loop, fd: int, on_closed: Callable[[], object]) -> None:
        super().__init__(loop, fd, on_closed)
        self._in_line = False

    def write(self, data: bytes, taken: Callable[[], object]) -> None:
        """Queue bytes for the process.

        Args:
            data: Bytes to write.
            taken: Called when all these bytes were written, or were dropped because the terminal is closed.
        """
        self._in_line = data[-1:] not in {b"\n", b"\r", END_OF_FILE}
        super().write(data, taken)

    def finish(self) -> None:
        """Queue Ctrl-D, which the process reads as the end of its input. Idempotent."""
        if self.is_open:
            # In the middle of a line, the first Ctrl-D only submits the incomplete line. A second Ctrl-D then ends the input.
            self._queue.append((memoryview(END_OF_FILE * (2 if self._in_line else 1)), _nothing))
        super().finish()


def _nothing() -> None:
    """Do nothing after Ctrl-D was written. The guest itself has queued Ctrl-D, so there is no credit to return to the host."""
