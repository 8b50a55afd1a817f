"""Programs of the sandbox's own that run when it begins another life: executables in ``/etc/sandlot/wake.d``.

They are for generators of random numbers that long-lived programs hold: a copy of a sandbox has those in the very state that the original
has. A server can be told by one of these to seed its own anew, or be started anew.

Laws:
- They run after every wake but the first, which is the boot's, one after the other in the order of their names, before anything that the
  host asks for is started. Nothing else waits for them.
- Each has ``SECONDS``, and is killed with all that it has started then; there are ``MOST`` at most. So what waits, waits boundedly.
- Whom a program belongs to runs it: one of root's that nobody else may write runs as root, every other as ``user``.
- What they say, ``LOG_BYTES`` of it, is in ``LOG`` until the next wake.
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.loop import READ
from sandlot.guest.flow.pipes import open_pipe
from sandlot.guest.spawn import account, environment, start
from sandlot.guest.tasks import kill_tree
from sandlot.protocol.fast_imports import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.flow.loop import Timer
    from sandlot.guest.main import Guest

FOLDER = "/etc/sandlot/wake.d"
LOG = "/var/log/sandlot-wake.log"
LOG_BYTES = 64 * 1024
SECONDS = 2.0
MOST = 16
READS = 4
"""At once, lest one that says much takes the guest's time."""
NAMES = 1000
"""Of the folder that are looked at."""


class Hooks:
    """They, one at a time."""

    __slots__ = ("_fd", "_guest", "_log", "_timer", "_waiting", "pid")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._waiting: list[tuple[str, str]] = []
        self._log = bytearray()
        self._fd = -1
        self._timer: Timer | None = None
        self.pid = 0
        """The one that runs; 0 where none does."""

    def begin(self) -> None:
        """A life begins that is not the first."""
        if self.pid:
            kill_tree(self.pid, signal.SIGKILL)
            self._end()
        self._waiting = programs()
        if self._waiting:
            self._log.clear()
            self._guest.calls.hold_starts()
            self._next()

    def reaped(self, pid: int, status: int) -> bool:
        """A child ended; whether it was one of these."""
        if pid != self.pid or not pid:
            return False
        self._read()
        if status:
            how = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"
            self._note(f"[{how}]\n".encode())
        self._end()
        self._next()
        return True

    def _next(self) -> None:
        while self._waiting and not self.pid:
            path, user = self._waiting.pop(0)
            self._note(f"{path} as {user}:\n".encode("utf-8", "replace"))
            try:
                self._start(path, user)
            except (OSError, Refusal) as error:
                self._note(f"[{error}]\n".encode("utf-8", "replace"))
        if not self.pid:
            self._keep_log()
            self._guest.calls.release_starts()

    def _start(self, path: str, user: str) -> None:
        who, waking = account(user), self._guest.waking
        own = {"SANDLOT_ENTROPY": waking.draw().hex(), "SANDLOT_SANDBOX_ID": waking.identity}
        read, write = open_pipe()
        try:
            self.pid = start([path], environment(who, self._guest.env, own), "/", who, (self._guest.dev_null, write, write))
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._fd = read
        os.set_blocking(read, False)
        self._guest.loop.watch(read, READ, lambda _mask: self._read())
        self._timer = self._guest.loop.after(SECONDS, self._late)
        self._guest.pids.watch()

    def _late(self) -> None:
        self._note(f"[killed after {SECONDS:g} s]\n".encode())
        kill_tree(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        """Take some of what it said; what nobody will keep is taken as well, so that it goes on."""
        for _ in range(READS):
            if self._fd < 0:
                return
            try:
                data = os.read(self._fd, LOG_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close()
                return
            self._note(data)

    def _note(self, data: bytes) -> None:
        self._log += data[: LOG_BYTES - len(self._log)]

    def _end(self) -> None:
        self.pid = 0
        self._close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if self._fd >= 0:
            self._guest.loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _keep_log(self) -> None:
        """Under its name, as a new file: nothing that lies there is written to, whatever it is."""
        try:
            os.makedirs(os.path.dirname(LOG), 0o755, exist_ok=True)
            if os.path.lexists(LOG):
                os.unlink(LOG)
            fd = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError:
            return
        try:
            os.write(fd, self._log)
        except OSError:
            pass
        finally:
            os.close(fd)
        self._log.clear()


def programs(folder: str = FOLDER) -> list[tuple[str, str]]:
    """What is to be run, in order, and as whom.

    Args:
        folder: Where to look.
    """
    try:
        names = sorted(os.listdir(folder))[:NAMES]
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
            roots = about.st_uid == 0 and not about.st_mode & 0o022
            found.append((path, "root" if roots else "user"))
    return found[:MOST]
