"""All pools of a service: create, change and delete pools, serve requests from them, and evict entries when room is short.

Invariants:
- A request takes the youngest warm sandbox that serves its spec and never waits for a pool. Private pools of the owner come first, then shared pools.
  A request never takes a warm sandbox of another owner.
- To all principals but its owner and operators, a private pool does not exist. Operators see, change and delete all pools.
- Warm and prepared sandboxes hold reservations like all sandboxes and are evicted when a sandbox needs their room. They do not count against the
  largest number of sandboxes of the service. Private warm sandboxes use the part of the owner's quota that live sandboxes leave
  (:mod:`sandlot.core.pools.ownership`).
- The pools of a revoked key are deleted.
- A service that stops removes all entries. The next service removes what a killed service left: entries are never taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from sandlot.core import admission
from sandlot.core.admission import AdmissionPolicy
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations
from sandlot.core.pools import ownership
from sandlot.core.pools.config_file import PoolConfigFile
from sandlot.core.pools.models import PoolConfig, PoolId, PoolSizes, PoolSpec, StartPath, TemplateSnapshotSpec
from sandlot.core.pools.ownership import PoolOwners
from sandlot.core.pools.pool import Pool, WarmSandbox, pool_gauges
from sandlot.core.pools.refill import PoolRefiller
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot, TemplateSnapshotCache
from sandlot.core.pools.template_snapshots import TemplateSnapshotManager
from sandlot.core.ports import Clock, GuestLinkFactory
from sandlot.core.records.metrics import Metrics
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import DriverCapability, PreparedSandbox
from sandlot.model.specs import DEFAULT_TEMPLATE, Limits, Shape

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Status of a pool.

    Args:
        pool: The pool.
        snapshot: Template snapshot of the pool. None: there is none.
        error: Reason of the last failure to fill the pool or to make its template snapshot; empty if nothing failed.
    """

    pool: Pool
    snapshot: TemplateSnapshot | None
    error: str

    @property
    def hit_rate(self) -> float | None:
        """Share of the requests for the pool's spec that claimed a warm sandbox. None: there was no request."""
        total = sum(self.pool.claims.values())
        return self.pool.claims.get(StartPath.WARM, 0) / total if total else None


@dataclass(frozen=True, slots=True)
class PoolClaim:
    """Result of a claim.

    Args:
        spec: Spec of the request.
        warm: Warm sandbox, removed from its pool for good. None: no pool had one.
        tried: Pools that were tried, in order. The start path of the request is counted for each of them.
    """

    spec: PoolSpec
    warm: WarmSandbox | None
    tried: tuple[Pool, ...]


class PoolManager:
    """All pools of a service.

    Args:
        configs: Shared pools that the settings name. Isolation ``auto`` is the default isolation of the service.
        cache_dir: Cache directory with the template snapshots.
        data_dir: Data directory with ``pools.json``.
        version: Version of Sandlot.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Reservations of the node.
        policy: Admission policy of the operator.
        link_factory: Connects to guests.
        clock: Clock of the service.
        new_id: Creates sandbox ids of this node.
        metrics: Metrics of the service.
        start_slots: Start slots of create requests. While none is free, nothing is filled.
        owners: Owners of private pools.
    """

    def __init__(  # noqa: PLR0913 - each is a part of the service, passed by name
        self,
        *,
        configs: Iterable[PoolConfig],
        cache_dir: Path,
        data_dir: Path,
        version: str,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
        policy: AdmissionPolicy,
        link_factory: GuestLinkFactory,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        metrics: Metrics,
        start_slots: asyncio.Semaphore,
        owners: PoolOwners,
    ) -> None:
        self._owners = owners
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._policy = policy
        self._clock = clock
        self._metrics = metrics
        self._from_settings = {config.pool_id: config for config in (_resolved(config, policy) for config in configs)}
        self._file = PoolConfigFile(data_dir)
        self._from_requests = self._file.read()
        """Configuration of all pools that requests have touched; takes precedence over the settings."""
        self._config_lock = asyncio.Lock()
        pools = [Pool(config) for config in (self._from_settings | self._from_requests).values() if config.sizes is not None]
        self._pools = {pool.id: pool for pool in pools}
        self._snapshots = TemplateSnapshotManager(
            cache=TemplateSnapshotCache(cache_dir),
            drivers=drivers,
            templates=templates,
            reservations=reservations,
            link_factory=link_factory,
            clock=clock,
            new_id=new_id,
            metrics=metrics,
            version=version,
        )
        self._refiller = PoolRefiller(
            pools=self._pools,
            # An operator who sets no pools wants no template snapshot either.
            extra_snapshots=[PoolSpec(DEFAULT_TEMPLATE, policy.isolation_default, Limits())] if self._from_settings else [],
            snapshots=self._snapshots,
            drivers=drivers,
            templates=templates,
            reservations=reservations,
            link_factory=link_factory,
            clock=clock,
            new_id=new_id,
            metrics=metrics,
            start_slots=start_slots,
            enforce_ownership=self._enforce_ownership,
            owners=owners,
        )
        metrics.count_pools(lambda: pool_gauges(self._pools.values()))

    async def run(self) -> None:
        """Keep the pools full until cancelled."""
        await self._refiller.run()

    async def aclose(self) -> None:
        """Remove all entries and cancel all fills. Idempotent."""
        for pool in tuple(self._pools.values()):
            self._empty(pool)
        self._pools.clear()
        await self._refiller.aclose()
        self._snapshots.close()

    # Create requests ---------------------------------------------------------------------------------------------------

    def has_warm(self, spec: PoolSpec, owner: OwnerId) -> bool:
        """Return whether a request of an owner for a spec could claim a warm sandbox now."""
        return any(pool.has_warm() for pool in ownership.serving_pools(self._pools.values(), spec, owner))

    def claim(self, spec: PoolSpec, owner: OwnerId) -> PoolClaim:
        """Take a warm sandbox for a request, if a pool that serves it has one. Waits for nothing.

        The reservation of the warm sandbox (``WarmSandbox.reservation_key``) passes to the caller.

        Args:
            spec: Spec of the request.
            owner: Owner of the request.
        """
        self._refiller.notify()
        tried: list[Pool] = []
        for pool in ownership.serving_pools(self._pools.values(), spec, owner):
            tried.append(pool)
            if (warm := pool.take(self._clock.monotonic_s())) is not None:
                return PoolClaim(spec, warm, tuple(tried))
        return PoolClaim(spec, None, tuple(tried))

    def started(self, path: StartPath, claim: PoolClaim, template: str) -> None:
        """Count a sandbox that has started, for the metrics and for the pools that were tried."""
        self._metrics.claimed(path, template)
        for pool in claim.tried:
            pool.claims[path] = pool.claims.get(path, 0) + 1

    def take_prepared(self, isolation: str, shape: Shape) -> PreparedSandbox | None:
        """Take a prepared sandbox of a shape out of a pool and release its reservation, because the request has its own."""
        for pool in self._pools.values():
            for entry in tuple(pool.prepared):
                fits = entry.template.root.digest == shape.root.digest and entry.spec.limits == shape.limits
                if fits and entry.spec.isolation == isolation and pool.take_prepared(entry, self._clock.monotonic_s()):
                    self._refiller.notify()
                    self._reservations.release(entry.reservation_key)
                    return entry.prepared
        return None

    def current_snapshot(self, spec: PoolSpec) -> TemplateSnapshot | None:
        """Return the template snapshot from which a sandbox of a spec can be restored now, if there is one."""
        return self._snapshots.current(TemplateSnapshotSpec.of(spec))

    def claim_failed(self) -> None:
        """Refill the pools: a claimed warm sandbox did not work. Its supervisor removes the sandbox."""
        self._refiller.notify()

    def discard_snapshot(self, snapshot: TemplateSnapshot, reason: str) -> None:
        """Stop using a template snapshot that could not be restored. A new one is made."""
        self._snapshots.discard(snapshot, reason)
        self._refiller.notify()

    async def evict_one(self) -> bool:
        """Evict one entry, or cancel one fill, and return True when its resources are free. Return False if there is none.

        The order is that of :func:`~sandlot.core.pools.ownership.next_eviction`. Fills of private pools come before entries of shared pools.
        """
        self._refiller.pause_after_eviction()
        pools = tuple(self._pools.values())
        entry = ownership.next_eviction([pool for pool in pools if ownership.is_private(pool)])
        if entry is None and await self._refiller.free_one(only_private=True):
            return True
        entry = entry or ownership.next_eviction(pools)
        if entry is not None:
            self._refiller.evict(entry, "A sandbox needed its room, or the host is short of memory.")
        return await self._refiller.free_one()

    # Pools -------------------------------------------------------------------------------------------------------------

    def list(self, principal: Principal) -> list[PoolStatus]:
        """Return the status of all pools that a principal may see, sorted by template and isolation."""
        visible = [pool for pool in self._pools.values() if principal.sees(pool.owner)]
        return [self._status(pool) for pool in sorted(visible, key=lambda pool: (pool.spec.template, pool.spec.isolation, pool.id))]

    def find(self, id_or_template: str, principal: Principal) -> PoolStatus:
        """Return the status of a pool that a principal may see, by its id or by the template of the principal's only pool of that template.

        Raises:
            NotFoundError: ``pool_not_found``.
            ConflictError: The principal has several pools of the template.
        """
        return self._status(ownership.find_pool(self._pools, id_or_template, principal))

    def find_claimable(self, id_or_template: str, principal: Principal) -> Pool:
        """Return a pool from which a principal may claim: a shared pool by its id, or a pool of the principal by its id or template.

        Raises:
            NotFoundError: ``pool_not_found``.
            ConflictError: The principal has several pools of the template.
        """
        return ownership.find_claimable_pool(self._pools, id_or_template, principal)

    def count(self, owner: OwnerId) -> int:
        """Return the number of an owner's pools."""
        return sum(1 for pool in self._pools.values() if pool.owner == owner)

    async def create(
        self, principal: Principal, template: str, isolation: str, limits: Limits, sizes: PoolSizes, metadata: Mapping[str, str] | None = None
    ) -> PoolStatus:
        """Create a pool that also exists after a restart. The implied pool of the same spec becomes an ordinary pool.

        Args:
            principal: Principal of the request. Pools of operators are shared, all other pools are private.
            template: Name of the template.
            isolation: ``auto`` or the name of a driver.
            limits: Limits of each sandbox.
            sizes: Sizes of the pool.
            metadata: Metadata of the owner.

        Raises:
            NotFoundError: ``template_not_found``.
            ForbiddenError: The operator does not allow the isolation, or a private pool would have prepared sandboxes.
            UnsupportedError: The driver cannot freeze sandboxes.
            InvalidRequestError: A sandbox of these limits can never fit on this node.
            LimitError: ``quota_exceeded``: the quota allows no more pools, or fewer sandboxes than would always be warm.
            ConflictError: The owner has a pool of this spec.
        """
        self._templates.require(template)
        driver = admission.resolve_isolation(isolation, self._policy, self._drivers)
        capabilities = await self._drivers.capabilities(driver)
        if not capabilities.can(DriverCapability.PAUSE):
            raise UnsupportedError(
                f"Isolation {driver!r} has no pools on this host: {capabilities.why_not(DriverCapability.PAUSE)}.",
                code=ErrorCode.UNSUPPORTED,
                fields={"ability": str(DriverCapability.PAUSE)},
            )
        self._reservations.check_feasible(self._drivers[driver].max_resources(limits), await self._reservations.read_host())
        admission.check_metadata(metadata or {})
        config = PoolConfig(PoolSpec(template, driver, limits), sizes, ownership.pool_owner(principal), metadata or {})
        async with self._config_lock:
            existing = self._pools.get(str(config.pool_id))
            if existing is not None and existing.config.is_implied:
                return await self._configure(existing, config)
            if existing is not None:
                raise ConflictError(
                    f"The pool {existing.id} of template {template!r} has the same limits.",
                    code=ErrorCode.CONFLICT,
                    hint=f"Change it with 'sandlot pool set {existing.id}'.",
                    fields={"pool": existing.id},
                )
            pool = Pool(config)
            ownership.check_allowed(pool, sizes, principal, existing=self.count(pool.owner))
            await self._save(config)
            self._pools[pool.id] = pool
            self._refiller.notify()
            return self._status(pool)

    async def update(
        self,
        id_or_template: str,
        principal: Principal,
        *,
        warm: int | None = None,
        max: int | None = None,  # noqa: A002 - the name of the API
        prepared: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> PoolStatus:
        """Change sizes or metadata of a pool, also for the time after a restart. None keeps a value.

        Raises:
            NotFoundError: ``pool_not_found``.
            InvalidRequestError: A number is out of range.
            LimitError: ``quota_exceeded``: more sandboxes would always be warm than the quota allows.
            ForbiddenError: A private pool would have prepared sandboxes.
        """
        admission.check_metadata(metadata or {})
        async with self._config_lock:
            pool = ownership.find_pool(self._pools, id_or_template, principal)
            sizes = pool.sizes.updated(warm=warm, max=max, prepared=prepared)
            ownership.check_allowed(pool, sizes, principal)
            return await self._configure(pool, replace(pool.config, sizes=sizes, metadata=pool.metadata if metadata is None else metadata))

    async def delete(self, id_or_template: str, principal: Principal) -> None:
        """Delete a pool, also for the time after a restart, and start to remove its entries.

        Raises:
            NotFoundError: ``pool_not_found``.
        """
        async with self._config_lock:
            pool = ownership.find_pool(self._pools, id_or_template, principal)
            await self._save(replace(pool.config, sizes=None, metadata={}))
            self._remove(pool)

    async def _enforce_ownership(self) -> None:
        """Delete the pools of revoked keys, and remove the warm sandboxes for which their owners' quotas have no room."""
        for pool in self._owners.revoked(self._pools.values()):
            async with self._config_lock:
                self._remove(pool)
                try:
                    await self._save(replace(pool.config, sizes=None, metadata={}))
                except SandlotError as error:  # the next service deletes the pool as well
                    _log.error("pool.not_forgotten", pool=pool.id, error=error.message)
            _log.info("pool.disowned", pool=pool.id, hint="The key of its owner was revoked.")
        self._refiller.remove(*(warm for pool, warm in list(self._owners.over_quota(self._pools.values())) if pool.drop(warm)))

    async def _configure(self, pool: Pool, config: PoolConfig) -> PoolStatus:
        config = replace(config, is_implied=False)
        await self._save(config)
        pool.configure(config)
        self._refiller.notify()
        return self._status(pool)

    async def _save(self, config: PoolConfig) -> None:
        configs: dict[PoolId, PoolConfig] = {**self._from_requests, config.pool_id: config}
        if config.sizes is None and config.pool_id not in self._from_settings:
            del configs[config.pool_id]  # no setting would bring the pool back
        await asyncio.to_thread(self._file.write, configs.values())
        self._from_requests = configs

    def _remove(self, pool: Pool) -> None:
        if self._pools.pop(pool.id, None) is not None:
            for task in (*pool.filling, *pool.preparing):
                task.cancel()
            self._empty(pool)

    def _empty(self, pool: Pool) -> None:
        self._refiller.remove(*(entry for entry in pool.entries() if pool.drop(entry)))

    def _status(self, pool: Pool) -> PoolStatus:
        spec = TemplateSnapshotSpec.of(pool.spec)
        return PoolStatus(pool, self._snapshots.current(spec), pool.error or self._snapshots.error(spec))


def _resolved(config: PoolConfig, policy: AdmissionPolicy) -> PoolConfig:
    """Replace isolation ``auto`` by the default isolation of the service."""
    if config.spec.isolation != admission.AUTO:
        return config
    return replace(config, spec=replace(config.spec, isolation=policy.isolation_default))
