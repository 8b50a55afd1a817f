"""Supervisor of one sandbox: a task that owns the sandbox's resources on the host from the start of the sandbox to its end.

Invariants:
- All resources that the driver made for the sandbox are released by this task and by no other, whatever fails.
- If the end of the sandbox is requested during its start, the start stops before the next step. No step of the driver is interrupted.
- Every change of the live sandbox is an operation (:mod:`sandlot.core.operations`). Operations and the sandbox's ``on_timeout`` run one at a time.
- The requested end cuts an operation: the operation is cancelled, and the end begins when the operation has ended, after ``CUT_S`` at the latest.
  Code that repairs the sandbox after a failed operation does nothing once the end is requested. Nothing else interrupts an operation.
- When the deadline passes, the operations that were submitted before the deadline run first, because they may move the deadline. Operations that are
  submitted later run after ``on_timeout``, so no client can postpone the expiry.
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
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog

from sandlot.core.admission import AdmissionPolicy
from sandlot.core.admission_controller import AdmissionController
from sandlot.core.execution.guest_services import GuestServices
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.operations import Operation
from sandlot.core.pools.build_snapshots import BuildSnapshots
from sandlot.core.pools.pooled_sandboxes import PooledSandboxes
from sandlot.core.ports import Clock, ResolvedTemplate
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.drivers import STEP_TIMEOUT_S, Drivers, driver_step
from sandlot.core.resources.reservations import Purpose, Reservation, Reservations
from sandlot.core.resources.start_slots import StartSlots
from sandlot.core.resources.templates import TemplateResolver
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes.manager import VolumeManager
from sandlot.core.volumes.mounter import VolumeMounter
from sandlot.link.client import Link
from sandlot.link.types import LinkClosed, LinkClosedReason
from sandlot.model.errors import InternalError, SandlotError
from sandlot.model.ports import Attachment, Driver, Exit, ExitReason, Resources
from sandlot.model.states import State

GUEST_GRACE_S: Final = 60.0
"""Seconds by which the guest's deadline is later than the service's. The guest ends its sandbox only if no service has ended it by then."""
RECORD_TIMEOUT_S: Final = 1.0
"""Maximum seconds that the end of a sandbox waits for the store. A slow disk or database must not keep a sandbox alive."""
CUT_S: Final = 2.0
"""Maximum seconds that the end of a sandbox waits for an operation that it has cancelled."""
EXIT_TIMEOUT_S: Final = 3.0
"""Seconds to wait, after the link to a guest was lost, until the driver reports how the sandbox ended."""

ResultT = TypeVar("ResultT")

_log = structlog.get_logger("sandlot.core")


class SupervisionEndedError(Exception):
    """The end of the sandbox was requested, or the sandbox has ended."""

    def __init__(self, exit_: Exit) -> None:
        super().__init__(exit_.detail)
        self.exit = exit_


class SupervisionDetachedError(Exception):
    """The service is stopping and leaves the sandbox running."""


@dataclass(frozen=True, slots=True)
class LifecycleDependencies:
    """Parts of the service that all supervisors share.

    Args:
        start_slots: Slots for starts and recoveries.
        read_free_disk: Function that returns the free bytes of the host's disk, for :class:`~sandlot.core.lifecycle.disk_guard.DiskGuard`.
        on_timeout: Operation that runs when the deadline of a sandbox has passed.
        on_wake: Functions that are called with the sandbox when a suspended sandbox runs again.
    """

    drivers: Drivers
    templates: TemplateResolver
    recorder: SandboxRecorder
    reservations: Reservations
    admission: AdmissionController
    pools: PooledSandboxes
    build_snapshots: BuildSnapshots
    volumes: VolumeManager
    volume_mounter: VolumeMounter
    memory_images: MemoryImages
    guest_services: GuestServices
    clock: Clock
    policy: AdmissionPolicy
    start_slots: StartSlots
    read_free_disk: Callable[[], int]
    on_timeout: Operation[None]
    on_wake: tuple[Callable[[Sandbox], None], ...] = ()


class SandboxSupervisor:
    """Owner of the allocations of one sandbox: the resources that it has on the host.

    Args:
        allocation: Allocation of the sandbox. The supervisor releases it.
    """

    def __init__(self, sandbox: Sandbox, allocation: Allocation, dependencies: LifecycleDependencies) -> None:
        self.sandbox = sandbox
        self.dependencies = dependencies
        self.driver: Driver = dependencies.drivers[sandbox.spec.isolation]
        sandbox.allocation = allocation
        self._cut_operation: asyncio.Task[None] | None = None
        """Operation that still runs although the end of the sandbox has cancelled it."""
        self._cut_reservation: Reservation | None = None
        """Reservation for the resources that ``_cut_operation`` may still make."""
        self._hibernation: Reservation | None = None
        """Reservation of the hibernated sandbox, which holds nothing beside its written image; None while the sandbox is not hibernated."""
        self._recorded_ref: str | None = None
        """Reference of the instance with which the sandbox was last recorded as running; None: it was not."""
        self._releases: set[asyncio.Task[None]] = set()
        """Tasks that release earlier allocations of the sandbox: those of failed starts, and those that the sandbox had before a hibernation."""

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
                has_expired = deadline.monotonic_s <= self.dependencies.clock.monotonic_s()
                if has_expired and not sandbox.operations.has_earlier(deadline.monotonic_s):
                    await self._run_operation(self.dependencies.on_timeout(self))
                elif submitted in done:
                    await self._run_operation(sandbox.operations.run_next(self))
        finally:
            requested.cancel()
            detaching.cancel()

    async def _run_operation(self, operation: Coroutine[Any, Any, None]) -> None:
        """Await an operation, or cut the operation when the end of the sandbox is requested."""
        task = asyncio.ensure_future(operation)
        requested = asyncio.ensure_future(self.sandbox.end_requested.wait())
        await asyncio.wait({task, requested}, return_when=asyncio.FIRST_COMPLETED)
        requested.cancel()
        if not task.done():
            task.cancel()
            clock = self.dependencies.clock
            timeout = asyncio.ensure_future(clock.sleep_until(clock.monotonic_s() + CUT_S))
            await asyncio.wait({task, timeout}, return_when=asyncio.FIRST_COMPLETED)
            timeout.cancel()
        if not task.done():
            self._cut_operation = task
        elif not (task.cancelled() and self.sandbox.end_requested.is_set()):
            task.result()

    # Steps ----------------------------------------------------------------------------------------------------------------

    @property
    def allocation(self) -> Allocation:
        """Allocation of the sandbox.

        Raises:
            SandboxEndedError: The sandbox has no allocation, because it is hibernated or has ended.
        """
        if self.sandbox.allocation is None:
            raise self.sandbox.ended_error()
        return self.sandbox.allocation

    @property
    def exited(self) -> asyncio.Future[Exit] | None:
        """Future that is done when the processes of the sandbox have ended. None while the sandbox has no processes."""
        return None if self.sandbox.allocation is None else self.sandbox.allocation.exited

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

        The method waits until cancelled work has ended, even if its caller is cancelled as well. If cancelled work returns a result nevertheless, the
        method returns this result: otherwise a start slot that was acquired at the last moment would be lost. The cancellation of the caller is then
        raised at its next ``await``.

        Raises:
            SupervisionEndedError: The end of the sandbox was requested, or the sandbox has ended.
            SupervisionDetachedError: The service is stopping.
        """
        sandbox = self.sandbox
        task = asyncio.ensure_future(work)
        requested = asyncio.ensure_future(sandbox.end_requested.wait())
        detaching = asyncio.ensure_future(sandbox.detaching.wait())
        others: set[asyncio.Future[Any]] = {requested, detaching} if self.exited is None else {requested, detaching, self.exited}
        caller, is_cancelled = asyncio.current_task(), False
        try:
            await asyncio.wait({task, *others}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            is_cancelled = True
        requested.cancel()
        detaching.cancel()
        if not task.done():
            task.cancel()
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            if task.cancelled() or task.exception() is not None or caller is None:
                raise asyncio.CancelledError
            caller.cancel()
        if task.cancelled():
            self.check_end()
            if sandbox.detaching.is_set():
                raise SupervisionDetachedError
            if self.exited is not None and self.exited.done():
                raise SupervisionEndedError(self.exited.result())
        return task.result()

    @property
    def link(self) -> Link:
        """Link to the guest, for operations on the running sandbox. Raises ``SandboxEndedError`` if there is no link."""
        if self.sandbox.link is None:
            raise self.sandbox.ended_error()
        return self.sandbox.link

    async def ensure_running(self) -> None:
        """Resume the sandbox if it is suspended, for an operation that needs the guest.

        Raises:
            ConflictError: The sandbox is suspended and its ``auto_resume`` is not set; code ``sandbox_paused``.
            SupervisionEndedError: The end of the sandbox was requested.
        """
        sandbox = self.sandbox
        if sandbox.state is not State.RUNNING:
            if not sandbox.spec.auto_resume or sandbox.resume_operation is None:
                raise sandbox.suspended_error()
            await sandbox.resume_operation(self)
        self.check_end()

    @asynccontextmanager
    async def start_slot(self) -> AsyncIterator[None]:
        """Wait for a start slot and hold the slot during the body of the ``async with`` block. Raises the errors of :meth:`until_end`."""
        slots, owner = self.dependencies.start_slots, self.sandbox.owner
        await self.until_end(slots.acquire(owner))
        try:
            self.check_end()
            yield
        finally:
            slots.release(owner)

    async def resolve_template(self) -> ResolvedTemplate:
        """Return the build of the template from which the sandbox starts, and let ``spec.template`` name it."""
        sandbox = self.sandbox
        template = await self.until_end(self.dependencies.templates.resolve(sandbox.spec.template, sandbox.spec.isolation))
        sandbox.spec = sandbox.spec.started_from(template.root, template.build, template.env)
        return template

    async def mount_volumes(self) -> tuple[Attachment, ...]:
        """Mount the volumes of the sandbox on the host and return them for the driver. The volumes stay mounted until the sandbox is removed."""
        sandbox = self.sandbox
        if not sandbox.spec.volumes:
            return ()
        return await driver_step("attach a volume to", self.dependencies.volume_mounter.attach(self.allocation, sandbox.spec.volumes))

    async def save_starting(self) -> None:
        """Record the sandbox before resources are made for it. After a failed claim that was recorded, the sandbox stays recorded as running."""
        await self.dependencies.recorder.save(self.sandbox, state=None if self._recorded_ref is None else State.RUNNING)

    async def save_running(self) -> None:
        """Start the timeout of a new sandbox and record that the sandbox runs.

        The first call commits the event ``sandbox.created`` with the record. A later call only writes the record, if the sandbox has another instance
        since the last call.
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

    async def replace_allocation(self, *, wait_s: float) -> None:
        """Release the allocation of a failed start, and give the sandbox a new one, so that another start strategy can be tried.

        The failed start keeps a reservation of its own until its resources are removed.

        Args:
            wait_s: Maximum seconds to wait until the resources are removed. Afterwards the release continues in the background.
        """
        sandbox, failed = self.sandbox, self.allocation
        sandbox.ref = None
        if failed.is_empty:
            return
        limits = sandbox.spec.limits
        kept = failed.reservation
        reservation = self.dependencies.reservations.record(kept.purpose, self.driver.max_resources(limits), owner=kept.owner, limits=limits)
        if failed.instance is not None:
            kept.amount = self.driver.max_resources(failed.instance.limits)
        self._release(failed)
        sandbox.allocation = Allocation(self.driver, reservation, self.dependencies.clock, sandbox.id)
        await failed.release_soon(wait_s)

    def release_memory(self, disk_bytes: int) -> None:
        """Begin to release all resources of a hibernated sandbox except its image. The release continues after this method has returned.

        Args:
            disk_bytes: Size of the image in bytes. It counts until the host shows its space as used.
        """
        self.dependencies.guest_services.network.close(self.sandbox)
        allocation, self.sandbox.allocation = self.sandbox.allocation, None
        if self._hibernation is None:
            amount = Resources(memory_bytes=0, disk_bytes=disk_bytes, pids=0)
            self._hibernation = self.dependencies.reservations.record(Purpose.SANDBOX, amount, owner=self.sandbox.owner)
            self._hibernation.settle(disk_bytes)
        if allocation is not None:
            self._release(allocation)

    async def reserve_again(self) -> None:
        """Reserve the resources of a hibernated sandbox, and give the sandbox a new allocation. For errors see ``AdmissionController.readmit``."""
        sandbox, dependencies = self.sandbox, self.dependencies
        if self._hibernation is None:
            raise InternalError(f"Sandbox {sandbox.id} has no reservation as a hibernated sandbox.")
        reservation = await dependencies.admission.readmit(sandbox, self._hibernation)
        self._hibernation = None
        sandbox.allocation = Allocation(self.driver, reservation, dependencies.clock, sandbox.id)

    def _release(self, allocation: Allocation) -> None:
        """Begin to release an allocation that the sandbox no longer uses. Its limits no longer count against the owner's quota."""
        allocation.reservation.limits = None
        release = allocation.release()
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

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
        allocation = sandbox.allocation
        if allocation is not None:
            if self._cut_operation is not None:
                allocation.also_release(self._reserve_for_cut_operation)
            self._releases.add(allocation.release())
        try:
            if allocation is not None:
                await self._wait_processes_dead(allocation)
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
        await self._wait_cut_operation()
        await asyncio.gather(*self._releases)
        await saving
        await self.dependencies.memory_images.remove(sandbox.id)
        for reservation in (self._hibernation, self._cut_reservation):
            if reservation is not None:
                reservation.release()

    async def _record_end(self, before: asyncio.Future[None]) -> None:
        await before  # saves of one sandbox never overlap
        await self.dependencies.recorder.save_end(self.sandbox)

    def _reserve_for_cut_operation(self, allocation: Allocation) -> None:
        released = allocation.reservation
        self._cut_reservation = self.dependencies.reservations.record(released.purpose, released.amount, owner=released.owner)

    async def _wait_cut_operation(self) -> None:
        """Wait until an operation has ended that outlasted ``CUT_S``, and release the resources that the operation has made meanwhile."""
        if self._cut_operation is None:
            return
        await asyncio.wait({self._cut_operation})
        if not self._cut_operation.cancelled() and (error := self._cut_operation.exception()) is not None:
            _log.warning("sandbox.cut_operation_failed", sandbox=self.sandbox.id, error=str(error))
        await self._detach()
        if self.sandbox.allocation is not None:
            self._releases.add(self.sandbox.allocation.release())

    async def _wait_processes_dead(self, allocation: Allocation) -> None:
        """Wait until the processes of the sandbox are dead.

        If the driver cannot report their end, wait for the release of the allocation instead, at most until the first failed attempt or for
        ``STEP_TIMEOUT_S``.
        """
        if allocation.instance is not None:
            exited = asyncio.ensure_future(allocation.instance.wait())
            ends: set[asyncio.Future[Any]] = {allocation.release(), exited}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if exited.cancel() or exited.exception() is None:
                return
            _log.error("sandbox.end_unknown", sandbox=self.sandbox.id, error=str(exited.exception()))
        await allocation.release_soon(STEP_TIMEOUT_S)

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
