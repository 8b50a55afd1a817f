"""Wake scripts: executables in ``/etc/sandlot/wake.d`` that run after a wake of the sandbox.

In a copy of a sandbox, the random number generators of running programs have the same state as in the original. A wake script
can make such a program reseed its generator, or restart the program.

Invariants:
- The scripts run after every wake except the first, which follows the boot. They run one after the other, in the order of
  their names. Calls that start a process, a kernel or a cell are delayed until the last script has ended. Other calls are not delayed.
- A script is killed after ``TIMEOUT_S`` seconds, with all processes that the script has started. Only the first ``MAX_SCRIPTS``
  scripts run. These two limits restrict how long calls can be delayed.
- A script runs as root if its file belongs to root and only root may write the file. Every other script runs as ``user``.
- The file ``LOG`` contains the first ``MAX_LOG_BYTES`` of the scripts' output. The file is replaced after each wake for which scripts
  run.
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.errors import RpcError
from sandlot.guest.loop import READ
from sandlot.guest.pipes import open_pipe
from sandlot.guest.process.accounts import lookup_account
from sandlot.guest.process.procfs import kill_tree
from sandlot.protocol.fast_imports import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage

    from sandlot.guest.identity import SandboxIdentity
    from sandlot.guest.loop import Loop
    from sandlot.guest.process.spawn import Spawner
    from sandlot.guest.rpc import RpcServer

FOLDER = "/etc/sandlot/wake.d"
LOG = "/var/log/sandlot-wake.log"
MAX_LOG_BYTES = 64 * 1024
TIMEOUT_S = 2.0
MAX_SCRIPTS = 16
MAX_READS = 4
"""Maximum number of reads in a row from a script's output pipe. Because of this limit, a script with much output delays no other work."""
MAX_NAMES = 1000
"""Maximum number of entries of ``FOLDER`` that are examined, in the order of their names. Further entries are ignored."""


class WakeScripts:
    """Runs the wake scripts one after the other.

    Args:
        loop: The guest's loop.
        spawner: Starts the scripts.
        identity: Source of the sandbox id and of fresh entropy, which each script finds in its environment.
        rpc: Server of the calls. Until the last script has ended, it delays calls that start a process, a kernel or a cell.
    """

    __slots__ = ("_identity", "_log", "_loop", "_rpc", "_running", "_spawner", "_waiting")

    def __init__(self, loop: Loop, spawner: Spawner, identity: SandboxIdentity, rpc: RpcServer) -> None:
        self._loop = loop
        self._spawner = spawner
        self._identity = identity
        self._rpc = rpc
        self._waiting: list[tuple[str, str]] = []
        self._running: RunningScript | None = None
        self._log = bytearray()

    def start(self) -> None:
        """Begin to run all scripts, without waiting for their end. If a script of an earlier wake still runs, kill it first."""
        if self._running is not None:
            self._running.abandon()
            self._running = None
        self._waiting = find_scripts()
        if self._waiting:
            self._log.clear()
            self._rpc.hold_starts()
            self._run_next()

    def _run_next(self) -> None:
        while self._waiting and self._running is None:
            path, user = self._waiting.pop(0)
            self._add_to_log(f"{path} as {user}:\n".encode("utf-8", "replace"))
            try:
                self._run(path, user)
            except (OSError, RpcError) as error:
                self._add_to_log(f"[{error}]\n".encode("utf-8", "replace"))
        if self._running is None:
            _write_log(self._log)
            self._log.clear()
            self._rpc.release_starts()

    def _run(self, path: str, user: str) -> None:
        env = {"SANDLOT_ENTROPY": self._identity.fresh_entropy().hex(), "SANDLOT_SANDBOX_ID": self._identity.sandbox_id}
        read, write = open_pipe()
        script = RunningScript(self._loop, read, self._add_to_log, self._on_ended)
        try:
            script.pid = self._spawner.spawn([path], lookup_account(user), (self._spawner.dev_null, write, write), script, env=env, cwd="/")
        except BaseException:
            script.close()
            raise
        finally:
            os.close(write)
        self._running = script

    def _on_ended(self) -> None:
        self._running = None
        self._run_next()

    def _add_to_log(self, data: bytes) -> None:
        self._log += data[: MAX_LOG_BYTES - len(self._log)]


class RunningScript:
    """One running wake script, its output and its timeout.

    Args:
        loop: The guest's loop.
        fd: Read end of the pipe with the script's output; ownership passes to this object.
        add_to_log: Called with each piece of output.
        on_ended: Called once when the script has ended. Not called after :meth:`abandon`.

    Attributes:
        pid: Process id of the script; 0 until the caller sets it.
    """

    __slots__ = ("_add_to_log", "_fd", "_is_abandoned", "_loop", "_on_ended", "_timer", "pid")

    def __init__(self, loop: Loop, fd: int, add_to_log: Callable[[bytes], object], on_ended: Callable[[], object]) -> None:
        self._loop = loop
        self._fd = fd
        self._add_to_log = add_to_log
        self._on_ended = on_ended
        self._is_abandoned = False
        self.pid = 0
        os.set_blocking(fd, False)
        loop.watch(fd, READ, lambda _mask: self._read())
        self._timer = loop.call_later(TIMEOUT_S, self._on_timeout)

    def on_exit(self, status: int, _usage: struct_rusage) -> None:
        """Handle the end of the script: log the rest of its output, and log its exit status or signal if it has failed.

        Args:
            status: Status of wait(2).
        """
        if self._is_abandoned:
            return
        self._read()
        if status:
            how = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"
            self._add_to_log(f"[{how}]\n".encode())
        self.close()
        self._on_ended()

    def on_killed(self, _reason: str) -> None:
        """Do nothing when the guest kills the script: ``on_exit`` follows and logs the signal."""

    def abandon(self) -> None:
        """Kill the script and its descendants, and do not call ``on_ended``."""
        self._is_abandoned = True
        kill_tree(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Close the pipe with the output, and cancel the timeout. Idempotent."""
        self._timer.cancel()
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_timeout(self) -> None:
        self._add_to_log(f"[killed after {TIMEOUT_S:g} s]\n".encode())
        kill_tree(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        """Read output of the script, even if the log is full, so that the script does not block on a full pipe."""
        for _ in range(MAX_READS):
            if self._fd < 0:
                return
            try:
                data = os.read(self._fd, MAX_LOG_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._loop.unwatch(self._fd)
                os.close(self._fd)
                self._fd = -1
                return
            self._add_to_log(data)


def find_scripts(folder: str = FOLDER) -> list[tuple[str, str]]:
    """Find the wake scripts, which are the executable regular files of a folder.

    Args:
        folder: Folder with the scripts.

    Returns:
        Path of each script and the account that it runs as (``root`` or ``user``), in the order in which the scripts run. Empty if
        the folder does not exist.
    """
    try:
        names = sorted(os.listdir(folder))[:MAX_NAMES]
    except OSError:
        return []
    found = []
    for name in names:
        path = f"{folder}/{name}"
        try:
            about = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode) and about.st_mode & 0o111:
            is_roots = about.st_uid == 0 and not about.st_mode & 0o022
            found.append((path, "root" if is_roots else "user"))
    return found[:MAX_SCRIPTS]


def _write_log(text: bytearray) -> None:
    """Write the log as a new file at ``LOG``. A file, link or special file that exists there is removed first, never written to."""
    try:
        os.makedirs(os.path.dirname(LOG), 0o755, exist_ok=True)
        if os.path.lexists(LOG):
            os.unlink(LOG)
        fd = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError:
        return
    try:
        os.write(fd, text)
    except OSError:
        pass
    finally:
        os.close(fd)
