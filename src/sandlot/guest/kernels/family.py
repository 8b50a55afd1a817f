"""The families of kernels: whatever a kernel started, wherever it went, told from everything else in the sandbox.

A child leaves its parent by being orphaned, its group and session by setsid(2), its environment by exec with another one. What it
keeps, over fork and exec and all of these, is a limit that nothing else has: so each kernel gets its own, of resources that no
program comes near. Who starts programs without it (``sudo``, commands) is the guest itself.

Anybody may lower a limit of his own, as ``ulimit -f`` does. So there are two, and one of them is enough to be told by; a process
that lowers both on purpose, and has left its parents as well, is its kernel's no more: it ends with the sandbox.
"""

from __future__ import annotations

import os
import resource

from sandlot.guest.process.accounts import as_process_user, lookup_account
from sandlot.guest.process.procfs import PASSES, live_processes, send_signal, tree
from sandlot.protocol.fast_imports import signal

MARK = 1 << 61
"""The least that marks: 2 EiB and some bytes of a file (RLIMIT_FSIZE) and of data (RLIMIT_DATA, getrlimit(2))."""
_KINDS = (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)


def mark(pid: int, number: int) -> None:
    """Give a process, and all that it starts from now on, a kernel's mark.

    Args:
        pid: It.
        number: The kernel's, from 1.
    """
    with as_process_user(lookup_account("user")):  # without CAP_SYS_RESOURCE one may limit those that are the same user
        for kind in _KINDS:
            try:
                resource.prlimit(pid, kind, (MARK + number, MARK + number))
            except OSError:
                return  # it has ended


def marked(number: int, pids: list[int]) -> set[int]:
    """Those processes that have a kernel's mark."""
    found = set()
    with as_process_user(lookup_account("user")):
        for pid in pids:
            try:
                if any(resource.prlimit(pid, kind)[1] == MARK + number for kind in _KINDS):
                    found.add(pid)
            except OSError:
                continue  # it has ended, or is another user's
    return found


def end(root: int, number: int) -> None:
    """Kill a kernel's process and its whole family; again and again, because a family may fork meanwhile.

    Args:
        root: The kernel's process.
        number: Its mark.
    """
    send_signal(root, signal.SIGKILL)
    try:
        os.killpg(root, signal.SIGKILL)  # all that is known where root inside has put something over /proc
    except OSError:
        pass
    members = {root}
    for _ in range(PASSES):
        alive = live_processes()
        members = {pid for known in members for pid in tree(known, alive)} | marked(number, [task.pid for task in alive if task.pid != 1])
        members &= {task.pid for task in alive}
        if not members:
            return
        for pid in members:
            send_signal(pid, signal.SIGKILL)


def interrupt(root: int) -> bool:
    """SIGINT for a kernel's process group, as Ctrl-C sends it; whether there is one."""
    try:
        os.killpg(root, signal.SIGINT)
    except OSError:
        return False
    return True
