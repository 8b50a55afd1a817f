"""Standard input of processes, passed whole or written piece by piece. Each byte is written once, even if the service restarts.

Invariants:
- When a write returns, the guest has the bytes. The guest keeps them for the process, even if the service ends. The guest reports the bytes that
  have arrived; the service does not ask for them.
- A write with an offset can be repeated: bytes that arrived earlier are not written again.
- Clients can write to every process of a sandbox by the id of the process, even if an earlier service started the process or the sandbox was
  restored from an image.
- Writes to one process run one after another, each on its own call to the guest. If a write is cancelled, or its client disconnects, the bytes that
  have not been sent are dropped, and the next write begins.
- Input that was passed whole is counted in the buffer budget (``model/buffer_budget.py``) until the service has sent the whole input.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.link.processes import ProcessCall
from sandlot.model.errors import ConflictError, InvalidRequestError, SandlotError
from sandlot.model.ids import PROCESS_ID, ProcessId

PIECE_BYTES: Final = 64 * 1024
"""Maximum bytes of one write on the link."""
PROMPT_BYTES: Final = 128 * 1024
"""Bytes that the guest accepts even if the process does not read: half of the window of a stream (``protocol/streams.py``)."""
PROMPT_S: Final = 5.0
"""Maximum seconds to wait until another write to the same input has ended, or until the guest has confirmed that an input is closed."""


class StdinManager:
    """Writes to the standard input of processes."""

    def __init__(self) -> None:
        # A lock is removed when no write uses it any more.
        self._locks: SandboxLocal[WeakValueDictionary[ProcessId, asyncio.Lock]] = SandboxLocal(lambda _: WeakValueDictionary())

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
        async with sandbox.connection(None) as link, self._lock(sandbox, process), await link.processes.open_input(process) as call:
            skip = 0
            if offset is None and not call.is_open:
                raise _no_input(process)
            if offset is not None:
                arrived = call.stdin_bytes
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
                    await call.write(rest[at : at + PIECE_BYTES])
            if not await call.arrived():
                raise _no_input(process)
            return call.stdin_bytes

    async def close(self, sandbox: Sandbox, id_: str) -> None:
        """Close a process's standard input.

        Return when the guest has confirmed the end of the input, at the latest after 5 s. The process gets the end of the input after earlier input.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
            ConflictError: The process has ended or was started without an input, its input is closed, or another write takes longer than 5 s.
            SandboxEndedError: The sandbox has ended.
        """
        process = check_id(id_)
        lock = self._lock(sandbox, process)
        async with sandbox.connection(None) as link:
            try:
                async with asyncio.timeout(PROMPT_S):
                    await lock.acquire()
            except TimeoutError:
                raise ConflictError(
                    f"Another request is still writing to the input of process {process}.",
                    hint="Cancel the other request, and retry.",
                    fields={"process": process},
                ) from None
            try:
                call = await link.processes.open_input(process)
                if not call.is_open:
                    raise _no_input(process)
                call.close_stdin()
                with suppress(TimeoutError):  # the call stays open, so that a guest that is slow still gets the end of the input
                    async with asyncio.timeout(PROMPT_S):
                        await call.wait()
            finally:
                lock.release()

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
                async with await link.processes.open_input(call.id) as reports:
                    await reports.wait()

    async def drain(self, call: ProcessCall) -> None:
        """Discard the output of a call that only carries input, until the process ends."""
        with suppress(SandlotError):
            async for _ in call:
                pass
        await call.aclose()

    def _lock(self, sandbox: Sandbox, process: ProcessId) -> asyncio.Lock:
        return self._locks.of(sandbox).setdefault(process, asyncio.Lock())


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


def _no_input(process: ProcessId) -> ConflictError:
    return ConflictError(
        f"Process {process} takes no input: it has ended, its input was closed, or it was started without an input.",
        hint="Start the process with `stdin_open`.",
        fields={"process": process},
    )
