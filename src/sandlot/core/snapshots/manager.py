"""Who is using what is kept: what is deleted meanwhile stays on the disk until the last of them is done.

Law: Between the look whether something is there and the use of it nobody comes: both are one step of the event loop.

Named snapshots of sandboxes: taken, listed, started from, deleted.

Laws:
- A snapshot is recorded as an intent first. It exists once its bytes are synced and in their place and its record says so, which is one commit
  with the event that tells of it. What a kill leaves in between is removed by :meth:`SnapshotManager.open`.
- It is its own: what becomes of the sandbox that it was taken of does not matter to it.
- It is verified once, behind the answer (:mod:`sandlot.core.snapshots.verify`): what cannot be restored says so before somebody needs it.
- Deleting is answered at once; the bytes go when nobody is starting from them any more.
- It belongs to the owner of the sandbox that it was taken of, and counts against the quota of who asked.
- What was begun is finished, although its client goes away: it can ask for it by its idempotency key, or find it in the list.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Final

import structlog

from sandlot.core.access import quotas
from sandlot.core.access.idempotency import check_key, check_same, request_digest, words_digest
from sandlot.core.admission import NAME, CreateSandboxParams
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.files import overlay
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.mounts import pin_mounts
from sandlot.core.lifecycle.start import StartSource
from sandlot.core.manager import SandboxManager
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations
from sandlot.core.ports import Clock
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.core.snapshots import restore, writer
from sandlot.core.snapshots.verify import SnapshotVerifier
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.ids import SNAPSHOT_ID, NodeId, SnapshotId, new_snapshot_id
from sandlot.model.ports import Change
from sandlot.model.records import NewEvent, SnapshotRecord
from sandlot.model.specs import SandboxSpec, SnapshotKind
from sandlot.model.storage import Position, Store


class FolderLeases:
    """The uses of some things, by their ids.

    Args:
        remove: Removes what there is of one; called once nobody uses it any more.
        spawn: Begins a work that nobody waits for.
    """

    def __init__(self, remove: Callable[[str], Coroutine[Any, Any, None]], spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._remove = remove
        self._spawn = spawn
        self._users: Counter[str] = Counter()
        self._gone: set[str] = set()

    def is_gone(self, id_: str) -> bool:
        """Whether it was deleted, and waits for those who use it."""
        return id_ in self._gone

    @contextmanager
    def of(self, id_: str) -> Iterator[None]:
        """Around a use of one."""
        self._users[id_] += 1
        try:
            yield
        finally:
            self._users[id_] -= 1
            self._settle(id_)

    def delete(self, id_: str) -> None:
        """Nobody may begin to use it from now on; it is removed once those are done who have begun. Idempotent."""
        self._gone.add(id_)
        self._settle(id_)

    def _settle(self, id_: str) -> None:
        if self._users[id_] > 0:
            return
        del self._users[id_]
        if id_ in self._gone:
            self._spawn(self._removed(id_))

    async def _removed(self, id_: str) -> None:
        await self._remove(id_)
        self._gone.discard(id_)


CLOSE_TIMEOUT_S: Final = 10.0
"""How long the end of the service waits for what is being recorded."""
_log = structlog.get_logger("sandlot.core")


class SnapshotManager:
    """All snapshots of this node.

    Args:
        manager: What they are taken of, and who makes others of them.
        store: Where they are recorded.
        images: Where their bytes are.
        node: This node.
        clock: The time.
        told: Called with its owner after an event was committed.
        registry: Sandboxes of this service.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Reservations of this node.
    """

    def __init__(
        self,
        manager: SandboxManager,
        store: Store,
        images: MemoryImages,
        node: NodeId,
        clock: Clock,
        told: Callable[[OwnerId], None],
        *,
        registry: SandboxRegistry,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
    ) -> None:
        self._manager = manager
        self._registry = registry
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._store = store
        self._table = store.snapshots
        self._images = images
        self._node = node
        self._clock = clock
        self._told = told
        self._idempotency_locks = KeyedLock()
        self._admitting = asyncio.Lock()
        self._tasks = TaskSet("snapshot.defect")
        self._verifying = TaskSet("snapshot.defect")
        self._uses = FolderLeases(images.remove, self._tasks.spawn)
        self.verifier = SnapshotVerifier(
            manager,
            images,
            using=self._uses.of,
            current=self._current,
            source=lambda record: restore.source_of(record, images, drivers, templates),
            told=self._verified,
            drivers=drivers,
            templates=templates,
            reservations=reservations,
        )

    async def open(self) -> Collection[str]:
        """Forget what an earlier service did not finish, and go on verifying; the ids of those whose folders are to stay.

        Call it before anything is taken.

        Raises:
            SandlotError: The store cannot be read or written.
        """
        kept = []
        for record in await self._table.of_node(self._node):
            if record.ready:
                kept.append(record.id)
                if record.kind is SnapshotKind.MEMORY and not record.layer and not record.problem:
                    self.verifier.put(record.id)
            else:
                await self._table.remove(record.id)
                _log.info("snapshot.forgotten", snapshot=record.id)
        return kept

    def begin(self) -> None:
        """Verify from now on."""
        self._verifying.spawn(self.verifier.run())

    async def aclose(self) -> None:
        """Wait for what is being recorded, for some seconds; what is not done then is removed by the next start."""
        await self._tasks.wait(CLOSE_TIMEOUT_S)
        for tasks in (self._tasks, self._verifying):
            tasks.cancel()
            await tasks.wait()

    async def take(
        self, sandbox_id: str, principal: Principal, *, name: str | None = None, kind: SnapshotKind = SnapshotKind.MEMORY, key: str | None = None
    ) -> SnapshotRecord:
        """Take a snapshot of a sandbox; it goes on, after it stood still for as long as its memory is written.

        Args:
            sandbox_id: Its id.
            principal: Who asks.
            name: What to call it; unique among its owner's. None is nothing.
            kind: Memory and files, or files alone.
            key: The client's own name for this request. Sent again, it gives what it gave.

        Raises:
            InvalidRequestError: The name is none.
            NotFoundError: ``sandbox_not_found``.
            ConflictError: Its owner has one of that name; or another request was sent under this key.
            LimitError: ``quota_exceeded``; ``disk_full``.
            UnsupportedError: Its isolation cannot write memory; says why.
            UnavailableError: ``busy``: there is no room on the disk.
            HostError: It could not be written; the sandbox goes on.
            SandboxEndedError: It has ended.
        """
        if name is not None:
            check_name(name)
        sandbox = await self._registry.load(sandbox_id, principal)
        return await asyncio.shield(self._tasks.create_task(self._take_once(sandbox, principal, name, kind, key)))

    async def create(
        self, params: CreateSandboxParams, principal: Principal, *, limits: Change | None = None, network: str | None = None, key: str | None = None
    ) -> Sandbox:
        """Create a sandbox that goes on from a snapshot.

        Args:
            params: It: ``snapshot`` is the id or name; template, isolation, limits and network are the snapshot's.
            principal: Whose it will be.
            limits: What it may use in place of what the snapshot's sandbox might; as far as its isolation can restore it so.
            network: What it may reach in place of what the snapshot's sandbox might.
            key: As for ``SandboxManager.create``.

        Raises:
            NotFoundError: ``snapshot_not_found``.
            ConflictError: ``snapshot_unusable``: it cannot be restored here, or not with these limits.
            SandlotError: As for ``SandboxManager.create``.
        """
        digest = words_digest("create", request_digest(params), repr(limits), network or "")
        try:
            record = await self.get(params.snapshot or "", principal)
        except NotFoundError:
            before = None if key is None else await self._store.sandboxes.by_idempotency_key(principal.owner, check_key(key))
            if before is None:
                raise
            check_same(before.request_digest, digest)  # it was made, and the snapshot was deleted since
            return await self._registry.load(before.id, principal)
        async with self.using(record.id, principal) as found:
            source, spec = replace(found, digest=digest), found.constraints.spec
            full = replace(
                params,
                template=spec.template,
                limits=spec.limits if limits is None else limits.over(spec.limits),
                network=network or spec.network,
                isolation=spec.isolation,
            )
            return await self._manager.create(full, principal, key=key, source=source)

    @asynccontextmanager
    async def using(self, id_or_name: str, principal: Principal) -> AsyncIterator[StartSource]:
        """What a sandbox goes on from that is created from a snapshot; inside the block it is there, whoever deletes it.

        Raises:
            NotFoundError: ``snapshot_not_found``.
            ConflictError: ``snapshot_unusable``.
        """
        record = await self.get(id_or_name, principal)
        if record.node != self._node:
            raise restore.unusable(record, f"it is on another node ({record.node})")
        with self._uses.of(record.id):
            yield await restore.source_of(record, self._images, self._drivers, self._templates)

    async def get(self, id_or_name: str, principal: Principal) -> SnapshotRecord:
        """One, by its id or by its owner's name for it.

        Raises:
            NotFoundError: ``snapshot_not_found``.
        """
        if SNAPSHOT_ID.fullmatch(id_or_name):
            record = await self._table.get(SnapshotId(id_or_name))
        else:
            record = await self._table.named(principal.owner, id_or_name) if id_or_name else None
        if record is None or not record.ready or not principal.sees(record.owner) or self._uses.is_gone(record.id):
            raise NotFoundError(
                f"There is no snapshot {id_or_name[:64]!r}.",
                code=ErrorCode.SNAPSHOT_NOT_FOUND,
                hint="List what there is.",
                fields={"snapshot": id_or_name[:64]},
            )
        return record

    async def page(self, principal: Principal, *, after: Position | None, limit: int) -> tuple[Sequence[SnapshotRecord], bool]:
        """Some of the snapshots that there are for somebody, oldest first, and whether more follow."""
        found = await self._table.page(owner=None if principal.operator else principal.owner, after=after, limit=limit + 1)
        return found[:limit], len(found) > limit

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """How many somebody has, those that are being made included, and their bytes together."""
        return await self._table.totals(owner)

    async def delete(self, id_or_name: str, principal: Principal) -> None:
        """Delete one. What was started from it lives on.

        Raises:
            NotFoundError: ``snapshot_not_found``.
        """
        record = await self.get(id_or_name, principal)
        if await self._table.remove(record.id, self._event("snapshot.deleted", record)):
            self._told(record.owner)
        self.verifier.drop(record.id)
        self._uses.delete(record.id)
        _log.info("snapshot.deleted", snapshot=record.id)

    async def _take_once(self, sandbox: Sandbox, principal: Principal, name: str | None, kind: SnapshotKind, key: str | None) -> SnapshotRecord:
        if key is None:
            return await self._take(sandbox, principal, name, kind, None, None)
        digest = words_digest("snapshot", sandbox.id, name or "", kind)
        async with self._idempotency_locks.hold(sandbox.owner, check_key(key)):
            before = await self._table.by_idempotency_key(sandbox.owner, key)
            if before is not None:
                check_same(before.request_digest, digest)
                return before  # ready: whoever took it has held the turn until it was, or has removed it
            return await self._take(sandbox, principal, name, kind, key, digest)

    async def _take(
        self, sandbox: Sandbox, principal: Principal, name: str | None, kind: SnapshotKind, key: str | None, digest: str | None
    ) -> SnapshotRecord:
        if sandbox.ended.is_set():
            raise sandbox.ended_error()
        intent = SnapshotRecord(
            id=new_snapshot_id(self._node),
            node=self._node,
            owner=sandbox.owner,
            name=name,
            kind=kind,
            spec=_spec_of(sandbox),
            created_at=self._clock.now(),
            idempotency_key=key,
            request_digest=digest,
        )
        async with self._admitting:  # nobody is to come between the sum and what is added to it
            quotas.check_snapshots(principal.quota, *await self._table.totals(sandbox.owner))
            await self._check_free(sandbox.owner, name)
            await self._table.save(intent)
        try:
            async with writer.room(self._reservations, sandbox, intent.id, kind), pin_mounts(sandbox):
                size_bytes, spec = await self._written(sandbox, intent), _spec_of(sandbox)
            kept, kept_bytes = await self._table.totals(sandbox.owner)
            quotas.check_snapshots(principal.quota, kept - 1, kept_bytes, size_bytes)
            done = replace(intent, spec=spec, ready=True, size_bytes=size_bytes, layer=kind is SnapshotKind.FILES)
            await self._table.update(done, self._event("snapshot.created", done, size_bytes=size_bytes))
        except BaseException:
            await self._discard(intent)
            raise
        self._told(done.owner)
        _log.info("snapshot.created", snapshot=done.id, sandbox=sandbox.id, kind=str(kind), size_bytes=size_bytes)
        if kind is SnapshotKind.MEMORY:
            self.verifier.put(done.id)
        return done

    async def _written(self, sandbox: Sandbox, record: SnapshotRecord) -> int:
        into = await self._images.make(record.id)
        if record.kind is SnapshotKind.FILES:
            base = await self._templates.resolve_for(sandbox.spec)
            return await overlay.pack_layer(sandbox, self._images.layer(record.id), base.root.path)
        return await writer.image(sandbox, into, durable=True)

    async def _check_free(self, owner: OwnerId, name: str | None) -> None:
        """Refuse a name that is taken, in more words than the table has."""
        there = None if name is None else await self._table.named(owner, name)
        if there is not None:
            raise ConflictError(
                f"There is a snapshot of the name {name!r} already: {there.id}, of {there.created_at:%Y-%m-%d %H:%M:%S} UTC.",
                code=ErrorCode.CONFLICT,
                hint="Choose another name, or delete that one first.",
                fields={"name": name, "snapshot": there.id},
            )

    async def _discard(self, record: SnapshotRecord) -> None:
        """Leave nothing of one that did not come to be; what cannot be removed now is by the next start."""
        try:
            await self._table.remove(record.id)
        except SandlotError as error:
            _log.warning("snapshot.not_discarded", snapshot=record.id, error=str(error))
        await self._images.remove(record.id)

    async def _current(self, id_: SnapshotId) -> SnapshotRecord | None:
        return None if self._uses.is_gone(id_) else await self._table.get(id_)

    async def _verified(self, record: SnapshotRecord) -> None:
        """Record what came of verifying one, unless it was deleted meanwhile."""
        event = self._event("snapshot.unusable", record, reason=record.problem) if record.problem else None
        if await self._table.update(record, event) and event is not None:
            self._told(record.owner)

    def _event(self, type_: str, record: SnapshotRecord, **data: Any) -> NewEvent:  # noqa: ANN401 - JSON
        about = {"snapshot": record.id, "name": record.name, "kind": str(record.kind), **data}
        return NewEvent(type_, self._clock.now(), record.owner, record.spec.id, about)


def _spec_of(sandbox: Sandbox) -> SandboxSpec:
    """A sandbox as it was asked for, and changed since. Pure."""
    return replace(sandbox.spec, metadata=sandbox.metadata)


def check_name(name: str) -> str:
    """A name for a snapshot. Pure.

    Raises:
        InvalidRequestError: It is none, or could be an id.
    """
    if NAME.fullmatch(name) is None or name.startswith("snap-"):
        raise InvalidRequestError(
            f"{name[:64]!r} is no name for a snapshot.",
            hint="Use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit, and not with 'snap-', as ids do.",
            fields={"field": "name"},
        )
    return name
