"""Choose whether a sandbox starts from the memory or from the files of a snapshot. Pure functions.

Invariants:
- The choice is made before the start. Clients see the choice in the field ``restored`` of the sandbox: ``memory`` or ``files``.
- If the memory cannot be restored on this host, the sandbox boots from its template and the snapshot's overlay of files is applied.
- An overlay is applied to the root filesystem image from which it was packed. If that image was removed, the overlay is applied to the current
  image of the template.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from sandlot.model.access import INTERNAL
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ports import ProbeResult
from sandlot.model.records import SnapshotRecord
from sandlot.model.specs import SandboxSpec, SnapshotKind

MEMORY: Final = "memory"
FILES: Final = "files"
"""Values of ``SandboxSpec.restored``: the part of a snapshot from which the sandbox started."""


@dataclass(frozen=True, slots=True)
class RestoreFacts:
    """Facts about this host that decide how a sandbox starts from a snapshot.

    Args:
        memory: Result of the driver's check of the memory image. None if the service has no driver for the snapshot's isolation, or if
            :func:`uses_memory` is false for the snapshot.
        has_root: True if the root filesystem image that the snapshot names exists, or if the snapshot names no image.
        has_overlay: True if the snapshot's overlay of files exists.
    """

    memory: ProbeResult | None
    has_root: bool
    has_overlay: bool


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Decision whether a sandbox starts from the memory of a snapshot or only from its files.

    Args:
        restored: ``memory``: memory and files are restored. ``files``: only files are restored.
        spec: Spec of the sandbox. ``spec.template`` has no digest if the sandbox uses the current image of the template.
        reason: Reason why the memory is not restored; empty if the memory is restored.
    """

    restored: Literal["memory", "files"]
    spec: SandboxSpec
    reason: str = ""


def uses_memory(record: SnapshotRecord) -> bool:
    """Return True if a snapshot has memory, and no verification has found this memory to be damaged."""
    return record.kind is SnapshotKind.MEMORY and not record.problem


def choose(record: SnapshotRecord, facts: RestoreFacts) -> RestorePlan:
    """Choose whether a sandbox is restored from a snapshot's memory or from its files.

    Raises:
        ConflictError: Neither the memory nor the files can be restored on this host (``snapshot_unusable``). The message gives the reason.
    """
    is_internal = record.owner == INTERNAL.owner  # nobody can name such a snapshot
    spec = replace(record.spec, snapshot=None if is_internal else record.id, parent=None)
    reason = _memory_problem(record, facts)
    if not reason:
        return RestorePlan(MEMORY, spec)
    if not facts.has_overlay:
        raise unusable(record, reason)
    return RestorePlan(FILES, spec if facts.has_root else replace(spec, template=spec.template.current), reason)


def unusable(record: SnapshotRecord, reason: str) -> ConflictError:
    """Return the error for a snapshot from which no sandbox can be started.

    Args:
        record: The snapshot.
        reason: Reason, as a clause of the error message.
    """
    return ConflictError(
        f"No sandbox can be started from snapshot {record.name or record.id}: {reason.rstrip('.')}.",
        code=ErrorCode.SNAPSHOT_UNUSABLE,
        hint="Create a new snapshot, or start from the template.",
        fields={"snapshot": record.id, "reason": reason},
    )


def _memory_problem(record: SnapshotRecord, facts: RestoreFacts) -> str:
    """Return the reason why the memory of a snapshot cannot be restored on this host, or an empty string."""
    if record.problem:
        return record.problem
    if record.kind is SnapshotKind.FILES:
        return "it is a snapshot of files, and its files are missing"
    if facts.memory is None:
        return f"this service has no driver for isolation {record.spec.isolation!r}"
    if not facts.memory.ok:
        return facts.memory.reason or "its memory cannot be restored on this host"
    if not facts.has_root:
        return f"the root filesystem image of its template {record.spec.template.name!r} was removed"
    return ""
