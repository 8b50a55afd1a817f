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
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from sandlot.core.access import quotas
from sandlot.core.access.idempotency import Idempotency, check_same, request_digest
from sandlot.core.admission import CreateSandboxParams
from sandlot.core.concurrency import TaskSet
from sandlot.core.lifecycle import recovery, start, suspend
from sandlot.core.lifecycle.idle import IdleMonitor
from sandlot.core.lifecycle.mounts import hold, mount_steps
from sandlot.core.lifecycle.start import StartSource, template_strategies
from sandlot.core.lifecycle.supervisor import LifecycleDependencies, SandboxSupervisor, release_volumes
from sandlot.core.lifecycle.update import SandboxUpdate, UpdateSandboxParams, Used, used
from sandlot.core.operations import Operation
from sandlot.core.registry import MAX_REMEMBERED, SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.core.scheduler import Scheduler, SetupStep
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ErrorCode, SandboxEndedError, UnavailableError
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.states import LIFECYCLE, Recovery, is_terminal

CLOSE_TIMEOUT_S = 60.0
"""For removing everything when the service stops; what is left then is swept by the next start."""

_log = structlog.get_logger("sandlot.core")


class SandboxManager:
    """Creates, changes and ends the sandboxes of this service.

    Args:
        registry: Sandboxes of this service.
        scheduler: Admits sandboxes and reserves their resources.
        lifecycle: Parts of the service that supervisors need.
    """

    def __init__(self, *, registry: SandboxRegistry, scheduler: Scheduler, lifecycle: LifecycleDependencies) -> None:
        self._registry = registry
        self._scheduler = scheduler
        self._lifecycle = lifecycle
        self._recorder = lifecycle.recorder
        self._idempotency = Idempotency()
        self._tasks = TaskSet("service.defect")
        self.grading = ThreadPoolExecutor(1, "grading")
        """Thread that compares outputs of one-shot runs: outputs of megabytes take seconds, and creates wait for the default threads."""
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
            if LIFECYCLE[record.state].recovery is Recovery.REMOVE or record.ref is None:
                expired = record.expires_at is not None and record.expires_at <= self._lifecycle.clock.now()
                await self._recorder.settle(record, *recovery.over(record, expired))
            elif record.spec.isolation not in self._lifecycle.drivers:
                _log.error("sandbox.no_driver", sandbox=record.id, isolation=record.spec.isolation, hint="Start the service with that driver again.")
                kept.add(record.ref)
                self._registry.without_driver.add(record.id)
            else:
                self._recover(self._registry.revive(record))
        for work in (
            recovery.sweep_leftovers(self._registry.live(), self._lifecycle.drivers.values(), kept),
            IdleMonitor(self._registry, self._lifecycle.clock).run(),
            self._lifecycle.pools.run(),
        ):
            self._tasks.spawn(work)
        return self._registry.count

    def refuse(self) -> None:
        """Let nothing be created any more, because the service is about to stop."""
        self._scheduler.close()

    async def aclose(self, *, keep: bool = False) -> None:
        """Leave every sandbox to the next service, or end them and wait until all are removed; nothing can be created any more.

        Idempotent, and however often it is called, what cannot be removed is waited for once. What is being created is ended in any case,
        because its client is told so.

        Args:
            keep: Whether those that run live on.
        """
        self.refuse()
        self._tasks.cancel()
        tasks = [*self._registry.tasks(), asyncio.create_task(self._lifecycle.pools.aclose())]
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
            sandbox = self._registry.get(record.id)
            if sandbox is None and not is_terminal(record.state):
                raise UnavailableError(
                    f"Sandbox {record.id}, which this Idempotency-Key names, is on another node, or its end is not recorded yet.",
                    code=ErrorCode.BUSY,
                    hint="Retry later, ask the node that created the sandbox, or use a new key for another sandbox.",
                    fields={"retry_after_s": 5},
                )
            if sandbox is None or sandbox.is_announced:
                return sandbox or self._registry.revive(record)
            await sandbox.ended.wait()  # its client disconnected, so it ends; then its record no longer has the key
            await asyncio.sleep(0)
        return None

    async def _create(
        self, params: CreateSandboxParams, principal: Principal, key: str | None, digest: str | None, source: StartSource | None
    ) -> Sandbox:
        with self._registry.reserve_name(principal.owner, params.name if params.unique_name else None):
            constraints, batch = (source.constraints, source.batch) if source else (None, None)
            admitted = await self._scheduler.admit(params, principal, constraints, batch)
            sandbox = admitted.sandbox
            sandbox.idempotency_key, sandbox.request_digest = key, digest
            setup = [*(source.setup if source else ()), *self._mount_steps(sandbox, source), *admitted.setup]
            strategies = source.strategies if source else template_strategies(admitted, has_setup=bool(setup))
            self._supervise(sandbox, start.begin, strategies, setup)
        try:
            await asyncio.shield(sandbox.ready)
        except asyncio.CancelledError:
            sandbox.request_end(Exit(ExitReason.KILLED, "the client that created it went away"))
            raise
        except SandboxEndedError:
            self._scheduler.check_open()  # no client has seen the sandbox: the request may be repeated at the next service
            raise
        _log.info("sandbox.created", sandbox=sandbox.id, template=sandbox.spec.template, isolation=sandbox.spec.isolation)
        return sandbox

    @staticmethod
    def _mount_steps(sandbox: Sandbox, source: StartSource | None) -> Sequence[SetupStep]:
        if source is None:
            return mount_steps((), sandbox.spec.volumes)
        return mount_steps(source.constraints.volumes, () if source.constraints.shares_volumes else sandbox.spec.volumes)

    def _supervise(self, sandbox: Sandbox, begin: Callable[..., Awaitable[None]], *args: object) -> SandboxSupervisor:
        """Start the task that owns a sandbox until its end."""
        sandbox.resume_operation = suspend.resume
        supervisor = SandboxSupervisor(sandbox, self._lifecycle)
        task = asyncio.create_task(supervisor.run(begin, *args), name=f"sandbox {sandbox.id}")
        self._registry.add(sandbox, task)
        task.add_done_callback(lambda _: self._remove(sandbox))
        return supervisor

    def _recover(self, sandbox: Sandbox) -> None:
        """Recover a sandbox that an earlier service left."""
        self._supervise(sandbox, recovery.recover).reserve_limits()
        hold(self._lifecycle.volumes, sandbox)

    def _remove(self, sandbox: Sandbox) -> None:
        """Release what a sandbox has reserved, once nothing of it is left on the host or the service has detached."""
        self._registry.remove(sandbox)
        self._lifecycle.reservations.release(sandbox.id)
        release_volumes(self._lifecycle.volumes, sandbox)

    async def kill(self, id_: str, principal: Principal) -> None:
        """End a sandbox; return when its processes are dead. Idempotent.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        sandbox = await self._registry.load(id_, principal)
        sandbox.request_end(Exit(ExitReason.KILLED, "it was killed by request"))
        task = self._registry.task(sandbox.id)
        if task is not None:
            ended = asyncio.ensure_future(sandbox.ended.wait())
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        if not sandbox.ended.is_set():
            raise sandbox.stopping_error()

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
        with self._registry.reserve_name(sandbox.owner, what.name if what.unique_name else None, besides=sandbox):
            await SandboxUpdate(sandbox, principal, what, self._lifecycle).run()
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

    async def _ordered(self, sandbox: Sandbox, work: Operation[None]) -> Sandbox:
        await sandbox.recovered.wait()
        await sandbox.operations.submit(work)
        return sandbox
