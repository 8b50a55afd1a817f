"""Shared and private pools: who sees and claims from a pool, what an owner's quota leaves to it, and what is evicted first.

Invariants:
- Pools that operators create or settings name are shared. Every other pool is private: only its owner and operators see it, and for all other
  principals it does not exist.
- Warm sandboxes of private pools use only the part of the owner's quota that live sandboxes leave. When live sandboxes grow, warm ones are removed,
  oldest first. A create request is checked against the live sandboxes alone; a claim only turns a warm sandbox into a live one.
- When the host is short of room, or a shared pool finds none, private warm sandboxes are evicted before shared ones. The owner with the most memory
  in warm sandboxes comes first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.core.access import quotas
from sandlot.core.access.quotas import Taken, taken
from sandlot.core.pools import policy
from sandlot.core.pools.models import PoolSizes, PoolSpec
from sandlot.core.pools.pool import Pool, PoolEntry, WarmSandbox
from sandlot.model.access import LOCAL, OwnerId, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, ForbiddenError, NotFoundError
from sandlot.model.specs import Limits

_SUMMED: Final = ("cpus", "memory_bytes", "disk_bytes")
"""Quotas that limit a sum over all sandboxes of an owner."""


@dataclass(frozen=True, slots=True)
class PoolOwners:
    """Owners of private pools, with their quotas and live sandboxes.

    Args:
        principal_of: Returns the principal of an owner. None: the owner's key was revoked.
        live_limits: Returns the limits of all live sandboxes of an owner.
    """

    principal_of: Callable[[OwnerId], Principal | None]
    live_limits: Callable[[OwnerId], Sequence[Limits]]

    def revoked(self, pools: Iterable[Pool]) -> list[Pool]:
        """Return the private pools whose owner's key was revoked."""
        return [pool for pool in pools if pool.is_private and self.principal_of(pool.owner) is None]

    def over_quota(self, pools: Iterable[Pool]) -> Iterator[tuple[Pool, WarmSandbox]]:
        """Yield the warm sandboxes for which the owner's quota has no room, each with its pool."""
        pools_of: dict[OwnerId, list[Pool]] = {}
        for pool in (pool for pool in pools if pool.is_private):
            pools_of.setdefault(pool.owner, []).append(pool)
        for owner, own in pools_of.items():
            principal = self.principal_of(owner)
            if principal is not None:
                ready = sorted(((pool, warm) for pool in own for warm in pool.ready), key=lambda each: each[1].started_at_s)
                unfinished = [pool.spec.limits for pool in own for _ in pool.filling]
                limits = [pool.spec.limits for pool, _ in ready]
                yield from ready[: excess_count(principal.quota, self.live_limits(owner), unfinished, limits)]

    def quota_left(self, pool: Pool, pools: Iterable[Pool]) -> int | None:
        """Return the number of further warm sandboxes that the owner's quota allows in a pool. None: no limit."""
        if not pool.is_private:
            return None
        principal = self.principal_of(pool.owner)
        if principal is None:
            return 0
        warm = [each.spec.limits for each in pools if each.owner == pool.owner for _ in range(each.total_warm)]
        return quota_left(principal.quota, self.live_limits(pool.owner), warm, pool.spec.limits)

    def can_have_warm(self, pool: Pool, pools: Iterable[Pool]) -> bool:
        """Return whether the pool may have a warm sandbox now. Otherwise no template snapshot is made for it."""
        return policy.wanted_warm(pool.sizes, pool.growth) > 0 and (pool.total_warm > 0 or self.quota_left(pool, pools) != 0)


def pool_owner(principal: Principal) -> OwnerId:
    """Return the owner of the pools that a principal creates."""
    return LOCAL if principal.operator else principal.owner


def find_pool(pools: Mapping[str, Pool], id_or_template: str, principal: Principal) -> Pool:
    """Return a pool that a principal may see, by its id or by the template of the principal's only pool of that template.

    The name of a template never finds a pool of another owner, not even for an operator: a deletion that is repeated must not delete another pool.

    Args:
        pools: Pool id -> pool.
        id_or_template: Id of the pool, or name of its template.
        principal: Principal of the request.

    Raises:
        NotFoundError: ``pool_not_found``.
        ConflictError: The principal has several pools of the template.
    """
    pool = pools.get(id_or_template)
    if pool is not None and principal.sees(pool.owner):
        return pool
    named = [each for each in pools.values() if each.spec.template == id_or_template and each.owner == pool_owner(principal)]
    if len(named) > 1:
        ids = ", ".join(each.id for each in named)
        raise ConflictError(
            f"The template {id_or_template[:64]!r} has {len(named)} pools.", code=ErrorCode.CONFLICT, hint=f"Use the id of one of them: {ids}."
        )
    if not named:
        raise NotFoundError(
            f"The pool {id_or_template[:64]!r} does not exist.",
            code=ErrorCode.POOL_NOT_FOUND,
            hint="List the pools with 'sandlot pool ls'.",
            fields={"pool": id_or_template[:64]},
        )
    return named[0]


def find_claimable_pool(pools: Mapping[str, Pool], id_or_template: str, principal: Principal) -> Pool:
    """Return a pool from which a principal may claim: a shared pool by its id, or a pool of the principal by its id or template.

    Raises:
        NotFoundError: ``pool_not_found``.
        ConflictError: The principal has several pools of the template.
    """
    owner, pool = pool_owner(principal), pools.get(id_or_template)
    if pool is not None and pool.owner in {owner, LOCAL}:
        return pool
    return find_pool({id_: each for id_, each in pools.items() if each.owner == owner}, id_or_template, principal)


def check_allowed(pool: Pool, sizes: PoolSizes, principal: Principal, *, existing: int | None = None) -> None:
    """Refuse a private pool, or new sizes of one, that its owner may not have.

    Args:
        pool: The pool, with its old sizes.
        sizes: Requested sizes.
        principal: Principal of the request.
        existing: Number of the owner's pools, if the pool is new. None: the pool exists already.

    Raises:
        ForbiddenError: The pool would have prepared sandboxes.
        LimitError: ``quota_exceeded``.
    """
    if not pool.is_private:
        return
    if sizes.prepared:  # any request of any owner may take a prepared sandbox, so only shared pools have them
        raise ForbiddenError(
            f"`blank` is {sizes.prepared}; only operators can keep prepared sandboxes.",
            code=ErrorCode.FORBIDDEN,
            hint="Set `blank` to 0.",
            fields={"field": "blank"},
        )
    if pool.owner == principal.owner and (existing is not None or sizes.warm > pool.sizes.warm):
        quotas.check_pool(principal.quota, pool.spec.limits, sizes.warm)
    if existing is not None:
        quotas.check_pools(principal.quota, existing)


def serving_pools(pools: Iterable[Pool], spec: PoolSpec, owner: OwnerId) -> list[Pool]:
    """Return the pools that serve an owner's request for a spec: private pools first, then shared ones."""
    return sorted((pool for pool in pools if pool.owner in {owner, LOCAL} and pool.spec.serves(spec)), key=lambda pool: pool.owner == LOCAL)


def fill_priority(pool: Pool, pools: Iterable[Pool]) -> tuple[bool, int]:
    """Return a sort key: pools that are filled first have the smallest. Shared pools come first, then owners with few warm sandboxes."""
    return pool.is_private, sum(each.total_warm for each in pools if each.owner == pool.owner)


def quota_left(quota: Quota, live: Sequence[Limits], warm: Sequence[Limits], limits: Limits) -> int | None:
    """Return the number of further warm sandboxes that a quota allows. None: no limit.

    Args:
        quota: Quota of the owner.
        live: Limits of the owner's live sandboxes.
        warm: Limits of the owner's warm sandboxes, unfinished ones included.
        limits: Limits of each further warm sandbox.
    """
    used = taken([*live, *warm])
    left = [] if quota.sandboxes is None else [quota.sandboxes - used.sandboxes]
    bounds = {name: getattr(quota, name) for name in _SUMMED}
    left += [math.floor((bound - getattr(used, name)) / getattr(limits, name)) for name, bound in bounds.items() if bound is not None]
    return max(0, min(left)) if left else None


def excess_count(quota: Quota, live: Sequence[Limits], unfinished: Sequence[Limits], ready: Sequence[Limits]) -> int:
    """Return the smallest number of warm sandboxes to remove, oldest first, so that the rest fits the quota.

    Args:
        quota: Quota of the owner.
        live: Limits of the owner's live sandboxes.
        unfinished: Limits of the owner's warm sandboxes that are being made.
        ready: Limits of the owner's warm sandboxes, oldest first.
    """
    return next((count for count in range(len(ready)) if _fits(quota, taken([*live, *unfinished, *ready[count:]]))), len(ready))


def next_eviction(pools: Sequence[Pool]) -> PoolEntry | None:
    """Return the entry to evict first, or None if the pools are empty.

    The order is: the oldest warm sandbox in the largest pool of the owner whose private warm sandboxes have the most memory; prepared sandboxes;
    the oldest warm sandbox of the shared pool with the most of them.
    """
    memory: Counter[OwnerId] = Counter()
    for pool in (pool for pool in pools if pool.is_private):
        memory[pool.owner] += _memory_bytes(pool)
    owner, most = memory.most_common(1)[0] if memory else (LOCAL, 0)
    if most:
        return max((pool for pool in pools if pool.owner == owner), key=_memory_bytes).ready[0]
    if prepared := [entry for pool in pools for entry in pool.prepared]:
        return prepared[0]
    largest = max(pools, key=lambda pool: len(pool.ready), default=None)
    return largest.ready[0] if largest is not None and largest.ready else None


def _memory_bytes(pool: Pool) -> int:
    return len(pool.ready) * pool.spec.limits.memory_bytes


def _fits(quota: Quota, used: Taken) -> bool:
    bounds = (("sandboxes", used.sandboxes), *((name, getattr(used, name)) for name in _SUMMED))
    return all(getattr(quota, name) is None or amount <= getattr(quota, name) for name, amount in bounds)
