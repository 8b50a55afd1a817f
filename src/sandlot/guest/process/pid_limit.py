"""Limit of the number of processes and threads in the sandbox: the kernel enforces soft limits, and the guest counts regularly.

Invariants:
- RLIMIT_NPROC makes a fork beyond the limit fail. It does not apply to root in gVisor.
- Only soft limits are set. If the guest lowered hard limits, the limit of a running sandbox could never be raised: in a user namespace,
  not even root can raise a hard limit again (prlimit(2)), and in gVisor, the guest cannot raise the hard limit of a process of ``user``.
- Processes of root, and processes that have raised their own soft limit, can exceed the limit. Therefore the guest counts all
  processes and threads every ``COUNT_EVERY_S`` seconds. If the count exceeds the limit plus a slack (``most_pids``), the largest session is
  killed. Because of the slack, root can still start programs while ``user`` is at the limit.
- All processes are suspended (SIGSTOP) while the guest searches for the largest session. Afterwards all are resumed (SIGCONT), even
  processes that were suspended before.
- A zombie is counted in the session of its parent, which has not reaped it. Zombies that PID 1 is about to reap, and PID 1 itself,
  are not counted.
- A ``guest.limit`` call with a limit below the number of running processes and threads is refused, and nothing changes.
"""

from __future__ import annotations

import os
import resource

from sandlot.guest.errors import RpcError
from sandlot.guest.loop import log
from sandlot.guest.process.accounts import Account, as_process_user, lookup_account
from sandlot.guest.process.procfs import PASSES, all_pids, all_processes, count_tasks, count_tasks_fast, kill_all, kill_tree
from sandlot.protocol.fast_imports import signal
from sandlot.protocol.schema import most_pids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.loop import Loop
    from sandlot.guest.process.children import ChildTable
    from sandlot.guest.process.procfs import ProcStat

COUNT_EVERY_S = 0.2
"""Seconds between two counts while processes other than PID 1 exist."""
MIN_LIMIT = 16
"""Smallest limit that is applied. A smaller requested limit is raised to this number."""
SELF = 0
"""Pid 0, which stands for the calling process in prlimit(2), here for the guest. It works even if root has mounted something over /proc."""
_NPROC = resource.RLIMIT_NPROC
_UNLIMITED = resource.RLIM_INFINITY


class PidLimit:
    """Limit of the number of processes and threads in the sandbox.

    Args:
        loop: The guest's loop.
        children: Owners of processes, which are notified when the guest kills their process.
    """

    __slots__ = ("_children", "_is_counting", "_limit", "_loop")

    def __init__(self, loop: Loop, children: ChildTable) -> None:
        self._loop = loop
        self._children = children
        self._is_counting = False
        self._limit = 0

    def set(self, limit: int) -> None:
        """Apply a limit to the running processes and to those that start later.

        Args:
            limit: Number of processes and threads; raised to ``MIN_LIMIT`` if smaller.
        """
        before, self._limit = self._limit, max(MIN_LIMIT, limit)
        for _ in range(PASSES):  # processes that were forked during a pass have inherited the old limit
            if not _set_soft_limits([SELF, *all_pids()], before, self._limit):
                return

    def change(self, limit: int) -> None:
        """Change the limit of a running sandbox, unless the sandbox exceeds the new limit already.

        Args:
            limit: New number of processes and threads.

        Raises:
            RpcError: ``conflict``: more processes and threads than ``limit`` are running. The old limit stays.
        """
        running = count_tasks()
        if limit < running:
            message = f"The sandbox has {running} processes and threads, which is more than the new limit of {limit}."
            raise RpcError("conflict", message, "End some processes, then set the limit again.")
        self.set(limit)

    def watch(self) -> None:
        """Begin to count processes regularly, until no process except PID 1 is left. Must be called after each start of a process."""
        if not self._is_counting and self._limit:
            self._is_counting = True
            self._loop.call_later(COUNT_EVERY_S, self._count)

    def _count(self) -> None:
        total = count_tasks_fast()
        # count_tasks_fast() also counts zombies that the limit ignores. If its total exceeds the limit, count without these zombies.
        if total > most_pids(self._limit) and self._is_exceeded(tasks_per_session(all_processes())):
            self.kill_largest_session()
        if total:
            self._loop.call_later(COUNT_EVERY_S, self._count)
        else:
            self._is_counting = False

    def kill_largest_session(self) -> None:
        """Kill the session with the most processes and threads. If the limit is still exceeded afterwards, kill all processes.

        All processes are suspended first. Otherwise they could fork faster than the guest finds them, and would use CPU time that
        the guest needs.
        """
        kill_all(signal.SIGSTOP)
        try:
            self._kill_largest_session_of_stopped()
        finally:
            kill_all(signal.SIGCONT)

    def _kill_largest_session_of_stopped(self) -> None:
        sessions = tasks_per_session(all_processes())
        if not self._is_exceeded(sessions):  # some processes have ended meanwhile
            return
        largest = max(sessions, key=lambda session: sessions[session])
        log(f"the limit of {self._limit} processes is exceeded: killing session {largest} with {sessions[largest]} processes and threads")
        kill_tree(largest, signal.SIGKILL)
        self._children.report_kill(largest, "pids")
        found = all_processes()
        if self._is_exceeded(tasks_per_session(found)):
            for process in found:
                self._children.report_kill(process.pid, "pids")
            kill_all()

    def _is_exceeded(self, sessions: dict[int, int]) -> bool:
        return sum(sessions.values()) > most_pids(self._limit)


def tasks_per_session(found: list[ProcStat]) -> dict[int, int]:
    """Return a dictionary from session id to the number of processes and threads of the session. Pure.

    PID 1 and the zombies that PID 1 is about to reap are not counted.

    Args:
        found: All processes, zombies included.
    """
    by_pid = {process.pid: process for process in found}
    sessions: dict[int, int] = {}
    for process in found:
        counted_for = by_pid.get(process.parent, process) if process.is_dead() else process
        if counted_for.pid != 1:
            sessions[counted_for.session] = sessions.get(counted_for.session, 0) + process.threads
    return sessions


def new_soft_limit(soft: int, hard: int, before: int, after: int) -> int:
    """Return the soft RLIMIT_NPROC that a process gets when the sandbox's limit changes. Pure.

    Args:
        soft: Present soft limit of the process.
        hard: Present hard limit of the process.
        before: Old limit of the sandbox; 0 if there was no limit.
        after: New limit of the sandbox.
    """
    # A process that has lowered its own limit keeps the lower limit.
    wanted = soft if soft != _UNLIMITED and soft < before else after
    return min(wanted, after) if hard == _UNLIMITED else min(wanted, after, hard)


def _set_soft_limits(pids: list[int], before: int, after: int) -> bool:
    """Set the soft limits of processes after the sandbox's limit has changed. Return True if the limit of any process has changed."""
    has_changed, denied = _set_soft_limits_as_current_user(pids, before, after)
    if denied:
        # A caller that lacks CAP_SYS_RESOURCE may limit only processes with its own ids (prlimit(2)).
        with as_process_user(lookup_account("user")):
            has_changed_more, denied = _set_soft_limits_as_current_user(denied, before, after)
        has_changed = has_changed or has_changed_more
    for pid in denied:
        try:
            owner = os.stat(f"/proc/{pid}")
            with as_process_user(Account(str(owner.st_uid), owner.st_uid, owner.st_gid, "/", [owner.st_gid])):
                has_changed_more, _ = _set_soft_limits_as_current_user([pid], before, after)
        except OSError:
            continue  # the process has ended
        has_changed = has_changed or has_changed_more
    return has_changed


def _set_soft_limits_as_current_user(pids: list[int], before: int, after: int) -> tuple[bool, list[int]]:
    """Set the soft limits of the given processes. The guest acts with its current uid and gid.

    Returns:
        A flag that is True if the limit of any process has changed, and the pids for which the kernel has denied permission.
    """
    has_changed, denied = False, []
    for pid in pids:
        try:
            soft, hard = resource.prlimit(pid, _NPROC)
            wanted = new_soft_limit(soft, hard, before, after)
            if wanted != soft:
                resource.prlimit(pid, _NPROC, (wanted, hard))
                has_changed = True
        except PermissionError:
            denied.append(pid)
        except OSError:
            continue  # the process has ended
    return has_changed, denied
