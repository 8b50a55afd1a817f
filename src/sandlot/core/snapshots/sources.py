"""Sources for sandboxes that start from snapshots: the files of a snapshot, checked on this host."""

from __future__ import annotations

import asyncio
import functools

import structlog

from sandlot.core.admission_controller import StartSourceConstraints
from sandlot.core.files import overlay
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.start import BootStart, MemoryImageStart, StartSource
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.templates import TemplateResolver
from sandlot.core.snapshots import restore
from sandlot.model.errors import ConflictError
from sandlot.model.ids import NodeId
from sandlot.model.records import SnapshotRecord
from sandlot.model.specs import SandboxSpec, SnapshotKind

_log = structlog.get_logger("sandlot.core")


class SnapshotSources:
    """Makes start sources from the snapshots of this node."""

    def __init__(self, memory_images: MemoryImages, drivers: Drivers, templates: TemplateResolver, node: NodeId) -> None:
        self._images = memory_images
        self._drivers = drivers
        self._templates = templates
        self._node = node

    async def start_source(self, record: SnapshotRecord) -> StartSource:
        """Return the source for a sandbox that starts from a snapshot. The caller holds a lease on the snapshot.

        Raises:
            ConflictError: The snapshot is on another node, or neither its memory nor its files can be restored on this host (``snapshot_unusable``).
                The message gives the reason.
        """
        if record.node != self._node:
            raise restore.unusable(record, f"it is on another node ({record.node})")
        plan = restore.choose(record, await self._restore_facts(record))
        if plan.restored == restore.MEMORY:
            strategy = MemoryImageStart(self._images.image(record.id))
            return StartSource([strategy], StartSourceConstraints(plan.spec, restored=plan.restored, volumes=plan.spec.volumes))
        if record.kind is SnapshotKind.MEMORY:
            _log.warning("snapshot.memory_not_restored", snapshot=record.id, reason=plan.reason)
        setup = [functools.partial(overlay.apply_overlay, file=self._images.overlay(record.id))]
        return StartSource([BootStart()], StartSourceConstraints(plan.spec, restored=plan.restored), setup=setup)

    async def _restore_facts(self, record: SnapshotRecord) -> restore.RestoreFacts:
        driver = self._drivers.get(record.spec.isolation)
        memory = None
        if driver is not None and restore.uses_memory(record):
            memory = await asyncio.to_thread(driver.restorable, self._images.image(record.id))
        has_overlay = await asyncio.to_thread(self._images.overlay(record.id).is_file)
        return restore.RestoreFacts(memory=memory, has_root=await self._has_root(record.spec), has_overlay=has_overlay)

    async def _has_root(self, spec: SandboxSpec) -> bool:
        if not spec.template.digest:
            return True
        try:
            await self._templates.resolve(spec.template, spec.isolation)
        except ConflictError:
            return False
        return True
