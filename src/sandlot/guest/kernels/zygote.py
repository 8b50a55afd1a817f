"""The zygote: the process that has imported what kernels import, and that they are forked from. Here is how it is spoken to.

Law: It runs as ``user`` and may say anything: a message that is none ends it.
"""

from __future__ import annotations

import os
import struct

from sandlot.guest.kernels import languages
from sandlot.guest.loop import READ
from sandlot.guest.process.accounts import USER_UID, lookup_account
from sandlot.guest.process.procfs import ProcStat, kill_tree, send_signal
from sandlot.protocol import values
from sandlot.protocol.fast_imports import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandlot.guest.kernels.services import KernelServices

WARM, MESSAGE_BYTES = "numpy,pandas,matplotlib", 4096
FD = struct.Struct("i")


class Zygote:
    """The process that kernels are forked from."""

    __slots__ = ("_guest", "_messages", "_on_end", "_on_message", "_socket", "env", "given", "is_still", "is_up", "is_warm", "pid", "python", "seen")

    def __init__(
        self,
        guest: KernelServices,
        env: dict[str, str],
        seen: dict[str, int],
        on_message: Callable[[dict[str, Any]], object],
        on_end: Callable[[], object],
    ) -> None:
        self._guest = guest
        self._on_message = on_message
        self._on_end = on_end
        self._messages = values.MessageReader(MESSAGE_BYTES)
        self.env = languages.early(env)
        self.python = languages.find_python(env)
        self.given = guest.identity.env
        self.seen = seen
        self.is_up = False
        self.is_warm = False
        self.is_still = False
        ours, theirs = socket.socketpair()
        try:
            argv = [*languages.argv("python", env), "--zygote", str(theirs.fileno()), "--warm", WARM]
            null = guest.spawner.dev_null
            self.pid = guest.spawner.spawn(argv, lookup_account("user"), (null, null, null), None, env=env, keep=[theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket = ours
        guest.loop.watch(ours.fileno(), READ, lambda _mask: self._read())

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> bool:
        """Say something short, with descriptors; whether it was taken."""
        data = values.encode_message(message)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(FD.pack(fd) for fd in fds))] if fds else []
        try:
            return self._socket.sendmsg([data], rights) == len(data)
        except OSError:
            return False

    def _read(self) -> None:
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._messages.feed(data)
        try:
            for message in self._messages.messages():
                self._on_message(message)
                if self._socket.fileno() < 0:
                    return
        except (values.BadValue, LookupError, TypeError, ValueError):
            data = b""
        if not data:
            self._on_end()

    def hold(self, *, still: bool) -> None:
        """Let it stand still, or go on. Idempotent."""
        if still != self.is_still:
            self.is_still = still
            send_signal(self.pid, signal.SIGSTOP if still else signal.SIGCONT)

    def close(self) -> None:
        """End it; what it has forked lives on. Idempotent."""
        if self._socket.fileno() >= 0:
            self._guest.loop.unwatch(self._socket.fileno())
            self._socket.close()
            kill_tree(self.pid, signal.SIGKILL)


def may_be_forked(pid: Any) -> bool:
    """Whether what a zygote calls a kernel that it forked can be one: a child of PID 1's, of that user, that lives."""
    if type(pid) is not int or pid <= 1:
        return False
    try:
        if os.stat(f"/proc/{pid}").st_uid != USER_UID:
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
