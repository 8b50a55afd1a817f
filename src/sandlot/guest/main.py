"""PID 1: sets itself up, reaps, keeps the deadline, and hands every event to whom it concerns."""

from __future__ import annotations

import os
import resource

from sandlot.guest.calls import Call, Calls
from sandlot.guest.files.service import Files
from sandlot.guest.flow.loop import READ, Loop
from sandlot.guest.flow.wire import Wire
from sandlot.guest.hooks import Hooks
from sandlot.guest.kernels.service import Kernels
from sandlot.guest.limits import Pids, count
from sandlot.guest.local import Local
from sandlot.guest.processes import Processes
from sandlot.guest.sockets.relay import Relay
from sandlot.guest.sockets.tunnels import Tunnels
from sandlot.guest.tasks import cpu_s, kill_all, tasks
from sandlot.guest.waking import Waking
from sandlot.protocol import events
from sandlot.protocol.connection import GENERATION
from sandlot.protocol.fast_imports import signal

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
        "calls",
        "dev_null",
        "env",
        "hooks",
        "kernels",
        "local",
        "loop",
        "pids",
        "processes",
        "relay",
        "waking",
        "wire",
        "workspace",
    )

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self.loop = Loop()
        self.calls = Calls(
            {
                "guest.info": self._info,
                "guest.shutdown": self._shutdown,
            }
        )
        self.dev_null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.env: dict[str, str] = {}
        self.workspace = "/"
        self.wire = Wire(self.loop, fd_in, fd_out, self._on_event)
        self.calls.wire = self.wire
        self.pids = Pids(self)
        self.processes = Processes(self)
        self.kernels = Kernels(self)
        self.local = Local(self)
        self.relay = Relay(self)
        self.waking = Waking(self)
        self.hooks = Hooks(self)
        Files(self)
        Tunnels(self)

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
                self.waking.rested()
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
            peak_bytes = usage.ru_maxrss * 1024
            if not (self.processes.reaped(pid, status, usage) or self.kernels.reaped(pid, status, peak_bytes) or self.hooks.reaped(pid, status)):
                self.local.reaped(pid, status)

    # -- calls ------------------------------------------------------------------------------------------------------

    def _info(self, call: Call) -> None:
        call.result(
            generation=GENERATION,
            identity=self.waking.identity,
            uptime_s=self.loop.time() - self.waking.began_s,
            processes=len(tasks()),
            tasks=count(),
            cpu_s=cpu_s(),
            streams=self.wire.connection.streams,
        )

    def _shutdown(self, call: Call) -> None:
        call.result()
        self.loop.after(0.05, self.loop.stop)  # time for the answer to leave


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
