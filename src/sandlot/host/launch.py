"""Start the stage of a sandbox off the event loop, and talk to it until the sandbox runs.

Promises:
- No shell, no ``preexec_fn``: one ``exec`` of this interpreter with an empty environment, from a worker thread.
- The stage is reaped whenever it ends, also when nobody asks for it any more.
- Every wait ends when the stage ends; no time limit is needed for a stage that dies.
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

from sandlot.host.fifos import PIPE_BYTES
from sandlot.host.processes import Identity, ended
from sandlot.host.stage import keeper
from sandlot.host.threads import run_blocking
from sandlot.model.errors import InternalError

Operation = tuple[str | int, ...]
"""The name of a function in ``stage/operations.py``, and its arguments."""

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from stage.keeper import main; main()"
_LINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Order:
    """How to start a runtime.

    Args:
        argv: The runtime's absolute path and its arguments.
        env: Its whole environment.
        folder: Where the keeper writes ``live``, ``exit`` and ``guest.log``, as the stage sees it.
        stdin: The pipe to the guest, as the stage sees it.
        stdout: The pipe from it.
        pid_file: Where the runtime writes the sandbox's pid, as the stage sees it.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    folder: str
    stdin: str
    stdout: str
    pid_file: str


@dataclass(frozen=True, slots=True)
class Started:
    """The two processes that matter of a sandbox that runs.

    Args:
        sandbox: The runtime's own, which ends when the sandbox does.
        keeper: Its parent, which learns how it ended.
    """

    sandbox: Identity
    keeper: Identity


class StageError(Exception):
    """The stage, or the runtime that it started, failed; the text is theirs."""


def read_started(text: str) -> Started:
    """What the keeper says of itself and its sandbox: four numbers.

    Raises:
        ValueError: It is something else.
    """
    sandbox, sandbox_start, keeper, keeper_start = (int(word) for word in text.split())
    return Started(Identity(sandbox, sandbox_start), Identity(keeper, keeper_start))


class Stage:
    """A stage that was started; made by :meth:`spawn`."""

    __slots__ = ("_popen", "_reading", "_talking", "_text", "_writing", "ended")

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        if popen.stdin is None or popen.stdout is None:
            raise InternalError("The stage was started without pipes.")
        self._popen = popen
        self._writing = popen.stdin.fileno()
        self._reading = popen.stdout.fileno()
        self._text = b""
        self._talking = asyncio.Lock()
        os.set_blocking(self._writing, False)
        os.set_blocking(self._reading, False)
        self.ended = asyncio.get_running_loop().create_task(self._reap())

    @classmethod
    async def spawn(cls, name: str, errors: Path) -> Stage:
        """Start one.

        Args:
            name: Shown in its command line, for people.
            errors: Where its own failures are written.
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
        """Let it carry out a plan.

        Raises:
            StageError: An operation failed.
        """
        self._say({"operations": list(plan)})
        await self._expect("ready")

    async def start(self, order: Order) -> Started:
        """Let it start the runtime; return once the sandbox runs.

        Raises:
            StageError: The runtime failed.
        """
        self._say(
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
        self._hang_up()
        return started

    def descriptor(self) -> int:
        """A new descriptor of its process (pidfd_open(2)).

        Raises:
            OSError: It has ended.
        """
        return os.pidfd_open(self._popen.pid)

    def kill(self) -> None:
        """End the stage itself; not what it started."""
        self._popen.kill()  # looks at the exit status first: never a recycled pid

    def _say(self, message: dict[str, object]) -> None:
        if self._writing < 0:
            raise StageError("the stage has ended")
        body = marshal.dumps(message)
        text = len(body).to_bytes(keeper.LENGTH_BYTES, "big") + body
        try:
            written = os.write(self._writing, text)
        except OSError as error:
            raise StageError(f"the stage has ended ({error.strerror})") from None
        if written != len(text):
            raise StageError(f"a message of {len(text)} bytes is too long for the stage")

    async def _expect(self, word: str) -> str:
        async with self._talking:
            line = await self._line() if self._reading >= 0 else ""
        said, _, rest = line.partition(" ")
        if said != word:
            raise StageError(rest.replace("\\n", "\n") if said == "failed" else "the stage ended without a word")
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
            await ended(handle)
        finally:
            os.close(handle)
            self._popen.poll()
        async with self._talking:  # a last word may still be in the pipe
            self._hang_up()

    def _hang_up(self) -> None:
        self._writing = self._reading = -1
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _spawn(name: str, errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-SI", "-c", _PROGRAM, str(Path(keeper.__file__).parent.parent), name],
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
