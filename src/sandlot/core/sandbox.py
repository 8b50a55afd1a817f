"""One sandbox as the service knows it: identity, state machine, link to the guest and activity.

Invariants:
- The state changes only as the table in :mod:`sandlot.model.states` allows.
- If the end of a sandbox is requested several times, the first reason counts, and every client gets this reason.
- A call that fails because the sandbox ended reports why the sandbox ended, not how the link was lost.
- A call to a sandbox that is being recovered after a restart of the service waits for the recovery; the call is not refused.
- A call to a suspended sandbox resumes the sandbox, if ``auto_resume`` is set; otherwise the call is refused.
- A service that stops closes its links and ends no sandbox: the processes in the sandboxes keep running.
- Only ``core/lifecycle`` changes a live sandbox. Other code requests the end, detaches, lets the timeout pass (:meth:`Sandbox.expire`), submits
  operations, records activity, and pins mounts.
- Other features add no attributes to :class:`Sandbox`: each feature keeps its data for the sandboxes in its own :class:`SandboxLocal`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

import structlog

from sandlot.core.access.idempotency import IdempotencyKey
from sandlot.core.concurrency import TaskSet
from sandlot.core.operations import Operation, OperationQueue
from sandlot.core.ports import Clock
from sandlot.core.resources.allocation import Allocation
from sandlot.link.client import Link
from sandlot.model.access import OwnerId
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import ConflictError, ErrorCode, InternalError, SandboxEndedError, SandlotError, TimeoutExceededError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Exit, ExitReason, Instance
from sandlot.model.sandboxes import SandboxInfo, ended_error
from sandlot.model.specs import SandboxSpec, absolute_path
from sandlot.model.states import State, can_follow, is_terminal

CALL_TIMEOUT_S: Final = 60.0
"""Timeout of calls that take the guest little time, such as stat, signal and list. A guest that takes longer is treated as not responding."""
GRACE_S: Final = 30.0
"""Seconds that the service waits, after the timeout of an execution, for the guest to end the execution."""
_EXIT_WAIT_S: Final = 5.0
"""Maximum seconds that a failed call waits for the driver to report why the sandbox ended."""
_REACHABLE: Final = frozenset({State.RUNNING, State.SNAPSHOTTING})
_SUSPENDED: Final = frozenset({State.PAUSING, State.PAUSED, State.HIBERNATING, State.HIBERNATED, State.WAKING})
"""Suspended states, and the states of the transitions between a running and a suspended sandbox."""

T = TypeVar("T")

_log = structlog.get_logger("sandlot.core")


class Hold:
    """Keeps a sandbox from counting as idle while a client uses the sandbox: from the creation of the hold until its release."""

    __slots__ = ("_activity",)

    def __init__(self, activity: ActivityTracker) -> None:
        activity.held += 1
        self._activity: ActivityTracker | None = activity

    def release(self) -> None:
        """Release the hold. Idempotent."""
        activity, self._activity = self._activity, None
        if activity is not None:
            activity.held -= 1
            activity.quiet_since_s = activity.clock.monotonic_s()


class ActivityTracker:
    """Number of clients that use a sandbox now, and the time of the last activity.

    Attributes:
        held: Number of holds that are not released.
        quiet_since_s: Monotonic time of the last activity. Meaningful only while ``held`` is 0.
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
        expires_at: The deadline in UTC, for records and clients. None: no deadline.
        monotonic_s: The deadline on the monotonic clock; infinite without a deadline.
        changed: Event that is set when the deadline changes. The supervisor clears the event before it reads the deadline.
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
        """Set the deadline to a moment in UTC, which may be in the past. None removes the deadline."""
        self.extend(None if expires_at is None else (expires_at - self.clock.now()).total_seconds())
        self.expires_at = expires_at

    def remaining_s(self) -> float | None:
        """Return the seconds until the deadline, 0 after it. None: there is no deadline."""
        return None if self.expires_at is None else max(0.0, self.monotonic_s - self.clock.monotonic_s())

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Restore the current deadline if the body of the ``with`` block fails."""
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
        spec: Spec of the sandbox. Its limits are the limits that the driver last applied.
        name: Name that the client chose; None if the sandbox has no name.
        created_at: Time of the create request, UTC.
        buffers: The sandbox's part of the service's memory for buffered client data.
        idle_timeout_s: Idle timeout in seconds. None: the sandbox has no idle timeout.
        state: ``CREATING``, or the recorded state of a sandbox of an earlier service.
        single_use: True for a sandbox that serves one request. No client learns its id, so it is ended when the service stops.

    Attributes:
        allocation: Resources of the sandbox on the host; None while the sandbox is hibernated. Only the supervisor sets it.
        deadline: Deadline of the sandbox; while the sandbox is suspended, the deadline of the suspension.
        awake: Event that is set while the sandbox is not suspended, and set permanently once the end of the sandbox is requested.
        inherited: True for a sandbox that an earlier service created. Its guest may run executions that this service did not start.
        resume_operation: Operation that resumes the suspended sandbox; set by :class:`~sandlot.core.manager.SandboxManager`.
        mount_pins: Number of forks and snapshots in progress, during which no volume may be attached or detached.
        tasks: Background tasks of the sandbox. They are cancelled when the sandbox ends or the service stops.
        locals: State that features keep for the sandbox. Only :class:`SandboxLocal` uses this attribute.
        waits_for_disk: True while the sandbox is paused until the host's disk has room again.
        is_removed: True once nothing of the sandbox is left on the host.
    """

    __slots__ = (
        "activity",
        "allocation",
        "awake",
        "buffers",
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
        "is_removed",
        "locals",
        "metadata",
        "mount_pins",
        "name",
        "operations",
        "owner",
        "ready",
        "recovered",
        "ref",
        "requested_exit",
        "resume_operation",
        "single_use",
        "spec",
        "state",
        "tasks",
        "waits_for_disk",
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
        single_use: bool = False,
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
        self.idempotency_key: IdempotencyKey | None = None
        self.ref: str | None = None
        self.recovered = asyncio.Event()
        if state is State.CREATING:
            self.recovered.set()
        self.detaching = asyncio.Event()
        self.single_use = single_use
        self.ended_at: datetime | None = None
        self.deadline = Deadline(clock)
        self.allocation: Allocation | None = None
        self.exit: Exit | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.operations = OperationQueue(clock)
        self.awake = asyncio.Event()
        if state not in _SUSPENDED:
            self.awake.set()
        self.resume_operation: Operation[None] | None = None
        self.mount_pins = 0
        self.end_requested = asyncio.Event()
        self.requested_exit: Exit | None = None
        self.ended = asyncio.Event()
        self.tasks = TaskSet("sandbox.internal_error", sandbox=self.id)
        self.inherited = state is not State.CREATING
        self.locals: dict[SandboxLocal[Any], Any] = {}
        self.waits_for_disk = False
        self.is_removed = is_terminal(state)

    @property
    def is_announced(self) -> bool:
        """True once this service or an earlier service has sent the response to the create request."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    @property
    def instance(self) -> Instance | None:
        """The driver's instance of the sandbox, or None if the sandbox has not been started or is hibernated."""
        return None if self.allocation is None else self.allocation.instance

    @property
    def link(self) -> Link | None:
        """Link to the guest, or None if the sandbox has no processes or its guest was not reached yet."""
        return None if self.allocation is None else self.allocation.link

    def info(self) -> SandboxInfo:
        """Return the sandbox as its clients see it now."""
        now = self.activity.clock.now()
        quiet_s = self.activity.clock.monotonic_s() - self.activity.quiet_since_s
        return SandboxInfo(
            spec=self.spec,
            owner=self.owner,
            name=self.name,
            metadata=self.metadata,
            state=State.STOPPING if self.end_requested.is_set() and not is_terminal(self.state) else self.state,
            created_at=self.created_at,
            expires_at=self.deadline.expires_at,
            idle_timeout_s=self.idle_timeout_s,
            idle_since=None if self.activity.held else now - timedelta(seconds=quiet_s),
            exit=self.exit,
            ended_at=self.ended_at,
            as_of=now,
        )

    def become(self, state: State) -> None:
        """Change the state.

        Raises:
            InternalError: :func:`~sandlot.model.states.can_follow` does not allow the change.
        """
        if not can_follow(self.state, state):
            raise InternalError(f"Sandbox {self.id} cannot go from {self.state} to {state}.")
        self.state = state
        if state in _SUSPENDED:
            self.awake.clear()
        else:
            self.awake.set()

    def request_end(self, reason: Exit) -> None:
        """Request the end of the sandbox. Only the reason of the first call counts. Does nothing if the sandbox has ended."""
        if self.requested_exit is None and not is_terminal(self.state):
            self.requested_exit = reason
            self.end_requested.set()

    def detach(self) -> None:
        """Detach the service from the sandbox, which keeps running when the service stops. A single-use sandbox is ended instead."""
        if self.single_use:
            self.request_end(Exit(ExitReason.KILLED, "the service was stopped"))
        else:
            self.detaching.set()

    def expire(self) -> None:
        """Let the timeout of a running sandbox pass now. Does nothing in any other state."""
        if self.state is State.RUNNING:
            self.deadline.extend(0)

    async def wait_reachable(self) -> None:
        """Wait until the sandbox is recovered, and resume the sandbox if it is suspended. Also return if the sandbox has ended.

        Raises:
            ConflictError: The sandbox is suspended and its ``auto_resume`` is not set; code ``sandbox_paused``.
        """
        await self.recovered.wait()
        if self.state not in _SUSPENDED or self.end_requested.is_set() or self.detaching.is_set() or self.resume_operation is None:
            return
        if not self.spec.auto_resume and self.state is not State.WAKING:
            raise self.suspended_error()
        await self.operations.submit(self.resume_operation)

    async def wait_awake(self) -> None:
        """Wait until the sandbox is recovered and not suspended, without resuming it. Also return if its end is requested."""
        await self.recovered.wait()
        await self.awake.wait()

    @property
    def is_hibernated(self) -> bool:
        """True while the sandbox is hibernated, or is being hibernated or woken. In these states its guest does not report the state of processes."""
        return self.state in {State.HIBERNATING, State.HIBERNATED, State.WAKING} and not self.end_requested.is_set()

    def check_live(self) -> None:
        """Refuse a call to a sandbox that is still being created, has ended, or is left to the next service.

        Raises:
            ConflictError: The sandbox is still being created.
            SandboxEndedError: The sandbox has ended, or its end is requested.
            UnavailableError: The service is stopping and leaves the sandbox to the next service; code ``service_stopping``.
        """
        if self.end_requested.is_set() or is_terminal(self.state):
            raise self.ended_error()
        if self.detaching.is_set():
            raise self.stopping_error()
        if self.state is State.CREATING:
            raise ConflictError(
                f"Sandbox {self.id} is still being created.",
                hint="Wait until its state is 'running'.",
                fields={"sandbox": self.id, "state": str(self.state)},
            )

    def require_link(self) -> Link:
        """Return the link to the guest of a running sandbox.

        Raises:
            ConflictError: The sandbox is still being created, or is suspended.
            SandboxEndedError: The sandbox has ended, or its end is requested.
            UnavailableError: The service is stopping and leaves the sandbox to the next service; code ``service_stopping``.
        """
        link = self.link
        if link is None or self.state not in _REACHABLE or self.end_requested.is_set() or self.detaching.is_set():
            self.check_live()
            raise self.suspended_error() if self.state in _SUSPENDED else self.ended_error()
        return link

    def require_instance(self) -> Instance:
        """Return the driver's instance of the sandbox.

        Raises:
            SandboxEndedError: The sandbox has no instance, because the sandbox has ended or the driver has lost it.
        """
        if self.instance is None:
            raise self.ended_error()
        return self.instance

    def suspended_error(self) -> ConflictError:
        """Return the error for a call that needs a running sandbox but may not resume the suspended sandbox."""
        return ConflictError(
            f"Sandbox {self.id} is {self.state}.",
            code=ErrorCode.SANDBOX_PAUSED,
            hint="Resume the sandbox first, or create sandboxes with `auto_resume`.",
            fields={"sandbox": self.id, "state": str(self.state)},
        )

    def stopping_error(self) -> UnavailableError:
        """Return the error of a call that is interrupted because the service stops."""
        return UnavailableError(
            f"The service stopped during this call. Sandbox {self.id} and its processes keep running.",
            code=ErrorCode.SERVICE_STOPPING,
            hint="Reconnect to the sandbox after the service has restarted.",
            fields={"sandbox": self.id},
        )

    def ended_error(self) -> SandboxEndedError:
        """Return the error of a call to a sandbox that has ended."""
        return ended_error(self.id, self.exit or self.requested_exit)

    def absolute_path(self, path: str) -> str:
        """Check a path, and return it as an absolute path. A relative path begins in the working directory of the sandbox.

        Raises:
            InvalidRequestError: The path is empty, too long or contains a NUL character (code ``path_invalid``).
        """
        return absolute_path(path, self.spec.cwd)

    @asynccontextmanager
    async def connection(self, timeout_s: float | None = CALL_TIMEOUT_S) -> AsyncIterator[Link]:
        """Provide the link to the guest for the body of the ``with`` block.

        Waits until the sandbox is recovered and resumes the sandbox if it is suspended. The body counts as activity of a client.

        Args:
            timeout_s: Seconds that the body may take. None: no timeout.

        Raises:
            SandboxEndedError: The sandbox ended before or during the body; the error has the reason.
            TimeoutExceededError: The body took longer than ``timeout_s``.
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
                hint="Kill the sandbox and create a new one. A process in the sandbox may keep it from responding.",
                fields={"sandbox": self.id},
            ) from None
        finally:
            hold.release()

    async def explain(self, error: SandlotError) -> SandlotError:
        """Return the error for a client whose call failed. If the sandbox has ended, wait up to 5 s for the reason from the driver.

        Args:
            error: Error of the link. Returned unchanged if neither the sandbox nor the service has ended.
        """
        if self.detaching.is_set() and not self.end_requested.is_set():
            return self.stopping_error()
        if isinstance(error, UnavailableError) and not self.end_requested.is_set() and (self.state in _REACHABLE or self.state in _SUSPENDED):
            return error  # the sandbox has not ended: for example, the link has too many calls, or the sandbox was suspended
        try:
            async with asyncio.timeout(_EXIT_WAIT_S):
                await self.ended.wait()
        except TimeoutError:
            pass  # the message of the error then gives no reason, or the reason for which the end was requested
        return self.ended_error()

    def forget(self) -> None:
        """Close and remove every ``SandboxLocal`` value of the sandbox. Called when nothing of the sandbox is left on the host."""
        self.allocation = None
        self.is_removed = True
        for local, value in self.locals.items():
            local.close(value)
        self.locals.clear()


class SandboxLocal(Generic[T]):
    """State that one feature keeps for each sandbox.

    The state is created on first use and closed when the sandbox is removed. A removed sandbox gets no new state.

    Args:
        create: Creates the state of a sandbox.
        close: Releases the resources of the state.
    """

    __slots__ = ("_create", "close")

    def __init__(self, create: Callable[[Sandbox], T], close: Callable[[T], None] = lambda _: None) -> None:
        self._create = create
        self.close = close

    def of(self, sandbox: Sandbox) -> T:
        """Return the feature's state for a sandbox. Create the state on first use."""
        if self not in sandbox.locals:
            if sandbox.is_removed:
                raise sandbox.ended_error()
            sandbox.locals[self] = self._create(sandbox)
        state: T = sandbox.locals[self]
        return state

    def get(self, sandbox: Sandbox) -> T | None:
        """Return the feature's state for a sandbox, or None if no state was created."""
        return sandbox.locals.get(self)
