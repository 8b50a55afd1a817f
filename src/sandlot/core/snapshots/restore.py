"""How a sandbox goes on from a snapshot: from its memory where that can be restored here, else from its files, and then it says so.

Laws:
- What is chosen is known before anything is started, and is part of the answer: ``memory`` or ``files``.
- Files are put over the root file system that they were taken of; where that is not there any more, over what the template is now.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import Final

import structlog

from sandlot.core.files import overlay
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.start import BootStart, MemoryImageStart, StartSource
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.scheduler import StartSourceConstraints
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.records import SnapshotRecord
from sandlot.model.specs import SandboxSpec, SnapshotKind

MEMORY: Final = "memory"
FILES: Final = "files"
"""What of a snapshot a sandbox goes on from: ``SandboxSpec.restored``."""

_log = structlog.get_logger("sandlot.core")


async def source_of(record: SnapshotRecord, images: MemoryImages, drivers: Drivers, templates: Templates) -> StartSource:
    """What a sandbox goes on from that is to be created from a snapshot.

    Args:
        record: The snapshot; its folder is used from now on.
        images: Where the folder is.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.

    Raises:
        ConflictError: ``snapshot_unusable``: neither its memory nor its files can be used here; says why.
    """
    spec = replace(record.spec, snapshot=record.id, parent=None)
    why = record.problem or await _why_no_memory(record, images, drivers, templates)
    if not why:
        return StartSource([MemoryImageStart(images.image(record.id))], StartSourceConstraints(spec, restored=MEMORY, volumes=spec.volumes))
    layer = images.layer(record.id)
    if not await asyncio.to_thread(layer.is_file):
        raise unusable(record, why)
    if record.kind is SnapshotKind.MEMORY:
        _log.warning("snapshot.files_only", snapshot=record.id, reason=why)
    if await _is_rootless(spec, templates):
        spec = replace(spec, root="")
    setup = [functools.partial(overlay.apply_layer, layer=layer)]
    return StartSource([BootStart()], StartSourceConstraints(spec, restored=FILES), setup=setup)


def unusable(record: SnapshotRecord, why: str) -> ConflictError:
    """What is answered where nothing can be started from a snapshot. Pure.

    Args:
        record: The snapshot.
        why: Why not.
    """
    return ConflictError(
        f"Nothing can be started from snapshot {record.name or record.id}: {why.rstrip('.')}.",
        code=ErrorCode.SNAPSHOT_UNUSABLE,
        hint="Take a new one, or start from the template.",
        fields={"snapshot": record.id, "reason": why},
    )


async def _why_no_memory(record: SnapshotRecord, images: MemoryImages, drivers: Drivers, templates: Templates) -> str:
    """Why its memory cannot be restored here; empty where it can, as far as can be seen."""
    if record.kind is SnapshotKind.FILES:
        return "it is of files alone, and they are not there any more"
    driver = drivers.get(record.spec.isolation)
    if driver is None:
        return f"this service has no isolation {record.spec.isolation!r} any more"
    verdict = await asyncio.to_thread(driver.restorable, images.image(record.id))
    if not verdict.ok:
        return verdict.reason or "its memory cannot be restored here"
    if await _is_rootless(record.spec, templates):
        return f"the root file system of its template {record.spec.template!r} was removed"
    return ""


async def _is_rootless(spec: SandboxSpec, templates: Templates) -> bool:
    """Whether the root file system that a sandbox had is not there any more."""
    if not spec.root:
        return False
    try:
        await templates.resolve_for(spec)
    except ConflictError:
        return True
    return False
