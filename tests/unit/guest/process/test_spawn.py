"""Starting programs: account, environment, search path and errors."""

from __future__ import annotations

import os
import sys

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.identity import SandboxIdentity
from sandlot.guest.loop import Loop
from sandlot.guest.process.accounts import Account
from sandlot.guest.process.children import ChildTable
from sandlot.guest.process.pid_limit import PidLimit
from sandlot.guest.process.spawn import Spawner, search_path, spawn
from tests.support.children import children

ME = Account("me", os.getuid(), os.getgid(), "/", [os.getgid()])
NOBODY = Account("nobody", 65534, 65534, "/", [65534])


def run(argv: list[str], env: dict[str, str], cwd: str = "/", who: Account = ME) -> tuple[bytes, int]:
    reading, writing = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    try:
        pid = spawn(argv, env, cwd, who, (null, writing, writing))
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
