"""Runs the builds of templates on one node: the queue, and what happens to builds when the service stops.

Invariants:
- A build ends once, as ready, failed or cancelled. Its sandboxes are removed before its end is recorded.
- The node runs a limited number of builds, and each owner a limited number of these. Owners with waiting builds take turns.
- After a start of the service, the builds of the last one are recorded as failed, and their sandboxes are removed.
- A build goes on when its client disconnects.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from sandlot.builds.bases import BuildBases
from sandlot.builds.blobs import LayerBlobs
from sandlot.builds.executor import BUILD, Executor
from sandlot.builds.layers import LayerStore
from sandlot.builds.limits import BuildLimits
from sandlot.builds.log import BuildLog
from sandlot.builds.plan import BuildPlan
from sandlot.builds.step_cache import StepCache
from sandlot.core.node import Node
from sandlot.core.ports import Clock
from sandlot.host.blocking import outlast_cancellation
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import (
    ConflictError,
    ErrorCode,
    InternalError,
    LimitError,
    NotFoundError,
    SandlotError,
    TimeoutExceededError,
    UnavailableError,
)
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import LIVE, SandboxFilter
from sandlot.model.templates import BuildRecord

RESTARTED: Final = "The service was restarted during the build. Start the build again."
_PAGE: Final = 100

_log = structlog.get_logger("sandlot.builds")


@dataclass(slots=True, eq=False)
class _Job:
    principal: Principal
    build: BuildRecord
    plan: BuildPlan
    ended: asyncio.Event
    task: asyncio.Task[None] | None = None
    is_cancelled: bool = False


class BuildRuntime:
    """Builds of templates of a node.

    Args:
        node: Node with the records and the sandboxes.
        bases: Bases of builds.
        layers: Stored layers.
        folder: Folder of the service for temporary files and the step cache, on the file system of the layers. The runtime creates it.
        limits: Limits of builds.
        clock: Clock of the service.
    """

    def __init__(self, node: Node, bases: BuildBases, layers: LayerStore, folder: Path, limits: BuildLimits, clock: Clock) -> None:
        self._node = node
        self._bases = bases
        self._limits = limits
        self._clock = clock
        self._blobs = LayerBlobs(layers, folder / "tmp")
        self._cache = StepCache(node, folder, limits, clock)
        self._waiting: dict[OwnerId, deque[_Job]] = {}
        """Owner -> waiting builds, in the order of turns: an owner whose build begins goes to the end."""
        self._jobs: dict[str, _Job] = {}
        self._pruning = asyncio.Lock()
        self._is_closed = False

    # Life ------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Record the builds of the last service as failed, and remove their sandboxes. Call this before any other method."""
        await self._blobs.open()
        lost = await self._node.template_builds.open_builds()
        if lost:  # the sandboxes of a build are removed before its end is recorded
            await self._remove_sandboxes()
        for build in lost:
            await self._node.template_builds.fail(build, UnavailableError(RESTARTED))
        await self.prune()

    async def _remove_sandboxes(self) -> None:
        """Remove the sandboxes of all builds of this node."""
        after: Position | None = None
        while True:
            page = await self._node.sandboxes.list(OPERATOR, SandboxFilter(states=LIVE), after=after, limit=_PAGE)
            for info in page.items:
                if BUILD in info.metadata and info.node == self._node.id:
                    with suppress(NotFoundError):
                        await self._node.sandboxes.kill(OPERATOR, info.id, wait=False)
            if not page.more:
                return
            after = Position(page.items[-1].created_at, page.items[-1].id)

    async def aclose(self) -> None:
        """End all builds. The next service records them as failed. Idempotent."""
        self._is_closed = True
        self._waiting.clear()
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Builds ----------------------------------------------------------------------------------------------------------

    async def start(self, principal: Principal, build: BuildRecord, plan: BuildPlan) -> None:
        """Queue a build. Its progress is recorded in ``node.template_builds``.

        Args:
            principal: Owner of the template, whose quota applies.
            build: Build that waits.
            plan: Plan of the build. The caller removes its contexts once :meth:`wait` returns.

        Raises:
            LimitError: The owner has too many waiting builds.
            ConflictError: The build was started already.
            UnavailableError: The service is stopping.
        """
        if self._is_closed:
            raise UnavailableError("The service is stopping.", code=ErrorCode.SERVICE_STOPPING, hint="Try again when the service has restarted.")
        if build.id in self._jobs:
            raise ConflictError(f"The build {build.id} was started already.", hint="Request another build.")
        waiting = self._waiting.setdefault(build.owner, deque())
        if len(waiting) >= self._limits.waiting_per_key:
            raise LimitError(f"This key has {len(waiting)} waiting builds, the maximum.", hint="Wait until one has ended, or cancel one.")
        job = self._jobs[build.id] = _Job(principal, build, plan, asyncio.Event())
        waiting.append(job)
        self._begin_next()

    async def cancel(self, principal: Principal, build: str) -> bool:
        """Cancel a build, and wait until its sandboxes are removed. Return False if the build does not run or wait on this node.

        Raises:
            NotFoundError: There is no such build.
        """
        found = await self._node.template_builds.get_build(principal, build)
        job = self._jobs.get(found.id)
        if job is None:
            return False
        if not job.is_cancelled:
            job.is_cancelled = True
            if job.task is None:
                self._waiting[found.owner].remove(job)
                await self._node.template_builds.cancel(job.build)
                self._forget(job)
            else:
                job.task.cancel()
        await job.ended.wait()
        return True

    async def wait(self, build: str) -> None:
        """Wait until a build neither waits nor runs on this node."""
        job = self._jobs.get(build)
        if job is not None:
            await job.ended.wait()

    async def prune(self) -> None:
        """Remove the layers and snapshots that no build needs, and cached results that name these layers.

        Does nothing while a build runs, because its layers are not recorded yet.
        """
        async with self._pruning:
            if any(job.task is not None for job in self._jobs.values()):
                return
            ready = await self._node.template_builds.ready_builds()
            try:
                await self._blobs.layers.prune({layer.digest for build in ready if build.root is not None for layer in build.root.layers})
                await self._cache.prune_results(self._blobs.layers)
                await self._bases.prune(ready)
            except (OSError, SandlotError) as error:  # such as a full disk: the service starts nevertheless
                _log.warning("build.layers_not_removed", error=str(error))

    # Queue -----------------------------------------------------------------------------------------------------------

    def _begin_next(self) -> None:
        """Begin waiting builds as long as there are places. Owners take turns."""
        while not self._is_closed and sum(job.task is not None for job in self._jobs.values()) < self._limits.builds:
            owner = next((each for each, jobs in self._waiting.items() if jobs and self._running(each) < self._limits.builds_per_key), None)
            if owner is None:
                break
            jobs = self._waiting.pop(owner)
            job = jobs.popleft()
            if jobs:
                self._waiting[owner] = jobs  # at the end
            job.task = asyncio.create_task(self._run(job), name=f"build {job.build.id}")

    def _running(self, owner: OwnerId) -> int:
        return sum(job.task is not None and job.build.owner == owner for job in self._jobs.values())

    def _forget(self, job: _Job) -> None:
        self._jobs.pop(job.build.id, None)
        job.ended.set()

    async def _run(self, job: _Job) -> None:
        try:
            await self._build(job)
        except asyncio.CancelledError:
            if not job.is_cancelled:
                raise  # the service stops: the next one records the failure
            await outlast_cancellation(self._node.template_builds.cancel(job.build))
        except Exception:  # noqa: BLE001 - a defect ends the build, not the service
            _log.exception("build.defect", build=job.build.id)
        finally:
            self._forget(job)
            self._begin_next()
        with suppress(SandlotError):
            await self.prune()

    async def _build(self, job: _Job) -> None:
        async with self._pruning:
            records = self._node.template_builds  # from here on, no layer is removed
        begun = await records.begin(job.build)
        if begun is None:
            return  # it was deleted
        job.build = begun
        log = BuildLog(self._node, begun, self._limits, self._clock)
        executor = Executor(self._node, job.principal, begun, job.plan, self._bases, self._blobs, self._cache, log, self._limits, self._clock)
        try:
            try:
                async with asyncio.timeout(self._limits.build_s):
                    done = await executor.execute()
            except TimeoutError:
                raise TimeoutExceededError(f"The build has taken {self._limits.build_s:g} seconds, the maximum.") from None
            except SandlotError:
                raise
            except Exception as defect:
                _log.exception("build.defect", build=begun.id)
                raise InternalError("The service has a defect; its log has the details.") from defect
        except SandlotError as error:
            await log.fail(str(error))
            await records.fail(log.build, error)
        else:
            await log.aclose()
            if done.root is None:
                raise InternalError("The build has no root file system.")
            await records.finish(log.build, done.root, done.settings, done.snapshot_bytes)
        finally:
            job.build = log.build
            await outlast_cancellation(log.aclose())
