"""Supervisor of one sandbox: a task that owns the sandbox's resources on the host from the start of the sandbox to its end.

Invariants:
- All resources that the driver made for the sandbox are released by this task and by no other, whatever fails.
- If the end of the sandbox is requested during its start, the start stops before the next step. No step of the driver is interrupted.
- Operations on the sandbox (:mod:`sandlot.core.operations`) and its ``on_timeout`` run in this task, one at a time.
- If a guest violates the protocol of the link or closes the link, its sandbox is ended. No other sandbox is affected.
- A new state is recorded before the response. If the service is killed, the next service therefore recovers all sandboxes that clients know, and
  removes all others.
- When the service detaches from a sandbox, the processes of the sandbox keep running.
- The response to a kill is sent when the processes are dead. The release of the other resources may take longer, and they stay reserved meanwhile. If
  no process has run, or the driver cannot report the end of the processes, the response is sent after the release, after the first failed attempt to
  release, or after ``STEP_TIMEOUT_S``, whichever comes first.
- The end of a sandbox waits at most ``RECORD_TIMEOUT_S`` for the store, and saves of one sandbox never overlap.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import structlog

from sandlot.core.admission import AdmissionPolicy
from sandlot.core.execution.package_access import PackageAccess
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.node.disposer import Disposer
from sandlot.core.node.drivers import STEP_TIMEOUT_S, Drivers, Templates, driver_step
from sandlot.core.node.reservations import Reservations
from sandlot.core.operations import Operation
from sandlot.core.pools.manager import PoolManager
from sandlot.core.ports import Clock, GuestLinkFactory, ResolvedTemplate
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.sandbox import Sandbox
from sandlot.core.scheduler import Scheduler
from sandlot.core.volumes import VolumeManager
from sandlot.link.client import Link
from sandlot.link.types import LinkClosed, LinkClosedReason
from sandlot.model.errors import InternalError, SandlotError
from sandlot.model.ports import Attachment, Driver, Exit, ExitReason, Instance, PreparedSandbox, Resources
from sandlot.model.states import State

GUEST_GRACE_S: Final = 60.0
"""Seconds by which the guest's deadline is later than the service's. The guest ends its sandbox only if no service has ended it by then."""
RECORD_TIMEOUT_S: Final = 1.0
"""Maximum seconds that the end of a sandbox waits for the store. A slow disk or database must not keep a sandbox alive."""
EXIT_TIMEOUT_S: Final = 3.0
"""Seconds to wait, after the link to a guest was lost, until the driver reports how the sandbox ended."""

ResultT = TypeVar("ResultT")

_log = structlog.get_logger("sandlot.core")


class SupervisionEndedError(Exception):
    """The end of the sandbox was requested, or the sandbox has ended.

    Args:
        exit_: Reason of the end.
    """

    def __init__(self, exit_: Exit) -> None:
        super().__init__(exit_.detail)
        self.exit = exit_


class SupervisionDetachedError(Exception):
    """The service is stopping and leaves the sandbox running."""


@dataclass(frozen=True, slots=True)
class LifecycleDependencies:
    """Parts of the service that all supervisors share.

    Args:
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        recorder: Records of sandboxes.
        reservations: Reservations of this node.
        disposer: Destroys resources on the host.
        scheduler: Reserves resources for hibernated sandboxes that are woken, and checks quotas.
        pools: Pools of warm sandboxes.
        volumes: Volumes of this node.
        memory_images: Folders of hibernation images.
        package_access: Access of guests to the package indexes.
        link_factory: Connects to guests.
        clock: Clock of the service.
        policy: Policy of the operator.
        start_slots: Semaphore with ``max_creates`` slots, for starts and recoveries.
        on_timeout: Operation that runs when the deadline of a sandbox has passed.
        on_wake: Functions that are called with the sandbox when a suspended sandbox runs again.
    """

    drivers: Drivers
    templates: Templates
    recorder: SandboxRecorder
    reservations: Reservations
    disposer: Disposer
    scheduler: Scheduler
    pools: PoolManager
    volumes: VolumeManager
    memory_images: MemoryImages
    package_access: PackageAccess
    link_factory: GuestLinkFactory
    clock: Clock
    policy: AdmissionPolicy
    start_slots: asyncio.Semaphore
    on_timeout: Operation[None]
    on_wake: tuple[Callable[[Sandbox], None], ...] = ()


class SandboxSupervisor:
    """Owner of the resources that one sandbox has on the host.

    Args:
        sandbox: The sandbox.
        dependencies: Parts of the service that all supervisors share.

    Attributes:
        driver: Driver of the sandbox.
        exited: Future that is done when the processes of the sandbox have ended. None while the sandbox has no processes.
    """

    def __init__(self, sandbox: Sandbox, dependencies: LifecycleDependencies) -> None:
        self.sandbox = sandbox
        self.dependencies = dependencies
        self.driver: Driver = dependencies.drivers[sandbox.spec.isolation]
        self.exited: asyncio.Future[Exit] | None = None
        self._resource: PreparedSandbox | Instance | None = None
        self._recorded_ref: str | None = None
        """Reference of the instance with which the sandbox was last recorded as running; None: it was not."""
        self._releases: set[asyncio.Task[None]] = set()
        """Tasks that release earlier resources of the sandbox: those of failed starts, and those that the sandbox had before a hibernation."""

    # Run ------------------------------------------------------------------------------------------------------------------

    async def run(self, begin: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start or recover the sandbox, run its operations until its end, and remove it. If the service stops, detach from the sandbox instead.

        ``sandbox.ready`` is resolved when the sandbox runs, or gets the error of the failed start. ``sandbox.ended`` is set when the processes of the
        sandbox are dead. The method returns when nothing of the sandbox is left on the host, or when the service has detached from the sandbox.

        Args:
            begin: Starts or recovers the sandbox; called with this supervisor and ``args``.
            args: Further arguments of ``begin``.
        """
        sandbox = self.sandbox
        failure: SandlotError | None = None
        try:
            await begin(self, *args)
            exit_ = await self.serve()
        except SupervisionDetachedError:
            sandbox.operations.close(sandbox.stopping_error)
            await self._detach()
            return
        except SupervisionEndedError as end:
            exit_ = end.exit
        except SandlotError as error:
            failure, exit_ = error, Exit(ExitReason.CRASHED, error.message)
        except Exception as error:  # noqa: BLE001 - the sandbox must be removed even after an internal error
            _log.exception("sandbox.internal_error", sandbox=sandbox.id)
            failure = InternalError(f"Sandbox {sandbox.id} failed because of a defect in Sandlot.", hint="Report the traceback in the service's log.")
            exit_ = Exit(ExitReason.CRASHED, type(error).__name__)
        finally:
            self._stop_watching()
        await self._end(sandbox.requested_exit or exit_, failure)

    async def serve(self) -> Exit:
        """Run operations until the sandbox ends, the link to its guest is lost, or its end is requested. Return the reason of the end.

        Raises:
            SupervisionDetachedError: The service is stopping.
        """
        sandbox, deadline = self.sandbox, self.sandbox.deadline
        requested = asyncio.ensure_future(sandbox.end_requested.wait())
        detaching = asyncio.ensure_future(sandbox.detaching.wait())
        try:
            while True:
                deadline.changed.clear()
                moved = asyncio.ensure_future(deadline.changed.wait())
                submitted = asyncio.ensure_future(sandbox.operations.there.wait())
                lost = None if sandbox.link is None else asyncio.ensure_future(sandbox.link.wait_closed())
                has_deadline = deadline.monotonic_s != math.inf
                expiry = asyncio.ensure_future(self.dependencies.clock.sleep_until(deadline.monotonic_s)) if has_deadline else None
                waiting: set[asyncio.Future[Any]] = {each for each in (moved, submitted, lost, expiry) if each is not None}
                ends: set[asyncio.Future[Any]] = {requested, detaching} if self.exited is None else {requested, detaching, self.exited}
                try:
                    await asyncio.wait(waiting | ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    done = {each for each in waiting if each.done()}
                    for each in waiting:
                        each.cancel()
                if sandbox.requested_exit is not None:
                    return sandbox.requested_exit
                if self.exited is not None and self.exited.done():
                    return self.exited.result()
                if detaching.done():
                    raise SupervisionDetachedError
                if lost is not None and lost in done:
                    return await self.exit_after_link_lost(lost.result())
                if expiry in done and moved not in done:
                    await self.dependencies.on_timeout(self)
                elif submitted in done:
                    await sandbox.operations.run_next(self)
        finally:
            requested.cancel()
            detaching.cancel()

    # Steps ----------------------------------------------------------------------------------------------------------------

    @property
    def has_exited(self) -> bool:
        """True once the processes of the sandbox have ended."""
        return self.exited is not None and self.exited.done()

    def check_end(self) -> None:
        """Raise an error if the end of the sandbox was requested, so that the current work stops.

        Raises:
            SupervisionEndedError: The end of the sandbox was requested.
        """
        if self.sandbox.requested_exit is not None:
            raise SupervisionEndedError(self.sandbox.requested_exit)

    async def until_end(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Await ``work`` and return its result. Cancel ``work`` if the end of the sandbox is requested, the sandbox ends, or the service detaches.

        The method waits until cancelled work has ended. If cancelled work returns a result nevertheless, the method returns this result: otherwise a
        start slot that was acquired at the last moment would be lost.

        Raises:
            SupervisionEndedError: The end of the sandbox was requested, or the sandbox has ended.
            SupervisionDetachedError: The service is stopping.
        """
        sandbox = self.sandbox
        task = asyncio.ensure_future(work)
        requested = asyncio.ensure_future(sandbox.end_requested.wait())
        detaching = asyncio.ensure_future(sandbox.detaching.wait())
        others: set[asyncio.Future[Any]] = {requested, detaching} if self.exited is None else {requested, detaching, self.exited}
        try:
            await asyncio.wait({task, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            requested.cancel()
            detaching.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            self.check_end()
            if sandbox.detaching.is_set():
                raise SupervisionDetachedError
            if self.exited is not None and self.exited.done():
                raise SupervisionEndedError(self.exited.result())
        return task.result()

    @asynccontextmanager
    async def start_slot(self) -> AsyncIterator[None]:
        """Wait for a start slot and hold the slot during the body of the ``async with`` block. Raises the errors of :meth:`until_end`."""
        slots = self.dependencies.start_slots
        await self.until_end(slots.acquire())
        try:
            self.check_end()
            yield
        finally:
            slots.release()

    async def resolve_template(self) -> ResolvedTemplate:
        """Return the build of the template from which the sandbox starts. Set ``spec.root`` of the sandbox to the digest of the build."""
        sandbox = self.sandbox
        template = await self.until_end(self.dependencies.templates.resolve_for(sandbox.spec))
        sandbox.spec = replace(sandbox.spec, root=template.root.digest)
        return template

    async def mount_volumes(self) -> tuple[Attachment, ...]:
        """Mount the volumes of the sandbox on the host and return them for the driver. The volumes stay mounted until the sandbox is removed."""
        sandbox = self.sandbox
        if not sandbox.spec.volumes:
            return ()
        return await driver_step("attach a volume to", self.dependencies.volumes.attach(sandbox.id, sandbox.spec.volumes))

    async def save_starting(self) -> None:
        """Record the sandbox before resources are made for it. After a failed claim that was recorded, the sandbox stays recorded as running.

        Raises:
            SandlotError: The store refused the record.
        """
        await self.dependencies.recorder.save(self.sandbox, state=None if self._recorded_ref is None else State.RUNNING)

    async def save_running(self) -> None:
        """Start the timeout of a new sandbox and record that the sandbox runs.

        The first call commits the event ``sandbox.created`` with the record. A later call only writes the record, if the sandbox has another instance
        since the last call.

        Raises:
            SandlotError: The store refused the record.
        """
        sandbox, recorder, recorded = self.sandbox, self.dependencies.recorder, self._recorded_ref
        if recorded is not None and recorded == sandbox.ref:
            return
        sandbox.deadline.extend(sandbox.spec.timeout_s)
        sandbox.activity.touch()
        if recorded is None:
            await recorder.save_created(sandbox)
        else:
            await recorder.save(sandbox, state=State.RUNNING)
        self._recorded_ref = sandbox.ref

    async def exit_after_link_lost(self, lost: LinkClosed) -> Exit:
        """Return the reason of the sandbox's end after the link to its guest was lost.

        If the driver reports an exit within ``EXIT_TIMEOUT_S``, return this exit. Otherwise the reason is that the link was lost.

        Args:
            lost: Reason why the link was closed.
        """
        if self.exited is None:
            return Exit(ExitReason.CRASHED, lost.detail)
        if lost.reason is not LinkClosedReason.VIOLATION:
            await asyncio.wait({self.exited}, timeout=EXIT_TIMEOUT_S)
        if self.exited.done():
            return self.exited.result()
        reason = "its guest violated the link protocol" if lost.reason is LinkClosedReason.VIOLATION else "the link to its guest is gone"
        return Exit(ExitReason.CRASHED, f"{reason}: {lost.detail}" if lost.detail else reason)

    # Resources ------------------------------------------------------------------------------------------------------------

    def take(self, resource: PreparedSandbox) -> None:
        """Take ownership of a prepared sandbox, in place of an earlier resource.

        The supervisor destroys the prepared sandbox when the sandbox ends.
        """
        self._resource = resource

    def take_instance(self, instance: Instance, *, link: Link | None = None, exited: asyncio.Future[Exit] | None = None) -> None:
        """Take ownership of an instance. The supervisor no longer owns the prepared sandbox from which the instance was started.

        Args:
            instance: The instance.
            link: Link to the guest, if there is one.
            exited: Future that is done when the processes of the instance have ended. None: ``Instance.wait`` is called.
        """
        sandbox = self.sandbox
        self._resource = instance
        sandbox.instance, sandbox.ref, sandbox.link = instance, instance.ref, link
        self.exited = exited or asyncio.ensure_future(instance.wait())

    def reserve_limits(self) -> None:
        """Reserve the resources that the current limits of the sandbox need, without checking that they fit on the node."""
        self.dependencies.reservations.record(self.sandbox.id, self.driver.max_resources(self.sandbox.spec.limits))

    def reserve_disk_only(self, disk_bytes: int) -> None:
        """Reduce the reservation to the disk space of the hibernation image, and release the volumes. Called when the sandbox has no processes.

        Args:
            disk_bytes: Size of the image in bytes.
        """
        self.dependencies.reservations.record(self.sandbox.id, Resources(memory_bytes=0, disk_bytes=disk_bytes, pids=0))
        self.dependencies.volumes.release(self.sandbox.id)

    async def release(self, *, wait_s: float) -> None:
        """Release the resources of a failed start, so that another start strategy can be tried.

        The resources have a separate reservation until they are destroyed.

        Args:
            wait_s: Maximum seconds to wait until the resources are destroyed. Afterwards the release continues in the background.
        """
        sandbox, reservations = self.sandbox, self.dependencies.reservations
        limits = sandbox.spec.limits if sandbox.instance is None else sandbox.instance.limits
        release = await self._begin_release()
        sandbox.ref = None
        if release is None:
            return
        key = f"failed-{sandbox.id}"
        reservations.record(key, self.driver.max_resources(limits))
        release.add_done_callback(lambda _: reservations.release(key))
        await asyncio.wait({release}, timeout=wait_s)

    async def release_memory(self, disk_bytes: int) -> None:
        """Begin to release all resources of a hibernated sandbox except its image. The release continues after this method has returned.

        Args:
            disk_bytes: Size of the image in bytes, which stays reserved.
        """
        release = await self._begin_release()
        if release is None:
            self.reserve_disk_only(disk_bytes)
        else:
            release.add_done_callback(lambda _: self.reserve_disk_only(disk_bytes))

    async def wait_released(self) -> None:
        """Wait until all resources of earlier starts and hibernations are destroyed."""
        if self._releases:
            await asyncio.wait(self._releases)

    async def _begin_release(self) -> asyncio.Task[None] | None:
        sandbox, resource = self.sandbox, self._resource
        self._stop_watching()
        self._resource = None
        link, sandbox.link, sandbox.instance = sandbox.link, None, None
        if link is not None:
            await link.aclose()
        if resource is None:
            return None
        release = asyncio.create_task(self.dependencies.disposer.destroy(resource, sandbox=sandbox.id))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)
        return release

    def _stop_watching(self) -> None:
        if self.exited is not None:
            self.exited.cancel()
            self.exited = None

    # End ------------------------------------------------------------------------------------------------------------------

    async def _end(self, exit_: Exit, failure: SandlotError | None) -> None:
        sandbox, recorder = self.sandbox, self.dependencies.recorder
        sandbox.requested_exit = exit_
        sandbox.end_requested.set()
        sandbox.recovered.set()
        sandbox.become(State.STOPPING)
        if not sandbox.is_announced:
            sandbox.idempotency_key = None  # the request failed and may be sent again
        saving = asyncio.ensure_future(recorder.save_eventually(sandbox))
        await asyncio.wait({saving}, timeout=RECORD_TIMEOUT_S)
        failed = asyncio.Event()
        removal = asyncio.ensure_future(self._remove(failed))
        try:
            await self._wait_processes_dead(removal, failed)
        finally:
            sandbox.exit = exit_
            sandbox.ended_at = self.dependencies.clock.now()
            sandbox.become(state_after(exit_))
            saving = asyncio.ensure_future(self._record_end(saving))
            await asyncio.wait({saving}, timeout=RECORD_TIMEOUT_S)
            sandbox.ended.set()
            sandbox.operations.close(sandbox.ended_error)
            if not sandbox.ready.done():
                sandbox.ready.set_exception(failure or sandbox.ended_error())
                sandbox.ready.exception()  # mark the error as retrieved: if the client has disconnected, nothing awaits `ready`
        _log.info("sandbox.ended", sandbox=sandbox.id, reason=str(exit_.reason), detail=exit_.detail)
        await self._detach()
        await removal
        await asyncio.gather(*self._releases)
        await saving
        await self.dependencies.memory_images.remove(sandbox.id)

    async def _record_end(self, before: asyncio.Future[None]) -> None:
        await before  # saves of one sandbox never overlap
        await self.dependencies.recorder.save_end(self.sandbox)

    async def _remove(self, failed: asyncio.Event) -> None:
        if self._resource is not None:
            await self.dependencies.disposer.destroy(self._resource, on_failure=failed.set, sandbox=self.sandbox.id)

    async def _wait_processes_dead(self, removal: asyncio.Future[None], failed: asyncio.Event) -> None:
        """Wait until the processes of the sandbox are dead.

        If the driver cannot report their end, wait for the removal of the resources instead, at most until the first failed attempt or for
        ``STEP_TIMEOUT_S``.
        """
        instance = self.sandbox.instance
        if instance is not None:
            exited = asyncio.ensure_future(instance.wait())
            ends: set[asyncio.Future[Any]] = {removal, exited}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if exited.cancel() or exited.exception() is None:
                return
            _log.error("sandbox.end_unknown", sandbox=self.sandbox.id, error=str(exited.exception()))
        has_failed = asyncio.ensure_future(failed.wait())
        attempts: set[asyncio.Future[Any]] = {removal, has_failed}
        await asyncio.wait(attempts, timeout=STEP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        has_failed.cancel()

    async def _detach(self) -> None:
        """Close the link to the guest and cancel the tasks of the sandbox."""
        sandbox = self.sandbox
        if sandbox.link is not None:
            await sandbox.link.aclose()
        sandbox.tasks.cancel()
        sandbox.recovered.set()
        if not sandbox.ready.done():
            sandbox.ready.cancel()


def state_after(exit_: Exit) -> State:
    """Return the final state of a sandbox: stopped if it exited or was killed, otherwise failed."""
    return State.STOPPED if exit_.reason in {ExitReason.EXITED, ExitReason.KILLED} else State.FAILED


def guest_deadline_s(timeout_s: float | None) -> float | None:
    """Return the timeout of a guest: ``GUEST_GRACE_S`` longer than the timeout that the service enforces. None: no timeout.

    Args:
        timeout_s: Seconds until the service ends the sandbox. None: no timeout.
    """
    return None if timeout_s is None else timeout_s + GUEST_GRACE_S
