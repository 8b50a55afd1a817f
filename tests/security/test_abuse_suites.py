"""Promise: what others found when they let the public run code is tried here too, and fails.

The ideas, not the code, of the abuse suites of systems that run other people's programs: online judges, contest sandboxes, code
interpreters. Each test names where its idea comes from. Programs that use up memory, processes, disk or output are in test_bombs_*.py,
what concerns the host's files, processes, network and environment is in test_host_*.py, timeouts and signals are in tests/conformance/guest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.bombs import check_serves
from tests.support.inside import USERS, run_inside
from tests.support.localservice import LocalService
from tests.support.traces import settle

LIMITS: dict[str, Any] = {"memory": "256M", "disk": "16M", "pids": 48}


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create(timeout=1800, **LIMITS) as made:
        yield made
        check_serves(made)


@pytest.fixture(autouse=True)
def _serves_afterwards(sandbox: Sandbox) -> Iterator[None]:
    yield
    assert sandbox.commands.run(["echo", "alive"], timeout=60).stdout == "alive\n"


def test_timeout_ends_programs_that_leave_session_and_parent(sandbox: Sandbox) -> None:
    """Daemons are not found by their group or parent, and a program that ignores signals outlives a polite timeout.

    DOMjudge, tests/stress-test-fork-setsid.c and tests/test-fork-parent-exit2.c; microsoft/agent-governance-toolkit, pull request 3193.
    """
    program = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.setsid()
        os.execvp("sleep", ["sleep", "4321"])
time.sleep(600)
"""
    assert sandbox.commands.run(["python3", "-c", program], timeout=1).reason == "timeout"
    left = sandbox.commands.run("pgrep -xf 'sleep 4321' | wc -l").stdout
    # A daemon outlives its command, as it should; it counts against the limits and ends with the sandbox.
    assert int(left) <= 5
    sandbox.commands.run("pkill -KILL -xf 'sleep 4321'")


def test_program_cannot_stop_or_kill_its_parent(sandbox: Sandbox) -> None:
    """DOMjudge, tests/test-suspend-ppid.c: the runner is one's parent. Here the parent is PID 1, and the user may not touch it."""
    told = run_inside(
        sandbox,
        """
import signal
told["parent"] = os.getppid()
told["tried"] = [attempt(os.kill, os.getppid(), number).get("error") for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTSTP)]
""",
    )
    assert told == {"parent": 1, "tried": ["EPERM"] * 3}


def test_files_are_not_visible_to_the_next_sandbox(service: LocalService) -> None:
    """Piston, tests/file_persistance.py: folders that everybody may write to. Between sandboxes nothing stays; within one all does."""
    folders = ("/dev/shm", "/run/lock", "/tmp", "/var/tmp", "/workspace", "/home/user", "/dev/mqueue")
    look = "for folder; do [ -e $folder/bean ] && echo $folder; : >$folder/bean; done 2>/dev/null; true"
    for _ in range(2):
        with service.create(**LIMITS) as made:
            assert made.commands.run(["sh", "-c", look, "-", *folders]).stdout == ""
            assert len(made.commands.run(["sh", "-c", look, "-", *folders]).stdout.splitlines()) >= 4


@pytest.mark.parametrize("user", USERS)
def test_umask_and_limits_end_with_their_process(sandbox: Sandbox, user: str) -> None:
    """Contest sandboxes' chmod and umask tricks (isolate(1), "--init resets the sandbox"): nothing of a run's process is the next one's."""
    sandbox.commands.run("chmod 000 /workspace; umask 777; ulimit -n 3; cd /; export LEFT=1", user=user)
    done = sandbox.commands.run("umask; ulimit -n; echo $LEFT", user=user, cwd="/tmp")
    mask, files, left = done.stdout.split("\n")[:3]
    assert (mask, left) == ("0022", "")
    assert int(files) > 1000
    # Who takes the right to enter away from himself is told so, and root gives it back.
    if user == "user":
        with pytest.raises(SandlotError) as refused:
            sandbox.commands.run("true")
        assert refused.value.code in {ErrorCode.PERMISSION_DENIED, ErrorCode.PATH_INVALID}
    sandbox.commands.run("chmod 755 /workspace", user="root", cwd="/")


def test_submission_of_another_sandbox_is_neither_readable_nor_writable(service: LocalService, sandbox: Sandbox) -> None:
    """CMS, write-forbidden-fileio.c and rewrite-input.c; Judge0, CVE-2024-28185 and CVE-2024-28189 (links and chown out of the box)."""
    with service.create(**LIMITS) as other:
        other.files.write("/workspace/solution", "handed in by another")
        found = sandbox.commands.run(
            "grep -rsl 'handed in by another$' /workspace /tmp /home /root /var /run /dev/shm /proc/*/root/workspace; true", user="root"
        )
        assert found.stdout == ""
        sandbox.commands.run("ln -sfn / /workspace/link; ln -sf /etc/shadow /workspace/output; chown -h 0:0 /workspace/output", user="root")
        host = Path("/etc/shadow").stat()
        with pytest.raises(SandlotError) as refused:
            sandbox.files.write("/workspace/output", "overwritten")
        assert refused.value.code in {ErrorCode.PERMISSION_DENIED, ErrorCode.PATH_NOT_FOUND, ErrorCode.PATH_INVALID}
        now = Path("/etc/shadow").stat()
        assert (now.st_uid, now.st_mtime_ns) == (host.st_uid, host.st_mtime_ns)
        sandbox.commands.run("rm -f /workspace/link /workspace/output", user="root")


def test_unusual_file_names_are_handled(sandbox: Sandbox) -> None:
    """DMOJ, c_bad_unicode_open, c_nametoolong, sandbox_c_null_path; DOMjudge, filename-tests.tar.gz."""
    for name in ("-rf", "a b", "a\nb", "$(id)", "`id`", "'\"", "\\", "*", "~", "%00", "\u202egnp.exe", "🦖" * 60):
        sandbox.files.write(f"/workspace/names/{name}", name)
        assert sandbox.files.read(f"/workspace/names/{name}") == name
    assert len(sandbox.files.list("/workspace/names")) == 12
    sandbox.files.remove("/workspace/names")
    for path in ("/workspace/a\0b", "/workspace/" + "n" * 300):
        with pytest.raises(SandlotError) as refused:
            sandbox.files.read(path)
        assert refused.value.code is ErrorCode.PATH_INVALID


def test_huge_arguments_and_environments_are_refused(sandbox: Sandbox) -> None:
    """QingdaoU Judger, integration/args.c and env.c; execve(2) E2BIG. What Linux takes is taken, what is more is refused beforehand."""
    assert sandbox.commands.run(["sh", "-c", "echo ${#1}", "-", "x" * 131_000]).stdout == "131000\n"
    assert sandbox.commands.run("echo ${#BIG}", envs={"BIG": "x" * 120_000}).stdout == "120000\n"
    calls: tuple[Callable[[], object], ...] = (
        lambda: sandbox.commands.run(["echo", "x" * 200_000]),
        lambda: sandbox.commands.run(["echo"] + ["x" * 1000] * 3000),
        lambda: sandbox.commands.run("true", envs={"BIG": "x" * 200_000}),
    )
    for call in calls:
        with pytest.raises(SandlotError) as refused:
            call()
        assert refused.value.code in {ErrorCode.INVALID_REQUEST, ErrorCode.TOO_LARGE}
    inside = sandbox.commands.run(["python3", "-c", "import subprocess; subprocess.run(['echo'] + ['x' * 100000] * 200)"])
    assert "OSError" in inside.stderr, "E2BIG; gVisor says EINVAL"


def test_killed_sandbox_is_reported_to_its_running_calls(service: LocalService) -> None:
    """E2B, code-interpreter pull request 291 and test_sandbox_killed_during_run.py: a dropped connection tells nobody what happened."""
    with service.create(**LIMITS) as made, ThreadPoolExecutor(2) as pool:
        waiting: list[Future[Any]] = [
            pool.submit(made.commands.run, "sleep 600", timeout=600),
            pool.submit(made.run_code, "import time; time.sleep(600)", timeout=600),
        ]
        settle(lambda: any(process.running for process in made.commands.list()), expected=True)
        made.kill()
        for each in waiting:
            with pytest.raises(SandlotError) as refused:
                each.result(timeout=120)
            assert (refused.value.code, refused.value.fields["reason"]) == (ErrorCode.SANDBOX_ENDED, "killed")
