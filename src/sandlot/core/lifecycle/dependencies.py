"""What the life of one sandbox is made with, and the steps that it is made of.

Laws:
- An end that is asked for is honoured at the next step; no step of the driver is cut in half.
- What a driver or the system fails with reaches a client as an error of the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.node.disposer import Disposer
from sandlot.core.ports import Clock, GuestLinkFactory, ResolvedTemplate
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes import VolumeManager
from sandlot.link.services import Service
from sandlot.model.ports import Capabilities, Driver, DriverCapability, Exit, Instance, PreparedSandbox
from sandlot.model.specs import SandboxSpec

if TYPE_CHECKING:
    from sandlot.core.lifecycle.start import Prepare, Start

GUEST_GRACE_S = 60.0
"""How much later than the service the guest itself ends an expired sandbox: it does so only where nobody else did."""

_Result = TypeVar("_Result")


class SupervisionEndedError(Exception):
    """The sandbox was asked to end, or has ended, and this is why."""

    def __init__(self, why: Exit) -> None:
        super().__init__(why.detail)
        self.why = why


class SupervisionDetachedError(Exception):
    """The service leaves, and the sandbox goes on without it."""


@dataclass(frozen=True, slots=True)
class LifecycleDependencies:
    """What a life is made with.

    Args:
        driver: Who isolates.
        can: What that is able to here, asked by who needs one of its abilities.
        base: Gives the root file system and environment that a spec is about; builds what nobody did, where the spec does not say which one.
        start: How it comes to its first answer.
        prepare: Makes a blank sandbox.
        greet: Makes a link to a guest.
        clock: The time.
        disposer: Destroys what the driver made.
        turns: Bounds how many are created, or taken over, at once.
        recorder: Records where it is.
        images: Where what is hibernated is.
        claim: Promises anew what a sandbox may use that had only what it occupies on the disk; refuses where there is no room.
        rested: Gives up all that was promised to a sandbox but so many bytes on the disk.
        keep_resting_s: How long a paused or hibernated sandbox is kept.
        inject: What is done in it before its client is told that it runs.
        promised: Tells the node what it may use, where that turns out to be another than what is recorded.
        services: What its guest may ask of the host, by name.
        volumes: Where its volumes are; None is nowhere.
    """

    driver: Driver
    can: Callable[[DriverCapability], Coroutine[Any, Any, Capabilities]]
    base: Callable[[SandboxSpec], Coroutine[Any, Any, ResolvedTemplate]]
    start: Start
    prepare: Prepare
    greet: GuestLinkFactory
    clock: Clock
    disposer: Disposer
    turns: asyncio.Semaphore
    recorder: SandboxRecorder
    images: MemoryImages
    claim: Callable[[Sandbox], Coroutine[Any, Any, None]]
    rested: Callable[[Sandbox, int], None]
    keep_resting_s: float
    inject: Callable[[Sandbox], Coroutine[Any, Any, object]] | None = None
    promised: Callable[[Sandbox], None] = lambda _sandbox: None
    services: Callable[[Sandbox], Mapping[str, Service]] = lambda _sandbox: {}
    volumes: VolumeManager | None = None


@dataclass(slots=True)
class SandboxSupervisor:
    """A sandbox that lives, and all that its life has.

    Args:
        sandbox: It.
        dependencies: What its life is made with.
        holdings: What it has of the host; given back at its end.
        exits: Resolved when its processes end; None while it has none.
        going: What of an earlier time is still being given back.
    """

    sandbox: Sandbox
    dependencies: LifecycleDependencies
    holdings: list[PreparedSandbox | Instance]
    exits: asyncio.Future[Exit] | None = None
    going: set[asyncio.Future[None]] = field(default_factory=set)


def extend_deadline(sandbox: Sandbox, clock: Clock, timeout_s: float | None) -> None:
    """Move a sandbox's deadline to ``timeout_s`` seconds from now; None takes it away."""
    if timeout_s is None:
        sandbox.deadline_monotonic_s, sandbox.expires_at = math.inf, None
    else:
        sandbox.deadline_monotonic_s = clock.monotonic_s() + timeout_s
        sandbox.expires_at = clock.now() + timedelta(seconds=timeout_s)
    sandbox.activity.touch()
    sandbox.deadline_changed.set()


def guest_deadline_s(timeout_s: float | None) -> float | None:
    """When the guest itself ends a sandbox that has so long. Pure."""
    return None if timeout_s is None else timeout_s + GUEST_GRACE_S


def left_s(sandbox: Sandbox, clock: Clock) -> float | None:
    """How long a sandbox has until its deadline; None is for ever."""
    return None if sandbox.expires_at is None else max(0.0, sandbox.deadline_monotonic_s - clock.monotonic_s())


@contextlib.asynccontextmanager
async def start_slot(sandbox: Sandbox, turns: asyncio.Semaphore) -> AsyncIterator[None]:
    """One of the turns, once there is one; see :func:`unless_ended`."""
    await until_end(sandbox, turns.acquire())
    try:
        check_end(sandbox)
        yield
    finally:
        turns.release()


def check_end(sandbox: Sandbox) -> None:
    """Go no further with one that was asked to end.

    Raises:
        Ended: It was.
    """
    if sandbox.requested_exit is not None:
        raise SupervisionEndedError(sandbox.requested_exit)


async def until_end(sandbox: Sandbox, work: Coroutine[Any, Any, _Result], exits: asyncio.Future[Exit] | None = None) -> _Result:
    """Do some work, but give it up when the sandbox is asked to end, or has ended, or is left.

    Raises:
        Ended: It was, or has.
        Left: The service leaves.
    """
    task = asyncio.ensure_future(work)
    wanted = asyncio.ensure_future(sandbox.end_requested.wait())
    leaving = asyncio.ensure_future(sandbox.detaching.wait())
    others: set[asyncio.Future[Any]] = {wanted, leaving} if exits is None else {wanted, leaving, exits}
    try:
        await asyncio.wait({task, *others}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        wanted.cancel()
        leaving.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        check_end(sandbox)
        if sandbox.detaching.is_set():
            raise SupervisionDetachedError
        if exits is not None and exits.done():
            raise SupervisionEndedError(exits.result())
    return task.result()
