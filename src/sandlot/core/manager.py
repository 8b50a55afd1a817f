"""Manager of sandboxes: create, kill, update, suspend and resume sandboxes.

The manager recovers sandboxes when the service starts. When the service stops, the manager ends the sandboxes or leaves them running.

Invariants:
- A sandbox counts against the limit of the service and against the host's resources (:mod:`sandlot.core.resources.reservations`) from its create
  request until nothing of it is left on the host. A hibernated sandbox counts only against the host's disk space.
- If the client of a create request disconnects before the response, the sandbox is ended and nothing of it is left, unless another client has got the
  sandbox by its name.
- A create request with an idempotency key creates one sandbox, even if the request is repeated or the service restarts in between.
- A service that stops leaves its sandboxes to the next service (:mod:`sandlot.core.lifecycle.recovery`), or ends them: see
  :meth:`SandboxManager.aclose`.
- A kill is idempotent, and any number of callers can wait for the same end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable

import structlog

from sandlot.core.access import quotas
from sandlot.core.access.idempotency import IdempotencyKey, request_digest
from sandlot.core.admission_controller import AdmissionController
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.lifecycle import recovery, start, suspend
from sandlot.core.lifecycle.disk_guard import DiskGuard
from sandlot.core.lifecycle.idle import IdleMonitor
from sandlot.core.lifecycle.mounts import mount_step
from sandlot.core.lifecycle.start import StartSource, template_strategies
from sandlot.core.lifecycle.supervisor import LifecycleDependencies, SandboxSupervisor
from sandlot.core.lifecycle.update import approve, update, used
from sandlot.core.operations import Operation
from sandlot.core.registry import MAX_REMEMBERED, SandboxRegistry
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.reservations import Purpose
from sandlot.core.sandbox import Hold, Sandbox
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ErrorCode, SandboxEndedError, UnavailableError
from sandlot.model.network_activity import NetworkRefusal
from sandlot.model.ports import KILLED_BY_REQUEST, Exit, ExitReason, Resources
from sandlot.model.records import SandboxRecord
from sandlot.model.sandboxes import SAME, CreateSandboxParams, SandboxUsage, UpdateSandboxParams
from sandlot.model.states import LIFECYCLE, Recovery, State, is_terminal

CLOSE_TIMEOUT_S = 60.0
"""Seconds that the removal of all sandboxes may take when the service stops. The next start of the service removes what is left."""

_log = structlog.get_logger("sandlot.core")


class SandboxManager:
    """Creates, changes and ends the sandboxes of this service."""

    def __init__(self, *, registry: SandboxRegistry, admission: AdmissionController, lifecycle: LifecycleDependencies) -> None:
        self._registry = registry
        self._admission = admission
        self._lifecycle = lifecycle
        self._recorder = lifecycle.recorder
        self._key_locks = KeyedLock()
        """Locks by owner and idempotency key."""
        self._tasks = TaskSet("service.internal_error")
        self._close_by_s: float | None = None

    async def open(self) -> int:
        """Start to recover the sandboxes that an earlier service left behind on this node, and return their number.

        Sandboxes that were not completely created, and other resources of the earlier service, are removed. The recoveries continue after this method
        has returned: a call to a sandbox waits until the sandbox is recovered. Call this method before all others, and only while the service holds
        the lock of the data directory.
        """
        for record in await self._recorder.ended_lately(MAX_REMEMBERED):
            self._registry.remember(self._registry.revive(record))
        kept: set[str] = set()
        for record in await self._recorder.unfinished():
            if LIFECYCLE[record.state].recovery is Recovery.REMOVE or record.ref is None:
                expired = record.expires_at is not None and record.expires_at <= self._lifecycle.clock.now()
                await self._recorder.settle(record, *recovery.over(record, expired))
            elif record.spec.isolation not in self._lifecycle.drivers:
                kept.add(record.ref)
                await self._keep_without_driver(record)
            else:
                self._recover(self._registry.revive(record))
        for driver in self._lifecycle.drivers.values():
            self._tasks.spawn(recovery.sweep_hourly(self._registry.live(), driver, kept, self._lifecycle.clock))
        self._tasks.spawn(IdleMonitor(self._registry, self._lifecycle.clock).run())
        self._tasks.spawn(DiskGuard(self._registry, self._lifecycle.reservations, self._lifecycle.clock, self._lifecycle.read_free_disk).run())
        return self._registry.count

    def refuse(self) -> None:
        """Refuse create requests from now on, because the service is about to stop."""
        self._admission.close()

    async def aclose(self, *, keep: bool = False) -> None:
        """Leave all sandboxes to the next service, or end them and wait until they are removed. Create requests are refused from now on.

        A sandbox that is being created is always ended, and its client gets an error. The method is idempotent; all calls together wait at most
        ``CLOSE_TIMEOUT_S``.

        Args:
            keep: Leave the running sandboxes to the next service.
        """
        self.refuse()
        self._tasks.cancel()
        tasks = [*self._registry.tasks.values(), asyncio.create_task(self._lifecycle.pools.aclose())]
        for sandbox in self._registry.live():
            if keep and sandbox.is_announced:
                sandbox.detach()
            else:
                sandbox.request_end(Exit(ExitReason.KILLED, "the service was stopped"))
        now_s, first = asyncio.get_running_loop().time(), self._close_by_s is None
        self._close_by_s = now_s + CLOSE_TIMEOUT_S if self._close_by_s is None else self._close_by_s
        _, late = await asyncio.wait(tasks, timeout=max(0.0, self._close_by_s - now_s))
        if late and first:
            _log.error("sandboxes.not_removed", count=len(late), detail="the next start of the service removes them")

    async def create(
        self,
        principal: Principal,
        params: CreateSandboxParams,
        *,
        key: str | None = None,
        source: StartSource | None = None,
        single_use: bool = False,
    ) -> Sandbox:
        """Create a sandbox and wait until it runs.

        Args:
            principal: Caller; the sandbox belongs to its owner.
            params: The request.
            key: Idempotency key. A repeated request returns the same sandbox, even if the sandbox has ended. None: each request creates a sandbox.
            source: Snapshot or sandbox from which the new sandbox starts. None: its template.
            single_use: True for a sandbox that serves a single request, such as a program. The client does not get the id of the sandbox. The
                sandbox is ended when the service stops.

        Raises:
            InvalidRequestError: The request is invalid or can never fit on this node.
            ForbiddenError: The operator does not allow the isolation.
            UnsupportedError: The isolation cannot enforce a property of the request.
            NotFoundError: The template or a file does not exist; code ``template_not_found`` or ``file_not_found``.
            LimitError: The sandbox would exceed the caller's quota; code ``quota_exceeded``.
            ConflictError: The idempotency key was used for a different request, or the name is taken.
            HostError: This host cannot start the sandbox; the message gives the reason.
            UnavailableError: There is no room for the sandbox now, or the service is stopping.
            SandboxEndedError: The sandbox was killed while it was created.
        """
        if key is None:
            return await self._create(params, principal, None, source, single_use=single_use)
        request = IdempotencyKey(key, request_digest(params) if source is None or source.digest is None else source.digest)
        async with self._key_locks.hold(principal.owner, key):
            return await self._find_created(principal.owner, request) or await self._create(params, principal, request, source, single_use=single_use)

    async def _find_created(self, owner: OwnerId, request: IdempotencyKey) -> Sandbox | None:
        """Return the sandbox that an earlier request with this idempotency key created. The caller holds the lock of the key.

        Return None if no earlier request used the key, or if its client disconnected before the response.
        """
        while (record := await self._recorder.store.sandboxes.get_by_idempotency_key(owner, request.key)) is not None:
            request.check(record.request_digest)
            sandbox = self._registry.known.get(record.id)
            if sandbox is None and not is_terminal(record.state):
                raise UnavailableError(
                    f"Sandbox {record.id}, which was created with this Idempotency-Key, is on another node, or its end is not recorded yet.",
                    code=ErrorCode.BUSY,
                    hint="Retry later, send the request to the node that created the sandbox, or use a new key to create another sandbox.",
                    fields={"retry_after_s": 5},
                )
            if sandbox is None or sandbox.is_announced:
                return sandbox or self._registry.revive(record)
            await sandbox.ended.wait()  # the client disconnected, so the sandbox ends, and its record loses the key
            await asyncio.sleep(0)
        return None

    async def _create(
        self, params: CreateSandboxParams, principal: Principal, request: IdempotencyKey | None, source: StartSource | None, *, single_use: bool
    ) -> Sandbox:
        with self._registry.reserve_name(principal.owner, params.name):
            constraints = source.constraints if source else None
            reservation = source.reservations.pop() if source and source.reservations else None
            try:
                admitted = await self._admission.admit(params, principal, constraints, reservation, single_use=single_use)
            except BaseException:
                if reservation is not None:
                    reservation.release()
                raise
            sandbox = admitted.sandbox
            sandbox.idempotency_key = request
            mounted = constraints.volumes if constraints else ()
            missing = () if constraints and constraints.shares_volumes else sandbox.spec.volumes
            mounts = [mount_step(mounted, missing)] if mounted or missing else []
            setup = [*(source.setup if source else ()), *mounts, *admitted.setup]
            strategies = source.strategies if source else template_strategies(admitted, has_setup=bool(setup))
            self._supervise(sandbox, admitted.allocation, start.begin, strategies, setup)
        try:
            await asyncio.shield(sandbox.ready)
        except asyncio.CancelledError:
            if not self._registry.is_shared(sandbox):
                sandbox.request_end(Exit(ExitReason.KILLED, "the client that created it disconnected"))
            raise
        except SandboxEndedError:
            self._admission.check_open()  # while the service stops, the error is retryable: no client knows the sandbox yet
            raise
        _log.info("sandbox.created", sandbox=sandbox.id, template=sandbox.spec.template.name, isolation=sandbox.spec.isolation)
        return sandbox

    def _supervise(self, sandbox: Sandbox, allocation: Allocation, begin: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start the task that owns a sandbox until the sandbox ends. The task first calls ``begin`` with the supervisor and ``args``."""
        sandbox.resume_operation = suspend.resume
        supervisor = SandboxSupervisor(sandbox, allocation, self._lifecycle)
        task = asyncio.create_task(supervisor.run(begin, *args), name=f"sandbox {sandbox.id}")
        self._registry.add(sandbox, task)
        task.add_done_callback(lambda _: self._registry.remove(sandbox))

    def _recover(self, sandbox: Sandbox) -> None:
        lifecycle, limits = self._lifecycle, sandbox.spec.limits
        driver = lifecycle.drivers[sandbox.spec.isolation]
        counted = None if sandbox.state is State.HIBERNATED else limits
        reservation = lifecycle.reservations.record(Purpose.SANDBOX, driver.max_resources(limits), owner=sandbox.owner, limits=counted)
        allocation = Allocation(driver, reservation, lifecycle.clock, sandbox.id)
        self._supervise(sandbox, allocation, recovery.recover)
        if sandbox.state is not State.HIBERNATED:
            lifecycle.volume_mounter.hold(allocation, sandbox.spec.volumes)

    async def _keep_without_driver(self, record: SandboxRecord) -> None:
        """Keep the reservation and the volumes of a sandbox whose driver this service does not have. Its processes may be running."""
        _log.error("sandbox.no_driver", sandbox=record.id, isolation=record.spec.isolation, hint="Start the service with this driver again.")
        lifecycle, limits = self._lifecycle, record.spec.limits
        amount = Resources(memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes, pids=limits.pids)
        if record.state is State.HIBERNATED:
            amount = Resources(memory_bytes=0, disk_bytes=await lifecycle.memory_images.size_bytes(record.id), pids=0)
        else:
            lifecycle.volume_mounter.hold(record.id, record.spec.volumes)
        counted = None if record.state is State.HIBERNATED else limits
        lifecycle.reservations.record(Purpose.SANDBOX, amount, owner=record.owner, limits=counted)
        self._registry.without_driver[record.id] = record

    async def kill(self, principal: Principal, id_: str, *, wait: bool = True) -> None:
        """End a sandbox and return when its processes are dead, or at once if ``wait`` is False. Idempotent."""
        sandbox = await self._registry.load(id_, principal)
        sandbox.request_end(Exit(ExitReason.KILLED, KILLED_BY_REQUEST))
        if wait:
            await self._registry.wait_ended(sandbox)

    async def update(self, principal: Principal, id_: str, params: UpdateSandboxParams) -> Sandbox:
        """Apply all changes to a sandbox, or none.

        Raises:
            LimitError: The changes would exceed the caller's quota; code ``quota_exceeded``.
            InvalidRequestError: A value is out of bounds.
            UnsupportedError: A limit cannot be changed while the sandbox runs.
            ConflictError: The sandbox uses more than the new limits allow, is still being created, or the name is taken.
            UnavailableError: The node does not have enough free resources now; code ``busy``.
        """
        sandbox = self._registry.find(id_, principal)
        with contextlib.ExitStack() as held:  # until the operation has ended, which may be later than its client leaves
            held.callback(Hold(sandbox.activity).release)
            held.enter_context(self._registry.reserve_name(sandbox.owner, params.name, renamed=sandbox))
            await sandbox.recovered.wait()
            sandbox.check_live()
            return await self._submit(sandbox, functools.partial(update, principal=principal, params=params), held)

    async def approve(self, principal: Principal, id_: str, refusal: NetworkRefusal) -> Sandbox:
        """Allow the destination of a refusal in the network policy of a sandbox. For errors see :func:`sandlot.core.lifecycle.update.approve`."""
        return await self._submit(self._registry.find(id_, principal), functools.partial(approve, principal=principal, refusal=refusal))

    async def usage(self, principal: Principal, id_: str) -> SandboxUsage:
        """Return the resources that a sandbox has used, and its limits."""
        return await used(self._registry.find(id_, principal), self._lifecycle.guest_services.network)

    async def pause(self, principal: Principal, id_: str) -> Sandbox:
        """Freeze a sandbox. Does nothing if the sandbox is suspended already.

        Raises:
            UnsupportedError: The isolation cannot pause sandboxes.
        """
        return await self._submit(self._registry.find(id_, principal), suspend.pause)

    async def hibernate(self, principal: Principal, id_: str) -> Sandbox:
        """Write the memory and files of a sandbox to disk, then release the memory. Does nothing if the sandbox is hibernated already.

        Raises:
            UnsupportedError: The isolation cannot hibernate sandboxes.
            HostError: The sandbox cannot be written to disk; it keeps running.
        """
        return await self._submit(self._registry.find(id_, principal), suspend.hibernate)

    async def hibernate_files(self, principal: Principal, id_: str) -> Sandbox:
        """Write the files of a sandbox to disk, then end its processes. The next resume boots the sandbox with its files.

        Raises:
            LimitError: The files take more space than there is.
        """
        return await self._submit(self._registry.find(id_, principal), suspend.hibernate_files)

    async def resume(self, principal: Principal, id_: str, *, timeout_s: float | None = SAME) -> Sandbox:
        """Resume a paused or hibernated sandbox and start its timeout again. A running sandbox only gets the new timeout.

        Args:
            principal: Caller.
            id_: Id of the sandbox.
            timeout_s: New timeout in seconds. None: no timeout. ``SAME``: the timeout does not change.

        Raises:
            LimitError: The sandbox or its new timeout would exceed the owner's quota; code ``quota_exceeded``.
            UnavailableError: The node has no room for the hibernated sandbox now; code ``busy``.
            ConflictError: The hibernation image can no longer be restored; code ``snapshot_unusable``.
        """
        sandbox = self._registry.find(id_, principal)
        if timeout_s is None or timeout_s != SAME:
            quotas.check_lifetime(principal.quota, timeout_s)
        return await self._submit(sandbox, functools.partial(suspend.resume, timeout_s=timeout_s))

    async def _submit(self, sandbox: Sandbox, operation: Operation[None], held: contextlib.ExitStack | None = None) -> Sandbox:
        await sandbox.recovered.wait()
        try:
            await sandbox.operations.submit(operation, (held or contextlib.ExitStack()).pop_all().close)
        except (SandboxEndedError, UnavailableError) as error:
            raise await sandbox.explain(error) from None
        return sandbox
