"""Store and blob store in memory, for tests. They keep their content when a test restarts the service, and a test can make operations fail.

Invariants:
- :class:`MemoryDatabase` contains all records. All stores that are opened on the same database, one after the other or at once, see the same records.
- An operation is one transaction: it is done completely in one iteration of the event loop, or not at all. If the caller is cancelled during an
  operation, CancelledError is raised after the operation is complete, as in the real store.
- A saved record is copied. The caller can therefore change the record without changing the stored record.

The content is lost when the process ends, and other processes cannot write to the store. The store therefore does not pass ``DurabilitySuite`` of
:mod:`sandlot.testing.stores`.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar

from sandlot.model.access import INTERNAL, OwnerId
from sandlot.model.agents import AgentEventRecord, AgentRecord, AgentSessionRecord, NewAgentEvent, SessionChange, SessionStatus
from sandlot.model.errors import ConflictError, ErrorCode, LimitError, NotFoundError
from sandlot.model.ids import AgentId, AgentSessionId, FileId, NodeId, SandboxId, SnapshotId, TemplateId, VolumeId, WebhookId
from sandlot.model.records import (
    DeliveryProgress,
    EventRecord,
    ExecutionId,
    ExecutionRecord,
    FileRecord,
    KeyChange,
    KeyRecord,
    NewEvent,
    SandboxRecord,
    SnapshotRecord,
    VolumeRecord,
    WebhookChange,
    WebhookRecord,
)
from sandlot.model.repositories import Position, Stored
from sandlot.model.states import State, is_terminal
from sandlot.model.templates import BuildLine, BuildRecord, BuildStatus, TemplateRecord

PIECE_BYTES = 256 * 1024
"""Largest number of bytes in one chunk of a blob that is read."""
_RUNNING = "running"

_T = TypeVar("_T")
_IdT = TypeVar("_IdT", bound=str)
_AnyT = TypeVar("_AnyT")


class Hold:
    """Handle of an operation that a test has blocked. Every call of the operation waits until the test calls :meth:`release`."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    async def reached(self) -> None:
        """Wait until a call of the operation is blocked."""
        await self._reached.wait()

    def release(self) -> None:
        """Let the blocked calls of the operation continue. Later calls are not blocked. Idempotent."""
        self._released.set()

    async def _pass(self) -> asyncio.CancelledError | None:
        """Wait for :meth:`release`, even if the caller is cancelled. Return the CancelledError; None if the caller was not cancelled."""
        self._reached.set()
        cancelled: asyncio.CancelledError | None = None
        while not self._released.is_set():
            try:
                await self._released.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled


class StoreFaults:
    """Exceptions and waits that a test sets up for the operations of a store.

    The name of an operation is repository and method, such as ``sandboxes.save``; for the blob store, for example ``blobs.write``.

    Attributes:
        disk_full: If a test sets this to True, every write fails, as with a full disk. Reads still succeed.
        operations: Name of an operation -> number of calls.
    """

    def __init__(self) -> None:
        self.disk_full = False
        self.operations: Counter[str] = Counter()
        self._errors: dict[str, list[Exception]] = {}
        self._holds: dict[str, Hold] = {}

    def fail_next(self, operation: str, *errors: Exception) -> None:
        """Make the next calls of an operation raise these errors, one error for each call. A call that fails changes nothing."""
        self._errors.setdefault(operation, []).extend(errors)

    def hold(self, operation: str) -> Hold:
        """Block all calls of an operation until the test releases the returned hold."""
        self._holds[operation] = hold = Hold()
        return hold

    async def enter(self, operation: str, full: Exception | None) -> asyncio.CancelledError | None:
        """Block, and then raise an error, if the test has set this up for an operation. Every operation calls this method first.

        Args:
            operation: Name of the operation, such as ``sandboxes.save``.
            full: Error to raise if ``disk_full`` is set; None for an operation that only reads.

        Returns:
            CancelledError that the operation must raise when its work is done; None if the caller was not cancelled.
        """
        self.operations[operation] += 1
        cancelled = await hold._pass() if (hold := self._holds.get(operation)) else None  # noqa: SLF001 - of this module
        if errors := self._errors.get(operation):
            raise errors.pop(0)
        if full is not None and self.disk_full:
            raise full
        return cancelled


@dataclass
class MemoryDatabase:
    """All records and blobs. They are kept when a store on this database is closed.

    Attributes:
        faults: Exceptions and waits that the test sets up for all stores and blob stores on this database.
        identity: Random id of the database, 16 hexadecimal digits.
        last_sequence: Sequence number of the last event that was appended, even if the event was deleted; 0 before the first event.
        execution_results: Execution id -> encoded results.
        execution_counts: Month, such as ``2026-11`` -> owner -> number of executions that began in this month.
        blobs: File id -> content of the stored file.
    """

    faults: StoreFaults = field(default_factory=StoreFaults)
    identity: str = field(default_factory=lambda: f"{secrets.randbits(63):016x}")
    sandboxes: dict[SandboxId, SandboxRecord] = field(default_factory=dict)
    snapshots: dict[SnapshotId, SnapshotRecord] = field(default_factory=dict)
    volumes: dict[VolumeId, VolumeRecord] = field(default_factory=dict)
    keys: dict[OwnerId, KeyRecord] = field(default_factory=dict)
    files: dict[FileId, FileRecord] = field(default_factory=dict)
    executions: dict[ExecutionId, ExecutionRecord] = field(default_factory=dict)
    execution_results: dict[ExecutionId, bytes] = field(default_factory=dict)
    execution_counts: dict[str, Counter[OwnerId]] = field(default_factory=dict)
    webhooks: dict[WebhookId, tuple[WebhookRecord, NodeId | None, datetime | None]] = field(default_factory=dict)
    """Webhook id -> record, node that has the lease, and end of the lease. Node and end are None if no node has had the lease."""
    agents: dict[AgentId, AgentRecord] = field(default_factory=dict)
    agent_sessions: dict[AgentSessionId, AgentSessionRecord] = field(default_factory=dict)
    agent_events: dict[AgentSessionId, list[AgentEventRecord]] = field(default_factory=dict)
    agent_messages: dict[AgentSessionId, list[str]] = field(default_factory=dict)
    templates: dict[TemplateId, TemplateRecord] = field(default_factory=dict)
    template_builds: dict[str, BuildRecord] = field(default_factory=dict)
    build_lines: dict[str, list[BuildLine]] = field(default_factory=dict)
    events: list[EventRecord] = field(default_factory=list)
    last_sequence: int = 0
    blobs: dict[FileId, bytes] = field(default_factory=dict)

    def append(self, events: Iterable[NewEvent | None]) -> None:
        """Append events, and give each event the next sequence number. Items that are None are skipped."""
        for event in events:
            if event is not None:
                self.last_sequence += 1
                self.events.append(EventRecord(self.last_sequence, replace(event, data=json.loads(json.dumps(dict(event.data))))))


class MemoryStore:
    """An open store. Implements :class:`sandlot.model.repositories.Store`.

    Use the store as an async context manager. A closed store refuses operations.

    Args:
        database: Database of the store; None: a new, empty database. Closing the store does not close the database.
    """

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database if database is not None else MemoryDatabase()
        self._session = session = _Session(self.database)
        self.sandboxes = MemorySandboxRepository(session)
        self.snapshots = MemorySnapshotRepository(session)
        self.volumes = MemoryVolumeRepository(session)
        self.keys = MemoryKeyRepository(session)
        self.files = MemoryFileRepository(session)
        self.executions = MemoryExecutionRepository(session)
        self.events = MemoryEventRepository(session)
        self.webhooks = MemoryWebhookRepository(session)
        self.agents = MemoryAgentRepository(session)
        self.templates = MemoryTemplateRepository(session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._session.is_open = False

    async def identity(self) -> str:
        """Return the random id of the database."""
        return self.database.identity


class _Session:
    """Runs the operations of one open store. The work of each operation happens in one iteration of the event loop."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database
        self.is_open = True

    async def read(self, operation: str, work: Callable[[MemoryDatabase], _T]) -> _T:
        return await self._run(operation, work, None)

    async def write(self, operation: str, work: Callable[[MemoryDatabase], _T]) -> _T:
        return await self._run(operation, work, _disk_full())

    async def _run(self, operation: str, work: Callable[[MemoryDatabase], _T], full: Exception | None) -> _T:
        if not self.is_open:
            raise RuntimeError(f"{operation} was called after the store was closed.")
        cancelled = await self.database.faults.enter(operation, full)
        result = work(self.database)
        if cancelled is not None:
            raise cancelled
        await asyncio.sleep(0)  # other tasks run before the caller gets the result, which may be out of date then, as with a real store
        return result


class MemorySandboxRepository:
    """Sandboxes. Implements :class:`sandlot.model.repositories.SandboxRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def save(self, record: SandboxRecord, event: NewEvent | None = None) -> None:
        """Insert a record or replace the record with the same id.

        Save nothing if the stored sandbox has ended, or if the stored sandbox is stopping and the new record is neither stopping nor ended.
        """

        def work(database: MemoryDatabase) -> None:
            before = database.sandboxes.get(record.id)
            ends = record.state is State.STOPPING or is_terminal(record.state)
            if before is not None and (is_terminal(before.state) or (before.state is State.STOPPING and not ends)):
                return
            if record.idempotency_key is not None and _of_request(database.sandboxes, record.owner, record.idempotency_key, besides=record.id):
                raise _conflict("There is a sandbox with this idempotency key already.", "Use another key for another request.")
            database.sandboxes[record.id] = _copied(record)
            database.append([event])

        await self._session.write("sandboxes.save", work)

    async def list_unfinished(self, node: NodeId) -> Sequence[SandboxRecord]:
        """Return all sandboxes of a node that have not ended, oldest first."""
        return await self._select("list_unfinished", lambda row: row.node == node and not is_terminal(row.state))

    async def list_last_ended(self, node: NodeId, *, limit: int) -> Sequence[SandboxRecord]:
        """Return at most ``limit`` sandboxes of a node: those that ended most recently, the latest first."""
        ended = await self._select("list_last_ended", lambda row: row.node == node and is_terminal(row.state) and row.ended_at is not None)
        return sorted(ended, key=lambda row: (row.ended_at, row.id), reverse=True)[:limit]

    async def get(self, sandbox: SandboxId) -> SandboxRecord | None:
        """Return the record of a sandbox; None if there is no record with this id."""
        return await self._session.read("sandboxes.get", lambda database: database.sandboxes.get(sandbox))

    async def get_by_idempotency_key(self, owner: OwnerId, key: str) -> SandboxRecord | None:
        """Return the sandbox that an owner created with an idempotency key; None if there is none."""
        return await self._session.read("sandboxes.get_by_idempotency_key", lambda database: _of_request(database.sandboxes, owner, key))

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
        """Return at most ``limit`` ended sandboxes that match all filters and follow the position ``after``, the oldest first."""

        def matches(row: SandboxRecord) -> bool:
            return (
                is_terminal(row.state)
                and (not states or row.state in states)
                and (row.owner != INTERNAL.owner if owner is None else row.owner == owner)
                and name in {None, row.name}
                and metadata.items() <= row.spec.metadata.items()
                and _is_after(row, after)
            )

        return (await self._select("list_ended", matches))[:limit]

    async def delete_ended(self, before: datetime) -> int:
        """Delete the sandboxes that ended before a time, and return their number."""

        def is_old(row: SandboxRecord) -> bool:
            return is_terminal(row.state) and row.ended_at is not None and row.ended_at < before

        return await self._session.write("sandboxes.delete_ended", lambda database: _remove(database.sandboxes, is_old))

    async def ended_totals(self) -> Mapping[OwnerId, Stored]:
        """For each owner that has ended sandboxes, return their number and the sum of their sizes in bytes."""
        return _totals_by_owner(await self._select("ended_totals", lambda row: row.ended_at is not None))

    async def trim_ended(self, owner: OwnerId, *, keep: Stored) -> int:
        """Delete the sandboxes of an owner that ended first until at most ``keep`` is left, and return the number of deleted records."""

        def work(database: MemoryDatabase) -> int:
            ended = [row for row in database.sandboxes.values() if row.owner == owner and row.ended_at is not None]
            newest = sorted(ended, key=lambda row: (row.ended_at, row.id), reverse=True)
            old = {row.id for row in newest} - {row.id for row in _within(newest, keep)}
            return _remove(database.sandboxes, lambda row: row.id in old)

        return await self._session.write("sandboxes.trim_ended", work)

    async def _select(self, method: str, matches: Callable[[SandboxRecord], bool]) -> list[SandboxRecord]:
        return await self._session.read(f"sandboxes.{method}", lambda database: _sorted(filter(matches, database.sandboxes.values())))


class MemorySnapshotRepository:
    """Snapshots. Implements :class:`sandlot.model.repositories.SnapshotRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def save(self, record: SnapshotRecord, event: NewEvent | None = None) -> None:
        """Insert a record, or replace the record with the same id."""
        await self._session.write("snapshots.save", lambda database: self._put(database, record, event))

    async def update(self, record: SnapshotRecord, event: NewEvent | None = None) -> bool:
        """Replace the record of an existing snapshot. Return False, and save nothing, if there is no snapshot with this id."""
        return await self._session.write("snapshots.update", lambda database: record.id in database.snapshots and self._put(database, record, event))

    async def get(self, snapshot: SnapshotId) -> SnapshotRecord | None:
        """Return the record of a snapshot; None if there is no record with this id."""
        return await self._session.read("snapshots.get", lambda database: database.snapshots.get(snapshot))

    async def get_by_name(self, owner: OwnerId, name: str) -> SnapshotRecord | None:
        """Return an owner's snapshot with this name; None if there is none."""
        return await self._session.read("snapshots.get_by_name", lambda database: _of_name(database.snapshots, owner, name))

    async def get_by_idempotency_key(self, owner: OwnerId, key: str) -> SnapshotRecord | None:
        """Return the snapshot that an owner created with an idempotency key; None if there is none."""
        return await self._session.read("snapshots.get_by_idempotency_key", lambda database: _of_request(database.snapshots, owner, key))

    async def page(self, *, owner: OwnerId | None, after: Position | None, limit: int) -> Sequence[SnapshotRecord]:
        """Return at most ``limit`` ready snapshots after the position ``after``, oldest first. If ``owner`` is None, return those of all users."""

        def matches(row: SnapshotRecord) -> bool:
            return row.ready and (row.owner != INTERNAL.owner if owner is None else row.owner == owner) and _is_after(row, after)

        return await self._session.read("snapshots.page", lambda database: _sorted(filter(matches, database.snapshots.values()))[:limit])

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's snapshots and the sum of their sizes in bytes."""
        return await self._session.read("snapshots.totals", lambda database: _totals(database.snapshots, owner))

    async def list_by_node(self, node: NodeId) -> Sequence[SnapshotRecord]:
        """Return all snapshots of a node, oldest first."""
        return await self._session.read("snapshots.list_by_node", lambda database: _of_node(database.snapshots, node))

    async def remove(self, snapshot: SnapshotId, event: NewEvent | None = None) -> bool:
        """Remove one snapshot. Return False if there is no snapshot with this id."""

        def work(database: MemoryDatabase) -> bool:
            if existed := database.snapshots.pop(snapshot, None) is not None:
                database.append([event])
            return existed

        return await self._session.write("snapshots.remove", work)

    @staticmethod
    def _put(database: MemoryDatabase, record: SnapshotRecord, event: NewEvent | None) -> bool:
        named = record.name is not None and _of_name(database.snapshots, record.owner, record.name, besides=record.id)
        requested = record.idempotency_key is not None and _of_request(database.snapshots, record.owner, record.idempotency_key, besides=record.id)
        if named or requested:
            raise _conflict(
                "There is a snapshot with this name or idempotency key already.", "Choose another name, or delete the other snapshot first."
            )
        database.snapshots[record.id] = _copied(record)
        database.append([event])
        return True


class MemoryVolumeRepository:
    """Volumes. Implements :class:`sandlot.model.repositories.VolumeRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def save(self, record: VolumeRecord, event: NewEvent | None = None) -> None:
        """Insert a record, or replace the record with the same id."""

        def work(database: MemoryDatabase) -> None:
            if _of_name(database.volumes, record.owner, record.name, besides=record.id):
                raise _conflict("There is a volume with this name already.", "Choose another name, or delete the other volume first.")
            database.volumes[record.id] = record
            database.append([event])

        await self._session.write("volumes.save", work)

    async def list_by_node(self, node: NodeId) -> Sequence[VolumeRecord]:
        """Return all volumes of a node, oldest first."""
        return await self._session.read("volumes.list_by_node", lambda database: _of_node(database.volumes, node))

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's volumes and the sum of their sizes in bytes."""
        return await self._session.read("volumes.totals", lambda database: _totals(database.volumes, owner))

    async def remove(self, volume: VolumeId, event: NewEvent | None = None) -> bool:
        """Remove one volume. Return False if there is no volume with this id."""

        def work(database: MemoryDatabase) -> bool:
            if existed := database.volumes.pop(volume, None) is not None:
                database.append([event])
            return existed

        return await self._session.write("volumes.remove", work)


class MemoryKeyRepository:
    """API keys. Implements :class:`sandlot.model.repositories.KeyRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def add(self, record: KeyRecord) -> None:
        """Insert the record of a new key."""

        def work(database: MemoryDatabase) -> None:
            if record.id in database.keys:
                raise _conflict(f"There is a key with the id {record.id!r} already.", "Create another key.")
            _save_key(database, record)

        await self._session.write("keys.add", work)

    async def revoke(self, name_or_id: str, at: datetime) -> KeyRecord | None:
        """Revoke the key with this id or, if there is none, the key with this name. Return the key's new record, or None."""

        def work(database: MemoryDatabase) -> KeyRecord | None:
            chosen = _find_key(database, name_or_id)
            return None if chosen is None else _save_key(database, replace(chosen, revoked_at=at))

        return await self._session.write("keys.revoke", work)

    async def update(self, name_or_id: str, change: KeyChange) -> KeyRecord | None:
        """Change the key with this id or, if there is none, the key with this name. Return the key's new record, or None."""

        def work(database: MemoryDatabase) -> KeyRecord | None:
            chosen = _find_key(database, name_or_id)
            return None if chosen is None else _save_key(database, change.apply(chosen))

        return await self._session.write("keys.update", work)

    async def list(self) -> Sequence[KeyRecord]:
        """Return all keys that are not revoked, oldest first."""
        return await self._session.read("keys.list", lambda database: _sorted(key for key in database.keys.values() if key.revoked_at is None))


def _find_key(database: MemoryDatabase, name_or_id: str) -> KeyRecord | None:
    matching = [key for key in database.keys.values() if key.revoked_at is None and name_or_id in {key.id, key.name}]
    return next((key for key in matching if key.id == name_or_id), next(iter(matching), None))


def _save_key(database: MemoryDatabase, record: KeyRecord) -> KeyRecord:
    others = (key for key in database.keys.values() if key.id != record.id and key.revoked_at is None)
    if record.revoked_at is None and any(key.name == record.name for key in others):
        raise _conflict(f"There is a key of the name {record.name!r} already.", "Choose another name, or revoke the other key first.")
    database.keys[record.id] = record
    return record


class MemoryFileRepository:
    """Stored files, without their contents. Implements :class:`sandlot.model.repositories.FileRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def add(self, record: FileRecord) -> None:
        """Insert the record of a new file."""
        await self._session.write("files.add", lambda database: database.files.update({record.id: record}))

    async def get(self, file: FileId) -> FileRecord | None:
        """Return the record of a file; None if there is no record with this id."""
        return await self._session.read("files.get", lambda database: database.files.get(file))

    async def page(self, *, owner: OwnerId | None, before: Position | None, limit: int) -> Sequence[FileRecord]:
        """Return at most ``limit`` files before the position ``before``, newest first. If ``owner`` is None, return those of all owners."""

        def work(database: MemoryDatabase) -> Sequence[FileRecord]:
            position = None if before is None else (before.at, before.id)
            found = _sorted(file for file in database.files.values() if owner in {None, file.owner})[::-1]
            return [file for file in found if position is None or (file.created_at, file.id) < position][:limit]

        return await self._session.read("files.page", work)

    async def page_by_offset(self, *, owner: OwnerId | None, offset: int, limit: int) -> tuple[Sequence[FileRecord], int]:
        """Return at most ``limit`` files of the owner, newest first, and the number of all files. If ``owner`` is None, include all owners."""

        def work(database: MemoryDatabase) -> tuple[Sequence[FileRecord], int]:
            found = _sorted(file for file in database.files.values() if owner in {None, file.owner})[::-1]
            return found[offset : offset + limit], len(found)

        return await self._session.read("files.page_by_offset", work)

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's files and the sum of their sizes in bytes."""

        def work(database: MemoryDatabase) -> tuple[int, int]:
            sizes = [file.size_bytes for file in database.files.values() if file.owner == owner]
            return len(sizes), sum(sizes)

        return await self._session.read("files.totals", work)

    async def remove(self, file: FileId) -> bool:
        """Remove the record of one file. Return False if there is no record with this id."""
        return await self._session.write("files.remove", lambda database: database.files.pop(file, None) is not None)

    async def ids(self) -> frozenset[FileId]:
        """Return the ids of all files that have a record."""
        return await self._session.read("files.ids", lambda database: frozenset(database.files))


class MemoryExecutionRepository:
    """The execution log. Implements :class:`sandlot.model.repositories.ExecutionRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def save(self, records: Sequence[ExecutionRecord], results: Mapping[ExecutionId, bytes] = MappingProxyType({})) -> None:
        """Insert records, and replace records that have the same ids. ``results`` maps ids of records to their encoded results."""

        def work(database: MemoryDatabase) -> None:
            database.executions.update({record.id: record for record in records})
            database.execution_results.update(results)

        await self._session.write("executions.save", work)

    async def results(self, execution: ExecutionId) -> bytes | None:
        """Return the encoded results that were saved with a record; None if there are none."""
        return await self._session.read("executions.results", lambda database: database.execution_results.get(execution))

    async def get(self, execution: ExecutionId) -> ExecutionRecord | None:
        """Return the record of an execution; None if there is no record with this id."""
        return await self._session.read("executions.get", lambda database: database.executions.get(execution))

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, before: Position | None, limit: int) -> Sequence[ExecutionRecord]:
        """Return at most ``limit`` executions before the position ``before``, newest first. If ``owner`` is None, return those of all owners."""

        def matches(row: ExecutionRecord) -> bool:
            position = None if before is None else (before.at, before.id)
            return owner in {None, row.owner} and sandbox in {None, row.sandbox} and (position is None or _position(row) < position)

        return await self._session.read("executions.page", lambda database: _newest(filter(matches, database.executions.values()), limit))

    async def list_running(self, *, limit: int) -> Sequence[ExecutionRecord]:
        """Return at most ``limit`` executions that have not ended, the newest first."""
        return await self._session.read(
            "executions.list_running", lambda database: _newest((row for row in database.executions.values() if row.status == _RUNNING), limit)
        )

    async def delete_before(self, before: datetime) -> int:
        """Delete the executions that began before a time, and return their number."""
        return await self._session.write(
            "executions.delete_before", lambda database: _remove_executions(database, lambda row: row.created_at < before)
        )

    async def totals(self, *, owner: OwnerId | None = None) -> Mapping[OwnerId, Stored]:
        """For each owner, return the number of records and the sum of their sizes in bytes. If ``owner`` is not None, only for this owner."""

        def work(database: MemoryDatabase) -> Mapping[OwnerId, Stored]:
            return _totals_by_owner(row for row in database.executions.values() if owner in {None, row.owner})

        return await self._session.read("executions.totals", work)

    async def trim(self, owner: OwnerId, *, keep: Stored) -> int:
        """Delete the oldest records of an owner until at most ``keep.rows`` records with ``keep.bytes`` bytes are left."""

        def work(database: MemoryDatabase) -> int:
            newest = _newest((row for row in database.executions.values() if row.owner == owner), keep.rows)
            kept = {row.id for row in _within(newest, keep)}
            return _remove_executions(database, lambda row: row.owner == owner and row.id not in kept)

        return await self._session.write("executions.trim", work)

    async def monthly_counts(self, month: str) -> Mapping[OwnerId, int]:
        """For each owner, return the number of executions that began in the given month, such as ``2026-11``."""
        return await self._session.read("executions.monthly_counts", lambda database: dict(database.execution_counts.get(month, {})))

    async def add_monthly_counts(self, month: str, more: Mapping[OwnerId, int]) -> None:
        """Increase the number of executions of each owner in a month. ``more`` is owner -> number to add."""
        await self._session.write(
            "executions.add_monthly_counts", lambda database: database.execution_counts.setdefault(month, Counter()).update(more)
        )


class MemoryEventRepository:
    """Events. Implements :class:`sandlot.model.repositories.EventRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def add(self, events: Sequence[NewEvent]) -> None:
        """Append events in the given order."""
        await self._session.write("events.add", lambda database: database.append(events))

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, after: int, limit: int) -> Sequence[EventRecord]:
        """Return at most ``limit`` events whose sequence number is larger than ``after``, the oldest first."""

        def work(database: MemoryDatabase) -> list[EventRecord]:
            begin = bisect.bisect_right(database.events, after, key=lambda row: row.sequence)
            if owner is None and sandbox is None:
                return database.events[begin : begin + limit]
            found = (row for row in database.events[begin:] if owner in {None, row.event.owner} and sandbox in {None, row.event.sandbox})
            return [row for row, _ in zip(found, range(limit), strict=False)]

        return await self._session.read("events.page", work)

    async def last_sequence(self) -> int:
        """Return the sequence number of the last event that was appended, even if the event was deleted; 0 if there was none."""
        return await self._session.read("events.last_sequence", lambda database: database.last_sequence)

    async def delete_before(self, before: datetime) -> int:
        """Delete the events that occurred before a time, and return their number."""
        return await self._keep("delete_before", lambda events: [row for row in events if row.event.at >= before])

    async def counts(self) -> Mapping[OwnerId, int]:
        """For each owner that has events, return their number."""
        return await self._session.read("events.counts", lambda database: Counter(row.event.owner for row in database.events))

    async def trim(self, owner: OwnerId, *, keep: int) -> int:
        """Delete all events of an owner except the newest ``keep`` events, and return the number of deleted events."""

        def kept(events: list[EventRecord]) -> list[EventRecord]:
            own = [row.sequence for row in events if row.event.owner == owner]
            old = set(own[: max(0, len(own) - keep)])
            return [row for row in events if row.sequence not in old]

        return await self._keep("trim", kept)

    async def _keep(self, method: str, kept: Callable[[list[EventRecord]], list[EventRecord]]) -> int:
        def work(database: MemoryDatabase) -> int:
            before = len(database.events)
            database.events = kept(database.events)
            return before - len(database.events)

        return await self._session.write(f"events.{method}", work)


class MemoryAgentRepository:
    """Agents and their sessions. Implements :class:`sandlot.model.repositories.AgentRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def add_agent(self, record: AgentRecord, *, max_per_owner: int) -> bool:
        """Insert an agent, unless its owner has ``max_per_owner`` agents already. Return whether the agent was inserted."""
        return await self._session.write("agents.add_agent", lambda database: _add_up_to(database.agents, record, max_per_owner))

    async def get_agent(self, agent: AgentId) -> AgentRecord | None:
        """Return an agent; None if there is no agent with this id."""
        return await self._session.read("agents.get_agent", lambda database: database.agents.get(agent))

    async def list_agents(self, *, owner: OwnerId | None, archived: bool, before: Position | None, limit: int) -> Sequence[AgentRecord]:
        """Return a page of agents, the newest first."""

        def work(database: MemoryDatabase) -> list[AgentRecord]:
            found = (row for row in database.agents.values() if owner in {None, row.owner} and (archived or row.archived_at is None))
            return _newest((row for row in found if before is None or _position(row) < (before.at, before.id)), limit)

        return await self._session.read("agents.list_agents", work)

    async def replace_agent(self, record: AgentRecord, *, version: int) -> bool:
        """Replace an agent if its stored version is ``version``. Return whether the agent was replaced."""

        def work(database: MemoryDatabase) -> bool:
            stored = database.agents.get(record.id)
            if stored is None or stored.version != version:
                return False
            database.agents[record.id] = record
            return True

        return await self._session.write("agents.replace_agent", work)

    async def remove_agent(self, agent: AgentId) -> bool:
        """Delete an agent. Return whether the agent existed."""
        return await self._session.write("agents.remove_agent", lambda database: database.agents.pop(agent, None) is not None)

    async def add_session(self, record: AgentSessionRecord, *, max_per_owner: int) -> bool:
        """Insert a session, unless its owner has ``max_per_owner`` sessions already. Return whether the session was inserted."""
        return await self._session.write("agents.add_session", lambda database: _add_up_to(database.agent_sessions, record, max_per_owner))

    async def get_session(self, session: AgentSessionId) -> AgentSessionRecord | None:
        """Return a session; None if there is no session with this id."""
        return await self._session.read("agents.get_session", lambda database: database.agent_sessions.get(session))

    async def list_sessions(
        self, *, owner: OwnerId | None, agent: AgentId | None, archived: bool = True, before: Position | None, limit: int
    ) -> Sequence[AgentSessionRecord]:
        """Return a page of sessions, the newest first."""

        def work(database: MemoryDatabase) -> list[AgentSessionRecord]:
            found = [row for row in database.agent_sessions.values() if owner in {None, row.owner} and agent in {None, row.agent}]
            listed = (row for row in found if archived or row.status is not SessionStatus.TERMINATED)
            return _newest((row for row in listed if before is None or _position(row) < (before.at, before.id)), limit)

        return await self._session.read("agents.list_sessions", work)

    async def list_unused_sessions(self, *, before: datetime, limit: int) -> Sequence[AgentSessionRecord]:
        """Return sessions without an active run whose ``updated_at`` is earlier than ``before``, the longest unused first."""

        def work(database: MemoryDatabase) -> list[AgentSessionRecord]:
            found = (row for row in database.agent_sessions.values() if row.updated_at < before and row.status is not SessionStatus.RUNNING)
            return sorted(found, key=lambda row: row.updated_at)[:limit]

        return await self._session.read("agents.list_unused_sessions", work)

    async def list_running_sessions(self, node: NodeId) -> Sequence[AgentSessionRecord]:
        """Return the sessions whose run is active on a node."""
        return await self._session.read(
            "agents.list_running_sessions", lambda database: [row for row in database.agent_sessions.values() if row.node == node]
        )

    async def begin_run(
        self, session: AgentSessionId, node: NodeId, events: Sequence[NewAgentEvent], *, messages: Sequence[str] = ()
    ) -> AgentSessionRecord | None:
        """Change the status of an idle session to ``running`` and add events and messages. Return None if it is not idle."""

        def work(database: MemoryDatabase) -> AgentSessionRecord | None:
            stored = database.agent_sessions.get(session)
            if stored is None or stored.status is not SessionStatus.IDLE:
                return None
            database.agent_messages.setdefault(session, []).extend(messages)
            return _append(database, replace(stored, status=SessionStatus.RUNNING, node=node), events)

        return await self._session.write("agents.begin_run", work)

    async def append(
        self, session: AgentSessionId, events: Sequence[NewAgentEvent], *, messages: Sequence[str] = (), change: SessionChange | None = None
    ) -> AgentSessionRecord | None:
        """Add events and messages to a session and change the session. Return None if the session does not exist."""

        def work(database: MemoryDatabase) -> AgentSessionRecord | None:
            stored = database.agent_sessions.get(session)
            if stored is None:
                return None
            values = {} if change is None else {each.name: value for each in fields(change) if (value := getattr(change, each.name)) is not None}
            if values.get("status", SessionStatus.RUNNING) is not SessionStatus.RUNNING:
                values["node"] = None
            database.agent_messages.setdefault(session, []).extend(messages)
            return _append(database, replace(stored, **values), events)

        return await self._session.write("agents.append", work)

    async def list_events(self, session: AgentSessionId, *, after: int, limit: int) -> Sequence[AgentEventRecord]:
        """Return the events of a session after a sequence number, in their order."""
        return await self._session.read("agents.list_events", lambda database: database.agent_events.get(session, [])[after:][:limit])

    async def list_messages(self, session: AgentSessionId) -> Sequence[str]:
        """Return the messages of the conversation of a session in their order."""
        return await self._session.read("agents.list_messages", lambda database: list(database.agent_messages.get(session, [])))

    async def remove_session(self, session: AgentSessionId) -> bool:
        """Delete a session with its events and messages. Return whether the session existed."""

        def work(database: MemoryDatabase) -> bool:
            database.agent_events.pop(session, None)
            database.agent_messages.pop(session, None)
            return database.agent_sessions.pop(session, None) is not None

        return await self._session.write("agents.remove_session", work)


class MemoryTemplateRepository:
    """Templates of users and their builds. Implements :class:`sandlot.model.repositories.TemplateRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def add(self, record: TemplateRecord) -> None:
        """Insert a template.

        Raises:
            ConflictError: The owner has another template of this name.
        """

        def work(database: MemoryDatabase) -> None:
            if any((row.owner, row.name) == (record.owner, record.name) for row in database.templates.values()):
                raise _conflict("A template with this name exists already.", "Build the existing template again, or choose another name.")
            database.templates[record.id] = record

        await self._session.write("templates.add", work)

    async def get(self, template: TemplateId) -> TemplateRecord | None:
        """Return a template; None if there is no template with this id."""
        return await self._session.read("templates.get", lambda database: database.templates.get(template))

    async def find(self, owner: OwnerId, name: str) -> TemplateRecord | None:
        """Return the template of an owner by its name; None if there is none."""

        def work(database: MemoryDatabase) -> TemplateRecord | None:
            return next((row for row in database.templates.values() if (row.owner, row.name) == (owner, name)), None)

        return await self._session.read("templates.find", work)

    async def list(self, *, owner: OwnerId | None, before: Position | None, limit: int) -> Sequence[TemplateRecord]:
        """Return a page of templates, the newest first."""

        def work(database: MemoryDatabase) -> list[TemplateRecord]:
            found = (row for row in database.templates.values() if owner in {None, row.owner})
            return _newest((row for row in found if before is None or _position(row) < (before.at, before.id)), limit)

        return await self._session.read("templates.list", work)

    async def change_tags(self, template: TemplateId, tags: Mapping[str, str | None], *, at: datetime) -> TemplateRecord | None:
        """Set and remove tags of a template. Return the changed template; None if there is no template with this id."""

        def work(database: MemoryDatabase) -> TemplateRecord | None:
            return _change_template(database, template, tags, {"updated_at": at})

        return await self._session.write("templates.change_tags", work)

    async def remove(self, template: TemplateId) -> bool:
        """Delete a template with its builds and their logs. Return whether the template existed."""

        def work(database: MemoryDatabase) -> bool:
            for build in [row.id for row in database.template_builds.values() if row.template == template]:
                del database.template_builds[build]
                database.build_lines.pop(build, None)
            return database.templates.pop(template, None) is not None

        return await self._session.write("templates.remove", work)

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's templates, and the size of the root file systems of all their builds in bytes."""

        def work(database: MemoryDatabase) -> tuple[int, int]:
            number = sum(row.owner == owner for row in database.templates.values())
            return number, sum(row.size_bytes for row in database.template_builds.values() if row.owner == owner)

        return await self._session.read("templates.totals", work)

    async def add_build(self, record: BuildRecord) -> bool:
        """Insert a build. Return False, and insert nothing, if its template does not exist."""

        def work(database: MemoryDatabase) -> bool:
            if record.template not in database.templates:
                return False
            database.template_builds[record.id] = record
            return True

        return await self._session.write("templates.add_build", work)

    async def get_build(self, build: str) -> BuildRecord | None:
        """Return a build; None if there is no build with this id."""
        return await self._session.read("templates.get_build", lambda database: database.template_builds.get(build))

    async def list_builds(
        self, *, owner: OwnerId | None, template: TemplateId | None = None, before: Position | None = None, limit: int
    ) -> Sequence[BuildRecord]:
        """Return a page of builds, the newest first."""

        def work(database: MemoryDatabase) -> Sequence[BuildRecord]:
            found = (row for row in database.template_builds.values() if owner in {None, row.owner} and template in {None, row.template})
            return _newest((row for row in found if before is None or _position(row) < (before.at, before.id)), limit)

        return await self._session.read("templates.list_builds", work)

    async def list_open_builds(self, node: NodeId) -> Sequence[BuildRecord]:
        """Return the builds of a node that have not ended, the oldest first."""

        def work(database: MemoryDatabase) -> Sequence[BuildRecord]:
            return _sorted(row for row in database.template_builds.values() if row.node == node and not row.status.has_ended)

        return await self._session.read("templates.list_open_builds", work)

    async def list_ready_builds(self, node: NodeId) -> Sequence[BuildRecord]:
        """Return the builds of a node that are ready, the oldest first."""

        def work(database: MemoryDatabase) -> Sequence[BuildRecord]:
            return _sorted(row for row in database.template_builds.values() if row.node == node and row.status is BuildStatus.READY)

        return await self._session.read("templates.list_ready_builds", work)

    async def save_build(self, record: BuildRecord) -> bool:
        """Replace a build that has not ended. A ready build gives its template its limits and tags. Return False if nothing was replaced."""

        def work(database: MemoryDatabase) -> bool:
            stored = database.template_builds.get(record.id)
            if stored is None or stored.status.has_ended:
                return False
            database.template_builds[record.id] = record
            if record.status is BuildStatus.READY:
                values = {"limits": record.limits, "updated_at": record.ended_at}
                _change_template(database, record.template, dict.fromkeys(record.tags, record.id), values)
            return True

        return await self._session.write("templates.save_build", work)

    async def remove_build(self, build: str) -> bool:
        """Delete a build with its log. Return whether the build existed."""

        def work(database: MemoryDatabase) -> bool:
            database.build_lines.pop(build, None)
            return database.template_builds.pop(build, None) is not None

        return await self._session.write("templates.remove_build", work)

    async def add_lines(self, build: str, lines: Sequence[BuildLine]) -> bool:
        """Add lines to the log of a build. Return False, and add nothing, if the build does not exist."""

        def work(database: MemoryDatabase) -> bool:
            if build not in database.template_builds:
                return False
            stored = database.build_lines.setdefault(build, [])
            stored.extend(replace(line, number=number) for number, line in enumerate(lines, len(stored) + 1))
            return True

        return await self._session.write("templates.add_lines", work)

    async def list_lines(self, build: str, *, after: int, limit: int) -> Sequence[BuildLine]:
        """Return lines of the log of a build after a number, in their order."""
        return await self._session.read("templates.list_lines", lambda database: database.build_lines.get(build, [])[after:][:limit])


class MemoryWebhookRepository:
    """Webhooks. Implements :class:`sandlot.model.repositories.WebhookRepository`."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def add(self, record: WebhookRecord, *, max_per_owner: int) -> bool:
        """Insert a webhook, unless its owner has ``max_per_owner`` webhooks already. Return whether the webhook was inserted."""

        def work(database: MemoryDatabase) -> bool:
            if sum(row.owner == record.owner for row, *_ in database.webhooks.values()) >= max_per_owner:
                return False
            database.webhooks[record.id] = record, None, None
            return True

        return await self._session.write("webhooks.add", work)

    async def get(self, webhook: WebhookId) -> WebhookRecord | None:
        """Return the record of a webhook; None if there is no record with this id."""
        return await self._session.read("webhooks.get", lambda database: row[0] if (row := database.webhooks.get(webhook)) else None)

    async def list(self, owner: OwnerId | None) -> Sequence[WebhookRecord]:
        """Return all webhooks of an owner, the oldest first. If ``owner`` is None, return the webhooks of all owners."""
        return await self._session.read(
            "webhooks.list", lambda database: _sorted(row for row, *_ in database.webhooks.values() if owner in {None, row.owner})
        )

    async def update(self, webhook: WebhookId, change: WebhookChange) -> WebhookRecord | None:
        """Change a webhook and return its new record; None if there is no webhook with this id. A new URL resets the number of failed attempts."""

        def work(database: MemoryDatabase) -> WebhookRecord | None:
            if (row := database.webhooks.get(webhook)) is None:
                return None
            record, leased_by, leased_until = row
            values = {each.name: value for each in fields(change) if (value := getattr(change, each.name)) is not None}
            if change.url is not None:
                values["progress"] = replace(record.progress, failed_attempts=0, next_attempt_at=None)
            changed = replace(record, **values)
            database.webhooks[webhook] = changed, leased_by, leased_until
            return changed

        return await self._session.write("webhooks.update", work)

    async def lease(self, webhook: WebhookId, node: NodeId, *, now: datetime, until: datetime) -> WebhookRecord | None:
        """Lease a webhook to a node and return the webhook. Return None if another node's lease has not ended or the webhook does not exist."""

        def work(database: MemoryDatabase) -> WebhookRecord | None:
            if (row := database.webhooks.get(webhook)) is None:
                return None
            record, leased_by, leased_until = row
            if leased_by not in {None, node} and leased_until is not None and leased_until > now:
                return None
            database.webhooks[webhook] = record, node, until
            return record

        return await self._session.write("webhooks.lease", work)

    async def save_progress(self, webhook: WebhookId, node: NodeId, progress: DeliveryProgress) -> bool:
        """Save the delivery progress of a webhook. Return False, and save nothing, if ``node`` did not get the last lease of the webhook."""

        def work(database: MemoryDatabase) -> bool:
            if (row := database.webhooks.get(webhook)) is None:
                return False
            record, leased_by, leased_until = row
            if leased_by != node:
                return False
            database.webhooks[webhook] = replace(record, progress=progress), leased_by, leased_until
            return True

        return await self._session.write("webhooks.save_progress", work)

    async def remove(self, webhook: WebhookId) -> bool:
        """Remove one webhook. Return False if there is no webhook with this id."""
        return await self._session.write("webhooks.remove", lambda database: database.webhooks.pop(webhook, None) is not None)


class MemoryBlobs:
    """Contents of stored files. Implements :class:`sandlot.model.repositories.Blobs`.

    Args:
        database: Database that contains the blobs; None: a new, empty database.
    """

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database if database is not None else MemoryDatabase()

    async def write(self, file: FileId, chunks: AsyncIterable[bytes]) -> int:
        """Store the content of a file, and return its size in bytes."""
        await self._enter("blobs.write", LimitError("The disk for stored files is full.", code=ErrorCode.NODE_DISK_FULL))
        contents = b"".join([chunk async for chunk in chunks])
        self.database.blobs[file] = contents
        return len(contents)

    async def read(self, file: FileId) -> AsyncIterator[bytes]:
        """Yield the content of a file in chunks."""
        await self._enter("blobs.read")
        contents = self.database.blobs.get(file)
        if contents is None:
            raise NotFoundError(f"The blob store has no content of file {file}.", code=ErrorCode.FILE_NOT_FOUND)
        for begin in range(0, len(contents), PIECE_BYTES):
            yield contents[begin : begin + PIECE_BYTES]

    async def remove(self, file: FileId) -> None:
        """Remove the content of a file. Idempotent."""
        await self._enter("blobs.remove")
        self.database.blobs.pop(file, None)

    async def ids(self) -> frozenset[FileId]:
        """Return the ids of all files whose content is stored."""
        await self._enter("blobs.ids")
        return frozenset(self.database.blobs)

    async def _enter(self, operation: str, full: Exception | None = None) -> None:
        if (cancelled := await self.database.faults.enter(operation, full)) is not None:
            raise cancelled


# -- types of stored records, and functions that select records ------------------------------------------------------


class _Row(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> datetime: ...


class _OwnedRow(_Row, Protocol):
    @property
    def owner(self) -> OwnerId: ...


class _SizedRow(_OwnedRow, Protocol):
    @property
    def node(self) -> NodeId: ...
    @property
    def name(self) -> str | None: ...
    @property
    def size_bytes(self) -> int: ...


class _RequestedRow(_OwnedRow, Protocol):
    @property
    def idempotency_key(self) -> str | None: ...


class _KeptRow(Protocol):
    @property
    def owner(self) -> OwnerId: ...
    @property
    def size_bytes(self) -> int: ...


_RowT = TypeVar("_RowT", bound=_Row)
_KeptT = TypeVar("_KeptT", bound=_KeptRow)
_SizedT = TypeVar("_SizedT", bound=_SizedRow)
_RequestedT = TypeVar("_RequestedT", bound=_RequestedRow)
_SpecT = TypeVar("_SpecT", SandboxRecord, SnapshotRecord)


def _copied(record: _SpecT) -> _SpecT:
    return replace(record, spec=replace(record.spec, env=dict(record.spec.env), metadata=dict(record.spec.metadata)))


def _position(row: _Row) -> tuple[datetime, str]:
    return row.created_at, row.id


def _is_after(row: _Row, position: Position | None) -> bool:
    return position is None or _position(row) > (position.at, position.id)


def _sorted(rows: Iterable[_RowT]) -> list[_RowT]:
    return sorted(rows, key=_position)


def _newest(rows: Iterable[_RowT], limit: int) -> list[_RowT]:
    return sorted(rows, key=_position, reverse=True)[:limit]


def _add_up_to(rows: dict[Any, Any], record: AgentRecord | AgentSessionRecord, max_per_owner: int) -> bool:
    if sum(row.owner == record.owner for row in rows.values()) >= max_per_owner:
        return False
    rows[record.id] = record
    return True


def _append(database: MemoryDatabase, record: AgentSessionRecord, events: Sequence[NewAgentEvent]) -> AgentSessionRecord:
    stored = database.agent_events.setdefault(record.id, [])
    for event in events:
        stored.append(AgentEventRecord(record.id, len(stored) + 1, event.id, event.type, event.at, event.data))
    updated_at = events[-1].at if events else record.updated_at
    database.agent_sessions[record.id] = changed = replace(record, last_sequence=len(stored), updated_at=updated_at)
    return changed


def _change_template(
    database: MemoryDatabase, template: TemplateId, tags: Mapping[str, str | None], values: Mapping[str, Any]
) -> TemplateRecord | None:
    stored = database.templates.get(template)
    if stored is None:
        return None
    merged = {tag: build for tag, build in {**stored.tags, **tags}.items() if build is not None}
    database.templates[template] = changed = replace(stored, tags=merged, **values)
    return changed


def _totals_by_owner(rows: Iterable[_KeptRow]) -> dict[OwnerId, Stored]:
    sizes: dict[OwnerId, list[int]] = {}
    for row in rows:
        sizes.setdefault(row.owner, []).append(row.size_bytes)
    return {owner: Stored(len(of), sum(of)) for owner, of in sizes.items()}


def _within(newest: Iterable[_KeptT], keep: Stored) -> list[_KeptT]:
    """Return the first rows up to an amount."""
    kept: list[_KeptT] = []
    left_bytes = keep.bytes
    for row in newest:
        left_bytes -= row.size_bytes
        if len(kept) == keep.rows or left_bytes < 0:
            break
        kept.append(row)
    return kept


def _remove(rows: dict[_IdT, _AnyT], is_removed: Callable[[_AnyT], bool]) -> int:
    removed = [id_ for id_, row in rows.items() if is_removed(row)]
    for id_ in removed:
        del rows[id_]
    return len(removed)


def _remove_executions(database: MemoryDatabase, is_removed: Callable[[ExecutionRecord], bool]) -> int:
    count = _remove(database.executions, is_removed)
    for id_ in database.execution_results.keys() - database.executions.keys():
        del database.execution_results[id_]
    return count


def _of_node(rows: Mapping[_IdT, _SizedT], node: NodeId) -> list[_SizedT]:
    return _sorted(row for row in rows.values() if row.node == node)


def _of_name(rows: Mapping[_IdT, _SizedT], owner: OwnerId, name: str, *, besides: str | None = None) -> _SizedT | None:
    return next((row for row in rows.values() if (row.owner, row.name) == (owner, name) and row.id != besides), None)


def _of_request(rows: Mapping[_IdT, _RequestedT], owner: OwnerId, key: str, *, besides: str | None = None) -> _RequestedT | None:
    return next((row for row in rows.values() if (row.owner, row.idempotency_key) == (owner, key) and row.id != besides), None)


def _totals(rows: Mapping[_IdT, _SizedT], owner: OwnerId) -> tuple[int, int]:
    sizes = [row.size_bytes for row in rows.values() if row.owner == owner]
    return len(sizes), sum(sizes)


def _conflict(message: str, hint: str) -> ConflictError:
    return ConflictError(message, code=ErrorCode.CONFLICT, hint=hint)


def _disk_full() -> LimitError:
    return LimitError(
        "The database in memory cannot be written: the disk is full.",
        code=ErrorCode.NODE_DISK_FULL,
        hint="Free disk space. Committed records are not lost.",
    )
