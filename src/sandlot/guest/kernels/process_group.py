"""Finds all processes of a kernel: the kernel's own process, and all processes that it started, even if they are no longer its descendants.

A :class:`ProcessGroup` is not a process group of setpgid(2), which programs can leave. The guest must find all processes of a kernel to kill them.
A process can get another parent (as an orphan), another process group and session (setsid(2)) and another environment (exec). But a process
inherits resource limits and keeps them in all these cases. Each kernel is therefore marked with resource limits that no other kernel has. These
limits are so high that no program reaches them. Programs that the guest itself starts (commands, ``sudo``) do not have these limits.

A process may lower its own limits, as ``ulimit -f`` does. Each kernel therefore has two marked limits, and a process is recognized by either
of them. A process that lowers both limits and is no longer a descendant of the kernel survives the kernel and ends with the sandbox.
"""

from __future__ import annotations

import os
import resource

from sandlot.guest.process.accounts import as_process_user
from sandlot.guest.process.procfs import PASSES, live_processes, send_signal, tree
from sandlot.protocol.fast_imports import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.process.accounts import Account

FIRST_MARK = 1 << 61
"""All marks are larger than this number of bytes (2 EiB). RLIMIT_FSIZE and RLIMIT_DATA (getrlimit(2)) have no effect if they are this high."""
_RESOURCES = (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)


class ProcessGroup:
    """A kernel's process and all processes that it starts.

    Args:
        pid: Pid of the kernel, which is the leader of its session and of its process group.
        account: Account that the kernel runs as.
        mark: Value in bytes that is set as RLIMIT_FSIZE and RLIMIT_DATA of the kernel. All processes that the kernel starts inherit the limits.
    """

    __slots__ = ("_mark", "_pid", "account")

    def __init__(self, pid: int, account: Account, mark: int) -> None:
        self._pid = pid
        self.account = account
        self._mark = mark
        with as_process_user(account):  # without CAP_SYS_RESOURCE, prlimit(2) fails for processes of other users
            for kind in _RESOURCES:
                try:
                    resource.prlimit(pid, kind, (mark, mark))
                except OSError:  # the process has ended
                    return

    def kill(self) -> None:
        """Kill the kernel and all processes that it started, in several passes, because the processes may fork meanwhile."""
        send_signal(self._pid, signal.SIGKILL)
        try:
            os.killpg(self._pid, signal.SIGKILL)  # reaches children even if root in the sandbox has mounted something over /proc
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
        """Send SIGINT to the kernel's process group (setpgid(2)), as Ctrl-C in a terminal does."""
        try:
            os.killpg(self._pid, signal.SIGINT)
        except OSError:
            return

    def _marked(self, pids: list[int]) -> set[int]:
        found = set()
        with as_process_user(self.account):
            for pid in pids:
                try:
                    if any(resource.prlimit(pid, kind)[1] == self._mark for kind in _RESOURCES):
                        found.add(pid)
                except OSError:  # the process has ended, or belongs to another user
                    continue
        return found


class ProcessGroups:
    """Creates the process groups of kernels, each with a unique mark.

    Marks come from a counter in the guest's memory. A snapshot contains this counter, so marks are also unique after a restore.
    """

    __slots__ = ("_created",)

    def __init__(self) -> None:
        self._created = 0

    def create(self, pid: int, account: Account) -> ProcessGroup:
        """Assign the next mark to a kernel that has just been started, and return its process group.

        Args:
            pid: Pid of the kernel.
            account: Account that the kernel runs as.
        """
        self._created += 1
        return ProcessGroup(pid, account, FIRST_MARK + self._created)
