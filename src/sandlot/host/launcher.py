"""Starting the stage of a sandbox, and exchanging messages with the stage until the sandbox runs.

The stage is a child process that sets up the environment of a sandbox and starts the sandbox's runtime. From then on the same process is called the
*keeper* of the sandbox, and waits until the sandbox ends (``stage/main.py``).

Invariants:
- A stage is one ``exec`` of this interpreter with an empty environment, from a worker thread. There is no shell and no ``preexec_fn``.
- A stage is reaped whenever it ends.
- Every wait ends when the stage ends, so no timeout is needed for a stage that dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.blocking import run_blocking
from sandlot.host.link_pipes import PIPE_BYTES
from sandlot.host.process_identity import Identity, wait_ended
from sandlot.host.stage import main
from sandlot.model.errors import InternalError

Operation = tuple[str | int | bytes | tuple[tuple[str, str], ...], ...]
"""Name of a function in ``stage/operations.py``, followed by the arguments of this function."""

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from stage.main import main; main()"
_LINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Order:
    """Order to start a runtime. All paths are valid in the stage's mount namespace.

    Args:
        argv: Absolute path of the runtime and its arguments.
        env: The whole environment of the runtime.
        folder: Folder to which the keeper process writes: ``live`` (pids), ``exit`` (exit code) and ``guest.log`` (the guest's stderr).
        stdin: Path of the named pipe to the guest.
        stdout: Path of the named pipe from the guest.
        pid_file: Path of the file to which the runtime writes the pid of the sandbox.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    folder: str
    stdin: str
    stdout: str
    pid_file: str


@dataclass(frozen=True, slots=True)
class Started:
    """The two main processes of a running sandbox.

    Args:
        sandbox: Process of the runtime, which ends when the sandbox ends.
        keeper: Keeper process. It is the parent of ``sandbox`` and receives the exit status of ``sandbox``.
    """

    sandbox: Identity
    keeper: Identity


class StageError(Exception):
    """The stage failed, or the runtime that it started has failed. The text is the error message of the stage or the runtime."""


def read_started(text: str) -> Started:
    """Parse the keeper's message with the pid and the start time of both processes: ``SANDBOX_PID SANDBOX_START KEEPER_PID KEEPER_START``.

    Raises:
        ValueError: The text does not consist of four numbers.
    """
    sandbox, sandbox_start, keeper, keeper_start = (int(word) for word in text.split())
    return Started(Identity(sandbox, sandbox_start), Identity(keeper, keeper_start))


class Stage:
    """Process of a stage, started by :meth:`spawn`.

    Attributes:
        ended: Task that ends when the process of the stage has ended and was reaped.
    """

    __slots__ = ("_popen", "_reading", "_receiving", "_text", "_writing", "ended")

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        if popen.stdin is None or popen.stdout is None:
            raise InternalError("The stage was started without pipes.")
        self._popen = popen
        self._writing = popen.stdin.fileno()
        self._reading = popen.stdout.fileno()
        self._text = b""
        self._receiving = asyncio.Lock()
        os.set_blocking(self._writing, False)
        os.set_blocking(self._reading, False)
        self.ended = asyncio.get_running_loop().create_task(self._reap())

    @classmethod
    async def spawn(cls, name: str, errors: Path) -> Stage:
        """Start the process of a stage.

        Args:
            name: Name of the sandbox, shown in the stage's command line.
            errors: File to which the standard error of the stage is appended.
        """
        spawned: list[subprocess.Popen[bytes]] = []
        try:
            await run_blocking(lambda: spawned.append(_spawn(name, errors)))
        except asyncio.CancelledError:
            for popen in spawned:
                popen.kill()
                popen.communicate()
            raise
        return cls(spawned[0])

    async def carry_out(self, plan: Sequence[Operation]) -> None:
        """Send a plan to the stage and wait until the stage has carried out all operations of the plan.

        Raises:
            StageError: An operation failed, or the stage has ended.
        """
        self._send({"operations": list(plan)})
        await self._expect("ready")

    async def start(self, order: Order) -> Started:
        """Send an order to the stage, wait until the sandbox runs, and return the sandbox's processes.

        Raises:
            StageError: The runtime failed, or the stage has ended.
        """
        self._send(
            {
                "argv": list(order.argv),
                "env": dict(order.env),
                "folder": order.folder,
                "stdin": order.stdin,
                "stdout": order.stdout,
                "pid_file": order.pid_file,
                "pipe_bytes": PIPE_BYTES,
            }
        )
        started = read_started(await self._expect("started"))
        self._close_pipes()
        return started

    def descriptor(self) -> int:
        """Return a new descriptor of the stage's process (pidfd_open(2)). The caller must close the descriptor.

        Raises:
            OSError: The stage has ended.
        """
        return os.pidfd_open(self._popen.pid)

    def kill(self) -> None:
        """Kill the process of the stage, but not the processes that the stage started."""
        self._popen.kill()  # kill() sends no signal if the stage was reaped, so no process with a reused pid is killed

    def _send(self, message: dict[str, object]) -> None:
        if self._writing < 0:
            raise StageError("the stage has ended")
        body = marshal.dumps(message)
        text = len(body).to_bytes(main.LENGTH_BYTES, "big") + body
        try:
            written = os.write(self._writing, text)
        except OSError as error:
            raise StageError(f"the stage has ended ({error.strerror})") from None
        if written != len(text):
            raise StageError(f"a message of {len(text)} bytes is too long for the stage")

    async def _expect(self, word: str) -> str:
        async with self._receiving:
            line = await self._line() if self._reading >= 0 else ""
        found, _, rest = line.partition(" ")
        if found != word:
            raise StageError(rest.replace("\\n", "\n") if found == "failed" else "the stage ended without a message")
        return rest

    async def _line(self) -> str:
        loop = asyncio.get_running_loop()
        while b"\n" not in self._text:
            try:
                more = os.read(self._reading, _LINE_BYTES)
            except BlockingIOError:
                readable: asyncio.Future[None] = loop.create_future()
                loop.add_reader(self._reading, _resolve, readable)
                try:
                    await readable
                finally:
                    loop.remove_reader(self._reading)
                continue
            if not more:
                return ""
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return line.decode(errors="replace")

    async def _reap(self) -> None:
        handle = os.pidfd_open(self._popen.pid)
        try:
            await wait_ended(handle)
        finally:
            os.close(handle)
            self._popen.poll()
        async with self._receiving:  # carry_out() or start() may still read the last message
            self._close_pipes()

    def _close_pipes(self) -> None:
        self._writing = self._reading = -1
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _spawn(name: str, errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-SI", "-c", _PROGRAM, str(Path(main.__file__).parent.parent), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={},
            cwd="/",
            bufsize=0,
        )


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
