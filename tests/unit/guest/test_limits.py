"""What becomes of a process's own limit when the sandbox's moves, and how processes are counted."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from sandlot.guest.limits import moved
from sandlot.guest.tasks import crowd, tasks

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    "soft, hard, before, after, expected",
    [
        (ENDLESS, ENDLESS, 0, 64, 64),  # the first one
        (64, ENDLESS, 64, 200, 200),
        (64, ENDLESS, 64, 20, 20),
        (30, ENDLESS, 64, 200, 30),  # it limited itself
        (30, ENDLESS, 64, 20, 20),
        (ENDLESS, ENDLESS, 64, 200, 200),  # it had raised its own
        (5000, ENDLESS, 64, 20, 20),
        (64, 100, 64, 200, 100),  # what was started so can have no more
        (0, 0, 64, 200, 0),
    ],
)
def test_a_limit_moves_with_the_sandboxs(soft: int, hard: int, before: int, after: int, expected: int) -> None:
    assert moved(soft, hard, before, after) == expected


def test_a_crowd_is_counted_with_its_threads() -> None:
    before = crowd()
    threads = "for _ in range(40): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    program = f"import threading, time\n{threads}\nprint('up', flush=True)\ntime.sleep(600)"
    child = subprocess.Popen(["python3", "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.read(3) == b"up\n"
    (found,) = (task for task in tasks() if task.pid == child.pid)
    assert found.threads == 41
    assert Path(f"/proc/{child.pid}/task").stat().st_nlink - 2 == found.threads
    # Others come and go on this machine; these are many.
    assert crowd() - before > 20
    child.kill()
    child.communicate()
