"""The life of one sandbox, as one coroutine that owns everything it has: from nothing, or from an earlier service, to nothing.

Laws:
- Whatever happens on the way, what was taken is given back, in reverse order, by this coroutine and nobody else.
- An end that is asked for while it is being created is honoured at the next step; no step of the driver is cut in half.
- What is asked of it (:mod:`sandlot.core.operations`) is done by this coroutine, one after the other; so is what its timeout makes of it.
- A guest that breaks the laws of the link, or closes it, loses its own sandbox; nobody else notices.
- Its state is recorded before it is told (:mod:`sandlot.core.records.sandboxes`), so that whatever moment the service is killed at, the next one
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

from sandlot.core.lifecycle import suspend
from sandlot.core.lifecycle.dependencies import (
    LifecycleDependencies,
    SandboxSupervisor,
    SupervisionDetachedError,
    SupervisionEndedError,
    check_end,
    extend_deadline,
    until_end,
)
from sandlot.core.lifecycle.start import exit_after_link_lost
from sandlot.core.lifecycle.teardown import RECORD_PATIENCE_S, destroy, detach, record_end, wait_processes_dead
from sandlot.core.ports import Clock
from sandlot.core.sandbox import Sandbox
from sandlot.link.types import LinkLost
from sandlot.model.errors import InternalError, SandlotError
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.specs import OnTimeout
from sandlot.model.states import SUSPENDED, State

AGAIN_S = 60.0
"""How much longer a sandbox runs on that could neither be hibernated nor paused when its timeout passed: nothing of it is to be lost."""

_log = structlog.get_logger("sandlot.core")


def state_after(why: Exit) -> State:
    """The state that a sandbox ends in. Pure."""
    return State.STOPPED if why.reason in {ExitReason.EXITED, ExitReason.KILLED} else State.FAILED


Course = Callable[[SandboxSupervisor], Coroutine[Any, Any, Exit]]
"""How a sandbox comes to run and how it ended; what it takes of the host goes into the list of its life."""


async def supervise(sandbox: Sandbox, dependencies: LifecycleDependencies, course: Course) -> None:
    """Create a sandbox, or take it over, keep it until it ends, and remove it; or leave it when the service does.

    ``sandbox.ready`` is resolved when it runs, or gets the error that prevented it; ``sandbox.ended`` is set when its processes are
    dead; the coroutine returns when every trace of it is gone, or it was left.
    """
    supervisor = SandboxSupervisor(sandbox, dependencies, [])
    failure: SandlotError | None = None
    try:
        why = await course(supervisor)
    except SupervisionDetachedError:
        sandbox.operations.close(sandbox.stopping_error)
        await detach(sandbox)
        return
    except SupervisionEndedError as end:
        why = end.why
    except SandlotError as error:
        failure, why = error, Exit(ExitReason.CRASHED, error.message)
    except Exception as error:  # noqa: BLE001 - a defect must not leave a sandbox behind
        _log.exception("sandbox.defect", sandbox=sandbox.id)
        failure = InternalError(f"Sandbox {sandbox.id} failed by a defect in Sandlot.", hint="The service's log has the details.")
        why = Exit(ExitReason.CRASHED, type(error).__name__)
    if sandbox.requested_exit is not None:
        why = sandbox.requested_exit
    sandbox.requested_exit = why
    sandbox.end_requested.set()
    sandbox.recovered.set()
    sandbox.become(State.STOPPING)
    if not sandbox.is_announced:
        sandbox.idempotency_key = None  # whoever asked is told that it failed, and may ask again
    recorded = asyncio.ensure_future(dependencies.recorder.save_eventually(sandbox))
    await asyncio.wait({recorded}, timeout=RECORD_PATIENCE_S)
    failed = asyncio.Event()
    removal = asyncio.ensure_future(destroy(sandbox, supervisor.holdings, dependencies.disposer, failed))
    try:
        await wait_processes_dead(sandbox, removal, failed)
    finally:
        sandbox.exit = why
        sandbox.ended_at = dependencies.clock.now()
        sandbox.become(state_after(why))
        recorded = asyncio.ensure_future(record_end(sandbox, dependencies.recorder, recorded))
        await asyncio.wait({recorded}, timeout=RECORD_PATIENCE_S)
        sandbox.ended.set()
        sandbox.operations.close(sandbox.ended_error)
        if not sandbox.ready.done():
            sandbox.ready.set_exception(failure or sandbox.ended_error())
            sandbox.ready.exception()  # whoever created it may be gone; then nobody fetches it
    _log.info("sandbox.ended", sandbox=sandbox.id, reason=str(why.reason), detail=why.detail)
    await detach(sandbox)
    await removal
    await asyncio.gather(*supervisor.going)
    await recorded
    await dependencies.images.remove(sandbox.id)


async def create(supervisor: SandboxSupervisor) -> Exit:
    """From nothing to running to how it ended."""
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    started = await dependencies.start(sandbox, dependencies, supervisor.holdings)
    supervisor.exits = started.exits
    try:
        sandbox.become(State.RUNNING)
        if dependencies.inject is not None:
            await until_end(sandbox, dependencies.inject(sandbox), supervisor.exits)
        if not started.recorded:
            extend_deadline(sandbox, dependencies.clock, sandbox.spec.timeout_s)
            await dependencies.recorder.save_running(sandbox)
        check_end(sandbox)
        sandbox.ready.set_result(None)
        return await serve(supervisor)
    finally:
        if supervisor.exits is not None:
            supervisor.exits.cancel()


async def serve(supervisor: SandboxSupervisor) -> Exit:
    """Let it live, and do what it is asked for, until it ends by itself, breaks a law, expires, or is asked to; how it ended.

    Raises:
        Left: The service leaves.
    """
    sandbox = supervisor.sandbox
    wanted = asyncio.ensure_future(sandbox.end_requested.wait())
    leaving = asyncio.ensure_future(sandbox.detaching.wait())
    try:
        while True:
            lost = asyncio.ensure_future(_lost(supervisor))
            expiry = asyncio.ensure_future(_expiry(sandbox, supervisor.dependencies.clock))
            moved = asyncio.ensure_future(sandbox.deadline_changed.wait())
            asked = asyncio.ensure_future(sandbox.operations.there.wait())
            waiting: set[asyncio.Future[Any]] = {lost, expiry, moved, asked}
            ends: set[asyncio.Future[Any]] = {wanted, leaving} if supervisor.exits is None else {wanted, leaving, supervisor.exits}
            try:
                await asyncio.wait(waiting | ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                expired, broken = expiry.done() and not moved.done(), lost.done()
                for each in waiting:
                    each.cancel()
            sandbox.deadline_changed.clear()
            if sandbox.requested_exit is not None:
                return sandbox.requested_exit
            if supervisor.exits is not None and supervisor.exits.done():
                return supervisor.exits.result()
            if leaving.done():
                raise SupervisionDetachedError
            if broken:
                return await _told(supervisor, lost.result())
            await (_expired(supervisor) if expired else sandbox.operations.run_next(supervisor))
    finally:
        for each in (wanted, leaving):
            each.cancel()


async def _lost(supervisor: SandboxSupervisor) -> LinkLost:
    """Why its link is over; never, while it has none."""
    if supervisor.sandbox.link is None:
        await asyncio.Event().wait()
        raise AssertionError
    return await supervisor.sandbox.link.wait_lost()


async def _told(supervisor: SandboxSupervisor, lost: LinkLost) -> Exit:
    return Exit(ExitReason.CRASHED, lost.detail) if supervisor.exits is None else await exit_after_link_lost(supervisor.exits, lost)


async def _expiry(sandbox: Sandbox, clock: Clock) -> None:
    if sandbox.deadline_monotonic_s == math.inf:
        await asyncio.Event().wait()
    await clock.sleep_until(sandbox.deadline_monotonic_s)


async def _expired(supervisor: SandboxSupervisor) -> None:
    """What becomes of a sandbox whose deadline has passed."""
    sandbox = supervisor.sandbox
    works = {OnTimeout.HIBERNATE: (suspend.hibernate, suspend.pause), OnTimeout.PAUSE: (suspend.pause,), OnTimeout.KILL: ()}[sandbox.spec.on_timeout]
    if sandbox.state in SUSPENDED:
        sandbox.request_end(Exit(ExitReason.KILLED, "it rested for as long as it may"))
    elif not works:
        sandbox.request_end(Exit(ExitReason.KILLED, "its timeout passed"))
    else:
        for work in works:
            try:
                await work(supervisor)
            except SandlotError as error:
                _log.warning("sandbox.rests_not", sandbox=sandbox.id, on_timeout=str(sandbox.spec.on_timeout), error=str(error))
            else:
                return
        extend_deadline(sandbox, supervisor.dependencies.clock, AGAIN_S)
