"""Allocation: everything that one start of a sandbox has on the host, from its reservation to the removal of its last resource.

A sandbox of an owner, a child of a fork, a warm sandbox and the sandbox from which a template snapshot is made have one allocation each. A sandbox
that is hibernated and woken, or whose first start strategy fails, gets a new allocation.

Invariants:
- Each resource that the driver makes belongs to an allocation before the next step begins.
- The reservation is released last. Until then, it covers all resources that the allocation may still have on the host.
- The removal of the resources is repeated until it succeeds, so no resource is left because one attempt failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog

from sandlot.core.ports import Clock
from sandlot.core.resources.drivers import driver_step
from sandlot.core.resources.reservations import Purpose, Reservation
from sandlot.core.resources.start_steps import connect_guest
from sandlot.link.client import Link
from sandlot.link.services import GuestService
from sandlot.link.turns import LinkTurns
from sandlot.model.errors import ErrorCode, SandboxEndedError, SandlotError
from sandlot.model.ports import Attachment, Driver, Exit, HeadroomRange, Instance, PreparedSandbox, Resources
from sandlot.model.specs import SandboxSpec, Shape

FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 60.0
"""Longest pause between two attempts to remove the resources, in seconds. The first pause is ``FIRST_PAUSE_S``; each later pause is twice as long."""
SLOW_REMOVAL_S: Final = 5.0
"""Seconds after which the end of a removal is no longer expected soon. Measured duration of a removal: 0.05 to 2 s."""

_log = structlog.get_logger("sandlot.core")


class Allocation:
    """Resources of one start of a sandbox on the host.

    The steps of a start run one after another. The release may begin between two steps, or during a step that was cancelled.

    Args:
        reservation: Reservation of the sandbox. The allocation releases the reservation.
        sandbox: Id of the sandbox, for logs.

    Attributes:
        instance: Started sandbox; None before the start.
        link: Link to the guest; None before the connection.
        exited: Future that is done when the processes of the instance have ended. None before the start.
        failed: Event that is set when an attempt to remove the resources fails.
    """

    __slots__ = (
        "_callbacks",
        "_clock",
        "_headroom",
        "_release",
        "_resource",
        "_withdrawal",
        "driver",
        "exited",
        "failed",
        "instance",
        "link",
        "reservation",
        "sandbox",
    )

    def __init__(self, driver: Driver, reservation: Reservation, clock: Clock, sandbox: str) -> None:
        self.driver = driver
        self.reservation = reservation
        self.sandbox = sandbox
        self.instance: Instance | None = None
        self.link: Link | None = None
        self.exited: asyncio.Future[Exit] | None = None
        self.failed = asyncio.Event()
        self._clock = clock
        self._resource: PreparedSandbox | Instance | None = None
        self._callbacks: dict[Callable[[Allocation], None], None] = {}
        self._release: asyncio.Task[None] | None = None
        self._headroom: list[Reservation] = []
        self._withdrawal: asyncio.Task[None] | None = None
        """Task that releases the reservations of headroom when the driver has withdrawn the headroom."""

    # Start ----------------------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True while the allocation has nothing on the host."""
        return self._resource is None

    @property
    def has_exited(self) -> bool:
        """True once the processes of the instance have ended."""
        return self.exited is not None and self.exited.done()

    async def prepare(self, shape: Shape, *, snapshot: Path | None = None) -> PreparedSandbox:
        """Prepare a sandbox on the host.

        Args:
            shape: Root filesystem and limits of the sandbox.
            snapshot: Image that the runtime must be able to restore. None: any build of the runtime will do.
        """
        prepared = await driver_step("prepare", self.driver.prepare(shape, snapshot=snapshot))
        self.take(prepared)
        return prepared

    async def boot(self, prepared: PreparedSandbox, spec: SandboxSpec) -> Instance:
        """Boot the prepared sandbox."""
        return self.take_instance(await driver_step("start", prepared.boot(spec)))

    async def restore(
        self,
        image: Path,
        shape: Shape,
        spec: SandboxSpec,
        volumes: Sequence[Attachment] = (),
        *,
        prepared: PreparedSandbox | None = None,
        check_end: Callable[[], None] = lambda: None,
        is_template: bool = False,
    ) -> Instance:
        """Restore a sandbox from an image of memory and files.

        If ``prepared`` and the image were made by different builds of the runtime, ``prepared`` is destroyed and the driver prepares another one.

        Args:
            image: Folder of the image, which the driver wrote.
            shape: Shape of the sandbox.
            spec: Spec of the sandbox.
            volumes: Volumes of the sandbox, mounted on the host.
            prepared: Prepared sandbox without volumes, into which the image is restored. None: the driver prepares a sandbox.
            check_end: Function that raises an error if the end of the sandbox was requested. Called before each restore.
            is_template: True for the image of a template snapshot, which contains no program of an owner. The driver then grants headroom (memory
                above the limit) that is not reserved on the node, and the method returns once the driver has withdrawn it. False: the headroom is
                reserved until the driver has withdrawn it, which may be after the return.

        Raises:
            UnavailableError: The node has no room for the headroom now; code ``busy``.
        """
        if prepared is not None:
            self.take(prepared)
        headroom = await self.driver.restore_headroom(image, spec.limits)
        if is_template:
            instance = await self._restore(image, shape, spec, volumes, prepared, check_end, headroom.most_bytes)
            await driver_step("start", instance.wait_headroom_withdrawn())
            return instance
        async with self.headroom(headroom) as granted_bytes:
            return await self._restore(image, shape, spec, volumes, prepared, check_end, granted_bytes)

    async def _restore(
        self,
        image: Path,
        shape: Shape,
        spec: SandboxSpec,
        volumes: Sequence[Attachment],
        prepared: PreparedSandbox | None,
        check_end: Callable[[], None],
        headroom_bytes: int,
    ) -> Instance:
        if prepared is not None:
            try:
                return await self._restore_into(prepared, image, spec, volumes, check_end, headroom_bytes)
            except SandboxEndedError:
                raise
            except SandlotError as error:
                if error.code is not ErrorCode.SNAPSHOT_UNUSABLE:
                    raise
            await driver_step("remove", prepared.destroy())
        return await self._restore_into(await self.prepare(shape, snapshot=image), image, spec, volumes, check_end, headroom_bytes)

    async def _restore_into(
        self,
        prepared: PreparedSandbox,
        image: Path,
        spec: SandboxSpec,
        volumes: Sequence[Attachment],
        check_end: Callable[[], None],
        headroom_bytes: int,
    ) -> Instance:
        check_end()
        if volumes:
            await driver_step("attach a volume to", prepared.attach(volumes))
        return self.take_instance(await driver_step("restore", prepared.restore(image, spec, headroom_bytes=headroom_bytes)))

    def adopt(self, instance: Instance) -> None:
        """Take ownership of an instance of an earlier service, and reserve the headroom that the driver has not withdrawn yet."""
        self.take_instance(instance)
        if instance.headroom_bytes:
            amount = Resources(memory_bytes=instance.headroom_bytes, disk_bytes=0, pids=0)
            self._headroom.append(self.reservation.reservations.record(Purpose.HEADROOM, amount))
            self._release_when_withdrawn()

    @asynccontextmanager
    async def headroom(self, needed: HeadroomRange, *, is_hibernation: bool = False) -> AsyncIterator[int]:
        """Reserve headroom for the snapshot or restore in the body of the ``async with`` block, and provide the reserved amount in bytes.

        The reservation is released when the driver has withdrawn the headroom, which may be later than the end of the block, or with the allocation.
        Headroom that an earlier snapshot or restore has left counts.

        Args:
            needed: Headroom that the driver needs.
            is_hibernation: True for a hibernation, which waits for the suspend reserve if the node is full.

        Raises:
            UnavailableError: The headroom does not fit now; code ``busy``.
        """
        if self._withdrawal is not None:
            self._withdrawal.cancel()
        if self.instance is not None and not self.instance.headroom_bytes:
            self._release_headroom()
        held_bytes = self._headroom_bytes()
        more = HeadroomRange(max(0, needed.least_bytes - held_bytes), max(0, needed.most_bytes - held_bytes))
        try:
            if more.most_bytes:
                reservations = self.reservation.reservations
                reserve = reservations.reserve_for_hibernation if is_hibernation else reservations.reserve_headroom
                self._headroom.append(await reserve(more))
            yield self._headroom_bytes()
        finally:
            self._release_when_withdrawn()

    def _headroom_bytes(self) -> int:
        return sum(each.amount.memory_bytes for each in self._headroom)

    def _release_when_withdrawn(self) -> None:
        for each in self._headroom:
            each.set_leaving(True)
        if self.instance is None or not self.instance.headroom_bytes:
            self._release_headroom()
        else:
            self._withdrawal = asyncio.create_task(self._wait_withdrawn(self.instance))

    async def _wait_withdrawn(self, instance: Instance) -> None:
        await instance.wait_headroom_withdrawn()
        self._release_headroom()

    def _release_headroom(self) -> None:
        for each in self._headroom:
            each.release()
        self._headroom.clear()

    async def connect(self, services: Mapping[str, GuestService], turns: LinkTurns) -> Link:
        """Connect to the guest of the instance, and return the link. The caller sets :attr:`link`.

        Raises:
            ExitedError: The processes ended before the guest was connected.
            TimeoutError: The guest did not respond in time.
        """
        if self.instance is None or self.exited is None:
            raise SandboxEndedError(f"Sandbox {self.sandbox} has no processes on the host.")
        return await connect_guest(self.instance, self.exited, services, turns)

    def take(self, resource: PreparedSandbox) -> None:
        """Take ownership of a prepared sandbox, in place of an earlier resource."""
        self._hold(resource)

    def take_instance(self, instance: Instance) -> Instance:
        """Take ownership of an instance and return it. The prepared sandbox from which the instance was started is part of the instance."""
        self._hold(instance)
        self.instance = instance
        self.exited = asyncio.ensure_future(instance.wait())
        return instance

    def _hold(self, resource: PreparedSandbox | Instance) -> None:
        self._resource = resource
        if self._release is not None:  # the release began while the driver made the resource
            self._release = asyncio.create_task(self._remove(resource, after=self._release))
            raise SandboxEndedError(f"Sandbox {self.sandbox} is being removed.")

    # Release --------------------------------------------------------------------------------------------------------------

    def also_release(self, callback: Callable[[Allocation], None]) -> None:
        """Call a function with the allocation, once, when the resources are removed and still reserved."""
        self._callbacks[callback] = None

    def release(self) -> asyncio.Task[None]:
        """Begin to close the link and to remove all resources from the host, and return the task that ends when nothing is left. Idempotent.

        Failed attempts are repeated, with growing pauses, until one succeeds.
        """
        if self._release is None:
            self.reservation.set_leaving(True)
            self._release = asyncio.create_task(self._remove(self._resource))
        return self._release

    async def release_soon(self, timeout_s: float) -> None:
        """Begin the release, and wait until it ends, until an attempt has failed, or for ``timeout_s`` seconds. The release continues."""
        failed = asyncio.ensure_future(self.failed.wait())
        try:
            await asyncio.wait({self.release(), failed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            failed.cancel()

    async def _remove(self, resource: PreparedSandbox | Instance | None, after: asyncio.Task[None] | None = None) -> None:
        closing = None if self.link is None else asyncio.ensure_future(self.link.aclose())
        if resource is not None:
            slow = asyncio.create_task(self._expect_no_more())
            await self._destroy(resource)
            slow.cancel()
        if self.exited is not None:
            self.exited.cancel()
        if closing is not None:
            await asyncio.wait({closing})
        if after is not None:
            await after
        for callback in self._callbacks:
            callback(self)
        self._callbacks.clear()
        if self._withdrawal is not None:
            self._withdrawal.cancel()
        self._release_headroom()
        self.reservation.release()

    async def _destroy(self, resource: PreparedSandbox | Instance) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await resource.destroy()
            except Exception:  # noqa: BLE001 - no exception of a driver may end the attempts
                self.failed.set()
                self.reservation.set_leaving(False)
                _log.exception("resource.not_destroyed", next_attempt_s=pause_s, sandbox=self.sandbox)
                await self._clock.sleep_until(self._clock.monotonic_s() + pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
            else:
                return

    async def _expect_no_more(self) -> None:
        await self._clock.sleep_until(self._clock.monotonic_s() + SLOW_REMOVAL_S)
        self.reservation.set_leaving(False)
