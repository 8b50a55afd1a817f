"""The life of one sandbox, as one coroutine that owns everything it has: from nothing, or from an earlier service, to nothing.

Laws:
- Whatever happens on the way, what was taken is given back, in reverse order, by this coroutine and nobody else.
- An end that is asked for while it is being created is honoured at the next step; no step of the driver is cut in half.
- What is asked of it (:mod:`sandlot.core.lives.orders`) is done by this coroutine, one after the other; so is what its timeout makes of it.
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
import math
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from sandlot.core.lives import resting
from sandlot.core.lives.ending import RECORD_PATIENCE_S, destroy, let_go, record_end, until_dead
from sandlot.core.lives.means import Ended, Left, Living, Means, check, extend, unless_ended
from sandlot.core.lives.starts import last_word
from sandlot.core.ports import Clock
from sandlot.core.sandbox import Sandbox
from sandlot.link.types import LinkLost
from sandlot.model.errors import InternalError, SandlotError
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.specs import OnTimeout
from sandlot.model.states import RESTING, State

AGAIN_S = 60.0
"""How much longer a sandbox runs on that could neither be hibernated nor paused when its timeout passed: nothing of it is to be lost."""

_log = structlog.get_logger("sandlot.core")


def state_after(why: Exit) -> State:
    """The state that a sandbox ends in. Pure."""
    return State.STOPPED if why.reason in {ExitReason.EXITED, ExitReason.KILLED} else State.FAILED


Course = Callable[[Living], Coroutine[Any, Any, Exit]]
"""How a sandbox comes to run and how it ended; what it takes of the host goes into the list of its life."""


async def live(box: Sandbox, means: Means, course: Course) -> None:
    """Create a sandbox, or take it over, keep it until it ends, and remove it; or leave it when the service does.

    ``box.ready`` is resolved when it runs, or gets the error that prevented it; ``box.ended`` is set when its processes are
    dead; the coroutine returns when every trace of it is gone, or it was left.
    """
    living = Living(box, means, [])
    failure: SandlotError | None = None
    try:
        why = await course(living)
    except Left:
        box.orders.close(box.left_error)
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
    removal = asyncio.ensure_future(destroy(box, living.holdings, means.disposer, failed))
    try:
        await until_dead(box, removal, failed)
    finally:
        box.exit = why
        box.ended_at = means.clock.now()
        box.become(state_after(why))
        recorded = asyncio.ensure_future(record_end(box, means.register, recorded))
        await asyncio.wait({recorded}, timeout=RECORD_PATIENCE_S)
        box.ended.set()
        box.orders.close(box.ended_error)
        if not box.ready.done():
            box.ready.set_exception(failure or box.ended_error())
            box.ready.exception()  # whoever created it may be gone; then nobody fetches it
    _log.info("sandbox.ended", sandbox=box.id, reason=str(why.reason), detail=why.detail)
    await let_go(box)
    await removal
    await asyncio.gather(*living.going)
    await recorded
    await means.images.remove(box.id)


async def create(living: Living) -> Exit:
    """From nothing to running to how it ended."""
    box, means = living.box, living.means
    started = await means.start(box, means, living.holdings)
    living.exits = started.exits
    try:
        box.become(State.RUNNING)
        if means.inject is not None:
            await unless_ended(box, means.inject(box), living.exits)
        if not started.recorded:
            extend(box, means.clock, box.spec.timeout_s)
            await means.register.runs(box)
        check(box)
        box.ready.set_result(None)
        return await keep(living)
    finally:
        if living.exits is not None:
            living.exits.cancel()


async def keep(living: Living) -> Exit:
    """Let it live, and do what it is asked for, until it ends by itself, breaks a law, expires, or is asked to; how it ended.

    Raises:
        Left: The service leaves.
    """
    box = living.box
    wanted = asyncio.ensure_future(box.wanted.wait())
    leaving = asyncio.ensure_future(box.leaving.wait())
    try:
        while True:
            lost = asyncio.ensure_future(_lost(living))
            expiry = asyncio.ensure_future(_expiry(box, living.means.clock))
            moved = asyncio.ensure_future(box.deadline_changed.wait())
            asked = asyncio.ensure_future(box.orders.there.wait())
            waiting: set[asyncio.Future[Any]] = {lost, expiry, moved, asked}
            ends: set[asyncio.Future[Any]] = {wanted, leaving} if living.exits is None else {wanted, leaving, living.exits}
            try:
                await asyncio.wait(waiting | ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                expired, broken = expiry.done() and not moved.done(), lost.done()
                for each in waiting:
                    each.cancel()
            box.deadline_changed.clear()
            if box.wanted_exit is not None:
                return box.wanted_exit
            if living.exits is not None and living.exits.done():
                return living.exits.result()
            if leaving.done():
                raise Left
            if broken:
                return await _told(living, lost.result())
            await (_expired(living) if expired else box.orders.carry_out_next(living))
    finally:
        for each in (wanted, leaving):
            each.cancel()


async def _lost(living: Living) -> LinkLost:
    """Why its link is over; never, while it has none."""
    if living.box.link is None:
        await asyncio.Event().wait()
        raise AssertionError
    return await living.box.link.wait_lost()


async def _told(living: Living, lost: LinkLost) -> Exit:
    return Exit(ExitReason.CRASHED, lost.detail) if living.exits is None else await last_word(living.exits, lost)


async def _expiry(box: Sandbox, clock: Clock) -> None:
    if box.deadline_monotonic_s == math.inf:
        await asyncio.Event().wait()
    await clock.sleep_until(box.deadline_monotonic_s)


async def _expired(living: Living) -> None:
    """What becomes of a sandbox whose deadline has passed."""
    box = living.box
    works = {OnTimeout.HIBERNATE: (resting.hibernate, resting.pause), OnTimeout.PAUSE: (resting.pause,), OnTimeout.KILL: ()}[box.spec.on_timeout]
    if box.state in RESTING:
        box.end(Exit(ExitReason.KILLED, "it rested for as long as it may"))
    elif not works:
        box.end(Exit(ExitReason.KILLED, "its timeout passed"))
    else:
        for work in works:
            try:
                await work(living)
            except SandlotError as error:
                _log.warning("sandbox.rests_not", sandbox=box.id, on_timeout=str(box.spec.on_timeout), error=str(error))
            else:
                return
        extend(box, living.means.clock, AGAIN_S)
