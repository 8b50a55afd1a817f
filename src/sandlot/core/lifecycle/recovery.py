"""Recovery of the sandboxes that an earlier service left, at the start of the service.

Invariants:
- Every sandbox that a client knows is recovered, or has a record of why it ended.
- Variables, processes and files of a recovered sandbox are unchanged: its guest only gets a connection and its deadline. A warm sandbox that was
  claimed and not yet woken is woken with its identity.
- A frozen sandbox stays frozen. A hibernated sandbox stays hibernated, and so does a sandbox that was about to hibernate or to wake and does not run.
- Programs that the earlier service ran inside for itself, such as the packing of a folder, are ended. Executions of clients go on.
- A sandbox for one request of the earlier service, such as a one-shot run, is ended: its client is lost.
- Sandboxes that were not completely created are removed: no client knows them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import replace

import structlog

from sandlot.core.execution import helpers
from sandlot.core.lifecycle import mounts, suspend
from sandlot.core.lifecycle.start import reconnect_guest, wait_first_response
from sandlot.core.lifecycle.supervisor import SandboxSupervisor, SupervisionEndedError, state_after
from sandlot.core.node.drivers import driver_step
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import NotFoundError, SandlotError
from sandlot.model.ports import Driver, Exit, ExitReason, Instance
from sandlot.model.records import SandboxRecord
from sandlot.model.states import LIFECYCLE, Recovery, State

TRIES = 3
PAUSE_S = 0.5
"""Seconds between two attempts to adopt an instance that exists."""

SWEEP_PAUSE_S = 60.0

USE_WORD, ONE_RUN = "sandlot.use", "oneshot"
"""Metadata of a sandbox for one run: after a restart, no client could find the sandbox."""

CLIENT_LOST = "the service that made it for one run ended"
ENDED_UNATTENDED = "it ended while no service ran"
EXPIRED = "its timeout passed"
NOT_CREATED = "the service ended while it was created"
NOT_REMOVED = "the service ended while it was removed"

_log = structlog.get_logger("sandlot.core")


def over(record: SandboxRecord, now_expired: bool) -> tuple[Exit, State]:  # noqa: FBT001 - a pure decision's input
    """Return how a sandbox ended that an earlier service left and that does not run.

    Args:
        record: Record of the sandbox.
        now_expired: True if the deadline of the sandbox has passed.
    """
    if record.state is State.CREATING:
        return Exit(ExitReason.CRASHED, NOT_CREATED), State.FAILED
    if record.exit_reason is not None:
        known = Exit(ExitReason(record.exit_reason), record.exit_detail or NOT_REMOVED)
        return known, state_after(known)
    if record.state is State.STOPPING:
        return Exit(ExitReason.KILLED, NOT_REMOVED), State.STOPPED
    if now_expired:
        return Exit(ExitReason.KILLED, EXPIRED), State.STOPPED
    return Exit(ExitReason.CRASHED, ENDED_UNATTENDED), State.FAILED


async def recover(supervisor: SandboxSupervisor) -> None:
    """Recover a sandbox that an earlier service left, running or hibernated.

    Raises:
        SupervisionEndedError: The sandbox ended while no service ran.
        SandlotError: The sandbox exists but cannot be recovered.
        SupervisionDetachedError: The service stops.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    recovery = LIFECYCLE[sandbox.state].recovery
    if recovery is Recovery.STAY_HIBERNATED:
        await _keep_hibernated(supervisor)
        return
    async with supervisor.start_slot():
        try:
            instance = await _adopt(supervisor)
        except NotFoundError:
            if recovery is Recovery.ADOPT_ELSE_HIBERNATED:
                await _keep_hibernated(supervisor)
                return
            has_expired = sandbox.deadline.remaining_s() == 0
            exit_ = Exit(ExitReason.KILLED, EXPIRED) if has_expired else Exit(ExitReason.CRASHED, ENDED_UNATTENDED)
            raise SupervisionEndedError(exit_) from None
        supervisor.take_instance(instance)
    if instance.limits != sandbox.spec.limits:  # an update was interrupted: the limits in the driver's record are in force
        sandbox.spec = replace(sandbox.spec, limits=instance.limits)
        supervisor.reserve_limits()
    if sandbox.state is State.PAUSED:
        await driver_step("pause", instance.pause())  # a resume may have been interrupted
    else:
        await driver_step("resume", instance.resume())
        # Without a start slot: a silent guest must not delay other recoveries and creates.
        sandbox.link = await wait_first_response(supervisor, reconnect_guest(supervisor, instance))
        if sandbox.state is State.SNAPSHOTTING:  # if the sandbox was paused, its remaining time is not known
            sandbox.deadline.extend(sandbox.spec.timeout_s)
        if sandbox.state is not State.RUNNING:
            sandbox.become(State.RUNNING)
        await dependencies.memory_images.remove(sandbox.id)  # an incomplete image, or one older than the running sandbox
        sandbox.spawn(_end_helpers(sandbox))
    sandbox.activity.touch()
    sandbox.spawn(_settle_mounts(sandbox))  # submitted before any operation of a client
    sandbox.recovered.set()
    _log.info("sandbox.adopted", sandbox=sandbox.id)
    if sandbox.metadata.get(USE_WORD) == ONE_RUN:
        sandbox.request_end(Exit(ExitReason.KILLED, CLIENT_LOST))
    sandbox.spawn(dependencies.recorder.save_eventually(sandbox, "sandbox.adopted"))


async def _keep_hibernated(supervisor: SandboxSupervisor) -> None:
    await suspend.keep_hibernated(supervisor)
    supervisor.sandbox.recovered.set()
    supervisor.sandbox.spawn(supervisor.dependencies.recorder.save_eventually(supervisor.sandbox, "sandbox.adopted"))


async def sweep_leftovers(sandboxes: Iterable[Sandbox], drivers: Iterable[Driver], kept: Collection[str]) -> None:
    """Remove resources of earlier services that no sandbox uses, once every recovery has ended.

    Args:
        sandboxes: Sandboxes that are being recovered.
        drivers: Drivers to sweep.
        kept: Refs that stay although no sandbox of this service has them.
    """
    await asyncio.gather(*(sandbox.recovered.wait() for sandbox in sandboxes))
    while True:
        try:
            swept = sum([await driver.sweep(keep=kept) for driver in drivers])
        except Exception:  # noqa: BLE001 - the sweep is repeated, and leftovers do no harm meanwhile
            _log.exception("sandboxes.sweep_failed", next_try_s=SWEEP_PAUSE_S)
            await asyncio.sleep(SWEEP_PAUSE_S)
        else:
            if swept:
                _log.info("sandboxes.swept", count=swept)
            return


async def _adopt(supervisor: SandboxSupervisor) -> Instance:
    for left in reversed(range(TRIES)):
        try:
            return await supervisor.driver.adopt(supervisor.sandbox.ref or "")
        except NotFoundError:
            raise
        except (SandlotError, OSError) as error:
            if not left:
                raise
            _log.warning("sandbox.not_adopted_yet", sandbox=supervisor.sandbox.id, error=str(error))
            await asyncio.sleep(PAUSE_S)
    raise AssertionError


async def _settle_mounts(sandbox: Sandbox) -> None:
    """Finish attaching or detaching volumes, where the earlier service was interrupted."""
    if any(mount.moving for mount in sandbox.spec.volumes):
        with contextlib.suppress(SandlotError):
            await sandbox.operations.submit(mounts.settle)


async def _end_helpers(sandbox: Sandbox) -> None:
    """End the programs that the earlier service ran inside for itself."""
    with contextlib.suppress(SandlotError):
        await helpers.end_leftovers(sandbox)
