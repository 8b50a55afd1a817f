"""PID 1: sets itself up, reaps, keeps the deadline, and hands every event to whom it concerns."""

from __future__ import annotations

import os
import resource
import time

from sandlot.guest.calls import Call, Calls, Refusal
from sandlot.guest.files.service import Files
from sandlot.guest.flow.lean import signal, socket
from sandlot.guest.flow.loop import READ, Loop, Timer, log
from sandlot.guest.flow.wire import Wire
from sandlot.guest.kernels.service import Kernels, find_python
from sandlot.guest.limits import Pids, count
from sandlot.guest.local import Local
from sandlot.guest.processes import Processes
from sandlot.guest.relay import Relay
from sandlot.guest.spawn import account, environment
from sandlot.guest.tasks import cpu_s, kill_all, tasks
from sandlot.protocol import events
from sandlot.protocol.connection import GENERATION

DESCRIPTORS = 65536
ASKING = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGXCPU,
    signal.SIGSTKFLT,
)
"""Signals that end or stop who does not heed them, and tell of no fault of its own (signal(7)); besides those of real time."""


class Guest:
    """Everything the guest is, wired together.

    Args:
        fd_in: Where the host's bytes come from.
        fd_out: Where the guest's bytes go.
    """

    __slots__ = (
        "_deadline",
        "_started_s",
        "calls",
        "dev_null",
        "entropy",
        "env",
        "identity",
        "kernels",
        "local",
        "loop",
        "pids",
        "processes",
        "relay",
        "wire",
        "workspace",
    )

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self.loop = Loop()
        self.calls = Calls(
            {
                "guest.wake": self._wake,
                "guest.info": self._info,
                "guest.deadline": self._set_deadline,
                "guest.shutdown": self._shutdown,
            }
        )
        self.dev_null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.env: dict[str, str] = {}
        self.entropy = b""
        self.identity = ""
        self.workspace = "/"
        self._deadline: Timer | None = None
        self._started_s = time.monotonic()
        self.wire = Wire(self.loop, fd_in, fd_out, self._on_event)
        self.calls.wire = self.wire
        self.pids = Pids(self)
        self.processes = Processes(self)
        self.kernels = Kernels(self)
        self.local = Local(self)
        self.relay = Relay(self)
        Files(self)

    def run(self) -> None:
        """Serve until the deadline, a shutdown, or the end of the link."""
        reap_read, reap_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(reap_write, warn_on_full_buffer=False)
        self.loop.watch(reap_read, READ, lambda _mask: self._signalled(reap_read))
        self.local.listen()
        self.relay.listen()
        self.loop.run()

    # -- events -----------------------------------------------------------------------------------------------------

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.QuiesceAsked):
            if self.wire.connection.quiesced():
                self.calls.drop_streams()
                self.local.drop_streams()
                self.relay.drop_streams()
            self.wire.flush_soon()
            return
        if isinstance(event, (events.Greeted, events.Lost)):
            self.local.drop_streams()
            self.relay.drop_streams()
        elif isinstance(event, events.StreamEvent) and (self.relay.handle(event) or self.local.handle(event)):
            return
        self.calls.handle(event)

    def _signalled(self, fd: int) -> None:
        try:
            os.read(fd, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if not (self.processes.reaped(pid, status, usage) or self.kernels.reaped(pid, status, usage.ru_maxrss * 1024)):
                self.local.reaped(pid, status)

    # -- calls ------------------------------------------------------------------------------------------------------

    def _wake(self, call: Call) -> None:
        if not self.wire.connection.asleep:
            raise Refusal("conflict", "The guest is awake already.")
        args = call.args
        self.calls.forget_all()
        self.identity = args["identity"]
        self.env = args["env"]
        self.entropy = args["entropy"]
        # The clock needs no setting: gVisor and a container read the host's. A microVM's guest sets it here.
        _set_hostname(args["hostname"])
        _stir(self.entropy)
        self.pids.set(args["pids"])
        _make_tmp()
        self._make_workspace(args["workspace"])
        self._arm(args["deadline_s"])
        self.wire.connection.asleep = False
        self.kernels.woken(args["memory_bytes"])
        call.result(python=find_python(environment(account("user"), self.env)))

    def _make_workspace(self, path: str) -> None:
        who = account("user")
        try:
            if not os.path.isdir(path):
                os.makedirs(path, 0o755)
                os.chown(path, who.uid, who.gid)
            self.workspace = path
        except OSError as error:
            log(f"no workspace {path}: {error}")
            self.workspace = who.home

    def _info(self, call: Call) -> None:
        call.result(
            generation=GENERATION,
            identity=self.identity,
            uptime_s=time.monotonic() - self._started_s,
            processes=len(tasks()),
            tasks=count(),
            cpu_s=cpu_s(),
            streams=self.wire.connection.streams,
        )

    def _set_deadline(self, call: Call) -> None:
        self._arm(call.args["deadline_s"])
        call.result()

    def _shutdown(self, call: Call) -> None:
        call.result()
        self.loop.after(0.05, self.loop.stop)  # time for the answer to leave

    def _arm(self, deadline_s: float | None) -> None:
        """The guest ends by itself when its deadline passes unheard, whatever became of the service."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if deadline_s is None else self.loop.after(deadline_s, self.loop.stop)


def _make_tmp() -> None:
    """A folder for everybody's passing files, which programs count on, where an image has none (gVisor makes one itself)."""
    try:
        os.mkdir("/tmp")
        os.chmod("/tmp", 0o1777)  # noqa: S103 - likewise
    except OSError:
        return


def _set_hostname(name: str) -> None:
    if socket.gethostname() == name:  # a container was given it, and may not change it
        return
    try:
        socket.sethostname(name)
    except OSError as error:
        log(f"hostname: {error}")


def _stir(entropy: bytes) -> None:
    """Mix the host's randomness into the kernel's, so that clones of one snapshot part ways (random(4))."""
    try:
        fd = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, entropy)
    except OSError:
        pass
    finally:
        os.close(fd)


def _heed_no_signals() -> None:
    """No signal that only asks ends or stops the sandbox: gVisor does not keep them from PID 1, and not root alone may send them (spawn.Taking).

    Faults are left as they are: whoever heeds none goes on with what failed. So is SIGPIPE, which Python ignores.
    """
    for number in (*ASKING, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
        # Not SIG_IGN: that would pass through exec to every program that is started (execve(2)).
        signal.signal(number, lambda _number, _frame: None)


def main() -> None:
    """The first and last function of the sandbox."""
    _heed_no_signals()
    os.umask(0o022)
    os.chdir("/")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    # No core files; and of all limits that leave none, 1 alone keeps a kernel from giving them to a program instead (core(5)).
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    cores = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (cores, cores))
    # The link moves out of the way of the standard descriptors, so that no child and no stray print can touch it.
    fd_in, fd_out = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    Guest(fd_in, fd_out).run()
    kill_all()
    os._exit(0)
