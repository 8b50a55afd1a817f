"""The processes of a kernel: itself and all processes that it started, even if they are no longer its descendants.

A child loses its parent as an orphan, its group and session by setsid(2), and its environment by exec. It keeps its resource limits in
all these cases. So each kernel is marked with resource limits that no other process has, so high that no program reaches them. Programs
that the guest itself starts (commands, ``sudo``) do not have these limits.

A process may lower its own limits, as ``ulimit -f`` does. So two limits are set, and one of them is enough to recognize a process. A
process that lowers both and is not a descendant any more is not killed with its kernel; it ends with the sandbox.
"""

from __future__ import annotations

import os
import resource

from sandlot.guest.process.accounts import as_process_user, lookup_account
from sandlot.guest.process.procfs import PASSES, live_processes, send_signal, tree
from sandlot.protocol.fast_imports import signal

FIRST_MARK = 1 << 61
"""Lower bound of the marks: 2 EiB, as the limit of file sizes (RLIMIT_FSIZE) and of data (RLIMIT_DATA, getrlimit(2))."""
_RESOURCES = (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)


class ProcessGroup:
    """A kernel's process and all processes that it starts.

    Args:
        pid: Pid of the kernel, which leads its session and its process group.
        mark: Resource limit that marks the kernel and, by inheritance, all processes that it starts.
    """

    __slots__ = ("_mark", "_pid")

    def __init__(self, pid: int, mark: int) -> None:
        self._pid = pid
        self._mark = mark
        with as_process_user(lookup_account("user")):  # without CAP_SYS_RESOURCE, only processes of the same user can be limited
            for kind in _RESOURCES:
                try:
                    resource.prlimit(pid, kind, (mark, mark))
                except OSError:  # the process has ended
                    return

    def kill(self) -> None:
        """Kill all processes of the group, in several passes, because they may fork meanwhile."""
        send_signal(self._pid, signal.SIGKILL)
        try:
            os.killpg(self._pid, signal.SIGKILL)  # the only way if root inside has mounted something over /proc
        except OSError:
            pass
        members = {self._pid}
        for _ in range(PASSES):
            alive = live_processes()
            members = {pid for known in members for pid in tree(known, alive)} | self._marked([task.pid for task in alive if task.pid != 1])
            members &= {task.pid for task in alive}
            if not members:
                return
            for pid in members:
                send_signal(pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """Send SIGINT to the process group, as Ctrl-C does."""
        try:
            os.killpg(self._pid, signal.SIGINT)
        except OSError:
            return

    def _marked(self, pids: list[int]) -> set[int]:
        found = set()
        with as_process_user(lookup_account("user")):
            for pid in pids:
                try:
                    if any(resource.prlimit(pid, kind)[1] == self._mark for kind in _RESOURCES):
                        found.add(pid)
                except OSError:  # the process has ended, or belongs to another user
                    continue
        return found


class ProcessGroups:
    """Creates process groups with unique marks. The counter is part of a snapshot, so marks stay unique after a restore."""

    __slots__ = ("_created",)

    def __init__(self) -> None:
        self._created = 0

    def create(self, pid: int) -> ProcessGroup:
        """Return the group of a kernel that has just been started."""
        self._created += 1
        return ProcessGroup(pid, FIRST_MARK + self._created)
