"""Standard input of processes: given whole, or written piece by piece, each piece once, also over a restart of the service.

Laws:
- A write that was answered has reached the guest, which keeps it for the process whatever becomes of the service.
- A write that says where in the input its bytes belong can be said again: what has come there before is not written twice.
- Of a process that the service did not start, or started before it was restarted, the input is found again by its id.
- Whoever gives a write up, or goes away, leaves the turn to the next; nobody waits for ever behind a process that does not read.
- Standard input that was given whole is counted (``core/node/buffer_budget.py``) for as long as the process does not take it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from contextlib import suppress

from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link, ProcessCall
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandlotError, UnavailableError
from sandlot.model.ids import PROCESS_ID, ProcessId

PIECE_BYTES = 64 * 1024

PROMPT_BYTES = 128 * 1024
"""The guest takes as much at once, whether the process reads or not: half of a stream's window (``protocol/streams.py``)."""
PROMPT_S = 5.0

_LOOK_S, _LOOK_MOST_S = 0.005, 0.25


class StdinWriter:
    """The way to one process's standard input.

    Args:
        call: What it travels on.
        base: How many bytes had come before.
    """

    __slots__ = ("_base", "call", "lock")

    def __init__(self, call: ProcessCall, base: int) -> None:
        self._base = base
        self.call = call
        self.lock = asyncio.Lock()

    @property
    def position(self) -> int:
        """How many bytes will have come once all that was written here is there."""
        return self._base + self.call.sent_bytes


def remember(sandbox: Sandbox, call: ProcessCall, base: int) -> StdinWriter:
    """A call on which a process's input can be written."""
    way = sandbox.inputs[call.id] = StdinWriter(call, base)
    return way


def forget(sandbox: Sandbox, call: ProcessCall) -> None:
    """That call is over. Idempotent."""
    known = sandbox.inputs.get(call.id)
    if known is not None and known.call is call:
        del sandbox.inputs[call.id]


async def write(sandbox: Sandbox, id_: str, chunks: AsyncIterable[bytes], *, offset: int | None = None) -> int:
    """Write to a process's standard input; waits while the process does not read.

    Args:
        sandbox: Where.
        id_: The process.
        chunks: What to write.
        offset: Where in the whole input that begins; what has come there before is left out. None is at its end.

    Returns:
        How many bytes have come for its input so far: where the next write begins.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It takes no input, its input was closed, it has ended, or something is missing before ``offset``.
        SandboxEndedError: The sandbox has ended.
    """
    process = check_id(id_)
    async with sandbox.connection(None) as link:
        way = await _way(sandbox, link, process)
        async with way.lock:
            skip = 0
            if offset is not None:
                come = await _until_there(link, way, process)
                if offset > come:
                    raise ConflictError(
                        f"The input of process {process} has {come} bytes; what belongs between them and byte {offset} is missing.",
                        code=ErrorCode.CONFLICT,
                        hint="Write it from where the input ends.",
                        fields={"process": process, "stdin_bytes": come},
                    )
                skip = come - offset
            async for chunk in chunks:
                rest, skip = chunk[skip:], max(0, skip - len(chunk))
                for at in range(0, len(rest), PIECE_BYTES):
                    await way.call.write(rest[at : at + PIECE_BYTES])
            return await _until_there(link, way, process)


async def close(sandbox: Sandbox, id_: str) -> None:
    """End a process's standard input. Where it does not read what was written before, the end is on its way behind that after 5 s.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It takes no input, its input was closed before, it has ended, or somebody has been writing for 5 s.
        SandboxEndedError: The sandbox has ended.
    """
    process = check_id(id_)
    async with sandbox.connection(None) as link:
        way = await _way(sandbox, link, process)
        try:
            async with asyncio.timeout(PROMPT_S):
                await way.lock.acquire()
        except TimeoutError:
            raise ConflictError(
                f"The input of process {process} is still being written.",
                code=ErrorCode.CONFLICT,
                hint="Give that write up first: it waits because the process does not read. Or end the process by a signal.",
                fields={"process": process},
            ) from None
        try:
            if not way.call.takes_input:
                raise _no_input(process)
            way.call.close_stdin()
            with suppress(TimeoutError):
                async with asyncio.timeout(PROMPT_S):
                    await _until_closed(link, process)
        finally:
            way.lock.release()


def feed(sandbox: Sandbox, call: ProcessCall, data: bytes) -> asyncio.Task[None]:
    """Write a process's whole input beside everything else; its bytes were taken from the budget, and go back to it."""

    async def write_all() -> None:
        # A process need not read its input to the end.
        with suppress(SandlotError):
            for at in range(0, len(data), PIECE_BYTES):
                await call.write(data[at : at + PIECE_BYTES])
            call.close_stdin()

    task = sandbox.tasks.create_task(write_all())
    size = len(data)
    # Not in the coroutine: one that is cancelled before its first step runs none of it.
    task.add_done_callback(lambda _: sandbox.buffers.give(size))
    return task


async def given(sandbox: Sandbox, feeding: asyncio.Task[None], call: ProcessCall, size: int) -> None:
    """Return once an input that was given whole has reached the guest, where that does not depend on the process's reading it."""
    if size > PROMPT_BYTES:
        return
    with suppress(SandlotError, TimeoutError):
        async with asyncio.timeout(PROMPT_S), sandbox.connection(None) as link:
            await asyncio.wait({feeding})
            await _until_closed(link, call.id)


async def drain(sandbox: Sandbox, call: ProcessCall) -> None:
    """Take what comes on a call that is there for its input only, until the process ends."""
    with suppress(SandlotError):
        async for _ in call:
            pass
    forget(sandbox, call)
    await call.aclose()


def check_id(id_: str) -> ProcessId:
    """A process id out of a text.

    Raises:
        InvalidRequestError: It is none.
    """
    if PROCESS_ID.fullmatch(id_) is None:
        raise InvalidRequestError(
            f"{id_[:64]!r} is not the id of a process.", hint="Process ids are 32 hexadecimal digits, as given by the call that started it."
        )
    return ProcessId(id_)


async def _way(sandbox: Sandbox, link: Link, process: ProcessId) -> StdinWriter:
    """The way to a process's input: the one there is, or a new one."""
    known = sandbox.inputs.get(process)
    if known is not None:
        return known
    info = await link.process(process)
    if not info.stdin:
        raise _no_input(process)
    call = await link.attach(process, stdout_from=info.stdout_bytes, stderr_from=info.stderr_bytes)
    known = sandbox.inputs.get(process)
    if known is not None:  # somebody else was faster
        await call.aclose()
        return known
    sandbox.spawn(drain(sandbox, call))
    return remember(sandbox, call, info.stdin_bytes)


async def _until_there(link: Link, way: StdinWriter, process: ProcessId) -> int:
    """Return once all that was written has come to the guest: how much that is, with what others wrote."""
    wait_s = _LOOK_S
    while True:
        try:
            info = await link.process(process)
        except UnavailableError as error:
            # Too many calls at once, which whoever is told repeats: what was written already would be written twice.
            if error.code is not ErrorCode.BUSY:
                raise
        else:
            if info.stdin_bytes >= way.position:
                return info.stdin_bytes
            if not info.stdin:
                raise _no_input(process)
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LOOK_MOST_S)


async def _until_closed(link: Link, process: ProcessId) -> None:
    """Return once the end of its input has come to the guest."""
    wait_s = _LOOK_S
    while (await link.process(process)).stdin:
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LOOK_MOST_S)


def _no_input(process: ProcessId) -> ConflictError:
    return ConflictError(
        f"Process {process} takes no input: it has ended, its input was closed, or it was started without.",
        code=ErrorCode.CONFLICT,
        hint="Start it with stdin_open to write to it.",
        fields={"process": process},
    )
