"""The life of one sandbox, as one coroutine that owns everything it has: from nothing, or from an earlier service, to nothing.

Laws:
- Whatever happens on the way, what was taken is given back, in reverse order, by this coroutine and nobody else.
- An end that is asked for while it is being created is honoured at the next step; no step of the driver is cut in half.
- A guest that breaks the laws of the link, or closes it, loses its own sandbox; nobody else notices.
- Its state is recorded before it is told (:mod:`sandlot.core.records.register`), so that whatever moment the service is killed at, the next one
  takes over what a client knows of, and removes what nobody does.
- A service that leaves lets go of it, and it goes on.
- Kill is answered when the processes are dead. Giving back the rest may take longer and is accounted until it is done.
- Where nothing ran yet, or the driver cannot tell, nobody waits longer for what fails than the time of one step: it is tried again
  by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from sandlot.core.ending import RECORD_PATIENCE_S, STEP_TIMEOUT_S, destroy, let_go, record_end, until_dead
from sandlot.core.ports import Base, Clock, Greet
from sandlot.core.records.register import Register
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.link.services import Service
from sandlot.link.types import LinkLost, LostReason
from sandlot.model.errors import ErrorCode, HostError, InternalError, InvalidRequestError, SandboxEndedError, SandlotError, TimeoutExceededError
from sandlot.model.ports import Blank, Driver, Exit, ExitReason, Instance
from sandlot.model.specs import Shape
from sandlot.model.states import State

GUEST_GRACE_S = 60.0
"""How much later than the service the guest itself ends an expired sandbox: it does so only where nobody else did."""

_LAST_WORD_S = 3.0
"""How long a driver may take to say how a sandbox ended whose link broke."""

_SAID_CHARS = 500
"""Of what a guest says of itself, in an error."""


_Result = TypeVar("_Result")
_log = structlog.get_logger("sandlot.core")


class Ended(Exception):  # noqa: N818 - a way out of a coroutine, not a defect
    """The sandbox was asked to end, or has ended, and this is why."""

    def __init__(self, why: Exit) -> None:
        super().__init__(why.detail)
        self.why = why


class Left(Exception):  # noqa: N818 - likewise
    """The service leaves, and the sandbox goes on without it."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a life is made with.

    Args:
        driver: Who isolates.
        base: Gives what a template gives; builds it where nobody did.
        greet: Makes a link to a guest.
        clock: The time.
        turns: Bounds how many are created, or taken over, at once.
        register: Records where it is.
        prepare: What is done in it before its client is told that it runs.
        promised: Tells the node what it may use, where that turns out to be another than what is recorded.
        services: What its guest may ask of the host, by name.
    """

    driver: Driver
    base: Callable[[str], Coroutine[Any, Any, Base]]
    greet: Greet
    clock: Clock
    turns: asyncio.Semaphore
    register: Register
    prepare: Callable[[Sandbox], Coroutine[Any, Any, object]] | None = None
    promised: Callable[[Sandbox], None] = lambda _box: None
    services: Callable[[Sandbox], Mapping[str, Service]] = lambda _box: {}


def state_after(why: Exit) -> State:
    """The state that a sandbox ends in. Pure."""
    return State.STOPPED if why.reason in {ExitReason.EXITED, ExitReason.KILLED} else State.FAILED


Course = Callable[[Sandbox, Means, list[Blank | Instance]], Coroutine[Any, Any, Exit]]
"""How a sandbox comes to run and how it ended; what it takes of the host goes into the list."""


async def live(box: Sandbox, means: Means, course: Course) -> None:
    """Create a sandbox, or take it over, keep it until it ends, and remove it; or leave it when the service does.

    ``box.ready`` is resolved when it runs, or gets the error that prevented it; ``box.ended`` is set when its processes are
    dead; the coroutine returns when every trace of it is gone, or it was left.
    """
    holdings: list[Blank | Instance] = []
    failure: SandlotError | None = None
    try:
        why = await course(box, means, holdings)
    except Left:
        await let_go(box)
        return
    except Ended as end:
        why = end.why
    except SandlotError as error:
        failure, why = error, Exit(ExitReason.CRASHED, error.message)
    except Exception as error:  # noqa: BLE001 - a defect must not leave a sandbox behind
        _log.exception("sandbox.defect", sandbox=box.id)
        failure = InternalError(f"Sandbox {box.id} failed by a defect in Sandlot.", hint="The service's log has the details.")
        why = Exit(ExitReason.CRASHED, type(error).__name__)
    if box.wanted_exit is not None:
        why = box.wanted_exit
    box.wanted_exit = why
    box.wanted.set()
    box.adopted.set()
    box.become(State.STOPPING)
    if not box.told:
        box.idempotency_key = None  # whoever asked is told that it failed, and may ask again
    recorded = asyncio.ensure_future(means.register.ends(box))
    await asyncio.wait({recorded}, timeout=RECORD_PATIENCE_S)
    failed = asyncio.Event()
    removal = asyncio.ensure_future(destroy(box, holdings, failed))
    try:
        await until_dead(box, removal, failed)
    finally:
        box.exit = why
        box.ended_at = means.clock.now()
        box.become(state_after(why))
        recorded = asyncio.ensure_future(record_end(box, means.register, recorded))
        await asyncio.wait({recorded}, timeout=RECORD_PATIENCE_S)
        box.ended.set()
        if not box.ready.done():
            box.ready.set_exception(failure or box.ended_error())
            box.ready.exception()  # whoever created it may be gone; then nobody fetches it
    _log.info("sandbox.ended", sandbox=box.id, reason=str(why.reason), detail=why.detail)
    await let_go(box)
    await removal
    await recorded


async def create(box: Sandbox, means: Means, holdings: list[Blank | Instance]) -> Exit:
    """From nothing to running to how it ended."""
    await means.register.intend(box)
    base = await unless_ended(box, means.base(box.spec.template))
    async with turn(box, means.turns):
        blank = await step("prepare", means.driver.prepare(Shape(root=base.root, limits=box.spec.limits, network=box.spec.network)))
        holdings.append(blank)
        _check(box)
        instance = await step("start", blank.boot(box.spec))
        holdings[:] = [instance]
        box.instance = instance
        box.ref = instance.ref
        exits = asyncio.ensure_future(instance.wait())
        try:
            link = box.link = await first_answer(box, _open(box, means, instance, base.env), exits)
        except BaseException:
            exits.cancel()
            raise
    box.become(State.RUNNING)
    try:
        if means.prepare is not None:
            await unless_ended(box, means.prepare(box), exits)
        extend(box, means.clock, box.spec.timeout_s)
        await means.register.runs(box)
        _check(box)
        box.ready.set_result(None)
        return await watch(box, link, exits, means.clock)
    finally:
        exits.cancel()


def extend(box: Sandbox, clock: Clock, timeout_s: float | None) -> None:
    """Move a sandbox's deadline to ``timeout_s`` seconds from now; None takes it away."""
    if timeout_s is None:
        box.deadline_monotonic_s, box.expires_at = math.inf, None
    else:
        box.deadline_monotonic_s = clock.monotonic_s() + timeout_s
        box.expires_at = clock.now() + timedelta(seconds=timeout_s)
    box.activity.touch()
    box.deadline_changed.set()


def guest_deadline_s(timeout_s: float | None) -> float | None:
    """When the guest itself ends a sandbox that has so long. Pure."""
    return None if timeout_s is None else timeout_s + GUEST_GRACE_S


async def _open(box: Sandbox, means: Means, instance: Instance, env: Mapping[str, str]) -> Link:
    link = await means.greet(await instance.connect(), services=means.services(box))
    try:
        await link.wake(
            identity=box.id,
            hostname=box.id,
            env={**env, **box.spec.env},
            pids=box.spec.limits.pids,
            memory_bytes=box.spec.limits.memory_bytes,
            deadline_s=guest_deadline_s(box.spec.timeout_s),
        )
    except BaseException as error:
        await link.aclose()
        if isinstance(error, SandlotError) and not isinstance(error, SandboxEndedError):
            # Whatever it says: the client asked for a sandbox, and its guest is not one to answer with a refusal.
            raise _bad_guest(f"its guest refused to begin: {error.message[:_SAID_CHARS]}") from None
        raise
    return link


async def watch(box: Sandbox, link: Link, exits: asyncio.Future[Exit], clock: Clock) -> Exit:
    """Wait until the sandbox ends by itself, breaks a law, expires, or is asked to.

    Raises:
        Left: The service leaves.
    """
    lost = asyncio.ensure_future(link.wait_lost())
    wanted = asyncio.ensure_future(box.wanted.wait())
    leaving = asyncio.ensure_future(box.leaving.wait())
    waiting: set[asyncio.Future[Any]] = {exits, lost, wanted, leaving}
    try:
        while True:
            expiry = asyncio.ensure_future(_expiry(box, clock))
            moved = asyncio.ensure_future(box.deadline_changed.wait())
            await asyncio.wait({*waiting, expiry, moved}, return_when=asyncio.FIRST_COMPLETED)
            expired = expiry.done() and not moved.done()
            box.deadline_changed.clear()
            expiry.cancel()
            moved.cancel()
            if box.wanted_exit is not None:
                return box.wanted_exit
            if exits.done():
                return exits.result()
            if leaving.done():
                raise Left
            if lost.done():
                return await _last_word(exits, lost.result())
            if expired:
                box.end(Exit(ExitReason.KILLED, "its timeout passed"))
    finally:
        for future in waiting:
            future.cancel()


async def _expiry(box: Sandbox, clock: Clock) -> None:
    if box.deadline_monotonic_s == math.inf:
        await asyncio.Event().wait()
    await clock.sleep_until(box.deadline_monotonic_s)


async def _last_word(exits: asyncio.Future[Exit], lost: LinkLost) -> Exit:
    """How a sandbox ended whose link is gone: the driver's word, or, where it still lives, what became of the link."""
    if lost.reason is not LostReason.VIOLATION:
        await asyncio.wait({exits}, timeout=_LAST_WORD_S)
    if exits.done():
        return exits.result()
    broke = "its guest broke the laws of the link" if lost.reason is LostReason.VIOLATION else "the link to its guest is gone"
    return Exit(ExitReason.CRASHED, f"{broke}: {lost.detail}" if lost.detail else broke)


@contextlib.asynccontextmanager
async def turn(box: Sandbox, turns: asyncio.Semaphore) -> AsyncIterator[None]:
    """One of the turns, once there is one; see :func:`unless_ended`."""
    await unless_ended(box, turns.acquire())
    try:
        _check(box)
        yield
    finally:
        turns.release()


async def step(what: str, work: Coroutine[Any, Any, _Result]) -> _Result:
    """One step of a driver or of the link, within its time; what is no error of ours becomes one."""
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            return await work
    except TimeoutError:
        raise TimeoutExceededError(
            f"The sandbox took longer than {STEP_TIMEOUT_S:g} s to {what}.",
            code=ErrorCode.TIMEOUT,
            hint="The host may be overloaded; 'sandlot doctor' checks it.",
        ) from None
    except OSError as error:
        raise HostError(
            f"The host failed to {what} the sandbox: {error.strerror or error}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="'sandlot doctor' checks the host and names every fix.",
        ) from error


async def first_answer(box: Sandbox, opening: Coroutine[Any, Any, Link], exits: asyncio.Future[Exit]) -> Link:
    """The link to a guest that was just started.

    Raises:
        InvalidRequestError: It has too little memory to start.
        HostError: It died; says how.
    """
    try:
        return await unless_ended(box, step("answer", opening), exits)
    except SandboxEndedError as error:
        died = await _last_word(exits, LinkLost(LostReason.EOF, error.message))
    except Ended:
        if not exits.done():
            raise
        died = exits.result()
    detail = f"{died.reason}: {died.detail}" if died.detail else str(died.reason)
    if died.reason is ExitReason.OOM:
        raise InvalidRequestError(
            f"{box.spec.limits.memory_bytes} bytes of memory are too few for this sandbox to start ({detail}).",
            hint="Raise limits.memory_bytes.",
            fields={"field": "limits.memory_bytes"},
        )
    raise _bad_guest(detail, died.reason)


def _bad_guest(detail: str, reason: ExitReason = ExitReason.CRASHED) -> HostError:
    return HostError(
        f"The sandbox ended while it was starting ({detail}).",
        code=ErrorCode.HOST_NOT_READY,
        hint="'sandlot doctor' checks the host and names every fix.",
        fields={"reason": str(reason)},
    )


def _check(box: Sandbox) -> None:
    if box.wanted_exit is not None:
        raise Ended(box.wanted_exit)


async def unless_ended(box: Sandbox, work: Coroutine[Any, Any, _Result], exits: asyncio.Future[Exit] | None = None) -> _Result:
    """Do some work, but give it up when the sandbox is asked to end, or has ended, or is left.

    Raises:
        Ended: It was, or has.
        Left: The service leaves.
    """
    task = asyncio.ensure_future(work)
    wanted = asyncio.ensure_future(box.wanted.wait())
    leaving = asyncio.ensure_future(box.leaving.wait())
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
        _check(box)
        if box.leaving.is_set():
            raise Left
        if exits is not None and exits.done():
            raise Ended(exits.result())
    return task.result()
