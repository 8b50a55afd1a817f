"""One process that the host has started: its output, its input, the calls that receive its output or wait for its end, and its result.

Invariants:
- A call that receives the output receives the result after the process has ended and all output was sent to the call. If children of the
  process keep the pipes open, their later output is kept for readers that attach later.
- ``process.wait`` responds at the end of the process, even if output of the process is still to be sent to other calls.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.output import HOLD_S, OutputLog
from sandlot.guest.process.procfs import hang_up, kill_tree
from sandlot.guest.process.pty import resize
from sandlot.protocol.fast_imports import signal
from sandlot.protocol.schema import STDERR, STDIN, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage
    from typing import Any

    from sandlot.guest.loop import Loop, Timer
    from sandlot.guest.output import Reader
    from sandlot.guest.pipes import InputPipe, OutputPipe
    from sandlot.guest.rpc import Call

MAX_SHOWN_ARGUMENTS = 64
MAX_SHOWN_ARGUMENT_CHARS = 512
ARRIVAL_S = 3.0
"""Seconds after the start of a program on a terminal in which no output is dropped, because a client is expected to attach."""
LINGER_S = 0.05
"""If children of a process keep its pipes open, the result is sent this number of seconds after the end of the process, or later."""


class Process:
    """A process that the host has started. The process is running, or has finished and is remembered.

    Args:
        loop: The guest's loop.
        id_: Id of the call that started the process.
        args: Arguments of the call ``process.start``.
        on_ended: Called once when the process was reaped.
    """

    __slots__ = (
        "_cpu_s",
        "_input_calls",
        "_is_input_report_due",
        "_lacked_memory",
        "_loop",
        "_on_ended",
        "_peak_bytes",
        "_reason",
        "_waiting",
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
        "signal",
        "started_s",
        "timer",
    )

    def __init__(self, loop: Loop, id_: str, args: dict[str, Any], on_ended: Callable[[], object]) -> None:
        self._loop = loop
        self._on_ended = on_ended
        self.id = id_
        self.argv: list[str] = args["argv"]
        self.hidden = bool(args["hidden"])
        self.is_terminal = args["rows"] is not None and args["cols"] is not None
        self.pid = 0
        self.started_s = loop.time()
        self.duration_s = 0.0
        self._cpu_s: float | None = None
        self._peak_bytes: int | None = None
        self.outputs = OutputLog((STDOUT, STDERR))
        self.pipes: list[OutputPipe] = []
        self.input: InputPipe | None = None
        self.readers: list[tuple[Call, Reader]] = []
        self._waiting: list[Call] = []
        self._input_calls: list[InputCall] = []
        self._is_input_report_due = False
        self.timer: Timer | None = None
        self._reason: str | None = None
        self._lacked_memory = False
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.finished = False

    @property
    def running(self) -> bool:
        """True until the process was reaped, even if its children still run."""
        return self.exit_code is None and self.signal is None

    def attach(self, call: Call, stdout_from: int | None, stderr_from: int | None) -> None:
        """Send the output to a call from now on, and the result of the process at the end.

        Args:
            call: Call that receives output and result. Bytes that the host sends with the call are written to standard input.
            stdout_from: Offset in bytes of the first byte of standard output to send. None sends from the oldest byte that is kept.
            stderr_from: Offset in bytes of the first byte of standard error to send. None sends from the oldest byte that is kept.

        Raises:
            RpcError: ``invalid_request``: an offset is negative or lies beyond the end of the output.
        """
        wanted = {STDOUT: stdout_from, STDERR: stderr_from}
        if not self.outputs.has(wanted):
            ends = self.outputs.buffers[STDOUT].end, self.outputs.buffers[STDERR].end
            message = f"Offset {stdout_from} of standard output or {stderr_from} of standard error is not within the output so far."
            raise RpcError(
                "invalid_request", message, f"Pass an offset from 0 to {ends[0]} for standard output and from 0 to {ends[1]} for standard error."
            )
        call.event("started", pid=self.pid)
        reader = self.outputs.attach(call, wanted)
        entry = (call, reader)
        self.readers.append(entry)
        call.on_bytes = lambda channel, data, credit: self.feed(call, channel, data, credit)
        call.on_end = self.end_input
        call.on_writable = self.pump
        call.on_gone = lambda: self._detach(entry)
        self.pump()

    def wait(self, call: Call) -> None:
        """Respond to a call with the result when the process has ended, without sending output."""
        if not self.running:
            call.result(**self.result())
            return
        self._waiting.append(call)
        call.on_gone = lambda: self._waiting.remove(call)

    def open_input(self, call: Call) -> None:
        """Write the bytes of a call to standard input. Confirm the received bytes, and respond to the call when the input is closed."""
        entry = InputCall(self, call)
        self._input_calls.append(entry)
        call.on_gone = lambda: self._input_calls.remove(entry)
        self.report_input()

    def report_input(self) -> None:
        """Report the state of the input to the calls of :meth:`open_input`, once at the end of the current iteration of the loop."""
        if self._input_calls and not self._is_input_report_due:
            self._is_input_report_due = True
            self._loop.call_soon(self._send_input_reports)

    def _send_input_reports(self) -> None:
        self._is_input_report_due = False
        is_open, stdin_bytes = self.input is not None and self.input.is_open, self.input.accepted if self.input is not None else 0
        for entry in list(self._input_calls):
            if not is_open:
                self._input_calls.remove(entry)
                entry.call.on_gone = None
                entry.call.result(received=entry.received, stdin_bytes=stdin_bytes)
            elif entry.received != entry.reported and entry.call.room():
                entry.reported = entry.received
                entry.call.event("input", received=entry.received, stdin_bytes=stdin_bytes)

    def pump(self) -> None:
        """Send each reader as much output as the reader accepts, and the result after the last output."""
        for entry in list(self.readers):
            call, reader = entry
            if reader.pump(self.outputs.buffers) and self.finished:
                self.readers.remove(entry)
                self.outputs.detach(reader)
                call.on_gone = None
                call.result(**self.result())
        self._refresh_pipes()

    def result(self) -> dict[str, Any]:
        """Return the result that the calls ``process.start``, ``process.attach`` and ``process.wait`` send."""
        return {
            "process": self.id,
            "pid": self.pid,
            "reason": self._reason,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "duration_s": self.duration_s,
            "cpu_s": self._cpu_s,
            "peak_bytes": self._peak_bytes,
        }

    def describe(self) -> dict[str, Any]:
        """Return the record of the process as ``process.get`` and ``process.list`` send it."""
        return {
            "process": self.id,
            "pid": self.pid,
            "argv": [argument[:MAX_SHOWN_ARGUMENT_CHARS] for argument in self.argv[:MAX_SHOWN_ARGUMENTS]],
            "running": self.running,
            "reason": self._reason,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "duration_s": self._loop.time() - self.started_s if self.running else self.duration_s,
            "pty": self.is_terminal,
            "stdin": self.input is not None and self.input.is_open,
            "stdin_bytes": self.input.accepted if self.input is not None else 0,
            "stdout_bytes": self.outputs.buffers[STDOUT].end,
            "stderr_bytes": self.outputs.buffers[STDERR].end,
        }

    def feed(self, call: Call, channel: int, data: bytes, credit: int) -> bool:
        """Queue bytes from the host for standard input. Drop the bytes if standard input is closed or ``channel`` is not ``STDIN``.

        Return True if the bytes were queued.

        Args:
            call: Call with which the host has sent the bytes.
            channel: Channel of the bytes.
            data: The bytes.
            credit: Number of further bytes that the host may send after ``data`` was written to the pipe or dropped (flow control).
        """
        if channel == STDIN and self.input is not None and self.input.is_open:
            self.input.write(data, lambda: call.consumed(credit))
            return True
        call.consumed(credit)
        return False

    def end_input(self) -> None:
        """Close standard input as soon as the queued bytes were written."""
        if self.input is not None:
            self.input.finish()

    def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal.

        Raises:
            RpcError: The process has no terminal, or the size is invalid.
        """
        if not self.is_terminal:
            raise RpcError("conflict", "The process has no terminal.", "Start the process on a terminal.")
        if self.pipes[0].is_open:
            resize(self.pipes[0].fd, rows, cols, self.pid)

    def hold(self, seconds: float) -> None:
        """Drop no output for some seconds, because a reader is expected to attach. A full buffer blocks the process instead.

        Args:
            seconds: Number of seconds in which no output is dropped.
        """
        self.outputs.hold(self._loop, seconds, self._refresh_pipes)

    def kill(self, reason: str) -> None:
        """Kill the process, its group, its session and its descendants. Does nothing if the process has ended.

        Args:
            reason: Value of ``reason`` in the result of the process, such as ``timeout``.
        """
        if self.running:
            kill_tree(self.pid, signal.SIGKILL)
            self.on_killed(reason)

    def discard(self) -> None:
        """Close the pipes or the terminal of the process. Does not end the process."""
        for pipe in self.pipes:
            pipe.close()
        if self.input is not None:
            self.input.close()

    def on_killed(self, reason: str) -> None:
        """Record why the guest has killed the process. Does nothing if the process has ended.

        Args:
            reason: Value of ``reason`` in the result of the process: ``timeout``, ``oom`` or ``pids``.
        """
        if self.running:
            self._reason = reason

    def on_memory_kill(self, text: str) -> None:
        """Handle that this process or a descendant was killed for lack of memory.

        Args:
            text: Line for standard error, or for the output of the terminal.
        """
        self._lacked_memory = True
        channel, end = (STDOUT, "\r\n") if self.is_terminal else (STDERR, "\n")
        self.outputs.buffers[channel].append((text + end).encode())
        self.pump()

    def on_exit(self, status: int, usage: struct_rusage) -> None:
        """Handle the end of the process: record its result, and send the result to the calls that wait for the end.

        Args:
            status: Status of wait(2).
            usage: Resources that the process and the children it waited for have used (getrusage(2)).
        """
        if self.timer is not None:
            self.timer.cancel()
        self.duration_s = self._loop.time() - self.started_s
        self._cpu_s = usage.ru_utime + usage.ru_stime
        self._peak_bytes = usage.ru_maxrss * 1024
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
            self._reason = self._reason or "signalled"
        else:
            self.exit_code = os.WEXITSTATUS(status)
            self._reason = self._reason or ("oom" if self._lacked_memory and self.exit_code else "exited")
        if self.input is not None:
            self.input.close()
        for pipe in self.pipes:
            pipe.settle()
        if self.is_terminal:
            hang_up(self.pid)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.on_gone = None
            call.result(**self.result())
        self._loop.call_later(LINGER_S, self._finish_lingering)
        self.on_output()
        self._on_ended()

    def on_output(self) -> None:
        """Send new output to the readers. Called after a pipe was read or closed. If no output can follow, also send the result."""
        if not self.running and not any(pipe.is_open for pipe in self.pipes):
            self.finished = True
        self.pump()

    def _finish_lingering(self) -> None:
        """Read what the pipes contain, and send the result, even if children of the process keep a pipe open."""
        if self.finished:
            return
        for pipe in self.pipes:
            if pipe.is_open and not pipe.drain():
                self._loop.call_later(LINGER_S, self._finish_lingering)  # the buffer is full: a reader has not received earlier output yet
                self.pump()
                return
        self.finished = True
        if self.is_terminal:  # processes that still use the terminal get EIO
            self.pipes[0].close()
        self.pump()

    def _detach(self, entry: tuple[Call, Reader]) -> None:
        self.readers.remove(entry)
        self.outputs.detach(entry[1])
        self.hold(HOLD_S)
        self._refresh_pipes()

    def _refresh_pipes(self) -> None:
        for pipe in self.pipes:
            pipe.refresh()


class InputCall:
    """A call ``process.input``: its bytes go to the standard input of a process, and the guest confirms the bytes that it has received.

    Args:
        process: Process that gets the bytes.
        call: The call.

    Attributes:
        call: The call.
        received: Number of bytes that were accepted from this call.
        reported: Value of ``received`` in the last event of the call; -1 before the first event.
    """

    __slots__ = ("_process", "call", "received", "reported")

    def __init__(self, process: Process, call: Call) -> None:
        self._process = process
        self.call = call
        self.received = 0
        self.reported = -1
        call.on_bytes = self._on_bytes
        call.on_end = process.end_input
        call.on_writable = process.report_input

    def _on_bytes(self, channel: int, data: bytes, credit: int) -> None:
        if self._process.feed(self.call, channel, data, credit):
            self.received += len(data)
            self._process.report_input()
