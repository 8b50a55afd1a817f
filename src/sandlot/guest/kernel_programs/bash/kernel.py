"""The bash kernel: runs cells in one bash process, which keeps variables, functions, directory, options and jobs from cell to cell.

The guest starts this program as ``kernel.py FD``, where FD is the socket to the guest. It runs on the guest's own Python interpreter, so that an
image needs only bash. The bash process executes ``init.bash``. Commands of cells inherit standard output and standard error of this program,
which are pipes that the guest reads.

Invariants:
- The result of a cell is the exit status of its last command. Status 0 is success. Any other status is reported as the error ``ExitStatus``,
  with the status as its value.
- SIGINT ends the foreground command and the rest of the cell. The shell and its background jobs continue. The signal is repeated until the
  cell ends, because bash runs the next command of the cell if a command survives the signal.
- After ``set -e``, a failed command ends the cell, not the shell.
- Settings of cells, such as options, traps, ``TMOUT``, ``PROMPT_COMMAND``, and functions named like builtins, do not end the shell.
- ``exit`` ends the shell, and so does ``exec`` with a program. The standard error of the cell then says that the shell has ended, and the next
  cell starts a new shell. If the shell ends between two cells, the standard error of the second cell says so.
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
RCFILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "init.bash")
COMMANDS_FD, EVENTS_FD, STDERR_FD, CELL_FD, NULL_FD, TRAPS_FD, STATE_FD = range(760, 767)
"""Descriptor numbers inside bash, in addition to 0, 1 and 2. ``init.bash`` uses the same numbers and explains them."""
STDERR = 2
MAX_TRAPS_BYTES = 1 << 20
INTERRUPT_AGAIN_MS = 400
"""Milliseconds after which SIGINT is sent again if the cell has not ended."""
LEADS_GROUP = os.getpgrp() == os.getpid()
"""True if this process leads its process group, as it does when the guest has started it. Signals may then be sent to the whole group."""
SIGNAL_STATUS = 128
"""If signal N ends a command, bash gives the command the exit status ``SIGNAL_STATUS`` + N."""


class Shell:
    """One bash process, which runs cells as ``init.bash`` describes.

    Attributes:
        pid: Pid of the bash process.
        cell_fd: Descriptor of a memory file with the text of the cell (memfd_create(2)).
        traps_fd: Descriptor of a memory file with commands that set the DEBUG and RETURN traps of the last cell again.
        commands_fd: Descriptor of the write end of the pipe on which bash gets the number of the next cell.
        events_fd: Descriptor of the read end of the pipe on which bash reports that it is ready and that a cell has ended.
        is_mute: True if the write end of the pipe of ``events_fd`` is closed in all processes, so that bash can no longer report anything.

    Raises:
        OSError: bash cannot be started.
    """

    def __init__(self) -> None:
        self.cell_fd, self.traps_fd, state_fd = (os.memfd_create(name) for name in ("cell", "traps", "state"))
        commands_read, self.commands_fd = os.pipe()
        self.events_fd, events_write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        inherited = [(null, 0), (STDERR, STDERR_FD), (null, STDERR), (commands_read, COMMANDS_FD), (events_write, EVENTS_FD)]
        inherited += [(self.cell_fd, CELL_FD), (null, NULL_FD), (self.traps_fd, TRAPS_FD), (state_fd, STATE_FD)]
        try:
            self.pid = os.posix_spawn(
                BASH,
                ["bash", "--noprofile", "--rcfile", RCFILE, "-i"],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for source, target in inherited],
                setsigdef=[signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores the last two; otherwise bash would too
            )
        finally:
            for fd in (commands_read, events_write, null, state_fd):
                os.close(fd)
        self._partial_line = b""
        self._number = 0
        self._is_ready = False
        self._is_busy = False
        self.is_mute = False

    def run(self, before: str, code: str) -> None:
        """Start a cell in bash, without waiting for its end.

        Args:
            before: Commands of the kernel that bash runs before the cell, such as exports of variables.
            code: Code of the cell; must not contain NUL characters.
        """
        self._number += 1
        self._is_busy = True
        os.ftruncate(self.cell_fd, 0)
        traps = os.pread(self.traps_fd, MAX_TRAPS_BYTES, 0)
        if traps:
            os.ftruncate(self.traps_fd, 0)
            os.lseek(self.traps_fd, 0, os.SEEK_SET)
        parts = (b"%d" % self._number, encode(before), encode(code), traps)
        text = memoryview(b"".join(part + b"\0" for part in parts))
        at = 0
        while at < len(text):
            at += os.pwrite(self.cell_fd, text[at:], at)
        self._start_cell()

    def _start_cell(self) -> None:
        os.lseek(self.cell_fd, 0, os.SEEK_SET)  # bash shares the file offset
        try:
            os.write(self.commands_fd, b"#%d\n" % self._number)
        except BrokenPipeError:
            return  # bash has ended and is about to be reaped

    def read_end(self) -> tuple[str, int] | None:
        """Read what bash has reported on ``events_fd``. Return None if the cell still runs, or if bash can no longer report anything.

        Returns:
            ``done`` if the cell has ended by itself, or ``abandoned`` if an interrupt has ended the cell; and the exit status of the cell.
        """
        data = os.read(self.events_fd, 4096)
        if not data:
            # Bash can no longer report the end of a cell: either bash has ended, or a cell has closed the descriptor for reports (EVENTS_FD).
            # In the second case bash still runs and must be killed.
            self.is_mute = True
            os.kill(self.pid, signal.SIGKILL)
            return None
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        ended = None
        for line in lines:
            word, _, rest = line.decode("ascii", "replace").partition(" ")
            status, _, number = rest.partition(" ")
            if word == "ready":
                if self._is_ready and self._is_busy:
                    self._start_cell()  # an interrupt came before bash had started the cell, so bash waits for the cell's number again
                self._is_ready = True
            elif self._is_busy and number in ("", str(self._number)):  # the number is empty if the cell has unset the shell's variables
                self._is_busy = self._is_ready = False
                ended = word, int(status) if status.isdigit() else 1
        return ended

    def reap(self) -> int | None:
        """Reap the bash process (waitpid(2)) and close its descriptors, if it has ended.

        Returns:
            Exit status of bash as ``$?`` shows it: 128 + N after signal N. None if bash still runs.
        """
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        for fd in (self.cell_fd, self.traps_fd, self.commands_fd, self.events_fd):
            os.close(fd)
        return SIGNAL_STATUS + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class BashKernel:
    """The kernel of this process: handles messages of the guest, and runs cells one after another in a :class:`Shell`.

    Args:
        channel: Socket to the guest.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._messages = values.MessageReader()
        self._count = 0
        self._shell: Shell | None = None
        self._before = ""
        self._note = ""
        self._cell: str | None = None
        self._is_interrupted = False
        self._waiting: list[dict[str, Any]] = []
        self._signals_fd, signals_write = os.pipe()
        for fd in (self._signals_fd, signals_write):
            os.set_blocking(fd, False)
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(signals_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Handle messages until the guest closes the socket."""
        self._send({"event": "ready"})
        while self._turn():
            pass

    def _turn(self) -> bool:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._signals_fd, select.POLLIN)
        if self._shell is not None and not self._shell.is_mute:
            poll.register(self._shell.events_fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(INTERRUPT_AGAIN_MS if self._is_interrupted else None)}
        if self._is_interrupted and not ready and LEADS_GROUP:
            os.killpg(0, signal.SIGINT)
        numbers = os.read(self._signals_fd, 4096) if self._signals_fd in ready else b""
        if signal.SIGINT in numbers and self._cell is not None:
            self._is_interrupted = True
        # The end of a cell is handled before the end of the shell, because bash reports the end of its last cell and then exits.
        if self._shell is not None and self._shell.events_fd in ready:
            end = self._shell.read_end()
            if end is not None:
                self._on_cell_end(*end)
        if signal.SIGCHLD in numbers:
            self._reap()
        return self._channel.fileno() not in ready or self._receive()

    def _receive(self) -> bool:
        data = self._channel.recv(1 << 20)
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
        """Set the variables of a ``wake`` message: in this process now, and in the shell before the next cell. Also seed the shell's ``RANDOM``.

        If there is no shell, the message also sets the working directory, and a shell is started.
        """
        os.environ.update(message["env"])
        removed = [name for name in message.get("gone", ()) if is_name(name)]
        for name in removed:
            os.environ.pop(name, None)
        cwd = message.get("cwd")
        if self._shell is None and cwd:
            os.chdir(cwd)
        exports = "".join(f"export {name}={quote(value)}\n" for name, value in message["env"].items() if is_name(name))
        exports += "".join(f"unset -v {name}\n" for name in removed)
        seed = int.from_bytes(message["entropy"][:4], "big")
        self._before += f"{exports}RANDOM={seed}\n"
        if self._shell is None:
            try:
                self._shell = Shell()  # started now, so that the first cell does not wait for bash
            except OSError:
                return  # the first cell tries to start bash again and reports the error

    def _next(self) -> None:
        if self._cell is not None or not self._waiting:
            return
        message = self._waiting.pop(0)
        self._cell = message["cell"]
        self._is_interrupted = False
        if message.get("store_history", True) and not message.get("silent", False):
            self._count += 1
        self._send_for_cell({"event": "started", "count": self._count})
        code = message["code"]
        if "\0" in code:
            self._fail("ValueError", "The code contains a NUL character, which bash does not allow.")
            return
        try:
            if self._shell is None:
                self._shell = Shell()
        except OSError as error:
            self._fail("KernelError", f"{BASH} cannot be started: {error.strerror}.")
            return
        if self._note:
            self._send_note(self._note)
            self._note = ""
        set_variables = "".join(f"__sandlot_set {name} {quote(value)}\n" for name, value in message["env"].items() if is_name(name))
        self._shell.run(self._before + set_variables, code)
        self._before = ""

    def _on_cell_end(self, how: str, status: int) -> None:
        if self._cell is None:
            return
        # "abandoned" means that an interrupt has ended the cell, even if this program itself has not handled SIGINT yet.
        if (how == "abandoned" or self._is_interrupted) and status in (0, SIGNAL_STATUS + signal.SIGINT):
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
        what = f"was ended by signal {status - SIGNAL_STATUS}" if status > SIGNAL_STATUS else f"has ended with status {status}"
        if self._cell is None:
            self._note = f"The shell {what} before this cell. The cell runs in a new shell.\n"
            return
        self._send_note(f"The shell {what}. The next cell starts a new shell.\n")
        if status:
            self._fail("ExitStatus", str(status))
        else:
            self._done(ok=True)

    def _send_note(self, text: str) -> None:
        self._send_for_cell({"event": "output", "channel": STDERR, "data": text.encode()})

    def _fail(self, name: str, value: str) -> None:
        text = f"{name}: {value}" if value else name
        self._send_for_cell({"event": "error", "name": name, "value": value, "traceback": [text]})
        self._done(ok=False)

    def _done(self, *, ok: bool) -> None:
        self._is_interrupted = False
        self._send_for_cell({"event": "done", "ok": ok, "count": self._count})
        self._cell = None
        self._next()

    def _send_for_cell(self, message: dict[str, Any]) -> None:
        self._send({**message, "cell": self._cell})

    def _send(self, message: dict[str, Any]) -> None:
        self._channel.sendall(values.encode_message(message))


def is_name(text: str) -> bool:
    """Return True if ``text`` is a valid name of a bash variable."""
    return text.isascii() and text.isidentifier()


def encode(text: str) -> bytes:
    """Return the bytes of a text. Bytes that are not UTF-8 are surrogates in the text."""
    return text.encode("utf-8", "surrogateescape")


def quote(text: str) -> str:
    """Return ``text`` in single quotes, so that bash reads it as one word."""
    return "'" + text.replace("'", "'\\''") + "'"


def main() -> None:
    """Run the kernel on the socket whose descriptor is the first argument, until the guest closes the socket. Then kill the whole process group."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    try:
        BashKernel(channel).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the guest has closed the socket
    if LEADS_GROUP:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
