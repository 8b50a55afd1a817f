"""The program: from a plan and an order to a sandbox that runs, and its keeper afterwards.

It is started with ``python -SI``, imports the standard library's built-in parts only, and talks to the service over its
standard input and output (see ``launch.py``). Its life:

1. It reads a *plan*, a list of operations that make it the place where the sandbox runs (control groups, a private mount
   namespace, the disk), carries it out and says ``ready``. Nothing of this outlives it: groups are the service's, the
   mounts are its own, the loop device clears itself.
2. It reads an *order*, starts the runtime, waits until that says that the sandbox runs, writes who it is (``live``) and
   says ``started``. From here on the service may die: nothing below needs it.
3. It *keeps* the sandbox: as the nearest child subreaper it is told the sandbox's exit status, which nobody else can be
   (prctl(2), PR_SET_CHILD_SUBREAPER), and writes it (``exit``); it drains the guest's standard error into a bounded log.

Laws:
- Silence of the service before the order means that it died: the stage ends, and with it all that it made.
- It never stands for the sandbox on the link: of what the runtime has it keeps one end alone, that which reads what the guest says, and never
  reads. So the guest can write while no service is there, the far end still means the sandbox, and the runtime has an end of it that it cannot read:
  gVisor empties every pipe that it can when it writes its memory, and what no service had taken yet would be gone.
- Nothing of the service's environment or descriptors reaches the runtime.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import resource
import select

# Relative: where this runs, there is no package sandlot.
from .operations import carry_out, checked, libc, oom_score, write

# linux/prctl.h, linux/signal.h; `signal` itself imports enum.
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
SIGPIPE, SIGXFSZ = 13, 25

LENGTH_BYTES = 4
LOG_BYTES = 64 * 1024
"""The guest's log is two files of at most this size: the current one and the one before."""
CALM_OOM_SCORE = 0
"""The keeper is small and must outlive its sandbox by a moment."""


def hear() -> dict[str, object] | None:
    """The next message of the service; None if it is gone."""
    head = read_exactly(LENGTH_BYTES)
    if head is None:
        return None
    body = read_exactly(int.from_bytes(head, "big"))
    # marshal: needs no import of its own, and both ends are one interpreter and trust each other.
    return None if body is None else marshal.loads(body)  # noqa: S302


def read_exactly(count: int) -> bytes | None:
    """That many bytes of standard input; None if it ends before."""
    text = b""
    while len(text) < count:
        more = os.read(0, count - len(text))
        if not more:
            return None
        text += more
    return text


def say(word: str, *fields: object) -> bool:
    """One line to the service; whether it is there to read it."""
    line = " ".join((word, *(str(field).replace("\n", "\\n") for field in fields)))
    try:
        os.write(1, line.encode(errors="backslashreplace") + b"\n")
    except OSError:
        return False
    return True


def publish(path: str, text: str) -> None:
    """Write a file so that readers see all of it or nothing."""
    write(path + ".new", text)
    os.rename(path + ".new", path)


class Log:
    """The guest's standard error: a pipe, drained into two files of bounded size."""

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
        """Take what is there, up to one pipe full; False once nobody can write any more."""
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
        except OSError:  # the host's disk is full; the guest must not wait for it
            pass
        return True


def start_ticks(pid: int) -> int:
    """When a process started (proc(5), field 22 of stat)."""
    handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(handle, 4096).rpartition(b")")[2].split()[19])
    finally:
        os.close(handle)


def spawn(order: dict[str, object], log: Log) -> int:
    """Start the runtime with the link as its standard input and output; what the guest says has a reader for as long as this lives."""
    os.open(str(order["stdout"]), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    pipes = [os.open(str(order[name]), flags | os.O_CLOEXEC) for name, flags in (("stdin", os.O_RDWR), ("stdout", os.O_WRONLY))]
    for pipe in pipes:
        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, int(str(order["pipe_bytes"])))
        except OSError:  # an operator lowered fs.pipe-max-size
            pass
    argv = [str(word) for word in order["argv"]]  # type: ignore[attr-defined]
    try:
        # Python ignores these two signals; the runtime shall not inherit that.
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
    """Drain the log until a child ends, and wait for others that end before; its exit code, negative for a signal."""
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
    """All children of this process, those that nobody has waited for included; none where the kernel does not tell (proc(5))."""
    try:
        listing = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        return tuple(int(pid) for pid in os.read(listing, 4096).split())
    finally:
        os.close(listing)


def start(order: dict[str, object]) -> None:
    """Start the sandbox, tell the service, and keep it until it ends."""
    folder = str(order["folder"])
    checked(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    log = Log(f"{folder}/guest.log")
    code = wait_for(spawn(order, log), log)
    log.drain()
    if code != 0:
        say("failed", f"exit code {code}: {log.tail.decode(errors='replace')}")
        return
    with_pid = os.open(str(order["pid_file"]), os.O_RDONLY | os.O_CLOEXEC)
    sandbox = int(os.read(with_pid, 32))
    os.close(with_pid)
    oom_score(str(CALM_OOM_SCORE))
    # The sandbox is a child of ours that nobody has waited for: its pid cannot have been given away.
    live = f"{sandbox} {start_ticks(sandbox)} {os.getpid()} {start_ticks(os.getpid())}"
    publish(f"{folder}/live", live)
    say("started", live)
    nowhere = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1):
        os.dup2(nowhere, number)
    # What the runtime left of itself ends in a moment, and would count as a process until somebody waits for it; gVisor's gofer stays.
    code = wait_for(sandbox, log, tuple(pid for pid in children() if pid != sandbox))
    publish(f"{folder}/exit", str(code))
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def main() -> None:
    """Plan, order, keep."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    libc.prctl(PR_SET_NAME, b"sandlot-keeper", 0, 0, 0)
    try:
        plan = hear()
        if plan is None:
            return
        carry_out(plan["operations"])  # type: ignore[arg-type]
        if not say("ready"):
            return
        order = hear()
        if order is not None:
            start(order)
    except OSError as error:
        say("failed", f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
