"""All processes of the sandbox, as /proc shows them: families, counts, and how to end them.

A process group is left by setsid(2), a parent by dying; so a tree is what descends from a process by parent, shares its
session, or shares its group.
"""

from __future__ import annotations

import os
import resource

from sandlot.protocol.fast_imports import signal

PASSES = 20
"""A tree that still grows after that many passes is left to the pids limit."""


class Task:
    """One process of /proc."""

    __slots__ = ("group", "parent", "pid", "session", "state", "threads", "ticks")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.ticks = sum(int(field) for field in fields[11:15])
        """Processor time of it, and of its children that it has waited for."""
        self.threads = max(1, int(fields[17]))

    def is_dead(self) -> bool:
        """Whether nothing of it runs any more. One whose first thread alone has ended looks dead, and has other threads (proc(5))."""
        return self.state in {b"Z", b"X"} and self.threads == 1


def pids() -> list[int]:
    """Every process id in the sandbox; none where root inside has put something else over /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def tasks() -> list[Task]:
    """Every process that is alive (no zombies)."""
    return [task for task in everyone() if not task.is_dead()]


def everyone() -> list[Task]:
    """Every process, zombies included, by proc(5)'s stat."""
    found = []
    for pid in pids():
        try:
            fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # The name stands in parentheses and may contain anything; what follows the last one is fixed.
            found.append(Task(pid, os.read(fd, 4096).rpartition(b")")[2].split()))
        except (OSError, ValueError, IndexError):
            continue
        finally:
            os.close(fd)
    return found


def cpu_s() -> float:
    """Processor time in seconds of everything that runs or has run, PID 1 excepted."""
    ticks = sum(task.ticks for task in everyone() if task.pid != 1)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / os.sysconf("SC_CLK_TCK") + ended.ru_utime + ended.ru_stime


def crowd() -> int:
    """How many processes and threads there are, zombies included, PID 1 excepted: a look that costs a fifth of :func:`tasks`.

    A folder's links tell how many folders are in it, so that of a process's threads tells their number (proc(5)).
    """
    total = 0
    for pid in pids():
        if pid == 1:
            continue
        try:
            total += max(1, os.stat(f"/proc/{pid}/task").st_nlink - 2)
        except OSError:
            continue
    return total


def tree(root: int, everything: list[Task]) -> list[int]:
    """The pids of a process, its session, its group and its descendants; never PID 1."""
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
    """Signal a whole tree. A deadly signal is sent until nothing is left of it, because a tree may fork meanwhile."""
    alive = tasks()
    if not alive:
        # Not even oneself: there is no /proc to look at. What is known without one is the group.
        try:
            os.killpg(root, number)
        except OSError:
            pass
        return
    if number != signal.SIGKILL:
        for pid in tree(root, alive):
            send(pid, number)
        return
    # Looked at before anything dies: whoever loses its parent is handed to PID 1, and could not be told from a stranger.
    members = {root}
    for _ in range(PASSES):
        members = {pid for known in members for pid in tree(known, alive)} & {task.pid for task in alive}
        if not members:
            return
        # Parents first, as far as their numbers tell: who waits for a child is not to outlive it by the moment in which it says how that ended.
        for pid in sorted(members, key=lambda pid: (pid != root, pid)):
            send(pid, signal.SIGKILL)
        alive = tasks()


def hang_up(session: int) -> None:
    """Tell everybody of a session whose leader has ended that its terminal is gone: SIGHUP, and SIGCONT for those that are stopped.

    Linux does so for the foreground group and for stopped ones (exit(3p)), gVisor does not; who is to live on calls nohup(1) or setsid(1).
    """
    for task in tasks():
        if task.session == session and task.pid != session:
            send(task.pid, signal.SIGHUP)
            send(task.pid, signal.SIGCONT)


def kill_all(number: int = signal.SIGKILL) -> None:
    """Signal, or end, every process but PID 1 (kill(2): -1 is everybody that may be signalled, the caller excepted)."""
    try:
        os.kill(-1, number)
    except OSError:
        return


def send(pid: int, number: int) -> None:
    """Signal one process, if it is there."""
    try:
        os.kill(pid, number)
    except OSError:
        return
