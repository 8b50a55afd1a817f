"""The bash kernel: drives one bash that keeps its variables, functions, folder, options and jobs from cell to cell.

Started as ``kernel.py FD`` on the guest's own interpreter, so that an image needs bash and nothing else; FD is a socket to the guest.
What bash itself does is in ``init.bash``. Its commands write to this program's own standard output and error, which are the
guest's pipes; nothing is copied here.

Laws:
- A cell's result is the exit status of its last command: 0 is success, another one the error ``ExitStatus`` with the number as its value.
- SIGINT ends the command in the foreground and the rest of the cell; the shell and its background jobs live on. It is said again
  until the cell is over: a command that outlives it would have the next one run.
- ``set -e`` ends a cell, not the shell. ``exit`` ends the shell: the cell says so, and the next one has a new shell.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import values  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BASH = "/bin/bash"
RC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "init.bash")
GO, OVER, ERRORS, TEXTS = 60, 61, 62, 63
"""Bash's descriptors beside the standard ones; init.bash has the same numbers."""
STDERR = 2
AGAIN_MS = 400
"""How long after an interrupt the next one comes while the cell goes on."""
LEADS = os.getpgrp() == os.getpid()
"""True if the group is the kernel's own: the guest's start makes it so."""
SIGNALLED = 128
"""What a shell adds to the number of the signal that ended a command."""


class Shell:
    """One bash process.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self) -> None:
        self.texts = os.memfd_create("cell")
        go_read, self.go = os.pipe()
        self.over, over_write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        inherited = [(null, 0), (STDERR, ERRORS), (null, STDERR), (go_read, GO), (over_write, OVER), (self.texts, TEXTS)]
        try:
            self.pid = os.posix_spawn(
                BASH,
                ["bash", "--noprofile", "--rcfile", RC, "-i"],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for source, target in inherited],
                setsigdef=[signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ],  # python ignores the last two, and exec(2) would pass that on
            )
        finally:
            for fd in (go_read, over_write, null):
                os.close(fd)
        self._heard = b""
        self._number = 0
        self._is_ready = False
        self._is_busy = False
        self.is_mute = False

    def run(self, before: str, code: str) -> None:
        """Run a cell.

        Args:
            before: Commands of ours before it.
            code: The cell; without NULs.
        """
        self._number += 1
        self._is_busy = True
        os.ftruncate(self.texts, 0)
        parts = (str(self._number), before, code)
        text = memoryview(b"".join(part.encode("utf-8", "surrogateescape") + b"\0" for part in parts))
        at = 0
        while at < len(text):
            at += os.pwrite(self.texts, text[at:], at)
        self._go()

    def _go(self) -> None:
        os.lseek(self.texts, 0, os.SEEK_SET)  # bash has the same open file
        try:
            os.write(self.go, b"%d\n" % self._number)
        except BrokenPipeError:
            return  # it has just ended, and is about to be reaped

    def heard(self) -> tuple[str, int] | None:
        """How the cell ended, done or abandoned, and its exit status; None where it has not."""
        data = os.read(self.over, 4096)
        if not data:
            # It has ended, or cannot tell any more that a cell has.
            self.is_mute = True
            os.kill(self.pid, signal.SIGKILL)
            return None
        *lines, self._heard = (self._heard + data).split(b"\n")
        ended = None
        for line in lines:
            word, _, rest = line.decode("ascii", "replace").partition(" ")
            status, _, number = rest.partition(" ")
            if word == "ready":
                if self._is_ready and self._is_busy:
                    self._go()  # it was interrupted before it began the cell
                self._is_ready = True
            elif self._is_busy and number == str(self._number):
                self._is_busy = self._is_ready = False
                ended = word, int(status) if status.isdigit() else 1
        return ended

    def reap(self) -> int | None:
        """Its exit status as a shell tells it, where it has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        for fd in (self.texts, self.go, self.over):
            os.close(fd)
        return SIGNALLED + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Kernel:
    """The conversation with the guest."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._messages = values.MessageReader()
        self._count = 0
        self._shell: Shell | None = None
        self._before = ""
        self._cell: str | None = None
        self._is_interrupted = False
        self._waiting: list[dict[str, Any]] = []
        self._woken, wake = os.pipe()
        for fd in (self._woken, wake):
            os.set_blocking(fd, False)
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Answer until the guest is gone."""
        self._send({"event": "ready"})
        while self._turn():
            pass

    def _turn(self) -> bool:
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        if self._shell is not None and not self._shell.is_mute:
            poll.register(self._shell.over, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(AGAIN_MS if self._is_interrupted else None)}
        if self._is_interrupted and not ready and LEADS:
            os.killpg(0, signal.SIGINT)
        numbers = os.read(self._woken, 4096) if self._woken in ready else b""
        if signal.SIGINT in numbers and self._cell is not None:
            self._is_interrupted = True
        # First what was said, then who ended: a shell that ran its last cell has told so before.
        if self._shell is not None and self._shell.over in ready:
            heard = self._shell.heard()
            if heard is not None:
                self._over(*heard)
        if signal.SIGCHLD in numbers:
            self._reap()
        return self._link.fileno() not in ready or self._receive()

    def _receive(self) -> bool:
        data = self._link.recv(1 << 20)
        if not data:
            return False
        self._messages.feed(data)
        for message in self._messages.messages():
            if message["op"] == "execute":
                self._waiting.append(message)
            elif message["op"] == "wake":
                self._wake(message)
        self._next()
        return True

    def _wake(self, message: dict[str, Any]) -> None:
        """A life begins: its environment and randomness are the shell's before its next cell, and every later shell's."""
        os.environ.update(message["env"])
        gone = [name for name in message.get("gone", ()) if is_name(name)]
        for name in gone:
            os.environ.pop(name, None)
        cwd = message.get("cwd")
        if self._shell is None and cwd:
            os.chdir(cwd)
        exports = "".join(f"export {name}={quoted(value)}\n" for name, value in message["env"].items() if is_name(name))
        exports += "".join(f"unset -v {name}\n" for name in gone)
        seed = int.from_bytes(message["entropy"][:4], "big")
        self._before += f"{exports}RANDOM={seed}\n"
        if self._shell is None:
            try:
                self._shell = Shell()  # so that it is there when the first cell comes
            except OSError:
                return  # the first cell tries again, and says why

    def _next(self) -> None:
        if self._cell is not None or not self._waiting:
            return
        message = self._waiting.pop(0)
        self._cell = message["cell"]
        self._is_interrupted = False
        if message.get("store_history", True) and not message.get("silent", False):
            self._count += 1
        self._tell({"event": "started", "count": self._count})
        code = message["code"]
        if "\0" in code:
            self._fail("ValueError", "A cell of bash cannot have NUL characters.")
            return
        try:
            if self._shell is None:
                self._shell = Shell()
        except OSError as error:
            self._fail("KernelError", f"bash cannot be started: {error.strerror}.")
            return
        lent = "".join(f"__sandlot_lend {name} {quoted(value)}\n" for name, value in message["env"].items() if is_name(name))
        self._shell.run(self._before + lent, code)
        self._before = ""

    def _over(self, how: str, status: int) -> None:
        if self._cell is None:
            return
        # Bash may have told of the end before this program has had its own SIGINT.
        if (how == "abandoned" or self._is_interrupted) and status in (0, SIGNALLED + signal.SIGINT):
            self._fail("KeyboardInterrupt", "")
        elif status:
            self._fail("ExitStatus", str(status))
        else:
            self._done(ok=True)

    def _reap(self) -> None:
        if self._shell is None:
            return
        status = self._shell.reap()
        if status is None:
            return
        self._shell = None
        if self._cell is None:
            return
        what = f"was ended by signal {status - SIGNALLED}" if status > SIGNALLED else f"has ended with status {status}"
        self._tell({"event": "output", "channel": STDERR, "data": f"The shell {what}; the next cell begins a new one.\n".encode()})
        if status:
            self._fail("ExitStatus", str(status))
        else:
            self._done(ok=True)

    def _fail(self, name: str, value: str) -> None:
        text = f"{name}: {value}" if value else name
        self._tell({"event": "error", "name": name, "value": value, "traceback": [text]})
        self._done(ok=False)

    def _done(self, *, ok: bool) -> None:
        self._is_interrupted = False
        self._tell({"event": "done", "ok": ok, "count": self._count})
        self._cell = None
        self._next()

    def _tell(self, message: dict[str, Any]) -> None:
        self._send({**message, "cell": self._cell})

    def _send(self, message: dict[str, Any]) -> None:
        self._link.sendall(values.encode_message(message))


def is_name(text: str) -> bool:
    """True if bash can have a variable of that name."""
    return text.isascii() and text.isidentifier()


def quoted(text: str) -> str:
    """A text as one word of bash."""
    return "'" + text.replace("'", "'\\''") + "'"


def main() -> None:
    """Serve the socket named on the command line."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    try:
        Kernel(link).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the guest is gone
    if LEADS:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
