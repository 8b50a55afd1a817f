"""Terminals and processes: ``sandlot shell`` on a terminal of this host, output that is followed, and a killed service."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.model.errors import ConflictError
from sandlot.model.specs import MIB
from tests.support.localservice import LocalService

pytestmark = pytest.mark.parametrize("service", ["gvisor"], indirect=True, scope="module")

PATIENCE_S = 60
FLOOD_BYTES = 10_000_000


class Desk:
    """A pseudo-terminal of this host on which ``sandlot`` runs, and the side that reads and types."""

    def __init__(self, service: LocalService, *arguments: str, rows: int = 24, cols: int = 80) -> None:
        self.ours, theirs = os.openpty()
        self.resize(rows, cols)
        self.before = termios.tcgetattr(theirs)
        env = {**os.environ, "SANDLOT_DATA_DIR": str(service.data_dir), "TERM": "xterm"}
        env.pop("SANDLOT_URL", None)
        # The process leads a session whose controlling terminal this is, so that it is told of a new size.
        command = [sys.executable, "-P", "-c", _LEAD, sys.executable, "-P", "-m", "sandlot.cli", *arguments]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
        self._theirs = theirs
        self.shown = b""

    def until(self, wanted: bytes) -> bytes:
        """Read until something is shown, and return all up to and with it."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self.shown:
            assert time.monotonic() < deadline, (wanted, self.shown)
            if select.select([self.ours], [], [], 0.1)[0]:
                self.shown += os.read(self.ours, 65536)
        at = self.shown.index(wanted) + len(wanted)
        told, self.shown = self.shown[:at], self.shown[at:]
        return told

    def type(self, data: bytes) -> None:
        os.write(self.ours, data)

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def ended(self) -> int:
        """Wait for the end and return the exit status; the terminal's modes must be restored."""
        status = self.process.wait(timeout=PATIENCE_S)
        assert termios.tcgetattr(self._theirs) == self.before
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)


_LEAD = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


@contextmanager
def desk(service: LocalService, *arguments: str, rows: int = 24, cols: int = 80) -> Iterator[Desk]:
    here = Desk(service, *arguments, rows=rows, cols=cols)
    try:
        yield here
    finally:
        here.close()


@pytest.mark.parametrize(
    "isolation, user",
    [
        ("gvisor", "user"),
        pytest.param("container", "root", marks=pytest.mark.slow),
        pytest.param("gvisor", "root", marks=pytest.mark.soak),
        pytest.param("container", "user", marks=pytest.mark.soak),
    ],
)
def test_shell_is_used_resized_detached_and_attached_again(service: LocalService, isolation: str, user: str) -> None:
    with service.create(isolation=isolation) as sandbox:
        with desk(service, "shell", sandbox.id, "--user", user, rows=30, cols=90) as here:
            here.until(b"$ " if user == "user" else b"# ")
            here.type(b"id -un; stty size; echo $TERM\n")
            here.until(f"{user}\r\n30 90\r\nxterm\r\n".encode())
            here.type(b"sleep 4401\n")
            here.until(b"sleep 4401\r\n")
            until(lambda: sleeping(sandbox, "4401"))
            here.type(b"\x03")
            here.type(b"echo status $?\n")
            here.until(b"status 130")
            here.type(b"python3 -q\n")
            here.until(b">>> ")
            here.type(b"import os; 6 * 7, os.get_terminal_size()\n")
            here.until(b"(42, os.terminal_size(columns=90, lines=30))")
            here.until(b">>> ")  # before a prompt, readline reads the size and sets it again
            here.resize(50, 120)
            here.type(b"exit()\n")
            here.until(b"$ " if user == "user" else b"# ")
            here.type(b"stty size; kept=here\n")
            here.until(b"50 120\r\n")
            here.type(b"\x1d")
            here.until(b"connect again")
            told = here.until(b"`.").decode()
            assert here.ended() == 0
        found = re.search(r"--attach ([0-9a-f]{32})", told)
        assert found is not None
        with desk(service, "shell", sandbox.id, "--attach", found[1]) as here:
            here.until(b"kept=here\r\n")  # what was shown before is shown again
            here.type(b"echo still $kept; exit 7\n")
            here.until(b"still here\r\n")
            assert here.ended() == 7


@pytest.mark.slow
def test_signal_to_sandlot_restores_the_terminal_and_leaves_the_program_running(service: LocalService, sandbox: Sandbox) -> None:
    with desk(service, "shell", sandbox.id, "--", "cat") as here:
        here.type(b"words\n")
        here.until(b"words\r\nwords\r\n")
        here.process.send_signal(signal.SIGTERM)
        assert here.ended() == 143
    (left,) = [info for info in sandbox.commands.list() if info.running]
    assert left.pty
    assert sandbox.commands.kill(left.id)
    with desk(service, "shell", sandbox.id, "--", "no-such-program") as here:
        assert here.ended() == 127


def test_timeout_and_cancel_kill_processes_that_ignore_signals_and_left_the_group(service: LocalService, sandbox: Sandbox) -> None:
    stubborn = "trap '' TERM INT HUP; (trap '' TERM HUP; setsid sh -c \"trap '' TERM HUP; sleep 4402\" & sleep 4402) & sleep 4402"
    done = sandbox.commands.run(stubborn, timeout=1)
    assert (done.timed_out, done.exit_code, done.signal) == (True, 124, 9)
    until(lambda: not sleeping(sandbox, "4402"))
    with service.client.transport.event_stream("POST", f"/v1/sandboxes/{sandbox.id}/processes", body={"command": stubborn, "timeout": None}) as told:
        events = iter(told)  # kept: the stream ends with its iterator
        assert next(events).name == "started"
        until(lambda: sleeping(sandbox, "4402"))
    until(lambda: not sleeping(sandbox, "4402"))  # whoever asked has gone away
    screen = sandbox.pty.create(stubborn)
    until(lambda: sleeping(sandbox, "4402"))
    assert screen.kill()
    assert screen.wait().exit_code == 137
    screen.close()
    until(lambda: not sleeping(sandbox, "4402"))


@pytest.mark.slow
def test_flood_on_a_terminal_takes_bounded_memory_of_the_service(service: LocalService, sandbox: Sandbox) -> None:
    sandbox.pty.create(["true"]).close()
    before = resident_bytes(service.pid)
    screens = [sandbox.pty.create(f"stty -opost; head -c {FLOOD_BYTES} /dev/zero; echo end") for _ in range(2)]
    infos: list[int] = []
    while len(infos) < 3 or len({*infos[-3:]}) > 1:  # nobody reads them: they come to stand still
        time.sleep(0.3)
        infos.append(sum(info.stdout_bytes for info in sandbox.commands.list() if info.running))
    assert infos[-1] < 2 * 8 * MIB
    assert resident_bytes(service.pid) - before < 12 * MIB
    assert sandbox.commands.run("echo fine").stdout == "fine\n"
    for screen in screens:
        shown = sum(len(piece) for piece in screen)
        assert (shown, screen.lost_bytes) == (FLOOD_BYTES + 4, 0)
        screen.close()


def test_processes_and_input_survive_a_killed_service(service: LocalService, sandbox: Sandbox) -> None:
    background = sandbox.commands.run(["cat"], stdin=True, background=True)
    assert background.send_stdin("before,", offset=0) == 7
    screen = sandbox.pty.create("stty -echo; echo ready; read x; echo got $x; exit 5")
    assert screen.read() == b"ready\r\n"
    service.end(signal.SIGKILL)
    service.start()
    again = sandbox.commands.connect(background.id)
    assert again.send_stdin("before,after", offset=0) == 12, "what is said again is done once"
    again.close_stdin()
    assert again.wait().stdout == "before,after"
    with pytest.raises(ConflictError):
        again.send_stdin("late")
    with sandbox.pty.connect(screen.id, offset=screen.offset) as back:
        back.send("line\n")
        assert b"".join(back) == b"got line\r\n"
        assert back.result is not None
        assert back.result.exit_code == 5
    screen.close()


def sleeping(sandbox: Sandbox, word: str) -> bool:
    return sandbox.commands.run(f"pgrep -f 'sleep {word[0]}[{word[1]}]{word[2:]}'", user="root").exit_code == 0


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


CLOSE_ALL = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.syscall(436, ctypes.c_ulong(1000), ctypes.c_ulong(0xFFFFFFFF), ctypes.c_ulong(0))
print("failed" if failed and ctypes.get_errno() != 38 else "closed")
"""
"""Closes all descriptors from 1000 on, as GLib does before it starts a program. ENOSYS (38) makes programs close them one by one."""


def test_programs_started_in_any_way_can_close_all_descriptors(sandbox: Sandbox) -> None:
    """With the answer of gVisor's kernel, programs of GLib, such as those of XFCE, could not start others."""
    sandbox.files.write("/tmp/close.py", CLOSE_ALL)
    program = "python3 /tmp/close.py"
    ways = {
        "command of the user": sandbox.commands.run(program).stdout,
        "command of root": sandbox.commands.run(program, user="root").stdout,
        "sudo": sandbox.commands.run(f"sudo {program}").stdout,
        "background process": sandbox.commands.run(program, background=True).wait().stdout,
        "python": sandbox.run_code(CLOSE_ALL, language="python").stdout,
        "bash": sandbox.run_code(program, language="bash").stdout,
        "javascript": sandbox.run_code(f"process.stdout.write(require('child_process').execSync('{program}'))", language="javascript").stdout,
    }
    with sandbox.pty.create(program) as terminal:
        ways["terminal"] = b"".join(terminal).decode().replace("\r", "")
    assert {way: out for way, out in ways.items() if out != "closed\n"} == {}
