"""Attach to processes that run on a terminal, resize the terminal, and send input. The processes continue after their clients have disconnected.

Invariants:
- Each client sends its input on its own call to the guest, so clients do not wait for each other.
- For each client, the service keeps up to 1 MiB of input that it could not write to the process yet. This input is counted in the buffer budget
  (``model/buffer_budget.py``). A client that sends more is disconnected if the process reads no input for 30 s.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from sandlot.core.execution.processes import ProcessExecution, ProcessService, ProcessStream
from sandlot.core.execution.stdin import check_id
from sandlot.core.records.execution_log import ExecutionLog
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, LimitError
from sandlot.model.executions import ProcessEvent
from sandlot.model.specs import KIB, MIB, check_terminal_size
from sandlot.model.streams import Duplex

AHEAD_MAX_BYTES: Final = 1 * MIB
"""Maximum size, in bytes, of the input of one client that is not written to the process yet. The last message of the client may exceed the limit."""
STUCK_S: Final = 30.0
"""Seconds in which the process reads no input, after which a client with more than ``AHEAD_MAX_BYTES`` of pending input is disconnected."""
_PIECE_BYTES: Final = 64 * KIB


class TerminalService:
    """Connects clients to processes that run on a terminal."""

    def __init__(self, registry: SandboxRegistry, processes: ProcessService) -> None:
        self._registry = registry
        self._processes = processes

    async def connect(self, principal: Principal, sandbox: str, process: str, *, offset: int | None = None) -> Duplex[bytes, ProcessEvent]:
        """Attach to a process that runs on a terminal, to read its output and to send input. Closing the terminal does not end the process.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            process: Id of the process.
            offset: Byte offset from which the output is read; None is the oldest byte that the guest keeps.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
            ConflictError: The process has no terminal.
        """
        live = self._registry.find(sandbox, principal)
        if not (await self._processes.get(principal, sandbox, process)).pty:
            raise ConflictError(f"Process {process} has no terminal.", code=ErrorCode.CONFLICT, hint="Start the process with `pty`.")
        output = await self._processes.follow_in(live, process, stdout_from=offset, stderr_from=None)
        return Terminal(live, output, self._processes.executions.log)

    async def resize(self, principal: Principal, sandbox: str, process: str, rows: int, cols: int) -> bool:
        """Change the size of a process's terminal. Return False if the process had ended.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
            ConflictError: The process has no terminal.
            InvalidRequestError: The size is not valid.
        """
        check_terminal_size(rows, cols)
        async with self._registry.find(sandbox, principal).connection() as link:
            return await link.processes.resize(check_id(process), rows, cols)


class Terminal(ProcessStream):
    """One client's connection to a terminal: the events of the process, and input for the process."""

    __slots__ = ("_input", "_writing")

    def __init__(self, sandbox: Sandbox, run: ProcessExecution, log: ExecutionLog) -> None:
        super().__init__(run, log, detaches=True)
        self._input = TerminalInput(sandbox, run)
        self._writing = sandbox.tasks.create_task(self._input.hand_on())
        self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())  # the output ends with the same error

    async def send(self, data: bytes) -> None:
        """Send input. See :meth:`TerminalInput.add`."""
        await self._input.add(data)

    async def end(self) -> None:
        """Close the input of the process after the input that was sent. Idempotent."""
        self._input.end()

    async def aclose(self) -> None:
        """Disconnect from the terminal. The process continues. Input that is not written yet is dropped. Idempotent."""
        self._writing.cancel()
        self._input.close()
        await super().aclose()


class TerminalInput:
    """Input that one client has sent to a terminal and that is not written to the process yet."""

    __slots__ = ("_changed", "_ended", "_pending", "_room", "_run", "_sandbox")

    def __init__(self, sandbox: Sandbox, run: ProcessExecution) -> None:
        self._sandbox = sandbox
        self._run = run
        self._pending = bytearray()
        self._ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    async def add(self, data: bytes) -> None:
        """Add input that the client has sent. Wait while more than ``AHEAD_MAX_BYTES`` bytes are pending.

        Raises:
            LimitError: The process read no input for 30 s (code ``limit_exceeded``).
            UnavailableError: There is no memory for the input (code ``busy``).
        """
        if self._ended:
            return
        self._sandbox.buffers.take(len(data))
        self._pending += data
        self._changed.set()
        while len(self._pending) > AHEAD_MAX_BYTES:
            self._room.clear()
            try:
                async with asyncio.timeout(STUCK_S):
                    await self._room.wait()
            except TimeoutError:
                raise LimitError(
                    f"The process has read no input for {STUCK_S:g} s, and {len(self._pending):,} bytes are pending.",
                    code=ErrorCode.LIMIT_EXCEEDED,
                    hint="Send a signal to the process, or wait until the process reads its input; then connect again.",
                    fields={"process": self._run.id},
                ) from None

    def end(self) -> None:
        """Accept no more input. :meth:`hand_on` closes the input of the process after it has written the pending input. Idempotent."""
        self._ended = True
        self._changed.set()

    async def hand_on(self) -> None:
        """Write pending input to the process as fast as the process reads input, until cancelled.

        Raises:
            SandlotError: The sandbox has ended.
        """
        while True:
            while piece := bytes(self._pending[:_PIECE_BYTES]):
                with suppress(ConflictError):  # the process or its input has ended; the client sees this in the output
                    await self._run.call.write(piece)
                self._drop(len(piece))
            if self._ended:
                self._run.call.close_stdin()
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Drop pending input and release its memory. Idempotent."""
        self._drop(len(self._pending))

    def _drop(self, size: int) -> None:
        del self._pending[:size]
        self._sandbox.buffers.give(size)
        self._room.set()
