"""Promise: what others found when they let the public run code is tried here too, and fails.

The ideas, not the code, of the abuse suites of systems that run other people's programs: online judges, contest sandboxes, code
interpreters. Each test names where its idea comes from. Programs that use up memory, processes, disk or output are in test_bombs_*.py,
what concerns the host's files, processes and environment is in test_host_*.py.
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
from tests.support.traces import NOTHING, settle

MIB = 1 << 20
LIMITS: dict[str, Any] = {"memory": "256M", "disk": "64M", "pids": 48}


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create(timeout=1800, **LIMITS) as made:
        yield made
        check_serves(made)


@pytest.fixture(autouse=True)
def _serves_afterwards(sandbox: Sandbox) -> Iterator[None]:
    yield
    assert sandbox.commands.run(["echo", "alive"], timeout=60).stdout == "alive\n"


# ------------------------------------------------------------------------------------------------------------ processes


def test_leaving_the_session_and_the_parent(sandbox: Sandbox) -> None:
    """DOMjudge, tests/stress-test-fork-setsid.c and tests/test-fork-parent-exit2.c: a daemon is not found by its group or parent."""
    program = """
import os, sys, time
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


def test_a_timeout_takes_the_children_along(sandbox: Sandbox) -> None:
    """inspect_ai, issue 4971 (a check that could not fail) and langfuse, issue 15955 (one that would have)."""
    done = sandbox.commands.run("sleep 5432 & sleep 5433 & (sleep 5434; true) & wait", timeout=0.7)
    assert done.reason == "timeout"
    assert sandbox.commands.run("pgrep -f 'sleep 543[2-4]$'").stdout == ""


def test_ignoring_every_signal(sandbox: Sandbox) -> None:
    """microsoft/agent-governance-toolkit, pull request 3193: whoever catches SIGTERM outlives a polite timeout."""
    program = """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
"""
    assert sandbox.commands.run(["python3", "-c", program], timeout=1).reason == "timeout"
    cell = sandbox.run_code("import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass", timeout=1)
    assert cell.status == "killed"


def test_time_is_not_dodged_by_sleeping(sandbox: Sandbox) -> None:
    """isolate, --wall-time (isolate(1)); DOMjudge, tests/test-sleep.c; QingdaoU Judger, integration/sleep.c: sleeping takes no CPU time."""
    assert sandbox.commands.run(["sleep", "600"], timeout=0.5).reason == "timeout"
    assert sandbox.run_code("import time; time.sleep(600)", timeout=0.5).status == "timeout"


def test_time_is_not_dodged_by_children(sandbox: Sandbox) -> None:
    """QingdaoU Judger, integration/child_proc_cpu_time_limit.c and child_proc_real_time_limit.c."""
    for child in ("while True: pass", "import time; time.sleep(600)"):
        program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
        assert sandbox.commands.run(["python3", "-c", program], timeout=1).reason == "timeout"


def test_stopping_or_killing_whoever_started_it(sandbox: Sandbox) -> None:
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


def test_rebooting(sandbox: Sandbox) -> None:
    """DOMjudge, tests/stress-test-reboot.c."""
    for user in USERS:
        told = run_inside(sandbox, 'told["refused"] = called(libc.reboot(0x01234567))', user=user)
        assert told["refused"] in {"EPERM", "ENOSYS"}, user


# ------------------------------------------------------------------------------------------------------------ output


def test_a_program_that_prints_more_than_it_has(sandbox: Sandbox) -> None:
    """DMOJ, cpp_compiler_ole; DOMjudge, stress-test-compile-fill-stderr.c: few bytes of source, endless messages."""
    nested = "x = " + "+".join(["1"] * 200_000)
    assert sandbox.run_code(nested, timeout=60).status in {"ok", "error", "died"}
    deep = "def f():\n    try: f()\n    finally: f()\nf()"
    done = sandbox.run_code(deep, timeout=1.5)
    assert done.status in {"timeout", "killed", "error"}
    assert len("".join(done.error.traceback if done.error else "")) <= MIB


def test_output_that_is_no_text_and_lines_that_never_end(sandbox: Sandbox) -> None:
    """DOMjudge, test-binary-output.c, test-long-lines.c and test-output-nonewline.c; DMOJ, binary_data."""
    done = sandbox.commands.run("head -c 300000 /dev/urandom; printf '\\377\\376\\000'; head -c 900000 /dev/zero | tr '\\0' z")
    assert done.exit_code == 0
    assert done.stdout.endswith("z" * 900_000)


# ------------------------------------------------------------------------------------------------------------ files


def test_allocating_the_whole_disk(service: LocalService, sandbox: Sandbox) -> None:
    """Piston, tests/fallocate.py: whoever takes all of it keeps others from starting. CMS, write-big-fileio.c."""
    done = sandbox.commands.run("fallocate -l 1G /workspace/all || head -c 1G /dev/zero >/workspace/all")
    assert "No space left on device" in done.stderr
    with service.create(**LIMITS) as other:
        assert other.commands.run("head -c 30M /dev/zero >/workspace/mine && stat -c %s /workspace/mine").stdout == f"{30 * MIB}\n"
    sandbox.commands.run("rm -f /workspace/all")


def test_files_do_not_pass_from_one_run_to_the_next(service: LocalService) -> None:
    """Piston, tests/file_persistance.py: folders that everybody may write to. Between sandboxes nothing stays; within one all does."""
    folders = ("/dev/shm", "/run/lock", "/tmp", "/var/tmp", "/workspace", "/home/user", "/dev/mqueue")
    look = "for folder; do [ -e $folder/bean ] && echo $folder; : >$folder/bean; done 2>/dev/null; true"
    for _ in range(2):
        with service.create(**LIMITS) as made:
            assert made.commands.run(["sh", "-c", look, "-", *folders]).stdout == ""
            assert len(made.commands.run(["sh", "-c", look, "-", *folders]).stdout.splitlines()) >= 4


def test_many_requests_at_once(service: LocalService) -> None:
    """Piston, tests/multi_request.py: cleaning up after one run took down another's."""

    def one(number: int) -> str:
        with service.create(**LIMITS) as made:
            made.files.write("/workspace/Test.java", f"{number}")
            return made.commands.run("cat Test.java").stdout

    refs = service.refs()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(8))) == [str(number) for number in range(8)]
    settle(lambda: service.traces(keep=refs), NOTHING)


@pytest.mark.parametrize("user", USERS)
def test_modes_and_masks_do_not_outlive_their_process(sandbox: Sandbox, user: str) -> None:
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


def test_what_another_handed_in_is_not_there(service: LocalService, sandbox: Sandbox) -> None:
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


def test_names_that_break_parsers(sandbox: Sandbox) -> None:
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


# ------------------------------------------------------------------------------------------------------------ the rest


@pytest.mark.parametrize("user", USERS)
def test_reaching_the_network(sandbox: Sandbox, user: str) -> None:
    """Piston, tests/network.py; DOMjudge, tests/test-network.c."""
    told = run_inside(
        sandbox,
        """
addresses = ("1.1.1.1", 53), ("169.254.169.254", 80)
told["outside"] = [attempt(socket.create_connection, address, 3).get("error", "connected") for address in addresses]
try:
    told["name"] = socket.getaddrinfo("example.com", 80) and "resolved"
except OSError as error:
    told["name"] = "refused"
""",
        user=user,
    )
    assert "connected" not in told["outside"]
    assert told["name"] == "refused"


def test_huge_arguments_and_environments(sandbox: Sandbox) -> None:
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


def test_source_that_takes_for_ever_to_compile(sandbox: Sandbox) -> None:
    """CMS, compile-timeout.cpp and compile-memory-limit.cpp; DMOJ, cpp_compile_tle; DOMjudge, stress-test-compile-timeout.c, test-sourcesize.c."""
    assert sandbox.run_code("x = 2 ** 2 ** 2 ** 2 ** 2 ** 2", timeout=1).status in {"timeout", "killed", "error"}
    assert sandbox.run_code("(" * 50_000, timeout=30).status in {"error", "died"}
    with pytest.raises(SandlotError) as refused:
        sandbox.run_code("#" * (4 * MIB + 1))
    assert refused.value.code is ErrorCode.TOO_LARGE


def test_ending_by_every_signal_says_which(sandbox: Sandbox) -> None:
    """DMOJ, c_signal_ir; DOMjudge, test-sigfpe.c, test-sigsegv.c, test-exitcode.c; QingdaoU Judger, re1.c, re2.c."""
    for number in (1, 4, 6, 7, 8, 9, 11, 13, 14, 15):
        done = sandbox.commands.run(f"kill -{number} $$")
        assert (done.signal, done.exit_code, done.reason) == (number, 128 + number, "signalled")
    assert sandbox.commands.run("exit 37").exit_code == 37


def test_a_sandbox_that_is_killed_while_it_runs_says_so(service: LocalService) -> None:
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
