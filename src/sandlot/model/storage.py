"""The port of what survives a restart: rows in a store, bytes in blobs. Filled by ``store/``; tried by ``testing/``.

Laws:
- A method that returned has committed: no kill of the process and no loss of power takes it back.
- A record and the event that tells of it are committed together, or neither is.
- Lists are pages: at most ``limit`` rows, in the order that is said, after (not at) the position that is given.
- Nobody calls a store between a request for a run and its answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sandlot.model.access import OwnerId
from sandlot.model.ids import NodeId, SandboxId, SnapshotId, VolumeId
from sandlot.model.records import (
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
)
from sandlot.model.webhooks import WebhookRepository


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rows that are ordered by time: the last one that was seen."""

    at: datetime
    id: str


class SandboxRepository(Protocol):
    """Sandboxes, live and ended."""

    async def save(self, record: SandboxRecord, event: NewEvent | None = None) -> None:
        """Insert or replace by id, and tell of it.

        One that has ended is never replaced, and one that is ``stopping`` only by ``stopping`` or an ended one: then nothing is saved or told.

        Raises:
            ConflictError: A live or ended record of the same owner has its idempotency key already.
        """
        ...

    async def unfinished(self, node: NodeId) -> Sequence[SandboxRecord]:
        """All of a node whose state is not terminal."""
        ...

    async def ended_last(self, node: NodeId, *, limit: int) -> Sequence[SandboxRecord]:
        """Those of a node that ended last, the latest one first."""
        ...

    async def get(self, sandbox: SandboxId) -> SandboxRecord | None:
        """One, ended or not."""
        ...

    async def by_idempotency_key(self, owner: OwnerId, key: str) -> SandboxRecord | None:
        """What a request of that name made."""
        ...

    async def ended(
        self,
        *,
        owner: OwnerId | None,
        metadata: Mapping[str, str],
        states: Collection[str],
        after: Position | None,
        limit: int,
        name: str | None = None,
    ) -> Sequence[SandboxRecord]:
        """Those that have ended, by ``created_at`` and id, oldest first.

        Args:
            owner: Whose; None is everybody's.
            metadata: Entries that all of them have.
            states: Terminal states; empty is any.
            after: By ``created_at`` and id.
            limit: At most so many.
            name: What all of them are called; None is anything.
        """
        ...

    async def forget(self, *, ended_before: datetime) -> int:
        """Drop those that ended before then; how many."""
        ...


class SnapshotRepository(Protocol):
    """Snapshots of sandboxes."""

    async def save(self, record: SnapshotRecord, event: NewEvent | None = None) -> None:
        """Insert or replace by id, and tell of it.

        Raises:
            ConflictError: Another one of the same owner has its name, or its idempotency key.
        """
        ...

    async def update(self, record: SnapshotRecord, event: NewEvent | None = None) -> bool:
        """Replace one that is there, and tell of it; whether it was there. One that is not is neither inserted nor told of."""
        ...

    async def get(self, snapshot: SnapshotId) -> SnapshotRecord | None:
        """One."""
        ...

    async def named(self, owner: OwnerId, name: str) -> SnapshotRecord | None:
        """The one that its owner calls so."""
        ...

    async def by_idempotency_key(self, owner: OwnerId, key: str) -> SnapshotRecord | None:
        """What a request of that name made."""
        ...

    async def page(self, *, owner: OwnerId | None, after: Position | None, limit: int) -> Sequence[SnapshotRecord]:
        """Those that are ready, by ``created_at`` and id, oldest first; None is everybody's."""
        ...

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """How many an owner has, those that are not ready included, and their bytes together."""
        ...

    async def of_node(self, node: NodeId) -> Sequence[SnapshotRecord]:
        """All that a node took, those that are not ready included."""
        ...

    async def remove(self, snapshot: SnapshotId, event: NewEvent | None = None) -> bool:
        """Drop one; whether it was there."""
        ...


class VolumeRepository(Protocol):
    """Volumes."""

    async def save(self, record: VolumeRecord, event: NewEvent | None = None) -> None:
        """Insert or replace by id, and tell of it.

        Raises:
            ConflictError: Another one of the same owner has its name.
        """
        ...

    async def of_node(self, node: NodeId) -> Sequence[VolumeRecord]:
        """All of a node, oldest first, those that are not ready included."""
        ...

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """How many an owner has, on any node, and their sizes together."""
        ...

    async def remove(self, volume: VolumeId, event: NewEvent | None = None) -> bool:
        """Drop one, and tell of it; whether it was there."""
        ...


class KeyRepository(Protocol):
    """API keys."""

    async def add(self, record: KeyRecord) -> None:
        """Insert one.

        Raises:
            ConflictError: One that is not revoked has its name.
        """
        ...

    async def revoke(self, name_or_id: str, at: datetime) -> KeyRecord | None:
        """Mark one as revoked; None where no valid one is called so."""
        ...

    async def all(self) -> Sequence[KeyRecord]:
        """Those that are not revoked, oldest first."""
        ...


class FileRepository(Protocol):
    """What is known of the files of the file store."""

    async def add(self, record: FileRecord) -> None:
        """Insert one."""
        ...

    async def get(self, file: FileId) -> FileRecord | None:
        """One."""
        ...

    async def page(self, *, owner: OwnerId | None, offset: int, limit: int) -> tuple[Sequence[FileRecord], int]:
        """Newest first, and how many there are in all, both as of one moment."""
        ...

    async def remove(self, file: FileId) -> bool:
        """Drop one; whether it was there."""
        ...

    async def ids(self) -> frozenset[FileId]:
        """All that there are; what has a blob and is not among them was never completed."""
        ...


class ExecutionRepository(Protocol):
    """The log of runs."""

    async def save(self, records: Sequence[ExecutionRecord]) -> None:
        """Insert or replace some by id, all or none."""
        ...

    async def get(self, execution: ExecutionId) -> ExecutionRecord | None:
        """One."""
        ...

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, before: Position | None, limit: int) -> Sequence[ExecutionRecord]:
        """Newest first, by ``created_at`` and id."""
        ...

    async def running(self, *, limit: int) -> Sequence[ExecutionRecord]:
        """Those whose status is ``running``, newest first."""
        ...

    async def forget(self, *, created_before: datetime) -> int:
        """Drop those from before then; how many."""
        ...

    async def trim(self, *, keep: int) -> int:
        """Drop the oldest, so that at most ``keep`` are left; how many were dropped."""
        ...

    async def counts(self, month: str) -> Mapping[OwnerId, int]:
        """Runs begun in a month (``2026-11``), by owner; kept apart from the log, so that retention does not lower them."""
        ...

    async def count(self, month: str, more: Mapping[OwnerId, int]) -> None:
        """Add to those numbers."""
        ...


class EventRepository(Protocol):
    """What happened."""

    async def add(self, events: Sequence[NewEvent]) -> None:
        """Append some, in this order."""
        ...

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, after: int, limit: int) -> Sequence[EventRecord]:
        """By sequence number, oldest first, those with a larger one than ``after``."""
        ...

    async def last(self) -> int:
        """The largest sequence number; 0 where nothing happened yet."""
        ...

    async def forget(self, *, before: datetime) -> int:
        """Drop those from before then; how many. Numbers are never used again."""
        ...

    async def trim(self, *, keep: int) -> int:
        """Drop the oldest, so that at most ``keep`` are left; how many were dropped."""
        ...


class Store(Protocol):
    """All tables of one store."""

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
        """Files of the file store."""
        ...

    @property
    def executions(self) -> ExecutionRepository:
        """The log of runs."""
        ...

    @property
    def events(self) -> EventRepository:
        """What happened."""
        ...

    @property
    def webhooks(self) -> WebhookRepository:
        """Who is told of it."""
        ...


class Blobs(Protocol):
    """Bytes by id, streamed both ways: no whole file is ever in memory."""

    async def write(self, file: FileId, chunks: AsyncIterable[bytes]) -> int:
        """Keep some; how many bytes they were. What breaks off leaves nothing that can be read."""
        ...

    def read(self, file: FileId) -> AsyncIterator[bytes]:
        """They, piece by piece.

        Raises:
            NotFoundError: There are none; at the first piece.
        """
        ...

    async def remove(self, file: FileId) -> None:
        """Drop them. Idempotent."""
        ...

    async def ids(self) -> frozenset[FileId]:
        """All that there are, half written ones excepted."""
        ...
