"""All sandboxes of this service: created, found, prolonged, killed, and remembered for a while after their end.

Laws:
- A sandbox counts against the service's bound, and against what the host has (:mod:`sandlot.core.node.capacity`), from the request
  that creates it until its last trace is removed.
- A client that goes away while its sandbox is created leaves nothing behind.
- What a request of one idempotency key made is made once, however often it is sent, also to the service after this one.
- A service that ends leaves its sandboxes to the next one, unless it is told to end them (:mod:`sandlot.core.lives.adoption`).
- Killing is idempotent; any number of callers may wait for the same end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import structlog

from sandlot.core.admission import NewSandbox, Rules
from sandlot.core.births import Births, Inject, Injects
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.lives import adoption, ending, life, resting
from sandlot.core.lives.images import Images
from sandlot.core.lives.life import Course, live
from sandlot.core.lives.means import Means
from sandlot.core.lives.orders import Work
from sandlot.core.lives.starts import Source, Start, boot
from sandlot.core.lives.updates import Hands, Update, update
from sandlot.core.node.budget import Budget
from sandlot.core.node.capacity import Figures
from sandlot.core.node.disposer import Disposer
from sandlot.core.node.idle import Reaper
from sandlot.core.node.ledger import Ledger
from sandlot.core.pools.owners import Owners
from sandlot.core.pools.pools import Pooling, Pools
from sandlot.core.ports import Clock, Greet, Packages, Templates
from sandlot.core.records import quotas
from sandlot.core.records.once import check_key, digest_of, made_before
from sandlot.core.records.register import Register
from sandlot.core.roster import REMEMBERED, Roster
from sandlot.core.runs import inherited
from sandlot.core.runs.installing import services_of
from sandlot.core.sandbox import Sandbox
from sandlot.core.supply import Supply
from sandlot.core.volumes.attaching import hold, let_go
from sandlot.core.volumes.volumes import Volumes
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ErrorCode, SandboxEndedError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Driver, Exit, ExitReason, Reading, Resources
from sandlot.model.states import SETTLEMENT, Settlement

CLOSE_TIMEOUT_S = 60.0
"""For removing everything when the service stops; what is left then is swept by the next start."""

_log = structlog.get_logger("sandlot.core")


class Sandboxes(Roster):
    """All sandboxes of this service.

    Args:
        drivers: Isolation name -> driver.
        templates: What sandboxes start from.
        greet: Makes a link to a guest.
        clock: The time.
        new_id: Makes ids that carry this node.
        rules: What the operator decided.
        read_host: Looks at what the host has; blocks for some milliseconds.
        budget: Of the memory that is held for clients.
        register: The durable side of them.
        images: Where what is hibernated is.
        injects: Finds files of the file store that are to be in a new sandbox.
        packages: Package indexes for those inside; None is none.
        pooling: What is made before anybody asks.
        principal_of: Whoever has a key of that id, where nobody asks: for what wakes by itself, or waits in a pool; None where it was revoked.
        volumes: What they may have; None is nothing.
    """

    def __init__(  # noqa: PLR0913 - all by name, and each a part of the service
        self,
        *,
        drivers: Mapping[str, Driver],
        templates: Templates,
        greet: Greet,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        rules: Rules,
        read_host: Callable[[], Reading],
        budget: Budget,
        register: Register,
        images: Images,
        pooling: Pooling,
        injects: Injects | None = None,
        packages: Packages | None = None,
        principal_of: Callable[[OwnerId], Principal | None] = lambda _owner: OPERATOR,
        volumes: Volumes | None = None,
    ) -> None:
        super().__init__(register, budget, clock)
        self._services = functools.partial(services_of, packages)
        self._idempotency_locks = KeyedLock()
        self._tasks = TaskSet("service.defect")
        self._disposer = Disposer(clock)
        self.supply = self._supply = Supply(drivers, templates)
        """What sandboxes are made of."""
        self._greet, self._rules = greet, rules
        self._ledger = Ledger(read_host, rules.shares, clock)
        self._images = images
        self._turns = asyncio.Semaphore(rules.max_creates)
        self.pools = Pools(
            pooling,
            supply=self._supply,
            ledger=self._ledger,
            rules=rules,
            greet=greet,
            clock=clock,
            new_id=new_id,
            metrics=register.metrics,
            busy=self._turns.locked,
            owners=Owners(principal_of, lambda owner: [box.claims for box in self._of(owner)]),
        )
        self.births = self._births = Births(
            supply=self._supply,
            ledger=self._ledger,
            rules=rules,
            budget=budget,
            clock=clock,
            new_id=new_id,
            injects=injects,
            pools=self.pools,
            quota_of=lambda owner: (principal_of(owner) or OPERATOR).quota,
            volumes=volumes,
        )
        self._closing = False
        self.grading = ThreadPoolExecutor(1, "grading")  # its own: outputs of megabytes take seconds, and creates wait for the default one
        self._close_by_s: float | None = None
        self._idle_since_monotonic_s = clock.monotonic_s()

    async def open(self) -> int:
        """Take over what an earlier service of this node left running, and remove the rest of it; how many are taken over.

        It returns before they answer: a call to one of them waits for that. Call it before anything else, and only while holding the state
        directory's lock.

        Raises:
            SandlotError: The store cannot be read or written.
        """
        for record in await self._register.ended_lately(REMEMBERED):
            self._remember(self._revived(record))
        kept: set[str] = set()
        for record in await self._register.unfinished():
            if SETTLEMENT[record.state] is Settlement.REMOVE or record.ref is None:
                expired = record.expires_at is not None and record.expires_at <= self._clock.now()
                await self._register.settle(record, *adoption.over(record, expired))
            elif record.spec.isolation not in self._supply.drivers:
                _log.error("sandbox.no_driver", sandbox=record.id, isolation=record.spec.isolation, hint="Start the service with that driver again.")
                kept.add(record.ref)
                self.unheld.add(record.id)
            else:
                self._begin(self._revived(record), adoption.take_over, boot)
        for work in (adoption.tidy(self.living(), self._supply.drivers.values(), kept), Reaper(self.living, self._clock).run(), self.pools.run()):
            self._tasks.spawn(work)
        return len(self._lives)

    def refuse(self) -> None:
        """Let nothing be created any more, because the service is about to stop."""
        self._closing = True

    async def aclose(self, *, keep: bool = False) -> None:
        """Leave every sandbox to the next service, or end them and wait until all are removed; nothing can be created any more.

        Idempotent, and however often it is called, what cannot be removed is waited for once. What is being created is ended in any case,
        because its client is told so.

        Args:
            keep: Whether those that run live on.
        """
        self.refuse()
        self._tasks.cancel()
        tasks = [*(task for _, task in self._lives.values()), asyncio.create_task(self.pools.aclose())]
        for box, _ in self._lives.values():
            if keep and box.told:
                box.leave()
            else:
                box.end(Exit(ExitReason.KILLED, "the service was stopped"))
        now_s, first = asyncio.get_running_loop().time(), self._close_by_s is None
        self._close_by_s = now_s + CLOSE_TIMEOUT_S if self._close_by_s is None else self._close_by_s
        _, late = await asyncio.wait(tasks, timeout=max(0.0, self._close_by_s - now_s))
        if late and first:
            _log.error("sandboxes.not_removed", count=len(late), hint="The next start of the service removes them.")
        self.grading.shutdown(wait=False, cancel_futures=True)

    @property
    def held(self) -> int:
        """Sandboxes that still hold anything of the host."""
        return len(self._lives)

    def idle_s(self) -> float:
        """Seconds since the last sandbox was removed; 0 while there is one."""
        return 0.0 if self._lives else self._clock.monotonic_s() - self._idle_since_monotonic_s

    async def create(self, asked: NewSandbox, who: Principal, *, key: str | None = None, source: Source | None = None) -> Sandbox:
        """Create a sandbox and wait until it runs.

        Args:
            asked: It, as it was asked for.
            who: Whose it will be.
            key: The client's own name for this request. Sent again, it gives what it gave, also where that has ended by then.
            source: What it goes on from, in place of its template.

        Raises:
            InvalidRequestError: The request makes no sense, or can never fit on this node.
            ForbiddenError: The operator does not allow the isolation.
            UnsupportedError: It asks for what cannot be enforced yet.
            NotFoundError: ``template_not_found``, ``file_not_found``.
            LimitError: ``quota_exceeded``.
            ConflictError: Another request was sent under this key before.
            HostError: This host cannot do it; says why.
            UnavailableError: There is no room, or the service is stopping.
            SandboxEndedError: Somebody killed it while it was created.
        """
        if key is None:
            return await self._create(asked, who, None, None, source)
        digest = digest_of(asked) if source is None or source.digest is None else source.digest
        async with self._idempotency_locks.hold(who.owner, check_key(key)):
            before = await made_before(self._register.store.sandboxes, who.owner, key, digest, self._known, self._revived)
            return before or await self._create(asked, who, key, digest, source)

    async def _create(self, asked: NewSandbox, who: Principal, key: str | None, digest: str | None, source: Source | None) -> Sandbox:
        with self.naming(who.owner, asked.name if asked.unique_name else None):
            born = await self._births.conceive(asked, who, source, self.living, self._check_open)
            box = born.box
            box.idempotency_key, box.request_digest = key, digest
            self._begin(box, life.create, born.start, born.inject)
        try:
            await asyncio.shield(box.ready)
        except asyncio.CancelledError:
            box.end(Exit(ExitReason.KILLED, "the client that created it went away"))
            raise
        except SandboxEndedError:
            self._check_open()  # nobody has seen it yet: its creator may simply ask the next service
            raise
        _log.info("sandbox.created", sandbox=box.id, template=box.spec.template, isolation=box.spec.isolation)
        return box

    def _check_open(self) -> None:
        if self._closing:
            code, fields = ErrorCode.SERVICE_UNAVAILABLE, {"retry_after_s": 1}
            raise UnavailableError("The service is stopping.", code=code, hint="Try again in a moment.", fields=fields) from None

    def _promised(self, box: Sandbox) -> None:
        self._ledger.promised_before(box.id, self._supply.drivers[box.spec.isolation].takes(box.spec.limits))

    def _begin(self, box: Sandbox, course: Course, start: Start, inject: Inject | None = None) -> None:
        """Let a sandbox live, by one task that owns it."""
        box.journal, box.monthly = self._register.journal, self._register.monthly
        box.rouse, box.woken = resting.resume, functools.partial(inherited.awake, box)
        driver = self._supply.drivers[box.spec.isolation]
        means = Means(
            driver=driver,
            can=lambda ability: self._supply.able(box.spec.isolation, ability),
            base=self._supply.base_of,
            start=start,
            prepare=functools.partial(self.pools.prepare, box.spec.isolation),
            greet=self._greet,
            clock=self._clock,
            disposer=self._disposer,
            turns=self._turns,
            register=self._register,
            images=self._images,
            claim=lambda one: self._births.claim(one, self.living),
            rested=self._rested,
            keep_resting_s=self._rules.keep_resting_s,
            inject=inject,
            promised=self._promised,
            services=self._services,
            volumes=self._births.volumes,
        )
        if course is adoption.take_over:
            self._promised(box)
            hold(self._births.volumes, box)
        task = asyncio.create_task(live(box, means, course), name=f"sandbox {box.id}")
        self._lives[box.id] = (box, task)
        task.add_done_callback(lambda _: self._gone(box))

    def _rested(self, box: Sandbox, disk_bytes: int) -> None:
        if box.id in self._lives:
            self._ledger.promised_before(box.id, Resources(memory_bytes=0, disk_bytes=disk_bytes, pids=0))
            let_go(self._births.volumes, box)

    async def kill(self, id_: str, who: Principal) -> None:
        """End a sandbox; return when its processes are dead. Idempotent.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        box = await self.look(id_, who)
        box.end(Exit(ExitReason.KILLED, "it was killed by request"))
        await ending.ended(box, self._lives.get(box.id, (None, None))[1])

    async def update(self, id_: str, who: Principal, what: Update) -> Sandbox:
        """Change a sandbox: all of what is asked, or nothing.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            LimitError: ``quota_exceeded``.
            InvalidRequestError: Out of bounds.
            UnsupportedError: A limit that cannot be changed while it runs.
            ConflictError: It uses more than it would be allowed, or is still being created.
            UnavailableError: ``busy``: the node has not so much to give now.
            SandboxEndedError: It has ended.
        """
        box = self.find(id_, who)
        hands = Hands(
            driver=self._supply.drivers[box.spec.isolation],
            can=await self._supply.capabilities(box.spec.isolation),
            ledger=self._ledger,
            register=self._register,
            clock=self._clock,
            check=lambda: quotas.check_update(who, box, math.inf if what.persistent else what.timeout_s, what.limits, self._of(box.owner)),
        )
        with self.naming(box.owner, what.name if what.unique_name else None, box):
            await update(box, what, hands)
        box.activity.touch()
        return box

    async def pause(self, id_: str, who: Principal) -> Sandbox:
        """Freeze a sandbox where it is; one that rests already does.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            UnsupportedError: Its isolation cannot.
            SandboxEndedError: It has ended.
        """
        return await self._ordered(self.find(id_, who), resting.pause)

    async def hibernate(self, id_: str, who: Principal) -> Sandbox:
        """Write a sandbox to the disk and give its memory back.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            UnsupportedError: Its isolation cannot.
            HostError: It cannot be written; it goes on as it was.
            SandboxEndedError: It has ended.
        """
        return await self._ordered(self.find(id_, who), resting.hibernate)

    async def resume(self, id_: str, who: Principal, *, timeout_s: float | None = resting.SAME) -> Sandbox:
        """Let a sandbox go on that was paused or hibernated, with its timeout anew; one that runs does.

        Args:
            id_: Its id.
            who: Who asks.
            timeout_s: A new timeout; None is none.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            LimitError: ``quota_exceeded``.
            UnavailableError: ``busy``: the node has no room for a hibernated one now.
            ConflictError: ``snapshot_unusable``: its image cannot be used any more.
            SandboxEndedError: It has ended.
        """
        box = self.find(id_, who)
        if timeout_s is None or timeout_s != resting.SAME:
            quotas.check_lifetime(who.quota, timeout_s)
        return await self._ordered(box, functools.partial(resting.resume, timeout_s=timeout_s))

    async def _ordered(self, box: Sandbox, work: Work[None]) -> Sandbox:
        await box.adopted.wait()
        await box.orders.put(work)
        return box

    async def check_disk(self) -> None:
        """Refuse to write more to the host's disk while it is short of space, whoever took it; ``busy``."""
        self._ledger.check_pressure(Resources(memory_bytes=0, disk_bytes=1, pids=0), await self._ledger.look())

    async def figures(self) -> Figures:
        """What this node may promise, and what it has promised."""
        return await self._ledger.figures()

    def _gone(self, box: Sandbox) -> None:
        """Every trace of a sandbox is removed."""
        del self._lives[box.id]
        self._ledger.give_up(box.id)
        let_go(self._births.volumes, box)
        self._idle_since_monotonic_s = self._clock.monotonic_s()
        # One that could not be created is not remembered: its creator got the reason, and nobody else has the id.
        if box.exit is None:
            self._left[box.id] = box
        elif box.told:
            box.spec = dataclasses.replace(box.spec, env={})
            box.forget()
            self._remember(box)
