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
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from sandlot.core.access import quotas
from sandlot.core.access.idempotency import Idempotency, check_same, request_digest
from sandlot.core.admission import AdmissionPolicy, CreateSandboxParams
from sandlot.core.concurrency import TaskSet
from sandlot.core.execution.package_access import PackageAccess
from sandlot.core.execution.unattended import UnattendedExecutions
from sandlot.core.lifecycle import recovery, supervisor, suspend, teardown
from sandlot.core.lifecycle.dependencies import LifecycleDependencies
from sandlot.core.lifecycle.idle import IdleMonitor
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.mounts import hold, let_go
from sandlot.core.lifecycle.start import Start, StartSource, boot
from sandlot.core.lifecycle.supervisor import Course, supervise
from sandlot.core.lifecycle.update import Hands, UpdateSandboxParams, Used, update, used
from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.node.disposer import Disposer
from sandlot.core.node.drivers import Supply
from sandlot.core.node.reservations import NodeCapacity, Reservations
from sandlot.core.operations import Work
from sandlot.core.pools.manager import PoolManager
from sandlot.core.pools.models import PoolConfig
from sandlot.core.pools.ownership import PoolOwners
from sandlot.core.ports import Clock, GuestLinkFactory, Templates
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.registry import REMEMBERED, SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.core.scheduler import Inject, Injects, Scheduler
from sandlot.core.volumes import VolumeManager
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ErrorCode, SandboxEndedError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Driver, Exit, ExitReason, HostReading, Resources
from sandlot.model.states import LIFECYCLE, Recovery, is_terminal

CLOSE_TIMEOUT_S = 60.0
"""For removing everything when the service stops; what is left then is swept by the next start."""

_log = structlog.get_logger("sandlot.core")


class SandboxManager(SandboxRegistry):
    """All sandboxes of this service.

    Args:
        drivers: Isolation name -> driver.
        templates: What sandboxes start from.
        greet: Makes a link to a guest.
        clock: The time.
        new_id: Makes ids that carry this node.
        rules: What the operator decided.
        read_host: Looks at what the host has; blocks for some milliseconds.
        buffers: Of the memory that is held for clients.
        recorder: The durable side of them.
        images: Where what is hibernated is.
        injects: Finds files of the file store that are to be in a new sandbox.
        package_access: Access of guests to the package indexes.
        unattended: Continues the executions of sandboxes that wake.
        pool_configs: Shared pools that the settings name.
        cache_dir: Cache directory with the template snapshots.
        data_dir: Data directory with ``pools.json``.
        version: Version of Sandlot.
        principal_of: Whoever has a key of that id, where nobody asks: for what wakes by itself, or waits in a pool; None where it was revoked.
        volumes: What they may have; None is nothing.
    """

    def __init__(  # noqa: PLR0913 - all by name, and each a part of the service
        self,
        *,
        drivers: Mapping[str, Driver],
        templates: Templates,
        greet: GuestLinkFactory,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        rules: AdmissionPolicy,
        read_host: Callable[[], HostReading],
        buffers: BufferBudget,
        recorder: SandboxRecorder,
        images: MemoryImages,
        pool_configs: Iterable[PoolConfig],
        cache_dir: Path,
        data_dir: Path,
        version: str,
        package_access: PackageAccess,
        unattended: UnattendedExecutions,
        injects: Injects | None = None,
        principal_of: Callable[[OwnerId], Principal | None] = lambda _owner: OPERATOR,
        volumes: VolumeManager | None = None,
    ) -> None:
        super().__init__(recorder, buffers, clock)
        self._package_access, self._unattended = package_access, unattended
        self._idempotency = Idempotency()
        self._tasks = TaskSet("service.defect")
        self._disposer = Disposer(clock)
        self.supply = self._supply = Supply(drivers, templates)
        """What sandboxes are made of."""
        self._greet, self._rules = greet, rules
        self._reservations = Reservations(read_host, rules.overcommit, clock)
        self._images = images
        self._turns = asyncio.Semaphore(rules.max_creates)
        self.pools = PoolManager(
            configs=pool_configs,
            cache_dir=cache_dir,
            data_dir=data_dir,
            version=version,
            supply=self._supply,
            reservations=self._reservations,
            policy=rules,
            link_factory=greet,
            clock=clock,
            new_id=new_id,
            metrics=recorder.metrics,
            start_slots=self._turns,
            owners=PoolOwners(principal_of, lambda owner: [sandbox.counted_limits for sandbox in self._of(owner)]),
        )
        self.scheduler = self._scheduler = Scheduler(
            supply=self._supply,
            reservations=self._reservations,
            rules=rules,
            buffers=buffers,
            clock=clock,
            new_id=new_id,
            injects=injects,
            pools=self.pools,
            quota_of=lambda owner: (principal_of(owner) or OPERATOR).quota,
            volumes=volumes,
        )
        self._closing = False
        self.grading = ThreadPoolExecutor(1, "grading")  # its own: outputs of megabytes take seconds, and creates wait for the default one
        self._close_by_s: float | None = None
        self._idle_since_monotonic_s = clock.monotonic_s()

    async def open(self) -> int:
        """Take over what an earlier service of this node left running, and remove the rest of it; how many are taken over.

        It returns before they answer: a call to one of them waits for that. Call it before anything else, and only while holding the state
        directory's lock.

        Raises:
            SandlotError: The store cannot be read or written.
        """
        for record in await self._recorder.ended_lately(REMEMBERED):
            self._remember(self._revived(record))
        kept: set[str] = set()
        for record in await self._recorder.unfinished():
            if LIFECYCLE[record.state].recovery is Recovery.REMOVE or record.ref is None:
                expired = record.expires_at is not None and record.expires_at <= self._clock.now()
                await self._recorder.settle(record, *recovery.over(record, expired))
            elif record.spec.isolation not in self._supply.drivers:
                _log.error("sandbox.no_driver", sandbox=record.id, isolation=record.spec.isolation, hint="Start the service with that driver again.")
                kept.add(record.ref)
                self.unheld.add(record.id)
            else:
                self._begin(self._revived(record), recovery.recover, boot)
        for work in (
            recovery.sweep_leftovers(self.live(), self._supply.drivers.values(), kept),
            IdleMonitor(self.live, self._clock).run(),
            self.pools.run(),
        ):
            self._tasks.spawn(work)
        return len(self._lives)

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
        tasks = [*(task for _, task in self._lives.values()), asyncio.create_task(self.pools.aclose())]
        for sandbox, _ in self._lives.values():
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

    @property
    def held(self) -> int:
        """Sandboxes that still hold anything of the host."""
        return len(self._lives)

    def idle_s(self) -> float:
        """Seconds since the last sandbox was removed; 0 while there is one."""
        return 0.0 if self._lives else self._clock.monotonic_s() - self._idle_since_monotonic_s

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
        async with self._idempotency.lock("create", principal.owner, key):
            return await self._find_created(principal.owner, key, digest) or await self._create(params, principal, key, digest, source)

    async def _find_created(self, owner: OwnerId, key: str, digest: str) -> Sandbox | None:
        """Return the sandbox that an earlier request with this key created. The caller holds the lock of the key.

        Return None if there is none, or if the client of the earlier request disconnected before it got the response.

        Raises:
            ConflictError: The key was used for another request.
            UnavailableError: ``busy``: the sandbox is on another node, or its end is not recorded yet.
        """
        while (record := await self._recorder.store.sandboxes.by_idempotency_key(owner, key)) is not None:
            check_same(record.request_digest, digest)
            sandbox = self._known(record.id)
            if sandbox is None and not is_terminal(record.state):
                raise UnavailableError(
                    f"Sandbox {record.id}, which this Idempotency-Key names, is on another node, or its end is not recorded yet.",
                    code=ErrorCode.BUSY,
                    hint="Retry later, ask the node that created the sandbox, or use a new key for another sandbox.",
                    fields={"retry_after_s": 5},
                )
            if sandbox is None or sandbox.is_announced:
                return sandbox or self._revived(record)
            await sandbox.ended.wait()  # its client disconnected, so it ends; then its record no longer has the key
            await asyncio.sleep(0)
        return None

    async def _create(
        self, params: CreateSandboxParams, principal: Principal, key: str | None, digest: str | None, source: StartSource | None
    ) -> Sandbox:
        with self.reserve_name(principal.owner, params.name if params.unique_name else None):
            born = await self._scheduler.admit(params, principal, source, self.live, self._check_open)
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
        self._reservations.record(sandbox.id, self._supply.drivers[sandbox.spec.isolation].max_resources(sandbox.spec.limits))

    def _begin(self, sandbox: Sandbox, course: Course, start: Start, inject: Inject | None = None) -> None:
        """Let a sandbox live, by one task that owns it."""
        sandbox.resume_operation, sandbox.woken = suspend.resume, functools.partial(self._unattended.resume, sandbox)
        driver = self._supply.drivers[sandbox.spec.isolation]
        dependencies = LifecycleDependencies(
            driver=driver,
            can=lambda ability: self._supply.able(sandbox.spec.isolation, ability),
            base=self._supply.base_of,
            start=start,
            prepare=functools.partial(self.pools.prepare, sandbox.spec.isolation),
            greet=self._greet,
            clock=self._clock,
            disposer=self._disposer,
            turns=self._turns,
            recorder=self._recorder,
            images=self._images,
            claim=lambda one: self._scheduler.readmit(one, self.live),
            rested=self._rested,
            keep_resting_s=self._rules.max_suspended_s,
            inject=inject,
            promised=self._promised,
            services=self._package_access.of,
            volumes=self._scheduler.volumes,
        )
        if course is recovery.recover:
            self._promised(sandbox)
            hold(self._scheduler.volumes, sandbox)
        task = asyncio.create_task(supervise(sandbox, dependencies, course), name=f"sandbox {sandbox.id}")
        self._lives[sandbox.id] = (sandbox, task)
        task.add_done_callback(lambda _: self._gone(sandbox))

    def _rested(self, sandbox: Sandbox, disk_bytes: int) -> None:
        if sandbox.id in self._lives:
            self._reservations.record(sandbox.id, Resources(memory_bytes=0, disk_bytes=disk_bytes, pids=0))
            let_go(self._scheduler.volumes, sandbox)

    async def kill(self, id_: str, principal: Principal) -> None:
        """End a sandbox; return when its processes are dead. Idempotent.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        sandbox = await self.load(id_, principal)
        sandbox.request_end(Exit(ExitReason.KILLED, "it was killed by request"))
        await teardown.ended(sandbox, self._lives.get(sandbox.id, (None, None))[1])

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
        sandbox = self.find(id_, principal)
        hands = Hands(
            driver=self._supply.drivers[sandbox.spec.isolation],
            can=await self._supply.capabilities(sandbox.spec.isolation),
            reservations=self._reservations,
            recorder=self._recorder,
            clock=self._clock,
            check=lambda: quotas.check_update(
                principal.quota,
                sandbox.spec.limits,
                what.limits.over(sandbox.spec.limits),
                math.inf if what.persistent else what.timeout_s,
                [other.counted_limits for other in self._of(sandbox.owner) if other is not sandbox],
            ),
        )
        with self.reserve_name(sandbox.owner, what.name if what.unique_name else None, sandbox):
            await update(sandbox, what, hands)
        sandbox.activity.touch()
        return sandbox

    async def usage(self, id_: str, principal: Principal) -> Used:
        """Measure what a sandbox uses, beside its limits."""
        return await used(self.find(id_, principal))

    async def pause(self, id_: str, principal: Principal) -> Sandbox:
        """Freeze a sandbox where it is; one that rests already does.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            UnsupportedError: Its isolation cannot.
            SandboxEndedError: It has ended.
        """
        return await self._ordered(self.find(id_, principal), suspend.pause)

    async def hibernate(self, id_: str, principal: Principal) -> Sandbox:
        """Write a sandbox to the disk and give its memory back.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            UnsupportedError: Its isolation cannot.
            HostError: It cannot be written; it goes on as it was.
            SandboxEndedError: It has ended.
        """
        return await self._ordered(self.find(id_, principal), suspend.hibernate)

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
        sandbox = self.find(id_, principal)
        if timeout_s is None or timeout_s != suspend.SAME:
            quotas.check_lifetime(principal.quota, timeout_s)
        return await self._ordered(sandbox, functools.partial(suspend.resume, timeout_s=timeout_s))

    async def _ordered(self, sandbox: Sandbox, work: Work[None]) -> Sandbox:
        await sandbox.recovered.wait()
        await sandbox.operations.submit(work)
        return sandbox

    async def check_disk(self) -> None:
        """Refuse to write more to the host's disk while it is short of space, whoever took it; ``busy``."""
        self._reservations.check_pressure(Resources(memory_bytes=0, disk_bytes=1, pids=0), await self._reservations.read_host())

    async def capacity(self) -> NodeCapacity:
        """What this node may promise, and what it has promised."""
        return await self._reservations.capacity()

    def _gone(self, sandbox: Sandbox) -> None:
        """Every trace of a sandbox is removed."""
        del self._lives[sandbox.id]
        self._reservations.release(sandbox.id)
        let_go(self._scheduler.volumes, sandbox)
        self._idle_since_monotonic_s = self._clock.monotonic_s()
        # One that could not be created is not remembered: its creator got the reason, and nobody else has the id.
        if sandbox.exit is None:
            self._left[sandbox.id] = sandbox
        elif sandbox.is_announced:
            sandbox.spec = dataclasses.replace(sandbox.spec, env={})
            sandbox.forget()
            self._remember(sandbox)
