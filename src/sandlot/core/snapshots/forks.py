"""Forks of a live sandbox: children that continue from the current state of their parent, and the trees of parents and children.

Invariants:
- All children are admitted before the parent is frozen. The parent is frozen only while its image is written. All children start from this one
  image, which is removed when the last child has started.
- Either all children exist or none: clients see no child before all children respond. If the service is killed during a fork, a repeated
  request with the same idempotency key first ends the children that the interrupted request left.
- Each child has the spec of its parent, but its own id, its own randomness and its own timeout.
- A promotion keeps one child and ends the other children of the same parent, with all their descendants. The parent keeps running. If a promotion
  is interrupted, a repeated promotion ends the remaining sandboxes.
- The spec of a child permanently names its parent, so a tree can be found from any of its sandboxes.
- The root of a tree is the first ancestor that was not created by a fork, or whose record was removed. All descendants of the root stay in one tree.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import structlog

from sandlot.core.access.idempotency import IdempotencyKey, request_digest
from sandlot.core.admission_controller import AdmissionController, StartSourceConstraints
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.mounts import pin_mounts
from sandlot.core.lifecycle.start import StartSource
from sandlot.core.manager import SandboxManager
from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.reservations import Reservation, Reservations
from sandlot.core.sandbox import Sandbox
from sandlot.core.snapshots import writer
from sandlot.core.snapshots.fork_batch import ForkBatch
from sandlot.core.snapshots.restore import MEMORY
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, SandlotError
from sandlot.model.ids import NodeId, SandboxId, SnapshotId, new_snapshot_id
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import NewEvent
from sandlot.model.repositories import Store
from sandlot.model.sandboxes import RESERVED_PREFIX, SAME, CreateSandboxParams, ForkParams, ForkTree, LimitsChange, Promotion
from sandlot.model.specs import SnapshotKind

MAX_DEPTH: Final = 10_000
"""Maximum number of generations between a sandbox and the root of its tree; older ancestors are not looked up."""
_ROUNDS: Final = 3
"""Number of times that a promotion searches for sandboxes to end. During the promotion, clients can still fork the sandboxes."""

_log = structlog.get_logger("sandlot.core")


def root_of(id_: SandboxId, parents: Mapping[SandboxId, SandboxId | None]) -> SandboxId:
    """Return the root of a sandbox's tree: the nearest ancestor that was not created by a fork or is not in ``parents``.

    Args:
        id_: Id of the sandbox.
        parents: Parent of each known sandbox; None for a sandbox that is not a child of a fork.
    """
    seen = {id_}
    while (parent := parents.get(id_)) is not None and parent not in seen:  # damaged records could form a cycle
        seen.add(parent)
        id_ = parent
    return id_


def below(roots: Collection[SandboxId], sandboxes: Iterable[Sandbox]) -> list[Sandbox]:
    """Return the sandboxes with the given ids and all their descendants, in the order of ``sandboxes``.

    Args:
        roots: Ids of sandboxes. A root that is not among ``sandboxes`` is left out, but its descendants are returned.
        sandboxes: All known sandboxes.
    """
    known = list(sandboxes)
    children: dict[SandboxId, list[SandboxId]] = {}
    for sandbox in known:
        if sandbox.spec.parent is not None:
            children.setdefault(sandbox.spec.parent, []).append(sandbox.id)
    found: set[SandboxId] = set()
    waiting = list(roots)
    while waiting:
        id_ = waiting.pop()
        if id_ not in found:
            found.add(id_)
            waiting += children.get(id_, ())
    return [sandbox for sandbox in known if sandbox.id in found]


def siblings(sandbox: Sandbox, sandboxes: Iterable[Sandbox], among: Mapping[str, str]) -> Sequence[Sandbox]:
    """Return the other children of a sandbox's parent.

    Args:
        sandbox: The sandbox.
        sandboxes: All known sandboxes.
        among: Return only siblings that have all these entries in their metadata.
    """
    return [
        other
        for other in sandboxes
        if other.id != sandbox.id
        and other.spec.parent == sandbox.spec.parent
        and all(other.metadata.get(name) == value for name, value in among.items())
    ]


class ForkManager:
    """Forks sandboxes, and finds and prunes the trees of forks.

    Attributes:
        tasks: Tasks that record the events of finished requests or remove images. Wait for these tasks when the service stops.
    """

    def __init__(
        self,
        *,
        manager: SandboxManager,
        admission: AdmissionController,
        registry: SandboxRegistry,
        store: Store,
        memory_images: MemoryImages,
        reservations: Reservations,
        events: EventFeed,
        clock: Clock,
        node: NodeId,
    ) -> None:
        self._manager = manager
        self._admission = admission
        self._registry = registry
        self._sandboxes = store.sandboxes
        self._images = memory_images
        self._reservations = reservations
        self._events = events
        self._key_locks = KeyedLock()
        """Locks by owner and idempotency key."""
        self._clock = clock
        self._node = node
        self.tasks = TaskSet("fork.internal_error")

    async def create(self, principal: Principal, sandbox_id: str, params: ForkParams, *, key: str | None = None) -> Sequence[Sandbox]:
        """Fork a sandbox and wait until all children run. If the call is cancelled, all children are ended.

        Args:
            principal: Caller, whose quota applies. The children belong to the parent's owner.
            sandbox_id: Id of the parent.
            params: Parameters of the fork.
            key: Idempotency key. A repeated request returns the first request's children, even if they have ended.

        Raises:
            InvalidRequestError: A parameter or the key is invalid, or the children can never fit on this node.
            ConflictError: The key was used for a different request, a name of a child is taken, or the parent has writable volumes and
                ``share_volumes`` is not set.
            LimitError: A quota is exceeded (``quota_exceeded``), or the disk is full (``node_disk_full``).
            UnsupportedError: The isolation cannot save the memory of a sandbox; the message gives the reason.
            UnavailableError: There is no room for all children (``busy``).
            HostError: The image could not be written or a child could not be started. No child is kept.
        """
        parent = await self._registry.load(sandbox_id, principal)
        await parent.recovered.wait()
        owner = replace(principal, owner=parent.owner)
        if key is None:
            return await self._fork(parent, owner, params, None)
        request = IdempotencyKey(key, request_digest("fork", parent.id, params))
        async with self._key_locks.hold(parent.owner, key):
            for number in count():
                attempt = _Attempt(request, number)
                earlier = await self._find_children(attempt, owner, params.count)
                if earlier is None:
                    return await self._fork(parent, owner, params, attempt)
                if len(earlier) == params.count:
                    return earlier
                await _end(earlier, "the service ended while the sandbox was forked")
        raise AssertionError  # unreachable: the loop above ends only with a return or an exception

    async def get_tree(self, principal: Principal, sandbox_id: str) -> ForkTree:
        """Return the tree of a sandbox."""
        sandbox = await self._registry.load(sandbox_id, principal)
        known = {each.id: each for each in (sandbox, *self._registry.list(principal, ended=True))}
        top = sandbox
        for _ in range(MAX_DEPTH):
            parent = top.spec.parent
            found = None if parent is None else known.get(parent) or await self._load_forgotten(parent, principal)
            if found is None:
                break
            known[found.id] = top = found
        root = root_of(sandbox.id, {id_: each.spec.parent for id_, each in known.items()})
        ordered = sorted(below([root], known.values()), key=lambda each: (each.created_at, each.id))
        return ForkTree(root, tuple(each.info() for each in ordered))

    async def promote(self, principal: Principal, sandbox_id: str, *, among: Mapping[str, str] | None = None) -> Promotion:
        """Keep one child, and end the other children of its parent with all their descendants. Idempotent.

        Args:
            principal: Caller.
            sandbox_id: Id of the child to keep.
            among: End only siblings that have all these entries in their metadata.

        Raises:
            ConflictError: The sandbox is not a child of a fork.
            SandboxEndedError: The sandbox has ended; its siblings keep running.
        """
        sandbox = self._registry.find(sandbox_id, principal)
        if sandbox.spec.parent is None:
            raise ConflictError(
                f"Sandbox {sandbox.id} is not a child of a fork, so it cannot be promoted.",
                hint="Pass the id of a child of a fork.",
                fields={"sandbox": sandbox.id},
            )
        if sandbox.end_requested.is_set() or sandbox.ended.is_set():
            raise sandbox.ended_error()
        ended: dict[SandboxId, None] = {}
        failed: dict[SandboxId, str] = {}
        for _ in range(_ROUNDS):
            # The list includes siblings that have ended, because their descendants may still run.
            known = self._registry.list(principal, ended=True)
            roots = [other.id for other in siblings(sandbox, known, among or {})]
            to_end = [other for other in below(roots, known) if not other.ended.is_set() and other.id not in failed]
            if not to_end:
                break
            results = await asyncio.gather(*(self._manager.kill(principal, other.id) for other in to_end), return_exceptions=True)
            for other, result in zip(to_end, results, strict=True):
                if isinstance(result, Exception):
                    failed[other.id] = str(result)
                elif isinstance(result, BaseException):
                    raise result
                else:
                    ended[other.id] = None
        if ended:
            self.tasks.spawn(self._publish("sandbox.promoted", sandbox, ended=list(ended)))
        return Promotion(sandbox.id, tuple(ended), failed)

    async def _fork(self, parent: Sandbox, owner: Principal, params: ForkParams, attempt: _Attempt | None) -> Sequence[Sandbox]:
        if parent.ended.is_set():
            raise parent.ended_error()
        async with pin_mounts(parent):
            _check_volumes(parent, params)
            children = child_params(parent, params)
            image = new_snapshot_id(self._node)
            reservations = await self._admission.admit_batch(children[0], owner, params.count)
            try:
                created = await self._start_children(parent, owner, children, image, reservations, attempt)
            finally:
                for reservation in reservations:  # those that no child has taken over
                    reservation.release()
        self.tasks.spawn(self._publish("sandbox.forked", parent, children=[child.id for child in created]))
        _log.info("sandbox.forked", sandbox=parent.id, children=len(created))
        return created

    async def _start_children(
        self,
        parent: Sandbox,
        owner: Principal,
        children: Sequence[CreateSandboxParams],
        image: SnapshotId,
        reservations: list[Reservation],
        attempt: _Attempt | None,
    ) -> Sequence[Sandbox]:
        batch = ForkBatch(self._images.image(image), len(children), max(1, (os.cpu_count() or 1) // 2))
        tasks: list[asyncio.Task[Sandbox]] = []
        try:
            await self._images.make(image)
            tasks = self._create_children(parent, owner, children, batch, reservations, attempt)
            await batch.admitted.wait()
            if not batch.has_failed:
                async with writer.reserve_disk(self._reservations, parent, SnapshotKind.MEMORY):
                    await writer.write_image(parent, self._images.image(image), durable=False)
                batch.image_written()
            return await asyncio.gather(*tasks)
        except BaseException as error:
            await asyncio.shield(_end_batch(tasks, batch, error))
            raise
        finally:
            self.tasks.spawn(self._images.remove(image))

    def _create_children(
        self,
        parent: Sandbox,
        owner: Principal,
        children: Sequence[CreateSandboxParams],
        batch: ForkBatch,
        reservations: list[Reservation],
        attempt: _Attempt | None,
    ) -> list[asyncio.Task[Sandbox]]:
        def fail_batch(task: asyncio.Task[Sandbox]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                batch.fail(error)

        spec = replace(parent.spec, parent=parent.id, snapshot=None)
        digest = None if attempt is None else attempt.request.digest
        constraints = StartSourceConstraints(spec, restored=MEMORY, shares_volumes=True)
        source = StartSource([batch], constraints, setup=[batch.wait_all_ready], reservations=reservations, digest=digest)
        tasks = []
        for number, params in enumerate(children):
            key = None if attempt is None else attempt.key_of(number)
            tasks.append(asyncio.create_task(self._manager.create(owner, params, key=key, source=source)))
            tasks[-1].add_done_callback(fail_batch)
        return tasks

    async def _find_children(self, attempt: _Attempt, owner: Principal, number: int) -> list[Sandbox] | None:
        """Return the children that an attempt created during an earlier request, or None if the attempt created no child."""
        keys = [attempt.key_of(child) for child in range(number)]
        records = [record for key in keys if (record := await self._sandboxes.get_by_idempotency_key(owner.owner, key)) is not None]
        if not records:
            return None
        for record in records:
            attempt.request.check(record.request_digest)
        return [await self._registry.load(record.id, owner) for record in records]

    async def _load_forgotten(self, id_: SandboxId, principal: Principal) -> Sandbox | None:
        """Load a sandbox that the registry no longer lists. Return None if the record of the sandbox was removed."""
        try:
            return await self._registry.load(id_, principal)
        except SandlotError:
            return None

    async def _publish(self, type_: str, sandbox: Sandbox, **data: object) -> None:
        """Publish an event. A failure is only logged, because the fork or promotion itself has succeeded."""
        try:
            await self._events.publish(NewEvent(type_, self._clock.now(), sandbox.owner, sandbox.id, data))
        except SandlotError as error:
            _log.warning("event.not_recorded", type=type_, sandbox=sandbox.id, error=str(error))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt to carry out a fork request that has an idempotency key.

    Args:
        request: Idempotency key of the request.
        number: Number of earlier attempts. A kill of the service interrupted each of them.
    """

    request: IdempotencyKey
    number: int

    def key_of(self, child: int) -> str:
        """Return the idempotency key for the creation of one child. The hash makes the key differ from keys that clients choose."""
        return "fork-" + request_digest(self.request.key, self.number, child)


def child_params(parent: Sandbox, params: ForkParams) -> list[CreateSandboxParams]:
    """Return the create parameters of the children of a fork."""
    metadata = {name: value for name, value in parent.metadata.items() if not name.startswith(RESERVED_PREFIX)}
    return [
        CreateSandboxParams(
            template=parent.spec.template.name,
            name=params.name_of(number),
            env=params.env,
            metadata=metadata if params.metadata is None else params.metadata,
            limits=LimitsChange.to(parent.spec.limits),
            timeout_s=parent.spec.timeout_s if params.timeout_s == SAME else params.timeout_s,
            idle_timeout_s=parent.idle_timeout_s,
            isolation=parent.spec.isolation,
            on_timeout=parent.spec.on_timeout,
            auto_resume=parent.spec.auto_resume,
            volumes=parent.spec.volumes,
            public_ports=parent.spec.public_ports,
            mask_request_host=parent.spec.mask_request_host,
        )
        for number in range(1, params.count + 1)
    ]


def _check_volumes(parent: Sandbox, params: ForkParams) -> None:
    """Refuse a fork whose children would write to volumes of the parent, unless ``share_volumes`` is set."""
    written = [mount for mount in parent.spec.volumes if not mount.read_only]
    if written and not params.share_volumes:
        raise ConflictError(
            f"Sandbox {parent.id} has {len(written)} writable volume{'s' if len(written) > 1 else ''}, the first at {written[0].path!r}. "
            "Forks of this sandbox would write to the same files.",
            hint="Set `share_volumes`, or attach the volumes read-only.",
            fields={"sandbox": parent.id, "volumes": [mount.volume for mount in written]},
        )


async def _end_batch(tasks: Sequence[asyncio.Task[Sandbox]], batch: ForkBatch, error: BaseException) -> None:
    """End all children of a fork that failed. If ``error`` only reports that another child failed, raise the error of that child."""
    batch.fail(error)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await _end([each for each in results if isinstance(each, Sandbox)], "another child of its fork failed")
    first = next((each for each in results if isinstance(each, SandlotError) and not batch.is_own(each)), None)
    if first is not None and isinstance(error, SandlotError) and batch.is_own(error):
        raise first from None


async def _end(sandboxes: Sequence[Sandbox], reason: str) -> None:
    for sandbox in sandboxes:
        sandbox.request_end(Exit(ExitReason.KILLED, reason))
    for sandbox in sandboxes:
        await sandbox.ended.wait()
