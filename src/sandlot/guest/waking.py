"""The lives of a sandbox: whom it is woken as, what it brings along from the life before, and what goes before a checkpoint.

Laws:
- Asleep it serves nothing but ``guest.wake``. What runs inside runs on; timers stand still until then.
- Woken under the name that it had, it is the same sandbox, hibernated or left by a service that was killed: calls, processes and cells
  are remembered, and who attaches to one finds it. Under another name it is a copy: what is over is forgotten, and cells that waited
  are not run, because whoever sent them waits for another sandbox. What runs belongs to the copy, and goes on.
- Every wake brings fresh randomness for the kernel of the system and for each kernel of cells, before its next cell; no two of them
  get the same, in this sandbox or in another.
- The environment of what is started from now on is that of this wake and nothing of the one before.
"""

from __future__ import annotations

import os

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.loop import log
from sandlot.guest.kernels.languages import changed, find_python
from sandlot.guest.spawn import account, environment
from sandlot.protocol.fast_imports import blake2b, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.calls import Call
    from sandlot.guest.flow.loop import Timer
    from sandlot.guest.main import Guest
    from sandlot.guest.spawn import Account


class Waking:
    """Falls asleep, wakes, is held."""

    __slots__ = ("_deadline", "_drawn", "_found", "_guest", "_seed", "began_s", "identity")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._deadline: Timer | None = None
        self._seed = b""
        self._drawn = 0
        self._found: tuple[str | None, dict[str, int], Account, str | None] | None = None
        self.identity = ""
        """As whom it was woken last; empty before the first time."""
        self.began_s = guest.loop.time()
        """When it became who it is, by the loop's time."""
        guest.calls.handlers.update(
            {
                "guest.wake": self.wake,
                "guest.checkpoint": self.checkpoint,
                "guest.deadline": self.set_deadline,
            }
        )

    def wake(self, call: Call) -> None:
        """``guest.wake``."""
        guest, args = self._guest, call.args
        if not guest.wire.connection.asleep:
            raise Refusal("conflict", "The guest is awake already.")
        before, self.identity = self.identity, args["identity"]
        guest.loop.release()
        if before and before != self.identity:
            self._part()
        guest.env = args["env"]
        # The clock needs no setting: gVisor and a container read the host's, also after a restore. A microVM's guest sets it here.
        _set_hostname(args["hostname"])
        self._seed = args["entropy"]
        _stir(self._seed)
        guest.pids.set(args["pids"])
        _make_tmp()
        self._make_workspace(args["workspace"])
        self._arm(args["deadline_s"])
        guest.wire.connection.asleep = guest.wire.connection.armed = False
        env, python = self._find()
        guest.kernels.woken(args["memory_bytes"], env, python)
        if before:
            guest.hooks.begin()
        call.result(python=python)

    def checkpoint(self, call: Call) -> None:
        """``guest.checkpoint``: one is about to be taken, or has been."""
        armed = call.args["armed"]
        self._guest.wire.connection.armed = armed
        if armed:
            self._guest.loop.hold()
        else:
            self._guest.loop.release()
        call.result()

    def rested(self) -> None:
        """It fell asleep: nobody is served, and no time passes."""
        self._guest.loop.hold()

    def draw(self) -> bytes:
        """64 bytes that nobody else was or will be given."""
        self._drawn += 1
        return blake2b(b"%b%d:%b" % (self._seed, self._drawn, os.urandom(32))).digest()

    def set_deadline(self, call: Call) -> None:
        """``guest.deadline``."""
        self._arm(call.args["deadline_s"])
        call.result()

    def _part(self) -> None:
        """A copy of another sandbox, or a template's: from now on it is on its own."""
        guest = self._guest
        guest.calls.forget_all()
        guest.processes.forget_past()
        guest.kernels.part()
        self.began_s = guest.loop.time()

    def _find(self) -> tuple[dict[str, str], str | None]:
        """The whole environment of the user, and the image's python.

        To look for both takes some twenty files and folders, 5 ms in gVisor. So what they were found in is remembered, and when it last
        changed: the next wake of the same image looks at that alone.
        """
        given = self._guest.env
        path = given.get("PATH")
        if self._found is not None and self._found[0] == path and changed(self._found[1]) == self._found[1]:
            return environment(self._found[2], given), self._found[3]
        places = changed(("/etc/passwd", "/etc/group"))
        who = account("user")
        env = environment(who, given)
        places.update(changed(env["PATH"].split(":")))
        self._found = path, places, who, find_python(env)
        return env, self._found[3]

    def _make_workspace(self, path: str) -> None:
        try:
            if not os.path.isdir(path):
                who = account("user")
                os.makedirs(path, 0o755)
                os.chown(path, who.uid, who.gid)
            self._guest.workspace = path
        except OSError as error:
            log(f"no workspace {path}: {error}")
            self._guest.workspace = account("user").home

    def _arm(self, deadline_s: float | None) -> None:
        """The guest ends by itself when its deadline passes unheard, whatever became of the service."""
        loop = self._guest.loop
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if deadline_s is None else loop.after(deadline_s, loop.stop)


def _make_tmp() -> None:
    """A folder for everybody's passing files, which programs count on, where an image has none (gVisor makes one itself)."""
    try:
        os.mkdir("/tmp")
        os.chmod("/tmp", 0o1777)  # noqa: S103 - likewise
    except OSError:
        return


def _set_hostname(name: str) -> None:
    if socket.gethostname() == name:  # a container was given it, and may not change it
        return
    try:
        socket.sethostname(name)
    except OSError as error:
        log(f"hostname: {error}")


def _stir(entropy: bytes) -> None:
    """Mix the host's randomness into the kernel's, so that clones of one snapshot part ways (random(4))."""
    try:
        fd = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, entropy)
    except OSError:
        pass
    finally:
        os.close(fd)
