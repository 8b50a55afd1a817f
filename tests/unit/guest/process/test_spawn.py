"""Starting programs: account, environment, search path and errors."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.identity import SandboxIdentity
from sandlot.guest.loop import Loop
from sandlot.guest.process import spawn as spawning
from sandlot.guest.process.accounts import Account
from sandlot.guest.process.children import ChildTable
from sandlot.guest.process.pid_limit import PidLimit
from sandlot.guest.process.spawn import Spawner, search_path, spawn
from sandlot.link.measuring_launcher import measuring_launcher
from tests.support.children import children

ME = Account("me", os.getuid(), os.getgid(), "/", [os.getgid()])
NOBODY = Account("nobody", 65534, 65534, "/", [65534])


def run(argv: list[str], env: dict[str, str], cwd: str = "/", who: Account = ME, *, measured: bool = False) -> tuple[bytes, int]:
    reading, writing = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    try:
        pid = spawn(argv, env, cwd, who, (null, writing, writing), measured=measured)
    finally:
        os.close(writing)
        os.close(null)
    with os.fdopen(reading, "rb") as output:
        text = output.read()
    return text, os.waitpid(pid, 0)[1]


def test_program_runs_as_its_account_without_capabilities() -> None:
    text, status = run(["/bin/grep", "-E", "^(Uid|Gid|Groups|CapEff|CapPrm)", "/proc/self/status"], {}, who=NOBODY)
    assert status == 0
    rows = {line.split(":")[0]: line.split()[1:] for line in text.decode().splitlines()}
    assert rows == {
        "Uid": ["65534"] * 4,
        "Gid": ["65534"] * 4,
        "Groups": ["65534"],
        "CapEff": ["0000000000000000"],
        "CapPrm": ["0000000000000000"],
    }
    assert os.getresuid() == (0, 0, 0)
    assert os.getresgid() == (0, 0, 0)


def test_program_leads_its_own_session_and_inherits_no_descriptor() -> None:
    leak = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        script = "import os; print(os.getpid() == os.getsid(0) == os.getpgid(0), sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4])"
        text, _ = run([sys.executable, "-c", script], {})
    finally:
        os.close(leak)
    assert text == b"True [0, 1, 2, 3]\n", "3 is the listing itself"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the launcher of measured programs where all users can run it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        program = Path(folder, "measured")
        program.write_bytes(measuring_launcher())
        program.chmod(0o755)
        monkeypatch.setattr(spawning, "MEASURING_LAUNCHER", str(program))
        yield


SHOW = """
import os, sys
ids = (os.getpid() == os.getsid(0) == os.getpgid(0), os.getppid() == int(sys.argv[2]))
print(*ids, os.getuid(), sys.argv[1], os.environ["A"], os.getcwd(), sorted(os.listdir("/proc/self/fd")))
"""


@pytest.mark.usefixtures("measured")
def test_measured_program_is_a_child_like_others() -> None:
    argv, before = [sys.executable, "-c", SHOW, "é", str(os.getpid())], children()
    texts = [run(argv, {"A": "1"}, "/usr", NOBODY, measured=measured) for measured in (False, True)]
    assert texts[0] == texts[1], "also the same descriptors"
    assert texts[1][0].startswith("True True 65534 é 1 /usr ".encode())
    assert texts[1][1] == 0
    assert children() == before, "no launcher is left"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that replaces the launcher of measured programs by a program in Python, which writes to the pipe with ``report(bytes)``."""

    def replace_launcher(text: str) -> None:
        launcher = tmp_path / "launcher"
        launcher.write_text(f"#!{sys.executable}\nimport os, sys\ndef report(data): os.write(os.fsencode(sys.argv[1])[0], data)\n{text}\n")
        launcher.chmod(0o755)
        monkeypatch.setattr(spawning, "MEASURING_LAUNCHER", str(launcher))

    return replace_launcher


@pytest.fixture
def sleeper() -> Iterator[int]:
    program = subprocess.Popen(["sleep", "600"])
    yield program.pid
    program.kill()
    program.wait()


@pytest.mark.parametrize("fate", ["os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 19)"], ids=["killed", "stopped"])
def test_measured_program_that_kills_or_stops_its_launcher_is_started_once_and_at_once(
    fate: str, sleeper: int, script: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(f"report(({sleeper}).to_bytes(4, 'little'))\n{fate}")
    monkeypatch.setattr(spawning, "_STOPPED_MS", 60_000)
    before, started_s = children(), time.monotonic()
    assert spawn(["touch", str(tmp_path / "again")], {"PATH": "/bin"}, "/", ME, (0, 1, 2), measured=True) == sleeper
    assert time.monotonic() < started_s + 60, "the program ran without its time limit meanwhile"
    assert children() == before, "the launcher was ended and reaped"
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("pid", [-1, 0, 1, 2**31 - 1])
@pytest.mark.parametrize("error", [b"", b"\1\0\0\0", b"\1\0\0\0" * 100], ids=["started", "failed", "long"])
def test_report_about_a_process_that_is_no_child_is_ignored(pid: int, error: bytes, script: Callable[[str], None]) -> None:
    script(f"report(({pid}).to_bytes(4, 'little', signed=True) + {error!r})")
    before = children()
    assert run(["echo", "1"], {"PATH": "/bin"}, measured=True) == (b"1\n", 0)
    assert children() == before


def test_false_report_that_another_child_cannot_be_run_does_not_block_the_guest(sleeper: int, script: Callable[[str], None]) -> None:
    script(f"report(({sleeper}).to_bytes(4, 'little') + bytes(4))")
    assert run(["echo", "1"], {"PATH": "/bin"}, measured=True) == (b"1\n", 0)


@pytest.mark.usefixtures("measured")
def test_peak_memory_of_a_measured_program_is_its_own() -> None:
    ballast = bytearray(64 << 20)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        peaks = []
        for measured in (False, True):
            pid = spawn(["true"], {"PATH": "/bin"}, "/", ME, (reading, writing, writing), measured=measured)
            peaks.append(os.wait4(pid, 0)[2].ru_maxrss << 10)
    finally:
        os.close(reading)
        os.close(writing)
    assert peaks[0] > len(ballast)
    assert peaks[1] < 8 << 20


@pytest.mark.usefixtures("measured")
def test_measured_program_that_cannot_be_run_is_refused_like_others() -> None:
    before = children()
    for argv, cwd, code in (
        (["no-such-program"], "/", "program_not_found"),
        (["/bin/true"], "/no/such/folder", "working_directory_not_found"),
        (["/etc/passwd"], "/", "permission_denied"),
    ):
        with pytest.raises(RpcError) as refused:
            run(argv, {"PATH": "/usr/bin:/bin"}, cwd, measured=True)
        assert refused.value.code == code
    assert children() == before


@pytest.mark.usefixtures("measured")
def test_launcher_of_a_program_that_cannot_be_run_writes_pid_and_error_and_exits() -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(
        ["launcher", bytes((writing,)), "/etc/passwd", "argument"], executable=spawning.MEASURING_LAUNCHER, pass_fds=(writing,)
    ) as launcher:
        os.close(writing)
        with os.fdopen(reading, "rb") as report:
            pid, error = struct.unpack("<ii", report.read())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (error, launcher.returncode) == (-errno.EACCES, 0)


def test_program_is_started_directly_without_the_program_for_measured_ones() -> None:
    assert run(["echo", "1"], {"PATH": "/bin"}, measured=True) == (b"1\n", 0)


@pytest.mark.parametrize(
    "argv,cwd,code",
    [
        (["no-such-program"], "/", "program_not_found"),
        (["/bin/true"], "/no/such/folder", "working_directory_not_found"),
        (["/bin/true"], "/etc/passwd", "path_not_directory"),
        (["/etc/passwd"], "/", "permission_denied"),
        (["x" * 200_000], "/", "invalid_request"),
    ],
)
def test_program_that_cannot_be_run_is_refused_with_the_reason(argv: list[str], cwd: str, code: str) -> None:
    before = children()
    with pytest.raises(RpcError) as refused:
        run(argv, {"PATH": "/usr/bin:/bin"}, cwd)
    assert refused.value.code == code
    assert children() == before, "the failed child was reaped"


def test_program_is_searched_in_path_unless_its_name_has_a_slash() -> None:
    assert search_path("ls", {"PATH": "/a:/b"}) == [b"/a/ls", b"/b/ls"]
    assert search_path("./ls", {"PATH": "/a"}) == [b"./ls"]
    assert search_path("ls", {"PATH": ""}) == [b"./ls"]


class Ended:
    """Owner of a process that keeps its status."""

    status: int | None = None

    def on_exit(self, status: int, _usage: object) -> None:
        self.status = status

    def on_killed(self, _reason: str) -> None:
        pass


def test_spawner_adds_the_environment_of_the_sandbox_and_the_owner_of_the_process() -> None:
    loop, children = Loop(), ChildTable()
    identity, child = SandboxIdentity(loop), Ended()
    identity.env, identity.workspace = {"A": "sandbox", "B": "sandbox"}, "/tmp"
    reading, writing = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    try:
        spawner = Spawner(identity, children, PidLimit(loop, children), null)
        pid = spawner.spawn(["/bin/sh", "-c", "echo $A $B $PWD $TERM"], ME, (null, writing, null), child, env={"B": "call"})
    finally:
        os.close(writing)
        os.close(null)
    assert pid in children
    with os.fdopen(reading, "rb") as output:
        assert output.read() == b"sandbox call /tmp\n"

    while child.status is None:
        children.reap()
    assert pid not in children
