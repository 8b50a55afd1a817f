"""Processes of a scripted guest: asyncio tasks that run registered programs, with output, input, signals and timeouts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal as signals
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from sandlot.protocol.schema import LIMITS, STDERR, STDIN, STDOUT
from sandlot.testing.memory.output import Follower, OutputLog
from sandlot.testing.memory.rpc import Call, RpcError

if TYPE_CHECKING:
    from sandlot.testing.memory.files import MemoryFiles
    from sandlot.testing.memory.timers import Timer, Timers

KEPT = 64
"""Largest number of finished processes that are remembered."""
UIDS = {"root": 0, "user": 1000}
_HOMES = {0: "/root", 1000: "/home/user"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IGNORED_BY_DEFAULT = frozenset({signals.SIGCHLD, signals.SIGCONT, signals.SIGURG, signals.SIGWINCH})
_FIRST_PID = 100

Program = Callable[["ProgramContext"], Awaitable[int | None]]
"""Scripted program. Returns its exit code; None means 0."""


class Killed(BaseException):
    """Raised in a scripted program when a signal ends the program. ``number`` is the signal number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StandardInput:
    """Standard input that the host sends to a process.

    Args:
        on_closed: Function that is called when ``is_open`` has become False.
    """

    def __init__(self, on_closed: Callable[[], object]) -> None:
        self._on_closed = on_closed
        self._pieces: list[tuple[bytes, Callable[[], None]]] = []
        self._news = asyncio.Event()
        self.accepted = 0
        self.is_open = True

    def feed(self, data: bytes, taken: Callable[[], None]) -> None:
        """Add bytes at the end of the unread input.

        Args:
            data: Bytes for the program.
            taken: Function that is called when the program has read the bytes, or when the bytes are dropped unread.
        """
        self.accepted += len(data)
        self._pieces.append((data, taken))
        self._news.set()

    def finish(self) -> None:
        """End the input. The program can still read the bytes that were already added. Idempotent."""
        was_open, self.is_open = self.is_open, False
        self._news.set()
        if was_open:
            self._on_closed()

    def close(self) -> None:
        """End the input, and drop all unread bytes."""
        self.finish()
        pieces, self._pieces = self._pieces, []
        for _, taken in pieces:
            taken()

    async def read(self) -> bytes:
        """Wait for the next bytes and return them; return ``b""`` at the end of the input."""
        while not self._pieces:
            if not self.is_open:
                return b""
            self._news.clear()
            await self._news.wait()
        data, taken = self._pieces.pop(0)
        taken()
        return data


class ProgramContext:
    """Argument of a scripted program: its command line, environment, input and output.

    Attributes:
        argv: Name of the program, followed by its arguments.
        env: Environment of the program.
        cwd: Working folder of the program.
        uid: User id of the program.
        files: File tree of the guest.
        traps: Signal number -> function that is called instead of the default action of the signal.
    """

    def __init__(self, process: Process, env: Mapping[str, str], cwd: str, files: MemoryFiles, run: Callable[..., Awaitable[int]]) -> None:
        self._process = process
        self.argv = list(process.argv)
        self.env = dict(env)
        self.cwd = cwd
        self.uid = process.uid
        self.user = process.user
        self.pid = process.pid
        self.files = files
        self.run_program = run
        self.traps: dict[int, Callable[[], object]] = {}
        self.size = process.size

    @property
    def stdin(self) -> StandardInput | None:
        """Standard input of the program; None if standard input is ``/dev/null``."""
        return self._process.stdin

    async def write(self, data: bytes | str, channel: int = STDOUT) -> None:
        """Write output. Wait while any call that receives the output has more than ``OUTPUT_BUFFER_BYTES`` unsent bytes.

        Args:
            data: Text or bytes.
            channel: STDOUT or STDERR. If the process has a terminal, all output goes to STDOUT.
        """
        raw = data.encode() if isinstance(data, str) else data
        if self._process.is_terminal:
            channel, raw = STDOUT, raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        self._process.output.write(channel, raw)
        await self._process.output.drained()

    async def error(self, data: bytes | str) -> None:
        """Write to standard error."""
        await self.write(data, STDERR)

    async def read_all(self) -> bytes:
        """Read standard input to its end, and return all bytes."""
        pieces = []
        while self.stdin is not None and (piece := await self.stdin.read()):
            pieces.append(piece)
        return b"".join(pieces)

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds. Time during which the guest is paused does not count."""
        await self._process.timers.sleep(seconds)

    def kill(self, number: int) -> None:
        """Send a signal to the program's own process. ``number`` is the signal number."""
        self._process.signal(number)


def find_uid(user: str) -> int:
    """Return the uid of a user, given its name or uid.

    Raises:
        RpcError: ``invalid_request``: there is no such user.
    """
    name = user.partition(":")[0]
    if name in UIDS:
        return UIDS[name]
    if not name.isdigit():
        raise RpcError("invalid_request", f"The sandbox has no user {name[:100]!r}.", "Pass 'user', 'root' or a numeric uid.")
    return int(name)


def find_home(user: str) -> str:
    """Return the home directory of a user: ``/`` for users without an entry."""
    return _HOMES.get(find_uid(user), "/")


class Process:
    """One process that the host started in the guest, running or ended."""

    def __init__(self, id_: str, pid: int, args: Mapping[str, Any], timers: Timers) -> None:
        self.id = id_
        self.pid = pid
        self.args = dict(args)
        self.argv: list[str] = args["argv"]
        self.user: str = args["user"]
        self.uid = find_uid(self.user)
        self.hidden = bool(args["hidden"])
        self.is_terminal = args["rows"] is not None and args["cols"] is not None
        self.size: tuple[int, int] = (args["rows"] or 0, args["cols"] or 0)
        self.stdin = StandardInput(self._end_input_calls) if args["stdin"] or self.is_terminal else None
        self.output = OutputLog()
        self.timers = timers
        self.started_s = timers.time_s()
        self.duration_s = 0.0
        self.reason: str | None = None
        self.exit_code: int | None = None
        self.ending_signal: int | None = None
        self.context: ProgramContext | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None
        self.on_over: Callable[[], object] = lambda: None
        self._followers: list[tuple[Call, Follower]] = []
        self._waiting: list[Call] = []
        self._input_calls: dict[Call, int] = {}

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return self.exit_code is None and self.ending_signal is None

    @property
    def is_followed(self) -> bool:
        """True if at least one call receives the output of the process."""
        return bool(self._followers)

    def follow(self, call: Call, stdout_from: int | None, stderr_from: int | None) -> None:
        """Send the output of the process to a call and, when the process has ended, the result.

        Args:
            call: Call that receives the output and the result.
            stdout_from: Offset of the first byte of standard output to send; None: 0.
            stderr_from: Offset of the first byte of standard error to send; None: 0.

        Raises:
            RpcError: An offset is negative or beyond the end of the output.
        """
        call.event("started", pid=self.pid)
        follower = self.output.follow(call, stdout_from, stderr_from)
        if follower is None:
            message = f"Offset {stdout_from} of standard output or {stderr_from} of standard error is not within the output."
            raise RpcError("invalid_request", message, "Pass offsets in bytes, from 0 to the end of the output.")
        entry = (call, follower)
        self._followers.append(entry)
        call.on_bytes = lambda channel, data, credit: self._feed(call, channel, data, credit)
        call.on_end = lambda: self.stdin.finish() if self.stdin is not None else None
        call.on_writable = self.pump
        call.on_gone = lambda: self._detached(entry)
        self.pump()

    def wait(self, call: Call) -> None:
        """Send the result of the process to a call, as soon as the process has ended."""
        if not self.running:
            call.result(**self.result())
            return
        self._waiting.append(call)
        call.on_gone = lambda: self._waiting.remove(call)

    def open_input(self, call: Call) -> None:
        """Write the bytes of a call to standard input. Confirm the received bytes, and respond to the call when the input is closed."""

        def take(channel: int, data: bytes, credit: int) -> None:
            if self._feed(call, channel, data, credit):
                self._input_calls[call] += len(data)
                call.event("input", **self._input_state(call))

        self._input_calls[call] = 0
        if self.stdin is None or not self.stdin.is_open:
            self._end_input_calls()
            return
        call.on_bytes = take
        call.on_end = self.stdin.finish
        call.on_gone = lambda: self._input_calls.pop(call)
        call.event("input", **self._input_state(call))

    def _end_input_calls(self) -> None:
        for call in list(self._input_calls):
            state = self._input_state(call)
            del self._input_calls[call]
            call.on_gone = None
            call.result(**state)

    def _input_state(self, call: Call) -> dict[str, int]:
        return {"received": self._input_calls[call], "stdin_bytes": self.stdin.accepted if self.stdin is not None else 0}

    def pump(self) -> None:
        """Send output to each call that receives it, until the call's send queue is full. A call that has got all output gets the result."""
        self.output.pump()
        if self.running:
            return
        for entry in list(self._followers):
            call, follower = entry
            if self.output.has_all(follower):
                self._detached(entry)
                call.on_gone = None
                call.result(**self.result())

    def result(self) -> dict[str, Any]:
        """Return the result of the process, with which ``process.start``, ``process.attach`` and ``process.wait`` respond."""
        return {
            "process": self.id,
            "pid": self.pid,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "signal": self.ending_signal,
            "duration_s": self.duration_s,
            "cpu_s": None if self.running else 0.0,
            "peak_bytes": None if self.running else 1 << 20,
        }

    def describe(self) -> dict[str, Any]:
        """Return the properties of the process, as the guest's calls ``process.get`` and ``process.list`` show them."""
        return {
            "process": self.id,
            "pid": self.pid,
            "argv": [argument[:512] for argument in self.argv[: LIMITS["argv"]]],
            "running": self.running,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "signal": self.ending_signal,
            "duration_s": self.timers.time_s() - self.started_s if self.running else self.duration_s,
            "pty": self.is_terminal,
            "stdin": self.running and self.stdin is not None and self.stdin.is_open,
            "stdin_bytes": self.stdin.accepted if self.stdin is not None else 0,
            "stdout_bytes": self.output.ends[STDOUT],
            "stderr_bytes": self.output.ends[STDERR],
        }

    def signal(self, number: int) -> None:
        """Deliver a signal to the process: call the program's trap for the signal or, if there is none, do the signal's default action."""
        if not self.running:
            return
        trap = self.context.traps.get(number) if self.context is not None and number != signals.SIGKILL else None
        if trap is not None:
            trap()
        elif number not in _IGNORED_BY_DEFAULT:
            self.end(None, number)

    def kill(self, reason: str) -> None:
        """End the process with SIGKILL and record the reason, such as ``timeout``."""
        if self.running:
            self.reason = reason
            self.end(None, signals.SIGKILL)

    def end(self, exit_code: int | None, number: int | None = None) -> None:
        """Record the end of the process, and send the result to waiting calls. Does nothing if the process has ended.

        Args:
            exit_code: Exit code; ignored if a signal ended the process.
            number: Number of the signal that ended the process; None if the process exited.
        """
        if not self.running:
            return
        self.exit_code = None if number is not None else exit_code
        self.ending_signal = None if number is None else int(number)
        self.reason = self.reason or ("signalled" if number is not None else "exited")
        self.duration_s = max(0.0, self.timers.time_s() - self.started_s)
        if self.timer is not None:
            self.timer.cancel()
        if self.stdin is not None:
            self.stdin.close()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.on_gone = None
            call.result(**self.result())
        self.on_over()
        self.pump()

    def _feed(self, call: Call, channel: int, data: bytes, credit: int) -> bool:
        if channel == STDIN and self.stdin is not None and self.stdin.is_open and self.running:
            self.stdin.feed(data, lambda: call.consumed(credit))
            return True
        call.consumed(credit)
        return False

    def _detached(self, entry: tuple[Call, Follower]) -> None:
        if entry in self._followers:
            self._followers.remove(entry)
        self.output.leave(entry[1])


class Processes:
    """All processes of a guest, including ended processes that are still kept.

    Args:
        files: File tree of the guest.
        timers: Timers of the guest.
        programs: Path or name of a program -> script. The name is the last part of the path.
        environment: Function that returns the environment of the sandbox.
        workspace: Function that returns the default working folder.
        expire: Function that is called with a process id when the process is no longer kept. The guest then refuses the id.
    """

    def __init__(
        self,
        files: MemoryFiles,
        timers: Timers,
        programs: Mapping[str, Program],
        environment: Callable[[], Mapping[str, str]],
        workspace: Callable[[], str],
        expire: Callable[[str, str], None],
    ) -> None:
        self.files = files
        self._timers = timers
        self._programs = programs
        self._environment = environment
        self._workspace = workspace
        self._expire = expire
        self._pids = itertools.count(_FIRST_PID)
        self.by_id: dict[str, Process] = {}
        self.handlers: dict[str, Callable[[Call], object]] = {
            "process.start": self._start,
            "process.attach": lambda call: self._find(call).follow(call, call.args["stdout_from"], call.args["stderr_from"]),
            "process.wait": lambda call: self._find(call).wait(call),
            "process.input": lambda call: self._find(call).open_input(call),
            "process.signal": self._signal,
            "process.resize": self._resize,
            "process.get": lambda call: call.result(**self._find(call).describe()),
            "process.list": self._list,
            "process.forget": self._forget,
        }

    @property
    def running(self) -> list[Process]:
        """Processes that have not ended."""
        return [process for process in self.by_id.values() if process.running]

    def environment(self, user: str, env: Mapping[str, str]) -> dict[str, str]:
        """Return the complete environment of a process.

        Args:
            user: User of the process.
            env: Variables that replace or extend the environment of the sandbox.
        """
        base = {"PATH": _PATH, "HOME": find_home(user), "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "LC_CTYPE": "C.UTF-8"}
        return {**base, **self._environment(), **env}

    def spawn(self, id_: str, args: Mapping[str, Any]) -> Process:
        """Start a process.

        Args:
            id_: Id of the process, 32 hexadecimal digits.
            args: Arguments of ``process.start``.

        Raises:
            RpcError: The program, the user or the working folder does not exist, or another argument is invalid.
        """
        argv = args["argv"]
        if not argv or not argv[0]:
            raise RpcError("invalid_request", "The command line `argv` is empty.", "Pass a program as the first item of `argv`.")
        find_uid(args["user"])
        for name in ("rows", "cols"):
            if args[name] is not None and not 1 <= args[name] <= LIMITS["screen"]:
                raise RpcError("invalid_request", f"A terminal cannot have {args[name]} {name}.", f"Pass a number from 1 to {LIMITS['screen']}.")
        cwd = args["cwd"] or self._workspace()
        if not self.files.is_folder(cwd) and self.files.exists(cwd):
            raise RpcError("path_not_directory", f"The working folder {cwd!r} cannot be entered: Not a directory.", "Pass the path of a folder.")
        if not self.files.is_folder(cwd):
            raise RpcError(
                "working_directory_not_found", f"The working folder {cwd!r} cannot be entered: No such file or directory.", "Create the folder first."
            )
        program = self.find(argv)
        if program is None and self.files.exists(argv[0]):
            raise RpcError("permission_denied", f"{argv[0][:200]!r} cannot be run: Permission denied.", "Pass the path of an executable file.")
        if program is None:
            raise RpcError("program_not_found", f"The sandbox has no program {argv[0][:200]!r}.", "Check the name, or install the program.")
        process = Process(id_, next(self._pids), args, self._timers)
        process.on_over = self._trim
        env = self.environment(args["user"], {**({"TERM": "xterm-256color"} if process.is_terminal else {}), **args["env"]})
        process.context = ProgramContext(process, env, cwd, self.files, self.run_nested)
        if args["timeout_s"] is not None:
            process.timer = self._timers.after(args["timeout_s"], lambda: process.kill("timeout"))
        self.by_id[id_] = process
        process.task = asyncio.get_running_loop().create_task(self._run(process, program, process.context))
        return process

    def find(self, argv: list[str]) -> Program | None:
        """Return the script of the program ``argv[0]``; None if the guest has no program with this path or name."""
        return self._programs.get(argv[0]) or self._programs.get(argv[0].rpartition("/")[2])

    def forget_finished(self) -> None:
        """Forget the processes that have ended. Called when a restored guest gets a new sandbox id: the sandbox is then a copy."""
        self.by_id = {id_: process for id_, process in self.by_id.items() if process.running}

    async def close(self) -> None:
        """Cancel the tasks of all running processes, and wait until the tasks have ended."""
        tasks = [process.task for process in self.by_id.values() if process.task is not None and not process.task.done()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self, process: Process, program: Program, context: ProgramContext) -> None:
        try:
            code = await program(context)
        except Killed as killed:
            process.end(None, killed.number)
        except asyncio.CancelledError:
            process.end(None, signals.SIGKILL)
        except Exception as error:  # noqa: BLE001 - a program that fails is no defect of the guest
            process.output.write(STDERR, f"{type(error).__name__}: {error}\n".encode())
            process.end(1)
        else:
            process.end((code or 0) & 255)

    async def run_nested(self, context: ProgramContext) -> int:
        """Run the command ``context.argv`` for another program, in the program context ``context``, and return the exit code."""
        program = self.find(context.argv)
        if program is None:
            await context.error(f"sh: 1: {context.argv[0]}: not found\n")
            return 127
        return await program(context) or 0

    def _start(self, call: Call) -> None:
        process = self.by_id.get(call.id) or self.spawn(call.id, call.args)
        if call.args["attach"]:
            process.follow(call, 0, 0)
        else:
            call.result(**process.result())

    def _signal(self, call: Call) -> None:
        process, number = self._find(call), call.args["signal"]
        if not 1 <= number <= LIMITS["signal"]:
            raise RpcError("invalid_request", f"Signal {number} is invalid.", "Use a signal number from 1 to 64.")
        running = process.running
        process.signal(number)
        call.result(running=running)

    def _resize(self, call: Call) -> None:
        process = self._find(call)
        if not process.is_terminal:
            raise RpcError("conflict", "The process has no terminal.", "Start a process with a terminal.")
        process.size = (call.args["rows"], call.args["cols"])
        if process.context is not None:
            process.context.size = process.size
            process.signal(signals.SIGWINCH)
        call.result(running=process.running)

    def _list(self, call: Call) -> None:
        shown = [process.describe() for process in self.by_id.values() if not process.hidden]
        call.result(processes=shown[-LIMITS["processes"] :])

    def _forget(self, call: Call) -> None:
        process = self._find(call)
        if process.running:
            raise RpcError("conflict", "A running process cannot be removed from the list of processes.", "Kill the process first.")
        self._drop(process)
        call.result()

    def _find(self, call: Call) -> Process:
        process = self.by_id.get(call.args["process"])
        if process is None:
            shown = call.args["process"][:64]
            raise RpcError("process_not_found", f"Process {shown!r} does not exist or is no longer kept.", "Check the process id.")
        return process

    def _drop(self, process: Process) -> None:
        self.by_id.pop(process.id, None)
        self._expire(process.id, "process.start")

    def _trim(self) -> None:
        finished = [process for process in self.by_id.values() if not process.running and not process.is_followed]
        for process in finished[: max(0, len(self.by_id) - KEPT)]:
            self._drop(process)
