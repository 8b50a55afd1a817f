"""Child processes of PID 1: a table of the objects that own the processes, and the reaping of ended processes.

PID 1 also becomes the parent of every orphan in the sandbox. Orphans are reaped too, but they have no owner to notify.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage
    from typing import Protocol

    class Child(Protocol):
        """Object that owns one child process and is notified of its end."""

        def on_exit(self, status: int, usage: struct_rusage) -> None:
            """Handle the end of the process.

            Args:
                status: Status of wait(2).
                usage: Resources that the process and the children it waited for have used (getrusage(2)).
            """

        def on_killed(self, reason: str) -> None:
            """Record why the guest has killed the process and its descendants. A call of ``on_exit`` follows.

            Args:
                reason: ``oom`` for the memory limit, or ``pids`` for the process limit.
            """


class ChildTable:
    """Table from the pid of a child process to the owner of the process.

    The table contains the processes that the guest has started itself, and kernels that its fork server has started. A process stays
    in the table until the process is reaped. The kernel reuses a pid only after the process was reaped, so a pid in the table always
    means the same process.
    """

    __slots__ = ("_children",)

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}

    def __contains__(self, pid: object) -> bool:
        return pid in self._children

    def add(self, pid: int, child: Child) -> None:
        """Register the owner of a child process, which is notified when the process ends."""
        self._children[pid] = child

    def reap(self) -> None:
        """Reap all child processes that have ended, without blocking, and call ``on_exit`` of their owners."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                child.on_exit(status, usage)

    def report_kill(self, pid: int, reason: str) -> None:
        """Call ``on_killed`` of the owner of a process that the guest has killed. Does nothing if the process has no owner.

        Args:
            pid: Pid of the process.
            reason: ``oom`` for the memory limit, or ``pids`` for the process limit.
        """
        child = self._children.get(pid)
        if child is not None:
            child.on_killed(reason)
