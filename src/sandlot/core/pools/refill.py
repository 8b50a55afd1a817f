"""Keep pools full: one task repeatedly checks all pools, decides what each pool needs, and starts fills and removals.

The warm and prepared sandboxes of a pool are its *entries*. A *fill* is a task that makes one entry. :mod:`sandlot.core.pools.policy` decides.

Invariants:
- A create request never waits for a fill. After a create request, the pools are checked ``policy.QUIET_S`` later, so that the request gets its
  response first.
- No fill starts while create requests wait for a start slot, while the host is short of memory, or for :data:`AFTER_EVICTION_S` after an eviction.
- Shared pools are filled first, then the private pools of the owner with the fewest warm sandboxes. If there is no room for a fill of a shared pool,
  private entries are evicted and private fills are cancelled, but only if this frees enough room.
- Fills of private pools do not slow down fills of shared pools: at most ``policy.MAX_PRIVATE_FILLS`` private fills run at once, and the pause after a
  private fill applies only to private pools.
- A template snapshot that only private pools need is made only while one of these pools may have a warm sandbox.
- A pool follows its template: entries of another build than the one that the template or its tag names now are removed.
- The allocation of a fill that fails is released. Each failure delays the next fill of the pool, and the status of the pool
  gives the reason.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final, cast

import structlog

from sandlot.core.pools import policy
from sandlot.core.pools.models import PoolSpec, TemplateSnapshotSpec
from sandlot.core.pools.ownership import PoolOwners, fill_priority, next_eviction
from sandlot.core.pools.pool import Pool, PoolEntry, PreparedPoolEntry, WarmSandbox
from sandlot.core.pools.registry import PoolRegistry
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.pools.template_snapshots import TemplateSnapshotManager, failure_reason
from sandlot.core.pools.warm import WarmSandboxFactory
from sandlot.core.ports import Clock
from sandlot.core.records.metrics import Metrics
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.reservations import Purpose, Reservation, Reservations, combine
from sandlot.core.resources.start_slots import StartSlots
from sandlot.core.resources.templates import TemplateResolver, Templates
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandlotError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import DriverCapability, Exit, HostReading, Resources
from sandlot.model.specs import TemplateRef

START_S: Final = 1.0
"""Seconds from the start of the service until the first check of the pools, so that the service can respond to requests first."""
TICK_S: Final = 2.0
"""Longest pause in seconds between two checks of the pools. Ages, the host's memory and snapshots of other services change without a notification."""
AFTER_EVICTION_S: Final = 10.0
"""Seconds after an eviction in which no fill starts, because another sandbox or other software on the host needs the room."""
SWEEP_S: Final = 3600.0
"""Seconds between two sweeps of the template snapshots on disk."""

Make = Callable[[WarmSandboxFactory, Allocation, SandboxId, TemplateSnapshot | None], Awaitable[PoolEntry]]
"""Function that makes a pool entry from a template snapshot or, if the snapshot is None, without a snapshot."""


@dataclass(eq=False, slots=True)
class _Fill:
    """A running fill.

    Args:
        allocation: Allocation of the entry. None: no resources are reserved yet.
    """

    pool: Pool
    allocation: Allocation | None = None


_log = structlog.get_logger("sandlot.core")


class PoolRefiller:
    """Fills pools, removes entries that are no longer wanted, and evicts entries whose room is needed.

    Args:
        extra_snapshots: Specs for which template snapshots are made even if no pool has the spec. A spec is skipped until the image of its template
            is built.
        new_id: Creates sandbox ids of this node.
        start_slots: Start slots of create requests. While no slot is free, no fill starts.
    """

    def __init__(  # noqa: PLR0913 - each argument is a part of the service, passed by name
        self,
        *,
        registry: PoolRegistry,
        owners: PoolOwners,
        snapshots: TemplateSnapshotManager,
        extra_snapshots: Iterable[PoolSpec],
        drivers: Drivers,
        templates: Templates,
        resolver: TemplateResolver,
        reservations: Reservations,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        metrics: Metrics,
        start_slots: StartSlots,
    ) -> None:
        self._registry = registry
        self._owners = owners
        self._snapshots = snapshots
        self._extra_snapshots = tuple(TemplateSnapshotSpec.of(spec) for spec in extra_snapshots)
        self._drivers = drivers
        self._templates = templates
        self._resolver = resolver
        self._reservations = reservations
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics
        self._start_slots = start_slots
        self._running: asyncio.Task[None] | None = None
        self._notified = asyncio.Event()
        self._is_waiting = False
        self._alarm: asyncio.Task[None] | None = None
        """Task that starts the next check of the pools ``policy.QUIET_S`` after a create request."""
        self._fills: dict[asyncio.Task[None], _Fill] = {}
        self._removals: set[asyncio.Task[None]] = set()
        """Tasks that remove the resources of entries and of failed fills."""
        self._snapshot_task: asyncio.Task[None] | None = None
        self._snapshot_is_private = False
        """True while the snapshot task makes snapshots that only private pools need."""
        self._rest_until_s = {True: float("-inf"), False: float("-inf")}
        """Monotonic times until which no private pool (key True) and no shared pool (key False) is filled."""
        self._swept_s = float("-inf")

    def start(self) -> None:
        """Start the task that keeps the pools full until :meth:`aclose` is called."""
        self._running = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Stop the task, cancel all fills, and wait until all running removals have ended. Idempotent."""
        tasks = [task for task in (self._running, self._alarm, self._snapshot_task, *self._fills) if task is not None]
        for task in tasks:
            _cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._removals, *self._snapshots.removals)

    def notify(self) -> None:
        """Check the pools now, because something has changed that may require a fill or a removal."""
        self._notified.set()

    def notify_after_request(self) -> None:
        """Check the pools in ``policy.QUIET_S`` seconds. The pause lets the client of a create request use its sandbox first."""
        if self._alarm is None or self._alarm.done():
            self._alarm = asyncio.create_task(self._notify_after(policy.QUIET_S))

    @property
    def is_idle(self) -> bool:
        """True if no fill, removal or snapshot is in progress and no check of the pools is due."""
        return self._is_waiting and not (self._notified.is_set() or self._fills or self._snapshot_task or self._removals)

    async def _run(self) -> None:
        await asyncio.create_task(self._clock.sleep_until(self._clock.monotonic_s() + START_S))
        while True:
            self._notified.clear()
            try:
                await self._refill_all()
            except Exception:  # noqa: BLE001 - create requests succeed without pools, and the next check tries again
                _log.exception("pools.internal_error")
            tick = asyncio.create_task(self._notify_after(self._next_check_s()))
            self._is_waiting = True
            try:
                await self._notified.wait()
            finally:
                self._is_waiting = False
                tick.cancel()

    def _next_check_s(self) -> float:
        """Return the seconds until the next check of the pools: ``TICK_S``, or less if the pause after a fill or a failure ends before."""
        now_s = self._clock.monotonic_s()
        ends_s = [*self._rest_until_s.values(), *(pool.not_before_s for pool in self._registry.pools.values())]
        return min([TICK_S, *(end_s - now_s for end_s in ends_s if end_s > now_s)])

    async def _notify_after(self, seconds: float) -> None:
        await self._clock.sleep_until(self._clock.monotonic_s() + seconds)
        self._notified.set()

    def _rest(self, for_s: float, *groups: bool) -> None:
        """Start no fills for ``for_s`` seconds. Each value of ``groups`` selects pools: True the private pools, False the shared pools."""
        for private in groups:
            self._rest_until_s[private] = max(self._rest_until_s[private], self._clock.monotonic_s() + for_s)

    # Evictions and removals --------------------------------------------------------------------------------------------

    def evict_next(self) -> Reservation | None:
        """Start to remove one entry, or cancel one fill, and return its reservation. Return None if there is no entry and no fill.

        Private entries come first, then private fills, then shared entries, then shared fills. Among entries,
        :func:`~sandlot.core.pools.ownership.next_eviction` chooses.
        """
        self._rest(AFTER_EVICTION_S, True, False)
        for is_private in (True, False):
            entry = next_eviction([pool for pool in self._registry.pools.values() if pool.is_private is is_private])
            if entry is not None:
                return self._evict(entry, "Another sandbox needed the room of this sandbox, or the host is short of memory.")
            for task, allocation in self._allocated(is_private=is_private):
                return _give_up(task, allocation)
        return None

    def make_room_for_shared(self, needed: Resources, reading: HostReading) -> bool:
        """Start to evict private entries and to cancel private fills, so that ``needed`` fits when all evictions and cancellations are complete.

        Returns:
            False if ``needed`` would not fit even without any private entry and fill. Nothing is evicted or cancelled then.
        """
        private = [pool for pool in self._registry.pools.values() if pool.is_private]
        removable = {entry.allocation.reservation for pool in private for entry in pool.entries()}
        removable |= {allocation.reservation for _, allocation in self._allocated(is_private=True)}
        if not self._fits(needed, reading, removable | self._reservations.leaving()):
            return False
        while not self._fits(needed, reading, self._reservations.leaving()):
            self._rest(AFTER_EVICTION_S, True)
            entry = next_eviction(private)
            if entry is not None:
                self._evict(entry, "A shared pool needed the room of this sandbox.")
            else:
                _give_up(*self._allocated(is_private=True)[-1])
        return True

    def remove_pool(self, pool: Pool) -> None:
        """Take a pool out of the registry, cancel its fills, and start to remove its entries."""
        if self._registry.pools.pop(pool.id, None) is not None:
            for task in (*pool.filling, *pool.preparing):
                _cancel(task)
            self._discard(pool, pool.entries())

    def _discard(self, pool: Pool, entries: Iterable[PoolEntry]) -> None:
        """Take entries out of a pool and start to remove them. The reservation of an entry is released when its removal has ended."""
        for entry in entries:
            if pool.drop(entry):
                self._remove(entry.allocation)

    def _remove(self, allocation: Allocation) -> None:
        removal = allocation.release()
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    def _evict(self, entry: PoolEntry, reason: str) -> Reservation:
        for pool in self._registry.pools.values():
            self._discard(pool, [entry])
        self._metrics.evicted()
        _log.info("pool.evicted", template=entry.spec.template.name, reason=reason)
        return entry.allocation.reservation

    def _allocated(self, *, is_private: bool) -> list[tuple[asyncio.Task[None], Allocation]]:
        """Return the running tasks that make entries or template snapshots and have an allocation, without tasks that were cancelled already.

        Args:
            is_private: True for the tasks that work for private pools, False for those that work for shared pools.
        """
        found = [(task, fill.allocation) for task, fill in self._fills.items() if fill.pool.is_private is is_private]
        if self._snapshot_task is not None and self._snapshot_is_private is is_private:
            found.append((self._snapshot_task, self._snapshots.allocation))
        return [(task, allocation) for task, allocation in found if allocation is not None and not task.done() and not task.cancelling()]

    def _fits(self, needed: Resources, reading: HostReading, ignoring: Collection[Reservation] = ()) -> bool:
        """Return True if an amount fits on the node in addition to all reservations. Reservations in ``ignoring`` do not count."""
        return not self._shortage(needed, reading, ignoring)

    def _shortage(self, needed: Resources, reading: HostReading, ignoring: Collection[Reservation] = ()) -> str:
        """Return the reason why an amount does not fit, or an empty text; see :meth:`_fits`."""
        try:
            self._reservations.check_available(needed, reading, ignoring=ignoring)
        except (InvalidRequestError, UnavailableError) as error:
            return error.message
        return ""

    # Check of all pools ------------------------------------------------------------------------------------------------

    async def _refill_all(self) -> None:
        """Remove the pools and sandboxes that owners may no longer have, start to make missing template snapshots, and refill each pool."""
        pools = self._registry.pools
        if private := [pool for pool in pools.values() if pool.is_private]:
            for pool in self._owners.revoked(private):
                await self._delete_revoked(pool)
            for pool, warm in list(self._owners.over_quota(pools.values())):
                self._discard(pool, [warm])
        now_s = self._clock.monotonic_s()
        if now_s - self._swept_s > SWEEP_S:
            self._swept_s = now_s
            await self._snapshots.sweep()
        if await self._check_pressure() and self._snapshot_task is None and not self._start_slots.locked():
            self._snapshot_task = asyncio.create_task(self._make_snapshots())
            self._snapshot_task.add_done_callback(self._snapshots_made)
        every = tuple(pools.values())
        for pool in sorted(every, key=lambda pool: fill_priority(pool, every)):
            await self._refill(pool)

    async def _check_pressure(self) -> bool:
        """Return True if the host has memory for fills. If not, start to remove one entry, and report the reason in the pools that lack entries."""
        try:
            self._reservations.check_pressure(Resources(memory_bytes=1, disk_bytes=0, pids=0), await self._reservations.read_host())
        except UnavailableError as error:
            for pool in self._registry.pools.values():
                if len(pool.ready) < policy.wanted_warm(pool.sizes, pool.growth):
                    pool.error = error.message
            if not self._reservations.leaving():  # the next reading shows whether the last removal was enough
                self.evict_next()
            return False
        return True

    async def _delete_revoked(self, pool: Pool) -> None:
        async with self._registry.lock:
            self.remove_pool(pool)
            try:
                await self._registry.save(replace(pool.config, sizes=None, metadata={}))
            except SandlotError as error:  # after a restart the pool exists again, and the next check deletes it
                _log.error("pool.not_deleted", pool=pool.id, error=error.message)
        _log.info("pool.deleted", pool=pool.id, reason="the API key of the pool's owner was revoked")

    async def _make_snapshots(self) -> None:
        """Make the template snapshots that are missing or outdated, one after the other. Snapshots of shared pools come first."""
        pools = tuple(self._registry.pools.values())
        private = [pool for pool in pools if pool.is_private]
        implied = dict.fromkeys(self._extra_snapshots, True)
        """Spec of a template snapshot -> True if only implied pools or ``extra_snapshots`` need it. No template is built for such a snapshot."""
        for pool in pools:
            if not pool.is_private:
                implied[pool.snapshot_spec] = implied.get(pool.snapshot_spec, True) and pool.config.is_implied
        await self._snapshots.retain(set(implied), {pool.snapshot_spec for pool in private} - implied.keys())
        for spec, is_implied in implied.items():
            if self._start_slots.locked():
                return
            if not is_implied or await self._is_built(spec.template):
                await self._make_snapshot(spec, is_shared=True)
        self._snapshot_is_private = True
        began_s = self._clock.monotonic_s()
        every = tuple(self._registry.pools.values())
        for spec in {pool.snapshot_spec: None for pool in private if self._owners.can_have_warm(pool, every)}:
            now_s = self._clock.monotonic_s()
            if self._start_slots.locked() or now_s < self._rest_until_s[True] or now_s - began_s > TICK_S:
                return  # the next check of the pools begins with the snapshots for shared pools
            if spec not in implied:
                await self._make_snapshot(spec, is_shared=False)

    async def _make_snapshot(self, spec: TemplateSnapshotSpec, *, is_shared: bool) -> None:
        before, make_room = (self._snapshots.current(spec), self._snapshots.template(spec)), self.make_room_for_shared if is_shared else None
        if spec.isolation in self._drivers and (await self._snapshots.ensure(spec, make_room=make_room), self._snapshots.template(spec)) != before:
            self.notify()

    def _snapshots_made(self, task: asyncio.Task[None]) -> None:
        self._snapshot_task, self._snapshot_is_private = None, False
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("pools.internal_error", exc_info=error)

    async def _is_built(self, template: TemplateRef) -> bool:
        """Return True if a built-in template is built."""
        return any(each.name == template.name and each.digest is not None for each in await self._templates.list(OPERATOR))

    # One pool ----------------------------------------------------------------------------------------------------------

    async def _refill(self, pool: Pool) -> None:
        """Decide which sandboxes a pool needs now, and start fills and removals."""
        template = await self._discard_outdated(pool)
        if template is None:
            return
        max_fills = policy.MAX_FILLS - len(self._fills)
        if pool.is_private:
            max_fills = min(max_fills, policy.MAX_PRIVATE_FILLS - sum(fill.pool.is_private for fill in self._fills.values()))
        if self._start_slots.locked() or self._clock.monotonic_s() < max(self._rest_until_s[pool.is_private], pool.not_before_s):
            max_fills = 0
        if max_fills > 0 and not (await self._can_fill(pool, template) and self._registry.pools.get(pool.id) is pool):  # or it was deleted meanwhile
            max_fills = 0
        now_s = self._clock.monotonic_s()
        contents = policy.PoolContents(
            ages_s=[now_s - warm.started_at_s for warm in pool.ready],
            filling=len(pool.filling),
            prepared=len(pool.prepared),
            preparing=len(pool.preparing),
            growth=pool.growth,
            quiet_s=now_s - pool.last_request_s,
            waiting_s=0.0 if pool.waiting_since_s is None else now_s - pool.waiting_since_s,
        )
        quota_left = self._owners.quota_left(pool, self._registry.pools.values()) if pool.is_private else None
        step = policy.next_step(pool.sizes, contents, max_fills, quota_left)
        if step.growth != pool.growth:
            pool.growth, pool.last_request_s = step.growth, now_s
        if step.is_early:
            self.notify_after_request()
        self._discard(pool, list(pool.ready)[: step.drop])
        self._discard(pool, list(pool.prepared)[: step.drop_prepared])
        if step.fill or step.prepare:
            pool.waiting_since_s = None
        for _ in range(step.fill):
            self._start_fill(pool, pool.filling, WarmSandboxFactory.make_warm)
        for _ in range(step.prepare):
            self._start_fill(pool, pool.preparing, WarmSandboxFactory.make_prepared)

    async def _discard_outdated(self, pool: Pool) -> TemplateRef | None:
        """Remove the entries of other builds and snapshots than the current ones. Return the current build, or None if it is not known now."""
        try:
            template = (await self._resolver.defaults(pool.spec.template)).pin(pool.spec.template)
        except (SandlotError, OSError, TimeoutError) as error:  # no error of one template may keep other pools from being filled
            pool.error = failure_reason(error)
            if isinstance(error, NotFoundError):  # the template or its tag was deleted, and can be created again
                self._discard(pool, pool.entries())
            return None
        self._snapshots.use_build(pool.snapshot_spec, template)
        self._discard(pool, [entry for entry in pool.entries() if entry.template.build != template.build])
        snapshot = self._snapshots.current(pool.snapshot_spec)
        if snapshot is not None:
            self._discard(pool, [entry for entry in pool.entries() if entry.snapshot_key not in {"", snapshot.key}])
        return template

    async def _can_fill(self, pool: Pool, template: TemplateRef) -> bool:
        """Return True if fills of a pool can start now.

        The driver must be able to freeze sandboxes. If the driver can take snapshots, the snapshot of the template's current build must be ready. If
        the driver cannot take snapshots and the pool is one of ``default_pools``, the root filesystem image of its template must be built already.
        """
        if pool.spec.isolation not in self._drivers:
            return False
        capabilities = await self._drivers.capabilities(pool.spec.isolation)
        if not capabilities.can(DriverCapability.PAUSE):
            pool.error = f"Warm sandboxes cannot be frozen: {capabilities.why_not(DriverCapability.PAUSE)}."
            return False
        if capabilities.can(DriverCapability.SNAPSHOT):
            return self._snapshots.use_build(pool.snapshot_spec, template)
        return not pool.config.is_implied or await self._is_built(pool.spec.template)

    def _start_fill(self, pool: Pool, tasks: set[asyncio.Task[None]], make: Make) -> None:
        id_ = self._new_id()
        fill = _Fill(pool)
        task = asyncio.create_task(self._fill(fill, tasks, make, id_))
        tasks.add(task)
        task.add_done_callback(tasks.discard)  # a task that was cancelled before its first step cannot remove itself
        self._fills[task] = fill
        task.add_done_callback(self._fills.pop)
        task.add_done_callback(lambda _: self.notify())

    async def _fill(self, fill: _Fill, tasks: set[asyncio.Task[None]], make: Make, id_: SandboxId) -> None:
        """Reserve resources, make an entry, add the entry to its pool, and record a failure or the success in the pool."""
        pool, began_s = fill.pool, self._clock.monotonic_s()
        driver, spec = self._drivers[pool.spec.isolation], pool.spec
        snapshot = self._snapshots.current(pool.snapshot_spec)
        try:
            # The build of the snapshot: the memory has its environment, and a newer build can have the same root file system.
            ref = self._snapshots.template(pool.snapshot_spec)
            template, defaults = await self._resolver.resolve(ref, spec.isolation), await self._resolver.defaults(ref)
            reading = await self._reservations.read_host()
            max_resources = driver.max_resources(spec.limits)
            needed = combine(sum, max_resources, max_resources)  # room for one more sandbox of the same limits must remain
            if shortage := self._shortage(needed, reading):
                is_coming = not pool.is_private and self.make_room_for_shared(needed, reading)
                if not is_coming:
                    pool.error = f"The node has no room for a sandbox of the pool and one more of the same limits. {shortage}"
                pool.not_before_s = self._clock.monotonic_s() + policy.back_off_s(1 if is_coming else 2)
                return
            reservation = self._reservations.reserve(Purpose.POOL, max_resources, reading)
            fill.allocation = allocation = Allocation(driver, reservation, self._clock, id_)
            factory = WarmSandboxFactory(self._clock, self._drivers, spec, template, defaults.cwd, defaults.user)
            try:
                entry = await make(factory, allocation, id_, snapshot)
            except BaseException:
                self._remove(allocation)
                raise
            if isinstance(entry, PreparedPoolEntry):
                pool.prepared.append(entry)
            else:
                pool.ready.append(entry)
                if allocation.exited is not None:
                    allocation.exited.add_done_callback(functools.partial(self._warm_sandbox_ended, pool, entry))
        except (SandlotError, OSError, TimeoutError) as error:
            reason = failure_reason(error)
            _log.warning("pool.not_filled", pool=pool.id, template=spec.template.name, error=str(error) or reason)
            self._metrics.refill_failed(spec.isolation)
            pool.failures, pool.error = pool.failures + 1, reason
            pool.not_before_s = self._clock.monotonic_s() + policy.back_off_s(pool.failures)
            is_full = isinstance(error, SandlotError) and error.code is ErrorCode.NODE_DISK_FULL
            if snapshot is not None and pool.failures > 1 and not is_full:
                self._snapshots.discard(snapshot, reason)
        else:
            pool.failures, pool.error = 0, ""
        finally:
            tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            self._rest(policy.rest_s(self._clock.monotonic_s() - began_s), pool.is_private)

    def _warm_sandbox_ended(self, pool: Pool, warm: WarmSandbox, _exited: asyncio.Future[Exit]) -> None:
        if warm in pool.ready:
            _log.warning("pool.sandbox_ended", pool=pool.id, ref=warm.instance.ref)
            self._discard(pool, [warm])
            self.notify()


def _cancel(task: asyncio.Task[None]) -> None:
    if not task.cancelling():  # a second cancellation would interrupt the cleanup of the task
        task.cancel()


def _give_up(task: asyncio.Task[None], allocation: Allocation) -> Reservation:
    """Cancel a task that makes a sandbox, and return the reservation that the task will release."""
    allocation.reservation.set_leaving(True)
    _cancel(task)
    return allocation.reservation
