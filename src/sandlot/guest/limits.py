"""The limit of processes and threads: set for everything that runs, counted, moved while it runs.

Laws:
- RLIMIT_NPROC refuses what would be too many, for everybody whom the kernel binds by it: not root in gVisor.
- Only the soft limit is set. A hard one that was lowered cannot be raised again, in a user namespace not even by root
  (prlimit(2)), and in gVisor not that of a user; a limit that can only be lowered could not be moved.
- So whoever raises it, and root, is counted: beyond the limit and its slack the largest family is ended, at latest
  ``COUNT_EVERY_S`` later. The slack is for what root starts beside a user that keeps to the limit, and may be at it.
- The dead count for the parent that does not wait for them, as they do to RLIMIT_NPROC. Nobody is stopped for those that PID 1
  is about to wait for.
- PID 1 counts for nothing.
- A limit below what runs is refused and nothing is changed.
"""

from __future__ import annotations

import resource

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.loop import log
from sandlot.guest.spawn import Taking, account
from sandlot.guest.tasks import PASSES, crowd, everyone, kill_all, kill_tree, pids, tasks
from sandlot.protocol.fast_imports import signal
from sandlot.protocol.schema import most_pids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.calls import Call
    from sandlot.guest.main import Guest
    from sandlot.guest.tasks import Task

COUNT_EVERY_S = 0.2
"""How often processes are counted while anything runs but PID 1."""
LEAST = 16
MYSELF = 0
"""To prlimit(2): bound even where root inside has put something over /proc, and with PID 1 all that it starts from then on."""
_KIND = resource.RLIMIT_NPROC
_ENDLESS = resource.RLIM_INFINITY


class Pids:
    """The limit, and who watches over it."""

    __slots__ = ("_counting", "_guest", "limit")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._counting = False
        self.limit = 0
        guest.calls.handlers["guest.limit"] = self.change

    def set(self, limit: int) -> None:
        """Bind everything that runs, and everything that will."""
        before, self.limit = self.limit, max(LEAST, limit)
        for _ in range(PASSES):  # what is forked meanwhile has its parent's limit
            if not _bind([MYSELF, *pids()], before, self.limit):
                return

    def change(self, call: Call) -> None:
        """``guest.limit``."""
        limit = call.args["pids"]
        running = count()
        if limit < running:
            raise Refusal("conflict", f"{running} processes and threads run in the sandbox, more than {limit}.", "End some of them first.")
        self.set(limit)
        if call.args["memory_bytes"] is not None:
            self._guest.kernels.memory.change(call.args["memory_bytes"])
        call.result()

    def watch(self) -> None:
        """Something was started: count from now on, until nothing runs."""
        if not self._counting and self.limit:
            self._counting = True
            self._guest.loop.after(COUNT_EVERY_S, self._count)

    def _count(self) -> None:
        total = crowd()
        # A look that is cheap, then one that is right.
        if total > most_pids(self.limit) and sum(families(everyone()).values()) > most_pids(self.limit):
            self._cull()
        if total:
            self._guest.loop.after(COUNT_EVERY_S, self._count)
        else:
            self._counting = False

    def _cull(self) -> None:
        """Over the limit: end the largest family, and everything where that did not help.

        All hold still meanwhile: those that multiply would do so faster than they can be looked at, and take the processor
        from PID 1. Whoever was stopped before goes on as well.
        """
        kill_all(signal.SIGSTOP)
        try:
            self._end_the_largest()
        finally:
            kill_all(signal.SIGCONT)

    def _end_the_largest(self) -> None:
        sessions = families(everyone())
        if sum(sessions.values()) <= most_pids(self.limit):  # some have ended meanwhile
            return
        worst = max(sessions, key=lambda session: sessions[session])
        log(f"over the limit of {self.limit} processes: ending session {worst} with {sessions[worst]}")
        for process in self._guest.processes.running():
            if process.pid == worst:
                process.kill("pids")
        kill_tree(worst, signal.SIGKILL)
        if sum(families(everyone()).values()) > most_pids(self.limit):
            for process in self._guest.processes.running():
                process.reason = "pids"
            kill_all()


def count() -> int:
    """Processes and threads that run, PID 1 excepted."""
    return sum(task.threads for task in tasks() if task.pid != 1)


def families(found: list[Task]) -> dict[int, int]:
    """Of each session, how many processes and threads it has; PID 1 and the dead that it waits for excepted. Pure.

    Args:
        found: Every process, the dead as well.
    """
    known = {task.pid: task for task in found}
    sessions: dict[int, int] = {}
    for task in found:
        answers = known.get(task.parent, task) if task.is_dead() else task
        if answers.pid != 1:
            sessions[answers.session] = sessions.get(answers.session, 0) + task.threads
    return sessions


def moved(soft: int, hard: int, before: int, after: int) -> int:
    """The soft limit of a process when that of the sandbox moves. Pure.

    Args:
        soft: The process's own.
        hard: What it can be at most.
        before: The sandbox's limit until now; 0 where there was none.
        after: The sandbox's limit from now on.
    """
    # What limited itself to less stays there.
    kept = soft if soft != _ENDLESS and soft < before else after
    return min(kept, after) if hard == _ENDLESS else min(kept, after, hard)


def _bind(members: list[int], before: int, after: int) -> bool:
    """Whether any limit had to be moved."""
    some, denied = _bind_all(members, before, after)
    if denied:
        # Without CAP_SYS_RESOURCE one may limit those that are the same user.
        with Taking(account("user")):
            more, _ = _bind_all(denied, before, after)
        some = some or more
    return some


def _bind_all(members: list[int], before: int, after: int) -> tuple[bool, list[int]]:
    some, denied = False, []
    for pid in members:
        try:
            soft, hard = resource.prlimit(pid, _KIND)
            wanted = moved(soft, hard, before, after)
            if wanted != soft:
                resource.prlimit(pid, _KIND, (wanted, hard))
                some = True
        except PermissionError:
            denied.append(pid)
        except OSError:
            continue  # it has ended
    return some, denied
