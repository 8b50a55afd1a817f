"""The limit of processes and threads: setting it for all processes, counting, and killing when it is exceeded.

Invariants:
- RLIMIT_NPROC makes a fork beyond the limit fail. It does not apply to root in gVisor.
- Only soft limits are set. A lowered hard limit cannot be raised again: in a user namespace not even by root (prlimit(2)), and in
  gVisor not for a process of ``user``. With hard limits, the limit of a running sandbox could never be raised.
- So processes of root, and processes that raise their own soft limit, are counted. If the number exceeds the limit and a slack,
  the largest session is killed, at most ``COUNT_EVERY_S`` later. Within the slack, root can still start programs while ``user``
  is at the limit.
- All processes are stopped while the largest session is found. Afterwards all continue, even those that were stopped before.
- A zombie counts for the parent that does not wait for it, as with RLIMIT_NPROC. Zombies that PID 1 is about to reap do not count.
- PID 1 does not count.
- A new limit below the number of running processes is refused, and nothing changes.
"""

from __future__ import annotations

import resource

from sandlot.guest.errors import RpcError
from sandlot.guest.loop import log
from sandlot.guest.process.accounts import as_process_user, lookup_account
from sandlot.guest.process.procfs import PASSES, all_pids, all_processes, count_tasks, count_tasks_fast, kill_all, kill_tree
from sandlot.protocol.fast_imports import signal
from sandlot.protocol.schema import most_pids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.loop import Loop
    from sandlot.guest.process.children import ChildTable
    from sandlot.guest.process.procfs import ProcStat

COUNT_EVERY_S = 0.2
"""Interval between two counts while processes other than PID 1 exist."""
MIN_LIMIT = 16
SELF = 0
"""Pid 0 is the caller of prlimit(2). It works even if root inside has mounted something over /proc, and children inherit the limit."""
_NPROC = resource.RLIMIT_NPROC
_UNLIMITED = resource.RLIM_INFINITY


class PidLimit:
    """The process limit of the sandbox.

    Args:
        loop: The guest's loop.
        children: Owners of processes, which get a report when their process is killed.
    """

    __slots__ = ("_children", "_is_counting", "_limit", "_loop")

    def __init__(self, loop: Loop, children: ChildTable) -> None:
        self._loop = loop
        self._children = children
        self._is_counting = False
        self._limit = 0

    def set(self, limit: int) -> None:
        """Set the limit for all running processes, and for all that start from now on."""
        before, self._limit = self._limit, max(MIN_LIMIT, limit)
        for _ in range(PASSES):  # processes that were forked during a pass have inherited the old limit
            if not _set_soft_limits([SELF, *all_pids()], before, self._limit):
                return

    def change(self, limit: int) -> None:
        """Change the limit of a running sandbox.

        Raises:
            RpcError: ``conflict``: more processes and threads are running.
        """
        running = count_tasks()
        if limit < running:
            raise RpcError("conflict", f"{running} processes and threads run in the sandbox, more than {limit}.", "End some processes first.")
        self.set(limit)

    def watch(self) -> None:
        """Count processes from now on until none runs. To be called when a process was started."""
        if not self._is_counting and self._limit:
            self._is_counting = True
            self._loop.call_later(COUNT_EVERY_S, self._count)

    def _count(self) -> None:
        total = count_tasks_fast()
        # The fast count includes zombies that do not count, so it only decides whether the exact count is needed.
        if total > most_pids(self._limit) and self._is_exceeded(tasks_per_session(all_processes())):
            self.kill_largest_session()
        if total:
            self._loop.call_later(COUNT_EVERY_S, self._count)
        else:
            self._is_counting = False

    def kill_largest_session(self) -> None:
        """Kill the session with the most processes and threads. If that is not enough, kill all processes.

        All processes are stopped meanwhile. Otherwise they could fork faster than they are found, and use up the CPU time of PID 1.
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
    """Return session -> number of its processes and threads, without PID 1 and the zombies that it is about to reap. Pure.

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
    """Return the soft limit of a process after the sandbox's limit has changed. Pure.

    Args:
        soft: Soft limit of the process.
        hard: Hard limit of the process.
        before: Limit of the sandbox until now; 0 for no limit.
        after: Limit of the sandbox from now on.
    """
    # A process that has lowered its own limit keeps it.
    wanted = soft if soft != _UNLIMITED and soft < before else after
    return min(wanted, after) if hard == _UNLIMITED else min(wanted, after, hard)


def _set_soft_limits(pids: list[int], before: int, after: int) -> bool:
    """Set the soft limits of processes. Return True if any limit has changed."""
    has_changed, denied = _set_soft_limits_as_current_user(pids, before, after)
    if denied:
        # Without CAP_SYS_RESOURCE, only processes with the caller's own ids may be limited (prlimit(2)).
        with as_process_user(lookup_account("user")):
            has_changed_more, _ = _set_soft_limits_as_current_user(denied, before, after)
        has_changed = has_changed or has_changed_more
    return has_changed


def _set_soft_limits_as_current_user(pids: list[int], before: int, after: int) -> tuple[bool, list[int]]:
    """Set the soft limits of processes. Return whether any limit has changed, and the pids for which permission was denied."""
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
