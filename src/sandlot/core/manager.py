"""All sandboxes of this service: created, found, prolonged, killed, and remembered for a while after their end.

Laws:
- A sandbox counts against the service's bound, and against what the host has (:mod:`sandlot.core.node.reservations`), from the request
  that creates it until its last trace is removed.
- A client that goes away while its sandbox is created leaves nothing behind.
- What a request of one idempotency key made is made once, however often it is sent, also to the service after this one.
- A service that ends leaves its sandboxes to the next one, unless it is told to end them (:mod:`sandlot.core.lifecycle.recovery`).
- Killing is idempotent; any number of callers may wait for the same end.
"""

from __future__ import annotations

import asyncio
import functools
import math
from concurrent.futures import ThreadPoolExecutor

import structlog

from sandlot.core.access import quotas
from sandlot.core.access.idempotency import check_key, find_created, request_digest
from sandlot.core.admission import AdmissionPolicy, CreateSandboxParams
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.execution import unattended
from sandlot.core.execution.packages import services_of
from sandlot.core.lifecycle import recovery, supervisor, suspend, teardown
from sandlot.core.lifecycle.dependencies import LifecycleDependencies
from sandlot.core.lifecycle.idle import IdleMonitor
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.mounts import hold, let_go
from sandlot.core.lifecycle.start import Start, StartSource, boot
from sandlot.core.lifecycle.supervisor import Course, supervise
from sandlot.core.lifecycle.update import Hands, UpdateSandboxParams, Used, update, used
from sandlot.core.node.disposer import Disposer
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations
from sandlot.core.operations import Work
from sandlot.core.pools.manager import PoolManager
from sandlot.core.ports import Clock, GuestLinkFactory, PackageIndex
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.registry import MAX_REMEMBERED, SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.core.scheduler import Inject, Scheduler
from sandlot.core.volumes import VolumeManager
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, SandboxEndedError, UnavailableError
from sandlot.model.ports import Exit, ExitReason, Resources
from sandlot.model.states import SETTLEMENT, Settlement

CLOSE_TIMEOUT_S = 60.0
"""For removing everything when the service stops; what is left then is swept by the next start."""

_log = structlog.get_logger("sandlot.core")


class SandboxManager:
    """Creates, changes and ends the sandboxes of this service.

    Args:
        registry: Sandboxes of this service.
        scheduler: Admits sandboxes and reserves their resources.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Reservations of this node.
        disposer: Destroys resources of the host.
        pools: Pools of warm sandboxes.
        link_factory: Makes a link to a guest.
        clock: Clock of the service.
        policy: Decisions of the operator.
        recorder: Records of sandboxes.
        memory_images: Folders of hibernation images.
        start_slots: One for each sandbox that may be created or recovered at once.
        packages: Package indexes for guests. None: none.
        volumes: Volumes of this node. None: none.
    """

    def __init__(  # noqa: PLR0913 - each is a part of the service
        self,
        *,
        registry: SandboxRegistry,
        scheduler: Scheduler,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
        disposer: Disposer,
        pools: PoolManager,
        link_factory: GuestLinkFactory,
        clock: Clock,
        policy: AdmissionPolicy,
        recorder: SandboxRecorder,
        memory_images: MemoryImages,
        start_slots: asyncio.Semaphore,
        packages: PackageIndex | None = None,
        volumes: VolumeManager | None = None,
    ) -> None:
        self._registry = registry
        self._scheduler = scheduler
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._disposer = disposer
        self._pools = pools
        self._greet = link_factory
        self._clock = clock
        self._rules = policy
        self._recorder = recorder
        self._images = memory_images
        self._turns = start_slots
        self._volumes = volumes
        self._services = functools.partial(services_of, packages)
        self._idempotency_locks = KeyedLock()
        self._tasks = TaskSet("service.defect")
        self._closing = False
        self.grading = ThreadPoolExecutor(1, "grading")  # its own: outputs of megabytes take seconds, and creates wait for the default one
        self._close_by_s: float | None = None

    async def open(self) -> int:
        """Take over what an earlier service of this node left running, and remove the rest of it; how many are taken over.

        It returns before they answer: a call to one of them waits for that. Call it before anything else, and only while holding the state
        directory's lock.

        Raises:
            SandlotError: The store cannot be read or written.
        """
        for record in await self._recorder.ended_lately(MAX_REMEMBERED):
            self._registry.remember(self._registry.revive(record))
        kept: set[str] = set()
        for record in await self._recorder.unfinished():
            if SETTLEMENT[record.state] is Settlement.REMOVE or record.ref is None:
                expired = record.expires_at is not None and record.expires_at <= self._clock.now()
                await self._recorder.settle(record, *recovery.over(record, expired))
            elif record.spec.isolation not in self._drivers:
                _log.error("sandbox.no_driver", sandbox=record.id, isolation=record.spec.isolation, hint="Start the service with that driver again.")
                kept.add(record.ref)
                self._registry.without_driver.add(record.id)
            else:
                self._begin(self._registry.revive(record), recovery.recover, boot)
        for work in (
            recovery.sweep_leftovers(self._registry.live(), self._drivers.values(), kept),
            IdleMonitor(self._registry, self._clock).run(),
            self._pools.run(),
        ):
            self._tasks.spawn(work)
        return self._registry.count

    def refuse(self) -> None:
        """Let nothing be created any more, because the service is about to stop."""
        self._closing = True

    async def aclose(self, *, keep: bool = False) -> None:
        """Leave every sandbox to the next service, or end them and wait until all are removed; nothing can be created any more.

        Idempotent, and however often it is called, what cannot be removed is waited for once. What is being created is ended in any case,
        because its client is told so.

        Args:
            keep: Whether those that run live on.
        """
        self.refuse()
        self._tasks.cancel()
        tasks = [*self._registry.tasks(), asyncio.create_task(self._pools.aclose())]
        for sandbox in self._registry.live():
            if keep and sandbox.is_announced:
                sandbox.detach()
            else:
                sandbox.request_end(Exit(ExitReason.KILLED, "the service was stopped"))
        now_s, first = asyncio.get_running_loop().time(), self._close_by_s is None
        self._close_by_s = now_s + CLOSE_TIMEOUT_S if self._close_by_s is None else self._close_by_s
        _, late = await asyncio.wait(tasks, timeout=max(0.0, self._close_by_s - now_s))
        if late and first:
            _log.error("sandboxes.not_removed", count=len(late), hint="The next start of the service removes them.")
        self.grading.shutdown(wait=False, cancel_futures=True)

    def check_runs(self, principal: Principal) -> None:
        """Refuse a principal whose owner may begin no more executions this month.

        Raises:
            LimitError: ``quota_exceeded``.
        """
        if self._recorder.execution_counter is not None:
            self._recorder.execution_counter.check(principal.owner)

    async def create(
        self, params: CreateSandboxParams, principal: Principal, *, key: str | None = None, source: StartSource | None = None
    ) -> Sandbox:
        """Create a sandbox and wait until it runs.

        Args:
            params: It, as it was asked for.
            principal: Whose it will be.
            key: The client's own name for this request. Sent again, it gives what it gave, also where that has ended by then.
            source: What it goes on from, in place of its template.

        Raises:
            InvalidRequestError: The request makes no sense, or can never fit on this node.
            ForbiddenError: The operator does not allow the isolation.
            UnsupportedError: It asks for what cannot be enforced yet.
            NotFoundError: ``template_not_found``, ``file_not_found``.
            LimitError: ``quota_exceeded``.
            ConflictError: Another request was sent under this key before.
            HostError: This host cannot do it; says why.
            UnavailableError: There is no room, or the service is stopping.
            SandboxEndedError: Somebody killed it while it was created.
        """
        if key is None:
            return await self._create(params, principal, None, None, source)
        digest = request_digest(params) if source is None or source.digest is None else source.digest
        async with self._idempotency_locks.hold(principal.owner, check_key(key)):
            before = await find_created(self._recorder.store.sandboxes, principal.owner, key, digest, self._registry.get, self._registry.revive)
            return before or await self._create(params, principal, key, digest, source)

    async def _create(
        self, params: CreateSandboxParams, principal: Principal, key: str | None, digest: str | None, source: StartSource | None
    ) -> Sandbox:
        with self._registry.reserve_name(principal.owner, params.name if params.unique_name else None):
            born = await self._scheduler.admit(params, principal, source, self._check_open)
            sandbox = born.sandbox
            sandbox.idempotency_key, sandbox.request_digest = key, digest
            self._begin(sandbox, supervisor.create, born.start, born.inject)
        try:
            await asyncio.shield(sandbox.ready)
        except asyncio.CancelledError:
            sandbox.request_end(Exit(ExitReason.KILLED, "the client that created it went away"))
            raise
        except SandboxEndedError:
            self._check_open()  # nobody has seen it yet: its creator may simply ask the next service
            raise
        _log.info("sandbox.created", sandbox=sandbox.id, template=sandbox.spec.template, isolation=sandbox.spec.isolation)
        return sandbox

    def _check_open(self) -> None:
        if self._closing:
            code, fields = ErrorCode.SERVICE_UNAVAILABLE, {"retry_after_s": 1}
            raise UnavailableError("The service is stopping.", code=code, hint="Try again in a moment.", fields=fields) from None

    def _promised(self, sandbox: Sandbox) -> None:
        self._reservations.record(sandbox.id, self._drivers[sandbox.spec.isolation].max_resources(sandbox.spec.limits))

    def _begin(self, sandbox: Sandbox, course: Course, start: Start, inject: Inject | None = None) -> None:
        """Let a sandbox live, by one task that owns it."""
        sandbox.execution_log, sandbox.execution_counter = self._recorder.execution_log, self._recorder.execution_counter
        sandbox.resume_operation, sandbox.woken = suspend.resume, functools.partial(unattended.awake, sandbox)
        driver = self._drivers[sandbox.spec.isolation]
        dependencies = LifecycleDependencies(
            driver=driver,
            can=lambda ability: self._drivers.capabilities_for(sandbox.spec.isolation, ability),
            base=self._templates.resolve_for,
            start=start,
            prepare=functools.partial(self._pools.take_prepared, sandbox.spec.isolation),
            greet=self._greet,
            clock=self._clock,
            disposer=self._disposer,
            turns=self._turns,
            recorder=self._recorder,
            images=self._images,
            claim=self._scheduler.readmit,
            rested=self._rested,
            keep_resting_s=self._rules.keep_resting_s,
            inject=inject,
            promised=self._promised,
            services=self._services,
            volumes=self._volumes,
        )
        if course is recovery.recover:
            self._promised(sandbox)
            hold(self._volumes, sandbox)
        task = asyncio.create_task(supervise(sandbox, dependencies, course), name=f"sandbox {sandbox.id}")
        self._registry.add(sandbox, task)
        task.add_done_callback(lambda _: self._gone(sandbox))

    def _rested(self, sandbox: Sandbox, disk_bytes: int) -> None:
        if self._registry.task(sandbox.id) is not None:
            self._reservations.record(sandbox.id, Resources(memory_bytes=0, disk_bytes=disk_bytes, pids=0))
            let_go(self._volumes, sandbox)

    async def kill(self, id_: str, principal: Principal) -> None:
        """End a sandbox; return when its processes are dead. Idempotent.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        sandbox = await self._registry.load(id_, principal)
        sandbox.request_end(Exit(ExitReason.KILLED, "it was killed by request"))
        await teardown.ended(sandbox, self._registry.task(sandbox.id))

    async def update(self, id_: str, principal: Principal, what: UpdateSandboxParams) -> Sandbox:
        """Change a sandbox: all of what is asked, or nothing.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            LimitError: ``quota_exceeded``.
            InvalidRequestError: Out of bounds.
            UnsupportedError: A limit that cannot be changed while it runs.
            ConflictError: It uses more than it would be allowed, or is still being created.
            UnavailableError: ``busy``: the node has not so much to give now.
            SandboxEndedError: It has ended.
        """
        sandbox = self._registry.find(id_, principal)
        hands = Hands(
            driver=self._drivers[sandbox.spec.isolation],
            can=await self._drivers.capabilities(sandbox.spec.isolation),
            reservations=self._reservations,
            recorder=self._recorder,
            clock=self._clock,
            check=lambda: quotas.check_update(
                principal, sandbox, math.inf if what.persistent else what.timeout_s, what.limits, self._registry.awake(sandbox.owner)
            ),
        )
        with self._registry.reserve_name(sandbox.owner, what.name if what.unique_name else None, besides=sandbox):
            await update(sandbox, what, hands)
        sandbox.activity.touch()
        return sandbox

    async def usage(self, id_: str, principal: Principal) -> Used:
        """Measure what a sandbox uses, beside its limits."""
        return await used(self._registry.find(id_, principal))

    async def pause(self, id_: str, principal: Principal) -> Sandbox:
        """Freeze a sandbox where it is; one that rests already does.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            UnsupportedError: Its isolation cannot.
            SandboxEndedError: It has ended.
        """
        return await self._ordered(self._registry.find(id_, principal), suspend.pause)

    async def hibernate(self, id_: str, principal: Principal) -> Sandbox:
        """Write a sandbox to the disk and give its memory back.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            UnsupportedError: Its isolation cannot.
            HostError: It cannot be written; it goes on as it was.
            SandboxEndedError: It has ended.
        """
        return await self._ordered(self._registry.find(id_, principal), suspend.hibernate)

    async def resume(self, id_: str, principal: Principal, *, timeout_s: float | None = suspend.SAME) -> Sandbox:
        """Let a sandbox go on that was paused or hibernated, with its timeout anew; one that runs does.

        Args:
            id_: Its id.
            principal: Who asks.
            timeout_s: A new timeout; None is none.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            LimitError: ``quota_exceeded``.
            UnavailableError: ``busy``: the node has no room for a hibernated one now.
            ConflictError: ``snapshot_unusable``: its image cannot be used any more.
            SandboxEndedError: It has ended.
        """
        sandbox = self._registry.find(id_, principal)
        if timeout_s is None or timeout_s != suspend.SAME:
            quotas.check_lifetime(principal.quota, timeout_s)
        return await self._ordered(sandbox, functools.partial(suspend.resume, timeout_s=timeout_s))

    async def _ordered(self, sandbox: Sandbox, work: Work[None]) -> Sandbox:
        await sandbox.recovered.wait()
        await sandbox.operations.submit(work)
        return sandbox

    def _gone(self, sandbox: Sandbox) -> None:
        """Every trace of a sandbox is removed."""
        self._registry.remove(sandbox)
        self._reservations.release(sandbox.id)
        let_go(self._volumes, sandbox)
