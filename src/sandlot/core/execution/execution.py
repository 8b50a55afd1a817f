"""Executions of a sandbox: cells, processes and installations of packages, with their clients, log entries and ends.

:mod:`sandlot.core.execution.state` decides what happens to an execution; :class:`Execution` does it.

Invariants:
- The id of an execution is known before its request is sent, so a start that fails or is cancelled leaves no execution uncounted: the execution is
  killed, or counted and left to the next service or the next wake.
- The end of every execution is written to its log entry. If the service stops first, the next service writes the end.
- Until the end, exactly one reader gets the output for the log entry: the client on whose request the execution was started or, without this
  client, a task of the execution. The output of an unattended process is read once, after its end, if the guest still has the output; meanwhile the
  process does not block.
- Clients that request the id of an execution during its start wait for the start, and share its error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from sandlot.core.execution.helpers import end_process
from sandlot.core.execution.package_access import PackageAccess
from sandlot.core.execution.state import Action, Event, Kind, State, holds_activity, step
from sandlot.core.records.execution_log import ExecutionLog, OpenLogEntry
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.core.sandbox import Hold, Sandbox, SandboxLocal
from sandlot.link.client import Link
from sandlot.link.kernels import CellCall
from sandlot.link.processes import ProcessCall
from sandlot.link.types import CellResult, ProcessResult
from sandlot.model.errors import ErrorCode, NotFoundError, SandboxEndedError, SandlotError, TimeoutExceededError, UnavailableError
from sandlot.model.executions import (
    KILLED,
    LOST,
    RUNNING,
    CellError,
    CellStarted,
    Channel,
    Cleared,
    CodePosition,
    Display,
    ExecutionOptions,
    Output,
    OutputGap,
    exit_code,
)
from sandlot.model.ids import ProcessId, SandboxId, new_process_id
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import BACKGROUND, FOREGROUND, INSTALL, ExecutionRecord

AWAY_S: Final = 3.0
"""Seconds without clients after which an execution is stopped. A client whose connection broke reconnects sooner (``sdk/retries.py``)."""
BACK_S: Final = 10.0
"""Seconds in which a client can follow a foreground cell after the service restarted or the sandbox woke, before the cell is stopped. A disconnected
client repeats its request after pauses of up to 8 s (``sdk/retries.py``), so this time is longer than ``AWAY_S``."""
INSTALL_GRACE_S: Final = 10.0
"""Seconds between SIGTERM and SIGKILL in which a package manager without clients can clean up."""
MAX_WAITS: Final = 16
"""Maximum number of calls that wait for the processes of one sandbox. A link has 192 concurrent calls (``protocol/stream_table.py``)."""
POLL_S: Final = 20.0
"""Seconds between two reads of the process list while ``MAX_WAITS`` calls already wait. The list shows whether a further process has ended."""
BUSY_RETRY_S: Final = 1.0
BEGIN: Final = CodePosition(0, 0, 0)

_STATUS: Final = {Action.END_KILLED: KILLED, Action.END_LOST: LOST, Action.LEAVE_ENTRY: RUNNING}
_GONE_STATUS: Final = {
    ExitReason.EXITED: KILLED,
    ExitReason.KILLED: KILLED,
    ExitReason.OOM: "oom",
    ExitReason.DISK: KILLED,
    ExitReason.CRASHED: LOST,
}
"""Reason of the end of the sandbox -> status of the executions that the end has interrupted."""
_ENDS: Final = frozenset({Event.GUEST_ENDS, Event.FORGOTTEN, Event.GONE, Event.SUSPENDED})
_READ: Final = frozenset({State.FOLLOWED, State.LINGERING, State.UNATTENDED, State.STOPPING})
"""States in which the output is read for the log entry."""

CallT = TypeVar("CallT", CellCall, ProcessCall)
EventT = TypeVar("EventT", bound=Output | OutputGap | CellStarted | Display | Cleared | CellError)
ResultT = TypeVar("ResultT")
Find = Callable[[ProcessId], Awaitable[CallT | None]]
Send = Callable[["Execution", Link], Awaitable[CallT]]


@dataclass(eq=False, frozen=True, slots=True)
class Client:
    """One client of an execution.

    Args:
        reads_for_log: True for the client that started the execution, and that adds the output to the log entry as long as it is connected.
    """

    execution: Execution
    reads_for_log: bool


class Execution:
    """One execution.

    Attributes:
        mode: Mode of the execution in the log, see :class:`ExecutionRecord`.
        options: Description for the log entry. None: the start writes no entry.
        call: Call to the guest that started the execution, and whose output goes to the log entry.
        entry: Log entry; None before the start and after the end.
        was_sent: True if the guest may have got the request.
        clients: All clients, including clients that wait for the start.
    """

    def __init__(self, executions: Executions, sandbox: Sandbox, kind: Kind, options: ExecutionOptions, mode: str) -> None:
        self.sandbox = sandbox
        self.id = options.id or new_process_id()
        self.kind = kind
        self.mode = mode
        self.options: ExecutionOptions | None = options
        self.state = State.STARTING
        self.call: CellCall | ProcessCall | None = None
        self.was_sent = False
        self.clients: set[Client] = set()
        self.entry: OpenLogEntry | None = None
        self._executions = executions
        self._live = executions.table.of(sandbox).live
        self._live[self.id] = self
        self._is_shared = options.id is not None  # further clients can join the execution, and come back to it
        self._reader: Client | None = None
        self._hold: Hold | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    # Start -----------------------------------------------------------------------------------------------------------

    async def start(self, find: Find[CallT] | None, send: Send[CallT]) -> None:
        """Start the execution. If the client chose the id, the start continues even if the caller is cancelled.

        Args:
            find: Function that attaches to the execution if the guest already has it. None: a new execution.
            send: Function that sends the request, and returns once the guest has started the execution.
        """
        starting = self._start(find, send)
        if not self._is_shared:
            await starting
            return
        self._starting = asyncio.create_task(starting)
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())  # the error is for clients that still wait
        await self.wait_started()

    async def wait_started(self) -> None:
        """Wait until the execution is started, or found again. Raise the error of a start that failed."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
            if not self._starting.cancelled():  # otherwise the sandbox or the service ends; the next call of the client gets the reason
                self._starting.result()

    async def _start(self, find: Find[CallT] | None, send: Send[CallT]) -> None:
        self._hold = self._hold or Hold(self.sandbox.activity)
        usage, counted = self._executions.usage, None
        try:
            call = None if find is None else await find(self.id)
            if call is not None:
                self.options = None  # the execution was counted and logged at its start
            else:
                counted = usage.count(self.sandbox.owner)
                if self.mode == INSTALL:
                    self._executions.access.open(self.sandbox, self.id)
                async with self.sandbox.connection() as link:
                    call = await send(self, link)
        except BaseException as error:
            if self.is_left_behind:
                self.handle(Event.SUSPENDED)
                raise
            if counted is not None:
                usage.uncount(counted)
            if isinstance(error, SandlotError) and not isinstance(error, UnavailableError | TimeoutExceededError):
                self.was_sent = False  # the guest has refused the request, or is gone
            self.handle(Event.NOT_STARTED)
            raise
        self.call = call
        call.outcome.add_done_callback(self._on_call_over)
        self.handle(Event.LAUNCHED if self.mode == BACKGROUND else Event.STARTED)
        if self.state is State.FOLLOWED and not self.clients:
            self.handle(Event.OWNER_AWAY)

    @property
    def is_left_behind(self) -> bool:
        """True if the request was sent, and the execution continues in a sandbox that this service cannot reach now."""
        return self.was_sent and self._continues

    @property
    def _continues(self) -> bool:
        return (self.sandbox.detaching.is_set() or self.sandbox.is_hibernated) and not self.sandbox.end_requested.is_set()

    # Executions that an earlier service or a hibernation left -----------------------------------------------------------

    def revive(self, record: ExecutionRecord) -> None:
        """Continue an execution that was left. Clients can join the execution from now on.

        The caller calls this method before the guest can be reached: an installation then may already read a package index.
        """
        self.state = State.LEFT
        self.was_sent = True
        self.entry = self._executions.log.reopen(self.sandbox, record)
        if record.mode == INSTALL:
            self._executions.access.open(self.sandbox, self.id)
        self._starting = self._watch(self._find())

    async def _find(self) -> None:
        await self.sandbox.wait_awake()
        link = self.sandbox.require_link()
        if any(info.process == self.id for info in await retry_while_busy(link.processes.list)):
            if self.kind is Kind.CELL:
                self.kind = Kind.PROCESS  # a process that runs code
            self.handle(Event.FOUND)
        elif self.kind is not Kind.CELL:
            self.handle(Event.FORGOTTEN)
        else:
            call = self.call = await retry_while_busy(lambda: link.kernels.attach(self.id))
            call.outcome.add_done_callback(self._on_call_over)
            self.handle(Event.FOUND if self.mode == BACKGROUND else Event.FOUND_CELL)
            if self.state is State.LINGERING and self.clients:
                self.handle(Event.CLIENT_FOLLOWS)

    # Clients ---------------------------------------------------------------------------------------------------------

    def enter(self, *, reads_for_log: bool = False) -> Client:
        """Add a client. A client can enter before the start, and then waits for the start."""
        client = Client(self, reads_for_log)
        if reads_for_log:
            self._reader = client
        self.clients.add(client)
        self.handle(Event.CLIENT_FOLLOWS)
        return client

    def leave(self, client: Client, *, is_over: bool = False, detach: bool = False) -> None:
        """Remove a client.

        Args:
            client: Client to remove.
            is_over: True if the client knows the end of the execution. The execution then needs no owner until it has read the end itself.
            detach: True to let the execution continue until its own end, if the client owns the execution.
        """
        self.clients.remove(client)
        is_owner = not self.clients if self._is_shared else client.reads_for_log
        if client is self._reader:
            self._reader = None
        if self.state is not State.FOLLOWED or is_over or not is_owner:
            self.handle(Event.CLIENT_LEAVES)
        elif detach:
            self.handle(Event.OWNER_DETACHES)
        else:
            self.handle(Event.OWNER_AWAY if self._is_shared else Event.OWNER_LEAVES)

    # Output and end --------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException | None) -> None:
        """Handle an error of the call to the guest. None: the sandbox or the service ends, so a task was cancelled. Idempotent."""
        if self._continues:
            self.handle(Event.SUSPENDED)
        elif isinstance(error, SandboxEndedError) and self.sandbox.requested_exit is None:
            self._ending = self._ending or self._watch(self._wait_sandbox_end(error))  # the driver has not reported the reason yet
        else:
            self.handle(Event.FORGOTTEN if isinstance(error, NotFoundError) else Event.GONE, self.sandbox.requested_exit)

    async def _wait_sandbox_end(self, error: SandboxEndedError) -> None:
        await self.sandbox.end_requested.wait()
        raise error

    def _on_call_over(self, outcome: asyncio.Future[Any]) -> None:
        # A hibernation ends the call even while its client does not read. After the wake, a new call reads the output from the beginning.
        if outcome.exception() is not None and self._continues:
            self.handle(Event.SUSPENDED)

    def _watch(self, work: Any) -> asyncio.Task[None]:  # noqa: ANN401 - a coroutine
        """Run a part of the execution in a task. If the task fails or is cancelled, even before its first step, the execution has failed."""
        task: asyncio.Task[None] = self.sandbox.tasks.create_task(work)

        def on_done(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                self.fail(None)
            elif (error := task.exception()) is not None:
                self.fail(error)

        task.add_done_callback(on_done)
        return task

    async def _read(self) -> None:
        if self.call is not None and (self.state is not State.UNATTENDED or self.kind is Kind.CELL):
            async for event in self.call:
                if self.entry is not None:
                    self.entry.add(event)
            self.handle(Event.GUEST_ENDS, await self.call.result())
            return
        link = self.sandbox.require_link()
        result = await self._executions.wait_process(self.sandbox, link, self.id)
        if self.entry is not None:
            self.entry.drop_output()
        with suppress(NotFoundError):  # the guest keeps a limited amount of output, of the latest processes only
            call = await retry_while_busy(lambda: link.processes.attach(self.id))
            try:
                async for event in call:
                    if self.entry is not None:
                        self.entry.add(event)
            finally:
                await call.aclose()
        self.handle(Event.GUEST_ENDS, result)

    # Transitions -----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, result: CellResult | ProcessResult | Exit | None = None) -> None:
        """Change the state, and carry out the actions of the transition. A further end of an execution that is over does nothing.

        Then hold the activity of the sandbox, read the output and run the timer only as long as the state requires it.

        Args:
            event: Event.
            result: Result of the guest, with ``GUEST_ENDS``; end of the sandbox, with ``GONE``.
        """
        is_over = self.state is State.ENDED or (self.state is State.LEFT and self.entry is None)
        if is_over and event in _ENDS:
            return
        self.state, actions = step(self.state, event)
        for action in actions:
            self._act(action, result)
        if self._timer is not None and self.state is not State.LINGERING:
            self._timer.cancel()
            self._timer = None
        if self.clients or holds_activity(self.state, self.kind):
            self._hold = self._hold or Hold(self.sandbox.activity)
        elif self._hold is not None:
            self._hold.release()
            self._hold = None
        if self.state in _READ and self._reader is None and self._reading is None:
            self._reading = self._watch(self._read())

    def _act(self, action: Action, result: CellResult | ProcessResult | Exit | None) -> None:
        match action:
            case Action.BEGIN_ENTRY:
                if self.options is not None:
                    self.entry = self._executions.log.begin(self.sandbox, self.id, self.options, mode=self.mode)
            case Action.STOP:
                if self.was_sent:
                    self.sandbox.tasks.spawn(self._stop())
            case Action.WAIT_AWAY | Action.WAIT_BACK:
                wait_s = AWAY_S if action is Action.WAIT_AWAY else BACK_S
                self._timer = asyncio.get_running_loop().call_later(wait_s, self.handle, Event.TIMER_ENDS)
            case Action.END_ENTRY | Action.END_KILLED | Action.END_LOST | Action.END_GONE | Action.LEAVE_ENTRY:
                self._end_entry(_STATUS.get(action, result))
            case Action.RELEASE:
                self._reader = None
                if self._live.get(self.id) is self:
                    del self._live[self.id]
                if self.mode == INSTALL:
                    self._executions.access.close(self.sandbox, self.id)

    def _end_entry(self, end: CellResult | ProcessResult | Exit | str | None) -> None:
        entry, self.entry = self.entry, None
        if entry is None:
            return
        if isinstance(end, CellResult):
            entry.end(end.status, duration_s=end.duration_s)
        elif isinstance(end, ProcessResult):
            entry.end(end.reason or "", exit_code=exit_code(end.exit_code, end.signal, end.reason), duration_s=end.duration_s)
        elif isinstance(end, Exit):
            entry.end(_GONE_STATUS[end.reason])
        else:
            entry.end(end or LOST)

    async def _stop(self) -> None:
        await self.sandbox.wait_awake()  # a suspended sandbox is not resumed for this
        if self.state is State.LEFT:
            return
        if self.kind is not Kind.CELL:
            await end_process(self.sandbox, self.id, INSTALL_GRACE_S if self.kind is Kind.INSTALL else 0)
            return
        with suppress(SandlotError):
            async with self.sandbox.connection() as link:
                await link.kernels.interrupt(execution=self.id)


class ExecutionStream(Generic[CallT, EventT]):
    """One client's stream of an execution. Base class of the streams of processes and cells.

    Args:
        sandbox: Sandbox of the execution.
        call: Call to the guest that the client reads.
        client: The client. None: the execution has ended, or this service does not know the execution.
        start: Position at which the stream begins.
        until: Channel -> byte offset. The iteration stops once it has reached all these offsets, even if the execution goes on. None: the iteration
            stops at the end of the execution.

    Attributes:
        is_closed: True as soon as :meth:`close` is called.
        is_running: True if the execution goes on when the iteration stops, so that it has no result yet.
    """

    def __init__(
        self, sandbox: Sandbox, call: CallT, client: Client | None, *, start: CodePosition = BEGIN, until: Mapping[int, int] | None = None
    ) -> None:
        self._sandbox = sandbox
        self._client = client
        self._execution = client.execution if client is not None and client.reads_for_log else None
        self._hold = Hold(sandbox.activity) if client is None else None
        self._until = until
        self._offsets: dict[int, int] = {Channel.STDOUT: start.stdout or 0, Channel.STDERR: start.stderr or 0}
        self._events = start.events
        self.is_closed = False
        self.is_running = until is not None
        self.call: CallT = call
        self.id = call.id
        self._is_over = False

    @property
    def position(self) -> CodePosition:
        """Position after the last event that the iteration has returned."""
        return CodePosition(self._events, self._offsets[Channel.STDOUT], self._offsets[Channel.STDERR])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventT:
        """Return the next event of the execution. If the client does not iterate, the execution blocks when it writes more output."""
        if self.is_closed or (self._until is not None and all(self._offsets[channel] >= end for channel, end in self._until.items())):
            raise StopAsyncIteration
        try:
            event: Any = await anext(self.call)
        except SandlotError as error:
            raise await self._explain(error) from None
        if isinstance(event, Output | OutputGap):
            self._offsets[event.channel] = event.offset + (len(event.data) if isinstance(event, Output) else event.bytes)
        else:
            self._events += 1
        if self._execution is not None and self._execution.entry is not None:
            self._execution.entry.add(event)
        found: EventT = event
        return found

    async def result(self) -> Any:  # noqa: ANN401 - the result of the call
        """Wait for the end of the execution and return its result."""
        try:
            result = await self.call.result()
        except SandlotError as error:
            self._is_over = True
            raise await self._explain(error) from None
        self._is_over = True
        if self._execution is not None:
            self._execution.handle(Event.GUEST_ENDS, result)
        return result

    async def _explain(self, error: SandlotError) -> SandlotError:
        if self._execution is not None:
            self._execution.fail(error)
        return await self._sandbox.explain(error) if isinstance(error, SandboxEndedError | UnavailableError) else error

    async def close(self, *, detach: bool = False) -> None:
        """Leave the execution, which is stopped if this client owns it: at once, or after 3 s if the client chose its id. Idempotent.

        A waiting iteration ends.

        Args:
            detach: True to let the execution continue until its own end.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if self._hold is not None:
            self._hold.release()
        if self._client is not None:
            self._client.execution.leave(self._client, is_over=self._is_over, detach=detach)
        execution, self._execution = self._execution, None
        if execution is None or (execution.state is State.UNATTENDED and execution.kind is not Kind.CELL):
            await self.call.aclose()
        else:
            self.call.release()  # the execution reads the call to its end

    async def detach(self) -> None:
        """Leave the execution without stopping it. Idempotent."""
        await self.close(detach=True)


@dataclass(slots=True)
class SandboxExecutions:
    """Executions of one sandbox.

    Attributes:
        live: Id -> execution that has not ended.
        recent: Ids of the cells that were started most recently, oldest first.
        guest_knows_more: True if the guest may have cells whose ids are not in ``recent``, because an earlier service created the sandbox, or
            because the sandbox was hibernated.
    """

    guest_knows_more: bool
    live: dict[ProcessId, Execution] = field(default_factory=dict)
    recent: dict[ProcessId, None] = field(default_factory=dict)


class Executions:
    """All executions of the service.

    Args:
        log: Execution log.
        usage: Counts executions against the quota of their owner.
        access: Access to the package indexes.

    Attributes:
        table: Sandbox -> its executions.
        waits: Sandbox -> number of calls that wait for the end of a process.
    """

    def __init__(self, log: ExecutionLog, usage: MonthlyExecutionCounter, access: PackageAccess) -> None:
        self.log = log
        self.usage = usage
        self.access = access
        self.waits: Counter[SandboxId] = Counter()
        self.table: SandboxLocal[SandboxExecutions] = SandboxLocal(lambda sandbox: SandboxExecutions(sandbox.inherited))

    def get(self, sandbox: Sandbox, id_: ProcessId) -> Execution | None:
        """Return an execution that has not ended, or None."""
        table = self.table.get(sandbox)
        return None if table is None else table.live.get(id_)

    def enter(self, sandbox: Sandbox, id_: ProcessId) -> Client | None:
        """Add a client that only reads to an execution. Return None if the execution has ended, or this service does not know the execution."""
        execution = self.get(sandbox, id_)
        return None if execution is None else execution.enter()

    async def open(
        self,
        sandbox: Sandbox,
        kind: Kind,
        options: ExecutionOptions,
        send: Send[CallT],
        *,
        find: Find[CallT] | None,
        attach: Callable[[ProcessId], Awaitable[CallT]],
        mode: str = FOREGROUND,
    ) -> tuple[CallT, Client]:
        """Start an execution for a client, or join the execution with the id that the client chose.

        Args:
            sandbox: Sandbox of the execution.
            kind: Kind of the execution.
            options: Description for the execution log, with the id if the client chose one.
            send: See :meth:`Execution.start`.
            find: See :meth:`Execution.start`.
            attach: Function that attaches to the execution from its beginning.
            mode: Mode of the execution in the log.

        Returns:
            Call that the client reads, and the client. The caller lets the client leave at the end.

        Raises:
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
        """
        execution, is_new = await self._find_or_add(sandbox, kind, options, mode)
        client = execution.enter(reads_for_log=is_new)
        try:
            if not is_new:
                await execution.wait_started()
                return await attach(execution.id), client
            await execution.start(find, send)
        except BaseException:
            execution.leave(client)
            raise
        return execution.call, client  # type: ignore[return-value]  # the call that `send` has returned

    async def launch(self, sandbox: Sandbox, kind: Kind, options: ExecutionOptions, send: Send[CallT]) -> Execution:
        """Start an execution without a client. If an execution with the id that the client chose exists, wait for its start. See :meth:`open`."""
        execution, is_new = await self._find_or_add(sandbox, kind, options, BACKGROUND)
        await (execution.start(None, send) if is_new else execution.wait_started())
        return execution

    async def _find_or_add(self, sandbox: Sandbox, kind: Kind, options: ExecutionOptions, mode: str) -> tuple[Execution, bool]:
        """Return the execution with the id that a client chose, or a new execution, and True if it is new.

        Waits for an execution that is being found again.
        """
        live = self.table.of(sandbox).live
        execution = None if options.id is None else live.get(options.id)
        while execution is not None and execution.state is State.LEFT:
            with suppress(SandlotError):
                await execution.wait_started()
            execution = live.get(execution.id)
        return execution or Execution(self, sandbox, kind, options, mode), execution is None

    # Executions that an earlier service or a hibernation left -----------------------------------------------------------

    async def settle(self, find: Callable[[SandboxId], Sandbox | None]) -> None:
        """Continue the unfinished executions of earlier services. Return without waiting for the recovery of the sandboxes.

        Args:
            find: Function that takes the id of a sandbox and returns the sandbox if it is alive or being recovered, otherwise None.
        """
        for record in await self.log.unfinished():
            if (sandbox := find(record.sandbox)) is None:
                self.log.lose(record)
            else:
                self._revive(sandbox, record)

    def resume(self, sandbox: Sandbox) -> None:
        """Continue the unfinished executions of a sandbox that was hibernated. Call this method as soon as the sandbox runs again."""
        self.table.of(sandbox).guest_knows_more = True
        for record in self.log.take_open(sandbox):
            self._revive(sandbox, record)

    def _revive(self, sandbox: Sandbox, record: ExecutionRecord) -> None:
        kind = Kind.INSTALL if record.mode == INSTALL else Kind.CELL if record.kind == "code" else Kind.PROCESS
        execution = Execution(self, sandbox, kind, ExecutionOptions(id=ProcessId(record.id)), record.mode)
        execution.revive(record)

    async def wait_process(self, sandbox: Sandbox, link: Link, process: ProcessId) -> ProcessResult:
        """Wait for the end of a process. At most :data:`MAX_WAITS` calls wait for the processes of one sandbox.

        Raises:
            NotFoundError: The guest does not remember the process.
        """
        running = True
        while running and self.waits[sandbox.id] >= MAX_WAITS:
            await asyncio.sleep(POLL_S)
            running = any(info.process == process and info.running for info in await retry_while_busy(link.processes.list))
        self.waits[sandbox.id] += 1
        try:
            return await retry_while_busy(lambda: link.processes.wait(process))
        finally:
            self.waits[sandbox.id] -= 1
            if not self.waits[sandbox.id]:
                del self.waits[sandbox.id]


async def retry_while_busy(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Call a function, and repeat the call as long as it fails because the sandbox has too many calls in progress.

    The number of attempts is not limited: when the sandbox ends or the service stops, the calling task is cancelled.
    """
    while True:
        try:
            return await call()
        except UnavailableError as error:
            if error.code is not ErrorCode.BUSY:
                raise
        await asyncio.sleep(BUSY_RETRY_S)
