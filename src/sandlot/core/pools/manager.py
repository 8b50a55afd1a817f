"""All pools of a service: which there are, what a request gets of them, and what goes first when room is short.

Laws:
- A request gets what its kind has, youngest first; it never waits for a pool. It gets what waits for its owner first, then what the node keeps for
  everybody, and never what waits for another owner.
- A pool that is another's is one that is not there; operators see, change and remove all of them.
- What waits counts in the ledger like a sandbox and goes first when one needs its room; it counts against no bound of the service on
  sandboxes. What waits for an owner takes of his quota what his live ones leave (:mod:`sandlot.core.pools.ownership`).
- Who has no key any more has no pool any more.
- A service that ends removes everything that waits. What a killed one left is swept by the next: nothing that waits is ever taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from sandlot.core import admission
from sandlot.core.admission import AdmissionPolicy
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations
from sandlot.core.pools import models, ownership
from sandlot.core.pools.config_file import PoolConfigFile, Said
from sandlot.core.pools.models import PoolId, PoolSizes, PoolSpec, Wish
from sandlot.core.pools.ownership import PoolOwners
from sandlot.core.pools.pool import Pool, WarmSandbox, all_sizes
from sandlot.core.pools.refill import PoolRefiller
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot, TemplateSnapshotCache
from sandlot.core.pools.template_snapshots import TemplateSnapshotManager
from sandlot.core.ports import Clock, GuestLinkFactory
from sandlot.core.records.metrics import Metrics
from sandlot.model.access import LOCAL, OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import DriverCapability, PreparedSandbox
from sandlot.model.specs import DEFAULT_TEMPLATE, Limits, Shape

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Pooling:
    """What an operator set, and where things lie.

    Args:
        cache: Where template snapshots are: the cache directory.
        data: Where pools that were made at run time are kept: the data directory.
        wishes: The pools that should be.
        version: Sandlot's.
    """

    cache: Path
    data: Path
    wishes: tuple[Wish, ...] = ()
    version: str = ""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How a pool stands.

    Args:
        pool: It.
        held: Its template snapshot; None where there is none.
        error: Why there is none, or why it is not filled; empty where nothing failed.
    """

    pool: Pool
    held: TemplateSnapshot | None
    error: str

    @property
    def hit_rate(self) -> float | None:
        """The part of the requests of its kind that a waiting one answered; None where there was none."""
        total = sum(self.pool.claims.values())
        return self.pool.claims.get(models.HOT, 0) / total if total else None


@dataclass(frozen=True, slots=True)
class PoolClaim:
    """Result of asking the pools for a warm sandbox.

    Args:
        kind: Template, isolation and limits of the request.
        warm: The claimed warm sandbox, which no other request gets. None: no pool had one.
        pools: The pools that were asked; they count how the sandbox is started.
    """

    kind: PoolSpec
    warm: WarmSandbox | None
    pools: tuple[Pool, ...]


class PoolManager:
    """All of them.

    Args:
        pooling: What an operator set.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Where the node's promises are.
        rules: What the operator allows.
        greet: Makes a link to a guest.
        clock: The time.
        new_id: Makes ids that carry this node.
        metrics: What is counted.
        busy: Whether requests for sandboxes wait for a turn.
        owners: Who owns pools, and what else is theirs.
    """

    def __init__(  # noqa: PLR0913 - each is a part of the service
        self,
        pooling: Pooling,
        *,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
        rules: AdmissionPolicy,
        greet: GuestLinkFactory,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        metrics: Metrics,
        busy: Callable[[], bool],
        owners: PoolOwners,
    ) -> None:
        self._owners = owners
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._rules = rules
        self._clock = clock
        self._metrics = metrics
        self._kept = PoolConfigFile(pooling.data)
        self._said = self._kept.read()
        self._saying = asyncio.Lock()
        self._pooling = pooling
        there = [Pool(which.kind, wish.sizes, implied=wish.implied) for which, wish in self._wished().items() if which not in self._said]
        there += [Pool(which.kind, said.sizes, which.owner, metadata=said.metadata) for which, said in self._said.items() if said.sizes is not None]
        self._pools = {pool.id: pool for pool in there}
        self._snapshots = TemplateSnapshotManager(
            shelf=TemplateSnapshotCache(pooling.cache),
            drivers=drivers,
            templates=templates,
            reservations=reservations,
            greet=greet,
            clock=clock,
            new_id=new_id,
            metrics=metrics,
            version=pooling.version,
        )
        self._refiller = PoolRefiller(
            pools=lambda: tuple(self._pools.values()),
            # Whoever wants nothing to be made ahead gets nothing.
            implied=[PoolSpec(DEFAULT_TEMPLATE, rules.isolation_default, Limits())] if pooling.wishes else [],
            snapshots=self._snapshots,
            drivers=drivers,
            templates=templates,
            reservations=reservations,
            greet=greet,
            clock=clock,
            new_id=new_id,
            metrics=metrics,
            busy=busy,
            settle=self._settle,
            owners=owners,
        )
        metrics.count_pools(lambda: all_sizes(self._pools.values()))

    # -- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep them full, until it is cancelled."""
        await self._refiller.run()

    async def aclose(self) -> None:
        """Remove everything that waits, or is in the making. Idempotent."""
        for pool in tuple(self._pools.values()):
            self._empty(pool)
        self._pools.clear()
        await self._refiller.aclose()
        self._snapshots.close()

    # -- requests ---------------------------------------------------------------------------------------------------

    def has_warm(self, kind: PoolSpec, owner: OwnerId) -> bool:
        """Return whether a warm sandbox of a kind is ready for an owner."""
        return any(pool.has() for pool in ownership.suiting(self._pools.values(), kind, owner))

    def claim(self, kind: PoolSpec, owner: OwnerId) -> PoolClaim:
        """Claim a warm sandbox for a request. The pools that have none count a miss.

        The reservation of the warm sandbox is to be transferred to the sandbox of the request (``WarmSandbox.holder``).

        Args:
            kind: Template, isolation and limits of the request.
            owner: Owner of the sandbox. Private pools of the owner are asked before shared ones.
        """
        pools: list[Pool] = []
        now_s = self._clock.monotonic_s()
        warm = None
        for pool in ownership.suiting(self._pools.values(), kind, owner):
            pools.append(pool)
            warm = pool.take(now_s)
            if warm is not None:
                break
            pool.missed(now_s)
        self._refiller.kick()
        return PoolClaim(kind, warm, tuple(pools))

    def claim_failed(self) -> None:
        """Refill: a claimed warm sandbox turned out to be unusable."""
        self._refiller.kick()

    def started(self, claim: PoolClaim, path: str, template: str) -> None:
        """Count how a sandbox was started.

        Args:
            claim: Claim of the request.
            path: Path by which the sandbox was started, such as ``hot``.
            template: Template of the sandbox.
        """
        self._metrics.claimed(path, template)
        for pool in claim.pools:
            pool.claims[path] = pool.claims.get(path, 0) + 1

    def template_snapshot(self, kind: PoolSpec) -> TemplateSnapshot | None:
        """Return the template snapshot that a sandbox of a kind can be restored from. None: there is none now."""
        return self._snapshots.at_hand(models.snapshot_spec(kind))

    def template_snapshot_failed(self, snapshot: TemplateSnapshot, reason: str) -> None:
        """Replace a template snapshot that could not be restored."""
        self._snapshots.failed(snapshot, reason)
        self._refiller.kick()

    def take_prepared(self, isolation: str, shape: Shape) -> PreparedSandbox | None:
        """Take a prepared sandbox of a shape out of its pool. None: there is none. The caller has a reservation of its own.

        Args:
            isolation: Name of the driver.
            shape: Root filesystem image, limits and network.
        """
        for pool in self._pools.values():
            for entry in tuple(pool.blanks):
                is_same = entry.base.root.digest == shape.root.digest and entry.kind.limits == shape.limits
                if is_same and entry.kind.isolation == isolation and pool.lend(entry, self._clock.monotonic_s()):
                    self._refiller.kick()
                    self._reservations.release(entry.holder)
                    return entry.prepared
        return None

    async def evict_one(self) -> bool:
        """Remove one of those that wait, as :func:`~sandlot.core.pools.ownership.first_to_go` says; whether there was any.

        What is in the making for owners goes before what the node has.
        """
        self._refiller.hold()
        pools = tuple(self._pools.values())
        chosen = ownership.first_to_go([pool for pool in pools if pool.owner != LOCAL])
        if chosen is None and await self._refiller.free_one(of_owners=True):
            return True
        chosen = chosen or ownership.first_to_go(pools)
        if chosen is None:
            return await self._refiller.free_one()
        self._refiller.evict(chosen, "A sandbox needed its room, or the host is short of memory.")
        return await self._refiller.free_one()

    # -- owners and operators ---------------------------------------------------------------------------------------

    def list(self, principal: Principal) -> list[PoolStatus]:
        """How those stand that somebody may see."""
        seen = [pool for pool in self._pools.values() if principal.sees(pool.owner)]
        return [self._told(pool) for pool in sorted(seen, key=lambda pool: (pool.kind.template, pool.kind.isolation, pool.id))]

    def find(self, word: str, principal: Principal) -> PoolStatus:
        """One that somebody may see by its id, or his own by its template where he has only one of that.

        Raises:
            NotFoundError: ``pool_not_found``.
            ConflictError: He has several of the template.
        """
        return self._told(ownership.find(self._pools, word, principal))

    def claimable(self, word: str, principal: Principal) -> Pool:
        """One out of which somebody may have a sandbox: one of his own, or one of the node's whose id he knows; else ``pool_not_found``."""
        return ownership.claimable(self._pools, word, principal)

    async def create(
        self, principal: Principal, template: str, isolation: str, limits: Limits, sizes: PoolSizes, metadata: Mapping[str, str] | None = None
    ) -> PoolStatus:
        """Have a pool, also after a restart. One that nobody asked for is made somebody's.

        Args:
            principal: Whose it will be; an operator's are the node's.
            template: What its sandboxes are made from.
            isolation: ``auto`` or a kind that the operator allows.
            limits: What each may use.
            sizes: How much it holds.
            metadata: His own words.

        Raises:
            NotFoundError: ``template_not_found``.
            ForbiddenError: The operator does not allow the isolation; or blanks, which are the node's.
            UnsupportedError: Its driver cannot let a sandbox wait.
            InvalidRequestError: None of them can ever fit on this node.
            LimitError: ``quota_exceeded``: he may have no more pools, or not so many sandboxes.
            ConflictError: He has one of this kind.
        """
        self._templates.require(template)
        chosen = admission.resolve_isolation(isolation, self._rules, self._drivers)
        can = await self._drivers.capabilities(chosen)
        if not can.can(DriverCapability.PAUSE):
            raise UnsupportedError(
                f"Sandboxes of isolation {chosen!r} cannot wait in a pool: {can.why_not(DriverCapability.PAUSE)}.",
                code=ErrorCode.UNSUPPORTED,
                fields={"ability": str(DriverCapability.PAUSE)},
            )
        self._reservations.check_feasible(self._drivers[chosen].max_resources(limits), await self._reservations.read_host())
        words = metadata or {}
        admission.check_metadata(words)
        pool = Pool(PoolSpec(template, chosen, limits), sizes, ownership.owner_of(principal), metadata=words)
        async with self._saying:
            there = self._pools.get(pool.id)
            if there is not None and there.implied:
                return await self._set(there, sizes, words)
            if there is not None:
                raise ConflictError(
                    f"There is a pool of {template!r} with these limits already.",
                    code=ErrorCode.CONFLICT,
                    hint=f"Change it: 'sandlot pool set {pool.id}'.",
                    fields={"pool": pool.id},
                )
            ownership.check(pool, sizes, principal, self.count(pool.owner))
            await self._say(pool.identity, Said(sizes, words))
            self._pools[pool.id] = pool
            return self._changed(pool)

    def count(self, owner: OwnerId) -> int:
        """How many pools an owner has."""
        return sum(1 for pool in self._pools.values() if pool.owner == owner)

    async def update(
        self, word: str, principal: Principal, *, warm: int | None, most: int | None, blank: int | None, metadata: Mapping[str, str] | None = None
    ) -> PoolStatus:
        """Change what a pool holds, also after a restart; what is None stays.

        Raises:
            NotFoundError: ``pool_not_found``.
            InvalidRequestError: The numbers make no sense.
            LimitError: ``quota_exceeded``: more would always wait than its owner may have.
            ForbiddenError: Blanks are the node's.
        """
        admission.check_metadata(metadata or {})
        async with self._saying:
            pool = self.find(word, principal).pool
            sizes = pool.sizes.changed(warm=warm, most=most, blank=blank)
            ownership.check(pool, sizes, principal)
            return await self._set(pool, sizes, pool.metadata if metadata is None else metadata)

    async def delete(self, word: str, principal: Principal) -> None:
        """Have a pool no more, also after a restart; what waits in it is removed.

        Raises:
            NotFoundError: ``pool_not_found``.
        """
        async with self._saying:
            pool = self.find(word, principal).pool
            await self._say(pool.identity, Said(None))
            self._forget(pool)

    def _forget(self, pool: Pool) -> None:
        if self._pools.pop(pool.id, None) is not None:
            for task in (*pool.filling, *pool.filling_blanks):
                task.cancel()
            self._empty(pool)

    async def _set(self, pool: Pool, sizes: PoolSizes, metadata: Mapping[str, str]) -> PoolStatus:
        await self._say(pool.identity, Said(sizes, metadata))
        pool.sizes, pool.metadata, pool.implied, pool.grown = sizes, metadata, False, 0
        return self._changed(pool)

    async def _say(self, which: PoolId, what: Said) -> None:
        said = {**self._said, which: what}
        if what.sizes is None and which not in self._wished():
            del said[which]  # no setting would bring it back
        await asyncio.to_thread(self._kept.write, said)
        self._said = said

    def _wished(self) -> dict[PoolId, Wish]:
        return {PoolId(LOCAL, PoolSpec(wish.template, self._rules.isolation_default, Limits())): wish for wish in self._pooling.wishes}

    def _changed(self, pool: Pool) -> PoolStatus:
        self._refiller.kick()
        return self._told(pool)

    def _told(self, pool: Pool) -> PoolStatus:
        look = models.snapshot_spec(pool.kind)
        return PoolStatus(pool, self._snapshots.at_hand(look), pool.error or self._snapshots.error(look))

    async def _settle(self) -> None:
        """Remove the pools of those who have no key any more, and of what waits for others what their quotas leave no room for."""
        for pool in self._owners.lost(self._pools.values()):
            async with self._saying:
                self._forget(pool)
                try:
                    await self._say(pool.identity, Said(None))
                except SandlotError as error:  # the next service removes it as well
                    _log.error("pool.not_forgotten", pool=pool.id, error=error.message)
            _log.info("pool.disowned", pool=pool.id, hint="The key of its owner was revoked.")
        self._refiller.dispose(*(member for pool, member in list(self._owners.over(self._pools.values())) if pool.drop(member)))

    def _empty(self, pool: Pool) -> None:
        self._refiller.dispose(*(what for what in list(pool.everything()) if pool.drop(what)))
