"""Trees of processes: which processes are killed together."""

from __future__ import annotations

import signal
import subprocess

import pytest

from sandlot.guest.process.procfs import ProcStat, kill_tree, tree

FAMILY = 6
"""The shell, its two sleeps, the shell in another session, and the two sleeps of that shell."""


def task(pid: int, parent: int, group: int, session: int) -> ProcStat:
    fields = [b"S", str(parent).encode(), str(group).encode(), str(session).encode(), *[b"0"] * 13, b"1"]
    return ProcStat(pid, fields)


def test_tree_is_descendants_session_and_group_without_pid_1() -> None:
    everything = [
        task(1, 0, 1, 1),
        task(10, 1, 10, 10),
        task(11, 10, 10, 10),
        task(12, 11, 12, 12),  # another session, same parent
        task(13, 1, 10, 10),  # an orphan in the same session
        task(14, 12, 14, 14),
        task(20, 1, 20, 20),
    ]
    assert tree(10, everything) == [10, 11, 12, 13, 14]
    assert tree(20, everything) == [20]
    assert 1 not in tree(1, everything)


def test_group_is_killed_if_proc_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root inside may mount another folder over /proc."""
    monkeypatch.setattr("sandlot.guest.process.procfs.live_processes", list)
    with subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & sleep 1000"], start_new_session=True) as shell:
        kill_tree(shell.pid, signal.SIGTERM)
        assert shell.wait() == -signal.SIGTERM
    kill_tree(shell.pid, signal.SIGKILL)  # without a process left, there is no error
