"""What keeps pools full: one task that looks, decides (:mod:`sandlot.core.pools.policy`) and begins, and those that it begins.

Laws:
- It runs off every request's way: requests tell it that something happened, and wait for nothing here.
- It waits while sandboxes wait for a turn to be created, while the host is short of memory, and for a while after somebody was given room for
  which something of a pool had to go.
- The node's pools are filled first, then those of whoever has least. Where the node's find no room, what waits for owners, or is made for them, goes
  as far as that gives it; where it would not be enough, it stays.
- What is made for owners slows nothing of the node's: they have one hand together, and it rests by itself.
- For an owner a template snapshot is made only while something may be filled from it.
- What is begun and cannot be finished is given back, and its promise given up; a failure makes the next try later, and is told with the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

import structlog

from sandlot.core.node.disposer import Disposer
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations, combine
from sandlot.core.pools import models, policy
from sandlot.core.pools.models import PoolSpec, TemplateSnapshotSpec
from sandlot.core.pools.ownership import PoolOwners, first_to_go, turn
from sandlot.core.pools.pool import Pool, PreparedPoolEntry, Removals, WarmSandbox, holder_of
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.pools.template_snapshots import TemplateSnapshotManager, failure
from sandlot.core.pools.warm import WarmSandboxFactory
from sandlot.core.ports import Clock, GuestLinkFactory
from sandlot.core.records.metrics import Metrics
from sandlot.model.access import LOCAL
from sandlot.model.errors import InvalidRequestError, SandlotError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import DriverCapability, HostReading, Resources

START_S: Final = 1.0
"""A service that was just started answers first."""

TICK_S: Final = 2.0
"""How often it looks although nothing happened: ages, memory, what others made."""

AFTER_EVICTION_S: Final = 10.0
SWEEP_S: Final = 3600.0

_log = structlog.get_logger("sandlot.core")


class PoolRefiller:
    """It.

    Args:
        pools: Gives them all.
        implied: What template snapshots there should be besides those of pools, once their images are there.
        snapshots: The template snapshots.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Where the node's promises are.
        greet: Makes a link to a guest.
        clock: The time.
        new_id: Makes ids that carry this node.
        metrics: What is counted.
        busy: Whether requests for sandboxes wait for a turn.
        settle: Sees to what owners may not have any more; done first in each look.
        owners: Who owns pools.
    """

    def __init__(  # noqa: PLR0913 - all by name, and each a part of the service
        self,
        *,
        pools: Callable[[], Iterable[Pool]],
        implied: Iterable[PoolSpec],
        snapshots: TemplateSnapshotManager,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
        greet: GuestLinkFactory,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        metrics: Metrics,
        busy: Callable[[], bool],
        settle: Callable[[], Awaitable[None]],
        owners: PoolOwners,
    ) -> None:
        self._pools = pools
        self._implied = tuple(implied)
        self._snapshots = snapshots
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._greet = greet
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics
        self._busy = busy
        self._settle = settle
        self._owners = owners
        self._kicked = asyncio.Event()
        self._waits = False
        self._alarms: set[asyncio.Task[None]] = set()
        self._tasks: dict[asyncio.Task[None], str] = {}
        """What is in the making, and who has its promise."""
        self._writing: asyncio.Task[None] | None = None
        self._writes_owners = False
        self._rest_until_s = {True: float("-inf"), False: float("-inf")}
        """Of owners' pools, and of the node's."""
        self._swept_s = float("-inf")
        self._removals = Removals(reservations, Disposer(clock))
        snapshots.displace = self._displace

    def kick(self) -> None:
        """Something happened: look now."""
        self._kicked.set()

    def hold(self) -> None:
        """Make nothing for a while: somebody needed the room."""
        self._rest(AFTER_EVICTION_S, True, False)

    def _rest(self, for_s: float, *owned: bool) -> None:
        for which in owned:
            self._rest_until_s[which] = max(self._rest_until_s[which], self._clock.monotonic_s() + for_s)

    async def run(self) -> None:
        """Keep them full, until it is cancelled."""
        await asyncio.create_task(self._clock.sleep_until(self._clock.monotonic_s() + START_S))
        while True:
            self._kicked.clear()
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - whatever it is, pools are a comfort, and the next look is another try
                _log.exception("pools.defect")
            await self._kicked_within(TICK_S)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being made or removed, and nothing has happened since the last look."""
        return self._waits and not (self._kicked.is_set() or self._tasks or self._writing or self._removals.tasks)

    async def _kicked_within(self, seconds: float) -> None:
        """Wait until something happens, or so many seconds have passed."""
        alarm = asyncio.create_task(self._kick_after(seconds))
        self._waits = True
        try:
            await self._kicked.wait()
        finally:
            self._waits = False
            alarm.cancel()

    async def _kick_after(self, seconds: float) -> None:
        await self._clock.sleep_until(self._clock.monotonic_s() + seconds)
        self.kick()

    async def aclose(self) -> None:
        """End what is in the making, and wait until all that is out of the pools is gone."""
        for task in (*self._making(), *self._alarms):
            task.cancel()
        await asyncio.gather(*self._making(), *self._alarms, *self._removals.tasks, return_exceptions=True)

    async def free_one(self, *, of_owners: bool = False) -> bool:
        """Wait for something that is being removed, or end something that is in the making; whether there was anything.

        Args:
            of_owners: Only end something that is in the making for owners.
        """
        if self._removals.tasks and not of_owners:
            await asyncio.wait(set(self._removals.tasks), return_when=asyncio.FIRST_COMPLETED)
            return True
        for task in self._making_for_owners() if of_owners else self._making():
            _end(task)
            await asyncio.wait({task})
            return True
        return False

    def dispose(self, *out: WarmSandbox | PreparedPoolEntry) -> None:
        """Remove what is out of its pool; its promise is given up once nothing of it is left."""
        self._removals.begin(*out)

    def evict(self, chosen: WarmSandbox | PreparedPoolEntry, why: str) -> None:
        """Take something out of its pool, whose room is needed, and remove it."""
        for pool in self._pools():
            pool.drop(chosen)
        self._metrics.evicted()
        _log.info("pool.evicted", template=chosen.kind.template, hint=why)
        self.dispose(chosen)

    def _making(self) -> Mapping[asyncio.Task[None], str]:
        """What is in the making, and who has its promise; nobody may have."""
        writing = {} if self._writing is None else {self._writing: self._snapshots.holder}
        return {task: holder for task, holder in (self._tasks | writing).items() if not task.done()}

    def _making_for_owners(self) -> dict[asyncio.Task[None], str]:
        theirs = [task for pool in self._pools() if pool.owner != LOCAL for task in pool.filling]
        return {task: holder for task, holder in self._making().items() if task in theirs or (task is self._writing and self._writes_owners)}

    def _displace(self, asked: Resources, reading: HostReading) -> bool:
        """Let go of what waits for owners, or is made for them, until there will be room for something of the node's; whether there will be."""
        pools = [pool for pool in self._pools() if pool.owner != LOCAL]
        making = self._making_for_owners()
        going = {*self._removals.tasks.values(), *(holder for task, holder in self._making().items() if task.cancelling())}
        if not self._has_room(asked, reading, {*going, *making.values(), *(member.holder for pool in pools for member in pool.ready)}):
            return False
        while not self._has_room(asked, reading, going):
            self._rest(AFTER_EVICTION_S, True)
            if isinstance(chosen := first_to_go(pools), WarmSandbox):
                self.evict(chosen, "The node's own pools needed its room.")
                going.add(chosen.holder)
            else:
                task, holder = making.popitem()
                _end(task)
                going.add(holder)
        return True

    # -- looking ----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        await self._settle()
        now_s = self._clock.monotonic_s()
        if now_s - self._swept_s > SWEEP_S:
            self._swept_s = now_s
            await self._snapshots.sweep()
        short = await self._is_short()
        if short:
            self.hold()
            await self._reservations.evict_one()
        if self._writing is None and not short and not self._busy():
            self._writing = asyncio.create_task(self._write())
            self._writing.add_done_callback(self._written)
        for pool in sorted(self._pools(), key=lambda pool: turn(pool, self._pools())):
            pool.cool(now_s)
            await self._stock(pool)

    async def _is_short(self) -> bool:
        """Whether the host is short of memory, so that what only waits has to go."""
        try:
            self._reservations.check_pressure(Resources(memory_bytes=1, disk_bytes=0, pids=0), await self._reservations.read_host())
        except UnavailableError:
            return True
        return False

    async def _write(self) -> None:
        """See to every template snapshot that there should be, one after the other."""
        kinds: dict[TemplateSnapshotSpec, bool] = {}
        for pool in self._pools():
            if pool.owner == LOCAL:
                kinds[models.snapshot_spec(pool.kind)] = kinds.get(models.snapshot_spec(pool.kind), True) and pool.implied
        for kind in self._implied:
            kinds.setdefault(models.snapshot_spec(kind), True)
        theirs = [pool for pool in self._pools() if pool.owner != LOCAL]
        await self._snapshots.keep(set(kinds), {models.snapshot_spec(pool.kind) for pool in theirs} - kinds.keys())
        for look, implied in kinds.items():
            if self._busy():
                return
            if not implied or await self._is_built(look.template):
                await self._write_one(look)
        self._writes_owners = True
        began_s = self._clock.monotonic_s()
        for look in {models.snapshot_spec(pool.kind): None for pool in theirs if self._owners.may_have(pool, self._pools())}:
            now_s = self._clock.monotonic_s()
            if self._busy() or now_s < self._rest_until_s[True] or now_s - began_s > TICK_S:
                return  # after one that took its time the node's are looked at first
            if look not in kinds:
                await self._write_one(look)

    async def _write_one(self, look: TemplateSnapshotSpec) -> None:
        before = self._snapshots.at_hand(look)
        if look.isolation in self._drivers and await self._snapshots.ensure(look) is not before:
            self.kick()

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing, self._writes_owners = None, False
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("pools.defect", exc_info=error)

    async def _is_built(self, template: str) -> bool:
        return any(each.name == template and each.digest is not None for each in await self._templates.list())

    # -- one pool ---------------------------------------------------------------------------------------------------

    async def _stock(self, pool: Pool) -> None:
        """Do what its policy says."""
        now_s = self._clock.monotonic_s()
        owned = pool.owner != LOCAL
        hands = policy.AT_ONCE - len(self._tasks)
        if owned:
            hands = min(hands, policy.OWNERS_AT_ONCE - sum(len(each.filling) for each in self._pools() if each.owner != LOCAL))
        if self._busy() or now_s < max(self._rest_until_s[owned], pool.not_before_s):
            hands = 0
        if hands > 0 and not policy.is_calm(now_s, pool.asked_s, pool.hungry_s):
            hands = 0
            alarm = asyncio.create_task(self._kick_after(policy.CALM_S))
            self._alarms.add(alarm)
            alarm.add_done_callback(self._alarms.discard)
        able = hands > 0 and await self._can_fill(pool)
        self._drop_stale(pool)
        step = policy.step(pool.sizes, pool.stock(self._clock.monotonic_s()), max(0, hands) if able else 0, self._owners.spare(pool, self._pools()))
        out: list[WarmSandbox | PreparedPoolEntry] = [*list(pool.ready)[: step.drop], *list(pool.blanks)[: step.drop_blank]]
        self.dispose(*(what for what in out if pool.drop(what)))
        if step.fill or step.fill_blank:
            pool.hungry_s = None
        for _ in range(step.fill):
            self._begin(pool, pool.filling, self._fill)
        for _ in range(step.fill_blank):
            self._begin(pool, pool.filling_blanks, self._fill_blank)

    async def _can_fill(self, pool: Pool) -> bool:
        """Whether something can be made for it now: its driver can freeze, its image is there, and its snapshot where it has one."""
        driver = self._drivers.get(pool.kind.isolation)
        if driver is None:
            return False
        can = await self._drivers.capabilities(pool.kind.isolation)
        if not can.can(DriverCapability.PAUSE):
            pool.error = f"It cannot wait frozen: {can.why_not(DriverCapability.PAUSE)}."
            return False
        if can.can(DriverCapability.SNAPSHOT):
            return self._snapshots.at_hand(models.snapshot_spec(pool.kind)) is not None
        return not pool.implied or await self._is_built(pool.kind.template)

    def _drop_stale(self, pool: Pool) -> None:
        """What was made from another snapshot than what would be used now goes."""
        held = self._snapshots.at_hand(models.snapshot_spec(pool.kind))
        if held is None:
            return
        self.dispose(*(what for what in list(pool.everything()) if what.key not in {"", held.key} and pool.drop(what)))

    def _begin(self, pool: Pool, tasks: set[asyncio.Task[None]], work: Callable[[Pool, SandboxId], Coroutine[Any, Any, None]]) -> None:
        id_ = self._new_id()
        task = asyncio.create_task(work(pool, id_))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        self._tasks[task] = holder_of(id_)
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(lambda _: self.kick())

    async def _fill(self, pool: Pool, id_: SandboxId) -> None:
        """Make one that waits."""
        held = self._snapshots.at_hand(models.snapshot_spec(pool.kind))

        async def make(making: WarmSandboxFactory) -> None:
            asleep = await (making.boot(id_) if held is None else making.rehearse(id_, held.image))
            try:
                await asleep.instance.pause()
            except BaseException:
                await asyncio.shield(asleep.destroy())
                raise
            member = WarmSandbox(id_, pool.kind, asleep, making.base, self._clock.monotonic_s(), "" if held is None else held.key)
            pool.ready.append(member)
            asleep.exits.add_done_callback(lambda _: self._died(pool, member))

        await self._filled(pool, holder_of(id_), held, make)

    async def _fill_blank(self, pool: Pool, id_: SandboxId) -> None:
        """Prepare one with nothing in it, its runtime started."""
        held = self._snapshots.at_hand(models.snapshot_spec(pool.kind))

        async def make(making: WarmSandboxFactory) -> None:
            prepared = await making.driver.prepare(making.shape, snapshot=None if held is None else held.image)
            try:
                if held is not None:
                    await prepared.warm()
            except BaseException:
                await asyncio.shield(prepared.destroy())
                raise
            key = "" if held is None else held.key
            pool.blanks.append(PreparedPoolEntry(pool.kind, prepared, making.base, key, holder_of(id_), self._clock.monotonic_s()))

        await self._filled(pool, holder_of(id_), held, make)

    async def _filled(
        self, pool: Pool, holder: str, held: TemplateSnapshot | None, make: Callable[[WarmSandboxFactory], Coroutine[Any, Any, None]]
    ) -> None:
        """Make something under a promise; what comes of it is the pool's."""
        driver, kind = self._drivers[pool.kind.isolation], pool.kind
        takes, began_s, done = driver.max_resources(kind.limits), self._clock.monotonic_s(), False
        try:
            base = await self._templates.resolve(kind.template)
            reading = await self._reservations.read_host()
            room = combine(sum, takes, takes)  # for a sandbox of that size besides
            if not self._has_room(room, reading):
                soon = pool.owner == LOCAL and self._displace(room, reading)
                pool.not_before_s = self._clock.monotonic_s() + policy.back_off_s(1 if soon else 2)
                return
            self._reservations.reserve(holder, takes, reading)
            try:
                await make(WarmSandboxFactory(driver, self._greet, kind.template, base, kind.limits))
                done = True
            finally:
                if not done:
                    self._reservations.release(holder)
        except (SandlotError, OSError, TimeoutError) as error:
            why = failure(error)
            _log.warning("pool.not_filled", pool=pool.id, template=kind.template, error=str(error) or why)
            pool.failures, pool.error = pool.failures + 1, why
            pool.not_before_s = self._clock.monotonic_s() + policy.back_off_s(pool.failures)
            self._metrics.refill_failed(kind.isolation)
            if held is not None and pool.failures > 1:
                self._snapshots.failed(held, why)
        else:
            pool.failures, pool.error = 0, ""
        finally:
            self._rest(policy.pause_s(self._clock.monotonic_s() - began_s), pool.owner != LOCAL)

    def _has_room(self, asked: Resources, reading: HostReading, besides: Collection[str] = ()) -> bool:
        """Whether there is room for it, where some promises do not count."""
        try:
            return self._reservations.fits(asked, reading, ignoring=besides)
        except InvalidRequestError:  # it is more than the node ever has
            return False

    def _died(self, pool: Pool, member: WarmSandbox) -> None:
        if pool.drop(member):
            _log.warning("pool.member_died", pool=pool.id, ref=member.asleep.instance.ref)
            self.dispose(member)
            self.kick()


def _end(task: asyncio.Task[None]) -> None:
    if not task.cancelling():  # else it is giving back what it has
        task.cancel()
