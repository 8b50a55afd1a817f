"""Processes: started for the host, followed by offset, signalled and timed out as whole groups, reaped.

Laws:
- A process is known by the id of the call that started it; the same id started twice is one process.
- Each has its own session and process group. A timeout or a signal reaches the group and every descendant that left it.
- The answer comes when the process itself has ended and its output was read; children that it left behind keep their
  pipes, and their output is kept for readers that come later. Who only waits is told at once, whoever else reads slowly.
- The last ``KEPT`` finished processes, and at most ``KEPT_BYTES`` of their output, are remembered.
"""

from __future__ import annotations

import os
import time

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.lean import signal
from sandlot.guest.flow.outputs import HOLD_S, Outputs
from sandlot.guest.flow.pipes import InputPipe, OutputPipe, open_pipe
from sandlot.guest.spawn import account, environment, start
from sandlot.guest.tasks import kill_tree
from sandlot.protocol.lean import OrderedDict
from sandlot.protocol.schema import LIMITS, STDERR, STDIN, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.calls import Call
    from sandlot.guest.flow.outputs import Reader
    from sandlot.guest.main import Guest

KEPT = 64
LAST_SIGNAL = 64
SHOWN_ARGUMENTS = 64
SHOWN_ARGUMENT = 512
KEPT_BYTES = 16 * 1024 * 1024
LINGER_S = 0.05
"""How long output that comes after the end of a process itself is waited for where somebody still holds the pipe."""


class Process:
    """One process that the host asked for, running or remembered."""

    __slots__ = (
        "_guest",
        "argv",
        "duration_s",
        "exit_code",
        "finished",
        "id",
        "input",
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

    def __init__(self, guest: Guest, id_: str, argv: list[str]) -> None:
        self._guest = guest
        self.id = id_
        self.argv = argv
        self.pid = 0
        self.started_s = time.monotonic()
        self.duration_s = 0.0
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

    def reaped(self, status: int) -> None:
        """The process itself ended."""
        if self.timer is not None:
            self.timer.cancel()
        self.duration_s = time.monotonic() - self.started_s
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
            self.reason = self.reason or "signalled"
        else:
            self.exit_code = os.WEXITSTATUS(status)
            self.reason = self.reason or "exited"
        if self.input is not None:
            self.input.close()
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
        self.pump()

    def _detached(self, entry: tuple[Call, Reader]) -> None:
        self.readers.remove(entry)
        self.outputs.detach(entry[1])
        self.outputs.held = True
        self._guest.loop.after(HOLD_S, self._release)
        self.refresh()

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


class Processes:
    """All processes that the host asked for."""

    __slots__ = ("_by_id", "_by_pid", "_guest")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._by_id: OrderedDict[str, Process] = OrderedDict()
        self._by_pid: dict[int, Process] = {}
        guest.calls.handlers.update(
            {
                "process.start": self.start,
                "process.attach": self.attach,
                "process.wait": self.wait,
                "process.signal": self.send_signal,
                "process.list": self.list_all,
                "process.forget": self.forget,
            }
        )

    def start(self, call: Call) -> None:
        """``process.start``."""
        process = self._by_id.get(call.id)
        if process is None:
            process = self._spawn(call.id, call.args)
        if call.args["attach"]:
            process.attach(call, 0, 0)
        else:
            call.result(**process.result())

    def attach(self, call: Call) -> None:
        """``process.attach``."""
        self._find(call).attach(call, call.args["stdout_from"], call.args["stderr_from"])

    def wait(self, call: Call) -> None:
        """``process.wait``."""
        self._find(call).wait(call)

    def send_signal(self, call: Call) -> None:
        """``process.signal``: to the group and every descendant."""
        process = self._find(call)
        number = call.args["signal"]
        if not 1 <= number <= LAST_SIGNAL:
            raise Refusal("invalid_request", f"There is no signal {number}.", "Use 1 to 64.")
        running = process.running
        if running:
            kill_tree(process.pid, number)
        call.result(running=running)

    def list_all(self, call: Call) -> None:
        """``process.list``."""
        newest = list(self._by_id.values())[-LIMITS["processes"] :]
        call.result(processes=[process.describe() for process in newest])

    def forget(self, call: Call) -> None:
        """``process.forget``: a finished one."""
        process = self._find(call)
        if process.running:
            raise Refusal("conflict", "The process is still running.", "Signal it first.")
        self._drop(process)
        call.result()

    def reaped(self, pid: int, status: int) -> bool:
        """A child ended; whether it was one of these."""
        process = self._by_pid.pop(pid, None)
        if process is None:
            return False
        process.reaped(status)
        self._trim()
        return True

    def running(self) -> list[Process]:
        """Those not reaped yet."""
        return list(self._by_pid.values())

    def _find(self, call: Call) -> Process:
        process = self._by_id.get(call.args["process"])
        if process is None:
            raise Refusal(
                "process_not_found", f"There is no process {call.args['process'][:64]!r}.", "It may have been forgotten: list the processes."
            )
        return process

    def _spawn(self, id_: str, args: dict[str, Any]) -> Process:
        if not args["argv"] or not args["argv"][0]:
            raise Refusal("invalid_request", "The command is empty.")
        who = account(args["user"])
        process = Process(self._guest, id_, args["argv"])
        opened: list[int] = []
        try:
            out_read, out_write = open_pipe(roomy=True)
            opened += [out_read, out_write]
            err_read, err_write = open_pipe(roomy=True)
            opened += [err_read, err_write]
            if args["stdin"]:
                in_read, in_write = open_pipe()
                opened += [in_read, in_write]
            else:
                in_read, in_write = self._guest.dev_null, -1
            env = environment(who, self._guest.env, args["env"])
            process.pid = start(args["argv"], env, args["cwd"] or self._guest.workspace, who, (in_read, out_write, err_write))
        except OSError as error:
            for fd in opened:
                os.close(fd)
            raise Refusal("limit_exceeded", f"No pipe could be made: {error.strerror}.", "End some processes.") from None
        except Refusal:
            for fd in opened:
                os.close(fd)
            raise
        os.close(out_write)
        os.close(err_write)
        if args["stdin"]:
            os.close(in_read)
            process.input = InputPipe(self._guest.loop, in_write)
        for fd, channel in ((out_read, STDOUT), (err_read, STDERR)):
            process.pipes.append(OutputPipe(self._guest.loop, fd, channel, process.outputs, process.changed))
        if args["timeout_s"] is not None:
            process.timer = self._guest.loop.after(args["timeout_s"], lambda: process.kill("timeout"))
        self._by_id[id_] = process
        self._by_pid[process.pid] = process
        self._guest.pids.watch()
        return process

    def _trim(self) -> None:
        """Forget the oldest finished ones that nobody reads, beyond what is kept."""
        done = [process for process in self._by_id.values() if process.finished and not process.readers]
        kept = sum(process.outputs.kept_bytes for process in self._by_id.values())
        count = len(self._by_id)
        for process in done:
            if count <= KEPT and kept <= KEPT_BYTES:
                return
            kept -= process.outputs.kept_bytes
            count -= 1
            self._drop(process)

    def _drop(self, process: Process) -> None:
        process.discard()
        self._by_id.pop(process.id, None)
        self._guest.calls.past(process.id, "process.start")
