"""Records of snapshots: changes that the creation and the verification of snapshots share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from sandlot.core.access import quotas
from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.snapshots.leases import FolderLeases
from sandlot.model.access import INTERNAL, OwnerId, Quota
from sandlot.model.ids import SnapshotId
from sandlot.model.records import NewEvent, SnapshotRecord
from sandlot.model.repositories import SnapshotRepository


class SnapshotRecords:
    """Records of the snapshots of one node.

    Attributes:
        table: Repository of the records.
        admission_lock: Lock that is held from a check of a quota until the record is saved.
    """

    def __init__(self, *, table: SnapshotRepository, leases: FolderLeases, api_keys: ApiKeys, events: EventFeed, clock: Clock) -> None:
        self.table = table
        self.admission_lock = asyncio.Lock()
        self._leases = leases
        self._api_keys = api_keys
        self._events = events
        self._clock = clock

    async def current(self, id_: SnapshotId) -> SnapshotRecord | None:
        """Return the record of a snapshot; None if the snapshot was deleted."""
        return None if self._leases.is_deleted(id_) else await self.table.get(id_)

    async def check_quota(self, quota: Quota, owner: OwnerId, more_bytes: int = 0) -> None:
        """Refuse more bytes for a snapshot that is already among the owner's snapshots.

        Raises:
            LimitError: The quota is used up (``quota_exceeded``).
        """
        count, total_bytes = await self.table.totals(owner)
        quotas.check_stored(quota, "snapshot", count - 1, total_bytes, more_bytes)

    async def check_overlay_quota(self, record: SnapshotRecord) -> None:
        """Refuse to pack the files of a snapshot whose owner has used up the quota.

        Raises:
            LimitError: The quota is used up (``quota_exceeded``).
        """
        await self.check_quota(self._api_keys.quota_of(record.owner), record.owner)

    async def save_overlay(self, record: SnapshotRecord, size_bytes: int) -> None:
        """Record that the files of a snapshot were packed, unless the snapshot was deleted.

        Raises:
            LimitError: The packed files would exceed the quota of the snapshot's owner (``quota_exceeded``). Nothing is recorded.
        """
        async with self.admission_lock:
            await self.check_quota(self._api_keys.quota_of(record.owner), record.owner, size_bytes)
            await self.table.update(replace(record, has_overlay=True, size_bytes=record.size_bytes + size_bytes))

    async def save_problem(self, record: SnapshotRecord) -> None:
        """Save the problem of a snapshot that cannot be restored, unless the snapshot was deleted."""
        if await self.table.update(record, self.event("snapshot.unusable", record, reason=record.problem)):
            self._events.notify(record.owner)

    def event(self, type_: str, record: SnapshotRecord, **data: Any) -> NewEvent | None:  # noqa: ANN401 - JSON
        """Return an event about a snapshot, with more fields for its data. Return None for a snapshot of the service itself."""
        if record.owner == INTERNAL.owner:
            return None
        fields = {"snapshot": record.id, "name": record.name, "kind": str(record.kind), **data}
        return NewEvent(type_, self._clock.now(), record.owner, record.spec.id, fields)
