"""The processes of a kernel: everything that it started, wherever it went, told apart from everything else in the sandbox.

A child leaves its parent by being orphaned, its group and session by setsid(2), its environment by exec with another one. It keeps
its resource limits over all of these. So each kernel gets limits that nothing else has, of resources that no program comes near.
Programs that the guest itself starts (commands, ``sudo``) do not have them.

A process may lower its own limit, as ``ulimit -f`` does. So there are two marks, and one of them is enough to be recognized. A process
that lowers both on purpose and has left its parents too ends with the sandbox, not with its kernel.
"""

from __future__ import annotations

import os
import resource

from sandlot.guest.process.accounts import as_process_user, lookup_account
from sandlot.guest.process.procfs import PASSES, live_processes, send_signal, tree
from sandlot.protocol.fast_imports import signal

FIRST_MARK = 1 << 61
"""Lower bound of the marks: 2 EiB and some bytes of a file (RLIMIT_FSIZE) and of data (RLIMIT_DATA, getrlimit(2))."""
_RESOURCES = (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)


class ProcessGroup:
    """A kernel's process and everything that it starts.

    Args:
        pid: The kernel's process; it leads its session and its process group.
        mark: Limit that the process gets, and that everything that it starts inherits.
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
        """Kill all of them, in several passes, because they may fork meanwhile."""
        send_signal(self._pid, signal.SIGKILL)
        try:
            os.killpg(self._pid, signal.SIGKILL)  # the only way where root inside has covered /proc
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
    """Creates process groups with marks that were never used before, also not by another life of this sandbox."""

    __slots__ = ("_created",)

    def __init__(self) -> None:
        self._created = 0

    def create(self, pid: int) -> ProcessGroup:
        """Return the group of a kernel that has just been started."""
        self._created += 1
        return ProcessGroup(pid, FIRST_MARK + self._created)
