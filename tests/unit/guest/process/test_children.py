"""Owners of child processes: the end of a process is reported to its owner, once."""

from __future__ import annotations

import os
import signal
import time

from sandlot.guest.process.children import ChildTable


class Owner:
    """Owner of a process that records its calls."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_exit(self, status: int, usage: object) -> None:
        assert usage is not None
        self.seen.append(os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

    def on_killed(self, reason: str) -> None:
        self.seen.append(reason)


def reap_until(children: ChildTable, pid: int) -> None:
    end_s = time.monotonic() + 30
    while pid in children:
        assert time.monotonic() < end_s
        children.reap()


def test_end_of_a_process_is_reported_to_its_owner_only() -> None:
    children, owner, other = ChildTable(), Owner(), Owner()
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], {})
    children.add(pid, owner)
    children.add(1 << 22, other)

    reap_until(children, pid)

    assert (owner.seen, other.seen) == ([3], [])


def test_reported_kill_comes_before_the_end_and_a_kill_of_an_orphan_is_ignored() -> None:
    children, owner = ChildTable(), Owner()
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    children.add(pid, owner)
    os.kill(pid, signal.SIGKILL)

    children.report_kill(pid, "oom")
    children.report_kill(1 << 22, "pids")
    reap_until(children, pid)

    assert owner.seen == ["oom", signal.SIGKILL]
