"""Forked Python kernels, which start faster than a new program.

The fork server is a process that has imported the packages that kernels use (IPython, numpy, pandas, Matplotlib). Kernels are forked from it.
A spare kernel (a spare) is a forked kernel that waits, ready and idle, until a context needs a kernel.

A fork server is started in three cases:

- One second after a wake, if no command runs and the image has IPython.
- When a context needs a kernel and the image has IPython.
- When ``guest.warm`` is called. A template's snapshot then contains a spare, which is restored with each sandbox.

Invariants:
- While a command runs, a fork server is started only if a context needs a kernel or ``guest.warm`` is called. A fork server that is still
  importing packages when a command starts is suspended (SIGSTOP), unless a context waits for a kernel.
- A context gets a forked kernel only if the imported packages have not changed on the disk and the start-up variables of the context
  (``python_environment.STARTUP_VARIABLES``) are the same as those of the fork server. For any other context, the program of the kernel is started
  directly.
- The fork server runs as the user of code and is not trusted. A pid that it reports is accepted as a kernel only if the process is a child of PID 1,
  belongs to this user, is alive, and is not known yet. A fork server that sends an invalid message is ended.
- A context that requests a kernel waits at most ``START_TIMEOUT_S``, or at most ``FORK_TIMEOUT_S`` if all packages are imported already. If no
  kernel is ready by then, the context gets None instead of a kernel, and the fork server is ended.
- In lean mode (argument ``lean`` of ``guest.warm``), the fork server is ended as soon as the spare is ready, to save memory. A new fork server
  is started when a context needs a kernel and there is no spare.
- When the sandbox is woken, the spare is ended only if the user, the interpreter or the start-up variables have changed. Otherwise the
  spare gets fresh entropy.
"""

from __future__ import annotations

import os
import struct

from sandlot.guest.kernels import languages, python_environment
from sandlot.guest.kernels.kernel import KernelPipes, KernelProcess
from sandlot.guest.loop import READ, log
from sandlot.guest.process.accounts import lookup_account
from sandlot.guest.process.procfs import ProcStat, kill_tree, send_signal
from sandlot.protocol import values
from sandlot.protocol.fast_imports import deque, signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage
    from typing import Any

    from sandlot.guest.identity import SandboxIdentity
    from sandlot.guest.kernels.oom import OomWatcher
    from sandlot.guest.kernels.process_group import ProcessGroups
    from sandlot.guest.loop import Loop, Timer
    from sandlot.guest.process.children import ChildTable
    from sandlot.guest.process.spawn import Spawner

    OnKernel = Callable[[KernelProcess | None], object]

AHEAD_S = 1.0
"""Seconds from a wake, or from the end of the last command, to the start of a fork server.

The imports of a fork server take 0.3 to 1.5 s of CPU time in gVisor. The delay keeps these imports from slowing down the first commands after a wake.
"""
MAX_POSTPONEMENTS = 25
"""Maximum number of attempts, ``AHEAD_S`` apart, to fork the next spare. All except the last do nothing while a command or a cell runs."""
REFILL_S = 0.25
"""Seconds after a context got the spare kernel until the next spare is forked, so that the fork does not slow down the context's first cell."""
START_TIMEOUT_S, FORK_TIMEOUT_S = 15.0, 5.0
"""Maximum time in seconds that a context waits for a forked kernel: while the fork server imports packages, and after all imports."""
MAX_FAILURES = 3
"""Number of fork servers in a row that may fail without forking a kernel. After that, no fork server is started until the next wake."""
REHEARSAL_POLL_S, MAX_REHEARSAL_POLLS = 0.005, 1000
"""Seconds between two checks whether a spare kernel has run its rehearsal cell (``Prefork._rehearse``), and maximum number of checks."""
WARM_MODULES = "numpy,pandas,matplotlib"
"""Modules that the fork server imports after it has become ready, if the image has them."""
MAX_MESSAGE_BYTES = 4096
"""Maximum size in bytes of a message of the fork server."""
_FD = struct.Struct("i")


class KernelForkServer:
    """The fork server: a process that imports the packages that kernels need. Forked kernels need not import these packages again.

    Args:
        loop: The guest's loop.
        spawner: Starts the program of the fork server.
        identity: The sandbox's identity, which includes its environment variables.
        package_times: Folder of installed packages -> modification time in nanoseconds, read before the fork server is started.
        on_message: Called with each message of the fork server.
        on_end: Called when the fork server has ended or has sent an invalid message.

    Attributes:
        account: Account that the fork server runs as.
        startup_variables: Variables in the fork server's environment that match ``python_environment.STARTUP_VARIABLES``.
        user: User that the fork server runs as, as in the wake.
        python: Path of the interpreter that runs the fork server.
        env: Environment variables of the sandbox when the fork server was started.
        package_times: Folder of installed packages -> modification time in nanoseconds. As long as the folders have these times,
            the packages that the fork server has imported are up to date.
        is_ready: True if the fork server can fork kernels.
        is_warm: True if the fork server has imported all packages.
        pid: Pid of the fork server.
    """

    __slots__ = (
        "_is_stopped",
        "_loop",
        "_on_end",
        "_on_message",
        "_reader",
        "_socket",
        "account",
        "env",
        "is_ready",
        "is_warm",
        "package_times",
        "pid",
        "python",
        "startup_variables",
        "user",
    )

    def __init__(
        self,
        loop: Loop,
        spawner: Spawner,
        identity: SandboxIdentity,
        package_times: dict[str, int],
        on_message: Callable[[dict[str, Any]], object],
        on_end: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_end = on_end
        self._reader = values.MessageReader(MAX_MESSAGE_BYTES)
        self.account = lookup_account(identity.user)
        self.user = identity.user
        env = identity.environment(self.account)
        self.startup_variables = python_environment.startup_variables(env)
        self.python = languages.find_python(env)
        self.env = identity.env
        self.package_times = package_times
        self.is_ready = False
        self.is_warm = False
        self._is_stopped = False
        self._socket, server_socket = socket.socketpair()
        try:
            fd = server_socket.fileno()
            argv = [*languages.kernel_argv("python", env), "--fork-server", str(fd), "--warm", WARM_MODULES]
            null = spawner.dev_null
            self.pid = spawner.spawn(argv, self.account, (null, null, null), self, keep=[fd])
        except BaseException:
            self._socket.close()
            raise
        finally:
            server_socket.close()
        self._socket.setblocking(False)
        loop.watch(self._socket.fileno(), READ, lambda _mask: self._read())

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> bool:
        """Send a message to the fork server in one system call, without blocking. Return True if the socket accepted the whole message.

        Args:
            message: The message.
            fds: Descriptors that are sent with the message.
        """
        data = values.encode_message(message)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(_FD.pack(fd) for fd in fds))] if fds else []
        try:
            return self._socket.sendmsg([data], rights) == len(data)
        except OSError:
            return False

    def stop(self) -> None:
        """Suspend the fork server's process (SIGSTOP) until :meth:`resume` is called. Idempotent."""
        if not self._is_stopped:
            self._is_stopped = True
            send_signal(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the fork server's process (SIGCONT). Does nothing if the process is not suspended."""
        if self._is_stopped:
            self._is_stopped = False
            send_signal(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill the fork server. The kernels that were forked from it keep running. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            kill_tree(self.pid, signal.SIGKILL)

    def on_exit(self, _status: int, _usage: struct_rusage) -> None:
        """Call ``on_end``, because the fork server's process has ended. Does nothing if :meth:`close` has killed the process."""
        if self._socket.fileno() >= 0:
            self._on_end()

    def on_killed(self, _reason: str) -> None:
        """Ignore that another part of the guest has killed the fork server. ``on_exit`` is called when its process has ended."""

    def _read(self) -> None:
        try:
            data = self._socket.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._reader.feed(data)
        try:
            for message in self._reader.messages():
                self._on_message(message)
                if self._socket.fileno() < 0:
                    return
        except (values.EncodingError, LookupError, TypeError, ValueError):
            data = b""
        if not data:
            self._on_end()


class Prefork:
    """The source of forked Python kernels: the fork server, the spare kernel, and the requests that wait for a kernel.

    Args:
        loop: The guest's loop.
        spawner: Starts the fork server.
        children: Table of child processes, to which each forked kernel is added.
        identity: The sandbox's identity, which includes its environment variables and entropy.
        oom: Decides whether the memory limit is large enough for a spare kernel.
        groups: Creates the process group of each forked kernel.
    """

    __slots__ = (
        "_cells_run",
        "_check",
        "_children",
        "_commands_run",
        "_failures",
        "_forking",
        "_groups",
        "_identity",
        "_is_lean",
        "_is_postponed",
        "_loop",
        "_oom",
        "_postponements",
        "_server",
        "_spare",
        "_spare_origin",
        "_spawner",
        "_timeout",
        "_timer",
        "_waiting",
        "_warming",
    )

    def __init__(self, loop: Loop, spawner: Spawner, children: ChildTable, identity: SandboxIdentity, oom: OomWatcher, groups: ProcessGroups) -> None:
        self._loop = loop
        self._spawner = spawner
        self._children = children
        self._identity = identity
        self._oom = oom
        self._groups = groups
        self._server: KernelForkServer | None = None
        self._spare: KernelProcess | None = None
        self._spare_origin: KernelForkServer | None = None
        """In lean mode, the fork server from which the spare was forked. Its process has ended, but its attributes describe the spare."""
        self._forking: KernelPipes | None = None
        """Pipes of the kernel that is being forked; None if no kernel is being forked."""
        self._check: dict[str, int] | None = None
        """Modification times of the package folders when the fork server was asked to check its imports; None if no check is in progress."""
        self._waiting: deque[OnKernel] = deque()
        self._warming: list[Callable[[bool], object]] = []
        self._timer: Timer | None = None
        self._timeout: Timer | None = None
        self._postponements = 0
        self._failures = 0
        self._is_postponed = False
        """True if a fork server will be started when the last running command has ended."""
        self._is_lean = False
        self._commands_run = False
        self._cells_run = False

    @property
    def is_up(self) -> bool:
        """True if there is a spare kernel, or a fork server that can fork kernels. Either shows that the image can run Python."""
        return self._spare is not None or (self._server is not None and self._server.is_ready)

    # -- requests ------------------------------------------------------------------------------------------------------

    def acquire(self, env: dict[str, str], on_kernel: OnKernel) -> bool:
        """Request a forked kernel for a context.

        Args:
            env: Environment variables of the sandbox and the context.
            on_kernel: Called before or after this method returns, with the kernel, or with None if no kernel could be forked.

        Returns:
            True if ``on_kernel`` was or will be called. False if ``on_kernel`` is never called, and the caller must start a kernel directly.
        """
        # Both environments lack the variables of the user account, such as HOME.
        if python_environment.startup_variables(env) != python_environment.startup_variables(self._identity.env):
            return False
        if self._server is None and self._spare is not None and self._spare_origin is not None and self._is_affordable:
            if python_environment.modified_times(self._spare_origin.package_times) == self._spare_origin.package_times:
                spare, self._spare = self._spare, None
                on_kernel(spare)
                return True
            self.drop()
        server = self._server
        if server is None and self._is_worthwhile(self._environment()):
            server = self._start_server()
        if server is None or not self._is_affordable:
            return False
        self._waiting.append(on_kernel)
        server.resume()
        if self._timeout is None:
            self._timeout = self._loop.call_later(FORK_TIMEOUT_S if server.is_warm else START_TIMEOUT_S, self._on_server_end)
        self._advance()
        return True

    def warm(self, done: Callable[[bool], object], *, lean: bool) -> None:
        """Prepare a spare kernel now, even if a command runs: start the fork server if necessary, and fork the kernel.

        Args:
            done: Called once: with True when the spare kernel is ready and idle, or with False if no spare kernel can be prepared.
            lean: True to end the fork server when the spare kernel is ready, to save memory.
        """
        self._is_lean = lean
        if self._server is None and self._spare is not None and lean:
            self._rehearse(self._spare, done)
            return
        server = self._server
        if server is None and self._find_python(self._environment()) is not None:
            server = self._start_server()
        if server is None:
            done(False)
            return
        self._warming.append(done)
        server.resume()
        if self._spare is None:
            self._advance()
        else:
            self._spare.when_heard(lambda: self._report_warm(has_spare=True))

    def yield_cpu(self) -> None:
        """Suspend a fork server that is still importing, so that a command can use the CPU. Does nothing if a context waits for a kernel."""
        self._commands_run = True
        if self._server is not None and not self._server.is_warm and not self._waiting:
            self._server.stop()

    def resume(self) -> None:
        """Resume a suspended fork server, or schedule the start of a fork server that was postponed. Called when the last command has ended.

        In lean mode, drop the spare kernel if commands have installed or removed packages, and schedule the preparation of another kernel.
        """
        self._commands_run = False
        if self._server is not None:
            self._server.resume()
        elif self._is_postponed:
            self._schedule(AHEAD_S)
        elif self._spare is not None and self._spare_origin is not None:
            origin = self._spare_origin
            if python_environment.modified_times(origin.package_times) != origin.package_times:
                self.drop()  # a command has installed or removed packages since the spare was prepared
                self._schedule(AHEAD_S)

    def on_cells(self, *, running: bool) -> None:
        """Record whether a cell runs. If no cell runs, and there is a fork server but no spare kernel, schedule the next fork.

        Args:
            running: True if a cell of any context runs.
        """
        self._cells_run = running
        if not running and self._server is not None and self._spare is None and self._timer is None:
            self._schedule(REFILL_S)

    def on_wake(self, env: dict[str, str], python: str | None) -> None:
        """End the fork server and the spare kernel if a wake has changed the user, the interpreter or the start-up variables.

        Otherwise send a ``wake`` message to the spare kernel. Then schedule the preparation of a spare kernel. Nothing is scheduled in lean mode,
        if the memory limit is too small for a spare kernel, or if there is neither a fork server nor a spare kernel and the image has no IPython.

        Args:
            env: Complete environment of the user of code after the wake.
            python: Path of the image's Python interpreter; None if the image has no Python.
        """
        self._failures = self._postponements = 0
        origin = self._server or self._spare_origin
        now = (self._identity.user, python_environment.startup_variables(env), python)
        if origin is not None and (origin.user, origin.startup_variables, origin.python) != now:
            self.drop()
        if self._spare is not None:
            # After a restore, a process needs some time until it runs again. This message makes the spare kernel run before it is needed.
            # The context that later gets the kernel sends another ``wake`` message, with the environment of the context.
            self._spare.wake(dict(self._identity.env), self._identity.fresh_entropy(), "")
        if self._is_lean:
            return
        if self._is_affordable if self._server is not None or self._spare is not None else self._is_worthwhile(env):
            self._schedule(AHEAD_S)

    def drop(self) -> None:
        """End the fork server and the spare kernel, and cancel a fork in progress. Waiting requests are kept for the next fork server."""
        server, self._server = self._server, None
        spare, self._spare = self._spare, None
        forking, self._forking = self._forking, None
        self._check = self._spare_origin = None
        self._is_lean = False
        if server is not None:
            server.close()
        if spare is not None:
            spare.discard()
        if forking is not None:
            forking.close()

    # -- conditions for a spare ----------------------------------------------------------------------------------------

    @property
    def _is_affordable(self) -> bool:
        return self._failures < MAX_FAILURES and self._oom.allows_spare

    def _find_python(self, env: dict[str, str]) -> str | None:
        return languages.find_python(env) if self._is_affordable else None

    def _is_worthwhile(self, env: dict[str, str]) -> bool:
        """Return True if a fork server saves time, because the image has IPython, whose import takes long.

        Args:
            env: Complete environment of the user of code.
        """
        python = self._find_python(env)
        return python is not None and any(os.path.isdir(f"{folder}/IPython") for folder in python_environment.package_folders(python, env["HOME"]))

    def _environment(self) -> dict[str, str]:
        return self._identity.environment(self._identity.account())

    def _look_at_packages(self) -> dict[str, int]:
        """Return folder -> modification time in nanoseconds, for the folders of installed Python packages."""
        env = self._environment()
        return python_environment.package_folders(languages.find_python(env) or "/usr/bin/python3", env["HOME"])

    def _schedule(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._make_ahead)

    def _make_ahead(self) -> None:
        """Start a fork server, or let the existing fork server prepare the next spare kernel.

        While a command runs, no fork server is started. While a command or a cell runs, an existing fork server prepares a spare kernel
        only at the last of ``MAX_POSTPONEMENTS`` attempts.
        """
        self._timer = None
        self._is_postponed = self._server is None and self._commands_run
        if self._is_postponed:
            return
        self._postponements += 1
        if self._postponements < MAX_POSTPONEMENTS and (self._commands_run or (self._server is not None and self._cells_run)):
            self._schedule(AHEAD_S)
            return
        self._postponements = 0
        if self._server is None and (self._spare is not None or not self._is_worthwhile(self._environment()) or self._start_server() is None):
            return
        self._advance()

    # -- preparation of a spare ----------------------------------------------------------------------------------------

    def _start_server(self) -> KernelForkServer | None:
        try:
            self._server = KernelForkServer(
                self._loop, self._spawner, self._identity, self._look_at_packages(), self._on_message, self._on_server_end
            )
        except Exception as error:  # noqa: BLE001 - Python kernels are then started directly
            log(f"cannot start the fork server, so Python kernels are started without it: {error}")
            self._failures = MAX_FAILURES
            return None
        return self._server

    def _advance(self) -> None:
        """Do the step that is due next: let the fork server check its imports, give the spare kernel to a waiting request, or fork a kernel."""
        server = self._server
        if server is None or not server.is_ready or self._forking is not None or self._check is not None:
            return
        if python_environment.modified_times(server.package_times) != server.package_times:
            now = self._look_at_packages()  # the list of folders may have changed too
            if server.send({"op": "check"}):
                self._check = now
            else:
                self._on_server_end()
        elif self._spare is not None:
            if self._waiting:
                spare, self._spare = self._spare, None
                self._give(spare)
        elif self._waiting or server.is_warm:  # a spare is forked only after all imports
            self._fork(server)

    def _fork(self, server: KernelForkServer) -> None:
        pipes = KernelPipes(has_flush_pipe=True)
        kernel_socket, kernel_flush = pipes.kernel_channel
        sent = server.send({"op": "fork"}, (kernel_socket, *pipes.kernel_output, kernel_flush))
        pipes.close_kernel_ends()
        if sent:
            self._forking = pipes
        else:
            pipes.close()
            self._on_server_end()

    def _on_message(self, message: dict[str, Any]) -> None:
        server = self._server
        if server is None:
            return
        kind = message["event"]
        if kind in {"ready", "warm"}:
            server.is_ready = True
            server.is_warm = kind == "warm" or message.get("warm") is not False
            self._advance()
        elif kind == "fresh" and self._check is not None:
            package_times, self._check = self._check, None
            if message["fresh"]:
                server.package_times = package_times
            else:
                self.drop()
                if self._start_server() is None:
                    self._refuse_waiting()
            self._advance()
        elif kind == "forked" and self._forking is not None:
            pipes, self._forking = self._forking, None
            self._on_forked(message["pid"], pipes, server)

    def _on_forked(self, pid: Any, pipes: KernelPipes, server: KernelForkServer) -> None:
        """Handle the fork of a kernel: pass the kernel to a waiting request. If no request waits, keep it as the spare kernel.

        Args:
            pid: Pid that the fork server has reported; may be any value.
            pipes: Pipes that were sent to the fork server for this kernel.
            server: The fork server.

        Raises:
            ValueError: ``pid`` is not the pid of a new kernel; see :func:`may_be_forked`.
        """
        if not may_be_forked(pid, server.account.uid) or pid in self._children:
            pipes.close()
            raise ValueError(pid)
        self._failures = 0
        kernel = KernelProcess(self._loop, pid, pipes, self._groups.create(pid, server.account), server.env)
        self._children.add(pid, kernel)
        if self._waiting:
            self._give(kernel)
            return
        self._spare = kernel
        kernel.on_unused_exit = self._on_spare_exit
        if self._warming:
            kernel.when_heard(lambda: self._report_warm(has_spare=True))

    def _give(self, kernel: KernelProcess) -> None:
        """Hand a kernel over to the oldest waiting request."""
        self._report_warm(has_spare=True)
        on_kernel = self._waiting.popleft()
        if not self._waiting:
            self._cancel_timeout()
        on_kernel(kernel)
        if self._waiting:
            self._advance()
        else:
            self._schedule(REFILL_S)

    def _rehearse(self, spare: KernelProcess, done: Callable[[bool], object]) -> None:
        """Let the spare kernel run a test cell, whose output is dropped, so that the memory pages that cells need are loaded.

        After a restore, the first access to each page is slow.

        Args:
            spare: The spare kernel.
            done: Called with True when the kernel has run the cell or ``MAX_REHEARSAL_POLLS`` is reached, and with False if the kernel has ended.
        """
        before = spare.read_ahead()
        spare.send({"op": "rehearse"})

        def look(polls_left: int) -> None:
            if polls_left and spare is self._spare and spare.read_ahead() == before:
                self._loop.call_later(REHEARSAL_POLL_S, lambda: look(polls_left - 1))
            else:
                done(spare is self._spare)

        look(MAX_REHEARSAL_POLLS)

    def _report_warm(self, *, has_spare: bool) -> None:
        """Call the callbacks that were passed to :meth:`warm`.

        If :meth:`warm` was called with ``lean``, first end the fork server, if the spare kernel is ready and no request waits.

        Args:
            has_spare: Value that the callbacks get: True if the spare kernel is ready.
        """
        warming, self._warming = self._warming, []
        if warming and has_spare and self._is_lean and self._server is not None and self._spare is not None and not self._waiting:
            self._spare_origin, self._server = self._server, None
            self._spare_origin.close()
        for done in warming:
            done(has_spare)

    def _on_spare_exit(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.discard()
        self._report_warm(has_spare=False)

    def _on_server_end(self) -> None:
        """Drop a fork server that has ended, has not responded in time, or has sent an invalid message. Waiting requests get None."""
        self._failures += 1
        self.drop()
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        self._cancel_timeout()
        self._report_warm(has_spare=False)
        waiting, self._waiting = self._waiting, deque()
        for on_kernel in waiting:
            on_kernel(None)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


def may_be_forked(pid: Any, uid: int) -> bool:
    """Return True if a process can be a kernel that the fork server has forked: a living child of PID 1 that belongs to its user.

    Args:
        pid: Pid that the fork server has reported; may be any value.
        uid: User id of the fork server.
    """
    if type(pid) is not int or pid <= 1:
        return False
    try:
        if os.stat(f"/proc/{pid}").st_uid != uid:
            return False
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        task = ProcStat(pid, os.read(fd, 4096).rpartition(b")")[2].split())
    except (OSError, ValueError, IndexError):
        return False
    finally:
        os.close(fd)
    return task.parent == 1 and not task.is_dead()
