"""Lifecycle of the guest: wake, checkpoint, rest, deadline and end.

Invariants:
- An asleep guest serves only ``guest.wake``. Processes inside continue; timers stand still.
- A guest that is woken with the id that it had is the same sandbox, after hibernation or a restart of the service: calls,
  processes and cells are remembered, and clients may attach to them.
- A guest that is woken with another id is a copy: finished calls, processes and cells are forgotten, and queued cells do not
  run, because their clients wait for the original. Everything that runs belongs to the copy and continues.
- Order of a wake: clock, reset of a copy, environment and entropy, limits; then the guest is awake; then kernels; then wake
  scripts, but not at the first wake.
- The guest ends by itself when its deadline passes, whatever became of the service.
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
"""Time for the response of ``guest.shutdown`` to be written."""


class GuestLifecycle:
    """The calls that change the state of the whole guest.

    Args:
        loop: Its clock is held while the guest is asleep or about to be saved.
        link: Says whether the guest is asleep, and whether a checkpoint is about to be taken.
        router: Its streams are over when the guest comes to rest.
        rpc: Forgets its results in a copy.
        identity: Receives what a wake brings.
        pid_limit: Receives the process limit.
        processes: Forgets finished processes in a copy.
        kernels: Is woken after everything that kernels depend on.
        oom: Receives a changed memory limit.
        wake_scripts: Run after every wake but the first.
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
        """Handle ``guest.wake``: begin to run as the sandbox that the host names."""
        connection, args = self._link.protocol, call.args
        if not connection.asleep:
            raise RpcError("conflict", "The guest is awake already.")
        earlier_id = self._identity.sandbox_id
        self._loop.release_clock()
        if earlier_id and earlier_id != args["identity"]:
            self._reset_as_copy()
        # The clock itself needs no setting: gVisor and containers read the host's, also after a restore.
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
        """Handle ``guest.checkpoint``: a checkpoint is about to be taken, or the guest continues after it."""
        armed = call.args["armed"]
        self._link.protocol.armed = armed
        if armed:
            self._loop.hold_clock()
        else:
            self._loop.release_clock()
        call.result()

    def quiesced(self) -> None:
        """Come to rest, because the host has asked for it: all streams are over, and the guest is asleep."""
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
    """Finds the environment of ``user`` and the image's python, and remembers both.

    The search examines some twenty files and folders, 5 ms in gVisor. As long as none of them has changed, the next wake uses
    what was found before.

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
        """Files and folders that were examined -> time of their last change."""

    def find(self) -> tuple[dict[str, str], str | None]:
        """Return the whole environment of ``user``, and the path of the image's python if it has one."""
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
    if socket.gethostname() == name:  # in a container, which gets its name at the start and may not change it
        return
    try:
        socket.sethostname(name)
    except OSError as error:
        log(f"hostname: {error}")
