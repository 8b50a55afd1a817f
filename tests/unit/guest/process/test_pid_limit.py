"""Soft limits of processes after a change of the sandbox's limit, and counting of processes."""

from __future__ import annotations

import resource
import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from sandlot.guest.loop import Loop
from sandlot.guest.process import pid_limit
from sandlot.guest.process.children import ChildTable
from sandlot.guest.process.pid_limit import PidLimit, new_soft_limit, tasks_per_session
from sandlot.guest.process.procfs import ProcStat, all_processes, count_tasks_fast, live_processes
from sandlot.protocol.schema import most_pids
from tests.support.until import until

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    "soft, hard, before, after, expected",
    [
        (ENDLESS, ENDLESS, 0, 64, 64),  # no earlier limit
        (64, ENDLESS, 64, 200, 200),
        (64, ENDLESS, 64, 20, 20),
        (30, ENDLESS, 64, 200, 30),  # the process has lowered its limit
        (30, ENDLESS, 64, 20, 20),
        (ENDLESS, ENDLESS, 64, 200, 200),  # the process has raised its limit
        (5000, ENDLESS, 64, 20, 20),
        (64, 100, 64, 200, 100),  # the hard limit is lower
        (0, 0, 64, 200, 0),
    ],
)
def test_soft_limits_follow_the_limit_of_the_sandbox(soft: int, hard: int, before: int, after: int, expected: int) -> None:
    assert new_soft_limit(soft, hard, before, after) == expected


@pytest.fixture
def own_limit(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[], tuple[int, int]]]:
    """The process limit of the test process, the only process that the guest changes, because /proc lists none."""
    monkeypatch.setattr(pid_limit, "all_pids", list)
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    yield lambda: resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, before)


@pytest.mark.parametrize("limit, most", [(16, 24), (64, 72), (512, 576)])
def test_slack_above_the_limit_is_an_eighth_and_at_least_8(limit: int, most: int) -> None:
    assert most_pids(limit) == most


def test_guest_limits_itself_if_proc_is_covered(own_limit: Callable[[], tuple[int, int]]) -> None:
    PidLimit(Loop(), ChildTable()).set(4321)

    assert own_limit()[0] == 4321


def test_only_the_soft_limit_of_a_process_is_set(own_limit: Callable[[], tuple[int, int]]) -> None:
    _, hard = own_limit()
    limited = PidLimit(Loop(), ChildTable())

    limited.set(4321)
    limited.set(5432)

    assert own_limit() == (5432, hard)


def test_all_processes_are_stopped_while_the_largest_session_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    running = [task(10, 1, 10, threads=20), task(20, 1, 20, threads=900)]

    def look() -> list[ProcStat]:
        steps.append("look")
        return list(running)

    def end(root: int, number: int) -> None:
        steps.append((number, root))
        running[:] = [each for each in running if each.session != root]

    monkeypatch.setattr(pid_limit, "kill_all", steps.append)
    monkeypatch.setattr(pid_limit, "kill_tree", end)
    monkeypatch.setattr(pid_limit, "all_processes", look)
    crowded = PidLimit(Loop(), ChildTable())
    crowded._limit = 100  # noqa: SLF001 - set() would limit the test itself

    crowded.kill_largest_session()

    assert steps == [signal.SIGSTOP, "look", (signal.SIGKILL, 20), "look", signal.SIGCONT]


def test_fast_count_includes_threads() -> None:
    before = count_tasks_fast()
    threads = "for _ in range(400): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    program = f"import threading, time\n{threads}\nprint('up', flush=True)\ntime.sleep(600)"
    child = subprocess.Popen(["python3", "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.read(3) == b"up\n"
    (found,) = (task for task in live_processes() if task.pid == child.pid)
    assert found.threads == 401
    assert Path(f"/proc/{child.pid}/task").stat().st_nlink - 2 == found.threads
    # Other processes start and end on this machine, but only few.
    assert count_tasks_fast() - before > 200
    child.kill()
    child.communicate()


def task(pid: int, parent: int, session: int, state: bytes = b"S", threads: int = 1) -> ProcStat:
    return ProcStat(pid, [state, str(parent).encode(), b"0", str(session).encode(), *[b"0"] * 13, str(threads).encode()])


def test_session_counts_its_threads_and_unreaped_zombies() -> None:
    found = [
        task(1, 0, 1, threads=3),
        task(10, 1, 10, threads=5),
        task(11, 10, 10),
        task(12, 10, 12, b"Z"),  # a zombie in its own session, whose parent does not wait for it
        task(20, 1, 20, b"Z"),  # a zombie that PID 1 is about to reap
        task(21, 20, 20, b"Z", threads=7),  # only its first thread is dead
        task(30, 99, 30, b"Z"),  # its parent ended during the reading of /proc
    ]
    assert tasks_per_session(found) == {10: 7, 20: 7, 30: 1}


async def test_process_is_alive_without_its_first_thread_and_a_zombie_is_dead() -> None:
    program = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen(["python3", "-c", program]) as threaded, subprocess.Popen(["true"]) as dead:  # noqa: ASYNC220 - it starts at once
        await until(lambda: {each.state for each in all_processes() if each.pid in {threaded.pid, dead.pid}} == {b"Z"})
        assert {each.pid for each in live_processes()} & {threaded.pid, dead.pid} == {threaded.pid}
        threaded.kill()
