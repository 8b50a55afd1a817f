"""Run, start, signal and restart processes in a sandbox, and read their output.

Invariants:
- When the client of a foreground process disconnects, the process is killed together with its process group.
- If a client is connected to a process but does not read the output, the process blocks when it writes more. The service holds at most one stream
  window of the output. While no client is connected, the guest drops the oldest output, and the process does not block. If the
  link to the guest was lost, this applies only after 30 s.
- The service keeps the parameters of each process that it starts (:class:`ProcessDetails`), to list and to restart the process. The parameters are
  lost when the service restarts.
- The memory of these parameters is limited, and counted in the buffer budget (``model/buffer_budget.py``). Parameters of processes that are known
  to have ended are dropped first, then the oldest parameters.
- A process is restarted with exactly the parameters of its first start. If the service no longer has the parameters, it refuses the restart, and a
  process that still runs continues.
"""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from sandlot.core.execution.execution import Client, Execution, Executions, ExecutionStream
from sandlot.core.execution.helpers import is_helper
from sandlot.core.execution.output import OutputCollector, process_outcome
from sandlot.core.execution.state import Kind
from sandlot.core.execution.stdin import StdinManager, check_id
from sandlot.core.records.execution_log import NATIVE, ExecutionDescription
from sandlot.core.sandbox import CALL_TIMEOUT_S, GRACE_S, Sandbox, SandboxLocal
from sandlot.link.processes import ProcessCall
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import ConflictError, NotFoundError
from sandlot.model.executions import Channel, CommandResult, Output, OutputGap, ProcessInfo, ProcessOutcome
from sandlot.model.ids import ProcessId
from sandlot.model.output_capture import OutputCapture
from sandlot.model.records import INSTALL
from sandlot.model.specs import KIB, ProcessSpec

MAX_DETAILS_BYTES: Final = 128 * KIB
"""Maximum memory, in bytes, of all :class:`ProcessDetails` of one sandbox: enough for some hundred processes."""
MAX_SPEC_BYTES: Final = 16 * KIB
"""Maximum size, in bytes, of the environment and command line of a process together. If they are larger, only the tag and the working directory
are kept."""
_DETAILS_BYTES: Final = 256
"""Approximate memory, in bytes, of one :class:`ProcessDetails` without its strings."""


@dataclass(frozen=True, slots=True)
class ProcessDetails:
    """Parameters with which a process was started. The guest does not report these parameters.

    Args:
        tag: Name that the client gave to the process; None if the client gave no name.
        cwd: Working directory; None if it is the default or unknown.
        env: Variables added to the environment; empty if they were too long to be kept.
        spec: All parameters; None if they were too long to be kept or are unknown.
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
    """Details of the processes of one sandbox. Their memory is counted in the buffer budget of the sandbox."""

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
        """Record that a process has ended, so that its details are dropped before the details of running processes."""
        if (details := self.details.get(process)) is not None:
            self.details[process] = replace(details, ended=True)

    def close(self) -> None:
        """Forget all details. Idempotent."""
        for process in tuple(self.details):
            self._drop(process)

    def _drop(self, process: ProcessId) -> None:
        self._buffers.give(self.details.pop(process).size_bytes)


class ProcessExecution(ExecutionStream[ProcessCall]):
    """One client's stream of a process. Iterate over it for the output, then await :meth:`outcome`, and close or detach the stream at the end.

    Args:
        until: Channel -> byte offset. The iteration stops once it has reached all these offsets, even if the process still runs. None: the iteration
            stops at the end of the process.

    Attributes:
        pid: Process number inside the sandbox.
        is_running: True if the process still runs when the iteration stops, so that it has no outcome yet.
    """

    __slots__ = ("_service", "_until", "is_running", "pid")

    def __init__(
        self, service: ProcessService, sandbox: Sandbox, call: ProcessCall, client: Client | None, until: Mapping[int, int] | None = None
    ) -> None:
        super().__init__(sandbox, call, client)
        self._service = service
        self._until = until
        self.pid = call.pid
        self.is_running = until is not None

    async def __aiter__(self) -> AsyncIterator[Output | OutputGap]:
        """Yield the output of the process until its end. If the client stops iterating, the process blocks when it writes more output."""
        missing = dict(self._until or {})
        if self._until is not None and not missing:
            return
        async for event in self._events():
            yield event
            if event.channel in missing:
                size = len(event.data) if isinstance(event, Output) else event.bytes
                if event.offset + size >= missing[event.channel]:
                    del missing[event.channel]
                    if not missing:
                        return

    async def outcome(self) -> ProcessOutcome:
        """Wait for the end of the process and return its outcome."""
        outcome = process_outcome(self.id, await self._result())
        if (state := self._service.state.get(self._sandbox)) is not None:
            state.ended(outcome.process)
        return outcome

    async def collect(self, timeout_s: float | None) -> CommandResult:
        """Collect the output of the process until the process ends.

        The guest enforces ``timeout_s``. If the guest does not respond, this method fails ``GRACE_S`` seconds after the timeout. None: no timeout.
        """
        output = OutputCollector(self._sandbox.buffers)
        try:
            async with self._sandbox.connection(None if timeout_s is None else timeout_s + GRACE_S):
                async for event in self:
                    output.add(event)
                outcome = await self.outcome()
        finally:
            output.close()
        return CommandResult(outcome, output.captures[Channel.STDOUT], output.captures[Channel.STDERR])


class ProcessService:
    """Runs and finds processes in sandboxes.

    Attributes:
        state: Details of the processes of each sandbox.
    """

    def __init__(self, stdin: StdinManager, executions: Executions) -> None:
        self.stdin = stdin
        self.executions = executions
        self.state: SandboxLocal[SandboxProcesses] = SandboxLocal(lambda sandbox: SandboxProcesses(sandbox.buffers), SandboxProcesses.close)

    async def run(
        self, sandbox: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None, description: ExecutionDescription = NATIVE
    ) -> CommandResult:
        """Run a process to its end and collect its output. If the caller is cancelled, the stream is closed; see :meth:`ProcessExecution.close`.

        ``stdin`` is the whole standard input; None is an empty input.

        Raises:
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
        """
        process = await self.start(sandbox, spec, stdin=stdin, description=description)
        try:
            return await process.collect(spec.timeout_s)
        finally:
            await process.close()

    async def start(
        self,
        sandbox: Sandbox,
        spec: ProcessSpec,
        *,
        stdin: bytes | None = None,
        description: ExecutionDescription = NATIVE,
        kind: Kind = Kind.PROCESS,
    ) -> ProcessExecution:
        """Start a process in the foreground, or join the process with the id that the client chose.

        ``stdin`` is the whole standard input. If ``stdin`` is None and ``spec.stdin`` is True, clients can write to the input.

        Raises:
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
            SandlotError: The process could not be started (no such program or directory, no permission), or the sandbox has ended.
        """

        async def attach(id_: ProcessId) -> ProcessCall:
            async with sandbox.connection() as link:
                return await link.processes.attach(id_)

        async def send(execution: Execution) -> ProcessCall:
            if description.id is not None:
                with suppress(NotFoundError):
                    call = await attach(execution.id)
                    execution.description = None  # the process was counted and logged at its start
                    return call
            call = await self._send(execution, spec, stdin)
            if stdin is not None:
                _ = self.stdin.feed(sandbox, call, stdin)
            return call

        description = replace(description, argv=description.argv or spec.argv)
        return ProcessExecution(self, sandbox, *await self.executions.open(sandbox, kind, description, send, attach))

    async def launch(
        self, sandbox: Sandbox, spec: ProcessSpec, *, stdin: bytes | None = None, description: ExecutionDescription = NATIVE
    ) -> tuple[ProcessId, int]:
        """Start a process in the background. If the caller is cancelled during the start, the process is killed, unless the client chose its id.

        Returns:
            Id of the process, and its process number inside the sandbox.
        """
        feeding: asyncio.Task[None] | None = None

        async def send(execution: Execution) -> ProcessCall:
            nonlocal feeding
            call = await self._send(execution, spec, stdin, attach=stdin is not None)
            if stdin is None:
                await call.aclose()
            else:
                # The call stays open because it carries the input. The output of the call is drained: unread output would block the process.
                sandbox.tasks.spawn(self.stdin.drain(call))
                feeding = self.stdin.feed(sandbox, call, stdin)
            return call

        description = replace(description, argv=description.argv or spec.argv)
        execution = await self.executions.launch(sandbox, Kind.PROCESS, description, send)
        if not isinstance(execution.call, ProcessCall):
            return execution.id, (await self.get(sandbox, execution.id)).pid
        if feeding is not None and stdin is not None:
            await self.stdin.confirm_fed(sandbox, feeding, execution.call, len(stdin))
        return execution.id, execution.call.pid

    async def _send(self, execution: Execution, spec: ProcessSpec, stdin: bytes | None, *, attach: bool = True) -> ProcessCall:
        """Send the start of a process to the guest. The memory of the input is reserved; :meth:`StdinManager.feed` gives it back."""
        sandbox, size = execution.sandbox, len(stdin or b"")
        sandbox.buffers.take(size)
        try:
            with self.executions.counted(execution):
                if execution.description is not None and execution.description.mode == INSTALL:
                    self.executions.access.open(sandbox, execution.id)
                async with sandbox.connection() as link:
                    execution.was_sent = True
                    call = await link.processes.start(spec, id=execution.id, attach=attach)
            self.state.of(sandbox).remember(execution.id, spec)
        except BaseException:
            sandbox.buffers.give(size)
            raise
        return call

    async def follow(self, sandbox: Sandbox, id_: str, *, stdout_from: int | None, stderr_from: int | None, to_end: bool = True) -> ProcessExecution:
        """Read the output of a process that was started earlier. The process may have ended already. Closing the stream does not end the process.

        The output is read from the byte offsets ``stdout_from`` and ``stderr_from``; None is the oldest byte that the guest keeps. If ``to_end`` is
        False, only the output that exists now is read.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
        """
        process = check_id(id_)
        until: dict[int, int] | None = None
        async with sandbox.connection() as link:
            if not to_end:
                known = await link.processes.get(process)
                if known.running:
                    ends = {Channel.STDOUT: (known.stdout_bytes, stdout_from or 0), Channel.STDERR: (known.stderr_bytes, stderr_from or 0)}
                    until = {channel: end for channel, (end, start) in ends.items() if end > start}
            call = await link.processes.attach(process, stdout_from=stdout_from, stderr_from=stderr_from)
        return ProcessExecution(self, sandbox, call, self.executions.enter(sandbox, process), until)

    async def read(
        self, sandbox: Sandbox, id_: str, *, stdout_from: int | None, stderr_from: int | None
    ) -> tuple[ProcessOutcome | None, OutputCapture, OutputCapture]:
        """Collect the output that a process has written until now, without waiting for more output.

        Returns:
            The outcome (None if the process still runs), the standard output and the standard error.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
        """
        process = await self.follow(sandbox, id_, stdout_from=stdout_from, stderr_from=stderr_from, to_end=False)
        output = OutputCollector(sandbox.buffers)
        try:
            async with sandbox.connection():
                async for event in process:
                    output.add(event)
                return None if process.is_running else await process.outcome(), output.captures[Channel.STDOUT], output.captures[Channel.STDERR]
        finally:
            output.close()
            await process.detach()

    async def wait(self, sandbox: Sandbox, id_: str, timeout_s: float | None = None) -> ProcessOutcome | None:
        """Wait for the end of a process without reading its output. Return None if the process still runs after ``timeout_s`` seconds.

        ``timeout_s`` None waits until the end, 0 does not wait.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
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
        """Return the running processes that clients started, and the latest processes that ended. Sandlot's helpers are not listed."""
        async with sandbox.connection() as link:
            return [info for info in await link.processes.list() if not is_helper(info.argv)]

    async def get(self, sandbox: Sandbox, id_: str) -> ProcessInfo:
        """Return the state of one process, as the guest reports it.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
        """
        async with sandbox.connection() as link:
            return await link.processes.get(check_id(id_))

    def details(self, sandbox: Sandbox, process: ProcessId) -> ProcessDetails:
        """Return the parameters with which a process was started, as far as they are known."""
        state = self.state.get(sandbox)
        return UNKNOWN if state is None else state.details.get(process, UNKNOWN)

    async def signal(self, sandbox: Sandbox, id_: str, number: int) -> bool:
        """Send a signal to the process group of a process. Return False if the process had ended.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
        """
        async with sandbox.connection() as link:
            return await link.processes.signal(check_id(id_), number)

    async def restart(self, sandbox: Sandbox, id_: str, *, description: ExecutionDescription = NATIVE) -> tuple[ProcessId, int]:
        """Start a process again in the background. If the process still runs, it is killed first. See :meth:`launch`.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
            ConflictError: The parameters of the process are no longer known, or the process does not end after SIGKILL.
        """
        process = check_id(id_)
        known = await self.get(sandbox, process)
        spec = self.details(sandbox, process).spec
        if spec is None:
            raise ConflictError(
                f"Process {process} cannot be restarted: the service no longer has its parameters.",
                hint="Start a new process, and pass the command and its options again.",
                fields={"process": process},
            )
        if known.running:
            await self.signal(sandbox, process, int(signals.SIGKILL))
            if await self.wait(sandbox, process, CALL_TIMEOUT_S) is None:
                raise ConflictError(
                    f"Process {process} had not ended {CALL_TIMEOUT_S:g} s after SIGKILL.",
                    hint="Wait until the process has ended, and restart it again.",
                    fields={"process": process},
                )
        return await self.launch(sandbox, spec, description=description)
