"""Processes that the host starts: the ``process.*`` calls.

Invariants:
- The id of a process is the id of the call that has started the process. A repeated start call returns the same process.
- Each process has its own session and group. A timeout or a signal reaches the session, the group and all descendants.
- Finished processes are remembered with their output until ``MAX_KEPT`` or ``MAX_KEPT_BYTES`` is exceeded. The oldest are forgotten first.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.pipes import InputPipe, OutputPipe, open_pipe
from sandlot.guest.process.accounts import as_file_user, lookup_account
from sandlot.guest.process.process import ARRIVAL_S, Process
from sandlot.guest.process.procfs import kill_tree
from sandlot.guest.process.pty import TerminalInput, TerminalOutput, open_terminal
from sandlot.protocol.fast_imports import OrderedDict
from sandlot.protocol.schema import LIMITS, STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandlot.guest.loop import Loop
    from sandlot.guest.process.accounts import Account
    from sandlot.guest.process.spawn import Spawner
    from sandlot.guest.rpc import Call, RpcServer

MAX_KEPT = 64
"""Number of processes, running and finished, beyond which the oldest finished processes are forgotten."""
MAX_KEPT_BYTES = 16 * 1024 * 1024
"""Total number of kept output bytes, of all processes together, beyond which the oldest finished processes are forgotten."""
MAX_SIGNAL = 64


class ProcessManager:
    """The processes that the host has started: those that run, and finished processes that are still remembered.

    Args:
        loop: The guest's loop.
        spawner: Starts the programs.
        rpc: Server of the calls. The server refuses further start calls with the id of a process that was forgotten.
        on_first_start: Called after the start of a process if no other process of this manager is running.
        on_all_ended: Called after the end of a process if no other process of this manager is running.
    """

    __slots__ = ("_by_id", "_loop", "_on_all_ended", "_on_first_start", "_rpc", "_running_count", "_spawner")

    def __init__(
        self, loop: Loop, spawner: Spawner, rpc: RpcServer, on_first_start: Callable[[], object], on_all_ended: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._spawner = spawner
        self._rpc = rpc
        self._on_first_start = on_first_start
        self._on_all_ended = on_all_ended
        self._by_id: OrderedDict[str, Process] = OrderedDict()
        self._running_count = 0

    def start(self, call: Call) -> None:
        """Handle ``process.start``: start a process, or find the process that an earlier call with the same id has started.

        If the argument ``attach`` of the call is True, the output is sent, and the response follows at the end of the process. If
        ``attach`` is False, the response is sent at once.
        """
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
        """Handle ``process.attach``: send the output of a process from the given offsets on, and its result at the end."""
        self._find(call).attach(call, call.args["stdout_from"], call.args["stderr_from"])

    def wait(self, call: Call) -> None:
        """Handle ``process.wait``: when a process has ended, respond with its result. The output is not sent."""
        self._find(call).wait(call)

    def open_input(self, call: Call) -> None:
        """Handle ``process.input``: write the bytes of the call to the standard input of a process, and confirm the received bytes."""
        self._find(call).open_input(call)

    def send_signal(self, call: Call) -> None:
        """Handle ``process.signal``: send a signal to a process, its group, its session and its descendants."""
        process = self._find(call)
        number = call.args["signal"]
        if not 1 <= number <= MAX_SIGNAL:
            raise RpcError("invalid_request", f"Signal {number} is invalid.", f"Use a signal number from 1 to {MAX_SIGNAL}.")
        running = process.running
        if running:
            kill_tree(process.pid, number)
        call.result(running=running)

    def resize(self, call: Call) -> None:
        """Handle ``process.resize``: change the size of a process's terminal."""
        process = self._find(call)
        process.resize(call.args["rows"], call.args["cols"])
        call.result(running=process.running)

    def get(self, call: Call) -> None:
        """Handle ``process.get``: respond with the record of one process."""
        call.result(**self._find(call).describe())

    def list_all(self, call: Call) -> None:
        """Handle ``process.list``: respond with the records of the newest processes. Hidden processes are left out."""
        newest = [process for process in self._by_id.values() if not process.hidden][-LIMITS["processes"] :]
        call.result(processes=[process.describe() for process in newest])

    def forget(self, call: Call) -> None:
        """Handle ``process.forget``: forget a finished process and its output."""
        process = self._find(call)
        if process.running:
            raise RpcError("conflict", "The process cannot be removed while it runs.", "Kill the process first.")
        self._drop(process)
        call.result()

    def running(self) -> list[Process]:
        """Return the processes that the host has started and that were not reaped yet."""
        return [process for process in self._by_id.values() if process.running]

    def on_memory_kill(self, pid: int, text: str) -> None:
        """Handle that the running process with a pid, or a descendant, was killed for lack of memory.

        Args:
            pid: Pid of the process. Nothing happens if no such process was started by the host.
            text: Line for its output.
        """
        for process in self._by_id.values():
            if process.pid == pid and process.running:
                process.on_memory_kill(text)

    def forget_finished(self) -> None:
        """Forget all finished processes. Called in a copy of a sandbox, because these processes belong to the original."""
        for process in [each for each in self._by_id.values() if not each.running]:
            process.discard()
            del self._by_id[process.id]

    def _find(self, call: Call) -> Process:
        process = self._by_id.get(call.args["process"])
        if process is None:
            raise RpcError("process_not_found", f"Process {call.args['process'][:64]!r} does not exist or is no longer kept.", "List the processes.")
        return process

    def _spawn(self, id_: str, args: dict[str, Any]) -> Process:
        if not args["argv"] or not args["argv"][0]:
            raise RpcError("invalid_request", "The command is empty.", "Pass a program to run as the first item of `argv`.")
        account = lookup_account(args["user"])
        process = Process(self._loop, id_, args, self._on_ended)
        if process.is_terminal:
            self._spawn_on_terminal(process, account, args)
        else:
            self._spawn_on_pipes(process, account, args)
        if args["timeout_s"] is not None:
            process.timer = self._loop.call_later(args["timeout_s"], lambda: process.kill("timeout"))
        self._by_id[id_] = process
        self._running_count += 1
        if self._running_count == 1:
            self._on_first_start()
        return process

    def _spawn_on_terminal(self, process: Process, account: Account, args: dict[str, Any]) -> None:
        ours, theirs = open_terminal(args["rows"], args["cols"], account)
        opened = [ours]
        try:
            ours_for_input = os.dup(ours)  # the loop has one callback for each descriptor; reading and writing need two
            opened.append(ours_for_input)
            fds = (theirs, theirs, theirs)
            process.pid = self._spawner.spawn(args["argv"], account, fds, process, env=args["env"], cwd=args["cwd"], terminal=True)
        except (OSError, RpcError) as error:
            _close_all(opened)
            raise _spawn_error(error) from None
        finally:
            os.close(theirs)
        process.input = TerminalInput(self._loop, ours_for_input, process.report_input)
        process.pipes.append(TerminalOutput(self._loop, ours, STDOUT, process.outputs, process.on_output))

    def _spawn_on_pipes(self, process: Process, account: Account, args: dict[str, Any]) -> None:
        opened: list[int] = []
        try:
            with as_file_user(account):  # only the owner of a pipe can open /dev/stdin, /dev/stdout and /dev/stderr
                out_read, out_write = open_pipe(roomy=True)
                opened += [out_read, out_write]
                err_read, err_write = open_pipe(roomy=True)
                opened += [err_read, err_write]
                if args["stdin"]:
                    in_read, in_write = open_pipe(roomy=True)
                    opened += [in_read, in_write]
                else:
                    in_read, in_write = self._spawner.dev_null, -1
            fds = (in_read, out_write, err_write)
            measured = bool(args["measured"])
            process.pid = self._spawner.spawn(args["argv"], account, fds, process, env=args["env"], cwd=args["cwd"], measured=measured)
        except (OSError, RpcError) as error:
            _close_all(opened)
            raise _spawn_error(error) from None
        _close_all([out_write, err_write])
        if args["stdin"]:
            os.close(in_read)
            process.input = InputPipe(self._loop, in_write, process.report_input)
        for fd, channel in ((out_read, STDOUT), (err_read, STDERR)):
            process.pipes.append(OutputPipe(self._loop, fd, channel, process.outputs, process.on_output))

    def _on_ended(self) -> None:
        self._running_count -= 1
        self._trim()
        if not self._running_count:
            self._on_all_ended()

    def _trim(self) -> None:
        """Forget finished processes without readers, the oldest first, until neither ``MAX_KEPT`` nor ``MAX_KEPT_BYTES`` is exceeded."""
        finished = [process for process in self._by_id.values() if process.finished and not process.readers]
        kept_bytes = sum(process.outputs.kept_bytes for process in self._by_id.values())
        count = len(self._by_id)
        for process in finished:
            if count <= MAX_KEPT and kept_bytes <= MAX_KEPT_BYTES:
                return
            kept_bytes -= process.outputs.kept_bytes
            count -= 1
            self._drop(process)

    def _drop(self, process: Process) -> None:
        process.discard()
        self._by_id.pop(process.id, None)
        self._rpc.forget_result(process.id, "process.start")


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _spawn_error(error: OSError | RpcError) -> RpcError:
    if isinstance(error, RpcError):
        return error
    return RpcError("limit_exceeded", f"No pipe could be opened: {error.strerror}.", "End some processes.")
