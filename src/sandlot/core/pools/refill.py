"""Keep pools full: one task looks at all pools, decides (:mod:`sandlot.core.pools.policy`) and starts fills.

Invariants:
- Refills are outside of all requests. A request notifies the refiller and waits for nothing here.
- Nothing is filled while create requests wait for a start slot, while the host is short of memory, and for :data:`AFTER_EVICTION_S` after an entry
  was evicted.
- Shared pools are filled first, then the private pools of the owner with the fewest warm sandboxes. If a shared pool finds no room, private entries
  are evicted and private fills are cancelled, but only if that gives enough room.
- Private fills do not slow shared ones down: at most ``policy.MAX_PRIVATE_FILLS`` run at once, and the rest after them delays no shared pool.
- A template snapshot is made for private pools only while one of them may have a warm sandbox.
- A fill that cannot be finished removes what it has made and releases its reservation. Each failure delays the next fill, and its reason is reported
  with the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

import structlog

from sandlot.core.node.disposer import Disposer
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations, combine
from sandlot.core.pools import policy
from sandlot.core.pools.models import PoolSpec, TemplateSnapshotSpec
from sandlot.core.pools.ownership import PoolOwners, fill_priority, is_private, next_eviction
from sandlot.core.pools.pool import Pool, PoolEntry, PreparedPoolEntry, Removals, WarmSandbox, reservation_key
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.pools.template_snapshots import TemplateSnapshotManager, failure_reason
from sandlot.core.pools.warm import WarmSandboxFactory
from sandlot.core.ports import Clock, GuestLinkFactory
from sandlot.core.records.metrics import Metrics
from sandlot.model.errors import InvalidRequestError, SandlotError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import DriverCapability, HostReading, Resources

START_S: Final = 1.0
"""Pause after the start of the service, which responds to requests first."""
TICK_S: Final = 2.0
"""Longest pause between two looks at the pools: ages, memory of the host, and snapshots of other services change without a notification."""
AFTER_EVICTION_S: Final = 10.0
"""Pause after an eviction: the room is needed for something else."""
SWEEP_S: Final = 3600.0
"""Interval between two sweeps of the template snapshots."""

_log = structlog.get_logger("sandlot.core")


class PoolRefiller:
    """Fills pools and removes entries that are no longer wanted.

    Args:
        pools: Pool id -> pool. Each look reads the mapping again.
        extra_snapshots: Specs for which template snapshots are made beside those of the pools, if their images are built.
        snapshots: Template snapshots.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Reservations of the node.
        link_factory: Connects to guests.
        clock: Clock of the service.
        new_id: Creates sandbox ids of this node.
        metrics: Metrics of the service.
        start_slots: Start slots of create requests. While none is free, nothing is filled.
        enforce_ownership: Removes the pools and warm sandboxes that their owners may no longer have; called before each look.
        owners: Owners of private pools.
    """

    def __init__(  # noqa: PLR0913 - each is a part of the service, passed by name
        self,
        *,
        pools: Mapping[str, Pool],
        extra_snapshots: Iterable[PoolSpec],
        snapshots: TemplateSnapshotManager,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
        link_factory: GuestLinkFactory,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        metrics: Metrics,
        start_slots: asyncio.Semaphore,
        enforce_ownership: Callable[[], Awaitable[None]],
        owners: PoolOwners,
    ) -> None:
        self._pools = pools
        self._extra_snapshots = tuple(extra_snapshots)
        self._snapshots = snapshots
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._link_factory = link_factory
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics
        self._start_slots = start_slots
        self._enforce_ownership = enforce_ownership
        self._owners = owners
        self._notified = asyncio.Event()
        self._is_waiting = False
        self._alarms: set[asyncio.Task[None]] = set()
        self._fills: dict[asyncio.Task[None], str] = {}
        """Task of each fill -> key of its reservation, which it may not have yet."""
        self._snapshot_task: asyncio.Task[None] | None = None
        self._snapshot_is_private = False
        """True while the snapshot task makes snapshots that only private pools need."""
        self._rest_until_s = {True: float("-inf"), False: float("-inf")}
        """Monotonic times until which private pools (True) and shared pools (False) are not filled."""
        self._swept_s = float("-inf")
        self._removals = Removals(reservations, Disposer(clock))

    def notify(self) -> None:
        """Look at the pools now: something has changed."""
        self._notified.set()

    def pause_after_eviction(self) -> None:
        """Fill no pool for :data:`AFTER_EVICTION_S`."""
        self._rest(AFTER_EVICTION_S, True, False)

    def _rest(self, for_s: float, *groups: bool) -> None:
        for private in groups:
            self._rest_until_s[private] = max(self._rest_until_s[private], self._clock.monotonic_s() + for_s)

    async def run(self) -> None:
        """Keep the pools full until cancelled."""
        await asyncio.create_task(self._clock.sleep_until(self._clock.monotonic_s() + START_S))
        while True:
            self._notified.clear()
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - requests succeed without pools, and the next look tries again
                _log.exception("pools.defect")
            await self._wait_notified(TICK_S)

    @property
    def is_idle(self) -> bool:
        """True if nothing is being filled or removed, and there was no notification since the last look."""
        return self._is_waiting and not (self._notified.is_set() or self._fills or self._snapshot_task or self._removals.tasks)

    async def _wait_notified(self, timeout_s: float) -> None:
        alarm = asyncio.create_task(self._notify_after(timeout_s))
        self._is_waiting = True
        try:
            await self._notified.wait()
        finally:
            self._is_waiting = False
            alarm.cancel()

    async def _notify_after(self, seconds: float) -> None:
        await self._clock.sleep_until(self._clock.monotonic_s() + seconds)
        self.notify()

    async def aclose(self) -> None:
        """Cancel all fills, and wait until everything that has left the pools is removed."""
        for task in (*self._unfinished(), *self._alarms):
            task.cancel()
        await asyncio.gather(*self._unfinished(), *self._alarms, *self._removals.tasks, return_exceptions=True)

    # Evictions and removals --------------------------------------------------------------------------------------------

    async def free_one(self, *, only_private: bool = False) -> bool:
        """Wait for one removal to end, or cancel one fill and wait for its end. Return False if there was neither.

        Args:
            only_private: Only cancel a fill of a private pool.
        """
        if self._removals.tasks and not only_private:
            await asyncio.wait(set(self._removals.tasks), return_when=asyncio.FIRST_COMPLETED)
            return True
        for task in self._unfinished_private() if only_private else self._unfinished():
            _cancel(task)
            await asyncio.wait({task})
            return True
        return False

    def remove(self, *entries: PoolEntry) -> None:
        """Start to remove entries that have left their pool. A reservation is released when nothing of its entry is left."""
        self._removals.start(*entries)

    def evict(self, entry: PoolEntry, reason: str) -> None:
        """Take an entry out of its pool because its room is needed, and start to remove it."""
        for pool in self._pools.values():
            pool.drop(entry)
        self._metrics.evicted()
        _log.info("pool.evicted", template=entry.spec.template, hint=reason)
        self.remove(entry)

    def make_room_for_shared(self, needed: Resources, reading: HostReading) -> bool:
        """Start to evict private entries and cancel private fills until an amount will fit. Return False if all of them would not be enough.

        Args:
            needed: The amount.
            reading: Reading of the host.
        """
        private = [pool for pool in self._pools.values() if is_private(pool)]
        unfinished = self._unfinished_private()
        leaving = {*self._removals.tasks.values(), *(key for task, key in self._unfinished().items() if task.cancelling())}
        warm = {warm.reservation_key for pool in private for warm in pool.ready}
        if not self._fits(needed, reading, {*leaving, *unfinished.values(), *warm}):
            return False
        while not self._fits(needed, reading, leaving):
            self._rest(AFTER_EVICTION_S, True)
            if isinstance(entry := next_eviction(private), WarmSandbox):
                self.evict(entry, "A shared pool needed its room.")
                leaving.add(entry.reservation_key)
            else:
                task, key = unfinished.popitem()
                _cancel(task)
                leaving.add(key)
        return True

    def _unfinished(self) -> Mapping[asyncio.Task[None], str]:
        """Return the tasks that make entries and snapshots, with the keys of their reservations."""
        snapshot = {} if self._snapshot_task is None else {self._snapshot_task: self._snapshots.reservation_key}
        return {task: key for task, key in (self._fills | snapshot).items() if not task.done()}

    def _unfinished_private(self) -> dict[asyncio.Task[None], str]:
        private = {task for pool in self._pools.values() if is_private(pool) for task in pool.filling}
        if self._snapshot_task is not None and self._snapshot_is_private:
            private.add(self._snapshot_task)
        return {task: key for task, key in self._unfinished().items() if task in private}

    # One look at all pools ---------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        await self._enforce_ownership()
        now_s = self._clock.monotonic_s()
        if now_s - self._swept_s > SWEEP_S:
            self._swept_s = now_s
            await self._snapshots.sweep()
        short = await self._host_is_short()
        if short:
            self.pause_after_eviction()
            await self._reservations.evict_one()
        if self._snapshot_task is None and not short and not self._start_slots.locked():
            self._snapshot_task = asyncio.create_task(self._make_snapshots())
            self._snapshot_task.add_done_callback(self._snapshots_made)
        pools = tuple(self._pools.values())
        for pool in sorted(pools, key=lambda pool: fill_priority(pool, pools)):
            pool.shrink(now_s)
            await self._refill(pool)

    async def _host_is_short(self) -> bool:
        """Return whether the host is short of memory, so that entries have to be evicted."""
        try:
            self._reservations.check_pressure(Resources(memory_bytes=1, disk_bytes=0, pids=0), await self._reservations.read_host())
        except UnavailableError:
            return True
        return False

    async def _make_snapshots(self) -> None:
        """Make the template snapshots that are missing or outdated, one after the other."""
        shared: dict[TemplateSnapshotSpec, bool] = {}
        """Spec -> True if only an implied pool needs the snapshot."""
        for pool in self._pools.values():
            if not is_private(pool):
                spec = TemplateSnapshotSpec.of(pool.spec)
                shared[spec] = shared.get(spec, True) and pool.config.is_implied
        for extra in self._extra_snapshots:
            shared.setdefault(TemplateSnapshotSpec.of(extra), True)
        private = [pool for pool in self._pools.values() if is_private(pool)]
        await self._snapshots.retain(set(shared), {TemplateSnapshotSpec.of(pool.spec) for pool in private} - shared.keys())
        for spec, is_implied in shared.items():
            if self._start_slots.locked():
                return
            if not is_implied or await self._is_built(spec.template):
                await self._make_snapshot(spec, is_shared=True)
        self._snapshot_is_private = True
        began_s = self._clock.monotonic_s()
        pools = tuple(self._pools.values())
        for spec in {TemplateSnapshotSpec.of(pool.spec): None for pool in private if self._owners.can_have_warm(pool, pools)}:
            now_s = self._clock.monotonic_s()
            if self._start_slots.locked() or now_s < self._rest_until_s[True] or now_s - began_s > TICK_S:
                return  # after a slow one, snapshots of shared pools are checked first
            if spec not in shared:
                await self._make_snapshot(spec, is_shared=False)

    async def _make_snapshot(self, spec: TemplateSnapshotSpec, *, is_shared: bool) -> None:
        before = self._snapshots.current(spec)
        if spec.isolation in self._drivers and await self._snapshots.ensure(spec, room=self if is_shared else None) is not before:
            self.notify()

    def _snapshots_made(self, task: asyncio.Task[None]) -> None:
        self._snapshot_task, self._snapshot_is_private = None, False
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("pools.defect", exc_info=error)

    async def _is_built(self, template: str) -> bool:
        return any(each.name == template and each.digest is not None for each in await self._templates.list())

    # One pool ----------------------------------------------------------------------------------------------------------

    async def _refill(self, pool: Pool) -> None:
        now_s = self._clock.monotonic_s()
        private = is_private(pool)
        max_fills = policy.MAX_FILLS - len(self._fills)
        if private:
            running = sum(len(each.filling) for each in self._pools.values() if is_private(each))
            max_fills = min(max_fills, policy.MAX_PRIVATE_FILLS - running)
        if self._start_slots.locked() or now_s < max(self._rest_until_s[private], pool.not_before_s):
            max_fills = 0
        if max_fills > 0 and not policy.is_quiet(now_s, pool.last_request_s, pool.waiting_since_s):
            max_fills = 0
            alarm = asyncio.create_task(self._notify_after(policy.QUIET_S))
            self._alarms.add(alarm)
            alarm.add_done_callback(self._alarms.discard)
        if max_fills <= 0 or not await self._can_fill(pool):
            max_fills = 0
        self._remove_outdated(pool)
        quota_left = self._owners.quota_left(pool, tuple(self._pools.values()))
        step = policy.next_step(pool.sizes, pool.contents(self._clock.monotonic_s()), max_fills, quota_left)
        entries: list[PoolEntry] = [*list(pool.ready)[: step.drop], *list(pool.prepared)[: step.drop_prepared]]
        self.remove(*(entry for entry in entries if pool.drop(entry)))
        if step.fill or step.prepare:
            pool.fill_started()
        for _ in range(step.fill):
            self._start_fill(pool, pool.filling, self._fill_warm)
        for _ in range(step.prepare):
            self._start_fill(pool, pool.preparing, self._fill_prepared)

    async def _can_fill(self, pool: Pool) -> bool:
        """Return whether the driver can freeze sandboxes and, if the driver has snapshots, the template snapshot is ready."""
        if pool.spec.isolation not in self._drivers:
            return False
        capabilities = await self._drivers.capabilities(pool.spec.isolation)
        if not capabilities.can(DriverCapability.PAUSE):
            pool.fill_impossible(f"Warm sandboxes cannot be frozen: {capabilities.why_not(DriverCapability.PAUSE)}.")
            return False
        if capabilities.can(DriverCapability.SNAPSHOT):
            return self._current_snapshot(pool) is not None
        return not pool.config.is_implied or await self._is_built(pool.spec.template)

    def _current_snapshot(self, pool: Pool) -> TemplateSnapshot | None:
        return self._snapshots.current(TemplateSnapshotSpec.of(pool.spec))

    def _remove_outdated(self, pool: Pool) -> None:
        """Remove entries that were made from another snapshot than the current one."""
        snapshot = self._current_snapshot(pool)
        if snapshot is not None:
            self.remove(*(entry for entry in pool.entries() if entry.snapshot_key not in {"", snapshot.key} and pool.drop(entry)))

    def _start_fill(self, pool: Pool, tasks: set[asyncio.Task[None]], fill: Callable[[Pool, SandboxId], Coroutine[Any, Any, None]]) -> None:
        id_ = self._new_id()
        task = asyncio.create_task(fill(pool, id_))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        self._fills[task] = reservation_key(id_)
        task.add_done_callback(self._fills.pop)
        task.add_done_callback(lambda _: self.notify())

    async def _fill_warm(self, pool: Pool, id_: SandboxId) -> None:
        snapshot = self._current_snapshot(pool)

        async def make(factory: WarmSandboxFactory) -> None:
            warm = await (factory.boot(id_) if snapshot is None else factory.rehearse(id_, snapshot.image, snapshot.key))
            try:
                await warm.instance.pause()
            except BaseException:
                await asyncio.shield(warm.destroy())
                raise
            pool.ready.append(warm)
            warm.exited.add_done_callback(lambda _: self._warm_sandbox_ended(pool, warm))

        await self._fill(pool, reservation_key(id_), snapshot, make)

    async def _fill_prepared(self, pool: Pool, id_: SandboxId) -> None:
        snapshot = self._current_snapshot(pool)

        async def make(factory: WarmSandboxFactory) -> None:
            prepared = await factory.driver.prepare(factory.shape, snapshot=None if snapshot is None else snapshot.image)
            try:
                if snapshot is not None:
                    await prepared.warm()
            except BaseException:
                await asyncio.shield(prepared.destroy())
                raise
            key = "" if snapshot is None else snapshot.key
            pool.prepared.append(PreparedPoolEntry(pool.spec, factory.template, prepared, reservation_key(id_), key))

        await self._fill(pool, reservation_key(id_), snapshot, make)

    async def _fill(
        self, pool: Pool, key: str, snapshot: TemplateSnapshot | None, make: Callable[[WarmSandboxFactory], Coroutine[Any, Any, None]]
    ) -> None:
        """Make an entry under a reservation and record the outcome.

        Args:
            pool: Pool to fill.
            key: Key of the entry's reservation.
            snapshot: Template snapshot that is used; None for a boot.
            make: Makes the entry and adds it to the pool.
        """
        driver, spec, began_s = self._drivers[pool.spec.isolation], pool.spec, self._clock.monotonic_s()
        try:
            template = await self._templates.resolve(spec.template)
            reading = await self._reservations.read_host()
            max_resources = driver.max_resources(spec.limits)
            needed = combine(sum, max_resources, max_resources)  # room for one more sandbox must remain
            if not self._fits(needed, reading):
                is_coming = not is_private(pool) and self.make_room_for_shared(needed, reading)
                pool.postpone(self._clock.monotonic_s() + policy.back_off_s(1 if is_coming else 2))
                return
            self._reservations.reserve(key, max_resources, reading)
            try:
                await make(WarmSandboxFactory(driver, self._link_factory, self._clock, spec, template))
            except BaseException:
                self._reservations.release(key)
                raise
        except (SandlotError, OSError, TimeoutError) as error:
            reason = failure_reason(error)
            _log.warning("pool.not_filled", pool=pool.id, template=spec.template, error=str(error) or reason)
            pool.fill_failed(reason, self._clock.monotonic_s())
            self._metrics.refill_failed(spec.isolation)
            if snapshot is not None and pool.failures > 1:
                self._snapshots.discard(snapshot, reason)
        else:
            pool.fill_succeeded()
        finally:
            self._rest(policy.rest_s(self._clock.monotonic_s() - began_s), is_private(pool))

    def _fits(self, needed: Resources, reading: HostReading, ignoring: Collection[str] = ()) -> bool:
        """Return whether an amount fits beside the reservations. Reservations with ignored keys do not count."""
        try:
            return self._reservations.fits(needed, reading, ignoring=ignoring)
        except InvalidRequestError:  # more than the node ever has
            return False

    def _warm_sandbox_ended(self, pool: Pool, warm: WarmSandbox) -> None:
        if pool.drop(warm):
            _log.warning("pool.member_died", pool=pool.id, ref=warm.instance.ref)
            self.remove(warm)
            self.notify()


def _cancel(task: asyncio.Task[None]) -> None:
    if not task.cancelling():  # a task that is being cancelled is cleaning up
        task.cancel()
