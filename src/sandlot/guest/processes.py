"""Processes: started for the host, on pipes or on a terminal, signalled and timed out as whole groups, reaped, remembered.

Laws:
- A process is known by the id of the call that started it; the same id started twice is one process.
- Each has its own session and process group. A timeout or a signal reaches the group and every descendant that left it.
- The last ``KEPT`` finished processes, and at most ``KEPT_BYTES`` of their output, are remembered.
"""

from __future__ import annotations

import os

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.pipes import InputPipe, OutputPipe, open_pipe
from sandlot.guest.process import ARRIVAL_S, Process
from sandlot.guest.spawn import account, environment, start
from sandlot.guest.tasks import kill_tree
from sandlot.guest.terminals import TERM, TerminalInput, TerminalOutput, open_terminal
from sandlot.protocol.fast_imports import OrderedDict
from sandlot.protocol.schema import LIMITS, STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage
    from typing import Any

    from sandlot.guest.calls import Call
    from sandlot.guest.main import Guest
    from sandlot.guest.spawn import Account

KEPT = 64
LAST_SIGNAL = 64
KEPT_BYTES = 16 * 1024 * 1024


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
                "process.resize": self.resize,
                "process.get": self.get,
                "process.list": self.list_all,
                "process.forget": self.forget,
            }
        )

    def start(self, call: Call) -> None:
        """``process.start``."""
        process = self._by_id.get(call.id)
        if process is None:
            process = self._spawn(call.id, call.args)
            if process.is_terminal and not call.args["attach"]:
                process.hold(ARRIVAL_S)
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
        newest = [process for process in self._by_id.values() if not process.hidden][-LIMITS["processes"] :]
        call.result(processes=[process.describe() for process in newest])

    def get(self, call: Call) -> None:
        """``process.get``."""
        call.result(**self._find(call).describe())

    def resize(self, call: Call) -> None:
        """``process.resize``."""
        process = self._find(call)
        process.resize(call.args["rows"], call.args["cols"])
        call.result(running=process.running)

    def forget(self, call: Call) -> None:
        """``process.forget``: a finished one."""
        process = self._find(call)
        if process.running:
            raise Refusal("conflict", "The process is still running.", "Signal it first.")
        self._drop(process)
        call.result()

    def reaped(self, pid: int, status: int, usage: struct_rusage) -> bool:
        """A child ended; whether it was one of these."""
        process = self._by_pid.pop(pid, None)
        if process is None:
            return False
        process.reaped(status, usage)
        self._trim()
        if not self._by_pid:
            self._guest.kernels.spares.commands_ended()
        return True

    def out_of_memory(self, pid: int) -> None:
        """That process was killed for memory; where it is one of these, its end says so."""
        process = self._by_pid.get(pid)
        if process is not None:
            process.kill("oom")

    def running(self) -> list[Process]:
        """Those not reaped yet."""
        return list(self._by_pid.values())

    def forget_past(self) -> None:
        """Those that have ended were another sandbox's."""
        for process in [each for each in self._by_id.values() if not each.running]:
            process.discard()
            del self._by_id[process.id]

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
        process = Process(self._guest, id_, args)
        (self._on_terminal if process.is_terminal else self._on_pipes)(process, who, args)
        if args["timeout_s"] is not None:
            process.timer = self._guest.loop.after(args["timeout_s"], lambda: process.kill("timeout"))
        self._by_id[id_] = process
        self._by_pid[process.pid] = process
        self._guest.pids.watch()
        self._guest.kernels.spares.make_way()
        return process

    def _on_terminal(self, process: Process, who: Account, args: dict[str, Any]) -> None:
        ours, theirs = open_terminal(args["rows"], args["cols"], who)
        try:
            typed = os.dup(ours)  # reading and writing are watched each for itself
            try:
                env = environment(who, {"TERM": TERM}, self._guest.env, args["env"])
                process.pid = start(args["argv"], env, args["cwd"] or self._guest.workspace, who, (theirs, theirs, theirs), terminal=True)
            except BaseException:
                os.close(typed)
                raise
        except OSError as error:
            os.close(ours)
            raise _no_pipe(error) from None
        except Refusal:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        process.input = TerminalInput(self._guest.loop, typed)
        process.pipes.append(TerminalOutput(self._guest.loop, ours, STDOUT, process.outputs, process.changed))

    def _on_pipes(self, process: Process, who: Account, args: dict[str, Any]) -> None:
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
            raise _no_pipe(error) from None
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


def _no_pipe(error: OSError) -> Refusal:
    return Refusal("limit_exceeded", f"No pipe could be made: {error.strerror}.", "End some processes.")
