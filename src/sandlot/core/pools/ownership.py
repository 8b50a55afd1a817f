"""Whose pools are: who sees which, what a quota leaves to them, and whose goes first. Decided from what there is; nothing is done here.

Laws:
- What operators make, and what settings name, is the node's; what any other key makes is that key's, and only it and operators see it: for all
  others it is not there.
- What waits for an owner takes of his quota what his live sandboxes leave, and never more: it goes, oldest first, where they grow. A sandbox is
  refused for what lives alone; one that waited and is claimed only changes from one side to the other.
- Where the host runs short, or the node's own pools have no room, what waits for owners goes before what the node keeps for everybody, the largest
  holding first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sandlot.core.access import quotas
from sandlot.core.access.quotas import Taken, taken
from sandlot.core.pools import policy
from sandlot.core.pools.models import PoolSizes, PoolSpec
from sandlot.core.pools.pool import Pool, PreparedPoolEntry, WarmSandbox
from sandlot.model.access import LOCAL, OwnerId, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, ForbiddenError, NotFoundError
from sandlot.model.specs import Limits

_SUMS = "cpus", "memory_bytes", "disk_bytes"


@dataclass(frozen=True, slots=True)
class PoolOwners:
    """Who owns pools, and what else is theirs.

    Args:
        principal_of: Whoever has the key of that id; None where it was revoked.
        live: The limits of an owner's live sandboxes.
    """

    principal_of: Callable[[OwnerId], Principal | None]
    live: Callable[[OwnerId], Sequence[Limits]]

    def lost(self, pools: Iterable[Pool]) -> list[Pool]:
        """Pools whose owners have no key any more."""
        return [pool for pool in pools if pool.owner != LOCAL and self.principal_of(pool.owner) is None]

    def over(self, pools: Iterable[Pool]) -> Iterator[tuple[Pool, WarmSandbox]]:
        """What waits in which pool, and has to go because its owner's quota leaves no room for it."""
        of: dict[OwnerId, list[Pool]] = {}
        for pool in pools:
            of.setdefault(pool.owner, []).append(pool)
        for owner, theirs in of.items():
            principal = None if owner == LOCAL else self.principal_of(owner)
            if principal is not None:
                ready = sorted(((pool, member) for pool in theirs for member in pool.ready), key=lambda each: each[1].made_at_s)
                making = [pool.kind.limits for pool in theirs for _ in range(pool.making)]
                yield from ready[: excess(principal.quota, self.live(owner), making, [pool.kind.limits for pool, _ in ready])]

    def spare(self, pool: Pool, pools: Iterable[Pool]) -> int | None:
        """How many more may wait in one of them, as far as its owner's quota goes; None is no bound."""
        if pool.owner == LOCAL:
            return None
        principal = self.principal_of(pool.owner)
        if principal is None:
            return 0
        waiting = [each.kind.limits for each in pools if each.owner == pool.owner for _ in range(each.held)]
        return spare(principal.quota, self.live(pool.owner), waiting, pool.kind.limits)

    def may_have(self, pool: Pool, pools: Iterable[Pool]) -> bool:
        """Whether anything may wait in one of them now: only then is there a template snapshot to be made for it."""
        return policy.target(pool.sizes, pool.grown) > 0 and (pool.held > 0 or self.spare(pool, pools) != 0)


def owner_of(principal: Principal) -> OwnerId:
    """Whose a pool is that somebody makes."""
    return LOCAL if principal.operator else principal.owner


def find(pools: Mapping[str, Pool], word: str, principal: Principal) -> Pool:
    """One that somebody sees by its id, or his own by its template where he has only one of that.

    A template's name is never somebody else's pool, not even to an operator: a removal that is asked for twice must not find the next one.

    Args:
        pools: Id -> pool.
        word: The id, or the template.
        principal: Who asks.

    Raises:
        NotFoundError: ``pool_not_found``.
        ConflictError: He has several of the template.
    """
    pool = pools.get(word)
    if pool is not None and principal.sees(pool.owner):
        return pool
    named = [each for each in pools.values() if each.kind.template == word and each.owner == owner_of(principal)]
    if len(named) > 1:
        ids = ", ".join(each.id for each in named)
        raise ConflictError(f"The template {word[:64]!r} has several pools.", code=ErrorCode.CONFLICT, hint=f"Name one by its id: {ids}.")
    if not named:
        raise NotFoundError(
            f"There is no pool {word[:64]!r}.",
            code=ErrorCode.POOL_NOT_FOUND,
            hint="'sandlot pool ls' lists those that there are.",
            fields={"pool": word[:64]},
        )
    return named[0]


def claimable(pools: Mapping[str, Pool], word: str, principal: Principal) -> Pool:
    """One out of which somebody may have a sandbox: one of his own, or one of the node's whose id he knows; else ``pool_not_found``."""
    own, pool = owner_of(principal), pools.get(word)
    if pool is not None and pool.owner in {own, LOCAL}:
        return pool
    return find({id_: each for id_, each in pools.items() if each.owner == own}, word, principal)


def check(pool: Pool, sizes: PoolSizes, principal: Principal, others: int | None = None) -> None:
    """Refuse a pool that somebody may not have.

    Args:
        pool: It.
        sizes: How much it is to hold.
        principal: Who asks.
        others: How many its owner has besides; None where it is there already.

    Raises:
        ForbiddenError: Blanks of an owner.
        LimitError: ``quota_exceeded``.
    """
    if pool.owner == LOCAL:
        return
    if sizes.blank:
        raise ForbiddenError(
            "Blanks serve whatever is restored, whoever asks: they are the node's, and only an operator has pools of them.",
            code=ErrorCode.FORBIDDEN,
            hint="Leave blank out, or use an operator's key.",
            fields={"field": "blank"},
        )
    if pool.owner == principal.owner and (others is not None or sizes.warm > pool.sizes.warm):
        quotas.check_pool(principal.quota, pool.kind.limits, sizes.warm)
    if others is not None:
        quotas.check_pools(principal.quota, others)


def suiting(pools: Iterable[Pool], kind: PoolSpec, owner: OwnerId) -> list[Pool]:
    """The pools out of which an owner may get one of a kind: his own, then the node's."""
    return sorted((pool for pool in pools if pool.owner in {owner, LOCAL} and pool.kind.gives(kind)), key=lambda pool: pool.owner == LOCAL)


def turn(pool: Pool, pools: Iterable[Pool]) -> tuple[bool, int]:
    """When it is a pool's turn to be filled, as what to sort by: the node's first, then whoever has least."""
    return pool.owner != LOCAL, sum(each.held for each in pools if each.owner == pool.owner)


def spare(quota: Quota, live: Sequence[Limits], waiting: Sequence[Limits], one: Limits) -> int | None:
    """How many more may wait for an owner.

    Args:
        quota: His.
        live: Of his live sandboxes.
        waiting: Of those that wait for him, those in the making included.
        one: Of each of those that may be more.

    Returns:
        How many; None where nothing bounds them.
    """
    held = taken([*live, *waiting])
    left = [] if quota.sandboxes is None else [quota.sandboxes - held.sandboxes]
    bounds = {name: getattr(quota, name) for name in _SUMS}
    left += [math.floor((limit - getattr(held, name)) / getattr(one, name)) for name, limit in bounds.items() if limit is not None]
    return max(0, min(left)) if left else None


def excess(quota: Quota, live: Sequence[Limits], making: Sequence[Limits], ready: Sequence[Limits]) -> int:
    """How many of those that wait for an owner have to go, the first so many.

    Args:
        quota: His.
        live: Of his live sandboxes.
        making: Of what is in the making for him.
        ready: Of those that wait, oldest first.
    """
    return next((gone for gone in range(len(ready)) if _fits(quota, taken([*live, *making, *ready[gone:]]))), len(ready))


def first_to_go(pools: Sequence[Pool]) -> WarmSandbox | PreparedPoolEntry | None:
    """What goes first where its room is needed.

    Of what waits for owners the oldest of the largest pool of whoever has most; then the node's blanks; then the oldest of its largest pool.
    """
    memory: Counter[OwnerId] = Counter()
    for pool in pools:
        if pool.owner != LOCAL:
            memory[pool.owner] += _memory_bytes(pool)
    whose, most = memory.most_common(1)[0] if memory else (LOCAL, 0)
    if most:
        return max((pool for pool in pools if pool.owner == whose), key=_memory_bytes).ready[0]
    if blanks := [each for pool in pools for each in pool.blanks]:
        return blanks[0]
    largest = max(pools, key=lambda pool: len(pool.ready), default=None)
    return largest.ready[0] if largest is not None and largest.ready else None


def _memory_bytes(pool: Pool) -> int:
    return len(pool.ready) * pool.kind.limits.memory_bytes


def _fits(quota: Quota, held: Taken) -> bool:
    bounds = (("sandboxes", held.sandboxes), *((name, getattr(held, name)) for name in _SUMS))
    return all(getattr(quota, name) is None or used <= getattr(quota, name) for name, used in bounds)
