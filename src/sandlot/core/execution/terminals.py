"""Processes on a terminal: opened, gone back to, resized. They outlive whoever looks at them.

Laws:
- What is typed goes on the looker's own call, so that lookers do not wait for each other.
- What is typed and not taken yet waits here, 1 MiB of it, counted (``core/node/buffer_budget.py``); where more comes and none of it is
  taken for 30 s, the visit ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sandlot.core.execution import processes
from sandlot.core.execution.processes import ProcessExecution
from sandlot.core.execution.stdin import check_id
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, ErrorCode, LimitError
from sandlot.model.specs import KIB, MIB, check_screen

AHEAD_MAX_BYTES = 1 * MIB
"""Of what is typed; a message may go beyond it once."""
STUCK_S = 30.0
_PIECE_BYTES = 64 * KIB


async def attach(sandbox: Sandbox, id_: str, *, offset: int | None = None) -> ProcessExecution:
    """Look at a process on a terminal again, and type.

    Args:
        sandbox: Where.
        id_: The process.
        offset: Byte of its output to go on from; None is the oldest that is kept.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It has no terminal.
        SandboxEndedError: The sandbox has ended.
    """
    if not (await processes.look(sandbox, id_)).pty:
        raise ConflictError(
            f"Process {id_} has no terminal.", code=ErrorCode.CONFLICT, hint="Start it with 'pty', or read its output and write its input."
        )
    return await processes.follow(sandbox, id_, stdout_from=offset, stderr_from=None)


async def resize(sandbox: Sandbox, id_: str, rows: int, cols: int) -> bool:
    """Give a process's terminal another size; whether it was still running.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It has no terminal.
        InvalidRequestError: No such size.
        SandboxEndedError: The sandbox has ended.
    """
    check_screen(rows, cols)
    async with sandbox.connection() as link:
        return await link.resize(check_id(id_), rows, cols)


class TerminalInput:
    """What a client typed, until the program's terminal has taken it.

    Args:
        sandbox: Where the program runs.
        run: It.
    """

    __slots__ = ("_ended", "_news", "_room", "_run", "_sandbox", "_waiting")

    def __init__(self, sandbox: Sandbox, run: ProcessExecution) -> None:
        self._sandbox = sandbox
        self._run = run
        self._waiting = bytearray()
        self._ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def add(self, data: bytes) -> None:
        """More was typed; waits while too much waits.

        Raises:
            LimitError: ``limit_exceeded``: nothing was taken for 30 s.
            UnavailableError: ``busy``: there is no memory to keep it.
        """
        if self._ended:
            return
        self._sandbox.buffers.take(len(data))
        self._waiting += data
        self._news.set()
        while len(self._waiting) > AHEAD_MAX_BYTES:
            self._room.clear()
            try:
                async with asyncio.timeout(STUCK_S):
                    await self._room.wait()
            except TimeoutError:
                raise LimitError(
                    f"The program reads nothing of what is typed, and {len(self._waiting):,} bytes of it wait.",
                    code=ErrorCode.LIMIT_EXCEEDED,
                    hint="Connect again, and send it a signal or wait until it reads.",
                    fields={"process": self._run.id},
                ) from None

    def end(self) -> None:
        """Nothing comes after this. Idempotent."""
        self._ended = True
        self._news.set()

    async def hand_on(self) -> None:
        """Type it, as fast as it is taken; never returns.

        Raises:
            SandlotError: The sandbox has ended.
        """
        while True:
            while piece := bytes(self._waiting[:_PIECE_BYTES]):
                with suppress(ConflictError):  # it has ended, which is about to be told, or its input has
                    await self._run.type(piece)
                self._drop(len(piece))
            if self._ended:
                self._run.end_input()
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        """Nobody types any more. Idempotent."""
        self._drop(len(self._waiting))

    def _drop(self, size: int) -> None:
        del self._waiting[:size]
        self._sandbox.buffers.give(size)
        self._room.set()
