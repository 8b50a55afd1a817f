"""What a kernel to be has of descriptors: a socket, two pipes, and for one that keeps back what it has to tell the pipe by which it is asked.

Law: The kernel has no descriptor by which it could make a write of PID 1's wait: the bell's two ends are two open files, each with flags of its own.
"""

from __future__ import annotations

import os

from sandlot.guest.pipes import open_pipe
from sandlot.protocol.fast_imports import socket


class Ends:
    """What a kernel to be has of descriptors: the guest's and its own.

    Args:
        rings: Whether it has a bell.
    """

    __slots__ = ("bell", "bell_theirs", "err", "err_theirs", "out", "out_theirs", "socket", "theirs")

    def __init__(self, *, rings: bool = False) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.bell_theirs, self.bell = open_pipe() if rings else (-1, -1)
        self.out, self.out_theirs = open_pipe(roomy=True)
        self.err, self.err_theirs = open_pipe(roomy=True)

    def given(self) -> None:
        """The kernel has its own."""
        self.theirs.close()
        os.close(self.out_theirs)
        os.close(self.err_theirs)
        if self.bell_theirs >= 0:
            os.close(self.bell_theirs)

    def close(self) -> None:
        """There will be no kernel."""
        self.socket.close()
        os.close(self.out)
        os.close(self.err)
        if self.bell >= 0:
            os.close(self.bell)
