"""Processes in a sandbox: run and collected, followed as they run, started and left, fed, signalled.

Laws:
- Whoever runs a process in the foreground and goes away takes its process group along.
- Output that nobody reads stops the process, never the service: at most a stream's window waits here.
- Numbers that come from a guest are hostile until they were looked at: what leaves here is in bounds.

Processes that are started again: what ran is killed where it still runs, and the same is started anew, under another id.

Law: What is started is what was asked for the first time, whole; where that is not known any more, nothing is done.
"""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

from sandlot.core.execution import process_details
from sandlot.core.execution import stdin as process_stdin
from sandlot.core.execution.following import watch
from sandlot.core.execution.helpers import is_program
from sandlot.core.execution.output import CommandOutputCollector, CommandResult, ProcessOutcome, process_outcome
from sandlot.core.execution.stdin import check_id
from sandlot.core.records.execution_log import NATIVE, ExecutionDescription, LogEntry
from sandlot.core.sandbox import CALL_TIMEOUT_S, GRACE_S, Sandbox
from sandlot.link.client import ProcessCall
from sandlot.link.types import Lost, Output, ProcessInfo
from sandlot.model.capture import Capture
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.records import BACKGROUND
from sandlot.model.specs import ProcessSpec

STDOUT = 1
STDERR = 2


class ProcessExecution:
    """One process that somebody follows. Iterate it, then ask for the outcome.

    Args:
        sandbox: Where it runs.
        call: The link's end of it.
        until: Channel -> offset: where the iteration stops although the process goes on; None is at its end.
        entry: Its line in the log, where it was started for whoever follows it.
    """

    __slots__ = ("_call", "_entry", "_hold", "_over", "_sandbox", "_until")

    def __init__(self, sandbox: Sandbox, call: ProcessCall, *, until: Mapping[int, int] | None = None, entry: LogEntry | None = None) -> None:
        self._sandbox = sandbox
        self._call = call
        self._entry = entry
        self._until = until
        self._over = False
        self._hold = sandbox.hold()

    @property
    def id(self) -> ProcessId:
        """Its id."""
        return self._call.id

    @property
    def pid(self) -> int:
        """Its pid inside the sandbox."""
        return self._call.pid

    async def type(self, data: bytes) -> None:
        """Write to its input; waits where the process does not read.

        Raises:
            ConflictError: It takes no input, its input was closed, or it has ended.
        """
        await self._call.write(data)

    def end_input(self) -> None:
        """End its input. Idempotent."""
        self._call.close_stdin()

    @property
    def over(self) -> bool:
        """Whether its outcome is known, or will never be asked for."""
        return self._over

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
                if self._entry is not None:
                    self._entry.add(event)
                yield event
                if event.channel in behind and event.offset + _size(event) >= behind[event.channel]:
                    del behind[event.channel]
                    if not behind:
                        return
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None

    async def outcome(self) -> ProcessOutcome:
        """How it ended; waits for that.

        Raises:
            SandboxEndedError: The sandbox ended first; says why.
        """
        try:
            outcome = process_outcome(self._call.id, await self._call.result())
        except (SandboxEndedError, UnavailableError) as error:
            self._over = True
            raise await self._sandbox.explain(error) from None
        self._over = True
        process_details.ended(self._sandbox, outcome.process)
        if self._entry is not None:
            self._entry.end(outcome.reason, exit_code=outcome.exit_code, duration_s=outcome.duration_s)
        return outcome

    async def detach(self) -> None:
        """Stop following; the process lives on. Idempotent."""
        self._hold.release()
        entry, self._entry = self._entry, None
        if entry is not None and not entry.over:
            watch(self._sandbox, entry)
        process_stdin.forget(self._sandbox, self._call)
        await self._call.aclose()

    async def close(self, grace_s: float = 0) -> None:
        """Stop following; where it still runs, kill its process group. Idempotent.

        Args:
            grace_s: How long it may take to end by itself, once it was asked to (SIGTERM).
        """
        if self._entry is not None:
            self._entry.cut()
        if not self._over:
            self._over = True
            self._sandbox.spawn(_kill(self._sandbox, self._call.id, grace_s))
        await self.detach()


async def start(
    sandbox: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None, description: ExecutionDescription = NATIVE, chosen: ProcessId | None = None
) -> ProcessExecution:
    """Start a process and follow it.

    Args:
        sandbox: Where.
        spec: What; with ``spec.stdin`` its input stays open for :func:`sandlot.core.execution.stdin.write` unless ``stdin`` is given.
        stdin: All of its standard input.
        description: What the log says of it beyond what it is.
        chosen: Its id, where the caller chose one.

    Raises:
        SandlotError: It could not be started: no such program, folder or permission, or the sandbox has ended.
    """
    id_ = chosen or new_process_id()
    sandbox.buffers.take(len(stdin or b""))
    try:
        with _counted(sandbox, spec):
            async with sandbox.connection() as link:
                call = await link.start(spec, id=id_)
    except BaseException as error:
        sandbox.buffers.give(len(stdin or b""))
        if isinstance(error, asyncio.CancelledError):
            sandbox.spawn(_kill(sandbox, id_))
        raise
    if stdin is not None:
        _ = process_stdin.feed(sandbox, call, stdin)
    elif spec.stdin or spec.pty:
        process_stdin.remember(sandbox, call, 0)
    return ProcessExecution(sandbox, call, entry=_line(sandbox, call.id, spec, description))


async def run(sandbox: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None, description: ExecutionDescription = NATIVE) -> CommandResult:
    """Run a process to its end and collect what it writes. Cancelling kills the process group.

    Args:
        sandbox: Where.
        spec: What.
        stdin: All of its standard input.
        description: What the log says of it beyond what it is.

    Raises:
        SandlotError: It could not be started, or the sandbox ended.
    """
    process = await start(sandbox, spec, stdin=stdin, description=description)
    try:
        return await collected(sandbox, process, spec.timeout_s)
    finally:
        await process.close()


async def collected(sandbox: Sandbox, process: ProcessExecution, timeout_s: float | None) -> CommandResult:
    """All that a process writes, to its end.

    Args:
        sandbox: Where.
        process: It.
        timeout_s: Its own; the guest ends it on time, and this is for a guest that does not.

    Raises:
        SandlotError: The sandbox ended.
    """
    output = CommandOutputCollector(sandbox.buffers, (STDOUT, STDERR))
    try:
        async with sandbox.connection(None if timeout_s is None else timeout_s + GRACE_S):
            async for event in process:
                output.add(event)
            outcome = await process.outcome()
    finally:
        output.close()
    return CommandResult(outcome=outcome, stdout=output[STDOUT], stderr=output[STDERR])


async def launch(
    sandbox: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None, description: ExecutionDescription = NATIVE
) -> tuple[ProcessId, int]:
    """Start a process and leave it; its id and its pid.

    Args:
        sandbox: Where.
        spec: What; with ``spec.stdin`` its input stays open for :func:`sandlot.core.execution.stdin.write` unless ``stdin`` is given.
        stdin: All of its standard input.
        description: What the log says of it beyond what it is.

    Raises:
        SandlotError: It could not be started, or the sandbox has ended.
    """
    sandbox.buffers.take(len(stdin or b""))
    try:
        with _counted(sandbox, spec):
            async with sandbox.connection() as link:
                call = await link.start(spec, attach=stdin is not None)
    except BaseException:
        sandbox.buffers.give(len(stdin or b""))
        raise
    entry = _line(sandbox, call.id, spec, replace(description, mode=BACKGROUND))
    if entry is not None:
        watch(sandbox, entry)
    if stdin is None:
        await call.aclose()
    else:
        # Its input travels on this call, so the call stays; and a reader that does not read would stop the process.
        sandbox.spawn(process_stdin.drain(sandbox, call))
        await process_stdin.given(sandbox, process_stdin.feed(sandbox, call, stdin), call, len(stdin))
    return call.id, call.pid


async def follow(sandbox: Sandbox, id_: str, *, stdout_from: int | None, stderr_from: int | None, to_end: bool = True) -> ProcessExecution:
    """Follow a process that was started before.

    Args:
        sandbox: Where.
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
    async with sandbox.connection() as link:
        if not to_end:
            known = await link.process(process)
            if known.running:
                ends = {STDOUT: (known.stdout_bytes, stdout_from or 0), STDERR: (known.stderr_bytes, stderr_from or 0)}
                until = {channel: end for channel, (end, start) in ends.items() if end > start}
        return ProcessExecution(sandbox, await link.attach(process, stdout_from=stdout_from, stderr_from=stderr_from), until=until)


async def kept(sandbox: Sandbox, id_: str, *, stdout_from: int | None, stderr_from: int | None) -> tuple[ProcessOutcome | None, Capture, Capture]:
    """What there is of a process's output by now, and how it ended where it did; does not wait for more.

    Raises:
        NotFoundError: ``process_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    process = await follow(sandbox, id_, stdout_from=stdout_from, stderr_from=stderr_from, to_end=False)
    output = CommandOutputCollector(sandbox.buffers, (STDOUT, STDERR))
    try:
        async with sandbox.connection():
            async for event in process:
                output.add(event)
            return None if process.running else await process.outcome(), output[STDOUT], output[STDERR]
    finally:
        output.close()
        await process.detach()


async def wait(sandbox: Sandbox, id_: str, timeout_s: float | None = None) -> ProcessOutcome | None:
    """How a process ended; waits for that and reads none of its output.

    Args:
        sandbox: Where.
        id_: The process.
        timeout_s: Seconds to wait at most; None is until its end, 0 only looks.

    Returns:
        How it ended; None where it runs on.

    Raises:
        NotFoundError: ``process_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    process = check_id(id_)
    async with sandbox.connection(None) as link:
        if timeout_s == 0:
            if (await link.process(process)).running:
                return None
            timeout_s = CALL_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                return process_outcome(process, await link.wait(process))
        except TimeoutError:
            return None


async def listing(sandbox: Sandbox) -> list[ProcessInfo]:
    """The processes that were started through the service: running ones, and the last ones that ended; none of Sandlot's own."""
    async with sandbox.connection() as link:
        return [info for info in await link.processes() if not is_program(info.argv)]


async def look(sandbox: Sandbox, id_: str) -> ProcessInfo:
    """What is known of one process.

    Raises:
        NotFoundError: ``process_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    async with sandbox.connection() as link:
        return await link.process(check_id(id_))


async def send_signal(sandbox: Sandbox, id_: str, signal: int) -> bool:
    """Send a signal to a process's group; whether it was still running.

    Raises:
        NotFoundError: ``process_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    async with sandbox.connection() as link:
        return await link.signal(check_id(id_), signal)


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


def _counted(sandbox: Sandbox, spec: ProcessSpec) -> AbstractContextManager[None]:
    """Around what starts a process: the service's own are nobody's runs."""
    return nullcontext() if spec.hidden else sandbox.counted()


def _line(sandbox: Sandbox, process: ProcessId, spec: ProcessSpec, description: ExecutionDescription) -> LogEntry | None:
    """The log's line of a process that was just started, and what is noted of it."""
    process_details.keep(sandbox, process, spec)
    return (
        None
        if spec.hidden or sandbox.execution_log is None
        else sandbox.execution_log.command(sandbox, process, description.argv or spec.argv, description)
    )


async def _kill(sandbox: Sandbox, process: ProcessId, grace_s: float = 0) -> None:
    if sandbox.is_hibernated:
        return  # nobody has left it: its sandbox's sleep cut the link
    with suppress(SandlotError):
        async with sandbox.connection(CALL_TIMEOUT_S + grace_s) as link:
            if grace_s:
                await link.signal(process, int(signals.SIGTERM))
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await link.wait(process)
            await link.signal(process, int(signals.SIGKILL))


def _size(event: Output | Lost) -> int:
    return len(event.data) if isinstance(event, Output) else event.bytes


async def restart(sandbox: Sandbox, id_: str, *, description: ExecutionDescription = NATIVE) -> tuple[ProcessId, int]:
    """Start a process again, and leave it; its new id and its pid.

    Args:
        sandbox: Where.
        id_: The process, which may have ended.
        description: What the log says of it beyond what it is.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It is not known with what it was started, or it does not die.
        SandboxEndedError: The sandbox has ended.
    """
    process = check_id(id_)
    known = await look(sandbox, process)
    spec = process_details.of(sandbox, process).spec
    if spec is None:
        raise ConflictError(
            f"It is not known any more with what process {process} was started.",
            code=ErrorCode.CONFLICT,
            hint="Start it as a new one.",
            fields={"process": process},
        )
    if known.running:
        await send_signal(sandbox, process, int(signals.SIGKILL))
        if await wait(sandbox, process, CALL_TIMEOUT_S) is None:
            raise ConflictError(
                f"Process {process} does not end.", code=ErrorCode.CONFLICT, hint="Look at what it waits for.", fields={"process": process}
            )
    return await launch(sandbox, spec, description=description)
