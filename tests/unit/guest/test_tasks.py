"""Families of processes: who belongs to a tree that has to die."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from sandlot.guest.tasks import Task, kill_tree, tasks, tree


def task(pid: int, parent: int, group: int, session: int) -> Task:
    fields = [b"S", str(parent).encode(), str(group).encode(), str(session).encode(), *[b"0"] * 13, b"1"]
    return Task(pid, fields)


def test_a_tree_is_descent_session_and_group_but_never_pid_1() -> None:
    everything = [
        task(1, 0, 1, 1),
        task(10, 1, 10, 10),
        task(11, 10, 10, 10),
        task(12, 11, 12, 12),  # left the session, kept its parent
        task(13, 1, 10, 10),  # lost its parent, kept the session
        task(14, 12, 14, 14),
        task(20, 1, 20, 20),
    ]
    assert tree(10, everything) == [10, 11, 12, 13, 14]
    assert tree(20, everything) == [20]
    assert 1 not in tree(1, everything)


def test_a_whole_family_is_killed_also_where_it_left_its_session() -> None:
    script = "setsid sleep 300 & (setsid sh -c 'sleep 300 & sleep 300') & echo ready; sleep 300"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"ready\n"
        family = _settled_family(shell.pid)
        kill_tree(shell.pid, signal.SIGKILL)
        assert shell.wait() == -signal.SIGKILL
    alive = {found.pid for found in tasks()}
    assert not alive & set(family)


def _settled_family(root: int) -> list[int]:
    """The family once all five of it are there."""
    while True:
        family = tree(root, tasks())
        if len(family) >= 5:
            return family
        assert Path(f"/proc/{root}").exists(), "the shell is gone"
        time.sleep(0.01)
