"""One sandbox as the service knows it: identity, state machine, link to the guest and activity.

Invariants:
- The state changes only as the table in :mod:`sandlot.model.states` allows.
- The end of a sandbox is requested once: the first reason counts, and every client gets this reason.
- A call that fails because the sandbox ended reports why the sandbox ended, not how the link noticed.
- A call to a sandbox that is being recovered after a restart of the service waits for the recovery; the call is not refused.
- A call to a suspended sandbox resumes the sandbox, if ``auto_resume`` is set; otherwise the call is refused.
- A service that stops closes its links and ends no sandbox: processes inside keep running.
- The state of other features is not stored here: each feature has a :class:`SandboxLocal`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

import structlog

from sandlot.core.concurrency import TaskSet
from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.operations import Operation, OperationQueue
from sandlot.core.ports import Clock
from sandlot.link.client import Link
from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode, InternalError, SandboxEndedError, SandlotError, TimeoutExceededError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Exit, ExitReason, Instance
from sandlot.model.specs import Limits, SandboxSpec
from sandlot.model.states import State, can_follow, is_terminal

CALL_TIMEOUT_S: Final = 60.0
"""Timeout of calls that do no work for the user (stat, signal, list): a guest that takes longer does not respond."""
GRACE_S: Final = 30.0
"""Time after the timeout of an execution until the service stops waiting for a guest that should have ended the execution."""
_EXIT_WAIT_S: Final = 5.0
"""Longest wait of a call for the driver's reason of an end."""
_REACHABLE: Final = frozenset({State.RUNNING, State.SNAPSHOTTING})
_SUSPENDED: Final = frozenset({State.PAUSING, State.PAUSED, State.HIBERNATING, State.HIBERNATED, State.WAKING})
"""Suspended states, and the transitions into and out of them."""

T = TypeVar("T")

_log = structlog.get_logger("sandlot.core")


class Hold:
    """Work for a client, from now on. Until the hold is released, the sandbox is not idle.

    Args:
        activity: Activity of the sandbox.
    """

    __slots__ = ("_activity",)

    def __init__(self, activity: ActivityTracker) -> None:
        activity.held += 1
        self._activity: ActivityTracker | None = activity

    def release(self) -> None:
        """End the work. Idempotent."""
        activity, self._activity = self._activity, None
        if activity is not None:
            activity.held -= 1
            activity.quiet_since_s = activity.clock.monotonic_s()


class ActivityTracker:
    """Work in progress in a sandbox, and the time of the last activity.

    Args:
        clock: Clock of the service.

    Attributes:
        held: Number of holds that are not released.
        quiet_since_s: Monotonic time of the last activity, which counts while ``held`` is 0.
    """

    __slots__ = ("clock", "held", "quiet_since_s")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.held = 0
        self.quiet_since_s = clock.monotonic_s()

    def touch(self) -> None:
        """Record activity at this moment."""
        self.quiet_since_s = self.clock.monotonic_s()


@dataclass(eq=False, slots=True)
class Deadline:
    """Moment at which the timeout of a sandbox passes.

    Args:
        clock: Clock of the service.
        expires_at: The deadline in UTC, for records and clients. None: no deadline.
        monotonic_s: The deadline on the monotonic clock; infinite without a deadline.
        changed: Set by each change. The supervisor clears the event before it reads the deadline.
    """

    clock: Clock
    expires_at: datetime | None = None
    monotonic_s: float = math.inf
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def extend(self, timeout_s: float | None) -> None:
        """Move the deadline to ``timeout_s`` seconds from now. None removes the deadline."""
        self.monotonic_s = math.inf if timeout_s is None else self.clock.monotonic_s() + timeout_s
        self.expires_at = None if timeout_s is None else self.clock.now() + timedelta(seconds=timeout_s)
        self.changed.set()

    def set(self, expires_at: datetime | None) -> None:
        """Set the deadline to a moment in UTC, which may have passed. None removes the deadline."""
        self.extend(None if expires_at is None else (expires_at - self.clock.now()).total_seconds())
        self.expires_at = expires_at

    def remaining_s(self) -> float | None:
        """Return the seconds until the deadline, 0 after it. None: there is no deadline."""
        return None if self.expires_at is None else max(0.0, self.monotonic_s - self.clock.monotonic_s())

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Set the deadline back to its present moment if the body fails."""
        before = self.expires_at, self.monotonic_s
        try:
            yield
        except BaseException:
            self.expires_at, self.monotonic_s = before
            self.changed.set()
            raise


class Sandbox:
    """One sandbox.

    Args:
        spec: Requested sandbox; the limits are those that the driver last applied.
        owner: Owner of the sandbox.
        name: Name for people; None if the sandbox has none.
        created_at: Time of the create request, UTC.
        buffers: Share of the sandbox in the service's memory for client data.
        clock: Clock of the service.
        idle_timeout_s: Seconds without activity after which the sandbox is ended; None keeps an idle sandbox.
        state: ``CREATING``, or the recorded state of a sandbox of an earlier service.

    Attributes:
        deadline: Deadline of the sandbox; while the sandbox is suspended, the deadline of the suspension.
        awake: Set while the sandbox is not suspended, and from the request of its end on.
        inherited: True for a sandbox that an earlier service created: the guest may know executions that this service does not.
        single_use: True for a sandbox of one request, which ends with the service: no client learns its id.
        resume_operation: Resumes the suspended sandbox; set by the lifecycle.
        steady: Number of operations in progress during which no volume may be attached or detached.
        locals: State of features; only :class:`SandboxLocal` uses this.
        is_removed: True once every trace of the sandbox is removed.
    """

    __slots__ = (
        "activity",
        "awake",
        "buffers",
        "change_lock",
        "created_at",
        "deadline",
        "detaching",
        "end_requested",
        "ended",
        "ended_at",
        "exit",
        "id",
        "idempotency_key",
        "idle_timeout_s",
        "inherited",
        "instance",
        "is_removed",
        "link",
        "locals",
        "metadata",
        "name",
        "operations",
        "owner",
        "ready",
        "recovered",
        "ref",
        "request_digest",
        "requested_exit",
        "reserved_limits",
        "resume_operation",
        "single_use",
        "spec",
        "state",
        "steady",
        "tasks",
    )

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        owner: OwnerId,
        name: str | None,
        created_at: datetime,
        buffers: BufferBudget,
        clock: Clock,
        idle_timeout_s: float | None = None,
        state: State = State.CREATING,
    ) -> None:
        self.spec = spec
        self.id: SandboxId = spec.id
        self.owner = owner
        self.buffers = buffers
        self.name = name
        self.metadata: Mapping[str, str] = spec.metadata
        self.created_at = created_at
        self.state = state
        self.activity = ActivityTracker(clock)
        self.idle_timeout_s = idle_timeout_s
        self.idempotency_key: str | None = None
        self.request_digest: str | None = None
        self.ref: str | None = None
        self.recovered = asyncio.Event()
        if state is State.CREATING:
            self.recovered.set()
        self.detaching = asyncio.Event()
        self.single_use = False
        self.ended_at: datetime | None = None
        self.deadline = Deadline(clock)
        self.instance: Instance | None = None
        self.link: Link | None = None
        self.exit: Exit | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.operations = OperationQueue()
        self.awake = asyncio.Event()
        if state not in _SUSPENDED:
            self.awake.set()
        self.resume_operation: Operation[None] | None = None
        self.change_lock = asyncio.Lock()
        self.reserved_limits: Limits | None = None
        self.steady = 0
        self.end_requested = asyncio.Event()
        self.requested_exit: Exit | None = None
        self.ended = asyncio.Event()
        self.tasks = TaskSet("sandbox.defect", sandbox=self.id)
        self.inherited = state is not State.CREATING
        self.locals: dict[SandboxLocal[Any], Any] = {}
        self.is_removed = is_terminal(state)

    @property
    def is_announced(self) -> bool:
        """True once the response to the create request was sent, by this service or an earlier one."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    @property
    def counted_limits(self) -> Limits:
        """Limits that count against the owner's quota: during a change the larger of the old and the new limits."""
        return self.reserved_limits or self.spec.limits

    def become(self, state: State) -> None:
        """Change the state.

        Raises:
            InternalError: The table of states does not allow the change.
        """
        if not can_follow(self.state, state):
            raise InternalError(f"Sandbox {self.id} cannot go from {self.state} to {state}.")
        self.state = state
        if state in _SUSPENDED:
            self.awake.clear()
        else:
            self.awake.set()

    def request_end(self, reason: Exit) -> None:
        """Request the end of the sandbox. Idempotent: only the first reason counts."""
        if self.requested_exit is None and not is_terminal(self.state):
            self.requested_exit = reason
            self.end_requested.set()

    def detach(self) -> None:
        """Leave the sandbox running while the service stops; a single-use sandbox ends instead."""
        if self.single_use:
            self.request_end(Exit(ExitReason.KILLED, "the service was stopped"))
        else:
            self.detaching.set()

    async def wait_reachable(self) -> None:
        """Wait for the recovery of the sandbox and resume it if it is suspended. Return also if the sandbox has ended.

        Raises:
            ConflictError: ``sandbox_paused``: the sandbox is suspended and ``auto_resume`` is not set.
            SandlotError: The sandbox could not be resumed.
        """
        await self.recovered.wait()
        if self.state not in _SUSPENDED or self.end_requested.is_set() or self.detaching.is_set() or self.resume_operation is None:
            return
        if not self.spec.auto_resume and self.state is not State.WAKING:
            raise self.suspended_error()
        await self.operations.submit(self.resume_operation)

    async def wait_awake(self) -> None:
        """Wait until the sandbox is recovered and not suspended, without resuming it. Return also if its end is requested."""
        await self.recovered.wait()
        await self.awake.wait()

    @property
    def is_hibernated(self) -> bool:
        """True while the sandbox is hibernated, or is being hibernated or woken: nothing is heard of its processes."""
        return self.state in {State.HIBERNATING, State.HIBERNATED, State.WAKING} and not self.end_requested.is_set()

    def require_link(self) -> Link:
        """Return the link to the guest of a running sandbox.

        Raises:
            ConflictError: The sandbox is still being created, or is suspended.
            SandboxEndedError: The sandbox has ended, or its end is requested.
            UnavailableError: ``service_stopping``.
        """
        if self.detaching.is_set() and not self.end_requested.is_set():
            raise self.stopping_error()
        if self.state in _REACHABLE and self.link is not None and not self.end_requested.is_set():
            return self.link
        if self.state is State.CREATING and not self.end_requested.is_set():
            raise ConflictError(
                f"Sandbox {self.id} is still being created.",
                code=ErrorCode.CONFLICT,
                hint="Wait until its state is 'running'.",
                fields={"sandbox": self.id, "state": str(self.state)},
            )
        if self.state in _SUSPENDED and not self.end_requested.is_set():
            raise self.suspended_error()
        raise self.ended_error()

    def require_instance(self) -> Instance:
        """Return the driver's side of the sandbox.

        Raises:
            SandboxEndedError: There is none, because the sandbox has ended or was just lost.
        """
        if self.instance is None:
            raise self.ended_error()
        return self.instance

    def suspended_error(self) -> ConflictError:
        """Return the error of calls that would have to resume the sandbox."""
        return ConflictError(
            f"Sandbox {self.id} is {self.state}.",
            code=ErrorCode.SANDBOX_PAUSED,
            hint="Resume the sandbox first, or create sandboxes with `auto_resume`.",
            fields={"sandbox": self.id, "state": str(self.state)},
        )

    def stopping_error(self) -> UnavailableError:
        """Return the error of calls that are interrupted by the end of the service."""
        return UnavailableError(
            f"The service stopped during this call. Sandbox {self.id} and its processes keep running.",
            code=ErrorCode.SERVICE_STOPPING,
            hint="Reconnect to the sandbox after the service has restarted.",
            fields={"sandbox": self.id},
        )

    def ended_error(self) -> SandboxEndedError:
        """Return the error of calls to an ended sandbox."""
        end = self.exit or self.requested_exit
        reason, detail = (str(end.reason), end.detail) if end is not None else ("", "")
        return SandboxEndedError(
            f"Sandbox {self.id} has ended ({reason or 'for an unknown reason'}{f': {detail}' if detail else ''}).",
            code=ErrorCode.SANDBOX_ENDED,
            hint="Create a new sandbox; the files of the old one are removed.",
            fields={"sandbox": self.id, "reason": reason, "detail": detail},
        )

    @asynccontextmanager
    async def connection(self, timeout_s: float | None = CALL_TIMEOUT_S) -> AsyncIterator[Link]:
        """Provide the link for one piece of work. Waits for recovery, resumes the sandbox and counts as activity.

        Args:
            timeout_s: Seconds that the work may take; None leaves the timeout to the caller.

        Raises:
            SandboxEndedError: The sandbox ended before or during the work; the error has the reason.
            TimeoutExceededError: The guest did not respond in time.
        """
        if self.state in _SUSPENDED or not self.recovered.is_set():
            await self.wait_reachable()
        link = self.require_link()
        hold = Hold(self.activity)
        try:
            async with asyncio.timeout(timeout_s):
                yield link
        except (SandboxEndedError, UnavailableError) as error:
            raise await self.explain(error) from None
        except TimeoutError:
            raise TimeoutExceededError(
                f"Sandbox {self.id} did not respond within {timeout_s:g} s.",
                code=ErrorCode.TIMEOUT,
                hint="Kill the sandbox and create a new one: a process inside may keep it from responding.",
                fields={"sandbox": self.id},
            ) from None
        finally:
            hold.release()

    async def explain(self, error: SandlotError) -> SandlotError:
        """Return the error of a call that was cut off, after waiting up to 5 s for the driver's reason.

        Args:
            error: Error of the link. An error that has another cause than an end is returned unchanged.
        """
        if self.detaching.is_set() and not self.end_requested.is_set():
            return self.stopping_error()
        if isinstance(error, UnavailableError) and not self.end_requested.is_set() and (self.state in _REACHABLE or self.state in _SUSPENDED):
            return error  # too many calls at once, for example, or the sandbox was suspended
        try:
            async with asyncio.timeout(_EXIT_WAIT_S):
                await self.ended.wait()
        except TimeoutError:
            pass  # the error then says that the reason is not known
        return self.ended_error()

    def forget(self) -> None:
        """Close the state of all features. Called when every trace of the sandbox is removed."""
        self.instance = self.link = None
        self.is_removed = True
        for local, value in self.locals.items():
            local.close(value)
        self.locals.clear()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task of the sandbox. The task is cancelled when the sandbox ends or the service stops."""
        self.tasks.spawn(work)


class SandboxLocal(Generic[T]):
    """State that one feature has for each sandbox.

    The state is created on first use and closed when the sandbox is removed. A removed sandbox gets no new state.

    Args:
        create: Creates the state of a sandbox.
        close: Releases what the state holds.
    """

    __slots__ = ("_create", "close")

    def __init__(self, create: Callable[[Sandbox], T], close: Callable[[T], None] = lambda _: None) -> None:
        self._create = create
        self.close = close

    def of(self, sandbox: Sandbox) -> T:
        """Return the state of a sandbox.

        Raises:
            SandboxEndedError: The sandbox is removed.
        """
        if self not in sandbox.locals:
            if sandbox.is_removed:
                raise sandbox.ended_error()
            sandbox.locals[self] = self._create(sandbox)
        state: T = sandbox.locals[self]
        return state

    def get(self, sandbox: Sandbox) -> T | None:
        """Return the state of a sandbox; None if there is none."""
        return sandbox.locals.get(self)
