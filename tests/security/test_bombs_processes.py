"""Promise: whoever makes too many processes, threads, signals or timers is refused or ended, and everything else goes on.

The user is refused at the limit, root's largest family is ended; nobody can take more of the processor than the sandbox has.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sandlot import SandlotError
from tests.support.bombs import KILLED, OUT_OF_MEMORY, PREAMBLE, Bomb, Targets, check_serves, ends, explode_all, parametrize
from tests.support.inside import USERS
from tests.support.localservice import LocalService

LIMITS = {"memory": "512M", "disk": "16M", "pids": 32}

FORKS = "until_refused(lambda number: os.fork() or hold())\nhold()"
THREADS = """
threading.stack_size(65536)
until_refused(lambda number: threading.Thread(target=hold, daemon=True).start())
hold()
"""
ZOMBIES = """
for number in range(40):
    try:
        pid = os.fork()
    except OSError as error:
        tell(error)
        hold()
    if pid == 0:
        os._exit(0)
tell("done")
hold()
"""
ORPHANS = """
for number in range(34):  # more than there may be at once
    try:
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                os.fork()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    except OSError:
        pass
tell("done")
"""
PUSHY = """
# Whatever may put one before others: niceness, real time, every processor, never sleeping.
os.sched_setaffinity(0, range(os.cpu_count()))
for step in (lambda: os.nice(-20), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99)),
             lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(99))):
    try:
        step()
    except OSError:
        pass
for number in range(10):
    if os.fork() == 0:
        while True:
            pass
tell("done")
hold()
"""
SIGNALS = """
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for number in range(6):
    if os.fork() == 0:
        while True:
            for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGWINCH, signal.SIGURG, 40):
                for target in (-1, 1, 0):
                    try:
                        os.kill(target, number)
                    except OSError:
                        pass
tell("done")
hold()
"""
QUEUED = """
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
def one(number):
    if libc.sigqueue(os.getpid(), 40, None):
        raise OSError(ctypes.get_errno(), "sigqueue")
    if number > 200000:
        raise RuntimeError
until_refused(one)
hold()
"""
TIMERS = """
signal.signal(signal.SIGALRM, signal.SIG_IGN)
timer = ctypes.c_void_p()
def one(number):
    if libc.timer_create(1, None, ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    every = (ctypes.c_long * 4)(0, 1000000, 0, 1000000)
    libc.timer_settime(timer, 0, every, None)
    if number > 200:
        raise RuntimeError
until_refused(one)
hold()
"""

ROOTS_FORKS = (("gvisor", ends("EAGAIN", "timeout", "pids", KILLED, OUT_OF_MEMORY)),)
"""There a process takes more memory than of the host's kernel, and PID 1, which counts them, competes for the same processor."""

BOMBS = (
    Bomb("forks", FORKS, ends("EAGAIN")),
    Bomb("forks of root", FORKS, ends("EAGAIN", "pids", KILLED), "root", differs=ROOTS_FORKS),
    Bomb("threads", THREADS, ends("RuntimeError", "EAGAIN")),
    Bomb("zombies", ZOMBIES, ends("EAGAIN", "done")),
    Bomb("orphans", ORPHANS, ends("done")),
    Bomb("every processor of root, before all others", PUSHY, ends("done"), "root"),
    Bomb("a storm of signals", SIGNALS, ends("done")),
    Bomb("signals that nobody takes", QUEUED, ends("EAGAIN", "RuntimeError")),
    Bomb("timers", TIMERS, ends("EAGAIN", "ENOMEM", "RuntimeError")),
)
VARIANTS = (
    Bomb("threads of root", THREADS, ends("RuntimeError", "EAGAIN", "pids", KILLED), "root"),
    Bomb("zombies of root", ZOMBIES, ends("EAGAIN", "done", "pids", KILLED), "root"),
    Bomb("orphans of root", ORPHANS, ends("done", "pids", KILLED), "root"),
)


@pytest.mark.timeout(600)
@parametrize(BOMBS, VARIANTS)
def test_process_bombs_are_refused_or_ended(targets: Targets, isolation: str, bombs: Sequence[Bomb]) -> None:
    explode_all(targets, bombs, isolation)


def test_raised_process_limit_is_counted_in_large_sandboxes(service: LocalService) -> None:
    """As many as a sandbox may have by default: the more are allowed, the more are let live beyond."""
    with service.create(timeout=600, memory="512M", disk="16M", pids=512) as sandbox:
        program = f"{PREAMBLE}\nresource.setrlimit(resource.RLIMIT_NPROC, 2 * resource.getrlimit(resource.RLIMIT_NPROC)[1:])\n{THREADS}"
        for user in USERS:
            done = sandbox.commands.run(["python3", "-c", program], user=user, timeout=30)
            assert done.reason == "pids", (user, done)
        check_serves(sandbox)


def test_fork_bomb_of_a_cell_ends_with_its_cell(targets: Targets) -> None:
    """What a cell forks belongs to the kernel, and the kernel's next cell finds the sandbox as it was."""
    sandbox, done, ended = targets.get(), None, None
    try:
        done = sandbox.run_code(
            "import os, time\ntry:\n    while True:\n        if not os.fork(): time.sleep(600)\nexcept OSError as e: print(e.errno)"
        )
    except SandlotError as error:
        ended = error.fields.get("reason")
    if done is None:
        # A fork of a kernel holds some MiB of its own: gVisor may reach the memory limit first.
        assert ended == "oom"
        return
    assert done.stdout == "11\n" or done.status == "died", done
    sandbox.commands.run("pkill -KILL -u user; while pgrep -u user; do sleep 0.05; done", user="root", timeout=60)  # each takes its time to die
    check_serves(sandbox)


@pytest.mark.parametrize("user", USERS)
def test_shell_fork_bomb_is_ended(targets: Targets, user: str) -> None:
    """The one that everybody knows; every one of its processes leaves its parent at once."""
    sandbox = targets.get()
    ended = None
    try:
        done = sandbox.commands.run("bomb() { bomb | bomb & }; bomb; sleep 600", user=user, timeout=1)
        assert done.reason in {"timeout", "pids", "exited", "signalled"}
        sandbox.commands.run("pkill -KILL bash", user="root")
        check_serves(sandbox)
    except SandlotError as error:
        ended = error.fields.get("reason")
    # Root in gVisor, where no limit binds it: PID 1 may be too late.
    assert ended is None or (user == "root" and ended in {"oom", "crashed"})
