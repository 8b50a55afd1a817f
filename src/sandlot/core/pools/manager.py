"""Manager of pools: create, list, get, change and delete pools.

Invariants:
- A private pool is visible only to its owner and to operators. Operators can see, change and delete all pools.
- When the key of an owner is revoked, the owner's pools are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sandlot.core import admission
from sandlot.core.admission import AdmissionPolicy
from sandlot.core.pools import ownership
from sandlot.core.pools.models import PoolConfig, PoolSpec
from sandlot.core.pools.pool import Pool
from sandlot.core.pools.refill import PoolRefiller
from sandlot.core.pools.registry import PoolRegistry
from sandlot.core.pools.template_snapshots import TemplateSnapshotManager, made_at
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.reservations import Reservations
from sandlot.core.resources.templates import Templates
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, UnsupportedError
from sandlot.model.pools import PoolInfo, PoolSizes, TemplateSnapshotInfo
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import LimitsChange, check_metadata


class PoolManager:
    """All pools of a service."""

    def __init__(
        self,
        *,
        registry: PoolRegistry,
        refiller: PoolRefiller,
        snapshots: TemplateSnapshotManager,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
        policy: AdmissionPolicy,
    ) -> None:
        self._registry = registry
        self._refiller = refiller
        self._snapshots = snapshots
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._policy = policy

    async def list(self, principal: Principal) -> tuple[PoolInfo, ...]:
        """Return all pools that a principal may see, sorted by template, isolation and id."""
        visible = [pool for pool in self._registry.pools.values() if principal.sees(pool.owner)]
        return tuple(self._info(pool) for pool in sorted(visible, key=lambda pool: (pool.spec.template.full_name, pool.spec.isolation, pool.id)))

    async def get(self, principal: Principal, id_or_template: str, *, claimable: bool = False) -> PoolInfo:
        """Return a pool.

        Args:
            principal: Principal of the request.
            id_or_template: Id of a pool, or name of a template of which the principal has exactly one pool.
            claimable: True to find pools from which the principal may claim a warm sandbox: shared pools by their ids, and own pools. False to find
                pools that the principal may see.

        Raises:
            NotFoundError: There is no such pool for the principal; code ``pool_not_found``.
            ConflictError: The principal has several pools of the template.
        """
        find = ownership.find_claimable_pool if claimable else ownership.find_pool
        return self._info(find(self._registry.pools, id_or_template, principal))

    def count(self, owner: OwnerId) -> int:
        """Return the number of an owner's pools."""
        return sum(1 for pool in self._registry.pools.values() if pool.owner == owner)

    async def create(
        self, principal: Principal, template: str, isolation: str, limits: LimitsChange, sizes: PoolSizes, metadata: Mapping[str, str] | None = None
    ) -> PoolInfo:
        """Create a pool. The pool is created again whenever the service restarts.

        If the owner has an implied pool (``PoolConfig.is_implied``) of the same spec, this pool gets the new sizes and is no longer implied.

        Args:
            principal: Principal of the request. Pools of operators are shared, all other pools are private.
            template: Name of the template, or ``NAME:TAG``. The pool follows the template or the tag: its sandboxes start from the current build.
            isolation: ``auto`` or the name of a driver.
            limits: Limits of each sandbox that differ from the defaults of the template. The pool keeps its limits if these defaults change later.
            sizes: Sizes of the pool.
            metadata: Metadata that the client chose. None: no metadata.

        Raises:
            NotFoundError: The template does not exist; code ``template_not_found``.
            ForbiddenError: The operator does not allow the isolation, or a private pool would have prepared sandboxes.
            UnsupportedError: The driver cannot freeze sandboxes, or cannot start sandboxes of the template.
            InvalidRequestError: The metadata is invalid, or a sandbox of these limits can never fit on this node.
            LimitError: The owner has the maximum number of pools, or ``sizes.warm`` exceeds the quota; code ``quota_exceeded``.
            ConflictError: The owner has a pool of this spec.
        """
        ref = await self._templates.find(principal, template)
        driver = admission.resolve_isolation(isolation, self._policy, self._drivers)
        capabilities = await self._drivers.capabilities(driver)
        if not capabilities.can(DriverCapability.PAUSE):
            raise UnsupportedError(
                f"Isolation {driver!r} cannot have pools on this host: {capabilities.why_not(DriverCapability.PAUSE)}.",
                fields={"ability": str(DriverCapability.PAUSE)},
            )
        defaults = await self._templates.defaults(ref)
        admission.check_root(capabilities, ref.name, defaults.root_kind)
        spec = PoolSpec(ref, driver, limits.over(defaults.limits))
        self._reservations.check_feasible(self._drivers[driver].max_resources(spec.limits), await self._reservations.read_host())
        check_metadata(metadata or {})
        config = PoolConfig(spec, sizes, ownership.pool_owner(principal), metadata or {})
        async with self._registry.lock:
            existing = self._registry.pools.get(str(config.pool_id))
            if existing is not None and existing.config.is_implied:
                return await self._configure(existing, config)
            if existing is not None:
                raise ConflictError(
                    f"Pool {existing.id} of template {template!r} already has this isolation and these limits.",
                    hint=f"Change the existing pool with 'sandlot pool update {existing.id}'.",
                    fields={"pool": existing.id},
                )
            pool = Pool(config)
            ownership.check_allowed(pool, sizes, principal, existing=self.count(pool.owner))
            await self._registry.save(config)
            self._registry.pools[pool.id] = pool
            self._refiller.notify()
            return self._info(pool)

    async def update(
        self,
        principal: Principal,
        id_or_template: str,
        *,
        warm: int | None = None,
        max: int | None = None,  # noqa: A002 - the name of the API
        prepared: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> PoolInfo:
        """Change the sizes or the metadata of a pool. The change stays in effect when the service restarts.

        Args:
            principal: Principal of the request.
            id_or_template: Pool to change; see :meth:`get`.
            warm: New value of ``PoolSizes.warm``. None: unchanged.
            max: New value of ``PoolSizes.max``. None: unchanged, unless ``warm`` is larger.
            prepared: New value of ``PoolSizes.prepared``. None: unchanged.
            metadata: New metadata. None: unchanged.

        Raises:
            InvalidRequestError: A size or the metadata is invalid.
            LimitError: The quota allows fewer sandboxes than the new ``warm``; code ``quota_exceeded``.
            ForbiddenError: A private pool would have prepared sandboxes.
        """
        check_metadata(metadata or {})
        async with self._registry.lock:
            pool = ownership.find_pool(self._registry.pools, id_or_template, principal)
            sizes = pool.sizes.updated(warm=warm, max=max, prepared=prepared)
            ownership.check_allowed(pool, sizes, principal)
            return await self._configure(pool, replace(pool.config, sizes=sizes, metadata=pool.metadata if metadata is None else metadata))

    async def delete(self, principal: Principal, id_or_template: str) -> None:
        """Delete a pool and start to remove its warm and prepared sandboxes. The pool stays deleted when the service restarts."""
        async with self._registry.lock:
            pool = ownership.find_pool(self._registry.pools, id_or_template, principal)
            await self._registry.save(replace(pool.config, sizes=None, metadata={}))
            self._refiller.remove_pool(pool)

    async def _configure(self, pool: Pool, config: PoolConfig) -> PoolInfo:
        config = replace(config, is_implied=False)
        await self._registry.save(config)
        pool.configure(config)
        self._refiller.notify()
        return self._info(pool)

    def _info(self, pool: Pool) -> PoolInfo:
        snapshot = self._snapshots.current(pool.snapshot_spec)
        return PoolInfo(
            id=pool.id,
            owner=pool.owner,
            template=pool.spec.template,
            isolation=pool.spec.isolation,
            limits=pool.spec.limits,
            metadata=pool.metadata,
            sizes=pool.sizes,
            ready=tuple(warm.id for warm in pool.ready),
            filling=len(pool.filling),
            prepared_ready=len(pool.prepared),
            claims=dict(pool.claims),
            snapshot=None if snapshot is None else TemplateSnapshotInfo(int(snapshot.manifest.get("size_bytes", 0)), made_at(snapshot)),
            error=pool.error or self._snapshots.error(pool.snapshot_spec),
        )
