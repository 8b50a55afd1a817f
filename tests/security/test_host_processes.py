"""Promise: a sandbox sees, signals and traces no process but its own; its processes have no power on the host, and end with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox
from tests.support.attempts import PREAMBLE, not_refused, outcomes
from tests.support.inside import IN_CONTAINERS, IN_GVISOR, USERS, run_inside
from tests.support.localservice import LocalService
from tests.support.traces import NOTHING, sandbox_pids, settle

NOBODY = "65534"
GOFER_CAPABILITIES = sum(1 << number for number in (0, 1, 2, 3, 4, 18))
"""What serves a sandbox its own image's files: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SYS_CHROOT (capabilities(7))."""
MARK = "sandlot-marked-process"


@pytest.fixture(scope="module")
def marked() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host that can be told from all others, and that says on its standard output which signals it gets."""
    program = (
        "import signal, sys\n"
        "for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    signal.signal(number, lambda number, frame: print('got', number, flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, MARK], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        assert process.poll() is None, "a signal crossed"
        process.kill()
        assert process.stdout.read() == b"", "a signal crossed"


@pytest.mark.parametrize("user", USERS)
def test_host_processes_are_invisible_and_unreachable(sandbox: Sandbox, service: LocalService, marked: subprocess.Popen[bytes], user: str) -> None:
    told = run_inside(
        sandbox,
        """
PTRACE_ATTACH, PTRACE_SEIZE, PIDFD_OPEN, PROCESS_VM_READV = 16, 0x4206, 434, 310 if platform.machine() == "x86_64" else 270
own = set(processes())
told["guest"] = 1 in own
told["commands"] = {pid: attempt(read, f"/proc/{pid}/cmdline") for pid in own - {os.getpid()}}
told["ps"] = os.popen("ps -ef 2>/dev/null; cat /proc/[0-9]*/stat").read()
told["reached"], told["tried"] = [], 0
for pid in given["pids"]:
    if pid in own:
        continue  # the number of a process in here, by chance
    told["tried"] += 1
    buffer = ctypes.create_string_buffer(64)
    vector = struct.pack("QQ", ctypes.addressof(buffer), 64)
    tries = {
        "look": lambda: attempt(read, f"/proc/{pid}/cmdline").get("error"),
        "kill": lambda: attempt(os.kill, pid, 0).get("error"),
        "term": lambda: attempt(os.kill, pid, 15).get("error"),
        "group": lambda: attempt(os.killpg, pid, 10).get("error"),
        "attach": lambda: called(libc.ptrace(PTRACE_ATTACH, pid, 0, 0)),
        "seize": lambda: called(libc.ptrace(PTRACE_SEIZE, pid, 0, 0)),
        "pidfd": lambda: called(libc.syscall(PIDFD_OPEN, pid, 0)),
        "read": lambda: called(libc.syscall(PROCESS_VM_READV, pid, vector, 1, vector, 1, 0)),
        "priority": lambda: attempt(os.setpriority, os.PRIO_PROCESS, pid, 19).get("error"),
        "affinity": lambda: attempt(os.sched_setaffinity, pid, {0}).get("error"),
    }
    told["reached"] += [f"{name} {pid}" for name, function in tries.items() if function() is None]
""",
        user=user,
        given={"pids": [marked.pid, service.pid, os.getpid(), *sandbox_pids(service.data_dir)]},
    )
    assert told["guest"], "the guest is PID 1, in a namespace of its own"
    assert len(told["commands"]) < 20
    for word in (MARK, "sandlot.server", "runsc", "pytest", "systemd", "sandlot-keeper"):
        assert word not in repr(told["commands"]) + told["ps"], word
    assert told["tried"] > 0
    assert told["reached"] == []


def test_user_cannot_control_the_guest(sandbox: Sandbox, isolation: str) -> None:
    """Root inside has (see test_hostile_guest.py), for the guest is root's.

    In gVisor anybody may note another priority or other processors for anybody; that kernel acts on neither.
    """
    tries = {
        "term": "os.kill(1, 15)",
        "kill": "os.kill(1, 9)",
        "attach": 'call("ptrace", 16, 1, 0, 0)',
        "seize": 'call("ptrace", 0x4206, 1, 0, 0)',
        "read": 'call("process_vm_readv", 1, struct.pack("QQ", id(told), 8), 1, struct.pack("QQ", id(told), 8), 1, 0)',
        "write": 'call("process_vm_writev", 1, struct.pack("QQ", id(told), 8), 1, struct.pack("QQ", id(told), 8), 1, 0)',
        "memory": 'os.open("/proc/1/mem", os.O_RDWR)',
        "a descriptor": 'call("pidfd_getfd", call("pidfd_open", 1, 0), 3, 0)',
        "compare": 'call("kcmp", 1, os.getpid(), 0, 3, 3)',
        "priority": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "processors": "os.sched_setaffinity(1, {0})",
        "limits": "resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))",
        "score": 'os.write(os.open("/proc/1/oom_score_adj", os.O_WRONLY), b"1000")',
        "ids": 'os.write(os.open("/proc/1/uid_map", os.O_WRONLY), b"0 0 1")',
        "root": "os.setuid(0)",
        "groups": "os.setgroups([0])",
        "chroot": 'os.chroot("/tmp")',
        "its program": 'os.open("/.sandlot/guest.zip", os.O_RDWR)',
    }
    found = outcomes(sandbox, tries, user="user")
    noted = {"priority", "processors"} if isolation == "gvisor" else set()
    assert not_refused(found, allowed=noted) == {}
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_kill_all_inside_kills_nothing_outside(service: LocalService, sandbox: Sandbox, marked: subprocess.Popen[bytes]) -> None:
    with service.create() as other:
        # kill(2): -1 is every process that one may signal.
        other.commands.run(["python3", "-c", "import os, signal; os.kill(-1, signal.SIGKILL)"], user="root", timeout=10)
        other.commands.run("for pid in $(seq 1 2000); do kill -9 $pid; done 2>/dev/null", user="user", timeout=20)
    assert marked.poll() is None
    assert service.is_alive()
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


@IN_GVISOR
def test_gvisor_processes_are_unprivileged_on_the_host(service: LocalService, sandbox: Sandbox) -> None:
    """In gVisor that is a kernel of nobody's (uid 65534, no capability), beside a process that serves it the image's files.

    Their other namespaces, their filter, and the processes of a container: ``test_processes_are_confined_on_the_host`` of
    ``tests/conformance/test_gvisor.py`` and ``test_container.py``.
    """
    assert sandbox.commands.run("true").exit_code == 0
    settle(lambda: len(service.refs()), 1)  # those of tests before are gone, but for this one
    handle = sandbox.commands.run(["sleep", "1000"], background=True, user="user")
    found = {pid: status for pid in sandbox_pids(service.data_dir) if (status := _status(pid)).get("Name") != "sandlot-keeper" and status}
    # Root on the host: only what serves the sandbox the files of its image.
    (server,) = [pid for pid, status in found.items() if int(status["CapPrm"], 16) or "0" in status["Uid"].split()]
    assert int(found.pop(server)["CapPrm"], 16) & ~GOFER_CAPABILITIES == 0
    # Nobody: the sandbox's kernel, and what its processes run in.
    assert len(found) > 1
    for status in found.values():
        assert status["Uid"].split() == [NOBODY] * 4
        assert status["Gid"].split() == [NOBODY] * 4
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert status["user namespace"] != str(Path("/proc/self/ns/user").readlink())
    handle.kill()


SURVIVORS = """
import shutil
me = os.getuid()
unlinked = f"/tmp/unlinked-{me}"
def stay(**how):
    # Away from its parent, its session and its signals; then it holds on to something for ever.
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        attempt(signal.signal, number, signal.SIG_IGN)
    held = []
    if how.get("memory"):
        fd = os.memfd_create("survivor")
        os.write(fd, bytes(1 << 20))
        held += [fd, mmap.mmap(-1, 1 << 20, mmap.MAP_SHARED), libc.shmget(4711 + me, 4096, 0o1666)]
    if how.get("sockets"):
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(f"\\0survivor-{me}")
        listening.listen()
        held += [listening, socket.create_server(("127.0.0.1", 0)), os.pipe()]
    if how.get("locks"):
        file = open(f"/tmp/survivor-{me}", "w")
        fcntl.flock(file, fcntl.LOCK_EX)
        held.append(file)
    if how.get("program"):
        os.execv("/bin/sh", ["sh", "-c", f"cd /; exec {unlinked} 1000"])
    if how.get("stops"):
        os.kill(os.getpid(), signal.SIGSTOP)
    if how.get("traced"):
        child = os.fork()
        if not child:
            libc.ptrace(0, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
        os.waitpid(child, 0)
    if how.get("waits"):
        # vfork(2): the parent sleeps where no signal but SIGKILL wakes it, until its child has ended.
        child = call("clone", 0x4000 | 17, None, None, None, None)
        if not child:
            time.sleep(1000)
    while True:
        time.sleep(1000)
shutil.copy("/bin/sleep", unlinked)
def living():
    found = [attempt(read, f"/proc/{pid}/stat").get("got", "() Z") for pid in processes()]
    return [line for line in found if line.rsplit(")", 1)[1].split()[0] != "Z"]
already = len(living())
for how in ("memory", "sockets", "locks", "program", "stops", "traced", "waits"):
    stay(**{how: True})
def all_stay():
    found = living()
    return len(found) >= already + 9 and any(f"unlinked-{me}" in line for line in found) and any(") T" in line or ") t" in line for line in found)
while not all_stay():
    time.sleep(0.05)
os.unlink(unlinked)
"""


def test_processes_do_not_survive_their_sandbox(service: LocalService) -> None:
    """Daemons in sessions of their own that ignore every signal, are stopped, traced or asleep beyond signals.

    They hold memory, sockets, locks, and a program that has no name any more.
    """
    others = service.refs()
    made = service.create()
    for user in USERS:
        run_inside(made, PREAMBLE + SURVIVORS, user=user)
    handle = made.commands.run("exec sleep 1000", background=True)
    assert handle.poll() is None
    assert len(service.traces(keep=others).processes) > 3
    shared = _shared_memory()
    made.kill()
    settle(lambda: service.traces(keep=others), NOTHING)
    assert _shared_memory() == shared, "System V's shared memory is a namespace's, not the host's"


@IN_CONTAINERS
def test_orphans_inside_are_reaped(sandbox: Sandbox) -> None:
    """Orphans become the guest's children (it is PID 1); none stays as a zombie, which would hold a number and an entry for ever."""
    program = "import os\nfor _ in range(20):\n    if not os.fork():\n        os.fork()\n        os._exit(0)\nos._exit(0)"
    for user in USERS:
        assert sandbox.commands.run(["python3", "-c", program], user=user).exit_code == 0
    look = (
        'told["zombies"] = [pid for pid in processes() if attempt(read, f"/proc/{pid}/stat").get("got", ") R").rsplit(")", 1)[1].split()[0] == "Z"]'
    )
    settle(lambda: run_inside(sandbox, look)["zombies"], [])


@IN_CONTAINERS
def test_expired_sandbox_leaves_nothing(service: LocalService, sandbox: Sandbox) -> None:
    assert sandbox.is_running()
    others = service.refs()
    made = service.create(timeout=300)
    made.commands.run("setsid sleep 1000 & echo started")
    made.set_timeout(1)
    settle(lambda: f"{made.info().state} {made.info().exit_reason}", "stopped killed")
    settle(lambda: service.traces(keep=others), NOTHING)


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        lines.append(f"user namespace:{Path(f'/proc/{pid}/ns/user').readlink()}")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _shared_memory() -> set[tuple[str, ...]]:
    """Keys and numbers of the host's objects of System V (ipcs(1))."""
    lines = [line for kind in ("shm", "sem", "msg") for line in Path(f"/proc/sysvipc/{kind}").read_text(encoding="ascii").splitlines()]
    return {tuple(line.split()[:2]) for line in lines}
