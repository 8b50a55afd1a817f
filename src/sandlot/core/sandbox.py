"""What is done with a sandbox, since when nothing is, and who is there for it.

One sandbox as the service knows it: what was asked for, where it is in its life, and the link to its guest.

Laws:
- The state changes only as the table in :mod:`sandlot.model.states` allows.
- Whoever wants it gone says so once by :meth:`Sandbox.end`; the first word is the reason that everybody is told.
- A call that fails because the sandbox ended is answered with why it ended, not with how the link noticed.
- A call to a sandbox that is being taken over after a restart of the service waits for that; it is not refused.
- A call to one that rests resumes it, unless it was asked for otherwise; then it is refused.
- A service that leaves takes its links along, and no sandbox: what runs in them goes on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog

from sandlot.core.concurrency import TaskSet
from sandlot.core.execution import process_details
from sandlot.core.execution.process_details import ProcessDetails
from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.operations import Operation, OperationQueue
from sandlot.core.ports import Clock
from sandlot.core.records.execution_log import ExecutionLog
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.link.client import Link
from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode, InternalError, SandboxEndedError, SandlotError, TimeoutExceededError, UnavailableError
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.ports import Exit, ExitReason, Instance
from sandlot.model.records import ExecutionId, ExecutionRecord
from sandlot.model.specs import Limits, SandboxSpec
from sandlot.model.states import State, can_follow, is_terminal

if TYPE_CHECKING:
    from sandlot.core.execution.stdin import StdinWriter
    from sandlot.core.files.watch import BufferedFolderWatch


class Hold:
    """Something that is done for a client; until it is released, its sandbox is not idle."""

    __slots__ = ("_activity",)

    def __init__(self, activity: ActivityTracker) -> None:
        self._activity: ActivityTracker | None = activity

    def release(self) -> None:
        """It is done. Idempotent."""
        activity, self._activity = self._activity, None
        if activity is not None:
            activity.held -= 1
            activity.touch()


class ActivityTracker:
    """What is done with a sandbox, and since when nothing is.

    Args:
        clock: The time.
    """

    __slots__ = ("_clock", "held", "quiet_since_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.held = 0
        self.quiet_since_s = clock.monotonic_s()

    def hold(self) -> Hold:
        """Begin something."""
        self.held += 1
        return Hold(self)

    def touch(self) -> None:
        """Something was done just now."""
        self.quiet_since_s = self._clock.monotonic_s()


class ExecutionFollowers:
    """Who is there for something that goes on: how many, and whether they have all been away for long."""

    __slots__ = ("_away", "_here", "attended", "people", "turn")

    def __init__(self) -> None:
        self._away = asyncio.Event()
        self._here = asyncio.Event()
        self.people = 0
        self.attended = False
        """Whether somebody sees to its end."""
        self.turn = asyncio.Lock()
        """Held by who begins it: whoever comes meanwhile joins."""

    def enter(self) -> None:
        """Somebody comes."""
        self.people += 1
        self._here.set()
        self._away.clear()

    def leave(self) -> None:
        """Somebody goes."""
        self.people -= 1
        if not self.people:
            self._away.set()
            self._here.clear()

    async def away(self, for_s: float, first_s: float | None = None) -> None:
        """Return once nobody has been there for so many seconds; the first time, for ``first_s``."""
        longest_s = for_s if first_s is None else first_s
        while True:
            await self._away.wait()
            try:
                async with asyncio.timeout(longest_s):
                    await self._here.wait()
            except TimeoutError:
                return
            longest_s = for_s


CALL_TIMEOUT_S = 60.0
"""For calls that do no work of the user's (stat, signal, list): a guest that takes longer is not answering."""
GRACE_S = 30.0
"""How much longer than its own timeout a run may take until the host stops waiting for a guest that should have ended it."""
_VERDICT_S = 5.0
_THERE = frozenset({State.RUNNING, State.SNAPSHOTTING})
"""It can be spoken to."""
_AWAY = frozenset({State.PAUSING, State.PAUSED, State.HIBERNATING, State.HIBERNATED, State.WAKING})
"""It rests, or is on its way there or back."""
_log = structlog.get_logger("sandlot.core")


class Sandbox:
    """One sandbox.

    Args:
        spec: What was asked for.
        owner: Whose it is.
        name: A word for people.
        created_at: When, UTC.
        buffers: Its part of the memory that the service holds for clients.
        clock: The time.
        idle_timeout_s: Seconds of doing nothing after which it is ended; None is never.
        state: Creating, or where it was when the service before this one ended.
    """

    __slots__ = (
        "activity",
        "awake",
        "background",
        "begun",
        "buffers",
        "change_lock",
        "contexts",
        "created_at",
        "deadline_changed",
        "deadline_monotonic_s",
        "detaching",
        "end_requested",
        "ended",
        "ended_at",
        "execution_counter",
        "execution_log",
        "exit",
        "expires_at",
        "idempotency_key",
        "idle_timeout_s",
        "inherited",
        "inputs",
        "installs",
        "instance",
        "left",
        "link",
        "metadata",
        "name",
        "notes",
        "operations",
        "owner",
        "present",
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
        "watchers",
    )

    def __init__(  # noqa: PLR0915 - one for each of its parts
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
        """Whether it is for one request alone, and ends with it: nobody would ever hear of it again."""
        self.ended_at: datetime | None = None
        self.expires_at: datetime | None = None
        self.deadline_monotonic_s = math.inf
        self.deadline_changed = asyncio.Event()
        self.instance: Instance | None = None
        self.link: Link | None = None
        self.exit: Exit | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.operations = OperationQueue()
        self.awake = asyncio.Event()
        """Set while it does not rest, and once it is to end."""
        if state not in _AWAY:
            self.awake.set()
        self.left: dict[ExecutionId, ExecutionRecord] = {}
        """Runs of which nobody hears since it went to sleep."""
        self.resume_operation: Operation[None] | None = None
        """What lets it go on while it rests."""
        self.change_lock = asyncio.Lock()
        self.reserved_limits: Limits | None = None
        self.steady = 0
        """What is being made that has to have the volumes that it has now."""
        self.end_requested = asyncio.Event()
        self.requested_exit: Exit | None = None
        self.ended = asyncio.Event()
        self.tasks = TaskSet("sandbox.defect", sandbox=self.id)
        self.background: set[ProcessId] = set()
        """Cells in the background that are attended to."""
        self.begun: dict[ProcessId, None] = {}
        """Cells that were begun lately, oldest first."""
        self.contexts: set[str] = set()  # those that are certainly there: made, or found, and not removed
        self.present: dict[ProcessId, ExecutionFollowers] = {}
        """Who is there for the cells in the foreground that can be asked for again."""
        self.inherited = state is not State.CREATING
        """Whether an earlier service made it: it may know runs that this one has not heard of."""
        self.execution_log: ExecutionLog | None = None
        self.execution_counter: MonthlyExecutionCounter | None = None
        self.inputs: dict[ProcessId, StdinWriter] = {}
        self.notes: dict[ProcessId, ProcessDetails] = {}
        self.watchers: dict[str, BufferedFolderWatch] = {}
        self.installs = 0
        """Installs under way that open the package index, whatever its network is."""

    @property
    def id(self) -> SandboxId:
        """Its id."""
        return self.spec.id

    @property
    def is_announced(self) -> bool:
        """Whether a client was told that it runs, by this service or an earlier one."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    @property
    def counted_limits(self) -> Limits:
        """What it counts as against its owner's quota: while its limits are changed, the larger of both."""
        return self.reserved_limits or self.spec.limits

    def become(self, state: State) -> None:
        """Go on to another state.

        Raises:
            InternalError: The table does not allow it.
        """
        if not can_follow(self.state, state):
            raise InternalError(f"Sandbox {self.id} cannot go from {self.state} to {state}.")
        self.state = state
        if state in _AWAY:
            self.awake.clear()
        else:
            self.awake.set()

    def request_end(self, why: Exit) -> None:
        """Ask for its end. Idempotent: only the first reason counts."""
        if self.requested_exit is None and not is_terminal(self.state):
            self.requested_exit = why
            self.end_requested.set()

    def detach(self) -> None:
        """The service ends, and the sandbox does not; one that is for one request of this service does."""
        if self.single_use:
            self.request_end(Exit(ExitReason.KILLED, "the service was stopped"))
        else:
            self.detaching.set()

    def hold(self) -> Hold:
        """Begin something that is done for a client; release it in the end."""
        return self.activity.hold()

    def counted(self) -> AbstractContextManager[None]:
        """Around what begins a run: it is counted against its owner's quota; what raises has begun nothing.

        Raises:
            LimitError: ``quota_exceeded``, on entering.
        """
        return nullcontext() if self.execution_counter is None else self.execution_counter.count(self.owner)

    async def wait_reachable(self) -> None:
        """Return once it can be spoken to: what an earlier service left is taken over first, what rests is resumed first; or once it has ended.

        Raises:
            ConflictError: ``sandbox_paused``: it rests, and is not to be resumed by itself.
            SandlotError: It could not be resumed.
        """
        await self.recovered.wait()
        if self.state not in _AWAY or self.end_requested.is_set() or self.detaching.is_set() or self.resume_operation is None:
            return
        if not self.spec.auto_resume and self.state is not State.WAKING:
            raise self.suspended_error()
        await self.operations.submit(self.resume_operation)

    async def wait_awake(self) -> None:
        """Return once it can be spoken to, without resuming it for that; or once it is to end."""
        await self.recovered.wait()
        await self.awake.wait()

    @property
    def is_hibernated(self) -> bool:
        """Whether it sleeps on the disk, or is on its way there or back: nobody hears of what runs in it."""
        return self.state in {State.HIBERNATING, State.HIBERNATED, State.WAKING} and not self.end_requested.is_set()

    def require_link(self) -> Link:
        """The link to the guest of a running sandbox.

        Raises:
            ConflictError: It is still being created, or rests.
            SandboxEndedError: It has ended, or is about to.
        """
        if self.detaching.is_set() and not self.end_requested.is_set():
            raise self.stopping_error()
        if self.state in _THERE and self.link is not None and not self.end_requested.is_set():
            return self.link
        if self.state is State.CREATING and not self.end_requested.is_set():
            raise ConflictError(
                f"Sandbox {self.id} is still being created.",
                code=ErrorCode.CONFLICT,
                hint="Wait until its state is 'running'.",
                fields={"sandbox": self.id, "state": str(self.state)},
            )
        if self.state in _AWAY and not self.end_requested.is_set():
            raise self.suspended_error()
        raise self.ended_error()

    def suspended_error(self) -> ConflictError:
        """What a call is answered with while it rests."""
        return ConflictError(
            f"Sandbox {self.id} is {self.state}.",
            code=ErrorCode.SANDBOX_PAUSED,
            hint="Resume it first, or create sandboxes with auto_resume.",
            fields={"sandbox": self.id, "state": str(self.state)},
        )

    def stopping_error(self) -> UnavailableError:
        """What a call is answered with whose service ends before it was answered."""
        return UnavailableError(
            f"The service is stopping; sandbox {self.id} lives on.",
            code=ErrorCode.SERVICE_STOPPING,
            hint="What was started in it goes on. Connect to it again once the service has started anew.",
            fields={"sandbox": self.id},
        )

    def ended_error(self) -> SandboxEndedError:
        """What a call to an ended sandbox is answered with."""
        why = self.exit or self.requested_exit
        detail = f": {why.detail}" if why is not None and why.detail else ""
        reason = str(why.reason) if why is not None else ""
        return SandboxEndedError(
            f"Sandbox {self.id} has ended ({reason or 'for an unknown reason'}{detail}).",
            code=ErrorCode.SANDBOX_ENDED,
            hint="Create a new one; what was in it is gone.",
            fields={"sandbox": self.id, "reason": reason, "detail": why.detail if why is not None else ""},
        )

    @asynccontextmanager
    async def connection(self, timeout_s: float | None = CALL_TIMEOUT_S) -> AsyncIterator[Link]:
        """The link, for one piece of work.

        Args:
            timeout_s: How long the guest may take; None leaves that to the caller.

        Raises:
            SandboxEndedError: The sandbox ended before or meanwhile; says why.
            TimeoutExceededError: The guest did not answer in time.
        """
        await self.wait_reachable()
        link = self.require_link()
        hold = self.hold()
        try:
            async with asyncio.timeout(timeout_s):
                yield link
        except (SandboxEndedError, UnavailableError) as error:
            raise await self.explain(error) from None
        except TimeoutError:
            raise TimeoutExceededError(
                f"Sandbox {self.id} did not answer within {timeout_s:g} s.",
                code=ErrorCode.TIMEOUT,
                hint="Something inside may keep it from answering. Kill it and create a new one.",
                fields={"sandbox": self.id},
            ) from None
        finally:
            hold.release()

    async def explain(self, error: SandlotError) -> SandlotError:
        """What a call is answered with that noticed an end, or a closed link, before the driver had said why.

        Args:
            error: What the link raised.
        """
        if self.detaching.is_set() and not self.end_requested.is_set():
            return self.stopping_error()
        if isinstance(error, UnavailableError) and not self.end_requested.is_set() and (self.state in _THERE or self.state in _AWAY):
            return error  # too many calls at once, for example, or it came to rest
        try:
            async with asyncio.timeout(_VERDICT_S):
                await self.ended.wait()
        except TimeoutError:
            pass  # the answer then says that the reason is not known
        return self.ended_error()

    def forget(self) -> None:
        """Every trace of it is removed: let go of what was only for the time that it lived."""
        self.instance = self.link = None
        process_details.forget(self)
        for watcher in self.watchers.values():
            watcher.close()
        for each in (self.inputs, self.begun, self.present, self.watchers):
            each.clear()
        self.background.clear()
        self.contexts.clear()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task of this sandbox. It is cancelled when the sandbox is removed."""
        self.tasks.spawn(work)
