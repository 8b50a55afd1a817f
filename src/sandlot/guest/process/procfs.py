"""Processes of the sandbox, read from /proc: lists, counts, and signals to whole trees.

A process leaves its group and session by setsid(2), and its parent when the parent ends. So the tree of a process consists of
its descendants, its session and its group.
"""

from __future__ import annotations

import os
import resource

from sandlot.protocol.fast_imports import signal

PASSES = 20
"""Maximum number of passes over a tree that keeps forking. After that, the process limit stops it."""


class ProcStat:
    """One process as proc(5) describes it in ``/proc/PID/stat``."""

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
        """Return True if no thread runs any more. If only the first thread has ended, the state is that of a zombie too (proc(5))."""
        return self.state in {b"Z", b"X"} and self.threads == 1


def all_pids() -> list[int]:
    """Return all process ids of the sandbox; an empty list if root inside has mounted something over /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def live_processes() -> list[ProcStat]:
    """Return all processes except zombies."""
    return [task for task in all_processes() if not task.is_dead()]


def all_processes() -> list[ProcStat]:
    """Return all processes, zombies included."""
    found = []
    for pid in all_pids():
        try:
            fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # The name is in parentheses and may contain any character, also parentheses.
            found.append(ProcStat(pid, os.read(fd, 4096).rpartition(b")")[2].split()))
        except (OSError, ValueError, IndexError):
            continue
        finally:
            os.close(fd)
    return found


def cpu_s() -> float:
    """Return the CPU time in seconds of all processes so far, including those that have ended, except PID 1."""
    ticks = sum(task.ticks for task in all_processes() if task.pid != 1)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / os.sysconf("SC_CLK_TCK") + ended.ru_utime + ended.ru_stime


def count_tasks() -> int:
    """Return the number of processes and threads that are alive, except PID 1."""
    return sum(task.threads for task in live_processes() if task.pid != 1)


def count_tasks_fast() -> int:
    """Return the number of processes and threads, zombies included, except PID 1. Takes a fifth of :func:`live_processes`.

    The link count of a directory contains the number of its subdirectories; ``/proc/PID/task`` has one for each thread (proc(5)).
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
    """Return the pids of a process, its session, its group and its descendants, without PID 1. Pure."""
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
    """Send a signal to a process and its tree. SIGKILL is sent until nothing is left, because a tree may fork meanwhile.

    Args:
        root: Pid of the process, which may have ended.
        number: Number of the signal.
    """
    alive = live_processes()
    if not alive:
        # Root inside has mounted something over /proc. Without /proc, only the process group can be signalled.
        try:
            os.killpg(root, number)
        except OSError:
            pass
        return
    if number != signal.SIGKILL:
        for pid in tree(root, alive):
            send_signal(pid, number)
        return
    # Find the members before the first kill: after that, orphans have PID 1 as parent and can no longer be attributed.
    members = {root}
    for _ in range(PASSES):
        members = {pid for known in members for pid in tree(known, alive)} & {task.pid for task in alive}
        if not members:
            return
        # Kill parents before their children, which usually have higher pids: a parent that outlives its child may print how the child ended.
        for pid in sorted(members, key=lambda pid: (pid != root, pid)):
            send_signal(pid, signal.SIGKILL)
        alive = live_processes()


def hang_up(session: int) -> None:
    """Send SIGHUP and SIGCONT to a session whose leader has ended, because its terminal is gone.

    Linux does so for the foreground group and for stopped groups (exit(3p)); gVisor does not. Programs that must continue are
    started by nohup(1) or setsid(1).
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
    """Send a signal to one process, if it exists."""
    try:
        os.kill(pid, number)
    except OSError:
        return
