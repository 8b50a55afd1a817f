"""Runs the builds of templates on one node: the queue, and what happens to builds when the service stops.

Invariants:
- A build ends once, as ready, failed or cancelled. Its sandboxes are removed before its end is recorded.
- The node runs a limited number of builds, and each owner a limited number of these. Owners with waiting builds take turns.
- When the service starts, the builds that an earlier process of the service left open are recorded as failed, and their sandboxes are removed.
- A build goes on when its client disconnects, and reads the archives that were uploaded when it was started.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog

from sandlot.builds.bases import BaseResolver
from sandlot.builds.executor import BUILD, Executor
from sandlot.builds.layer_maker import LayerMaker
from sandlot.builds.layers import LayerStore
from sandlot.builds.limits import BuildLimits
from sandlot.builds.log import BuildLog
from sandlot.builds.plan import BuildPlan
from sandlot.builds.results import BuildResults, make_results
from sandlot.builds.step_cache import StepCache
from sandlot.builds.uploads import UNUSED_S, Uploads
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
from sandlot.model.templates import BuildRecord, BuildStatus

MAINTENANCE_S: Final = 3600.0
"""Seconds between two removals of old uploads, cached steps, and what no build needs."""
RETRY_S: Final = 60.0
"""Seconds between two attempts to record the end of a build that could not be recorded, such as on a full disk."""
UNSTARTED_S: Final = UNUSED_S
"""Seconds after which a build that was requested and not started is recorded as failed: its uploads are gone then."""
RESTARTED: Final = "The service was restarted during the build. Start the build again."
_PAGE: Final = 100

_log = structlog.get_logger("sandlot.builds")


@dataclass(slots=True, eq=False)
class _Job:
    """A build that waits or runs.

    Args:
        is_ending: True once the build was cancelled or has failed. Its end is being recorded, so its task is not cancelled anymore.
    """

    principal: Principal
    build: BuildRecord
    plan: BuildPlan
    held: Collection[Path]
    ended: asyncio.Event
    task: asyncio.Task[None] | None = None
    is_ending: bool = False


class BuildRuntime:
    """Builds of templates of a node.

    Args:
        node: Node with the records and the sandboxes.
        bases: Finds the bases of builds.
        results: Makes the root images and the snapshots of builds.
        layers: Stored layers.
        uploads: Archives that clients have uploaded.
        folder: Folder of the service for temporary files and the step cache, on the file system of the layers. The runtime creates it.
        limits: Limits of builds.
        clock: Clock of the service.
    """

    def __init__(
        self,
        node: Node,
        bases: BaseResolver,
        results: BuildResults,
        layers: LayerStore,
        uploads: Uploads,
        folder: Path,
        limits: BuildLimits,
        clock: Clock,
    ) -> None:
        self._node = node
        self._bases = bases
        self._results = results
        self._uploads = uploads
        self._limits = limits
        self._clock = clock
        self._layer_maker = LayerMaker(layers, folder / "tmp")
        self._cache = StepCache(node, folder, limits, clock)
        self._waiting: dict[OwnerId, deque[_Job]] = {}
        """Owner -> waiting builds, in the order of turns: an owner whose build begins goes to the end."""
        self._jobs: dict[str, _Job] = {}
        self._prune_lock = asyncio.Lock()
        """Held while a prune looks for running builds and removes files."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Maintenance, and builds that run or remove what they no longer need."""
        self._unrecorded: list[tuple[BuildRecord, SandlotError | None]] = []
        """Builds whose end could not be recorded yet, with the reason; None: cancelled."""
        self._is_closed = False

    # Life ------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Record the builds from before the restart as failed, and remove their sandboxes. Call this before any other method."""
        await self._layer_maker.open()
        await self._uploads.open()
        lost = await self._node.template_builds.open_builds()
        if lost:  # the sandboxes of a build are removed before its end is recorded
            await self._remove_sandboxes()
        for build in lost:
            await self._node.template_builds.fail(build, UnavailableError(RESTARTED))
        await self.prune()
        await self._cache.evict()
        self._end_with_service(asyncio.create_task(self._maintain()))

    async def _maintain(self) -> None:
        """Remove from time to time what is old or no longer needed, also if nobody builds."""
        due_s = self._clock.monotonic_s() + MAINTENANCE_S
        while True:
            await self._clock.sleep_until(self._clock.monotonic_s() + RETRY_S)
            unrecorded, self._unrecorded = self._unrecorded, []
            for build, error in unrecorded:
                await self._record_end(build, error)
            if self._clock.monotonic_s() < due_s:
                continue
            due_s = self._clock.monotonic_s() + MAINTENANCE_S
            try:
                await self._uploads.remove_unused()
            except OSError as error:
                _log.warning("build.uploads_not_removed", error=str(error))
            await self._cache.evict()
            with suppress(SandlotError):
                await self._end_unstarted()
                await self.prune()

    async def _end_unstarted(self) -> None:
        """Record builds as failed that were requested long ago and never started."""
        oldest = self._clock.now() - timedelta(seconds=UNSTARTED_S)
        for build in await self._node.template_builds.open_builds():
            if build.status is BuildStatus.WAITING and build.created_at < oldest and build.id not in self._jobs:
                await self._node.template_builds.fail(build, TimeoutExceededError("The build was not started within a day."))

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
        """End all builds. The next start of the service records them as failed. Idempotent."""
        self._is_closed = True
        self._waiting.clear()
        for job in [job for job in self._jobs.values() if job.task is None]:
            self._forget(job)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _end_with_service(self, task: asyncio.Task[None]) -> None:
        """End a task at the latest when the service stops."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Builds ----------------------------------------------------------------------------------------------------------

    async def start(self, principal: Principal, build: BuildRecord, plan: BuildPlan) -> None:
        """Queue a build, also if the caller is cancelled meanwhile. Its progress is recorded in ``node.template_builds``.

        Args:
            principal: Owner of the template, whose quota applies.
            build: Build that waits.
            plan: Plan of the build. The build holds its archives, so that the caller can remove or replace them at once.

        Raises:
            InvalidRequestError: An archive was removed.
            LimitError: The owner has too many waiting builds.
            ConflictError: The build was started already.
            UnavailableError: The service is stopping.
        """
        await outlast_cancellation(self._start(principal, build, plan))  # a thread that holds the archives cannot be cancelled

    async def _start(self, principal: Principal, build: BuildRecord, plan: BuildPlan) -> None:
        self._check_start(build)
        held = await self._uploads.hold(plan.archives())
        try:
            self._check_start(build)  # again: it may have been started meanwhile
        except BaseException:
            await self._uploads.release(held.values())
            raise
        job = self._jobs[build.id] = _Job(principal, build, plan.reading(held), held.values(), asyncio.Event())
        self._waiting.setdefault(build.owner, deque()).append(job)
        self._begin_next()

    def _check_start(self, build: BuildRecord) -> None:
        """Check that a build can be started now. For errors see :meth:`start`."""
        if self._is_closed:
            raise UnavailableError("The service is stopping.", code=ErrorCode.SERVICE_STOPPING, hint="Try again when the service has restarted.")
        if build.id in self._jobs:
            raise ConflictError(f"The build {build.id} was started already.", hint="Request another build.")
        self._check_room(build.owner)

    def check_room(self, principal: Principal) -> None:
        """Check that the owner can start another build now.

        Raises:
            LimitError: The owner has too many waiting builds.
        """
        self._check_room(principal.owner)

    def _check_room(self, owner: OwnerId) -> None:
        waiting = len(self._waiting.get(owner, ()))
        if waiting >= self._limits.waiting_per_key:
            raise LimitError(f"This key has {waiting} waiting builds, the maximum.", hint="Wait until one has ended, or cancel one.")

    async def cancel(self, principal: Principal, build: str) -> bool:
        """Cancel a build, and wait until its sandboxes are removed. Return False if the build does not run or wait on this node.

        Raises:
            NotFoundError: There is no such build.
        """
        found = await self._node.template_builds.get_build(principal, build)
        job = self._jobs.get(found.id)
        if job is None:
            return False
        if not job.is_ending:
            job.is_ending = True
            if job.task is None:
                await outlast_cancellation(self._cancel_waiting(job))
            else:
                job.task.cancel()
        await job.ended.wait()
        return True

    async def _cancel_waiting(self, job: _Job) -> None:
        with suppress(KeyError, ValueError):  # the service stops
            self._waiting[job.build.owner].remove(job)
        try:
            await self._node.template_builds.cancel(job.build)
        finally:
            self._forget(job)
            await self._uploads.release(job.held)

    async def wait(self, build: str) -> None:
        """Wait until a build neither waits nor runs on this node."""
        job = self._jobs.get(build)
        if job is not None:
            await job.ended.wait()

    async def prune(self) -> None:
        """Remove the layers and snapshots that no build needs, and cached results that name these layers.

        Does nothing while a build runs, because its layers are not recorded yet.
        """
        async with self._prune_lock:
            if any(job.task is not None for job in self._jobs.values()):
                return
            ready = await self._node.template_builds.ready_builds()
            for prune in (self._bases.prune, self._results.prune, self._prune_layers):
                try:
                    await prune(ready)
                except (OSError, SandlotError) as error:  # such as a full disk: the service starts nevertheless
                    _log.warning("build.not_pruned", error=str(error))

    async def _wait_for_prune(self) -> None:
        """Wait until a running prune has ended. A later prune removes nothing, because it finds a running build."""
        async with self._prune_lock:
            pass

    async def _prune_layers(self, ready: Collection[BuildRecord]) -> None:
        await self._layer_maker.layers.prune({layer.digest for build in ready if build.root is not None for layer in build.root.layers})
        await self._cache.prune_results(self._layer_maker.layers)

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
            self._end_with_service(job.task)

    def _running(self, owner: OwnerId) -> int:
        return sum(job.task is not None and job.build.owner == owner for job in self._jobs.values())

    def _forget(self, job: _Job) -> None:
        self._jobs.pop(job.build.id, None)
        job.ended.set()

    async def _run(self, job: _Job) -> None:
        try:
            await self._build(job)
        except asyncio.CancelledError:
            if not job.is_ending:
                raise  # the service stops, and records the failure at its next start
            await outlast_cancellation(self._record_end(job.build, None))
        except SandlotError as error:
            job.is_ending = True
            await self._record_end(job.build, error)
        except Exception:  # noqa: BLE001 - a defect ends the build, not the service
            job.is_ending = True
            _log.exception("build.defect", build=job.build.id)
            await self._record_end(job.build, InternalError("The service has a defect; its log has the details."))
        finally:
            self._forget(job)
            self._begin_next()
        await self._uploads.release(job.held)
        with suppress(SandlotError):
            await self.prune()

    async def _record_end(self, build: BuildRecord, error: SandlotError | None) -> None:
        """Record that a build has failed, or was cancelled if there is no error; later, if this is not possible now."""
        records = self._node.template_builds
        try:
            await (records.cancel(build) if error is None else records.fail(build, error))
        except Exception as defect:  # noqa: BLE001 - such as a full disk
            _log.warning("build.end_not_recorded", build=build.id, error=str(defect))
            self._unrecorded.append((build, error))

    async def _build(self, job: _Job) -> None:
        """Run a build, and record its success.

        Raises:
            SandlotError: The build has failed. Its log has the reason.
        """
        await self._wait_for_prune()
        records = self._node.template_builds
        begun = await records.begin(job.build)
        if begun is None:
            return  # it was deleted
        job.build = begun
        log = BuildLog(self._node, begun, self._limits, self._clock)
        executor = Executor(self._node, job.principal, begun, job.plan, self._bases, self._layer_maker, self._cache, log, self._limits, self._clock)
        try:
            try:
                async with asyncio.timeout(self._limits.build_s):
                    done = await make_results(self._results, job.principal, await executor.execute(), log)
            except TimeoutError:
                raise TimeoutExceededError(f"The build has taken {self._limits.build_s:g} seconds, the maximum.") from None
            except SandlotError:
                raise
            except Exception as defect:
                _log.exception("build.defect", build=begun.id)
                raise InternalError("The service has a defect; its log has the details.") from defect
        except SandlotError as error:
            with suppress(SandlotError):  # the record has the reason too
                await log.fail(str(error))
            raise
        else:
            await log.aclose()
            if done.root is None:
                raise InternalError("The build has no root file system.")
            await records.finish(log.build, done.root, done.settings, done.snapshot_bytes)
        finally:
            job.build = log.build
            with suppress(SandlotError):
                await outlast_cancellation(log.aclose())
