"""Child processes of PID 1: the table of their owners, and reaping.

PID 1 is also the parent of every orphan of the sandbox. Orphans are reaped, and their end is not reported.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage
    from typing import Protocol

    class Child(Protocol):
        """Owner of one child process."""

        def on_exit(self, status: int, usage: struct_rusage) -> None:
            """Handle the end of the process.

            Args:
                status: Status of wait(2).
                usage: Usage of the process and of the children that it waited for (getrusage(2)).
            """

        def on_killed(self, reason: str) -> None:
            """Record why the guest has killed the process and its descendants. ``on_exit`` follows.

            Args:
                reason: ``oom`` or ``pids``.
            """


class ChildTable:
    """Owners of all child processes that the guest has started or adopted, by pid.

    A process stays in the table until it has been reaped, so its pid cannot belong to another process meanwhile.
    """

    __slots__ = ("_children",)

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}

    def __contains__(self, pid: int) -> bool:
        return pid in self._children

    def add(self, pid: int, child: Child) -> None:
        """Register the owner of a child process."""
        self._children[pid] = child

    def reap(self) -> None:
        """Reap all children that have ended, without blocking, and report each to its owner."""
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
        """Report to the owner of a process, if there is one, that the guest has killed the process and its descendants.

        Args:
            pid: Process that was killed.
            reason: ``oom`` or ``pids``.
        """
        child = self._children.get(pid)
        if child is not None:
            child.on_killed(reason)
