"""Rules for shared and private pools: visibility, quotas of owners, and the order of evictions.

Invariants:
- Pools that are created by operators or configured in the settings are shared. Every other pool is private: only its owner and operators can see it.
- Warm sandboxes of private pools use only the part of the owner's quota that live sandboxes leave free. If the live sandboxes need more, warm
  sandboxes are removed, oldest first. A create request is checked only against the live sandboxes of its owner.
- When the host or a shared pool needs room, private warm sandboxes are evicted before shared warm sandboxes, beginning with the owner whose warm
  sandboxes have the most memory.
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
from sandlot.core.pools.models import PoolSpec
from sandlot.core.pools.pool import Pool, PoolEntry, WarmSandbox
from sandlot.model.access import LOCAL, OwnerId, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, ForbiddenError, NotFoundError
from sandlot.model.pools import PoolSizes
from sandlot.model.specs import Limits
from sandlot.model.templates import DEFAULT_TEMPLATE_TAG

_SUMMED: Final = ("cpus", "memory_bytes", "disk_bytes")
"""Fields of :class:`Limits` and :class:`Quota`. The quota limits the sum of the field over all sandboxes of an owner."""


@dataclass(frozen=True, slots=True)
class PoolOwners:
    """Owners of private pools, with their quotas and live sandboxes.

    Args:
        principal_of: Returns the principal of an owner, or None if the owner's key was revoked.
        live_limits: Returns the limits of all live sandboxes of an owner.
    """

    principal_of: Callable[[OwnerId], Principal | None]
    live_limits: Callable[[OwnerId], Sequence[Limits]]

    def revoked(self, pools: Iterable[Pool]) -> list[Pool]:
        """Return the private pools whose owner's key was revoked."""
        return [pool for pool in pools if pool.is_private and self.principal_of(pool.owner) is None]

    def over_quota(self, pools: Iterable[Pool]) -> Iterator[tuple[Pool, WarmSandbox]]:
        """Yield each private warm sandbox that exceeds its owner's quota, together with its pool."""
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
        """Return how many further warm sandboxes the quota of a pool's owner allows in the pool. None: no limit."""
        if not pool.is_private:
            return None
        principal = self.principal_of(pool.owner)
        if principal is None:
            return 0
        warm = [each.spec.limits for each in pools if each.owner == pool.owner for _ in range(each.total_warm)]
        return quota_left(principal.quota, self.live_limits(pool.owner), warm, pool.spec.limits)

    def can_have_warm(self, pool: Pool, pools: Iterable[Pool]) -> bool:
        """Return True if the sizes of a pool and the quota of its owner allow a warm sandbox now."""
        return policy.wanted_warm(pool.sizes, pool.growth) > 0 and (pool.total_warm > 0 or self.quota_left(pool, pools) != 0)


def pool_owner(principal: Principal) -> OwnerId:
    """Return the owner of the pools that a principal creates: ``LOCAL``, the owner of shared pools, for an operator."""
    return LOCAL if principal.operator else principal.owner


def find_pool(pools: Mapping[str, Pool], id_or_template: str, principal: Principal) -> Pool:
    """Return a pool that a principal may see.

    A template name never finds a pool of another owner, not even for an operator. Otherwise an operator who repeats a deletion could delete a pool of
    another owner.

    Args:
        pools: All pools by their ids.
        id_or_template: Id of a pool that the principal may see, or name of a template (``NAME`` or ``NAME:TAG``) of which the principal has exactly
            one pool.
        principal: Principal of the request.

    Raises:
        NotFoundError: The principal may see no such pool; code ``pool_not_found``.
        ConflictError: The principal has several pools of the template.
    """
    pool = pools.get(id_or_template)
    if pool is not None and principal.sees(pool.owner):
        return pool
    name = id_or_template.removesuffix(f":{DEFAULT_TEMPLATE_TAG}")
    named = [each for each in pools.values() if each.spec.template.full_name == name and each.owner == pool_owner(principal)]
    if len(named) > 1:
        ids = ", ".join(each.id for each in named)
        raise ConflictError(f"The template {id_or_template[:64]!r} has {len(named)} pools.", hint=f"Use the id of one of them: {ids}.")
    if not named:
        raise NotFoundError(
            f"The pool {id_or_template[:64]!r} does not exist.",
            code=ErrorCode.POOL_NOT_FOUND,
            hint="List the pools with 'sandlot pool ls'.",
            fields={"pool": id_or_template[:64]},
        )
    return named[0]


def find_claimable_pool(pools: Mapping[str, Pool], id_or_template: str, principal: Principal) -> Pool:
    """Return a pool from which a principal may claim a warm sandbox: a shared pool by its id, or the principal's own pool by its id or template.

    Raises:
        NotFoundError: There is no such pool from which the principal may claim; code ``pool_not_found``.
        ConflictError: The principal has several pools of the template.
    """
    owner, pool = pool_owner(principal), pools.get(id_or_template)
    if pool is not None and pool.owner in {owner, LOCAL}:
        return pool
    return find_pool({id_: each for id_, each in pools.items() if each.owner == owner}, id_or_template, principal)


def check_allowed(pool: Pool, sizes: PoolSizes, principal: Principal, *, existing: int | None = None) -> None:
    """Refuse to create a private pool, or to change its sizes, if the owner may not have such a pool. Shared pools are not checked.

    Args:
        pool: The pool. Its sizes are not changed yet.
        sizes: Requested sizes.
        principal: Principal of the request.
        existing: Number of pools that the owner has already, if the pool is new. None: the pool exists already.

    Raises:
        ForbiddenError: The private pool would have prepared sandboxes.
        LimitError: The pool would exceed the owner's quota; code ``quota_exceeded``.
    """
    if not pool.is_private:
        return
    if sizes.prepared:  # requests of all owners may take any prepared sandbox, so only shared pools have prepared sandboxes
        raise ForbiddenError(
            f"`blank` is {sizes.prepared}; only pools of operators can have prepared sandboxes.",
            hint="Set `blank` to 0.",
            fields={"field": "blank"},
        )
    if pool.owner == principal.owner and (existing is not None or sizes.warm > pool.sizes.warm):
        quotas.check_pool(principal.quota, pool.spec.limits, sizes.warm)
    if existing is not None:
        quotas.check_count(principal.quota, "pools", existing)


def serving_pools(pools: Iterable[Pool], spec: PoolSpec, owner: OwnerId) -> list[Pool]:
    """Return the pools from which an owner's create request for a spec may take a warm sandbox: private pools first, then shared pools."""
    return sorted((pool for pool in pools if pool.owner in {owner, LOCAL} and pool.spec.serves(spec)), key=lambda pool: pool.owner == LOCAL)


def fill_priority(pool: Pool, pools: Iterable[Pool]) -> tuple[bool, int, int]:
    """Return the sort key by which pools are filled: shared pools first, then private pools of the owners with the fewest warm sandboxes.

    Of the pools of one owner, the pool with the fewest warm sandboxes is filled first.
    """
    return pool.is_private, sum(each.total_warm for each in pools if each.owner == pool.owner), pool.total_warm


def quota_left(quota: Quota, live: Sequence[Limits], warm: Sequence[Limits], limits: Limits) -> int | None:
    """Return how many further warm sandboxes a quota allows. None: no limit.

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
    """Return how many of an owner's warm sandboxes, oldest first, must be removed so that the remaining sandboxes fit the quota.

    Args:
        quota: Quota of the owner.
        live: Limits of the owner's live sandboxes.
        unfinished: Limits of the owner's warm sandboxes that are being made.
        ready: Limits of the owner's finished warm sandboxes, oldest first.
    """
    return next((count for count in range(len(ready)) if _fits(quota, taken([*live, *unfinished, *ready[count:]]))), len(ready))


def next_eviction(pools: Sequence[Pool]) -> PoolEntry | None:
    """Return the warm or prepared sandbox to evict first, or None if the pools are empty.

    Private warm sandboxes come first: the oldest warm sandbox in the largest pool of the owner whose warm sandboxes have the most memory. Prepared
    sandboxes come second. The oldest warm sandbox of the shared pool with the most warm sandboxes comes last.
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
