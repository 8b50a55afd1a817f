"""Processes in a sandbox: run to their end, followed, started in the background, signalled and restarted.

Invariants:
- A process in the foreground is killed, with its process group, when its client leaves.
- Output that no client reads stops the process, not the service: at most the window of one stream waits here.
- Details of a process are for lists and restarts. The service that started the process has them; the next service does not.
- Details are bounded in bytes, which are counted in the buffer budget (``core/node/buffer_budget.py``). Details of processes that are known to have
  ended are dropped first, then the oldest.
- A restarted process is started exactly like the first time. If this is not known any more, the running process is left alone.
"""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from sandlot.core.execution.helpers import is_helper
from sandlot.core.execution.output import CommandResult, OutputCollector, ProcessOutcome, process_outcome
from sandlot.core.execution.stdin import StdinManager, check_id
from sandlot.core.execution.unattended import UnattendedExecutions
from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.records.execution_log import NATIVE, ExecutionDescription, ExecutionLog, LogEntry
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.core.sandbox import CALL_TIMEOUT_S, GRACE_S, Hold, Sandbox, SandboxLocal
from sandlot.link.processes import ProcessCall
from sandlot.link.types import Output, OutputGap, ProcessInfo
from sandlot.model.capture import Capture
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.records import BACKGROUND
from sandlot.model.specs import KIB, ProcessSpec
from sandlot.protocol.schema import STDERR, STDOUT

MAX_DETAILS_BYTES: Final = 128 * KIB
"""Memory of the details of one sandbox's processes: some hundred processes."""
MAX_SPEC_BYTES: Final = 16 * KIB
"""Longest environment and command line of one process that is kept; of a longer one only tag and working directory are kept."""
_DETAILS_BYTES: Final = 256
"""Memory of the details themselves, without their texts."""


@dataclass(frozen=True, slots=True)
class ProcessDetails:
    """Parameters with which a process was started. The guest does not report them.

    Args:
        tag: Name that the client gave to the process; None if there is none.
        cwd: Working directory; None is the default, or not known.
        env: Variables added to the environment; empty if they were too long to be kept.
        spec: All parameters; None if they were too long to be kept, or are not known.
        size_bytes: Approximate memory of the details.
        ended: True if the process is known to have ended.
    """

    tag: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    spec: ProcessSpec | None = None
    size_bytes: int = 0
    ended: bool = False


UNKNOWN: Final = ProcessDetails()
"""Details of a process that this service did not start."""


class SandboxProcesses:
    """Details of the processes of one sandbox.

    Args:
        buffers: Budget of the memory.
    """

    __slots__ = ("_buffers", "details")

    def __init__(self, buffers: BufferBudget) -> None:
        self._buffers = buffers
        self.details: dict[ProcessId, ProcessDetails] = {}

    def remember(self, process: ProcessId, spec: ProcessSpec) -> None:
        """Keep the details of a process that was just started, if there is memory for them."""
        least = _DETAILS_BYTES + len(spec.tag or "") + len(spec.cwd or "")
        size = sum(len(name) + len(value) for name, value in spec.env.items()) + sum(map(len, spec.argv))
        if size <= MAX_SPEC_BYTES:
            details = ProcessDetails(spec.tag, spec.cwd, spec.env, spec, least + size)
        else:
            details = ProcessDetails(spec.tag, spec.cwd, size_bytes=least)
        while self.details and sum(each.size_bytes for each in self.details.values()) + details.size_bytes > MAX_DETAILS_BYTES:
            self._drop(next((known for known, each in self.details.items() if each.ended), next(iter(self.details))))
        if self._buffers.try_take(details.size_bytes):
            self.details[process] = details

    def ended(self, process: ProcessId) -> None:
        """Record that a process has ended: its details are dropped before those of running processes."""
        if (details := self.details.get(process)) is not None:
            self.details[process] = replace(details, ended=True)

    def close(self) -> None:
        """Forget all details. Idempotent."""
        for process in tuple(self.details):
            self._drop(process)

    def _drop(self, process: ProcessId) -> None:
        self._buffers.give(self.details.pop(process).size_bytes)


class ProcessExecution:
    """One process that a client follows. Iterate the execution, then await :meth:`outcome`; close or detach it at the end.

    Args:
        service: Service that started or found the process.
        sandbox: Sandbox of the process.
        call: Call that follows the process in the guest.
        until: Channel -> byte offset at which the iteration stops although the process goes on. None iterates to the end of the process.
        entry: Entry in the execution log; None if another follower writes the entry.

    Attributes:
        call: Call that follows the process in the guest; write the input of the process here.
        id: Id of the process.
        pid: Process number inside the sandbox.
        is_over: True once the outcome is known, or will not be awaited.
        is_running: True if the process goes on when the iteration stops, so that there is no outcome to wait for.
    """

    __slots__ = ("_entry", "_hold", "_sandbox", "_service", "_until", "call", "id", "is_over", "is_running", "pid")

    def __init__(
        self,
        service: ProcessService,
        sandbox: Sandbox,
        call: ProcessCall,
        *,
        until: Mapping[int, int] | None = None,
        entry: LogEntry | None = None,
    ) -> None:
        self._service = service
        self._sandbox = sandbox
        self._entry = entry
        self._until = until
        self._hold = Hold(sandbox.activity)
        self.call = call
        self.id = call.id
        self.pid = call.pid
        self.is_over = False
        self.is_running = until is not None

    async def __aiter__(self) -> AsyncIterator[Output | OutputGap]:
        """Yield the output of the process until its end. A client that stops iterating stops the process.

        Raises:
            SandboxEndedError: The sandbox ended; the error has the reason.
        """
        missing = dict(self._until or {})
        if self._until is not None and not missing:
            return
        try:
            async for event in self.call:
                if self._entry is not None:
                    self._entry.add(event)
                yield event
                if event.channel in missing:
                    size = len(event.data) if isinstance(event, Output) else event.bytes
                    if event.offset + size >= missing[event.channel]:
                        del missing[event.channel]
                        if not missing:
                            return
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None

    async def outcome(self) -> ProcessOutcome:
        """Wait for the end of the process and return how it ended.

        Raises:
            SandboxEndedError: The sandbox ended first; the error has the reason.
        """
        try:
            outcome = process_outcome(self.id, await self.call.result())
        except (SandboxEndedError, UnavailableError) as error:
            self.is_over = True
            raise await self._sandbox.explain(error) from None
        self.is_over = True
        if (state := self._service.state.get(self._sandbox)) is not None:
            state.ended(outcome.process)
        if self._entry is not None:
            self._entry.end(outcome.reason, exit_code=outcome.exit_code, duration_s=outcome.duration_s)
            self._entry = None
        return outcome

    async def collect(self, timeout_s: float | None) -> CommandResult:
        """Collect the output of the process to its end.

        Args:
            timeout_s: Timeout of the process. The guest enforces the timeout; a guest that does not is given up after ``GRACE_S`` more.

        Raises:
            SandlotError: The sandbox ended, or the guest did not respond in time.
        """
        output = OutputCollector(self._sandbox.buffers)
        try:
            async with self._sandbox.connection(None if timeout_s is None else timeout_s + GRACE_S):
                async for event in self:
                    output.add(event)
                outcome = await self.outcome()
        finally:
            output.close()
        return CommandResult(outcome, output.captures[STDOUT], output.captures[STDERR])

    async def detach(self) -> None:
        """Stop following; the process goes on. Idempotent."""
        self._hold.release()
        entry, self._entry = self._entry, None
        if entry is not None and not entry.is_over:
            self._service.unattended.watch(self._sandbox, entry)
        self._service.stdin.unregister(self._sandbox, self.call)
        await self.call.aclose()

    async def close(self, grace_s: float = 0) -> None:
        """Stop following, and kill the process group if the process has not ended. Idempotent.

        Args:
            grace_s: Seconds between SIGTERM and SIGKILL; 0 sends only SIGKILL.
        """
        if self._entry is not None:
            self._entry.cut()
        if not self.is_over:
            self.is_over = True
            self._sandbox.spawn(_kill(self._sandbox, self.id, grace_s))
        await self.detach()


class ProcessService:
    """Runs and finds processes.

    Args:
        log: Execution log.
        usage: Counts executions against the quota of their owner.
        stdin: Writes to the input of processes.
        unattended: Ends the log entries of processes without clients.

    Attributes:
        state: Details of the processes of each sandbox.
    """

    __slots__ = ("_log", "_usage", "state", "stdin", "unattended")

    def __init__(self, log: ExecutionLog, usage: MonthlyExecutionCounter, stdin: StdinManager, unattended: UnattendedExecutions) -> None:
        self._log = log
        self._usage = usage
        self.stdin = stdin
        self.unattended = unattended
        self.state: SandboxLocal[SandboxProcesses] = SandboxLocal(lambda sandbox: SandboxProcesses(sandbox.buffers), SandboxProcesses.close)

    async def run(
        self, sandbox: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None, description: ExecutionDescription = NATIVE
    ) -> CommandResult:
        """Run a process to its end and collect its output. Cancelling kills the process group.

        Args:
            sandbox: Sandbox of the process.
            spec: Process to run.
            stdin: Whole standard input; None is empty.
            description: Facts for the execution log, and an id of the client.

        Raises:
            LimitError: ``quota_exceeded``.
            SandlotError: The process could not be started, or the sandbox ended.
        """
        process = await self.start(sandbox, spec, stdin=stdin, description=description)
        try:
            return await process.collect(spec.timeout_s)
        finally:
            await process.close()

    async def start(
        self, sandbox: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None, description: ExecutionDescription = NATIVE
    ) -> ProcessExecution:
        """Start a process and follow it.

        Args:
            sandbox: Sandbox of the process.
            spec: Process to start. With ``spec.stdin`` its input stays open for :meth:`StdinManager.write`, unless ``stdin`` is given.
            stdin: Whole standard input.
            description: Facts for the execution log, and an id of the client.

        Raises:
            LimitError: ``quota_exceeded``.
            SandlotError: The process could not be started (no such program or directory, no permission), or the sandbox has ended.
        """
        process, size = description.id or new_process_id(), len(stdin or b"")
        sandbox.buffers.take(size)
        try:
            with self._usage.count(sandbox.owner):
                async with sandbox.connection() as link:
                    call = await link.processes.start(spec, id=process)
        except BaseException as error:
            sandbox.buffers.give(size)
            if isinstance(error, asyncio.CancelledError):
                sandbox.spawn(_kill(sandbox, process))  # the guest may have started it
            raise
        if stdin is not None:
            _ = self.stdin.feed(sandbox, call, stdin)
        elif spec.stdin or spec.pty:
            self.stdin.register(sandbox, call)
        self.state.of(sandbox).remember(process, spec)
        return ProcessExecution(self, sandbox, call, entry=self._log.begin(sandbox, process, description, argv=spec.argv))

    async def launch(
        self, sandbox: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None, description: ExecutionDescription = NATIVE
    ) -> tuple[ProcessId, int]:
        """Start a process in the background.

        Args:
            sandbox: Sandbox of the process.
            spec: Process to start. With ``spec.stdin`` its input stays open for :meth:`StdinManager.write`, unless ``stdin`` is given.
            stdin: Whole standard input.
            description: Facts for the execution log, and an id of the client.

        Returns:
            Id of the process, and its process number inside the sandbox.

        Raises:
            LimitError: ``quota_exceeded``.
            SandlotError: The process could not be started, or the sandbox has ended.
        """
        sandbox.buffers.take(len(stdin or b""))
        try:
            with self._usage.count(sandbox.owner):
                async with sandbox.connection() as link:
                    call = await link.processes.start(spec, id=description.id, attach=stdin is not None)
        except BaseException:
            sandbox.buffers.give(len(stdin or b""))
            raise
        self.state.of(sandbox).remember(call.id, spec)
        self.unattended.watch(sandbox, self._log.begin(sandbox, call.id, replace(description, mode=BACKGROUND), argv=spec.argv))
        if stdin is None:
            await call.aclose()
        else:
            # The input travels on this call, so the call stays open; output that is not read would stop the process.
            sandbox.spawn(self.stdin.drain(sandbox, call))
            await self.stdin.confirm_fed(sandbox, self.stdin.feed(sandbox, call, stdin), call, len(stdin))
        return call.id, call.pid

    async def follow(self, sandbox: Sandbox, id_: str, *, stdout_from: int | None, stderr_from: int | None, to_end: bool = True) -> ProcessExecution:
        """Follow a process that was started before.

        Args:
            sandbox: Sandbox of the process.
            id_: Id of the process.
            stdout_from: Byte offset to continue from; None is the oldest byte that the guest keeps.
            stderr_from: Byte offset to continue from; None is the oldest byte that the guest keeps.
            to_end: Follow the process to its end. Otherwise follow the output that exists now.

        Raises:
            NotFoundError: ``process_not_found``.
            SandboxEndedError: The sandbox has ended.
        """
        process = check_id(id_)
        until: dict[int, int] | None = None
        async with sandbox.connection() as link:
            if not to_end:
                known = await link.processes.get(process)
                if known.running:
                    ends = {STDOUT: (known.stdout_bytes, stdout_from or 0), STDERR: (known.stderr_bytes, stderr_from or 0)}
                    until = {channel: end for channel, (end, start) in ends.items() if end > start}
            return ProcessExecution(
                self, sandbox, await link.processes.attach(process, stdout_from=stdout_from, stderr_from=stderr_from), until=until
            )

    async def read(
        self, sandbox: Sandbox, id_: str, *, stdout_from: int | None, stderr_from: int | None
    ) -> tuple[ProcessOutcome | None, Capture, Capture]:
        """Collect the output that a process has written so far, without waiting for more.

        Returns:
            The outcome (None if the process runs), and the output on stdout and on stderr.

        Raises:
            NotFoundError: ``process_not_found``.
            SandboxEndedError: The sandbox has ended.
        """
        process = await self.follow(sandbox, id_, stdout_from=stdout_from, stderr_from=stderr_from, to_end=False)
        output = OutputCollector(sandbox.buffers)
        try:
            async with sandbox.connection():
                async for event in process:
                    output.add(event)
                return None if process.is_running else await process.outcome(), output.captures[STDOUT], output.captures[STDERR]
        finally:
            output.close()
            await process.detach()

    async def wait(self, sandbox: Sandbox, id_: str, timeout_s: float | None = None) -> ProcessOutcome | None:
        """Wait for the end of a process without reading its output.

        Args:
            sandbox: Sandbox of the process.
            id_: Id of the process.
            timeout_s: Longest wait; None waits until the end, 0 does not wait.

        Returns:
            The outcome; None if the process still runs.

        Raises:
            NotFoundError: ``process_not_found``.
            SandboxEndedError: The sandbox has ended.
        """
        process = check_id(id_)
        async with sandbox.connection(None) as link:
            if timeout_s == 0:
                if (await link.processes.get(process)).running:
                    return None
                timeout_s = CALL_TIMEOUT_S
            try:
                async with asyncio.timeout(timeout_s):
                    return process_outcome(process, await link.processes.wait(process))
            except TimeoutError:
                return None

    async def list(self, sandbox: Sandbox) -> Sequence[ProcessInfo]:
        """Return the processes that were started through the service: those that run, and the latest that ended. Sandlot's helpers are not listed."""
        async with sandbox.connection() as link:
            return [info for info in await link.processes.list() if not is_helper(info.argv)]

    async def get(self, sandbox: Sandbox, id_: str) -> ProcessInfo:
        """Return what the guest reports of one process.

        Raises:
            NotFoundError: ``process_not_found``.
            SandboxEndedError: The sandbox has ended.
        """
        async with sandbox.connection() as link:
            return await link.processes.get(check_id(id_))

    def details(self, sandbox: Sandbox, process: ProcessId) -> ProcessDetails:
        """Return the parameters with which a process was started, as far as they are known."""
        state = self.state.get(sandbox)
        return UNKNOWN if state is None else state.details.get(process, UNKNOWN)

    async def signal(self, sandbox: Sandbox, id_: str, number: int) -> bool:
        """Send a signal to a process's group. Return False if the process had ended.

        Raises:
            NotFoundError: ``process_not_found``.
            SandboxEndedError: The sandbox has ended.
        """
        async with sandbox.connection() as link:
            return await link.processes.signal(check_id(id_), number)

    async def restart(self, sandbox: Sandbox, id_: str, *, description: ExecutionDescription = NATIVE) -> tuple[ProcessId, int]:
        """Start a process again in the background, after killing it if it runs.

        Args:
            sandbox: Sandbox of the process.
            id_: Id of the process, which may have ended.
            description: Facts for the execution log, and an id of the client.

        Returns:
            New id of the process, and its process number inside the sandbox.

        Raises:
            NotFoundError: ``process_not_found``.
            ConflictError: The parameters of the process are not known any more, or the process does not end.
            SandboxEndedError: The sandbox has ended.
        """
        process = check_id(id_)
        known = await self.get(sandbox, process)
        spec = self.details(sandbox, process).spec
        if spec is None:
            raise ConflictError(
                f"The parameters with which process {process} was started are not known any more.",
                code=ErrorCode.CONFLICT,
                hint="Start a new process.",
                fields={"process": process},
            )
        if known.running:
            await self.signal(sandbox, process, int(signals.SIGKILL))
            if await self.wait(sandbox, process, CALL_TIMEOUT_S) is None:
                raise ConflictError(
                    f"Process {process} did not end within {CALL_TIMEOUT_S:g} s of SIGKILL.",
                    code=ErrorCode.CONFLICT,
                    hint="Find out what the process waits for.",
                    fields={"process": process},
                )
        return await self.launch(sandbox, spec, description=description)


def signal_number(signal: str | int) -> int:
    """Return the number of a signal.

    Args:
        signal: Name or number: ``SIGTERM``, ``TERM`` or 15.

    Raises:
        InvalidRequestError: There is no such signal.
    """
    if isinstance(signal, str):
        name = signal.upper() if signal.upper().startswith("SIG") else f"SIG{signal.upper()}"
        number = signals.Signals.__members__.get(name, 0)
    else:
        number = signal
    if not 1 <= number < signals.NSIG:
        raise InvalidRequestError(
            f"There is no signal {str(signal)[:32]!r}.", hint="Pass a name such as SIGTERM, or a number.", fields={"field": "signal"}
        )
    return int(number)


async def _kill(sandbox: Sandbox, process: ProcessId, grace_s: float = 0) -> None:
    if sandbox.is_hibernated:
        return  # the hibernation cut the link; the client did not leave
    with suppress(SandlotError):
        async with sandbox.connection(CALL_TIMEOUT_S + grace_s) as link:
            if grace_s:
                await link.processes.signal(process, int(signals.SIGTERM))
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await link.processes.wait(process)
            await link.processes.signal(process, int(signals.SIGKILL))
