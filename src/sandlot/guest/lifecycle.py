"""Lifecycle of the guest: wake, checkpoint, quiesce, deadline and shutdown.

Invariants:
- After boot, restore and quiesce, the guest serves only ``guest.wake``. Processes inside continue; timers stand still.
- If a wake has the same sandbox id as before, the sandbox was hibernated or its service was restarted: calls, processes and cells
  are remembered, and clients may attach to them.
- If a wake has another id, this sandbox is a copy: finished calls, processes and cells are forgotten, and queued cells do not run,
  because their clients wait for the original. Running processes and cells belong to the copy and continue.
- Order of a wake: clock, reset of a copy, environment and entropy, limits; then the guest is awake; then kernels; then wake
  scripts, but not at the first wake.
- The guest ends by itself when its deadline passes, even if no service is running.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels.languages import find_python, modified_times
from sandlot.guest.loop import log
from sandlot.guest.process.accounts import lookup_account
from sandlot.guest.process.procfs import count_tasks, cpu_s, live_processes
from sandlot.protocol.connection import GENERATION
from sandlot.protocol.fast_imports import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.connection import LinkConnection
    from sandlot.guest.identity import SandboxIdentity
    from sandlot.guest.kernels.manager import KernelManager
    from sandlot.guest.kernels.oom import OomWatcher
    from sandlot.guest.loop import Loop, Timer
    from sandlot.guest.process.accounts import Account
    from sandlot.guest.process.manager import ProcessManager
    from sandlot.guest.process.pid_limit import PidLimit
    from sandlot.guest.rpc import Call, RpcServer
    from sandlot.guest.streams import StreamRouter
    from sandlot.guest.wake_scripts import WakeScripts

SHUTDOWN_DELAY_S = 0.05
"""Time that is left to write the response of ``guest.shutdown``."""


class GuestLifecycle:
    """The calls that change the state of the whole guest.

    Args:
        loop: The guest's loop, whose clock is held until a wake and during a checkpoint.
        link: The guest's end of the link.
        router: Streams of the link, which end with a quiesce.
        rpc: Results of calls, which a copy forgets.
        identity: Id, environment, workspace and entropy, which a wake sets.
        pid_limit: Process limit, which a wake sets.
        processes: Processes; a copy forgets those that have finished.
        kernels: Contexts and kernels, which are woken last.
        oom: Memory limit, which ``guest.limit`` may change.
        wake_scripts: Scripts that run after every wake except the first.
    """

    __slots__ = (
        "_deadline",
        "_identity",
        "_kernels",
        "_link",
        "_loop",
        "_oom",
        "_pid_limit",
        "_processes",
        "_python",
        "_router",
        "_rpc",
        "_wake_scripts",
    )

    def __init__(
        self,
        loop: Loop,
        link: LinkConnection,
        router: StreamRouter,
        rpc: RpcServer,
        identity: SandboxIdentity,
        pid_limit: PidLimit,
        processes: ProcessManager,
        kernels: KernelManager,
        oom: OomWatcher,
        wake_scripts: WakeScripts,
    ) -> None:
        self._loop = loop
        self._link = link
        self._router = router
        self._rpc = rpc
        self._identity = identity
        self._pid_limit = pid_limit
        self._processes = processes
        self._kernels = kernels
        self._oom = oom
        self._wake_scripts = wake_scripts
        self._deadline: Timer | None = None
        self._python = PythonFinder(identity)

    def wake(self, call: Call) -> None:
        """Handle ``guest.wake``: run as the sandbox that the host names from now on."""
        connection, args = self._link.protocol, call.args
        if not connection.asleep:
            raise RpcError("conflict", "The guest is awake already.")
        earlier_id = self._identity.sandbox_id
        self._loop.release_clock()
        if earlier_id and earlier_id != args["identity"]:
            self._reset_as_copy()
        # The system clock need not be set: gVisor and containers use that of the host, even after a restore.
        _set_hostname(args["hostname"])
        self._identity.become(args["identity"], args["env"], args["workspace"], args["entropy"])
        self._pid_limit.set(args["pids"])
        _make_tmp()
        self._arm_deadline(args["deadline_s"])
        connection.asleep = connection.armed = False
        env, python = self._python.find()
        self._kernels.on_wake(args["memory_bytes"], env, python)
        if earlier_id:
            self._wake_scripts.start()
        call.result(python=python)

    def checkpoint(self, call: Call) -> None:
        """Handle ``guest.checkpoint``, which is called before and after a checkpoint."""
        armed = call.args["armed"]
        self._link.protocol.armed = armed
        if armed:
            self._loop.hold_clock()
        else:
            self._loop.release_clock()
        call.result()

    def quiesced(self) -> None:
        """Handle a request to quiesce: end all streams, and serve only ``guest.wake`` from now on."""
        if self._link.protocol.quiesced():
            self._router.drop_all()
            self._loop.hold_clock()
        self._link.flush_soon()

    def set_deadline(self, call: Call) -> None:
        """Handle ``guest.deadline``."""
        self._arm_deadline(call.args["deadline_s"])
        call.result()

    def set_limits(self, call: Call) -> None:
        """Handle ``guest.limit``."""
        self._pid_limit.change(call.args["pids"])
        if call.args["memory_bytes"] is not None:
            self._oom.change_limit(call.args["memory_bytes"])
        call.result()

    def info(self, call: Call) -> None:
        """Handle ``guest.info``."""
        call.result(
            generation=GENERATION,
            identity=self._identity.sandbox_id,
            uptime_s=self._loop.time() - self._identity.began_s,
            processes=len(live_processes()),
            tasks=count_tasks(),
            cpu_s=cpu_s(),
            streams=self._link.protocol.streams,
        )

    def shutdown(self, call: Call) -> None:
        """Handle ``guest.shutdown``."""
        call.result()
        self._loop.call_later(SHUTDOWN_DELAY_S, self._loop.stop)

    def _reset_as_copy(self) -> None:
        self._rpc.forget_all_results()
        self._processes.forget_finished()
        self._kernels.on_copied()

    def _arm_deadline(self, deadline_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if deadline_s is None else self._loop.call_later(deadline_s, self._loop.stop)


class PythonFinder:
    """Finds the environment of ``user`` and the Python interpreter of the image, and caches both.

    The search examines about twenty files and folders, which takes 5 ms in gVisor. As long as none of them has changed, the
    next wake uses the cached result.

    Args:
        identity: Environment of the sandbox.
    """

    __slots__ = ("_account", "_identity", "_path", "_python", "_versions")

    def __init__(self, identity: SandboxIdentity) -> None:
        self._identity = identity
        self._account: Account | None = None
        self._python: str | None = None
        self._path: str | None = None
        self._versions: dict[str, int] = {}
        """Examined file or folder -> time of its last change."""

    def find(self) -> tuple[dict[str, str], str | None]:
        """Return the complete environment of ``user``, and the path of the image's Python interpreter; None if there is none."""
        path = self._identity.env.get("PATH")
        if self._account is not None and self._path == path and modified_times(self._versions) == self._versions:
            return self._identity.environment(self._account), self._python
        versions = modified_times(("/etc/passwd", "/etc/group"))
        self._account = lookup_account("user")
        env = self._identity.environment(self._account)
        versions.update(modified_times(env["PATH"].split(":")))
        self._path, self._versions, self._python = path, versions, find_python(env)
        return env, self._python


def _make_tmp() -> None:
    """Create /tmp if the image has none, because programs expect it. gVisor creates it itself."""
    try:
        os.mkdir("/tmp")
        os.chmod("/tmp", 0o1777)  # noqa: S103 - the mode of every /tmp
    except OSError:
        return


def _set_hostname(name: str) -> None:
    if socket.gethostname() == name:  # in a container: its name is set at the start, and setting it again would fail
        return
    try:
        socket.sethostname(name)
    except OSError as error:
        log(f"cannot set the host name: {error}")
