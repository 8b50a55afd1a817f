"""Lifecycle of the guest: wake, checkpoint, quiesce, deadline and shutdown.

Invariants:
- After boot, restore and quiesce, the guest serves no call except ``guest.wake``. Processes in the sandbox continue to run. After
  restore and quiesce, the guest's timers do not advance.
- If a wake has the same sandbox id as the previous wake, the sandbox was hibernated, or its service was restarted. In this case, the
  guest remembers calls, processes and cells, and clients may attach to them.
- If a wake has another id, this sandbox is a copy. The guest forgets finished calls, processes and cells. Queued cells do not run,
  because their clients wait for the original sandbox. Running processes and cells belong to the copy and continue.
- Steps of a wake, in this order: start the clock; in a copy, forget finished calls, processes and cells; set the host name,
  the environment and the entropy; set the process limit and the number of processors; open the network; set the deadline; mark the
  guest as awake; set the memory limit and wake the kernels; run the wake scripts. The first wake runs no wake scripts.
- Connections to other hosts are reset when a checkpoint begins and when the guest is quiesced. None is open in an image.
- The guest ends by itself when its deadline passes, even if no service is running.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels.languages import find_python
from sandlot.guest.kernels.python_environment import modified_times
from sandlot.guest.loop import log
from sandlot.guest.process.affinity import ShownProcessors
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
    from sandlot.guest.net.network import GuestNetwork
    from sandlot.guest.process.accounts import Account
    from sandlot.guest.process.manager import ProcessManager
    from sandlot.guest.process.pid_limit import PidLimit
    from sandlot.guest.rpc import Call, RpcServer
    from sandlot.guest.streams import StreamRouter
    from sandlot.guest.wake_scripts import WakeScripts

SHUTDOWN_DELAY_S = 0.05
"""Seconds between the response of ``guest.shutdown`` and the end of the guest, so that the response can still be written."""


class GuestLifecycle:
    """Handlers of the ``guest.*`` calls, which change the state of the whole guest.

    Args:
        loop: The guest's loop. Its clock does not advance between a quiesce and a wake, and during a checkpoint.
        link: The guest's end of the link.
        router: Streams of the link. A quiesce ends all streams.
        rpc: Server of the calls. A copy of a sandbox forgets the outcomes of all calls.
        identity: Id, environment, workspace and entropy of the sandbox. Each wake sets them.
        pid_limit: Limit of processes and threads. Each wake sets the limit, and ``guest.limit`` may change it.
        processes: Processes that the host has started. A copy of a sandbox forgets the finished processes.
        network: Connections to other hosts, if the sandbox has a network card.
        kernels: Contexts and their kernels.
        oom: Memory limit. Each wake sets the limit, and ``guest.limit`` may change it.
        wake_scripts: Scripts that run after every wake except the first.
    """

    __slots__ = (
        "_deadline",
        "_identity",
        "_kernels",
        "_link",
        "_loop",
        "_network",
        "_oom",
        "_pid_limit",
        "_processes",
        "_processors",
        "_python",
        "_router",
        "_rpc",
        "_wake_scripts",
    )

    def __init__(  # noqa: PLR0913 - each argument is a part of the guest, most passed by name
        self,
        loop: Loop,
        link: LinkConnection,
        router: StreamRouter,
        rpc: RpcServer,
        identity: SandboxIdentity,
        *,
        pid_limit: PidLimit,
        network: GuestNetwork,
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
        self._network = network
        self._processes = processes
        self._kernels = kernels
        self._oom = oom
        self._wake_scripts = wake_scripts
        self._processors = ShownProcessors()
        self._deadline: Timer | None = None
        self._python = PythonFinder(identity)

    def wake(self, call: Call) -> None:
        """Handle ``guest.wake``: take over the sandbox id, environment and limits of the call, and serve all calls from now on."""
        connection, args = self._link.protocol, call.args
        if not connection.asleep:
            raise RpcError("conflict", "The guest is already awake; `guest.wake` is allowed only while the guest is asleep.")
        earlier_id = self._identity.sandbox_id
        self._loop.release_clock()
        if earlier_id and earlier_id != args["identity"]:
            self._reset_as_copy()
        # The system clock is not set here: gVisor and containers use the host's system clock, even after a restore.
        _set_hostname(args["hostname"])
        self._identity.become(args["identity"], args["env"], args["user"], args["workspace"], args["entropy"])
        self._pid_limit.set(args["pids"])
        self._processors.show(args["processors"])
        _make_tmp()
        self._network.set_local_domains(args["local_domains"] or ())
        self._network.on_wake(is_first=not earlier_id)
        self._arm_deadline(args["deadline_s"])
        connection.asleep = connection.armed = False
        env, python = self._python.find()
        self._kernels.on_wake(args["memory_bytes"], env, python)
        if earlier_id:
            self._wake_scripts.start()
        call.result(python=python)

    def warm(self, call: Call) -> None:
        """Handle ``guest.warm``: prepare what takes time in copies of this sandbox, and a spare kernel."""
        self._identity.boot_id.prepare()
        self._kernels.warm(call)

    def checkpoint(self, call: Call) -> None:
        """Handle ``guest.checkpoint``: if ``armed`` is True, stop the guest's clock and its network for a checkpoint; if False, start both again."""
        armed = call.args["armed"]
        self._link.protocol.armed = armed
        if armed:
            self._network.suspend()
            self._loop.hold_clock()
        else:
            self._loop.release_clock()
            self._network.resume()
        call.result()

    def quiesced(self) -> None:
        """Handle the host's request to quiesce: end all streams, stop the network and the clock, and serve only ``guest.wake`` from now on.

        If a new handshake of the host has cancelled the request, only write the queued frames.
        """
        if self._link.protocol.quiesced():
            self._network.suspend()
            self._router.drop_all()
            self._loop.hold_clock()
        self._link.flush_soon()

    def set_network(self, call: Call) -> None:
        """Handle ``guest.network``: replace the local domains whose names get addresses."""
        self._network.set_local_domains(call.args["local_domains"])
        call.result()

    def set_deadline(self, call: Call) -> None:
        """Handle ``guest.deadline``: set, replace or remove the time at which the guest ends by itself."""
        self._arm_deadline(call.args["deadline_s"])
        call.result()

    def set_limits(self, call: Call) -> None:
        """Handle ``guest.limit``: change the process limit, and the memory limit and the number of processors if the call has them."""
        self._pid_limit.change(call.args["pids"])
        if call.args["memory_bytes"] is not None:
            self._oom.change_limit(call.args["memory_bytes"])
        self._processors.show(call.args["processors"])
        call.result()

    def info(self, call: Call) -> None:
        """Handle ``guest.info``: respond with the guest's protocol generation, sandbox id and uptime, and with the resources in use."""
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
        """Handle ``guest.shutdown``: respond, then end the guest and with it the sandbox after ``SHUTDOWN_DELAY_S``."""
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
    """Finds the environment of the user of code and the Python interpreter of the image, and caches the results.

    A search examines about twenty files and folders, which takes 5 ms in gVisor. The next wake uses the cached results if neither
    the user, the sandbox's ``PATH`` nor any of these files and folders has changed.

    Args:
        identity: Source of the user and of the sandbox's own variables.
    """

    __slots__ = ("_account", "_identity", "_path", "_python", "_user", "_versions")

    def __init__(self, identity: SandboxIdentity) -> None:
        self._identity = identity
        self._account: Account | None = None
        self._user = ""
        self._python: str | None = None
        self._path: str | None = None
        self._versions: dict[str, int] = {}
        """Path of each examined file or folder -> time of its last modification."""

    def find(self) -> tuple[dict[str, str], str | None]:
        """Return the complete environment of the user of code, and the path of the image's Python interpreter.

        The path is None if the image has no Python interpreter.
        """
        user, path = self._identity.user, self._identity.env.get("PATH")
        if self._account is not None and (self._user, self._path) == (user, path) and modified_times(self._versions) == self._versions:
            return self._identity.environment(self._account), self._python
        versions = modified_times(("/etc/passwd", "/etc/group"))
        self._account = self._identity.account()
        env = self._identity.environment(self._account)
        versions.update(modified_times(env["PATH"].split(":")))
        self._user, self._path, self._versions, self._python = user, path, versions, find_python(env)
        return env, self._python


def _make_tmp() -> None:
    """Create /tmp if the image has no such folder, because programs expect /tmp to exist. gVisor creates the folder itself."""
    try:
        os.mkdir("/tmp")
        os.chmod("/tmp", 0o1777)  # noqa: S103 - the usual mode of /tmp
    except OSError:
        return


def _set_hostname(name: str) -> None:
    if socket.gethostname() == name:  # in a container, the name is set from the start, and the guest may lack the permission to set it
        return
    try:
        socket.sethostname(name)
    except OSError as error:
        log(f"cannot set the host name to {name!r}: {error}")
