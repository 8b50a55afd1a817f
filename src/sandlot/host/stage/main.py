"""The stage of a sandbox, which becomes its keeper.

The program is started with ``python -SI``, imports only built-in parts of the standard library, and exchanges messages with the service over its
standard input and output (``launcher.py``):

1. It reads a *plan*, a list of operations that set up the environment of the sandbox: control groups, a private mount namespace, the disk. It carries
   them out and writes ``ready``. None of this outlives the stage: the groups belong to the service, the mounts to the stage's own namespace, and the
   loop device frees itself.
2. It reads an *order*, starts the runtime, waits until the runtime reports that the sandbox runs, writes the processes to ``live``, and writes
   ``started``. From here on it does not need the service.
3. It *keeps* the sandbox. As the nearest child subreaper it receives the sandbox's exit status, which no other process can (prctl(2),
   PR_SET_CHILD_SUBREAPER), and writes it to ``exit``. It drains the guest's standard error into a bounded log.

Invariants:
- If the service dies before the order, the stage ends, and everything that it created ends with it.
- The keeper never reads from the link and never writes to it. It only holds a read end of the guest's output pipe open, so the guest can write while
  no service is running. It does not hold the other pipe, whose end therefore means the end of the sandbox. The runtime gets a write-only end of the
  output pipe: when gVisor saves its memory, it empties every pipe that it can read, and output that no service has read yet would be lost.
- Nothing of the service's environment or descriptors reaches the runtime.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import resource
import select

# Imports are relative, because the stage runs without the package sandlot.
from .operations import carry_out, oom_score, write
from .syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_NAME, prctl

# Importing `signal` would import enum.
SIGPIPE, SIGXFSZ = 13, 25

LENGTH_BYTES = 4
LOG_BYTES = 64 * 1024
"""Largest size of each of the two files of the guest's log: the current one and the previous one."""
KEEPER_OOM_SCORE = 0
"""The keeper is small and must outlive its sandbox by a moment."""


def receive_message() -> dict[str, object] | None:
    """Return the next message of the service, or None if the service is gone."""
    head = read_exactly(LENGTH_BYTES)
    if head is None:
        return None
    body = read_exactly(int.from_bytes(head, "big"))
    # marshal needs no import. Both ends are the same interpreter and trust each other.
    return None if body is None else marshal.loads(body)  # noqa: S302


def read_exactly(count: int) -> bytes | None:
    """Read this many bytes from standard input. Return None if the input ends earlier."""
    text = b""
    while len(text) < count:
        more = os.read(0, count - len(text))
        if not more:
            return None
        text += more
    return text


def send_line(word: str, *fields: object) -> bool:
    """Write one line to the service. Return False if the service is gone."""
    line = " ".join((word, *(str(field).replace("\n", "\\n") for field in fields)))
    try:
        os.write(1, line.encode(errors="backslashreplace") + b"\n")
    except OSError:
        return False
    return True


def publish(path: str, text: str) -> None:
    """Write a file that readers see as a whole, or not at all."""
    write(path + ".new", text)
    os.rename(path + ".new", path)


class Log:
    """Standard error of the guest: a pipe that is drained into two files of bounded size."""

    def __init__(self, path: str) -> None:
        self.pipe, self.far_end = os.pipe()
        os.set_blocking(self.pipe, False)
        self.path = path
        self.file = self._open()
        self.size = 0
        self.tail = b""

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def drain(self) -> bool:
        """Move the available output to the log, at most one full pipe. Return False if no process has the pipe open for writing any more."""
        try:
            text = os.read(self.pipe, LOG_BYTES)
        except BlockingIOError:
            return True
        if not text:
            return False
        self.tail = (self.tail + text)[-2000:]
        if self.size + len(text) > LOG_BYTES:
            try:
                os.rename(self.path, self.path + ".old")
            except OSError:
                pass
            os.close(self.file)
            self.file = self._open()
            self.size = 0
        try:
            self.size += os.write(self.file, text)
        except OSError:  # the host's disk is full, and the guest must not be blocked
            pass
        return True


def start_ticks(pid: int) -> int:
    """Return the start time of a process (proc(5), field 22 of stat)."""
    handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(handle, 4096).rpartition(b")")[2].split()[19])
    finally:
        os.close(handle)


def spawn_runtime(order: dict[str, object], log: Log) -> int:
    """Start the runtime with the link as its standard input and output, and return its pid.

    This process keeps a read end of the guest's output pipe open for as long as it lives.
    """
    os.open(str(order["stdout"]), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    pipes = [os.open(str(order[name]), flags | os.O_CLOEXEC) for name, flags in (("stdin", os.O_RDWR), ("stdout", os.O_WRONLY))]
    for pipe in pipes:
        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, int(str(order["pipe_bytes"])))
        except OSError:  # the operator has lowered fs.pipe-max-size
            pass
    argv = [str(word) for word in order["argv"]]  # type: ignore[attr-defined]
    try:
        # Python ignores these two signals, and the runtime would inherit that.
        return os.posix_spawn(
            argv[0],
            argv,
            order["env"],  # type: ignore[arg-type]
            file_actions=[(os.POSIX_SPAWN_DUP2, handle, number) for number, handle in enumerate((*pipes, log.far_end))],
            setsigdef=[SIGPIPE, SIGXFSZ],
        )
    finally:
        for handle in (*pipes, log.far_end):
            os.close(handle)


def wait_for(pid: int, log: Log, others: tuple[int, ...] = ()) -> int:
    """Drain the log until a child ends. Return its exit code, negative for a signal. Reap other children that end earlier."""
    handle = os.pidfd_open(pid)
    handles = {os.pidfd_open(other): other for other in others}
    poller = select.poll()
    for each in (handle, *handles):
        poller.register(each, select.POLLIN)
    poller.register(log.pipe, select.POLLIN)
    try:
        while True:
            ready = [number for number, _ in poller.poll()]
            if log.pipe in ready and not log.drain():
                poller.unregister(log.pipe)
            if handle in ready:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            for ended in handles.keys() & set(ready):
                os.waitpid(handles.pop(ended), 0)
                poller.unregister(ended)
                os.close(ended)
    finally:
        for each in (handle, *handles):
            os.close(each)


def children() -> tuple[int, ...]:
    """Return all children of this process, including zombies. Return an empty tuple if the kernel does not list them (proc(5))."""
    try:
        listing = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        return tuple(int(pid) for pid in os.read(listing, 4096).split())
    finally:
        os.close(listing)


def run_sandbox(order: dict[str, object]) -> None:
    """Start the sandbox, report to the service, and keep the sandbox until it ends."""
    folder = str(order["folder"])
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    log = Log(f"{folder}/guest.log")
    code = wait_for(spawn_runtime(order, log), log)
    log.drain()
    if code != 0:
        send_line("failed", f"exit code {code}: {log.tail.decode(errors='replace')}")
        return
    pid_file = os.open(str(order["pid_file"]), os.O_RDONLY | os.O_CLOEXEC)
    sandbox = int(os.read(pid_file, 32))
    os.close(pid_file)
    oom_score(str(KEEPER_OOM_SCORE))
    # The sandbox is a child of this process that was not reaped yet, so its pid was not reused.
    live = f"{sandbox} {start_ticks(sandbox)} {os.getpid()} {start_ticks(os.getpid())}"
    publish(f"{folder}/live", live)
    send_line("started", live)
    dev_null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1):
        os.dup2(dev_null, number)
    # Some processes of the runtime end soon, and count as tasks until they are reaped. gVisor's gofer stays.
    code = wait_for(sandbox, log, tuple(pid for pid in children() if pid != sandbox))
    publish(f"{folder}/exit", str(code))
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def main() -> None:
    """Carry out the plan, start the sandbox, keep it."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    prctl(PR_SET_NAME, b"sandlot-keeper")
    try:
        plan = receive_message()
        if plan is None:
            return
        carry_out(plan["operations"])  # type: ignore[arg-type]
        if not send_line("ready"):
            return
        order = receive_message()
        if order is not None:
            run_sandbox(order)
    except OSError as error:
        send_line("failed", f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
