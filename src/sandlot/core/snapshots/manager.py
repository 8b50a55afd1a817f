"""Snapshots of sandboxes: create, list, get and delete them.

Invariants:
- A snapshot is recorded before its files are written, with ``ready`` false. When the files are synced and in place, one commit sets ``ready`` and
  adds the event ``snapshot.created``. The snapshot exists after this commit. If the service is killed before the commit,
  :meth:`SnapshotManager.open` removes the record and the files.
- A snapshot does not depend on its sandbox, which may change or end.
- A memory snapshot of an owner is verified once, after the response to its creation (:mod:`sandlot.core.snapshots.verify`).
- A deletion removes the record at once. The folder is removed as soon as no sandbox is starting from the snapshot.
- A snapshot belongs to the owner of its sandbox, or to the service itself (``INTERNAL``), which shows it to nobody, also not to operators. The quota
  of the caller limits the creation of snapshots of owners, and the quota of the owner limits the files that are packed later.
- The creation of a snapshot continues if its client disconnects. The client can repeat the request with its idempotency key, or list the snapshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import structlog

from sandlot.core.access import quotas
from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.access.idempotency import IdempotencyKey, request_digest
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.files import overlay
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.mounts import pin_mounts
from sandlot.core.manager import SandboxManager
from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.reservations import Reservations
from sandlot.core.resources.templates import TemplateResolver
from sandlot.core.sandbox import Sandbox
from sandlot.core.snapshots import restore, writer
from sandlot.core.snapshots.leases import FolderLeases
from sandlot.core.snapshots.records import SnapshotRecords
from sandlot.core.snapshots.sources import SnapshotSources
from sandlot.core.snapshots.verify import SnapshotVerifier
from sandlot.model.access import INTERNAL, OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.ids import SNAPSHOT_ID, NodeId, SnapshotId, new_snapshot_id
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position, Store
from sandlot.model.sandboxes import NAME
from sandlot.model.specs import SandboxSpec, SnapshotKind
from sandlot.model.streams import Page, Stream

CLOSE_TIMEOUT_S: Final = 10.0
"""Maximum seconds that a stopping service waits for snapshots that are being created."""

_log = structlog.get_logger("sandlot.core")


class SnapshotManager:
    """All snapshots of this node.

    Attributes:
        verifier: Verifies new snapshots in the background.
    """

    def __init__(  # noqa: PLR0913 - each argument is a part of the service
        self,
        *,
        manager: SandboxManager,
        registry: SandboxRegistry,
        store: Store,
        memory_images: MemoryImages,
        leases: FolderLeases,
        sources: SnapshotSources,
        drivers: Drivers,
        templates: TemplateResolver,
        reservations: Reservations,
        api_keys: ApiKeys,
        events: EventFeed,
        clock: Clock,
        node: NodeId,
    ) -> None:
        self._registry = registry
        self._table = store.snapshots
        self._images = memory_images
        self._templates = templates
        self._reservations = reservations
        self._events = events
        self._key_locks = KeyedLock()
        """Locks by owner and idempotency key."""
        self._clock = clock
        self._node = node
        self._records = SnapshotRecords(table=store.snapshots, leases=leases, api_keys=api_keys, events=events, clock=clock)
        self._tasks = TaskSet("snapshot.internal_error")
        self._verification = TaskSet("snapshot.internal_error")
        self._leases = leases
        self.verifier = SnapshotVerifier(
            manager=manager,
            memory_images=memory_images,
            leases=leases,
            sources=sources,
            records=self._records,
            drivers=drivers,
            templates=templates,
            reservations=reservations,
        )

    async def open(self) -> Collection[str]:
        """Remove the records of unfinished snapshots, and queue the snapshots that are not verified yet. Call this before any other method.

        Returns:
            Ids of the snapshots that exist. The caller removes the folders of all other snapshots.
        """
        kept = []
        for record in await self._table.list_by_node(self._node):
            if record.ready:
                kept.append(record.id)
                if _is_verified(record.owner) and not record.has_overlay and restore.uses_memory(record):
                    self.verifier.submit(record.id)
            else:
                await self._table.remove(record.id)
                _log.info("snapshot.incomplete_removed", snapshot=record.id)
        return kept

    def begin(self) -> None:
        """Start to verify the queued snapshots, in the background."""
        self._verification.spawn(self.verifier.run())

    async def aclose(self) -> None:
        """Wait at most ``CLOSE_TIMEOUT_S`` seconds for unfinished snapshots. The next start of the service removes those that remain unfinished."""
        await asyncio.gather(self._tasks.wait(CLOSE_TIMEOUT_S), self._leases.tasks.wait(CLOSE_TIMEOUT_S))
        for tasks in (self._tasks, self._leases.tasks, self._verification):
            tasks.cancel()
            await tasks.wait()

    async def create(
        self,
        principal: Principal,
        sandbox_id: str,
        *,
        name: str | None = None,
        kind: SnapshotKind = SnapshotKind.MEMORY,
        idempotency_key: str | None = None,
        internal: bool = False,
    ) -> SnapshotRecord:
        """Create a snapshot of a sandbox. The sandbox is frozen while its memory is written, and then continues.

        Args:
            principal: Caller. The caller's quota limits the number and the size of the snapshots.
            sandbox_id: Id of the sandbox.
            name: Name that is unique among the owner's snapshots. None: the snapshot has no name.
            kind: ``memory`` saves memory and files, ``files`` only the files.
            idempotency_key: A repeated request with this key returns the first request's snapshot.
            internal: True for a snapshot that belongs to the service (``INTERNAL``). No quota limits it, and it is neither listed nor reported as an
                event. The caller must not have an idempotency key.

        Raises:
            InvalidRequestError: The name or the key is invalid.
            ConflictError: The owner has another snapshot of that name, or the key was used for a different request.
            LimitError: A quota is exceeded (``quota_exceeded``), or the disk is full (``node_disk_full``).
            UnsupportedError: The isolation cannot save the memory of a sandbox; the message gives the reason.
            UnavailableError: There is not enough disk space now (``busy``).
            HostError: The snapshot could not be written; the sandbox keeps running.
        """
        if name is not None:
            check_name(name)
        sandbox = await self._registry.load(sandbox_id, principal)
        digest = request_digest("snapshot", sandbox.id, name, kind)
        request = None if idempotency_key is None else IdempotencyKey(idempotency_key, digest)
        owner = INTERNAL if internal else replace(principal, owner=sandbox.owner)
        return await asyncio.shield(self._tasks.create_task(self._create_once(sandbox, owner, name, kind, request)))

    async def stream_changes(self, principal: Principal, sandbox_id: str) -> Stream[bytes]:
        """Return the files of a sandbox that differ from its template, in the format of ``core/files/overlay.py``. The sandbox keeps running.

        The bytes come from a program in the sandbox, which can be hostile.
        """
        sandbox = self._registry.find(sandbox_id, principal)
        base = await self._templates.resolve(sandbox.spec.template, sandbox.spec.isolation)
        return await overlay.stream_changes(sandbox, base.root)

    async def get(self, principal: Principal, id_or_name: str) -> SnapshotRecord:
        """Return a snapshot by its id. The caller's own snapshots are also found by their names.

        Raises:
            NotFoundError: The snapshot does not exist or belongs to another owner (``snapshot_not_found``).
        """
        if SNAPSHOT_ID.fullmatch(id_or_name):
            record = await self._table.get(SnapshotId(id_or_name))
        else:
            record = await self._table.get_by_name(principal.owner, id_or_name) if id_or_name else None
        if record is None or not record.ready or not principal.lists(record.owner) or self._leases.is_deleted(record.id):
            raise NotFoundError(
                f"There is no snapshot {id_or_name[:64]!r}.",
                code=ErrorCode.SNAPSHOT_NOT_FOUND,
                hint="List the snapshots to find their ids and names.",
                fields={"snapshot": id_or_name[:64]},
            )
        return record

    async def list(self, principal: Principal, *, after: Position | None, limit: int) -> Page[SnapshotRecord]:
        """Return a page of the snapshots that a caller may see, oldest first.

        Args:
            principal: Caller; operators see the snapshots of all owners except those of the service itself.
            after: Position of the last snapshot of the previous page; None starts with the oldest.
            limit: Maximum number of snapshots to return.
        """
        found = await self._table.page(owner=None if principal.operator else principal.owner, after=after, limit=limit + 1)
        return Page(found[:limit], len(found) > limit)

    async def delete(self, principal: Principal, id_or_name: str) -> None:
        """Delete a snapshot. Sandboxes that were created from the snapshot keep running.

        Raises:
            NotFoundError: The snapshot does not exist or belongs to another owner (``snapshot_not_found``).
        """
        record = await self.get(principal, id_or_name)
        if await self._table.remove(record.id, self._records.event("snapshot.deleted", record)):
            self._events.notify(record.owner)
        self.verifier.cancel(record.id)
        self._leases.delete(record.id)
        _log.info("snapshot.deleted", snapshot=record.id)

    async def _create_once(
        self, sandbox: Sandbox, owner: Principal, name: str | None, kind: SnapshotKind, request: IdempotencyKey | None
    ) -> SnapshotRecord:
        if request is None:
            return await self._create(sandbox, owner, name, kind, None)
        async with self._key_locks.hold(sandbox.owner, request.key):
            earlier = await self._table.get_by_idempotency_key(sandbox.owner, request.key)
            if earlier is None:
                return await self._create(sandbox, owner, name, kind, request)
            request.check(earlier.request_digest)
            return earlier  # complete, because the first request held the lock until the snapshot was complete or removed

    async def _create(
        self, sandbox: Sandbox, owner: Principal, name: str | None, kind: SnapshotKind, request: IdempotencyKey | None
    ) -> SnapshotRecord:
        if sandbox.ended.is_set():
            raise sandbox.ended_error()
        intent = SnapshotRecord(
            id=new_snapshot_id(self._node),
            node=self._node,
            owner=owner.owner,
            name=name,
            kind=kind,
            spec=_current_spec(sandbox),
            created_at=self._clock.now(),
            idempotency_key=None if request is None else request.key,
            request_digest=None if request is None else request.digest,
        )
        async with (
            self._records.admission_lock
            # Otherwise two concurrent requests could both pass the quota check before either snapshot is recorded.
        ):
            quotas.check_stored(owner.quota, "snapshot", *await self._table.totals(owner.owner))
            await self._check_name_is_free(owner.owner, name)
            await self._table.save(intent)
        try:
            async with writer.reserve_disk(self._reservations, sandbox, kind), pin_mounts(sandbox):
                size_bytes, spec = await self._write(sandbox, intent), _current_spec(sandbox)
            done = replace(intent, spec=spec, ready=True, size_bytes=size_bytes, has_overlay=kind is SnapshotKind.FILES)
            async with self._records.admission_lock:
                await self._records.check_quota(owner.quota, owner.owner, size_bytes)
                await self._table.update(done, self._records.event("snapshot.created", done, size_bytes=size_bytes))
        except BaseException:
            await self._discard(intent)
            raise
        self._events.notify(done.owner)
        _log.info("snapshot.created", snapshot=done.id, sandbox=sandbox.id, kind=str(kind), size_bytes=size_bytes)
        if kind is SnapshotKind.MEMORY and _is_verified(done.owner):
            self.verifier.submit(done.id)
        return done

    async def _write(self, sandbox: Sandbox, record: SnapshotRecord) -> int:
        into = await self._images.make(record.id)
        if record.kind is SnapshotKind.FILES:
            base = await self._templates.resolve(sandbox.spec.template, sandbox.spec.isolation)
            return await overlay.pack_overlay(sandbox, self._images.overlay(record.id), base.root)
        return await writer.write_image(sandbox, into, durable=True)

    async def _check_name_is_free(self, owner: OwnerId, name: str | None) -> None:
        """Refuse a name that another snapshot of the owner has. The table refuses such a name too, but its error does not name the other snapshot."""
        other = None if name is None else await self._table.get_by_name(owner, name)
        if other is not None:
            raise ConflictError(
                f"A snapshot named {name!r} exists already: {other.id}, created at {other.created_at:%Y-%m-%d %H:%M:%S} UTC.",
                hint="Choose another name, or delete that snapshot first.",
                fields={"name": name, "snapshot": other.id},
            )

    async def _discard(self, record: SnapshotRecord) -> None:
        """Remove the record and the folder of a snapshot that could not be completed. If this fails, the next start of the service removes them."""
        try:
            await self._table.remove(record.id)
        except SandlotError as error:
            _log.warning("snapshot.record_not_removed", snapshot=record.id, error=str(error))
        await self._images.remove(record.id)


def _is_verified(owner: OwnerId) -> bool:
    """Return whether memory snapshots of an owner are verified. The service makes its own snapshots again if they cannot be restored."""
    return owner != INTERNAL.owner


def _current_spec(sandbox: Sandbox) -> SandboxSpec:
    """Return the spec of a sandbox with its current metadata."""
    return replace(sandbox.spec, metadata=sandbox.metadata)


def check_name(name: str) -> str:
    """Return the name of a snapshot if the name is valid.

    Raises:
        InvalidRequestError: The name is invalid, or has the form of a snapshot id.
    """
    if NAME.fullmatch(name) is None or SNAPSHOT_ID.fullmatch(name):
        raise InvalidRequestError(
            f"The snapshot name {name[:64]!r} is not valid.",
            hint="Use up to 63 letters, digits, '.', '_' and '-', starting with a letter or a digit. A name cannot have the form of a snapshot id.",
            fields={"field": "name"},
        )
    return name
