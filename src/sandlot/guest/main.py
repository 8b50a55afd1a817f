"""Main program of PID 1: process set-up, creation of the services, the table of call handlers, and dispatch of link events."""

from __future__ import annotations

import os
import resource
import sys

from sandlot.guest.connection import LinkConnection
from sandlot.guest.fs.attributes import set_attributes
from sandlot.guest.fs.c_library import copy_c_library
from sandlot.guest.fs.service import FileService
from sandlot.guest.identity import SandboxIdentity
from sandlot.guest.kernels.manager import KernelManager
from sandlot.guest.kernels.oom import OomWatcher
from sandlot.guest.kernels.prefork import Prefork
from sandlot.guest.kernels.process_group import ProcessGroups
from sandlot.guest.kernels.starter import KernelStarter
from sandlot.guest.lifecycle import GuestLifecycle
from sandlot.guest.loop import READ, Loop
from sandlot.guest.net.network import GuestNetwork
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
from sandlot.protocol import events, schema
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
"""Signals that by default terminate or suspend a process, and that do not report a fault in the code of the process (signal(7)).

:func:`_handle_signals` handles the real-time signals too.
"""


class LinkEventDispatcher:
    """Passes each event of the link to the object that handles it.

    Args:
        router: Handles the events of open streams, and ends all streams after a new handshake or invalid bytes from the host.
        rpc: Handles each stream that the host opens. Such a stream is a call.
        lifecycle: Handles the host's request to quiesce.
    """

    __slots__ = ("_lifecycle", "_router", "_rpc")

    def __init__(self, router: StreamRouter, rpc: RpcServer, lifecycle: GuestLifecycle) -> None:
        self._router = router
        self._rpc = rpc
        self._lifecycle = lifecycle

    def on_event(self, event: events.Event) -> None:
        """Pass one event of the link to the router, the call server or the lifecycle, by the type of the event."""
        if isinstance(event, events.Opened):
            self._rpc.on_opened(event)
        elif isinstance(event, events.StreamEvent):
            self._router.dispatch(event)
        elif isinstance(event, (events.Greeted, events.Lost)):
            self._router.drop_all()
        elif isinstance(event, events.QuiesceRequested):
            self._lifecycle.quiesced()


def start(loop: Loop, fd_in: int, fd_out: int, *, has_card: bool = False) -> None:
    """Create the services, connect them to each other, and begin to read the link.

    Args:
        loop: Loop that runs the services.
        fd_in: Descriptor from which bytes from the host are read.
        fd_out: Descriptor to which bytes for the host are written.
        has_card: True if the sandbox has a network card that leads to the guest.
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

    def on_first_command() -> None:
        prefork.yield_cpu()
        oom.on_commands(running=True)

    def on_commands_ended() -> None:
        prefork.resume()
        oom.on_commands(running=False)

    processes = ProcessManager(loop, spawner, rpc, on_first_command, on_commands_ended)
    oom.on_kill = processes.on_memory_kill
    files, tunnels = FileService(loop, rpc), TunnelService(loop)
    lifecycle = GuestLifecycle(
        loop,
        link,
        router,
        rpc,
        identity,
        pid_limit=pid_limit,
        network=GuestNetwork(loop, router, has_card=has_card),
        processes=processes,
        kernels=kernels,
        oom=oom,
        wake_scripts=WakeScripts(loop, spawner, identity, rpc),
    )
    rpc.serve(
        {
            "guest.wake": lifecycle.wake,
            "guest.info": lifecycle.info,
            "guest.limit": lifecycle.set_limits,
            "guest.checkpoint": lifecycle.checkpoint,
            "guest.network": lifecycle.set_network,
            "guest.deadline": lifecycle.set_deadline,
            "guest.warm": lifecycle.warm,
            "guest.shutdown": lifecycle.shutdown,
            "process.start": processes.start,
            "process.attach": processes.attach,
            "process.wait": processes.wait,
            "process.input": processes.open_input,
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
            "file.resolve": files.resolve,
            "file.home": files.find_home,
            "file.list": files.list_entries,
            "file.mkdir": files.mkdir,
            "file.move": files.move,
            "file.remove": files.remove,
            "port.connect": tunnels.connect,
        }
    )
    set_attributes()
    copy_c_library()
    _reap_on_sigchld(loop, children)
    SudoServer(loop, spawner).listen()
    PackageProxy(loop, router).listen()
    link.start(LinkEventDispatcher(router, rpc, lifecycle).on_event)


def _reap_on_sigchld(loop: Loop, children: ChildTable) -> None:
    """Reap ended child processes whenever PID 1 receives a signal.

    Python writes a byte into a pipe for each signal (signal.set_wakeup_fd), and the loop watches that pipe.
    """
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
    """Install handlers that do nothing for most signals, so that programs in the sandbox can neither terminate nor suspend PID 1.

    gVisor does not protect PID 1 from signals. Processes of the account ``user`` may signal PID 1 while PID 1 runs under their uid
    (``as_process_user``). Signals that report a fault, such as SIGSEGV, keep their default action, because PID 1 must not
    continue after a fault. Python ignores SIGPIPE.
    """
    for number in (*HANDLED_SIGNALS, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
        # Do not use SIG_IGN: started programs would inherit it, because exec keeps ignored signals ignored (execve(2)).
        signal.signal(number, _ignore_signal)


def _ignore_signal(_number: int, _frame: object) -> None:
    """Handle a signal by doing nothing."""


def main() -> None:
    """Run as PID 1 until the deadline passes, the host calls ``guest.shutdown``, or the link is closed."""
    _handle_signals()
    os.umask(0o022)
    os.chdir("/")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    # Prevent core dumps. With a limit of 0 bytes, the kernel would still pass core dumps to a program if core_pattern names a program.
    # With a limit of 1 byte, the kernel passes no core dumps (core(5)).
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    cores = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (cores, cores))
    # Move the link from descriptors 0 and 1 to other descriptors, so that neither a child nor stray output of the guest can write to the link.
    fd_in, fd_out = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    loop = Loop()
    start(loop, fd_in, fd_out, has_card=schema.NETWORK_ARGUMENT in sys.argv)
    loop.run()
    kill_all()
    os._exit(0)
