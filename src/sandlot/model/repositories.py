"""Protocols of the store: repositories of records, and blobs for the content of files.

``sandlot.store`` implements them; the suites of ``sandlot.testing.stores`` test every implementation.

Invariants:
- When a method has returned, its change is committed: neither a kill of the process nor a loss of power takes it back.
- A record and the event that announces it are committed together, or not at all.
- A page has at most ``limit`` records, in the documented order, and begins after the given position.
- A client that waits for the result of an execution never waits for the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sandlot.model.access import OwnerId
from sandlot.model.ids import NodeId, SandboxId, SnapshotId, VolumeId, WebhookId
from sandlot.model.records import (
    DeliveryProgress,
    EventRecord,
    ExecutionId,
    ExecutionRecord,
    FileId,
    FileRecord,
    KeyRecord,
    NewEvent,
    SandboxRecord,
    SnapshotRecord,
    VolumeRecord,
    WebhookChange,
    WebhookRecord,
)


@dataclass(frozen=True, slots=True)
class Position:
    """Position in a list that is ordered by time and id: the last record of the previous page.

    Args:
        at: Time of the record.
        id: Id of the record.
    """

    at: datetime
    id: str


class SandboxRepository(Protocol):
    """Sandboxes, live and ended."""

    async def save(self, record: SandboxRecord, event: NewEvent | None = None) -> None:
        """Insert a record, or replace the record with the same id, and add the event.

        A record that has ended is never replaced, and a ``stopping`` record only by a ``stopping`` or ended one. Otherwise neither the record nor
        the event is saved, and no error is raised.

        Raises:
            ConflictError: Another sandbox of the owner, live or ended, has this idempotency key.
        """
        ...

    async def list_unfinished(self, node: NodeId) -> Sequence[SandboxRecord]:
        """Return all sandboxes of a node that have not ended."""
        ...

    async def list_last_ended(self, node: NodeId, *, limit: int) -> Sequence[SandboxRecord]:
        """Return the sandboxes of a node that ended last, the latest first."""
        ...

    async def get(self, sandbox: SandboxId) -> SandboxRecord | None:
        """Return a sandbox, live or ended, or None."""
        ...

    async def get_by_idempotency_key(self, owner: OwnerId, key: str) -> SandboxRecord | None:
        """Return the sandbox that an owner created with this idempotency key, or None."""
        ...

    async def list_ended(
        self,
        *,
        owner: OwnerId | None,
        metadata: Mapping[str, str],
        states: Collection[str],
        after: Position | None,
        limit: int,
        name: str | None = None,
    ) -> Sequence[SandboxRecord]:
        """Return a page of ended sandboxes by ``created_at`` and id, the oldest first.

        Args:
            owner: Owner of the sandboxes; None: all owners.
            metadata: Entries that the metadata of each sandbox contains.
            states: Terminal states; empty: all.
            after: Last position of the previous page; None: the first page.
            limit: Largest number of sandboxes.
            name: Name of the sandboxes; None: all.
        """
        ...

    async def delete_ended(self, before: datetime) -> int:
        """Delete the sandboxes that ended before a time, and return their number."""
        ...


class SnapshotRepository(Protocol):
    """Snapshots of sandboxes."""

    async def save(self, record: SnapshotRecord, event: NewEvent | None = None) -> None:
        """Insert a record, or replace the record with the same id, and add the event.

        Raises:
            ConflictError: Another snapshot of the owner has this name or this idempotency key.
        """
        ...

    async def update(self, record: SnapshotRecord, event: NewEvent | None = None) -> bool:
        """Replace an existing record and add the event. Return False, and save nothing, if there is no record with this id."""
        ...

    async def get(self, snapshot: SnapshotId) -> SnapshotRecord | None:
        """Return a snapshot, or None."""
        ...

    async def get_by_name(self, owner: OwnerId, name: str) -> SnapshotRecord | None:
        """Return an owner's snapshot with this name, or None."""
        ...

    async def get_by_idempotency_key(self, owner: OwnerId, key: str) -> SnapshotRecord | None:
        """Return the snapshot that an owner created with this idempotency key, or None."""
        ...

    async def page(self, *, owner: OwnerId | None, after: Position | None, limit: int) -> Sequence[SnapshotRecord]:
        """Return a page of ready snapshots by ``created_at`` and id, the oldest first. An owner of None means all owners."""
        ...

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number and the total size in bytes of an owner's snapshots, including unfinished ones."""
        ...

    async def list_by_node(self, node: NodeId) -> Sequence[SnapshotRecord]:
        """Return all snapshots of a node, including unfinished ones."""
        ...

    async def remove(self, snapshot: SnapshotId, event: NewEvent | None = None) -> bool:
        """Delete a record and add the event. Return False, and save nothing, if there is no such record."""
        ...


class VolumeRepository(Protocol):
    """Volumes."""

    async def save(self, record: VolumeRecord, event: NewEvent | None = None) -> None:
        """Insert a record, or replace the record with the same id, and add the event.

        Raises:
            ConflictError: Another volume of the owner has this name.
        """
        ...

    async def list_by_node(self, node: NodeId) -> Sequence[VolumeRecord]:
        """Return all volumes of a node, including unfinished ones, the oldest first."""
        ...

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number and the total size in bytes of an owner's volumes on all nodes."""
        ...

    async def remove(self, volume: VolumeId, event: NewEvent | None = None) -> bool:
        """Delete a record and add the event. Return False, and save nothing, if there is no such record."""
        ...


class KeyRepository(Protocol):
    """API keys."""

    async def add(self, record: KeyRecord) -> None:
        """Insert a record.

        Raises:
            ConflictError: A valid key has this name.
        """
        ...

    async def revoke(self, name_or_id: str, at: datetime) -> KeyRecord | None:
        """Mark a valid key as revoked and return it. Return None if no valid key has this name or id."""
        ...

    async def list(self) -> Sequence[KeyRecord]:
        """Return the valid keys, the oldest first."""
        ...


class FileRepository(Protocol):
    """Records of the files in the file store."""

    async def add(self, record: FileRecord) -> None:
        """Insert a record."""
        ...

    async def get(self, file: FileId) -> FileRecord | None:
        """Return a record, or None."""
        ...

    async def page(self, *, owner: OwnerId | None, offset: int, limit: int) -> tuple[Sequence[FileRecord], int]:
        """Return a page of records, the newest first, and the number of all records of the owner, both of the same moment."""
        ...

    async def remove(self, file: FileId) -> bool:
        """Delete a record. Return whether the record existed."""
        ...

    async def ids(self) -> frozenset[FileId]:
        """Return the ids of all records. A blob without a record belongs to an upload that was never completed."""
        ...


class ExecutionRepository(Protocol):
    """Execution log."""

    async def save(self, records: Sequence[ExecutionRecord]) -> None:
        """Insert records or replace records with the same ids: all, or none."""
        ...

    async def get(self, execution: ExecutionId) -> ExecutionRecord | None:
        """Return a record, or None."""
        ...

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, before: Position | None, limit: int) -> Sequence[ExecutionRecord]:
        """Return a page of records by ``created_at`` and id, the newest first. None means all owners, or all sandboxes."""
        ...

    async def list_running(self, *, limit: int) -> Sequence[ExecutionRecord]:
        """Return records with the status ``running``, the newest first."""
        ...

    async def delete_before(self, before: datetime) -> int:
        """Delete the records that were created before a time, and return their number."""
        ...

    async def trim(self, *, keep: int) -> int:
        """Delete the oldest records until ``keep`` are left, and return the number of deleted records."""
        ...

    async def monthly_counts(self, month: str) -> Mapping[OwnerId, int]:
        """Return the number of executions that began in a month (such as ``2026-11``) by owner.

        The counts are stored apart from the records, so that deleting records does not lower them.
        """
        ...

    async def add_monthly_counts(self, month: str, more: Mapping[OwnerId, int]) -> None:
        """Add to the counts of a month."""
        ...


class EventRepository(Protocol):
    """Events."""

    async def add(self, events: Sequence[NewEvent]) -> None:
        """Append events in this order."""
        ...

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, after: int, limit: int) -> Sequence[EventRecord]:
        """Return events with a sequence number larger than ``after``, in their order. None means all owners, or all sandboxes."""
        ...

    async def last_sequence(self) -> int:
        """Return the largest sequence number that was assigned, or 0."""
        ...

    async def delete_before(self, before: datetime) -> int:
        """Delete the events from before a time, and return their number. Sequence numbers are never used again."""
        ...

    async def trim(self, *, keep: int) -> int:
        """Delete the oldest events until ``keep`` are left, and return the number of deleted events."""
        ...


class WebhookRepository(Protocol):
    """Webhooks, with a lease for each: at most one node at a time delivers to a webhook.

    A node renews its lease again and again. When the lease of a node that died has expired, another node takes it.
    """

    async def add(self, record: WebhookRecord, *, max_per_owner: int) -> bool:
        """Insert a record. Return False, and save nothing, if its owner already has ``max_per_owner`` webhooks."""
        ...

    async def get(self, webhook: WebhookId) -> WebhookRecord | None:
        """Return a webhook, or None."""
        ...

    async def list(self, owner: OwnerId | None) -> Sequence[WebhookRecord]:
        """Return webhooks by ``created_at`` and id, the oldest first. An owner of None means all owners."""
        ...

    async def update(self, webhook: WebhookId, change: WebhookChange) -> WebhookRecord | None:
        """Change a webhook and return the result, or None if there is no such webhook. A new URL resets the failed attempts."""
        ...

    async def lease(self, webhook: WebhookId, node: NodeId, *, now: datetime, until: datetime) -> WebhookRecord | None:
        """Give a node the lease of a webhook until a time, and return the webhook.

        Return None if another node has an unexpired lease, or if there is no such webhook.
        """
        ...

    async def save_progress(self, webhook: WebhookId, node: NodeId, progress: DeliveryProgress) -> bool:
        """Save the progress of a webhook. Return False, and save nothing, if the node does not have the lease."""
        ...

    async def remove(self, webhook: WebhookId) -> bool:
        """Delete a webhook. Return whether the webhook existed."""
        ...


class Store(Protocol):
    """All repositories of one store."""

    @property
    def sandboxes(self) -> SandboxRepository:
        """Sandboxes."""
        ...

    @property
    def snapshots(self) -> SnapshotRepository:
        """Snapshots of sandboxes."""
        ...

    @property
    def volumes(self) -> VolumeRepository:
        """Volumes."""
        ...

    @property
    def keys(self) -> KeyRepository:
        """API keys."""
        ...

    @property
    def files(self) -> FileRepository:
        """Records of the files in the file store."""
        ...

    @property
    def executions(self) -> ExecutionRepository:
        """Execution log."""
        ...

    @property
    def events(self) -> EventRepository:
        """Events."""
        ...

    @property
    def webhooks(self) -> WebhookRepository:
        """Webhooks."""
        ...


class Blobs(Protocol):
    """Contents of files by id. Content is written and read in chunks, so that no whole file is in memory."""

    async def write(self, file: FileId, chunks: AsyncIterable[bytes]) -> int:
        """Write a blob and return its size in bytes. If the write fails or is cancelled, nothing that can be read is left."""
        ...

    def read(self, file: FileId) -> AsyncIterator[bytes]:
        """Yield the content of a blob in chunks.

        Raises:
            NotFoundError: There is no such blob. Raised at the first chunk.
        """
        ...

    async def remove(self, file: FileId) -> None:
        """Delete a blob. Idempotent."""
        ...

    async def ids(self) -> frozenset[FileId]:
        """Return the ids of all complete blobs."""
        ...
