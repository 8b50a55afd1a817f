"""The stage: the program that sets up the environment of a sandbox and starts the sandbox's runtime. It then becomes the sandbox's *keeper*.

The stage is started with ``python -SI``, imports only built-in parts of the standard library, and exchanges messages with the service over its
standard input and output (``launcher.py``):

1. The stage reads a *plan*, a list of operations that set up the environment of the sandbox: control groups, a private mount namespace, the disk. The
   stage carries out these operations and writes ``ready``. When the processes of the stage have ended, the kernel removes the mounts and frees
   the loop device. The service removes the control groups.
2. The stage reads an *order*, starts the runtime, waits until the runtime reports that the sandbox runs, writes the pids and start times of the
   sandbox's process and of the stage to the file ``live``, and sends ``started``. From here on the process does not need the service.
3. As the keeper, the process writes the guest's standard error to a log of bounded size until the sandbox ends, and then the exit code to the file
   ``exit``. No other process could receive the exit status: the keeper is the nearest child subreaper (prctl(2), PR_SET_CHILD_SUBREAPER).

Invariants:
- If the service dies before it sends the order, the stage ends. The kernel then removes its mounts and frees its loop device.
- The keeper never reads or writes the two pipes between the service and the guest. It only keeps a read end of the guest's output pipe open, so that
  the guest can write while no service is running. The keeper has no end of the guest's input pipe open: if the service gets EPIPE from that pipe,
  the sandbox has ended. The runtime gets a write-only end of the output pipe: when gVisor saves its memory, it empties every pipe that it can read,
  and output that no service has read yet would be lost.
- The runtime inherits no environment variable and no descriptor of the service.
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

# Numbers of two signals. Importing `signal` instead would also import enum, which takes time.
SIGPIPE, SIGXFSZ = 13, 25

LENGTH_BYTES = 4
"""Size of the number before each message of the service: the length of the message in bytes, big-endian."""
LOG_BYTES = 64 * 1024
"""Largest size in bytes of each of the two files of the guest's log, the current file and the previous file."""
KEEPER_OOM_SCORE = 0
"""oom_score_adj of the keeper. It is lower than that of the sandbox, because the keeper must record the sandbox's exit status."""


def receive_message() -> dict[str, object] | None:
    """Wait for the next message of the service and return the message. Return None if the service has ended or closed the pipe."""
    head = read_exactly(LENGTH_BYTES)
    if head is None:
        return None
    body = read_exactly(int.from_bytes(head, "big"))
    # marshal is built in. The service runs the same interpreter and is trusted.
    return None if body is None else marshal.loads(body)  # noqa: S302


def read_exactly(count: int) -> bytes | None:
    """Read ``count`` bytes from standard input. Return None if standard input ends earlier."""
    text = b""
    while len(text) < count:
        more = os.read(0, count - len(text))
        if not more:
            return None
        text += more
    return text


def send_line(word: str, *fields: object) -> bool:
    """Send the service one line: a word and fields, separated by spaces. Return False if the service has ended or closed the pipe."""
    line = " ".join((word, *(str(field).replace("\n", "\\n") for field in fields)))
    try:
        os.write(1, line.encode(errors="backslashreplace") + b"\n")
    except OSError:
        return False
    return True


def publish(path: str, text: str) -> None:
    """Create or replace a file in one step, so that no reader sees part of the text."""
    write(path + ".new", text)
    os.rename(path + ".new", path)


class Log:
    """Log of the guest's standard error: a pipe, and two files of bounded size into which the keeper writes the output of the pipe.

    The previous file has the path of the current file with ``.old`` added.

    Args:
        path: Path of the current file.

    Attributes:
        pipe: Descriptor from which the keeper reads.
        far_end: Descriptor to which the guest writes.
        tail: Last 2,000 bytes of the output.
    """

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
        """Move the available output, at most ``LOG_BYTES``, from the pipe to the current file.

        Return False if no process can write to the pipe.
        """
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
        except OSError:  # the host's disk is full; the output is dropped, because a full pipe would block the guest
            pass
        return True


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot (field 22 of ``/proc/PID/stat``, proc(5))."""
    handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(handle, 4096).rpartition(b")")[2].split()[19])
    finally:
        os.close(handle)


def spawn_runtime(order: dict[str, object], log: Log) -> int:
    """Start the runtime and return its pid.

    The runtime's standard input and output are the pipes between the service and the guest. Its standard error is the pipe of ``log``. This process
    opens a read end of the guest's output pipe and never closes this end.

    Args:
        order: Order of the service: the fields of ``launcher.Order``, and ``pipe_bytes``, the buffer size of the pipes.
        log: Log of the guest's standard error.
    """
    os.open(str(order["stdout"]), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    pipes = [os.open(str(order[name]), flags | os.O_CLOEXEC) for name, flags in (("stdin", os.O_RDWR), ("stdout", os.O_WRONLY))]
    for pipe in pipes:
        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, int(str(order["pipe_bytes"])))
        except OSError:  # the operator has lowered fs.pipe-max-size; the pipe keeps its default size
            pass
    argv = [str(word) for word in order["argv"]]  # type: ignore[attr-defined]
    try:
        # Python ignores SIGPIPE and SIGXFSZ. Without setsigdef, the runtime would ignore both signals too.
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
    """Wait until a child process ends, and write the guest's standard error to the log meanwhile.

    Args:
        pid: Child process to wait for.
        log: Log of the guest's standard error.
        others: Child processes to reap if they end before ``pid``.

    Returns:
        Exit code of ``pid``, or the negative number of the signal that ended it.
    """
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
    """Return the pids of all child processes of this process, including zombies. Empty if the kernel has no such list (proc(5), ``children``)."""
    try:
        listing = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        return tuple(int(pid) for pid in os.read(listing, 4096).split())
    finally:
        os.close(listing)


def run_sandbox(order: dict[str, object]) -> None:
    """Start the sandbox, report the start or failure to the service, wait until the sandbox ends, and record its exit code.

    Args:
        order: Order of the service: the fields of ``launcher.Order``, and ``pipe_bytes``, the buffer size of the pipes.
    """
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
    # The sandbox's pid still belongs to the sandbox: the sandbox is a child of this process and was not reaped yet.
    live = f"{sandbox} {start_ticks(sandbox)} {os.getpid()} {start_ticks(os.getpid())}"
    publish(f"{folder}/live", live)
    send_line("started", live)
    dev_null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1):
        os.dup2(dev_null, number)
    # Reap other children while the sandbox runs: an ended process of the runtime counts as a task of the sandbox until it is reaped.
    code = wait_for(sandbox, log, tuple(pid for pid in children() if pid != sandbox))
    publish(f"{folder}/exit", str(code))
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def main() -> None:
    """Receive and carry out a plan, then receive an order, start the sandbox, and stay until the sandbox has ended."""
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
