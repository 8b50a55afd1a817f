"""Snapshots of templates that users have built. Each build has one snapshot, from which sandboxes with the limits of the template are restored.

Invariants:
- A build is ready only after its start command has run and its ready command has succeeded.
- A snapshot is a cache: a build without one starts sandboxes by a boot and runs its start command in each. The first of these sandboxes
  makes the service make the snapshot again, in the background and only while the node has room.
- A snapshot that no build of this node needs is removed. No request waits for a snapshot of another request.
- The owner is a part of the key of a snapshot in which programs run.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from sandlot.core import admission
from sandlot.core.admission import AdmissionPolicy
from sandlot.core.execution.start_command import OnOutput
from sandlot.core.pools import models, policy
from sandlot.core.pools.models import SnapshotRecipe, TemplateSnapshotSpec
from sandlot.core.pools.snapshot_maker import SnapshotJob, SnapshotMaker
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.pools.template_snapshots import failure_reason
from sandlot.core.ports import Clock, ResolvedTemplate
from sandlot.core.records.metrics import Metrics
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.start_slots import StartSlots
from sandlot.core.resources.templates import TemplateResolver
from sandlot.model.access import Principal
from sandlot.model.errors import HostError, SandlotError
from sandlot.model.ids import NodeId
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import AUTO
from sandlot.model.specs import Limits, TemplateRef
from sandlot.model.templates import TemplateDefaults

MAX_WANTED: Final = 100
"""Maximum number of snapshots that wait to be made again."""
PAUSE_S: Final = 1.0
"""Seconds between a create request and the snapshot that it lacked, so that the client of the request uses its sandbox first."""

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class BuildSnapshotRequest:
    """Request of a new sandbox for the snapshot of its build, which may not exist.

    Args:
        spec: Spec of the snapshot; its template names the build.
        defaults: Defaults of the sandboxes of the build.
    """

    spec: TemplateSnapshotSpec
    defaults: TemplateDefaults

    @classmethod
    def of(cls, template: TemplateRef, isolation: str, limits: Limits, defaults: TemplateDefaults) -> BuildSnapshotRequest | None:
        """Return the request of a new sandbox, or None if the template is not built by a user or the sandbox has other limits.

        Args:
            template: Build of the template.
            isolation: Name of the driver.
            limits: Limits of the sandbox. The disk and the number of processes may be larger than those of the template.
            defaults: Defaults of the sandboxes of the build.
        """
        own = defaults.limits
        is_visible_limit_equal = (limits.cpus, limits.memory_bytes) == (own.cpus, own.memory_bytes)
        if not defaults.digest or not is_visible_limit_equal or limits.disk_bytes < own.disk_bytes or limits.pids < own.pids:
            return None
        return cls(models.build_snapshot_spec(template, isolation, defaults), defaults)

    def recipe(self, template: ResolvedTemplate) -> SnapshotRecipe:
        """Return the recipe of the snapshot.

        Args:
            template: The build.
        """
        return SnapshotRecipe.of(self.spec, template, self.defaults)


class BuildSnapshots:
    """The snapshots of the builds of this node."""

    def __init__(
        self,
        *,
        maker: SnapshotMaker,
        drivers: Drivers,
        templates: TemplateResolver,
        clock: Clock,
        metrics: Metrics,
        node: NodeId,
        admission_policy: AdmissionPolicy,
        start_slots: StartSlots,
    ) -> None:
        self._maker = maker
        self._drivers = drivers
        self._templates = templates
        self._clock = clock
        self._metrics = metrics
        self._node = node
        self._policy = admission_policy
        self._start_slots = start_slots
        self._wanted: OrderedDict[TemplateSnapshotSpec, BuildSnapshotRequest] = OrderedDict()
        self._failures: OrderedDict[TemplateSnapshotSpec, tuple[int, float]] = OrderedDict()
        """Spec -> number of failures, and monotonic time before which no attempt is made."""
        self._working: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Stop making snapshots, and wait until their sandboxes are removed. Idempotent."""
        self._wanted.clear()
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})
        if self._maker.removals:
            await asyncio.wait(self._maker.removals)

    @property
    def is_busy(self) -> bool:
        """True while a snapshot is made again in the background."""
        return self._working is not None and not self._working.done()

    async def make(self, principal: Principal, template: TemplateRef, defaults: TemplateDefaults, on_output: OnOutput) -> int:
        """Make the snapshot of a build that is about to be ready, and return its size in bytes; 0 if the host cannot make it now.

        Args:
            principal: Owner of the build, whose quota applies.
            template: Template with the digest of the build.
            defaults: Defaults of the sandboxes of the build.
            on_output: Called with the output of the start command until it is ready.

        Raises:
            SandlotError: The start command failed or did not become ready, or no sandbox could be started to run it.
        """
        isolation = admission.resolve_isolation(AUTO, self._policy, self._drivers)
        capabilities = await self._drivers.capabilities(isolation)
        if not capabilities.can(DriverCapability.BOOT_IMAGE):
            return 0  # the sandboxes of the template start with another driver
        spec = models.build_snapshot_spec(template, isolation, defaults)
        recipe = SnapshotRecipe.of(spec, await self._templates.resolve(template, isolation), defaults)
        job = SnapshotJob(principal=principal, on_output=on_output)
        if not capabilities.can(DriverCapability.SNAPSHOT):
            if recipe.start is not None:
                await self._maker.try_start(recipe, job)
            return 0
        try:
            snapshot = await self._maker.ensure(recipe, await self._maker.inputs(recipe), job)
        except (SandlotError, OSError, TimeoutError) as error:
            if recipe.start is not None and not job.has_started:
                if isinstance(error, SandlotError):
                    raise
                raise HostError(f"The sandbox for the start command failed: {failure_reason(error)}", hint="Start the build again.") from error
            _log.warning("template_snapshot.not_written", template=template.name, isolation=isolation, error=str(error) or type(error).__name__)
            self._metrics.template_snapshot("failed")
            return 0
        try:
            return snapshot.size_bytes
        finally:
            snapshot.release()

    async def find(self, wanted: BuildSnapshotRequest, template: ResolvedTemplate) -> TemplateSnapshot | None:
        """Return a snapshot for a new sandbox; the caller releases it. Return None if there is none, and begin to make it in the background."""
        if not (await self._drivers.capabilities(wanted.spec.isolation)).can(DriverCapability.SNAPSHOT):
            return None
        try:
            snapshot = await self._maker.find(wanted.recipe(template))
        except (SandlotError, OSError) as error:
            _log.warning("template_snapshot.not_found", template=wanted.spec.template.name, error=str(error))
            return None
        if snapshot is None:
            self._want(wanted)
        return snapshot

    async def discard(self, wanted: BuildSnapshotRequest, snapshot: TemplateSnapshot, reason: str) -> None:
        """Remove a snapshot that could not be restored, and make it again later. The snapshot is released."""
        _log.warning("template_snapshot.not_restored", template=wanted.spec.template.name, isolation=wanted.spec.isolation, error=reason)
        self._metrics.template_snapshot("unusable")
        snapshot.release()
        await asyncio.to_thread(self._maker.cache.remove, snapshot.key)
        self._fail(wanted.spec)

    async def prune(self, contents: Collection[str]) -> None:
        """Remove the snapshots that no build needs. Call this only while no build of the node runs.

        Args:
            contents: Contents (:func:`~sandlot.core.pools.models.content_of`) of all ready builds of the node.
        """
        removed = await asyncio.to_thread(self._maker.cache.remove_unneeded, self._node, contents)
        if removed:
            _log.info("template_snapshot.removed", count=removed)

    def _want(self, wanted: BuildSnapshotRequest) -> None:
        """Make a snapshot in the background, unless the last attempt failed lately or too many snapshots wait."""
        _, not_before_s = self._failures.get(wanted.spec, (0, float("-inf")))
        if len(self._wanted) >= MAX_WANTED or self._clock.monotonic_s() < not_before_s:
            return
        self._wanted[wanted.spec] = wanted
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._wanted:
            await self._clock.sleep_until(self._clock.monotonic_s() + PAUSE_S)
            if self._start_slots.locked():
                continue
            spec, wanted = next(iter(self._wanted.items()))
            try:
                template = await self._templates.resolve(spec.template, spec.isolation)
                recipe = wanted.recipe(template)
                (await self._maker.ensure(recipe, await self._maker.inputs(recipe), SnapshotJob())).release()
            except (SandlotError, OSError, TimeoutError) as error:
                _log.warning("template_snapshot.not_written", template=spec.template.name, error=str(error) or type(error).__name__)
                self._metrics.template_snapshot("failed")
                self._fail(spec)
            except Exception:  # noqa: BLE001 - a defect must not stop the other snapshots
                _log.exception("template_snapshot.internal_error")
                self._fail(spec)
            else:
                self._failures.pop(spec, None)
            with suppress(KeyError):
                del self._wanted[spec]

    def _fail(self, spec: TemplateSnapshotSpec) -> None:
        failures = self._failures.pop(spec, (0, 0.0))[0] + 1
        self._failures[spec] = failures, self._clock.monotonic_s() + policy.back_off_s(failures)
        if len(self._failures) > MAX_WANTED:
            self._failures.popitem(last=False)
