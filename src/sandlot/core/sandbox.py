"""One sandbox as the service knows it: what was asked for, where it is in its life, and the link to its guest.

Laws:
- The state changes only as the table in :mod:`sandlot.model.states` allows.
- Whoever wants it gone says so once by :meth:`Sandbox.end`; the first word is the reason that everybody is told.
- A call that fails because the sandbox ended is answered with why it ended, not with how the link noticed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

import structlog

from sandlot.core.node.budget import Budget
from sandlot.link.client import Link, ProcessCall
from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode, InternalError, SandboxEndedError, SandlotError, TimeoutExceededError, UnavailableError
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.ports import Exit, Instance
from sandlot.model.specs import SandboxSpec
from sandlot.model.states import State, is_terminal, may_follow

CALL_TIMEOUT_S = 60.0
"""For calls that do no work of the user's (stat, signal, list): a guest that takes longer is not answering."""

GRACE_S = 30.0
"""How much longer than its own timeout a run may take until the host stops waiting for a guest that should have ended it."""

_VERDICT_S = 5.0

_log = structlog.get_logger("sandlot.core")


class Sandbox:
    """One sandbox.

    Args:
        spec: What was asked for.
        owner: Whose it is.
        name: A word for people.
        created_at: When, UTC.
        budget: Its part of the memory that the service holds for clients.
    """

    __slots__ = (
        "budget",
        "changing",
        "created_at",
        "deadline_changed",
        "deadline_monotonic_s",
        "ended",
        "exit",
        "expires_at",
        "inputs",
        "instance",
        "kernels",
        "link",
        "metadata",
        "name",
        "owner",
        "ready",
        "spec",
        "state",
        "tasks",
        "wanted",
        "wanted_exit",
    )

    def __init__(self, spec: SandboxSpec, *, owner: OwnerId, name: str | None, created_at: datetime, budget: Budget) -> None:
        self.spec = spec
        self.owner = owner
        self.budget = budget
        self.name = name
        self.metadata: Mapping[str, str] = spec.metadata
        self.created_at = created_at
        self.state = State.CREATING
        self.expires_at: datetime | None = None
        self.deadline_monotonic_s = math.inf
        self.deadline_changed = asyncio.Event()
        self.instance: Instance | None = None
        self.link: Link | None = None
        self.exit: Exit | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.changing = asyncio.Lock()
        self.wanted = asyncio.Event()
        self.wanted_exit: Exit | None = None
        self.ended = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        self.kernels: dict[str, asyncio.Lock] = {}
        self.inputs: dict[ProcessId, ProcessCall] = {}

    @property
    def id(self) -> SandboxId:
        """Its id."""
        return self.spec.id

    def become(self, state: State) -> None:
        """Go on to another state.

        Raises:
            InternalError: The table does not allow it.
        """
        if not may_follow(self.state, state):
            raise InternalError(f"Sandbox {self.id} cannot go from {self.state} to {state}.")
        self.state = state

    def end(self, why: Exit) -> None:
        """Ask for its end. Idempotent: only the first reason counts."""
        if self.wanted_exit is None and not is_terminal(self.state):
            self.wanted_exit = why
            self.wanted.set()

    def require_link(self) -> Link:
        """The link to the guest of a running sandbox.

        Raises:
            ConflictError: It is still being created.
            SandboxEndedError: It has ended, or is about to.
        """
        if self.state is State.RUNNING and self.link is not None and not self.wanted.is_set():
            return self.link
        if self.state is State.CREATING and not self.wanted.is_set():
            raise ConflictError(
                f"Sandbox {self.id} is still being created.",
                code=ErrorCode.CONFLICT,
                hint="Wait until its state is 'running'.",
                fields={"sandbox": self.id, "state": str(self.state)},
            )
        raise self.ended_error()

    def ended_error(self) -> SandboxEndedError:
        """What a call to an ended sandbox is answered with."""
        why = self.exit or self.wanted_exit
        detail = f": {why.detail}" if why is not None and why.detail else ""
        reason = str(why.reason) if why is not None else ""
        return SandboxEndedError(
            f"Sandbox {self.id} has ended ({reason or 'for an unknown reason'}{detail}).",
            code=ErrorCode.SANDBOX_ENDED,
            hint="Create a new one; what was in it is gone.",
            fields={"sandbox": self.id, "reason": reason, "detail": why.detail if why is not None else ""},
        )

    @asynccontextmanager
    async def using(self, timeout_s: float | None = CALL_TIMEOUT_S) -> AsyncIterator[Link]:
        """The link, for one piece of work.

        Args:
            timeout_s: How long the guest may take; None leaves that to the caller.

        Raises:
            SandboxEndedError: The sandbox ended before or meanwhile; says why.
            TimeoutExceededError: The guest did not answer in time.
        """
        link = self.require_link()
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

    async def explain(self, error: SandlotError) -> SandlotError:
        """What a call is answered with that noticed an end, or a closed link, before the driver had said why.

        Args:
            error: What the link raised.
        """
        if isinstance(error, UnavailableError) and not self.wanted.is_set() and self.state is State.RUNNING:
            return error  # too many calls at once, for example
        try:
            async with asyncio.timeout(_VERDICT_S):
                await self.ended.wait()
        except TimeoutError:
            pass  # the answer then says that the reason is not known
        return self.ended_error()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to a task of this sandbox until it is done; its end cancels what is left."""
        self.tasks.add(task)
        task.add_done_callback(self._let_go)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("sandbox.defect", sandbox=self.id, exc_info=task.exception())
