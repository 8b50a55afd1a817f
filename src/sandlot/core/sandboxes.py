"""All sandboxes of this service: created, found, prolonged, killed, and remembered for a while after their end.

Laws:
- A sandbox counts against the service's bound, and against what the host has (:mod:`sandlot.core.node.capacity`), from the request
  that creates it until its last trace is removed.
- A client that goes away while its sandbox is created leaves nothing behind.
- What a request of one idempotency key made is made once, however often it is sent, also to the service after this one.
- A service that ends leaves its sandboxes to the next one, unless it is told to end them (:mod:`sandlot.core.adoption`).
- Killing is idempotent; any number of callers may wait for the same end.
- What is remembered of an ended sandbox is bounded, and holds nothing of its environment; its record is in the store for longer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from sandlot.core import admission, adoption, ending, life
from sandlot.core.admission import NewSandbox, Rules
from sandlot.core.life import Course, Means, live
from sandlot.core.limits import Used, used
from sandlot.core.listing import Wanted, page, place
from sandlot.core.node.budget import Budget
from sandlot.core.node.capacity import Figures
from sandlot.core.node.idle import Reaper
from sandlot.core.node.ledger import Ledger
from sandlot.core.ports import Clock, Greet, Packages, Templates
from sandlot.core.records import quotas
from sandlot.core.records.once import Once, check_key, digest_of, made_before
from sandlot.core.records.register import Register, revived
from sandlot.core.runs.installing import services_of
from sandlot.core.sandbox import Sandbox
from sandlot.core.supply import Supply
from sandlot.core.updates import Hands, Update, update
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ErrorCode, NotFoundError, SandboxEndedError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Driver, Exit, ExitReason, Reading, Resources
from sandlot.model.records import SandboxRecord
from sandlot.model.specs import SandboxSpec
from sandlot.model.states import SETTLEMENT, Settlement, State
from sandlot.model.storage import Position

REMEMBERED = 1000
"""Ended sandboxes that can still be asked about."""

CLOSE_TIMEOUT_S = 60.0
"""For removing everything when the service stops; what is left then is swept by the next start."""

Injects = Callable[[Principal, Sequence[str]], Coroutine[Any, Any, Callable[[Sandbox], Coroutine[Any, Any, object]]]]
"""Finds files of the file store for a principal, and gives what puts them into a sandbox."""

_log = structlog.get_logger("sandlot.core")


def _stopping() -> UnavailableError:
    fields = {"retry_after_s": 1}
    return UnavailableError("The service is stopping.", code=ErrorCode.SERVICE_UNAVAILABLE, hint="Try again in a moment.", fields=fields)


class Sandboxes:
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
        injects: Finds files of the file store that are to be in a new sandbox.
        packages: Package indexes for those inside; None is none.
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
        injects: Injects | None = None,
        packages: Packages | None = None,
    ) -> None:
        self._register = register
        self._injects = injects
        self._services = functools.partial(services_of, packages)
        self._once = Once()
        self._tasks: set[asyncio.Task[None]] = set()
        self._supply = Supply(drivers, templates)
        self._greet = greet
        self._clock = clock
        self._new_id = new_id
        self._rules = rules
        self._budget = budget
        self._ledger = Ledger(read_host, rules.shares, clock)
        self._turns = asyncio.Semaphore(rules.max_creates)
        self._lives: dict[SandboxId, tuple[Sandbox, asyncio.Task[None]]] = {}
        self._left: dict[SandboxId, Sandbox] = {}
        self._past: OrderedDict[SandboxId, Sandbox] = OrderedDict()
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
            else:
                self._begin(self._revived(record), adoption.take_over)
        lives = [box for box, _ in self._lives.values()]
        self._work(adoption.tidy(lives, self._supply.drivers.values(), kept))
        self._work(Reaper(lambda: [box for box, _ in self._lives.values()], self._clock).run())
        return len(self._lives)

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        for task in tuple(self._tasks):
            task.cancel()
        tasks = [task for _, task in self._lives.values()]
        for box, _ in self._lives.values():
            if keep and box.told:
                box.leave()
            else:
                box.end(Exit(ExitReason.KILLED, "the service was stopped"))
        now_s, first = asyncio.get_running_loop().time(), self._close_by_s is None
        self._close_by_s = now_s + CLOSE_TIMEOUT_S if self._close_by_s is None else self._close_by_s
        if tasks:
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

    async def create(self, asked: NewSandbox, who: Principal, *, key: str | None = None) -> Sandbox:
        """Create a sandbox and wait until it runs.

        Args:
            asked: It, as it was asked for.
            who: Whose it will be.
            key: The client's own name for this request. Sent again, it gives what it gave, also where that has ended by then.

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
            return await self._create(asked, who, None, None)
        digest = digest_of(asked)
        async with self._once.turn(who.owner, check_key(key)):
            table = self._register.store.sandboxes
            before = await made_before(table, who.owner, key, digest, self._known, self._revived)
            return before or await self._create(asked, who, key, digest)

    async def _create(self, asked: NewSandbox, who: Principal, key: str | None, digest: str | None) -> Sandbox:
        admission.check_source(asked.snapshot)
        isolation = admission.choose_isolation(asked.isolation, self._rules, self._supply.drivers)
        network = admission.choose_network(asked.network)
        self._supply.check_template(asked.template)
        admission.check_host(await self._supply.capabilities(isolation))
        prepare = None if self._injects is None or not asked.files else await self._injects(who, asked.files)
        reading = await self._ledger.look()
        if self._closing:  # asked last, because the checks before it may have waited
            raise _stopping()
        takes = self._supply.drivers[isolation].takes(asked.limits)
        self._ledger.check_ever(takes, reading)  # first: what can never be is not told to try again
        quotas.check_create(who, asked, self._of(who.owner))
        waiting = sum(1 for box, _ in self._lives.values() if box.state is State.CREATING) - self._rules.max_creates
        admission.check_room(len(self._lives), waiting, self._rules)
        spec = SandboxSpec(
            id=self._new_id(),
            template=asked.template,
            env=asked.env,
            metadata=asked.metadata,
            limits=asked.limits,
            timeout_s=asked.timeout_s,
            network=network,
            isolation=isolation,
        )
        box = Sandbox(
            spec,
            owner=who.owner,
            name=asked.name,
            created_at=self._clock.now(),
            budget=self._budget.part(),
            clock=self._clock,
            idle_timeout_s=asked.idle_timeout_s,
        )
        box.idempotency_key, box.request_digest = key, digest
        self._ledger.promise(box.id, takes, reading)
        self._begin(box, life.create, prepare)
        try:
            await asyncio.shield(box.ready)
        except asyncio.CancelledError:
            box.end(Exit(ExitReason.KILLED, "the client that created it went away"))
            raise
        except SandboxEndedError:
            if self._closing:  # nobody has seen it yet: its creator may simply ask the next service
                raise _stopping() from None
            raise
        _log.info("sandbox.created", sandbox=box.id, template=spec.template, isolation=isolation)
        return box

    def _promised(self, box: Sandbox) -> None:
        self._ledger.promised_before(box.id, self._supply.drivers[box.spec.isolation].takes(box.spec.limits))

    def _here(self) -> list[Sandbox]:
        return [*(box for box, _ in self._lives.values()), *self._left.values()]

    def _of(self, owner: OwnerId) -> list[Sandbox]:
        return [box for box, _ in self._lives.values() if box.owner == owner]

    def _begin(self, box: Sandbox, course: Course, prepare: Callable[[Sandbox], Coroutine[Any, Any, object]] | None = None) -> None:
        """Let a sandbox live, by one task that owns it."""
        box.journal = self._register.journal
        box.monthly = self._register.monthly
        driver = self._supply.drivers[box.spec.isolation]
        means = Means(driver, self._supply.base, self._greet, self._clock, self._turns, self._register, prepare, self._promised, self._services)
        if course is adoption.take_over:
            self._promised(box)
        task = asyncio.create_task(live(box, means, course), name=f"sandbox {box.id}")
        self._lives[box.id] = (box, task)
        task.add_done_callback(lambda _: self._gone(box))

    def find(self, id_: str, who: Principal) -> Sandbox:
        """A sandbox by its id, ended ones that are remembered included; somebody else's is ``sandbox_not_found``."""
        box = self._known(id_)
        if box is not None and who.sees(box.owner):
            return box
        raise NotFoundError(
            f"There is no sandbox {id_[:64]!r}.",
            code=ErrorCode.SANDBOX_NOT_FOUND,
            hint="It may have ended long ago. List what there is, or create a new one.",
            fields={"sandbox": id_[:64]},
        )

    def _revived(self, record: SandboxRecord) -> Sandbox:
        return revived(record, self._budget.part(), self._clock)

    def _known(self, id_: str) -> Sandbox | None:
        living = self._lives.get(SandboxId(id_))
        return living[0] if living is not None else self._left.get(SandboxId(id_)) or self._past.get(SandboxId(id_))

    async def look(self, id_: str, who: Principal) -> Sandbox:
        """A sandbox by its id, however long ago it ended: for as long as its record is kept; else ``sandbox_not_found``."""
        if self._known(id_) is None and (record := await self._register.store.sandboxes.get(SandboxId(id_))) is not None:
            box = self._revived(record)
            if who.sees(box.owner) and box.ended.is_set():
                return box
        return self.find(id_, who)

    def all(self, who: Principal, *, ended: bool = False) -> list[Sandbox]:
        """The sandboxes that there are for somebody, oldest first; ``ended``: also those that have ended and are remembered."""
        boxes = [box for box in self._here() if ended or not box.ended.is_set()]
        if ended:
            boxes += self._past.values()
        return sorted((box for box in boxes if who.sees(box.owner)), key=place)

    async def page(self, who: Principal, wanted: Wanted, *, after: Position | None, limit: int) -> tuple[Sequence[Sandbox], bool]:
        """Some of the sandboxes that there are or were for somebody, oldest first, and whether more follow."""
        return await page(self._register.store.sandboxes, self._here(), who, wanted, after=after, limit=limit, revive=self._revived)

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
        await update(box, what, hands)
        box.activity.touch()
        return box

    def check_runs(self, who: Principal) -> None:
        """Refuse whoever may begin no more runs this month; ``quota_exceeded``."""
        if self._register.monthly is not None:
            self._register.monthly.check(who.owner)

    async def usage(self, id_: str, who: Principal) -> Used:
        """What a sandbox has used so far, and of how much."""
        return await used(self.find(id_, who))

    async def check_disk(self) -> None:
        """Refuse to write more to the host's disk while it is short of space, whoever took it; ``busy``."""
        self._ledger.check_pressure(Resources(memory_bytes=0, disk_bytes=1, pids=0), await self._ledger.look())

    async def figures(self) -> Figures:
        """What this node may promise, and what it has promised."""
        return await self._ledger.figures()

    @property
    def supply(self) -> Supply:
        """What sandboxes are made of."""
        return self._supply

    def _gone(self, box: Sandbox) -> None:
        """Every trace of a sandbox is removed."""
        del self._lives[box.id]
        self._ledger.give_up(box.id)
        self._idle_since_monotonic_s = self._clock.monotonic_s()
        # One that could not be created is not remembered: its creator got the reason, and nobody else has the id.
        if box.exit is None:
            self._left[box.id] = box
        elif box.told:
            box.spec = dataclasses.replace(box.spec, env={})
            box.forget()
            self._remember(box)

    def _remember(self, box: Sandbox) -> None:
        self._past[box.id] = box
        while len(self._past) > REMEMBERED:
            self._past.popitem(last=False)
