"""Promise: whatever root inside says on the link, it can end its own sandbox and nothing else.

Root writes to the guest's own end of the link, ``/proc/1/fd/N``, what no guest would: the host must take none of it for true,
hold none of it for ever, and go on serving everybody else.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from sandlot.protocol import frames, handshake, values
from sandlot.protocol.frames import GUEST_FRAME_MAX, HEADER_BYTES
from tests.support.bystanders import end_of, later, nobody_else_notices, outcome, reason
from tests.support.inside import arguments
from tests.support.localservice import LocalService
from tests.support.traces import memory_bytes, settle

ROOM = GUEST_FRAME_MAX - HEADER_BYTES
BULK_BYTES = 16 << 20

# The guest moves the link away from its standard descriptors, but to root inside all of them are there (proc(5)). gVisor calls
# what came from the host by that name; in a container they are named pipes, open for both directions.
FIND = """
def link():
    shown = {fd: attempt(os.readlink, f"/proc/1/fd/{fd}").get("got", "") for fd in os.listdir("/proc/1/fd") if fd != "2"}
    ends = [fd for fd, name in shown.items() if name.startswith(("host:", "/run/sandlot/instance/"))] or ["3", "4"]
    return [f"/proc/1/fd/{fd}" for fd in ends]
"""

SAY = """
ends=$(ls -l /proc/1/fd | sed -nE 's,.* ([013-9][0-9]*|2[0-9]+) -> (host:|/run/sandlot/instance/).*,\\1,p')
for end in ${ends:-3 4}; do
    said=0
    while [ $said -lt $1 ] && dd if=/tmp/told of=/proc/1/fd/$end bs=64K conv=notrunc,nocreat status=none; do
        said=$((said + 1))
    done
    if [ $said -eq $1 ]; then
        echo "$end"
        echo wrote
    fi
done
"""


def _frame(type_: int, stream: int, payload: bytes = b"", *, more: bool = False, length: int | None = None) -> bytes:
    """A frame whatever it says: also one with a length that is not its payload's."""
    return frames.HEADER.pack(frames.SYNC, type_, int(more), 0, stream, len(payload) if length is None else length) + payload


LIES = {
    "noise": bytes(range(256)) * 64,
    "a length of 4 GiB": _frame(frames.DATA, 1, length=0xFFFFFFFF),
    "a welcome that answers nobody": handshake.welcome(bytes(16), 1, asleep=True),
}
"""Each kind of lie once; ``test_hostile_guest_lies.py`` and ``tests/unit/link/test_hostile.py`` have all of them."""


@pytest.fixture(scope="module", autouse=True)
def _nobody_else_notices(service: LocalService, other: Sandbox) -> Iterator[None]:
    with nobody_else_notices(service, other):
        yield


@pytest.fixture(autouse=True)
def _the_other_serves_on(service: LocalService, other: Sandbox) -> Iterator[None]:
    yield
    assert service.is_alive()
    assert other.run_code("mine").text == "42"


def test_protocol_violation_ends_its_own_sandbox(service: LocalService) -> None:
    for name, told in LIES.items():
        with service.create() as liar:
            _say(liar, told)
            ended, info = end_of(liar), liar.info()
            assert ended.fields["reason"] == "crashed", name
            assert "link" in str(ended.fields["detail"]), name
            assert ended.hint, name
            assert (info.state, info.exit_reason) == ("failed", "crashed"), name


def test_flood_is_not_kept_and_does_not_stop_other_sandboxes(service: LocalService, other: Sandbox) -> None:
    """A message that never ends: a stream is opened, and a frame with more to come is said again and again."""
    flood = _frame(frames.OPEN, 2, bytes(ROOM), more=True) + _frame(frames.MESSAGE, 2, bytes(ROOM), more=True) * 15
    memory_before = memory_bytes(service.pid)
    with service.create() as liar:
        flooding = later(partial(_say, liar, flood, times=BULK_BYTES // len(flood)))
        for _ in range(5):
            assert other.commands.run("echo served").stdout == "served\n"
        flooding.result(timeout=120)
        assert end_of(liar).fields["reason"] == "crashed"
    assert memory_bytes(service.pid) - memory_before < BULK_BYTES


def test_forged_response_affects_callers_of_its_sandbox_only(service: LocalService) -> None:
    """Answers on every stream that the host may have open, with values beyond every limit."""
    results = [
        {"result": {"process": "0" * 32, "pid": -1, "reason": "exited", "exit_code": 1 << 62, "signal": None, "duration_s": float("nan")}},
        {"event": "display", "data": {"text/plain": "x" * 60_000, "../../evil": b"x"}, "main": True},
    ]
    for result in results:
        with service.create() as liar:
            waiting = later(lambda: liar.commands.run("sleep 30", timeout=60))
            _wait_for_process(liar)
            _say(liar, b"".join(_frame(frames.MESSAGE, stream, values.encode(result)) for stream in range(1, 400, 2)))
            with pytest.raises(SandlotError) as refused:
                waiting.result(timeout=60)
            assert refused.value.code is ErrorCode.SANDBOX_ENDED


def test_killing_the_guest_ends_at_most_its_sandbox(service: LocalService, isolation: str) -> None:
    """In a container no signal kills PID 1 from inside, pid_namespaces(7); gVisor has no such law."""
    for number in ("-9", "-SEGV") if isolation == "gvisor" else ("-9 1; kill -SEGV 1; kill -ABRT",):
        with service.create() as mortal:
            seen = outcome(partial(mortal.commands.run, f"kill {number} 1; sleep 1; echo alive", user="root", timeout=60))
            if isolation == "container":
                assert not isinstance(seen, SandlotError)
                assert seen.stdout == "alive\n"
                return
            assert reason(seen) in {"exited", "crashed", "killed"}
            assert mortal.info().state in {"stopped", "failed"}
            assert end_of(mortal).hint


def test_signals_other_than_kill_and_faults_do_not_end_the_guest(sandbox: Sandbox) -> None:
    """Of root, who may send them at any time; everybody else may for the moment in which the guest starts a program of theirs.

    32 and 33 are the C library's own, which it lets nobody heed (nptl(7)).
    """
    faults = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP}
    asking = sorted({*range(1, 65)} - {signal.SIGKILL, signal.SIGSTOP, 32, 33} - faults)
    code = f"import os\nfor number in {asking}: os.kill(1, number)\nprint('alive')"
    assert sandbox.commands.run(["python3", "-c", code], user="root", timeout=60).stdout == "alive\n"
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    assert sandbox.run_code("6 * 7").text == "42"


CRASH = """
found = []
for line in read("/proc/1/maps", 1 << 20).splitlines():
    words = line.split()
    if words[1].startswith("r-x") and words[-1] != "[vsyscall]":
        found.append([int(part, 16) for part in words[0].split("-")])
with open("/proc/1/mem", "r+b", buffering=0) as memory:
    for start, end in found:
        try:
            memory.seek(start)
            memory.write(b"\\xcc" * (end - start))  # a breakpoint in every place
        except (OSError, ValueError):
            continue
"""
TRACE = """
PTRACE_POKEUSER, PTRACE_ATTACH, PTRACE_DETACH, INSTRUCTION_POINTER = 6, 16, 17, 128  # x86-64, sys/user.h
if libc.ptrace(PTRACE_ATTACH, 1, 0, 0) == 0:
    os.waitpid(1, 0x40000000)  # __WALL
    libc.ptrace(PTRACE_POKEUSER, 1, INSTRUCTION_POINTER, 0)
    libc.ptrace(PTRACE_DETACH, 1, 0, 0)
"""
TAKE = """
PIDFD_OPEN, PIDFD_GETFD = 434, 438  # x86-64, asm/unistd.h
taken = [fd for fd in (libc.syscall(PIDFD_GETFD, libc.syscall(PIDFD_OPEN, 1, 0), number, 0) for number in range(3, 12)) if fd >= 0]
for fd in [*taken, *(attempt(os.open, path, os.O_WRONLY | os.O_NONBLOCK).get("got", -1) for path in link())]:
    for _ in range(100):
        attempt(os.write, fd, os.urandom(4096))
"""


@pytest.mark.parametrize("how", ["crash", "trace", "take"])
def test_taking_over_the_guest_ends_at_most_its_sandbox(service: LocalService, how: str) -> None:
    """Root inside overwrites the code of PID 1, traces and kills it, takes its descriptors; whether it may, is between the two of them."""
    with service.create() as mortal:
        program = FIND + {"crash": CRASH, "trace": TRACE, "take": TAKE}[how]
        outcome(lambda: mortal.commands.run(["python3", *arguments(program)], user="root", timeout=30))
        seen = outcome(lambda: mortal.commands.run("echo still here", timeout=30).stdout)
        assert seen == "still here\n" or (isinstance(seen, SandlotError) and seen.code in {ErrorCode.SANDBOX_ENDED, ErrorCode.TIMEOUT})


HIDE = "umount -l {place} 2>/dev/null; mount -t tmpfs none {place} && echo hidden; mount --bind /tmp {place} && echo hidden"


def test_guest_serves_after_mounts_over_its_files(service: LocalService) -> None:
    """One place after the other, and ``/proc`` last: the guest ends processes also where it cannot look at them."""
    with service.create() as vandal:
        for place in ("/etc", "/tmp", "/run", "/.sandlot", "/dev", "/proc"):
            hidden = vandal.commands.run(HIDE.format(place=place), user="root", timeout=30).stdout
            assert vandal.commands.run("echo still here", timeout=30).stdout == "still here\n", f"{place} {hidden}"
            vandal.files.write("/workspace/f", place)
            assert vandal.files.read("/workspace/f") == place
            assert vandal.commands.run("sleep 60 & sleep 61", timeout=0.2).reason == "timeout", place


def test_guest_serves_after_all_other_processes_are_killed(sandbox: Sandbox) -> None:
    assert sandbox.run_code("x = 1").ok
    for _ in range(2):
        outcome(lambda: sandbox.commands.run("kill -9 $(ls /proc | grep '^[0-9]*$' | grep -vx 1)", user="root", timeout=30))
    assert sandbox.commands.run("echo still here").stdout == "still here\n"
    assert sandbox.run_code("6 * 7").text == "42", "a new kernel"


def test_overwriting_guest_files_ends_at_most_the_sandbox(service: LocalService) -> None:
    vandal = "for file in $(find /.sandlot -type f); do echo gone >$file; done; rm -rf /.sandlot; echo still here"
    with service.create() as mortal:
        seen = outcome(lambda: mortal.commands.run(vandal, user="root", timeout=30).stdout)
        assert seen == "still here\n" or reason(seen) in {"exited", "crashed", "killed"}


def _say(liar: Sandbox, told: bytes, *, times: int = 1) -> None:
    """Write bytes to the host, as root inside, past the guest. The sandbox may end while it happens."""
    liar.files.write("/tmp/told", told, user="root")
    seen = outcome(lambda: liar.commands.run(["sh", "-c", SAY, "-", str(times)], user="root", timeout=120).stdout)
    assert reason(seen) == "crashed" or (isinstance(seen, str) and seen.endswith("\nwrote\n")), seen


def _wait_for_process(sandbox: Sandbox) -> None:
    settle(lambda: any(process.running for process in sandbox.commands.list()), expected=True)
