"""Families of processes: who belongs to a tree that has to die."""

from __future__ import annotations

import asyncio
import signal
import subprocess

import pytest

from sandlot.guest.tasks import Task, kill_tree, tasks, tree
from tests.support.until import until

FAMILY = 6
"""The shell, two sleeps of its own, the shell that left, and that one's two."""


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


async def test_a_whole_family_is_killed_also_where_it_left_its_session() -> None:
    script = "setsid sleep 300 & (setsid sh -c 'sleep 300 & sleep 300') & echo ready; sleep 300"
    shell = await asyncio.create_subprocess_exec("/bin/sh", "-c", script, stdout=subprocess.PIPE, start_new_session=True)
    assert shell.stdout is not None
    assert await shell.stdout.readline() == b"ready\n"
    family: list[int] = []

    def is_complete() -> bool:
        family[:] = tree(shell.pid, tasks())
        return len(family) >= FAMILY

    await until(is_complete)
    kill_tree(shell.pid, signal.SIGKILL)
    assert await shell.wait() == -signal.SIGKILL
    # A signal that was sent is a death that is certain, but on a busy host not one that has happened yet.
    await until(lambda: not {found.pid for found in tasks()} & set(family))
    assert await shell.stdout.read() == b"", "everybody who held the pipe is gone, and so is its transport"


def test_where_nobody_can_be_seen_the_group_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root inside may put a folder of its own over /proc."""
    monkeypatch.setattr("sandlot.guest.tasks.tasks", list)
    with subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & sleep 1000"], start_new_session=True) as shell:
        kill_tree(shell.pid, signal.SIGTERM)
        assert shell.wait() == -signal.SIGTERM
    kill_tree(shell.pid, signal.SIGKILL)  # nobody is left, which is no error
