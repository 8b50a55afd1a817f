"""The trees that forks grow into: a sandbox, its forks, their forks. Pure.

Laws:
- Who is whose fork is in the spec of each sandbox and never changes, so a tree is found from any of its members.
- A link that nobody remembers any more ends the way up; what hangs below it stays together.

Forks of a live sandbox: children that go on from where it is, each for itself; and the trees that they grow into.

Laws:
- There is one image of the parent, and it stands still only while that is written, which is after all children were admitted. The image is
  nobody's, and gone once the last child has started.
- All children come to be, or none: nobody is told of one before all of them answer. Where the service is killed in the middle, a request that is
  sent again under its idempotency key ends what there is of the first one.
- Every child is as its parent was asked for, under an id of its own, with randomness of its own and its full timeout.
- Promoting keeps one child and ends the other forks of its parent with all that was forked from them, never the parent; asked again, it does
  what is left to do.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Final

import structlog

from sandlot.core import admission
from sandlot.core.access.idempotency import check_key, check_same, words_digest
from sandlot.core.admission import CreateSandboxParams
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.lifecycle import suspend
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.mounts import pin_mounts
from sandlot.core.lifecycle.start import StartSource
from sandlot.core.manager import SandboxManager
from sandlot.core.node.reservations import Reservations
from sandlot.core.ports import Clock
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.core.scheduler import Scheduler, StartSourceConstraints
from sandlot.core.snapshots import writer
from sandlot.core.snapshots.fork_batch import ForkBatchGate, ForkBatchStart
from sandlot.core.snapshots.restore import MEMORY
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandlotError
from sandlot.model.ids import NodeId, SandboxId, SnapshotId, new_snapshot_id
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import NewEvent
from sandlot.model.specs import SnapshotKind
from sandlot.model.storage import Store


def root_of(id_: SandboxId, parents: Mapping[SandboxId, SandboxId | None]) -> SandboxId:
    """The top of the tree that a sandbox is in: the first one on the way up that is nobody's fork, or that is not known.

    Args:
        id_: The sandbox.
        parents: Of all that are known: whose fork each is.
    """
    seen = {id_}
    while (above := parents.get(id_)) is not None and above not in seen:  # a record that makes a ring is damaged; it must not hold us up
        seen.add(above)
        id_ = above
    return id_


def below(roots: Collection[SandboxId], sandboxes: Iterable[Sandbox]) -> list[Sandbox]:
    """Some sandboxes and all that were forked from them, at any remove; in the order in which they are given.

    Args:
        roots: The ids of those at the top; they need not be among the sandboxes.
        sandboxes: All that are known.
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
    """The other forks of a sandbox's parent.

    Args:
        sandbox: It.
        sandboxes: All that are known.
        among: Only those that have all of these entries in their metadata.
    """
    return [
        other
        for other in sandboxes
        if other.id != sandbox.id
        and other.spec.parent == sandbox.spec.parent
        and all(other.metadata.get(name) == value for name, value in among.items())
    ]


MOST: Final = 100
"""Children of one request."""
DEEPEST: Final = 10_000
"""Generations of which is looked for the one at the top."""
SAME: Final = suspend.SAME
"""In place of a timeout: the parent's."""
_ROUNDS: Final = 3
"""How often promoting looks for siblings that came to be meanwhile."""
_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class ForkParams:
    """Forks as a client asks for them.

    Args:
        count: How many, 1 to 100.
        name: A word for people; with more than one of them ``-1``, ``-2`` and so on are added to it.
        metadata: In place of the parent's, which are copied but for the service's own words.
        env: Over the parent's environment.
        timeout_s: Seconds until they end; None is never, :data:`SAME` what the parent was given.
        share_volumes: Whether they have the parent's volumes with it, those that are written to as well.
    """

    count: int = 1
    name: str | None = None
    metadata: Mapping[str, str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = SAME
    share_volumes: bool = False

    def __post_init__(self) -> None:
        """Refuse a number that is out of bounds."""
        if not 1 <= self.count <= MOST:
            raise InvalidRequestError(f"count is {self.count}; it must be from 1 to {MOST}.", fields={"field": "count"})

    def name_of(self, number: int) -> str | None:
        """What one of them is called; they are counted from 1."""
        return self.name if self.name is None or self.count == 1 else f"{self.name}-{number}"


@dataclass(frozen=True, slots=True)
class Tree:
    """A sandbox, its forks, their forks.

    Args:
        root: The id of the one at the top; long after its end it may not be among the others.
        sandboxes: All that are known, oldest first; ``spec.parent`` says whose fork each is.
    """

    root: SandboxId
    sandboxes: Sequence[Sandbox]


@dataclass(frozen=True, slots=True)
class Promoted:
    """What became of the siblings of one that was kept.

    Args:
        kept: It.
        ended: What was ended: siblings, and what was forked from them.
        failed: What could not be ended, and why.
    """

    kept: SandboxId
    ended: Sequence[SandboxId]
    failed: Mapping[SandboxId, str]


class ForkManager:
    """All forks of this node.

    Args:
        manager: Parents, and who makes their children.
        store: Where they are recorded.
        images: Where the image of a parent is meanwhile.
        node: This node.
        clock: The time.
        told: Called with its owner after an event was committed.
        registry: Sandboxes of this service.
        scheduler: Reserves what all children need together.
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
        scheduler: Scheduler,
        reservations: Reservations,
    ) -> None:
        self._manager = manager
        self._registry = registry
        self._scheduler = scheduler
        self._reservations = reservations
        self._store = store
        self._images = images
        self._node = node
        self._clock = clock
        self._told = told
        self._idempotency_locks = KeyedLock()
        self._tasks = TaskSet("fork.defect")

    async def aclose(self) -> None:
        """Wait for what goes on behind the answers."""
        await self._tasks.wait()

    async def fork(self, sandbox: str, principal: Principal, params: ForkParams, *, key: str | None = None) -> Sequence[Sandbox]:
        """Fork a sandbox, and wait until all children run. A client that goes away leaves none.

        Args:
            sandbox: The parent's id.
            principal: Who asks. The children are the parent's owner's; the quota is of who asks.
            params: They.
            key: The client's own name for this request. Sent again, it gives what it gave, also those that have ended by then.

        Raises:
            InvalidRequestError: Out of bounds, or they can never fit on this node.
            NotFoundError: ``sandbox_not_found``.
            ConflictError: Another request was sent under this key; or the parent writes to a volume that they would share unasked.
            LimitError: ``quota_exceeded``; ``disk_full``.
            UnsupportedError: Its isolation cannot write memory; says why.
            UnavailableError: ``busy``: there is no room for all of them.
            HostError: It could not be written, or a child could not be started: then none is kept.
            SandboxEndedError: It has ended.
        """
        parent = await self._registry.load(sandbox, principal)
        await parent.recovered.wait()
        owner = replace(principal, owner=parent.owner)
        if key is None:
            return await self._fork(parent, owner, params, None)
        digest = words_digest("fork", parent.id, json.dumps(asdict(params), sort_keys=True, default=str))
        async with self._idempotency_locks.hold(parent.owner, check_key(key)):
            for attempt in count():
                request = _Request(key, attempt, digest)
                before = await self._before(request, owner, params.count)
                if before is None:
                    return await self._fork(parent, owner, params, request)
                if len(before) == params.count:
                    return before
                await self._end(before, "the service ended while it was forked")
        raise AssertionError

    async def tree(self, sandbox_id: str, principal: Principal) -> Tree:
        """The tree that a sandbox is in.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        sandbox = await self._registry.load(sandbox_id, principal)
        known = {each.id: each for each in (sandbox, *self._registry.list(principal, ended=True))}
        top = sandbox
        for _ in range(DEEPEST):
            above = top.spec.parent
            found = None if above is None else known.get(above) or await self._ended_long_ago(above, principal)
            if found is None:
                break
            known[found.id] = top = found
        root = root_of(sandbox.id, {id_: each.spec.parent for id_, each in known.items()})
        return Tree(root, sorted(below([root], known.values()), key=lambda each: (each.created_at, each.id)))

    async def promote(self, sandbox_id: str, principal: Principal, *, among: Mapping[str, str] | None = None) -> Promoted:
        """Keep one child: end the other forks of its parent, and all that was forked from them. Idempotent.

        Args:
            sandbox_id: The id of the one that is kept.
            principal: Who asks.
            among: Only siblings that have all of these entries in their metadata.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            ConflictError: It is nobody's fork.
            SandboxEndedError: It has ended, so its siblings are left alone.
        """
        sandbox = self._registry.find(sandbox_id, principal)
        if sandbox.spec.parent is None:
            raise ConflictError(
                f"Sandbox {sandbox.id} is nobody's fork, so it has no siblings.",
                code=ErrorCode.CONFLICT,
                hint="Promote one of the children that a fork gave.",
                fields={"sandbox": sandbox.id},
            )
        if sandbox.end_requested.is_set() or sandbox.ended.is_set():
            raise sandbox.ended_error()
        ended: dict[SandboxId, None] = {}
        failed: dict[SandboxId, str] = {}
        for _ in range(_ROUNDS):
            # One that has ended is no sibling to end, but what was forked from it is.
            everybody = self._registry.list(principal, ended=True)
            roots = [other.id for other in siblings(sandbox, everybody, among or {})]
            doomed = [other for other in below(roots, everybody) if not other.ended.is_set() and other.id not in failed]
            if not doomed:
                break
            results = await asyncio.gather(*(self._manager.kill(other.id, principal) for other in doomed), return_exceptions=True)
            for other, result in zip(doomed, results, strict=True):
                if isinstance(result, Exception):
                    failed[other.id] = str(result)
                elif isinstance(result, BaseException):
                    raise result
                else:
                    ended[other.id] = None
        if ended:
            self._tasks.spawn(self._tell("sandbox.promoted", sandbox, ended=list(ended)))
        return Promoted(sandbox.id, tuple(ended), failed)

    async def _fork(self, parent: Sandbox, owner: Principal, params: ForkParams, request: _Request | None) -> Sequence[Sandbox]:
        if parent.ended.is_set():
            raise parent.ended_error()
        async with pin_mounts(parent):
            return await self._born(parent, owner, params, request)

    async def _born(self, parent: Sandbox, owner: Principal, params: ForkParams, request: _Request | None) -> Sequence[Sandbox]:
        _check_volumes(parent, params)
        children = self._asked(parent, params)
        image = new_snapshot_id(self._node)
        batch = f"fork-{image}"
        await self._scheduler.admit_batch(batch, children[0], owner, params.count)
        try:
            return await self._start(parent, owner, children, request, image, batch)
        finally:
            self._reservations.release(batch)  # what no child has drawn

    async def _start(
        self, parent: Sandbox, owner: Principal, children: Sequence[CreateSandboxParams], request: _Request | None, image: SnapshotId, batch: str
    ) -> Sequence[Sandbox]:
        gate, litter = ForkBatchGate(len(children)), ForkBatchStart(await self._images.make(image), len(children), max(1, (os.cpu_count() or 1) // 2))
        spec = replace(parent.spec, parent=parent.id, snapshot=None)
        digest = None if request is None else request.digest
        constraints = StartSourceConstraints(spec, restored=MEMORY, shares_volumes=True)
        source = StartSource([litter], constraints, setup=[gate.pass_through], batch=batch, digest=digest)
        tasks = [
            asyncio.create_task(self._manager.create(each, owner, key=None if request is None else request.key_of(number), source=source))
            for number, each in enumerate(children)
        ]
        for task in tasks:
            task.add_done_callback(functools.partial(_failed, gate, litter))
        try:
            await litter.admitted.wait()
            if not gate.is_shut:
                async with writer.room(self._reservations, parent, image, SnapshotKind.MEMORY):
                    await writer.image(parent, self._images.image(image), durable=False)
                litter.written()
            made = await asyncio.gather(*tasks)
        except BaseException as error:
            await asyncio.shield(self._none(tasks, gate, litter, error))
            raise
        finally:
            self._tasks.spawn(self._images.remove(image))
        self._tasks.spawn(self._tell("sandbox.forked", parent, children=[child.id for child in made]))
        _log.info("sandbox.forked", sandbox=parent.id, children=len(made))
        return made

    async def _none(self, tasks: Sequence[asyncio.Task[Sandbox]], gate: ForkBatchGate, litter: ForkBatchStart, error: BaseException) -> None:
        """Leave none of the children.

        Raises:
            SandlotError: Why there are none, where another one than the given said it first.
        """
        litter.failed(error)
        gate.shut(error)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await self._end([each for each in results if isinstance(each, Sandbox)], "another child of its fork failed")
        first = next((each for each in results if isinstance(each, SandlotError) and not gate.is_own(each)), None)
        if first is not None and isinstance(error, SandlotError) and gate.is_own(error):
            raise first from None

    def _asked(self, parent: Sandbox, params: ForkParams) -> list[CreateSandboxParams]:
        """The children, as they would have been asked for."""
        metadata = {name: value for name, value in parent.metadata.items() if not name.startswith(admission.OWN)}
        return [
            CreateSandboxParams(
                template=parent.spec.template,
                name=params.name_of(number),
                env=params.env,
                metadata=metadata if params.metadata is None else params.metadata,
                limits=parent.spec.limits,
                timeout_s=parent.spec.timeout_s if params.timeout_s == SAME else params.timeout_s,
                idle_timeout_s=parent.idle_timeout_s,
                isolation=parent.spec.isolation,
                network=parent.spec.network,
                on_timeout=parent.spec.on_timeout,
                auto_resume=parent.spec.auto_resume,
                volumes=parent.spec.volumes,
            )
            for number in range(1, params.count + 1)
        ]

    async def _before(self, request: _Request, owner: Principal, number: int) -> list[Sandbox] | None:
        """What there is of an attempt of an earlier request; None where that made nothing."""
        table = self._store.sandboxes
        records = [record for one in range(number) if (record := await table.by_idempotency_key(owner.owner, request.key_of(one))) is not None]
        if not records:
            return None
        for record in records:
            check_same(record.request_digest, request.digest)
        return [await self._registry.load(record.id, owner) for record in records]

    async def _end(self, sandboxes: Sequence[Sandbox], why: str) -> None:
        for sandbox in sandboxes:
            sandbox.request_end(Exit(ExitReason.KILLED, why))
        for sandbox in sandboxes:
            await sandbox.ended.wait()

    async def _ended_long_ago(self, id_: SandboxId, principal: Principal) -> Sandbox | None:
        try:
            return await self._registry.load(id_, principal)
        except SandlotError:
            return None

    async def _tell(self, kind: str, sandbox: Sandbox, **data: object) -> None:
        """Tell what was done; that it was, does not depend on it."""
        try:
            await self._store.events.add([NewEvent(kind, self._clock.now(), sandbox.owner, sandbox.id, data)])
        except SandlotError as error:
            _log.warning("event.not_recorded", type=kind, sandbox=sandbox.id, error=str(error))
        else:
            self._told(sandbox.owner)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that is sent under a key of its client's.

    Args:
        key: The key.
        attempt: How many of its attempts a kill has cut in half.
        digest: Of the request.
    """

    key: str
    attempt: int
    digest: str

    def key_of(self, number: int) -> str:
        """The key under which one of its children is made: none that a client would choose."""
        return "fork-" + hashlib.sha256(json.dumps([self.key, self.attempt, number]).encode()).hexdigest()


def _check_volumes(parent: Sandbox, params: ForkParams) -> None:
    """Refuse to let forks write to what their parent writes to, unless that is asked for."""
    written = [mount for mount in parent.spec.volumes if not mount.read_only]
    if written and not params.share_volumes:
        raise ConflictError(
            f"Sandbox {parent.id} writes to {len(written)} volume{'s' if len(written) > 1 else ''}, the first at {written[0].path!r}: "
            "its forks would write to the same files.",
            code=ErrorCode.CONFLICT,
            hint="Ask for share_volumes to let them, or attach the volumes read-only.",
            fields={"sandbox": parent.id, "volumes": [mount.volume for mount in written]},
        )


def _failed(gate: ForkBatchGate, litter: ForkBatchStart, task: asyncio.Task[Sandbox]) -> None:
    """One of the children is not to be: then none is."""
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None:
        gate.shut(error)
        litter.failed(error)
