"""The choice between a snapshot's memory and its files."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sandlot.core.snapshots.restore import RestoreFacts, choose
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import NodeId, SandboxId, SnapshotId
from sandlot.model.ports import ProbeResult
from sandlot.model.records import SnapshotRecord
from sandlot.model.specs import SandboxSpec, SnapshotKind, TemplateRef

YES, NO = ProbeResult(ok=True), ProbeResult(ok=False, reason="its runtime build was removed")
RECORD = SnapshotRecord(
    id=SnapshotId("snap-node-a"),
    node=NodeId("node"),
    owner=OwnerId("alice"),
    name="set-up",
    kind=SnapshotKind.MEMORY,
    spec=SandboxSpec(id=SandboxId("sb-node-a"), template=TemplateRef(LOCAL, "base", "digest"), parent=SandboxId("sb-node-b")),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    ready=True,
    has_overlay=True,
)
FILES = replace(RECORD, kind=SnapshotKind.FILES)
DAMAGED = replace(RECORD, problem="it could not be restored when it was verified")
USABLE = RestoreFacts(memory=YES, has_root=True, has_overlay=True)


def test_memory_is_restored_if_possible() -> None:
    plan = choose(RECORD, replace(USABLE, has_overlay=False))
    assert (plan.restored, plan.reason) == ("memory", "")
    assert (plan.spec.snapshot, plan.spec.parent, plan.spec.template.digest) == (RECORD.id, None, "digest")


@pytest.mark.parametrize(
    "record, facts, reason",
    [
        (DAMAGED, USABLE, "could not be restored when"),
        (RECORD, replace(USABLE, memory=None), "no driver"),
        (RECORD, replace(USABLE, memory=NO), "runtime build was removed"),
        (RECORD, replace(USABLE, memory=ProbeResult(ok=False)), "cannot be restored on this host"),
        (RECORD, replace(USABLE, has_root=False), "root filesystem image"),
        (FILES, replace(USABLE, memory=None), "snapshot of files"),
    ],
)
def test_files_are_used_if_memory_cannot_be_restored(record: SnapshotRecord, facts: RestoreFacts, reason: str) -> None:
    plan = choose(record, facts)
    assert plan.restored == "files"
    assert reason in plan.reason
    with pytest.raises(ConflictError, match=reason) as error:
        choose(record, replace(facts, has_overlay=False))
    assert error.value.code is ErrorCode.SNAPSHOT_UNUSABLE


def test_files_are_applied_to_the_current_image_if_theirs_was_removed() -> None:
    assert choose(FILES, replace(USABLE, memory=None)).spec.template.digest == "digest"
    assert choose(FILES, replace(USABLE, memory=None, has_root=False)).spec.template.digest == ""
