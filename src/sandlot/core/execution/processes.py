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
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Self

from sandlot.core.execution import changes
from sandlot.core.execution.changes import ChangeTracker
from sandlot.core.execution.execution import Client, Execution, Executions, ExecutionStream
from sandlot.core.execution.helpers import is_helper
from sandlot.core.execution.output import OutputCollector, process_outcome
from sandlot.core.execution.state import Kind
from sandlot.core.execution.stdin import StdinManager, check_id
from sandlot.core.ports import Clock
from sandlot.core.records.execution_log import ExecutionLog
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import CALL_TIMEOUT_S, GRACE_S, Sandbox, SandboxLocal
from sandlot.link.client import Link
from sandlot.link.processes import ProcessCall
from sandlot.model.access import Principal
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError
from sandlot.model.executions import (
    NATIVE,
    Channel,
    CommandResult,
    ExecutionOptions,
    Output,
    OutputGap,
    ProcessEnded,
    ProcessEvent,
    ProcessInfo,
    ProcessOutcome,
    ProcessStarted,
)
from sandlot.model.ids import ProcessId
from sandlot.model.languages import missing_program_hint
from sandlot.model.output_capture import OutputCapture
from sandlot.model.records import FOREGROUND
from sandlot.model.specs import KIB, ProcessSpec
from sandlot.model.streams import Stream

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
        tag: See :class:`ProcessInfo`.
        cwd: See :class:`ProcessInfo`.
        env: See :class:`ProcessInfo`.
        started_at: See :class:`ProcessInfo`.
        spec: All parameters; None if they were too long to be kept or are unknown.
        size_bytes: Approximate memory of the details.
        ended: True if the process is known to have ended.
    """

    tag: str | None
    cwd: str | None
    env: Mapping[str, str]
    started_at: datetime
    spec: ProcessSpec | None
    size_bytes: int
    ended: bool = False


class SandboxProcesses:
    """Details of the processes of one sandbox. Their memory is counted in the buffer budget of the sandbox."""

    __slots__ = ("_buffers", "details")

    def __init__(self, buffers: BufferBudget) -> None:
        self._buffers = buffers
        self.details: dict[ProcessId, ProcessDetails] = {}

    def remember(self, process: ProcessId, spec: ProcessSpec, started_at: datetime) -> None:
        """Keep the details of a process that was just started, if there is memory for them."""
        least = _DETAILS_BYTES + len(spec.tag or "") + len(spec.cwd or "")
        size = sum(len(name) + len(value) for name, value in spec.env.items()) + sum(map(len, spec.argv))
        if size <= MAX_SPEC_BYTES:
            details = ProcessDetails(spec.tag, spec.cwd, spec.env, started_at, spec, least + size)
        else:
            details = ProcessDetails(spec.tag, spec.cwd, {}, started_at, None, least)
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


class ProcessExecution(ExecutionStream[ProcessCall, Output | OutputGap]):
    """One client's stream of a process. Iterate over it for the output, then await :meth:`outcome`, and close or detach the stream at the end.

    Attributes:
        pid: Process number inside the sandbox.
    """

    def __init__(
        self, service: ProcessService, sandbox: Sandbox, call: ProcessCall, client: Client | None, until: Mapping[int, int] | None = None
    ) -> None:
        super().__init__(sandbox, call, client, until=until)
        self._service = service
        self.pid = call.pid

    async def outcome(self) -> ProcessOutcome:
        """Wait for the end of the process and return its outcome."""
        outcome = process_outcome(self.id, await self.result())
        if (state := self._service.state.get(self._sandbox)) is not None:
            state.ended(self.id)
        return outcome

    async def collect(self, timeout_s: float | None, on_output: Callable[[Output], object] | None = None) -> CommandResult:
        """Collect the output of the process until the process ends. ``on_output`` is called with each piece as it arrives.

        The guest enforces ``timeout_s``. If the guest does not respond, this method fails ``GRACE_S`` seconds after the timeout. None: no timeout.
        """
        output = OutputCollector(self._sandbox.buffers)
        try:
            async with self._sandbox.connection(None if timeout_s is None else timeout_s + GRACE_S):
                async for event in self:
                    output.add(event)
                    if on_output is not None and isinstance(event, Output):
                        on_output(event)
                outcome = await self.outcome()
        finally:
            output.close()
        return CommandResult(outcome, output.captures[Channel.STDOUT], output.captures[Channel.STDERR])


class ProcessStream:
    """Events of one process for one client: :class:`ProcessStarted`, the output, and :class:`ProcessEnded`.

    The last event is missing if only the output until now was requested and the process still runs.

    Args:
        run: The process.
        detaches: True to let the process continue when the stream is closed.
        tracker: Tracker of the files that the process changes; None tracks no files.
        log: Execution log, which gets the number of changed files.
    """

    __slots__ = ("_detaches", "_has_begun", "_is_over", "_log", "_run", "_tracker")

    def __init__(self, run: ProcessExecution, log: ExecutionLog, *, detaches: bool, tracker: ChangeTracker | None = None) -> None:
        self._run = run
        self._log = log
        self._detaches = detaches
        self._tracker = tracker
        self._has_begun = False
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProcessEvent:
        if self._is_over:
            raise StopAsyncIteration
        if not self._has_begun:
            self._has_begun = True
            return ProcessStarted(self._run.id, self._run.pid)
        try:
            return await anext(self._run)
        except StopAsyncIteration:
            if self._run.is_closed or self._run.is_running:
                raise
        outcome = await self._run.outcome()
        files = None if self._tracker is None else await self._tracker.report()
        if self._run.is_closed:
            raise StopAsyncIteration
        if files is not None:
            self._log.set_files(outcome.process, len(files[0]))
        self._is_over = True
        return ProcessEnded(outcome, files)

    async def aclose(self) -> None:
        """Leave the process: it is killed, unless it is to continue. A client that chose the id may come back in 3 s. Idempotent."""
        await self._run.close(detach=self._detaches)
        if self._tracker is not None:
            self._tracker.close()


class ProcessService:
    """Runs and finds processes in sandboxes."""

    def __init__(self, registry: SandboxRegistry, stdin: StdinManager, executions: Executions, clock: Clock) -> None:
        self._registry = registry
        self.stdin = stdin
        self.executions = executions
        self._clock = clock
        self.state: SandboxLocal[SandboxProcesses] = SandboxLocal(lambda sandbox: SandboxProcesses(sandbox.buffers), SandboxProcesses.close)

    async def run(
        self,
        principal: Principal,
        sandbox: str,
        spec: ProcessSpec,
        *,
        stdin: bytes | None = None,
        track: Sequence[str] = (),
        options: ExecutionOptions = NATIVE,
        on_output: Callable[[Output], object] | None = None,
    ) -> CommandResult:
        """Run a process to its end and collect its output.

        If the caller is cancelled, the process is killed; if the client chose the id, only once the process has had no client for 3 s.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            spec: Program to run.
            stdin: Whole standard input; None is an empty input.
            track: Folders, at most 16. The result has the files below these folders that the process created or changed.
            options: Id of the process, and its description for the execution log.
            on_output: Called with each piece of output as it arrives.

        Raises:
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
        """
        live = self._registry.find(sandbox, principal)
        tracker = await changes.track(live, track, spec.user or live.spec.user) if track else None
        try:
            process = await self.start(live, spec, stdin=stdin, options=options)
            try:
                result = await process.collect(spec.timeout_s, on_output)
            finally:
                await process.close()
            if tracker is None:
                return result
            files = await tracker.report()
        finally:
            if tracker is not None:
                tracker.close()
        self.executions.log.set_files(result.outcome.process, len(files[0]))
        return replace(result, files=files)

    async def stream(
        self,
        principal: Principal,
        sandbox: str,
        spec: ProcessSpec,
        *,
        stdin: bytes | None = None,
        track: Sequence[str] = (),
        options: ExecutionOptions = NATIVE,
        keeps_running: bool = False,
    ) -> Stream[ProcessEvent]:
        """Start a process and return its events. See :meth:`run`.

        If ``stdin`` is None and ``spec.stdin`` is True, clients can write to the input. If the caller is cancelled or the stream is closed, the
        process is killed as in :meth:`run`, unless ``keeps_running`` is True.
        """
        live = self._registry.find(sandbox, principal)
        tracker = await changes.track(live, track, spec.user or live.spec.user) if track else None
        try:
            run = await self.start(live, spec, stdin=stdin, options=options)
        except BaseException:
            if tracker is not None:
                tracker.close()
            raise
        return ProcessStream(run, self.executions.log, detaches=keeps_running, tracker=tracker)

    async def launch(
        self, principal: Principal, sandbox: str, spec: ProcessSpec, *, stdin: bytes | None = None, options: ExecutionOptions = NATIVE
    ) -> ProcessInfo:
        """Start a process in the background. If the caller is cancelled during the start, the process is killed, unless the client chose its id."""
        live = self._registry.find(sandbox, principal)
        spec = _in_sandbox(spec, live)
        feeding: asyncio.Task[None] | None = None

        async def send(execution: Execution, link: Link) -> ProcessCall:
            nonlocal feeding
            call = await self._send(execution, link, spec, stdin, attach=stdin is not None)
            if stdin is None:
                await call.aclose()
            else:
                # The call stays open because it carries the input. The output of the call is drained: unread output would block the process.
                live.tasks.spawn(self.stdin.drain(call))
                feeding = self.stdin.feed(live, call, stdin)
            return call

        options = replace(options, argv=options.argv or spec.argv)
        execution = await self.executions.launch(live, Kind.PROCESS, options, send)
        if not isinstance(execution.call, ProcessCall):
            return self._started(spec, execution.id, (await self.get(principal, sandbox, execution.id)).pid)
        if feeding is not None and stdin is not None:
            await self.stdin.confirm_fed(live, feeding, execution.call, len(stdin))
        return self._started(spec, execution.id, execution.call.pid)

    async def restart(self, principal: Principal, sandbox: str, process: str, *, options: ExecutionOptions = NATIVE) -> ProcessInfo:
        """Start a process again in the background, under a new id. If the process still runs, it is killed first. See :meth:`launch`.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
            ConflictError: The parameters of the process are no longer known, or the process does not end after SIGKILL.
        """
        live, id_ = self._registry.find(sandbox, principal), check_id(process)
        known = await self.get(principal, sandbox, id_)
        details = self.state.of(live).details.get(id_)
        if details is None or details.spec is None:
            raise ConflictError(
                f"Process {id_} cannot be restarted: the service no longer has its parameters.",
                hint="Start a new process, and pass the command and its options again.",
                fields={"process": id_},
            )
        if known.running:
            await self.signal(principal, sandbox, id_, int(signals.SIGKILL))
            if await self.wait(principal, sandbox, id_, timeout_s=CALL_TIMEOUT_S) is None:
                raise ConflictError(
                    f"Process {id_} had not ended {CALL_TIMEOUT_S:g} s after SIGKILL.",
                    hint="Wait until the process has ended, and restart it again.",
                    fields={"process": id_},
                )
        return await self.launch(principal, sandbox, details.spec, options=options)

    async def follow(
        self,
        principal: Principal,
        sandbox: str,
        process: str,
        *,
        stdout_from: int | None = None,
        stderr_from: int | None = None,
        to_end: bool = True,
    ) -> Stream[ProcessEvent]:
        """Return the events of a process that was started earlier, and that may have ended. Closing the stream does not end the process.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            process: Id of the process.
            stdout_from: Byte offset from which standard output is read; None is the oldest byte that the guest keeps.
            stderr_from: The same for standard error.
            to_end: False to read only the output that exists now.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
        """
        live = self._registry.find(sandbox, principal)
        run = await self.follow_in(live, process, stdout_from=stdout_from, stderr_from=stderr_from, to_end=to_end)
        return ProcessStream(run, self.executions.log, detaches=True)

    async def read(
        self, principal: Principal, sandbox: str, process: str, *, stdout_from: int | None = None, stderr_from: int | None = None
    ) -> tuple[ProcessOutcome | None, OutputCapture, OutputCapture]:
        """Collect the output that a process has written until now, without waiting for more output. See :meth:`follow`.

        Returns:
            The outcome (None if the process still runs), the standard output and the standard error.
        """
        live = self._registry.find(sandbox, principal)
        run = await self.follow_in(live, process, stdout_from=stdout_from, stderr_from=stderr_from, to_end=False)
        output = OutputCollector(live.buffers)
        try:
            async with live.connection():
                async for event in run:
                    output.add(event)
                return None if run.is_running else await run.outcome(), output.captures[Channel.STDOUT], output.captures[Channel.STDERR]
        finally:
            output.close()
            await run.detach()

    async def list(self, principal: Principal, sandbox: str) -> tuple[ProcessInfo, ...]:
        """Return the running processes that clients started, and the latest processes that ended. Sandlot's helpers are not listed."""
        live = self._registry.find(sandbox, principal)
        async with live.connection() as link:
            return tuple(self._detailed(live, info) for info in await link.processes.list() if not is_helper(info.argv))

    async def get(self, principal: Principal, sandbox: str, process: str) -> ProcessInfo:
        """Return the state of one process.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
        """
        live = self._registry.find(sandbox, principal)
        async with live.connection() as link:
            return self._detailed(live, await link.processes.get(check_id(process)))

    async def wait(self, principal: Principal, sandbox: str, process: str, *, timeout_s: float | None = None) -> ProcessOutcome | None:
        """Wait for the end of a process without reading its output. Return None if the process still runs after ``timeout_s`` seconds.

        ``timeout_s`` None waits until the end, 0 does not wait.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
        """
        id_ = check_id(process)
        async with self._registry.find(sandbox, principal).connection(None) as link:
            if timeout_s == 0:
                if (await link.processes.get(id_)).running:
                    return None
                timeout_s = CALL_TIMEOUT_S
            try:
                async with asyncio.timeout(timeout_s):
                    return process_outcome(id_, await link.processes.wait(id_))
            except TimeoutError:
                return None

    async def signal(self, principal: Principal, sandbox: str, process: str, number: int) -> bool:
        """Send a signal to the process group of a process. Return False if the process had ended.

        Raises:
            NotFoundError: The sandbox has no such process (code ``process_not_found``).
        """
        async with self._registry.find(sandbox, principal).connection() as link:
            return await link.processes.signal(check_id(process), number)

    async def write_stdin(self, principal: Principal, sandbox: str, process: str, chunks: AsyncIterable[bytes], *, offset: int | None = None) -> int:
        """Write to a process's standard input. Waits while the process does not read. See :meth:`StdinManager.write`."""
        return await self.stdin.write(self._registry.find(sandbox, principal), process, chunks, offset=offset)

    async def close_stdin(self, principal: Principal, sandbox: str, process: str) -> None:
        """Close a process's standard input. See :meth:`StdinManager.close`."""
        await self.stdin.close(self._registry.find(sandbox, principal), process)

    # Operations on a live sandbox -------------------------------------------------------------------------------------

    async def start(
        self,
        sandbox: Sandbox,
        spec: ProcessSpec,
        *,
        stdin: bytes | None = None,
        options: ExecutionOptions = NATIVE,
        kind: Kind = Kind.PROCESS,
        mode: str = FOREGROUND,
    ) -> ProcessExecution:
        """Start a process in the foreground, or join the process with the id that the client chose.

        ``stdin`` is the whole standard input. If ``stdin`` is None and ``spec.stdin`` is True, clients can write to the input.

        Raises:
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
            SandlotError: The process could not be started (no such program or directory, no permission), or the sandbox has ended.
        """
        spec = _in_sandbox(spec, sandbox)

        async def attach(id_: ProcessId) -> ProcessCall:
            async with sandbox.connection() as link:
                return await link.processes.attach(id_)

        async def find(id_: ProcessId) -> ProcessCall | None:
            with suppress(NotFoundError):
                return await attach(id_)
            return None

        async def send(execution: Execution, link: Link) -> ProcessCall:
            call = await self._send(execution, link, spec, stdin)
            if stdin is not None:
                _ = self.stdin.feed(sandbox, call, stdin)
            return call

        options = replace(options, argv=options.argv or spec.argv)
        return ProcessExecution(
            self,
            sandbox,
            *await self.executions.open(sandbox, kind, options, send, find=None if options.id is None else find, attach=attach, mode=mode),
        )

    async def _send(self, execution: Execution, link: Link, spec: ProcessSpec, stdin: bytes | None, *, attach: bool = True) -> ProcessCall:
        """Send the start of a process to the guest. The memory of the input is reserved; :meth:`StdinManager.feed` gives it back."""
        sandbox, size = execution.sandbox, len(stdin or b"")
        sandbox.buffers.take(size)
        try:
            execution.was_sent = True
            call = await link.processes.start(spec, id=execution.id, attach=attach)
            self.state.of(sandbox).remember(execution.id, spec, self._clock.now())
        except BaseException as error:
            sandbox.buffers.give(size)
            if isinstance(error, NotFoundError) and error.code is ErrorCode.PROGRAM_NOT_FOUND:
                error.hint = missing_program_hint(spec.argv[0]) or error.hint
            raise
        return call

    async def follow_in(
        self, sandbox: Sandbox, id_: str, *, stdout_from: int | None, stderr_from: int | None, to_end: bool = True
    ) -> ProcessExecution:
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

    def _detailed(self, sandbox: Sandbox, info: ProcessInfo) -> ProcessInfo:
        state = self.state.get(sandbox)
        known = None if state is None else state.details.get(info.process)
        return info if known is None else replace(info, tag=known.tag, cwd=known.cwd, env=known.env, started_at=known.started_at)

    def _started(self, spec: ProcessSpec, process: ProcessId, pid: int) -> ProcessInfo:
        """Return the state of a process that was just started."""
        return ProcessInfo(
            process=process,
            pid=pid,
            argv=spec.argv,
            running=True,
            reason=None,
            exit_code=None,
            signal=None,
            duration_s=0.0,
            pty=spec.pty,
            stdin=spec.stdin,
            stdin_bytes=0,
            stdout_bytes=0,
            stderr_bytes=0,
            tag=spec.tag,
            cwd=spec.cwd,
            env=spec.env,
            started_at=self._clock.now(),
        )


def _in_sandbox(spec: ProcessSpec, sandbox: Sandbox) -> ProcessSpec:
    """Return the process with its user and the absolute path of its working directory."""
    return replace(spec, user=spec.user or sandbox.spec.user, cwd=None if spec.cwd is None else sandbox.absolute_path(spec.cwd))
