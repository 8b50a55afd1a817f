"""One process: followed by offset, fed, waited for, told when its terminal or its pipes have given all.

Law: The answer comes when the process itself has ended and its output was read; children that it left behind keep their
pipes, and their output is kept for readers that come later. Who only waits is told at once, whoever else reads slowly.
"""

from __future__ import annotations

import os

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.outputs import HOLD_S, Outputs
from sandlot.guest.tasks import hang_up, kill_tree
from sandlot.guest.terminals import resize
from sandlot.protocol.fast_imports import signal
from sandlot.protocol.schema import STDERR, STDIN, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage
    from typing import Any

    from sandlot.guest.calls import Call
    from sandlot.guest.flow.outputs import Reader
    from sandlot.guest.flow.pipes import InputPipe, OutputPipe
    from sandlot.guest.main import Guest

SHOWN_ARGUMENTS = 64
SHOWN_ARGUMENT = 512
ARRIVAL_S = 3.0
"""How soon whoever starts a program on a terminal looks at it: so long nothing of it is dropped."""
LINGER_S = 0.05
"""How long output that comes after the end of a process itself is waited for where somebody still holds the pipe."""


class Process:
    """One process that the host asked for, running or remembered."""

    __slots__ = (
        "_cpu_s",
        "_guest",
        "_peak_bytes",
        "argv",
        "duration_s",
        "exit_code",
        "finished",
        "hidden",
        "id",
        "input",
        "is_terminal",
        "outputs",
        "pid",
        "pipes",
        "readers",
        "reason",
        "signal",
        "started_s",
        "timer",
        "waiting",
    )

    def __init__(self, guest: Guest, id_: str, args: dict[str, Any]) -> None:
        self._guest = guest
        self.id = id_
        self.argv: list[str] = args["argv"]
        self.hidden = bool(args["hidden"])
        self.is_terminal = args["rows"] is not None and args["cols"] is not None
        self.pid = 0
        self.started_s = guest.loop.time()
        self.duration_s = 0.0
        self._cpu_s: float | None = None
        self._peak_bytes: int | None = None
        self.outputs = Outputs((STDOUT, STDERR))
        self.pipes: list[OutputPipe] = []
        self.input: InputPipe | None = None
        self.readers: list[tuple[Call, Reader]] = []
        self.waiting: list[Call] = []
        self.timer: Any = None
        self.reason: str | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.finished = False

    @property
    def running(self) -> bool:
        """Whether the process itself has not been reaped."""
        return self.exit_code is None and self.signal is None

    def attach(self, call: Call, stdout_from: int | None, stderr_from: int | None) -> None:
        """Let a call follow the output and get the result."""
        wanted = {STDOUT: stdout_from, STDERR: stderr_from}
        if not self.outputs.has(wanted):
            raise Refusal("invalid_request", "The offset is beyond what the process has written.", "Use an offset that was given before.")
        call.event("started", pid=self.pid)
        reader = self.outputs.attach(call, wanted)
        entry = (call, reader)
        self.readers.append(entry)
        call.on_bytes = lambda channel, data, credit: self.feed(call, channel, data, credit)
        call.on_end = self.end_input
        call.on_writable = self.pump
        call.on_gone = lambda: self._detached(entry)
        self.pump()

    def wait(self, call: Call) -> None:
        """Let a call get the result, and nothing of the output."""
        if not self.running:
            call.result(**self.result())
            return
        self.waiting.append(call)
        call.on_gone = lambda: self.waiting.remove(call)

    def pump(self) -> None:
        """Send what can be sent, and answer where all is done."""
        for entry in list(self.readers):
            call, reader = entry
            if reader.pump(self.outputs.buffers) and self.finished:
                self.readers.remove(entry)
                self.outputs.detach(reader)
                call.on_gone = None
                call.result(**self.result())
        self.refresh()

    def refresh(self) -> None:
        """Read on, or stop, as readers come and go."""
        for pipe in self.pipes:
            pipe.refresh()

    def result(self) -> dict[str, Any]:
        """What ``process.start``, ``process.attach`` and ``process.wait`` give."""
        return {
            "process": self.id,
            "pid": self.pid,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "duration_s": self.duration_s,
            "cpu_s": self._cpu_s,
            "peak_bytes": self._peak_bytes,
        }

    def feed(self, call: Call, channel: int, data: bytes, credit: int) -> None:
        """Bytes for standard input; the host may send more as the process reads them."""
        if channel == STDIN and self.input is not None and self.input.is_open:
            self.input.write(data, lambda: call.consumed(credit))
        else:
            call.consumed(credit)

    def end_input(self) -> None:
        """The host closed standard input."""
        if self.input is not None:
            self.input.finish()

    def reaped(self, status: int, usage: struct_rusage) -> None:
        """The process itself ended.

        Args:
            status: As wait(2) tells it.
            usage: Of it and of the children that it waited for (getrusage(2)).
        """
        if self.timer is not None:
            self.timer.cancel()
        self.duration_s = self._guest.loop.time() - self.started_s
        self._cpu_s = usage.ru_utime + usage.ru_stime
        self._peak_bytes = usage.ru_maxrss * 1024
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
            self.reason = self.reason or "signalled"
        else:
            self.exit_code = os.WEXITSTATUS(status)
            self.reason = self.reason or "exited"
        if self.input is not None:
            self.input.close()
        for pipe in self.pipes:
            pipe.settle()
        if self.is_terminal:
            hang_up(self.pid)
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call.on_gone = None
            call.result(**self.result())
        self._guest.loop.after(LINGER_S, self._lingered)
        self.changed()

    def changed(self) -> None:
        """A pipe gave something or closed: send it on, and answer where no more can come."""
        if not self.running and not any(pipe.is_open for pipe in self.pipes):
            self.finished = True
        self.pump()

    def resize(self, rows: int, cols: int) -> None:
        """Give its terminal another size.

        Raises:
            Refusal: It has none, or no such size.
        """
        if not self.is_terminal:
            raise Refusal("conflict", "The process has no terminal.", "Start it with one.")
        if self.pipes[0].is_open:
            resize(self.pipes[0].fd, rows, cols, self.pid)

    def _lingered(self) -> None:
        """Somebody who was left behind still holds a pipe: answer once what is in it now was read."""
        if self.finished:
            return
        for pipe in self.pipes:
            if pipe.is_open and not pipe.drain():
                self._guest.loop.after(LINGER_S, self._lingered)  # a slow reader is not done with what there was before
                self.pump()
                return
        self.finished = True
        if self.is_terminal:  # whoever was left behind on it is told by the kernel (EIO)
            self.pipes[0].close()
        self.pump()

    def _detached(self, entry: tuple[Call, Reader]) -> None:
        self.readers.remove(entry)
        self.outputs.detach(entry[1])
        self.hold(HOLD_S)
        self.refresh()

    def hold(self, seconds: float) -> None:
        """Drop nothing of its output for a moment, in which somebody comes to read it."""
        self.outputs.held = True
        self._guest.loop.after(seconds, self._release)

    def _release(self) -> None:
        self.outputs.held = False
        self.refresh()

    def describe(self) -> dict[str, Any]:
        """A record of ``process.list``."""
        return {
            "process": self.id,
            "pid": self.pid,
            "argv": [argument[:SHOWN_ARGUMENT] for argument in self.argv[:SHOWN_ARGUMENTS]],
            "running": self.running,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "duration_s": self._guest.loop.time() - self.started_s if self.running else self.duration_s,
            "pty": self.is_terminal,
            "stdin": self.input is not None and self.input.is_open,
            "stdin_bytes": self.input.accepted if self.input is not None else 0,
            "stdout_bytes": self.outputs.buffers[STDOUT].end,
            "stderr_bytes": self.outputs.buffers[STDERR].end,
        }

    def kill(self, reason: str) -> None:
        """Kill the process, its group and every descendant."""
        if self.running:
            self.reason = reason
            kill_tree(self.pid, signal.SIGKILL)

    def discard(self) -> None:
        """Let go of every descriptor; the memory goes with the object."""
        for pipe in self.pipes:
            pipe.close()
        if self.input is not None:
            self.input.close()
