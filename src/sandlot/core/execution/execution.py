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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
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
from sandlot.model.executions import KILLED, LOST, RUNNING, CellError, CellStarted, Cleared, Display, ExecutionOptions, Output, OutputGap, exit_code
from sandlot.model.ids import ProcessId, SandboxId, new_process_id
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

_STATUS: Final = {Action.END_KILLED: KILLED, Action.END_LOST: LOST, Action.LEAVE_ENTRY: RUNNING}

CallT = TypeVar("CallT", CellCall, ProcessCall)
EventT = TypeVar("EventT", bound=Output | OutputGap | CellStarted | Display | Cleared | CellError)
ResultT = TypeVar("ResultT")


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
        self._executions = executions
        self._is_shared = options.id is not None  # further clients can join the execution, and come back to it
        self._entry: OpenLogEntry | None = None
        self._reader: Client | None = None
        self._result: CellResult | ProcessResult | None = None
        self._hold: Hold | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def is_background(self) -> bool:
        """True if the execution was launched without a client."""
        return self.mode == BACKGROUND

    # Start -----------------------------------------------------------------------------------------------------------

    async def start(self, send: Callable[[Execution], Awaitable[CellCall | ProcessCall]]) -> None:
        """Start the execution. If the client chose the id, the start continues even if the caller is cancelled."""
        if self._is_shared:
            self._starting = asyncio.create_task(self._start(send))
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())  # the error is for clients that still wait
            await self.wait_started()
        else:
            await self._start(send)

    async def wait_started(self) -> None:
        """Wait until the execution is started, or found again. Raise the error of a start that failed."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
            if not self._starting.cancelled():  # otherwise the sandbox or the service ends; the next call of the client gets the reason
                self._starting.result()

    async def _start(self, send: Callable[[Execution], Awaitable[CellCall | ProcessCall]]) -> None:
        self._settle()
        try:
            self.call = await send(self)
        except BaseException:
            self.handle(Event.SUSPENDED if self.is_left_behind else Event.NOT_STARTED)
            raise
        self.call.outcome.add_done_callback(self._on_call_over)
        self.handle(Event.LAUNCHED if self.is_background else Event.STARTED)
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
        self._entry = self._executions.log.reopen(self.sandbox, record)
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
            self.handle(Event.FOUND if self.is_background else Event.FOUND_CELL)
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

    @property
    def reads_call(self) -> bool:
        """True if the execution, or the client that reads for the log, reads :attr:`call` to its end. An unattended process is not read."""
        return self.state is not State.UNATTENDED or self.kind is Kind.CELL

    # Output and end --------------------------------------------------------------------------------------------------

    def observe(self, event: Output | OutputGap | CellStarted | Display | Cleared | CellError) -> None:
        """Add an event of the guest to the log entry."""
        if self._entry is not None:
            if isinstance(event, Output | OutputGap):
                self._entry.add(event)
            elif isinstance(event, CellError):
                self._entry.set_error(event)

    def end(self, result: CellResult | ProcessResult) -> None:
        """Handle the end that the guest reported. Idempotent."""
        if not self._is_over:
            self._result = result
            self.handle(Event.GUEST_ENDS)

    def fail(self, error: BaseException | None) -> None:
        """Handle an error of the call to the guest. None: the sandbox or the service ends, so a task was cancelled. Idempotent."""
        if self._is_over:
            return
        if self._continues:
            self.handle(Event.SUSPENDED)
        else:
            self.handle(Event.FORGOTTEN if isinstance(error, NotFoundError) else Event.GONE)

    @property
    def _is_over(self) -> bool:
        return self.state is State.ENDED or (self.state is State.LEFT and self._entry is None)

    def _on_call_over(self, outcome: asyncio.Future[Any]) -> None:
        # A hibernation ends the call even while its client does not read. After the wake, a new call reads the output from the beginning.
        if outcome.exception() is not None and self._continues and not self._is_over:
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
        if self.reads_call and self.call is not None:
            async for event in self.call:
                self.observe(event)
            self.end(await self.call.result())
            return
        link = self.sandbox.require_link()
        result = await self._executions.wait_process(self.sandbox, link, self.id)
        if self._entry is not None:
            self._entry.drop_output()
        with suppress(NotFoundError):  # the guest keeps a limited amount of output, of the latest processes only
            call = await retry_while_busy(lambda: link.processes.attach(self.id))
            try:
                async for event in call:
                    self.observe(event)
            finally:
                await call.aclose()
        self.end(result)

    # Transitions -----------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Change the state, and carry out the actions of the transition."""
        self.state, actions = step(self.state, event)
        for action in actions:
            self._act(action)
        self._settle()

    def _settle(self) -> None:
        """Hold the activity of the sandbox, read the output and run the timer only as long as the state requires it."""
        if self._timer is not None and self.state is not State.LINGERING:
            self._timer.cancel()
            self._timer = None
        if self.clients or holds_activity(self.state, self.kind):
            self._hold = self._hold or Hold(self.sandbox.activity)
        elif self._hold is not None:
            self._hold.release()
            self._hold = None
        reads = self.state in {State.FOLLOWED, State.LINGERING, State.UNATTENDED, State.STOPPING}
        if reads and self._reader is None and self._reading is None:
            self._reading = self._watch(self._read())

    def _act(self, action: Action) -> None:
        match action:
            case Action.BEGIN_ENTRY:
                if self.options is not None:
                    self._entry = self._executions.log.begin(self.sandbox, self.id, self.options, mode=self.mode)
            case Action.STOP:
                if self.was_sent:
                    self.sandbox.tasks.spawn(self._stop())
            case Action.WAIT_AWAY | Action.WAIT_BACK:
                wait_s = AWAY_S if action is Action.WAIT_AWAY else BACK_S
                self._timer = asyncio.get_running_loop().call_later(wait_s, self.handle, Event.TIMER_ENDS)
            case Action.END_ENTRY:
                self._end_entry(self._result)
            case Action.END_KILLED | Action.END_LOST | Action.LEAVE_ENTRY:
                self._end_entry(_STATUS[action])
            case Action.RELEASE:
                self._reader = None
                self._executions.forget(self)
                self._executions.access.close(self.sandbox, self.id)

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

    def _end_entry(self, end: CellResult | ProcessResult | str | None) -> None:
        entry, self._entry = self._entry, None
        if entry is None:
            return
        if isinstance(end, CellResult):
            entry.end(end.status, duration_s=end.duration_s)
        elif isinstance(end, ProcessResult):
            entry.end(end.reason or "", exit_code=exit_code(end.exit_code, end.signal), duration_s=end.duration_s)
        else:
            entry.end(end or LOST)


class ExecutionStream(Generic[CallT, EventT]):
    """One client's stream of an execution. Base class of the streams of processes and cells.

    Args:
        sandbox: Sandbox of the execution.
        call: Call to the guest that the client reads.
        client: The client. None: the execution has ended, or this service does not know the execution.

    Attributes:
        is_closed: True as soon as :meth:`close` is called.
    """

    def __init__(self, sandbox: Sandbox, call: CallT, client: Client | None) -> None:
        self._sandbox = sandbox
        self._client = client
        self._execution = client.execution if client is not None and client.reads_for_log else None
        self._hold = Hold(sandbox.activity) if client is None else None
        self.is_closed = False
        self.call: CallT = call
        self._events: AsyncIterator[Any] = call
        self.id = call.id
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventT:
        """Return the next event of the execution. If the client does not iterate, the execution blocks when it writes more output."""
        if self.is_closed:
            raise StopAsyncIteration
        try:
            event: EventT = await anext(self._events)
        except SandlotError as error:
            raise await self._explain(error) from None
        if self._execution is not None:
            self._execution.observe(event)
        return event

    async def result(self) -> Any:  # noqa: ANN401 - the result of the call
        """Wait for the end of the execution and return its result."""
        try:
            result = await self.call.result()
        except SandlotError as error:
            self._is_over = True
            raise await self._explain(error) from None
        self._is_over = True
        if self._execution is not None:
            self._execution.end(result)
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
        if execution is None or not execution.reads_call:
            await self.call.aclose()
        else:
            self.call.release()

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
        waits: Sandbox -> number of calls that wait for the end of a process.
    """

    def __init__(self, log: ExecutionLog, usage: MonthlyExecutionCounter, access: PackageAccess) -> None:
        self.log = log
        self.access = access
        self.waits: Counter[SandboxId] = Counter()
        self._usage = usage
        self._table: SandboxLocal[SandboxExecutions] = SandboxLocal(lambda sandbox: SandboxExecutions(sandbox.inherited))

    def of(self, sandbox: Sandbox) -> SandboxExecutions:
        """Return the executions of a sandbox."""
        return self._table.of(sandbox)

    def get(self, sandbox: Sandbox, id_: ProcessId) -> Execution | None:
        """Return an execution that has not ended, or None."""
        table = self._table.get(sandbox)
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
        send: Callable[[Execution], Awaitable[CallT]],
        attach: Callable[[ProcessId], Awaitable[CallT]],
        mode: str = FOREGROUND,
    ) -> tuple[CallT, Client]:
        """Start an execution for a client, or join the execution with the id that the client chose.

        Args:
            sandbox: Sandbox of the execution.
            kind: Kind of the execution.
            options: Description for the execution log, with the id if the client chose one.
            send: Function that sends the request to the guest, and returns once the guest has started the execution.
            attach: Function that attaches to the execution from its beginning.
            mode: Mode of the execution in the log.

        Returns:
            Call that the client reads, and the client. The caller lets the client leave at the end.
        """
        execution = await self._find(sandbox, options.id)
        is_new = execution is None
        if execution is None:
            execution = self._add(sandbox, kind, options, mode)
        client = execution.enter(reads_for_log=is_new)
        try:
            if not is_new:
                await execution.wait_started()
                return await attach(execution.id), client
            await execution.start(send)
        except BaseException:
            execution.leave(client)
            raise
        return execution.call, client  # type: ignore[return-value]  # the call that `send` has returned

    async def launch(
        self,
        sandbox: Sandbox,
        kind: Kind,
        options: ExecutionOptions,
        send: Callable[[Execution], Awaitable[CellCall | ProcessCall]],
    ) -> Execution:
        """Start an execution without a client. If an execution with the id that the client chose exists, wait for its start. See :meth:`open`."""
        execution = await self._find(sandbox, options.id)
        if execution is None:
            execution = self._add(sandbox, kind, options, BACKGROUND)
            await execution.start(send)
        else:
            await execution.wait_started()
        return execution

    def _add(self, sandbox: Sandbox, kind: Kind, options: ExecutionOptions, mode: str) -> Execution:
        execution = Execution(self, sandbox, kind, options, mode)
        self.of(sandbox).live[execution.id] = execution
        return execution

    async def _find(self, sandbox: Sandbox, id_: ProcessId | None) -> Execution | None:
        """Return the execution with the id that a client chose, or None. Wait for an execution that is being found again."""
        execution = None if id_ is None else self.get(sandbox, id_)
        while execution is not None and execution.state is State.LEFT:
            with suppress(SandlotError):
                await execution.wait_started()
            execution = self.get(sandbox, execution.id)
        return execution

    def forget(self, execution: Execution) -> None:
        """Remove an execution that has ended or was left."""
        table = self._table.get(execution.sandbox)
        if table is not None and table.live.get(execution.id) is execution:
            del table.live[execution.id]

    @contextmanager
    def counted(self, execution: Execution) -> Iterator[None]:
        """Count the execution that the body of the ``with`` block starts, unless the body fails and leaves no execution.

        Raises:
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
        """
        failure: BaseException | None = None
        with self._usage.count(execution.sandbox.owner):
            try:
                yield
            except BaseException as error:
                if not execution.is_left_behind:
                    if isinstance(error, SandlotError) and not isinstance(error, UnavailableError | TimeoutExceededError):
                        execution.was_sent = False  # the guest has refused the request, or is gone
                    raise
                failure = error
        if failure is not None:
            raise failure

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
        self.of(sandbox).guest_knows_more = True
        for record in self.log.take_open(sandbox):
            self._revive(sandbox, record)

    def _revive(self, sandbox: Sandbox, record: ExecutionRecord) -> None:
        kind = Kind.INSTALL if record.mode == INSTALL else Kind.CELL if record.kind == "code" else Kind.PROCESS
        execution = self._add(sandbox, kind, ExecutionOptions(id=ProcessId(record.id)), record.mode)
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
