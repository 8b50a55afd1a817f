"""Processes of the sandbox as /proc shows them: lists, counts, and signals to trees of processes.

The tree of a process consists of its descendants, its session and its group. None of these alone is enough: a descendant can
leave the session and group by setsid(2), and a process whose parent ends becomes a child of PID 1.
"""

from __future__ import annotations

import os
import resource

from sandlot.protocol.fast_imports import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

PASSES = 20
"""Maximum number of times that an operation is repeated because processes fork meanwhile. The process limit stops endless forking."""


class ProcStat:
    """One process, parsed from ``/proc/PID/stat`` (proc(5)).

    Args:
        pid: Process id.
        fields: Fields of the file after the name of the program.
    """

    __slots__ = ("group", "parent", "pid", "session", "state", "threads", "ticks")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.ticks = sum(int(field) for field in fields[11:15])
        """CPU time of the process and of the children that it has waited for, in clock ticks."""
        self.threads = max(1, int(fields[17]))

    def is_dead(self) -> bool:
        """Return True if all threads of the process have ended.

        The state alone does not show this: if only the main thread has ended, the state of the process is ``Z`` too (proc(5)).
        """
        return self.state in {b"Z", b"X"} and self.threads == 1


def all_pids() -> list[int]:
    """Return the ids of all processes of the sandbox. Empty if root in the sandbox has mounted something else over /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def live_processes() -> list[ProcStat]:
    """Return all processes of the sandbox except zombies."""
    return [task for task in all_processes() if not task.is_dead()]


def all_processes() -> list[ProcStat]:
    """Return all processes of the sandbox, zombies included."""
    found = (read_process(pid) for pid in all_pids())
    return [process for process in found if process is not None]


def read_process(pid: int) -> ProcStat | None:
    """Return one process; None if the process does not exist."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # The program's name is in parentheses and may itself contain parentheses. So parse the text after the last parenthesis.
        return ProcStat(pid, os.read(fd, 4096).rpartition(b")")[2].split())
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(fd)


def find_root(pid: int, roots: Container[int]) -> int:
    """Return the pid of the process from which a process descends or whose session it is in; 0 if there is none.

    Args:
        pid: Pid of the process; may itself be the result.
        roots: Pids that may be the result.
    """
    process = read_process(pid)
    session = process.session if process is not None else 0
    while process is not None and process.pid not in roots:
        process = read_process(process.parent)
    return process.pid if process is not None else session if session in roots else 0


def cpu_s() -> float:
    """Return the CPU time in seconds that all processes except PID 1 have used, including processes that have ended."""
    ticks = sum(task.ticks for task in all_processes() if task.pid != 1)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / os.sysconf("SC_CLK_TCK") + ended.ru_utime + ended.ru_stime


def count_tasks() -> int:
    """Return the number of threads of all live processes except PID 1. A process with one thread counts as 1."""
    return sum(task.threads for task in live_processes() if task.pid != 1)


def count_tasks_fast() -> int:
    """Return the number of threads of all processes except PID 1, zombies included. Takes a fifth of the time of :func:`count_tasks`.

    The number of threads is derived from the link count of ``/proc/PID/task``, which has one subdirectory for each thread (proc(5)).
    """
    total = 0
    for pid in all_pids():
        if pid == 1:
            continue
        try:
            total += max(1, os.stat(f"/proc/{pid}/task").st_nlink - 2)
        except OSError:
            continue
    return total


def tree(root: int, everything: list[ProcStat]) -> list[int]:
    """Return the sorted pids of a process, its session, its group and the descendants of all these, without PID 1. Pure.

    Args:
        root: Pid of the process. The result contains this pid even if the process has ended.
        everything: Processes to search.
    """
    members = {root}
    grew = True
    while grew:
        grew = False
        for task in everything:
            if task.pid not in members and (task.parent in members or root in {task.session, task.group}):
                members.add(task.pid)
                grew = True
    members.discard(1)
    return sorted(members)


def kill_tree(root: int, number: int) -> None:
    """Send a signal to a process, its session, its group and all descendants.

    SIGKILL is sent up to ``PASSES`` times, until none of these processes is left, because they may fork meanwhile.

    Args:
        root: Pid of the process. The process itself may have ended.
        number: Number of the signal.
    """
    alive = live_processes()
    if not alive:
        # An empty list means that root in the sandbox has mounted something over /proc. Then only the process group can be signalled.
        try:
            os.killpg(root, number)
        except OSError:
            pass
        return
    if number != signal.SIGKILL:
        for pid in tree(root, alive):
            send_signal(pid, number)
        return
    # Find all members before the first kill: the children of a killed process get PID 1 as parent, and are then no longer found as
    # descendants of the root.
    members = {root}
    for _ in range(PASSES):
        members = {pid for known in members for pid in tree(known, alive)} & {task.pid for task in alive}
        if not members:
            return
        # Kill parents before their children, because a parent that outlives a child may print how the child ended. Children usually
        # have higher pids than their parents.
        for pid in sorted(members, key=lambda pid: (pid != root, pid)):
            send_signal(pid, signal.SIGKILL)
        alive = live_processes()


def hang_up(session: int) -> None:
    """Send SIGHUP and SIGCONT to the processes of a session whose leader has ended, as Linux does when a terminal is closed.

    Linux sends these signals to the foreground group and to suspended groups (exit(3p)); gVisor sends none. To let a program continue
    after the terminal is closed, users start the program with nohup(1) or setsid(1).

    Args:
        session: Id of the session, which is the pid of its leader.
    """
    for task in live_processes():
        if task.session == session and task.pid != session:
            send_signal(task.pid, signal.SIGHUP)
            send_signal(task.pid, signal.SIGCONT)


def kill_all(number: int = signal.SIGKILL) -> None:
    """Send a signal to all processes except PID 1 (kill(2) with -1)."""
    try:
        os.kill(-1, number)
    except OSError:
        return


def send_signal(pid: int, number: int) -> None:
    """Send a signal to one process. Does nothing if the process does not exist."""
    try:
        os.kill(pid, number)
    except OSError:
        return
