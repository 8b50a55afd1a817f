"""PID 1: process set-up, creation of the services, the table of call handlers, and routing of link events."""

from __future__ import annotations

import os
import resource

from sandlot.guest.connection import LinkConnection
from sandlot.guest.fs.service import FileService
from sandlot.guest.identity import SandboxIdentity
from sandlot.guest.kernels.manager import KernelManager
from sandlot.guest.kernels.oom import OomWatcher
from sandlot.guest.kernels.prefork import Prefork
from sandlot.guest.kernels.process_group import ProcessGroups
from sandlot.guest.kernels.starter import KernelStarter
from sandlot.guest.lifecycle import GuestLifecycle
from sandlot.guest.loop import READ, Loop
from sandlot.guest.net.package_proxy import PackageProxy
from sandlot.guest.net.tunnels import TunnelService
from sandlot.guest.process.children import ChildTable
from sandlot.guest.process.manager import ProcessManager
from sandlot.guest.process.pid_limit import PidLimit
from sandlot.guest.process.procfs import kill_all
from sandlot.guest.process.spawn import Spawner
from sandlot.guest.process.sudo import SudoServer
from sandlot.guest.rpc import RpcServer
from sandlot.guest.streams import StreamRouter
from sandlot.guest.wake_scripts import WakeScripts
from sandlot.protocol import events
from sandlot.protocol.fast_imports import signal

MAX_DESCRIPTORS = 65536
HANDLED_SIGNALS = (
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
"""Signals that end or stop a process without a handler and do not report a fault of the process itself (signal(7)). The
real-time signals are added to them."""


class LinkEventDispatcher:
    """Passes each event of the link to the object that handles it.

    Args:
        router: Handles events of streams.
        rpc: Handles streams that the host opens: calls.
        lifecycle: Handles the request to quiesce.
    """

    __slots__ = ("_lifecycle", "_router", "_rpc")

    def __init__(self, router: StreamRouter, rpc: RpcServer, lifecycle: GuestLifecycle) -> None:
        self._router = router
        self._rpc = rpc
        self._lifecycle = lifecycle

    def on_event(self, event: events.Event) -> None:
        """Handle one event."""
        if isinstance(event, events.Opened):
            self._rpc.on_opened(event)
        elif isinstance(event, events.StreamEvent):
            self._router.dispatch(event)
        elif isinstance(event, (events.Greeted, events.Lost)):
            self._router.drop_all()
        elif isinstance(event, events.QuiesceRequested):
            self._lifecycle.quiesced()


def start(loop: Loop, fd_in: int, fd_out: int) -> None:
    """Create the services, connect them to each other, and begin to read the link.

    Args:
        loop: Loop that runs the services.
        fd_in: Descriptor with the bytes of the host.
        fd_out: Descriptor for the bytes of the guest.
    """
    dev_null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    link, children, identity = LinkConnection(loop, fd_in, fd_out), ChildTable(), SandboxIdentity(loop)
    router, pid_limit = StreamRouter(link), PidLimit(loop, children)
    spawner = Spawner(identity, children, pid_limit, dev_null)
    rpc = RpcServer(router, link.is_asleep)
    oom, groups = OomWatcher(loop, children), ProcessGroups()
    prefork = Prefork(loop, spawner, children, identity, oom, groups)
    starter = KernelStarter(loop, spawner, children, identity, prefork, groups)
    kernels = KernelManager(loop, identity, starter, prefork, oom, rpc)
    processes = ProcessManager(loop, spawner, rpc, prefork.yield_cpu, prefork.resume)
    files, tunnels = FileService(loop, rpc), TunnelService(loop)
    wake_scripts = WakeScripts(loop, spawner, identity, rpc)
    lifecycle = GuestLifecycle(loop, link, router, rpc, identity, pid_limit, processes, kernels, oom, wake_scripts)
    rpc.serve(
        {
            "guest.wake": lifecycle.wake,
            "guest.info": lifecycle.info,
            "guest.limit": lifecycle.set_limits,
            "guest.checkpoint": lifecycle.checkpoint,
            "guest.deadline": lifecycle.set_deadline,
            "guest.warm": kernels.warm,
            "guest.shutdown": lifecycle.shutdown,
            "process.start": processes.start,
            "process.attach": processes.attach,
            "process.wait": processes.wait,
            "process.signal": processes.send_signal,
            "process.resize": processes.resize,
            "process.get": processes.get,
            "process.list": processes.list_all,
            "process.forget": processes.forget,
            "kernel.create": kernels.create,
            "kernel.list": kernels.list_all,
            "kernel.remove": kernels.remove,
            "kernel.execute": kernels.execute,
            "kernel.attach": kernels.attach,
            "kernel.interrupt": kernels.interrupt,
            "kernel.restart": kernels.restart,
            "file.read": files.read,
            "file.write": files.write,
            "file.stat": files.stat,
            "file.list": files.list_entries,
            "file.mkdir": files.mkdir,
            "file.move": files.move,
            "file.remove": files.remove,
            "port.connect": tunnels.connect,
        }
    )
    _reap_on_sigchld(loop, children)
    SudoServer(loop, spawner).listen()
    PackageProxy(loop, router).listen()
    link.start(LinkEventDispatcher(router, rpc, lifecycle).on_event)


def _reap_on_sigchld(loop: Loop, children: ChildTable) -> None:
    """Reap children whenever a signal arrives. Each signal writes a byte into a pipe that the loop watches (signal.set_wakeup_fd)."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def reap(_mask: int) -> None:
        try:
            os.read(reading, 4096)
        except BlockingIOError:
            pass
        children.reap()

    signal.signal(signal.SIGCHLD, _ignore_signal)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    loop.watch(reading, READ, reap)


def _handle_signals() -> None:
    """Install handlers, so that no signal that can be handled ends or stops the sandbox.

    gVisor does not protect PID 1 from signals, and processes of ``user`` may send them at times (``as_process_user``).
    Signals of faults keep their action: PID 1 must not continue after a fault. Python ignores SIGPIPE.
    """
    for number in (*HANDLED_SIGNALS, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
        # Not SIG_IGN, which every program that is started would inherit over exec (execve(2)).
        signal.signal(number, _ignore_signal)


def _ignore_signal(_number: int, _frame: object) -> None:
    """Do nothing."""


def main() -> None:
    """Run as PID 1 until the deadline, a shutdown, or the end of the link."""
    _handle_signals()
    os.umask(0o022)
    os.chdir("/")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    # No core files. With a limit of 0, the kernel would still pass cores to a configured program; with 1 it does not (core(5)).
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    cores = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (cores, cores))
    # Move the link away from the standard descriptors, so that neither a child nor stray output can reach it.
    fd_in, fd_out = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    loop = Loop()
    start(loop, fd_in, fd_out)
    loop.run()
    kill_all()
    os._exit(0)
