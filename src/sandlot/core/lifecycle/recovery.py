"""What a start of the service makes of the sandboxes that an earlier one left: taken over, or over.

Laws:
- Every sandbox that a client was told of is taken over, or has a record that says why it ended.
- Its variables, processes and files are what they were: nothing is said to its guest but hello and its deadline. One that was about to be written
  down is woken again as what it is.
- What was frozen stays so; what sleeps on the disk sleeps on, and so does what was on its way there or back and does not live.
- What the service before had begun for itself inside, such as packing a folder for a client, is ended; what a client began goes on.
- What was for one request of the service before, such as a program that is run once, is ended: whoever asked is gone.
- Half-done creations are removed: nobody was told of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import replace

import structlog

from sandlot.core.execution import helpers
from sandlot.core.lifecycle import mounts, suspend
from sandlot.core.lifecycle.dependencies import LifecycleDependencies, SandboxSupervisor, extend_deadline, start_slot
from sandlot.core.lifecycle.start import reconnect_guest, wait_first_response
from sandlot.core.lifecycle.supervisor import serve, state_after
from sandlot.core.node.drivers import driver_step
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import NotFoundError, SandlotError
from sandlot.model.ports import Driver, Exit, ExitReason, Instance
from sandlot.model.records import SandboxRecord
from sandlot.model.states import SETTLEMENT, Settlement, State

TRIES = 3
PAUSE_S = 0.5
"""Between tries to take over what is there but does not let itself be taken over."""

SWEEP_PAUSE_S = 60.0

USE_WORD, ONE_RUN = "sandlot.use", "oneshot"
"""In the metadata of a sandbox that is for one run alone: nobody would ever hear of it again."""

FORSAKEN = "the service that made it for one run ended"
AWAY = "it ended while no service ran"
EXPIRED = "its timeout passed"
UNBORN = "the service ended while it was created"
UNFINISHED = "the service ended while it was removed"

_log = structlog.get_logger("sandlot.core")


def over(record: SandboxRecord, now_expired: bool) -> tuple[Exit, State]:  # noqa: FBT001 - a pure decision's input
    """How a sandbox ended that an earlier service left and that does not live. Pure.

    Args:
        record: What is known of it.
        now_expired: Whether its time is up.
    """
    if record.state is State.CREATING:
        return Exit(ExitReason.CRASHED, UNBORN), State.FAILED
    if record.exit_reason is not None:
        known = Exit(ExitReason(record.exit_reason), record.exit_detail or UNFINISHED)
        return known, state_after(known)
    if record.state is State.STOPPING:
        return Exit(ExitReason.KILLED, UNFINISHED), State.STOPPED
    if now_expired:
        return Exit(ExitReason.KILLED, EXPIRED), State.STOPPED
    return Exit(ExitReason.CRASHED, AWAY), State.FAILED


async def recover(supervisor: SandboxSupervisor) -> Exit:
    """Take a sandbox over that lives or sleeps, and keep it until it ends.

    Raises:
        SandlotError: It is there, but cannot be taken over.
        Left: The service leaves.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    settles = SETTLEMENT[sandbox.state]
    if settles is Settlement.SLEEP:
        return await _sleep_on(supervisor)
    async with start_slot(sandbox, dependencies.turns):
        try:
            instance = await _adopt(sandbox, dependencies)
        except NotFoundError:
            if settles is Settlement.ADOPT_OR_SLEEP:
                return await _sleep_on(supervisor)
            has_expired = sandbox.deadline_monotonic_s <= dependencies.clock.monotonic_s()
            return Exit(ExitReason.KILLED, EXPIRED) if has_expired else Exit(ExitReason.CRASHED, AWAY)
        supervisor.holdings.append(instance)
        sandbox.instance = instance
    if instance.limits != sandbox.spec.limits:  # a change of them was cut in half, and its driver has settled it
        sandbox.spec = replace(sandbox.spec, limits=instance.limits)
        dependencies.promised(sandbox)
    exits = supervisor.exits = asyncio.ensure_future(instance.wait())
    try:
        if sandbox.state is State.PAUSED:
            await driver_step("pause", instance.pause())  # a resume may have been cut in half
        else:
            await driver_step("resume", instance.resume())
            # Without a turn: a guest that keeps silent must not keep the others from being taken over, or from being created.
            sandbox.link = await wait_first_response(sandbox, reconnect_guest(sandbox, dependencies, instance), exits)
            if sandbox.state is State.SNAPSHOTTING:  # of a paused one, nobody knows how long it had
                extend_deadline(sandbox, dependencies.clock, sandbox.spec.timeout_s)
            if sandbox.state is not State.RUNNING:
                sandbox.become(State.RUNNING)
            await dependencies.images.remove(sandbox.id)  # half an image, or one that is older than what runs
            sandbox.spawn(_end_programs(sandbox))
        sandbox.activity.touch()
        sandbox.spawn(_settled(sandbox))  # before anything else that is asked of it
        sandbox.recovered.set()
        _log.info("sandbox.adopted", sandbox=sandbox.id)
        if sandbox.metadata.get(USE_WORD) == ONE_RUN:
            sandbox.request_end(Exit(ExitReason.KILLED, FORSAKEN))
        sandbox.spawn(dependencies.recorder.adopted(sandbox))
        return await serve(supervisor)
    finally:
        if supervisor.exits is not None:
            supervisor.exits.cancel()


async def _sleep_on(supervisor: SandboxSupervisor) -> Exit:
    """It is what its image holds."""
    await suspend.keep_hibernated(supervisor)
    supervisor.sandbox.recovered.set()
    supervisor.sandbox.spawn(supervisor.dependencies.recorder.adopted(supervisor.sandbox))
    return await serve(supervisor)


async def sweep_leftovers(sandboxes: Iterable[Sandbox], drivers: Iterable[Driver], kept: Collection[str]) -> None:
    """Remove what nobody took over, once everything has been taken over that can be.

    Args:
        sandboxes: Those that are being taken over.
        drivers: Who may have left something.
        kept: What stays although nobody takes it over: refs.
    """
    await asyncio.gather(*(sandbox.recovered.wait() for sandbox in sandboxes))
    while True:
        try:
            swept = sum([await driver.sweep(keep=kept) for driver in drivers])
        except Exception:  # noqa: BLE001 - what is left is tried again, and harms nobody meanwhile
            _log.exception("sandboxes.sweep_failed", next_try_s=SWEEP_PAUSE_S)
            await asyncio.sleep(SWEEP_PAUSE_S)
        else:
            if swept:
                _log.info("sandboxes.swept", count=swept)
            return


async def _adopt(sandbox: Sandbox, dependencies: LifecycleDependencies) -> Instance:
    for left in reversed(range(TRIES)):
        try:
            return await dependencies.driver.adopt(sandbox.ref or "")
        except NotFoundError:
            raise
        except (SandlotError, OSError) as error:
            if not left:
                raise
            _log.warning("sandbox.not_adopted_yet", sandbox=sandbox.id, error=str(error))
            await asyncio.sleep(PAUSE_S)
    raise AssertionError


async def _settled(sandbox: Sandbox) -> None:
    """Finish what the service before had begun with its volumes."""
    if any(mount.moving for mount in sandbox.spec.volumes):
        with contextlib.suppress(SandlotError):
            await sandbox.operations.submit(mounts.settle)


async def _end_programs(sandbox: Sandbox) -> None:
    """End what the service before ran inside for itself; nobody waits for it any more."""
    with contextlib.suppress(SandlotError):
        await helpers.end_leftovers(sandbox)
