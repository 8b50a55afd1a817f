"""Starts the R kernel: executes R in this process, and copies messages between the guest's socket and R's two pipes in a child process.

The guest starts this program as ``kernel.py R [OPTION...] FD``: the path of R, options for R, and the socket to the guest. It runs on the guest's own
Python interpreter, so that an image needs only R. R cannot read from an inherited socket, but from pipes. ``kernel.R`` encodes and decodes the
messages, so the child process copies bytes without looking at them.

Invariants:
- This process becomes R, so the guest sees the end of R, and the reason for this end, as the end of the kernel.
- If the guest closes the socket, the child process ends, and then R, once its cell has ended. If R ends, the guest kills the child process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from _thread import start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel.R")
COMMANDS_FD, EVENTS_FD = 760, 761
"""Descriptors from which R reads messages, and to which R writes messages, with numbers above those that programs close when they close all."""
READ_BYTES = 1 << 16


def main() -> None:
    """Start the child process that copies messages, and execute R."""
    interpreter, *options, channel_fd = sys.argv[1:]
    channel = socket.socket(fileno=int(channel_fd))
    commands_read, commands_write = os.pipe()
    events_read, events_write = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (1, 2):
            os.dup2(null, fd)  # the guest's pipes for the output of cells
        os.close(commands_read)
        os.close(events_write)
        start_new_thread(copy, (lambda: channel.recv(READ_BYTES), lambda data: os.write(commands_write, data)))
        copy(lambda: os.read(events_read, READ_BYTES), channel.send)
    channel.close()
    os.dup2(commands_read, COMMANDS_FD)
    os.dup2(events_write, EVENTS_FD)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores these signals, and R would too
    os.execv(interpreter, [interpreter, "--no-echo", "--no-restore", *options, f"--file={PROGRAM}"])  # noqa: S606 - the kernel


def copy(read: Callable[[], bytes], write: Callable[[memoryview], int]) -> None:
    """Copy bytes until there are no more or nobody reads them, and then end this process.

    Args:
        read: Returns the next bytes; an empty result is the end.
        write: Writes the beginning of the bytes, and returns how many bytes it has written.
    """
    try:
        while data := memoryview(read()):
            while data:
                data = data[write(data) :]
    except OSError:
        pass  # the other side has ended
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
