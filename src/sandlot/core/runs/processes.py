"""Processes in a sandbox: run and collected, followed as they run, started and left, fed, signalled.

Laws:
- Whoever runs a process in the foreground and goes away takes its process group along.
- Output that nobody reads stops the process, never the service: at most a stream's window waits here.
- Numbers that come from a guest are hostile until they were looked at: what leaves here is in bounds.
- Standard input that was given whole is counted (``core/node/budget.py``) for as long as the process does not take it.
"""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import suppress

from sandlot.core.runs.outcomes import Collected, Finished, Outcome, outcome_of
from sandlot.core.sandbox import CALL_TIMEOUT_S, GRACE_S, Sandbox
from sandlot.link.client import ProcessCall
from sandlot.link.types import Lost, Output, ProcessInfo
from sandlot.model.capture import Capture
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ids import PROCESS_ID, ProcessId, new_process_id
from sandlot.model.specs import ProcessSpec

STDOUT = 1
STDERR = 2

_PIECE_BYTES = 64 * 1024


class Run:
    """One process that somebody follows. Iterate it, then ask for the outcome.

    Args:
        box: Where it runs.
        call: The link's end of it.
        until: Channel -> offset: where the iteration stops although the process goes on; None is at its end.
    """

    __slots__ = ("_box", "_call", "_hold", "_over", "_until")

    def __init__(self, box: Sandbox, call: ProcessCall, *, until: Mapping[int, int] | None = None) -> None:
        self._box = box
        self._hold = box.hold()
        self._call = call
        self._until = until
        self._over = False

    @property
    def id(self) -> ProcessId:
        """Its id."""
        return self._call.id

    @property
    def pid(self) -> int:
        """Its pid inside the sandbox."""
        return self._call.pid

    @property
    def running(self) -> bool:
        """Whether it went on when the iteration stopped, so that there is no outcome to wait for."""
        return self._until is not None

    async def __aiter__(self) -> AsyncIterator[Output | Lost]:
        """Its output as it comes, until its end. One that is not iterated stops the process.

        Raises:
            SandboxEndedError: The sandbox ended meanwhile; says why.
        """
        behind = dict(self._until or {})
        if self._until is not None and not behind:
            return
        try:
            async for event in self._call:
                yield event
                if event.channel in behind and event.offset + _size(event) >= behind[event.channel]:
                    del behind[event.channel]
                    if not behind:
                        return
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._box.explain(error) from None

    async def outcome(self) -> Outcome:
        """How it ended; waits for that.

        Raises:
            SandboxEndedError: The sandbox ended first; says why.
        """
        try:
            outcome = outcome_of(self._call.id, await self._call.result())
        except (SandboxEndedError, UnavailableError) as error:
            self._over = True
            raise await self._box.explain(error) from None
        self._over = True
        return outcome

    async def detach(self) -> None:
        """Stop following; the process lives on. Idempotent."""
        self._hold.release()
        if self._box.inputs.get(self._call.id) is self._call:
            del self._box.inputs[self._call.id]
        await self._call.aclose()

    async def close(self) -> None:
        """Stop following; where it still runs, kill its process group. Idempotent."""
        if not self._over:
            self._over = True
            self._box.keep(asyncio.create_task(_kill(self._box, self._call.id)))
        await self.detach()


async def start(box: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None) -> Run:
    """Start a process and follow it.

    Args:
        box: Where.
        spec: What; with ``spec.stdin`` its input stays open for :func:`write_input` unless ``stdin`` is given.
        stdin: All of its standard input.

    Raises:
        SandlotError: It could not be started: no such program, folder or permission, or the sandbox has ended.
    """
    id_ = new_process_id()
    box.budget.take(len(stdin or b""))
    try:
        async with box.using() as link:
            call = await link.start(spec, id=id_)
    except BaseException as error:
        box.budget.give(len(stdin or b""))
        if isinstance(error, asyncio.CancelledError):
            box.keep(asyncio.create_task(_kill(box, id_)))
        raise
    if stdin is not None:
        _feed(box, call, stdin)
    elif spec.stdin:
        box.inputs[call.id] = call
    return Run(box, call)


async def run(box: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None) -> Finished:
    """Run a process to its end and collect what it writes. Cancelling kills the process group.

    Args:
        box: Where.
        spec: What.
        stdin: All of its standard input.

    Raises:
        SandlotError: It could not be started, or the sandbox ended.
    """
    process = await start(box, spec, stdin=stdin)
    output = Collected(box.budget, (STDOUT, STDERR))
    try:
        # The guest ends it on time; this is for a guest that does not.
        async with box.using(None if spec.timeout_s is None else spec.timeout_s + GRACE_S):
            async for event in process:
                output.add(event)
            outcome = await process.outcome()
    finally:
        output.close()
        await process.close()
    return Finished(outcome=outcome, stdout=output[STDOUT], stderr=output[STDERR])


async def launch(box: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None) -> tuple[ProcessId, int]:
    """Start a process and leave it; its id and its pid.

    Args:
        box: Where.
        spec: What; with ``spec.stdin`` its input stays open for :func:`write_input` unless ``stdin`` is given.
        stdin: All of its standard input.

    Raises:
        SandlotError: It could not be started, or the sandbox has ended.
    """
    box.budget.take(len(stdin or b""))
    try:
        async with box.using() as link:
            call = await link.start(spec, attach=spec.stdin)
    except BaseException:
        box.budget.give(len(stdin or b""))
        raise
    if not spec.stdin:
        box.budget.give(len(stdin or b""))
        await call.aclose()
        return call.id, call.pid
    # Its input travels on this call, so the call stays; and a reader that does not read would stop the process.
    box.keep(asyncio.create_task(_drain(box, call)))
    if stdin is not None:
        _feed(box, call, stdin)
    else:
        box.inputs[call.id] = call
    return call.id, call.pid


async def follow(box: Sandbox, id_: str, *, stdout_from: int | None, stderr_from: int | None, to_end: bool = True) -> Run:
    """Follow a process that was started before.

    Args:
        box: Where.
        id_: The process.
        stdout_from: Byte offset to go on from; None is the oldest that is kept.
        stderr_from: The same.
        to_end: Until the process ends; otherwise only what there is by now.

    Raises:
        NotFoundError: ``process_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    process = check_id(id_)
    until: dict[int, int] | None = None
    async with box.using() as link:
        if not to_end:
            known = next((info for info in await link.processes() if info.process == process), None)
            if known is not None and known.running:
                ends = {STDOUT: (known.stdout_bytes, stdout_from or 0), STDERR: (known.stderr_bytes, stderr_from or 0)}
                until = {channel: end for channel, (end, start) in ends.items() if end > start}
        return Run(box, await link.attach(process, stdout_from=stdout_from, stderr_from=stderr_from), until=until)


async def kept(box: Sandbox, id_: str, *, stdout_from: int | None, stderr_from: int | None) -> tuple[Outcome | None, Capture, Capture]:
    """What there is of a process's output by now, and how it ended where it did; does not wait for more.

    Raises:
        NotFoundError: ``process_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    process = await follow(box, id_, stdout_from=stdout_from, stderr_from=stderr_from, to_end=False)
    output = Collected(box.budget, (STDOUT, STDERR))
    try:
        async with box.using():
            async for event in process:
                output.add(event)
            return None if process.running else await process.outcome(), output[STDOUT], output[STDERR]
    finally:
        output.close()
        await process.detach()


async def wait(box: Sandbox, id_: str, timeout_s: float | None = None) -> Outcome | None:
    """How a process ended; waits for that and reads none of its output.

    Args:
        box: Where.
        id_: The process.
        timeout_s: Seconds to wait at most; None is until its end, 0 only looks.

    Returns:
        How it ended; None where it runs on.

    Raises:
        NotFoundError: ``process_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    process = check_id(id_)
    async with box.using(None) as link:
        if timeout_s == 0:
            if any(info.process == process and info.running for info in await link.processes()):
                return None
            timeout_s = CALL_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                return outcome_of(process, await link.wait(process))
        except TimeoutError:
            return None


async def listing(box: Sandbox) -> list[ProcessInfo]:
    """The processes that were started through the service: running ones, and the last ones that ended."""
    async with box.using() as link:
        return list(await link.processes())


async def write_input(box: Sandbox, id_: str, chunks: AsyncIterable[bytes]) -> None:
    """Write to a process's standard input; waits while the process does not read.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It takes no input, its input was closed, or it has ended.
        SandboxEndedError: The sandbox has ended.
    """
    async with box.using(None):
        call = await _input(box, check_id(id_))
        async for chunk in chunks:
            for at in range(0, len(chunk), _PIECE_BYTES):
                await call.write(chunk[at : at + _PIECE_BYTES])


async def close_input(box: Sandbox, id_: str) -> None:
    """End a process's standard input.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It takes no input, its input was closed before, or it has ended.
        SandboxEndedError: The sandbox has ended.
    """
    async with box.using():
        call = await _input(box, check_id(id_))
        call.close_stdin()
        box.inputs.pop(call.id, None)


async def send_signal(box: Sandbox, id_: str, signal: int) -> bool:
    """Send a signal to a process's group; whether it was still running.

    Raises:
        NotFoundError: ``process_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    async with box.using() as link:
        return await link.signal(check_id(id_), signal)


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


def signal_number(asked: str | int) -> int:
    """The number of a signal.

    Args:
        asked: ``SIGTERM``, ``TERM`` or 15.

    Raises:
        InvalidRequestError: No such signal.
    """
    if isinstance(asked, str):
        name = asked.upper() if asked.upper().startswith("SIG") else f"SIG{asked.upper()}"
        number = signals.Signals.__members__.get(name, 0)
    else:
        number = asked
    if not 1 <= number < signals.NSIG:
        raise InvalidRequestError(
            f"There is no signal {str(asked)[:32]!r}.", hint="Use a name such as SIGTERM, or its number.", fields={"field": "signal"}
        )
    return int(number)


async def _input(box: Sandbox, process: ProcessId) -> ProcessCall:
    """The call that a process's standard input travels on."""
    call = box.inputs.get(process)
    if call is not None:
        return call
    if process not in {info.process for info in await listing(box)}:
        raise NotFoundError(
            f"There is no process {process}.",
            code=ErrorCode.PROCESS_NOT_FOUND,
            hint="It may have been forgotten: list the processes.",
            fields={"process": process},
        )
    raise ConflictError(
        f"Process {process} takes no input: it has ended, its input was closed, or it was started without.",
        code=ErrorCode.CONFLICT,
        hint="Start it with stdin_open to write to it.",
        fields={"process": process},
    )


async def _drain(box: Sandbox, call: ProcessCall) -> None:
    with suppress(SandlotError):
        async for _ in call:
            pass
    box.inputs.pop(call.id, None)
    await call.aclose()


def _feed(box: Sandbox, call: ProcessCall, data: bytes) -> None:
    """Write a process's whole input beside everything else; its bytes were taken from the budget, and go back to it."""

    async def write() -> None:
        # A process need not read its input to the end.
        with suppress(SandlotError):
            for at in range(0, len(data), _PIECE_BYTES):
                await call.write(data[at : at + _PIECE_BYTES])
            call.close_stdin()

    task = asyncio.create_task(write())
    size = len(data)
    # Not in the coroutine: one that is cancelled before its first step runs none of it.
    task.add_done_callback(lambda _: box.budget.give(size))
    box.keep(task)


async def _kill(box: Sandbox, process: ProcessId) -> None:
    with suppress(SandlotError):
        async with box.using() as link:
            await link.signal(process, int(signals.SIGKILL))


def _size(event: Output | Lost) -> int:
    return len(event.data) if isinstance(event, Output) else event.bytes
