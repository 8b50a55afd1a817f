"""Standard input of processes, passed whole or written piece by piece. Each byte is written once, even if the service restarts.

Invariants:
- When a write returns, the guest has the bytes. The guest keeps them for the process, even if the service ends.
- A write with an offset can be repeated: bytes that arrived earlier are not written again.
- Clients can write to every process of a sandbox by the id of the process, even if an earlier service started the process or the sandbox was
  restored from an image.
- Writes to one process run one after another. If a write is cancelled, or its client disconnects, the next write begins.
- Input that was passed whole is counted in the buffer budget (``core/node/buffer_budget.py``) until the service has sent the whole input.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from contextlib import suppress
from typing import Final

from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.link.client import Link
from sandlot.link.processes import ProcessCall
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandlotError, UnavailableError
from sandlot.model.ids import PROCESS_ID, ProcessId

PIECE_BYTES: Final = 64 * 1024
"""Maximum bytes of one write on the link."""
PROMPT_BYTES: Final = 128 * 1024
"""Bytes that the guest accepts even if the process does not read: half of the window of a stream (``protocol/streams.py``)."""
PROMPT_S: Final = 5.0
"""Maximum seconds to wait until another write to the same input has ended, or until the guest has confirmed that an input is closed."""

_POLL_S: Final = 0.005
_MAX_POLL_S: Final = 0.25


class StdinWriter:
    """Writer of one process's standard input.

    Args:
        call: Call that carries the input.
        base_bytes: Number of input bytes that had arrived before the call was attached.
    """

    __slots__ = ("_base_bytes", "call", "lock")

    def __init__(self, call: ProcessCall, base_bytes: int) -> None:
        self._base_bytes = base_bytes
        self.call = call
        self.lock = asyncio.Lock()

    @property
    def position(self) -> int:
        """Number of input bytes of the process that were sent, including bytes that have not arrived yet."""
        return self._base_bytes + self.call.sent_bytes


class StdinManager:
    """Writes to the standard input of processes.

    Attributes:
        writers: Writers of each sandbox, by process.
    """

    def __init__(self) -> None:
        self.writers: SandboxLocal[dict[ProcessId, StdinWriter]] = SandboxLocal(lambda _: {})

    def register(self, sandbox: Sandbox, call: ProcessCall, base_bytes: int = 0) -> StdinWriter:
        """Register the call to the guest that carries the clients' input to a process, and return its writer.

        Args:
            sandbox: Sandbox of the process.
            call: Call that started the process or is attached to it.
            base_bytes: Number of input bytes that had arrived before the call was attached.
        """
        writer = self.writers.of(sandbox)[call.id] = StdinWriter(call, base_bytes)
        return writer

    def unregister(self, sandbox: Sandbox, call: ProcessCall) -> None:
        """Forget a call that has ended. Idempotent."""
        writers = self.writers.get(sandbox)
        if writers and call.id in writers and writers[call.id].call is call:
            del writers[call.id]

    async def write(self, sandbox: Sandbox, id_: str, chunks: AsyncIterable[bytes], *, offset: int | None = None) -> int:
        """Write to a process's standard input. Waits while the process does not read.

        Args:
            sandbox: Sandbox of the process.
            id_: Id of the process.
            chunks: Bytes to write.
            offset: Position of the first byte of ``chunks`` in the whole input; bytes that arrived earlier are skipped. None appends.

        Returns:
            Number of input bytes that have arrived until now, which is the offset of the next write.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
            ConflictError: The process has ended or was started without an input, its input is closed, or bytes before ``offset`` are missing.
            SandboxEndedError: The sandbox has ended.
        """
        process = check_id(id_)
        async with sandbox.connection(None) as link:
            writer = await self._writer(sandbox, link, process)
            async with writer.lock:
                skip = 0
                if offset is not None:
                    arrived = await _confirm(link, writer, process)
                    if offset > arrived:
                        raise ConflictError(
                            f"`offset` is {offset}, but only {arrived} bytes of the input of process {process} have arrived.",
                            hint=f"Write the input from byte {arrived} on.",
                            fields={"process": process, "stdin_bytes": arrived},
                        )
                    skip = arrived - offset
                async for chunk in chunks:
                    rest, skip = chunk[skip:], max(0, skip - len(chunk))
                    for at in range(0, len(rest), PIECE_BYTES):
                        await writer.call.write(rest[at : at + PIECE_BYTES])
                return await _confirm(link, writer, process)

    async def close(self, sandbox: Sandbox, id_: str) -> None:
        """Close a process's standard input.

        Return when the guest has confirmed the end of the input. If the process does not read earlier input, return after 5 s; the process
        then gets the end of the input after the earlier input.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
            ConflictError: The process has ended or was started without an input, its input is closed, or another write takes longer than 5 s.
            SandboxEndedError: The sandbox has ended.
        """
        process = check_id(id_)
        async with sandbox.connection(None) as link:
            writer = await self._writer(sandbox, link, process)
            try:
                async with asyncio.timeout(PROMPT_S):
                    await writer.lock.acquire()
            except TimeoutError:
                raise ConflictError(
                    f"Another request is still writing to the input of process {process}.",
                    hint="Cancel the other request, and retry.",
                    fields={"process": process},
                ) from None
            try:
                if not writer.call.takes_input:
                    raise _no_input(process)
                writer.call.close_stdin()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROMPT_S):
                        await _confirm_closed(link, process)
            finally:
                writer.lock.release()

    def feed(self, sandbox: Sandbox, call: ProcessCall, data: bytes) -> asyncio.Task[None]:
        """Write a process's whole input in a new task, and return the task. The caller reserves the memory of the input; the task releases it."""

        async def write_all() -> None:
            with suppress(SandlotError):  # a process need not read its input to the end
                for at in range(0, len(data), PIECE_BYTES):
                    await call.write(data[at : at + PIECE_BYTES])
                call.close_stdin()

        task = sandbox.tasks.create_task(write_all())
        size = len(data)
        # A callback releases the memory, because a task that is cancelled before its first step runs nothing of its coroutine.
        task.add_done_callback(lambda _: sandbox.buffers.give(size))
        return task

    async def confirm_fed(self, sandbox: Sandbox, feeding: asyncio.Task[None], call: ProcessCall, size: int) -> None:
        """Wait at most ``PROMPT_S`` seconds until an input that was passed whole has reached the guest.

        If the input has more than ``PROMPT_BYTES`` bytes, do not wait, because the guest accepts such an input only if the process reads.

        Args:
            sandbox: Sandbox of the process.
            feeding: Task that :meth:`feed` returned.
            call: Call that carries the input.
            size: Size of the input in bytes.
        """
        if size > PROMPT_BYTES:
            return
        with suppress(SandlotError, TimeoutError):
            async with asyncio.timeout(PROMPT_S), sandbox.connection(None) as link:
                await asyncio.wait({feeding})
                await _confirm_closed(link, call.id)

    async def drain(self, sandbox: Sandbox, call: ProcessCall) -> None:
        """Discard the output of a call that only carries input, until the process ends."""
        with suppress(SandlotError):
            async for _ in call:
                pass
        self.unregister(sandbox, call)
        await call.aclose()

    async def _writer(self, sandbox: Sandbox, link: Link, process: ProcessId) -> StdinWriter:
        writers = self.writers.of(sandbox)
        if process in writers:
            return writers[process]
        info = await link.processes.get(process)
        if not info.stdin:
            raise _no_input(process)
        call = await link.processes.attach(process, stdout_from=info.stdout_bytes, stderr_from=info.stderr_bytes)
        if process in writers:  # another request has registered a writer meanwhile
            await call.aclose()
            return writers[process]
        sandbox.tasks.spawn(self.drain(sandbox, call))
        return self.register(sandbox, call, info.stdin_bytes)


def check_id(id_: str) -> ProcessId:
    """Check that a string is the id of a process, and return the id.

    Raises:
        InvalidRequestError: The string is not the id of a process.
    """
    if PROCESS_ID.fullmatch(id_) is None:
        raise InvalidRequestError(
            f"{id_[:64]!r} is not the id of a process.", hint="Pass the id from the response that started the process: 32 hexadecimal digits."
        )
    return ProcessId(id_)


async def _confirm(link: Link, writer: StdinWriter, process: ProcessId) -> int:
    """Wait until all bytes that were written have reached the guest. Return the number of input bytes, including bytes of other writers."""
    wait_s = _POLL_S
    while True:
        try:
            info = await link.processes.get(process)
        except UnavailableError as error:
            # BUSY is not passed on to the client: the client would repeat the write, and the same bytes would be written twice.
            if error.code is not ErrorCode.BUSY:
                raise
        else:
            if info.stdin_bytes >= writer.position:
                return info.stdin_bytes
            if not info.stdin:
                raise _no_input(process)
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _MAX_POLL_S)


async def _confirm_closed(link: Link, process: ProcessId) -> None:
    wait_s = _POLL_S
    while (await link.processes.get(process)).stdin:
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _MAX_POLL_S)


def _no_input(process: ProcessId) -> ConflictError:
    return ConflictError(
        f"Process {process} takes no input: it has ended, its input was closed, or it was started without an input.",
        hint="Start the process with `stdin_open`.",
        fields={"process": process},
    )
