"""The limit of processes and threads: set for everything that runs, counted, and changed at run time.

Invariants:
- RLIMIT_NPROC refuses a fork beyond the limit to every process that the kernel binds by it. gVisor does not bind root.
- Only soft limits are set. A hard limit that was lowered cannot be raised again: in a user namespace not even by root
  (prlimit(2)), and in gVisor not for a process of ``user``. Then the limit of a running sandbox could only be lowered.
- So root, and processes that raise their own soft limit, are counted. Beyond the limit and its slack, the largest session is
  killed, at most ``COUNT_EVERY_S`` later. The slack is for what root starts beside a user whose processes are at the limit.
- All processes are stopped while the largest session is found. Processes that were stopped before continue afterwards too.
- A zombie counts for the parent that does not wait for it, as for RLIMIT_NPROC. Zombies that PID 1 is about to reap do not count.
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
"""Interval of the counts while anything runs besides PID 1."""
MIN_LIMIT = 16
SELF = 0
"""Pid 0 means the caller to prlimit(2): it works while root inside has covered /proc, and children of PID 1 inherit the limit."""
_NPROC = resource.RLIMIT_NPROC
_UNLIMITED = resource.RLIM_INFINITY


class PidLimit:
    """The process limit of the sandbox.

    Args:
        loop: The guest's loop.
        children: Owners of processes; they learn that theirs was killed for the limit.
    """

    __slots__ = ("_children", "_is_counting", "_limit", "_loop")

    def __init__(self, loop: Loop, children: ChildTable) -> None:
        self._loop = loop
        self._children = children
        self._is_counting = False
        self._limit = 0

    def set(self, limit: int) -> None:
        """Limit everything that runs, and everything that starts from now on."""
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
            raise RpcError("conflict", f"{running} processes and threads run in the sandbox, more than {limit}.", "End some of them first.")
        self.set(limit)

    def watch(self) -> None:
        """Count from now on until nothing runs: something was started."""
        if not self._is_counting and self._limit:
            self._is_counting = True
            self._loop.call_later(COUNT_EVERY_S, self._count)

    def _count(self) -> None:
        total = count_tasks_fast()
        # The fast count includes zombies that do not count, so it is only a reason for the exact one.
        if total > most_pids(self._limit) and self._is_exceeded(tasks_per_session(all_processes())):
            self.kill_largest_session()
        if total:
            self._loop.call_later(COUNT_EVERY_S, self._count)
        else:
            self._is_counting = False

    def kill_largest_session(self) -> None:
        """Kill the session with most processes and threads, and everything if that is not enough.

        All processes are stopped meanwhile: otherwise they could fork faster than they are found, and take the CPU of PID 1.
        """
        kill_all(signal.SIGSTOP)
        try:
            self._kill_largest_session_of_stopped()
        finally:
            kill_all(signal.SIGCONT)

    def _kill_largest_session_of_stopped(self) -> None:
        sessions = tasks_per_session(all_processes())
        if not self._is_exceeded(sessions):  # some have ended meanwhile
            return
        largest = max(sessions, key=lambda session: sessions[session])
        log(f"over the limit of {self._limit} processes: ending session {largest} with {sessions[largest]}")
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
        before: Limit of the sandbox until now; 0 if it had none.
        after: Limit of the sandbox from now on.
    """
    # A process that has limited itself to less keeps its own limit.
    wanted = soft if soft != _UNLIMITED and soft < before else after
    return min(wanted, after) if hard == _UNLIMITED else min(wanted, after, hard)


def _set_soft_limits(pids: list[int], before: int, after: int) -> bool:
    """Set the soft limits of processes; return whether any of them changed."""
    has_changed, denied = _set_soft_limits_as_current_user(pids, before, after)
    if denied:
        # Without CAP_SYS_RESOURCE, only processes with the caller's own ids may be limited (prlimit(2)).
        with as_process_user(lookup_account("user")):
            has_changed_more, _ = _set_soft_limits_as_current_user(denied, before, after)
        has_changed = has_changed or has_changed_more
    return has_changed


def _set_soft_limits_as_current_user(pids: list[int], before: int, after: int) -> tuple[bool, list[int]]:
    """Set the soft limits of processes; return whether any of them changed, and the pids that the kernel denied."""
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
