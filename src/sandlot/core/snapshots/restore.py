"""Decide how a sandbox starts from a snapshot: from its memory, or from its files. Everything here is pure.

Invariants:
- The decision is made before anything is started, and clients see it: ``restored`` of the sandbox is ``memory`` or ``files``.
- A snapshot whose memory cannot be restored here is started from its files, if it has an overlay of them.
- Files are applied to the root filesystem image that they were taken from; if that image was removed, to the template's current image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ports import ProbeResult
from sandlot.model.records import SnapshotRecord
from sandlot.model.specs import SandboxSpec, SnapshotKind

MEMORY: Final = "memory"
FILES: Final = "files"
"""The part of a snapshot that a sandbox starts from: values of ``SandboxSpec.restored``."""


@dataclass(frozen=True, slots=True)
class RestoreFacts:
    """The state of the host that decides how a snapshot is restored.

    Args:
        memory: Result of the driver's check of the memory image; None if the service has no driver for the snapshot's isolation, or if the
            snapshot's memory is not to be used (:func:`uses_memory`).
        has_root: The root filesystem image that the snapshot needs exists, or the snapshot needs no specific one.
        has_overlay: The snapshot's overlay of files exists.
    """

    memory: ProbeResult | None
    has_root: bool
    has_overlay: bool


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A decision how to start from a snapshot.

    Args:
        restored: ``memory`` or ``files``.
        spec: Spec that the new sandbox continues. Its root is empty if the template's current image is to be used.
        reason: Reason why the memory is not restored; empty if it is.
    """

    restored: Literal["memory", "files"]
    spec: SandboxSpec
    reason: str = ""


def uses_memory(record: SnapshotRecord) -> bool:
    """Return whether a snapshot has memory that is not known to be damaged."""
    return record.kind is SnapshotKind.MEMORY and not record.problem


def choose(record: SnapshotRecord, facts: RestoreFacts) -> RestorePlan:
    """Choose between a snapshot's memory and its files.

    Raises:
        ConflictError: ``snapshot_unusable``: neither can be used here; the message says why.
    """
    spec = replace(record.spec, snapshot=record.id, parent=None)
    reason = _memory_problem(record, facts)
    if not reason:
        return RestorePlan(MEMORY, spec)
    if not facts.has_overlay:
        raise unusable(record, reason)
    return RestorePlan(FILES, spec if facts.has_root else replace(spec, root=""), reason)


def unusable(record: SnapshotRecord, reason: str) -> ConflictError:
    """Return the error for a snapshot from which no sandbox can be started.

    Args:
        record: The snapshot.
        reason: Clause that says why.
    """
    return ConflictError(
        f"No sandbox can be started from snapshot {record.name or record.id}: {reason.rstrip('.')}.",
        code=ErrorCode.SNAPSHOT_UNUSABLE,
        hint="Create a new snapshot, or start from the template.",
        fields={"snapshot": record.id, "reason": reason},
    )


def _memory_problem(record: SnapshotRecord, facts: RestoreFacts) -> str:
    """Return why the memory cannot be restored here; empty if it probably can."""
    if record.problem:
        return record.problem
    if record.kind is SnapshotKind.FILES:
        return "it is a snapshot of files, and its files are missing"
    if facts.memory is None:
        return f"this service has no driver for isolation {record.spec.isolation!r}"
    if not facts.memory.ok:
        return facts.memory.reason or "its memory cannot be restored here"
    if not facts.has_root:
        return f"the root filesystem image of its template {record.spec.template!r} was removed"
    return ""
