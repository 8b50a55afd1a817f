"""Recovery of the sandboxes that an earlier service left behind. It runs when the service starts.

Invariants:
- Each sandbox that a client knows is recovered, or its record gives the reason why the sandbox ended.
- The variables, processes and files of a recovered sandbox do not change. The service only connects to the guest and sends the deadline to the guest.
  A warm sandbox that was claimed but not yet woken is woken with its identity.
- A paused sandbox stays paused. A hibernated sandbox stays hibernated. A sandbox that was being hibernated or woken, and is not running, counts as
  hibernated.
- Helper programs of the earlier service, such as a program that packs a folder, are ended. Executions of clients continue.
- A sandbox that served one request of the earlier service, such as the run of a program, is ended, because the connection to its client is lost.
- Sandboxes that were not completely created are removed, because no client knows them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import replace

import structlog

from sandlot.core.admission import SINGLE_USE_METADATA
from sandlot.core.execution import helpers
from sandlot.core.lifecycle import mounts, suspend
from sandlot.core.lifecycle.start import reconnect_guest, wait_first_response
from sandlot.core.lifecycle.supervisor import SandboxSupervisor, SupervisionEndedError, state_after
from sandlot.core.ports import Clock
from sandlot.core.resources.drivers import driver_step
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import NotFoundError, SandlotError
from sandlot.model.ports import Driver, Exit, ExitReason, Instance
from sandlot.model.records import SandboxRecord
from sandlot.model.states import LIFECYCLE, Recovery, State

TRIES = 3
PAUSE_S = 0.5
"""Seconds between two attempts to adopt an instance, if the first attempt failed although the instance exists."""

SWEEP_INTERVAL_S = 3600.0
"""Seconds between two sweeps of a driver."""
SWEEP_RETRY_S = 60.0
"""Seconds until a failed sweep is repeated."""

CLIENT_LOST = "the service that created it to run a program ended"
ENDED_UNATTENDED = "it ended while no service ran"
EXPIRED = "its timeout passed"
NOT_CREATED = "the service ended while it was created"
NOT_REMOVED = "the service ended while it was removed"

_log = structlog.get_logger("sandlot.core")


def over(record: SandboxRecord, now_expired: bool) -> tuple[Exit, State]:  # noqa: FBT001 - the argument is an input value, not an option
    """Return the exit and the final state to record for a sandbox that is removed, not recovered, when the service starts.

    Args:
        record: Last record of the sandbox, which the earlier service wrote.
        now_expired: True if the deadline of the sandbox has passed.
    """
    if record.is_unfinished_start:
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
    """Recover a running, paused or hibernated sandbox that an earlier service left behind.

    Raises:
        SupervisionEndedError: The sandbox ended while no service ran.
        SandlotError: The sandbox exists but cannot be recovered.
        SupervisionDetachedError: The service is stopping.
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
        supervisor.allocation.adopt(instance)
        sandbox.ref = instance.ref
    if instance.limits != sandbox.spec.limits:  # an update was interrupted; the driver's limits are in force
        sandbox.spec = replace(sandbox.spec, limits=instance.limits)
        supervisor.allocation.reservation.record_limits(instance.limits, supervisor.driver.max_resources(instance.limits))
    if sandbox.state is State.PAUSED:
        await driver_step("pause", instance.pause())  # an interrupted resume may have thawed the sandbox already
    else:
        await driver_step("resume", instance.resume())
        # The start slot is released before this step, so that a guest that does not respond delays no other recovery and no create request.
        supervisor.allocation.link = await wait_first_response(supervisor, reconnect_guest(supervisor))
        if sandbox.state is State.SNAPSHOTTING:  # the remaining time is not known if the sandbox was paused
            sandbox.deadline.extend(sandbox.spec.timeout_s)
        if sandbox.state is not State.RUNNING:
            sandbox.become(State.RUNNING)
        sandbox.waits_for_disk = False
        await dependencies.memory_images.remove(sandbox.id)  # any image is incomplete, or older than the running sandbox
        sandbox.tasks.spawn(_end_helpers(sandbox))
    sandbox.activity.touch()
    sandbox.tasks.spawn(_settle_mounts(sandbox))  # submitted before all operations of clients
    sandbox.recovered.set()
    _log.info("sandbox.adopted", sandbox=sandbox.id)
    if SINGLE_USE_METADATA.items() <= sandbox.metadata.items():
        sandbox.request_end(Exit(ExitReason.KILLED, CLIENT_LOST))
    sandbox.tasks.spawn(dependencies.recorder.save_eventually(sandbox, "sandbox.adopted"))


async def _keep_hibernated(supervisor: SandboxSupervisor) -> None:
    await suspend.keep_hibernated(supervisor)
    supervisor.sandbox.recovered.set()
    supervisor.sandbox.tasks.spawn(supervisor.dependencies.recorder.save_eventually(supervisor.sandbox, "sandbox.adopted"))


async def sweep_hourly(sandboxes: Iterable[Sandbox], driver: Driver, kept: Collection[str], clock: Clock) -> None:
    """Remove the resources of one driver that no sandbox uses, once all recoveries have ended and then every hour, until cancelled.

    These are resources of earlier services, and resources that the driver could not release before. The driver itself spares what it holds.

    Args:
        sandboxes: Sandboxes that are being recovered.
        driver: Driver whose resources are removed.
        kept: References of instances that are not removed although no sandbox of this service has them.
        clock: Clock of the service.
    """
    await asyncio.gather(*(sandbox.recovered.wait() for sandbox in sandboxes))
    while True:
        pause_s = SWEEP_INTERVAL_S
        try:
            swept = await driver.sweep(keep=kept)
        except Exception:  # noqa: BLE001 - the sweep is repeated, and the resources do no harm meanwhile
            pause_s = SWEEP_RETRY_S
            _log.exception("leftover_sandboxes.not_removed", driver=driver.name, next_try_s=pause_s)
        else:
            if swept:
                _log.info("leftover_sandboxes.removed", driver=driver.name, count=swept)
        await clock.sleep_until(clock.monotonic_s() + pause_s)


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
    """Finish attaching and detaching the volumes that the earlier service was attaching or detaching when it ended."""
    if any(mount.changing for mount in sandbox.spec.volumes):
        with contextlib.suppress(SandlotError):
            await sandbox.operations.submit(mounts.settle)


async def _end_helpers(sandbox: Sandbox) -> None:
    """End the helper programs that the earlier service ran inside the sandbox."""
    with contextlib.suppress(SandlotError):
        await helpers.end_leftovers(sandbox)
