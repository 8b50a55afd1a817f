"""All pools of a service: which there are, what a request gets of them, and what goes first when room is short.

Laws:
- A request gets what its kind has, youngest first; it never waits for a pool.
- Pools are the node's and an operator's: no tenant can make one, or tell one apart from a sandbox that was made for them.
- What waits counts in the ledger like a sandbox and goes first when one needs its room; it counts against no bound on sandboxes.
- A service that ends removes everything that waits. What a killed one left is swept by the next: nothing that waits is ever taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from sandlot.core import admission
from sandlot.core.admission import Rules
from sandlot.core.node.ledger import Ledger
from sandlot.core.pools import keys, starts
from sandlot.core.pools.kept import Kept
from sandlot.core.pools.kinds import Kind, Sizes, Wish
from sandlot.core.pools.pool import Member, Pool, Prepared
from sandlot.core.pools.refill import Refill, all_sizes
from sandlot.core.pools.shelf import Held, Shelf
from sandlot.core.pools.starts import Claim, Direct, Lent
from sandlot.core.pools.templates import Snapshots
from sandlot.core.ports import Clock, Greet
from sandlot.core.records.metrics import Metrics
from sandlot.core.supply import Supply
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Ability, Blank
from sandlot.model.specs import DEFAULT_TEMPLATE, Limits, SandboxSpec, Shape

if TYPE_CHECKING:
    from sandlot.core.lives.starts import Start

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
class Told:
    """How a pool stands.

    Args:
        pool: It.
        held: Its template snapshot; None where there is none.
        error: Why there is none, or why it is not filled; empty where nothing failed.
    """

    pool: Pool
    held: Held | None
    error: str

    @property
    def hit_rate(self) -> float | None:
        """The part of the requests of its kind that a waiting one answered; None where there was none."""
        total = sum(self.pool.claims.values())
        return self.pool.claims.get(starts.HOT, 0) / total if total else None


class Pools:
    """All of them.

    Args:
        pooling: What an operator set.
        supply: Drivers and templates.
        ledger: Where the node's promises are.
        rules: What the operator allows.
        greet: Makes a link to a guest.
        clock: The time.
        new_id: Makes ids that carry this node.
        metrics: What is counted.
        busy: Whether requests for sandboxes wait for a turn.
    """

    def __init__(
        self,
        pooling: Pooling,
        *,
        supply: Supply,
        ledger: Ledger,
        rules: Rules,
        greet: Greet,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        metrics: Metrics,
        busy: Callable[[], bool],
    ) -> None:
        self._supply = supply
        self._ledger = ledger
        self._rules = rules
        self._clock = clock
        self._metrics = metrics
        self._kept = Kept(pooling.data)
        self._said = self._kept.read()
        self._words = dict(self._kept.words)
        self._pooling = pooling
        self._pools = {kind.id: Pool(kind, wish.sizes, implied=wish.implied) for kind, wish in self._wished().items() if kind not in self._said}
        words = self._words
        self._pools.update({kind.id: Pool(kind, said, metadata=words.get(kind, {})) for kind, said in self._said.items() if said is not None})
        self._snapshots = Snapshots(
            shelf=Shelf(pooling.cache),
            supply=supply,
            ledger=ledger,
            greet=greet,
            clock=clock,
            new_id=new_id,
            metrics=metrics,
            version=pooling.version,
        )
        self._refill = Refill(
            pools=lambda: tuple(self._pools.values()),
            # Whoever wants nothing to be made ahead gets nothing.
            implied=[Kind(DEFAULT_TEMPLATE, rules.isolation_default, Limits())] if pooling.wishes else [],
            snapshots=self._snapshots,
            supply=supply,
            ledger=ledger,
            greet=greet,
            clock=clock,
            new_id=new_id,
            metrics=metrics,
            busy=busy,
        )
        ledger.evict = self.evict
        metrics.count_pools(lambda: all_sizes(self._pools.values()))

    # -- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep them full, until it is cancelled."""
        await self._refill.run()

    async def aclose(self) -> None:
        """Remove everything that waits, or is in the making. Idempotent."""
        for pool in tuple(self._pools.values()):
            self._empty(pool)
        self._pools.clear()
        await self._refill.aclose()
        self._snapshots.close()

    # -- requests ---------------------------------------------------------------------------------------------------

    def waits(self, template: str, isolation: str, limits: Limits) -> bool:
        """Whether something waits that could become such a sandbox; looks only."""
        wanted = Kind(template, isolation, limits)
        return any(pool.has() for pool in self._pools.values() if pool.kind.gives(wanted))

    def choose(self, spec: SandboxSpec) -> Start:
        """How a sandbox comes to its first answer that goes on from nothing but its template. Waits for nothing.

        A claim holds what it takes over: its promise is to be handed over to the sandbox (``Claim.member.holder``).
        """
        kind = Kind(spec.template, spec.isolation, spec.limits)
        look = keys.look(kind)
        held = self._snapshots.at_hand(look)
        suiting = [pool for pool in self._pools.values() if pool.kind.gives(kind)]
        direct = Direct(held, lambda path: self._came(path, spec, suiting), self._unusable)
        now_s = self._clock.monotonic_s()
        for pool in suiting:
            member = pool.take(now_s)
            if member is not None:
                self._refill.kick()
                return Claim(member, direct, lambda: self._came(starts.HOT, spec, suiting), self._spoilt)
        for pool in suiting:
            pool.missed(now_s)
        self._refill.kick()
        return direct

    async def prepare(self, isolation: str, shape: Shape, *, snapshot: Path | None = None) -> Blank:
        """A blank sandbox for a snapshot: one that was prepared ahead, where there is one of that shape; another one otherwise.

        Args:
            isolation: The driver's name.
            shape: What it is to be.
            snapshot: What it is going to be restored from; None takes none that waits.
        """
        driver = self._supply.drivers[isolation]
        if snapshot is not None:
            for pool in self._pools.values():
                for waiting in tuple(pool.blanks):
                    same = waiting.base.root.digest == shape.root.digest and waiting.kind.limits == shape.limits
                    if same and waiting.kind.isolation == isolation and pool.lend(waiting, self._clock.monotonic_s()):
                        self._refill.kick()
                        self._ledger.give_up(waiting.holder)  # whoever gets it has a promise of its own
                        return Lent(waiting.blank, lambda: driver.prepare(shape, snapshot=snapshot))
        return await driver.prepare(shape, snapshot=snapshot)

    async def evict(self) -> bool:
        """Remove one of those that wait, blanks first, then the oldest of the largest pool; whether there was any."""
        self._refill.hold()
        blanks = [each for pool in self._pools.values() for each in pool.blanks]
        largest = max(self._pools.values(), key=lambda pool: len(pool.ready), default=None)
        waiting: list[Member | Prepared] = [*blanks, *(largest.ready if largest is not None else ())]
        if not waiting:
            return await self._refill.free_one()
        chosen = waiting[0]
        for pool in self._pools.values():
            pool.drop(chosen)
        self._metrics.evicted()
        _log.info("pool.evicted", template=chosen.kind.template, hint="A sandbox needed its room, or the host is short of memory.")
        self._refill.dispose(chosen)
        return await self._refill.free_one()

    # -- operators --------------------------------------------------------------------------------------------------

    def all(self) -> list[Told]:
        """How they stand."""
        return [self._told(pool) for pool in sorted(self._pools.values(), key=lambda pool: (pool.kind.template, pool.kind.isolation, pool.kind.id))]

    def find(self, word: str) -> Told:
        """One by its id, or by its template where that has only one.

        Raises:
            NotFoundError: ``pool_not_found``.
            ConflictError: The template has several.
        """
        pool = self._pools.get(word)
        named = [pool] if pool is not None else [each for each in self._pools.values() if each.kind.template == word]
        if len(named) > 1:
            ids = ", ".join(each.kind.id for each in named)
            raise ConflictError(f"The template {word[:64]!r} has several pools.", code=ErrorCode.CONFLICT, hint=f"Name one by its id: {ids}.")
        if not named:
            raise NotFoundError(
                f"There is no pool {word[:64]!r}.",
                code=ErrorCode.POOL_NOT_FOUND,
                hint="'sandlot pool ls' lists those that there are.",
                fields={"pool": word[:64]},
            )
        return self._told(named[0])

    async def create(self, template: str, isolation: str, limits: Limits, sizes: Sizes, metadata: Mapping[str, str] | None = None) -> Told:
        """Have a pool, also after a restart. One that nobody asked for is made somebody's.

        Args:
            template: What its sandboxes are made from.
            isolation: ``auto`` or a kind that the operator allows.
            limits: What each may use.
            sizes: How much it holds.
            metadata: An operator's own words.

        Raises:
            NotFoundError: ``template_not_found``.
            ForbiddenError: The operator does not allow the isolation.
            UnsupportedError: Its driver cannot let a sandbox wait.
            InvalidRequestError: None of them can ever fit on this node.
            ConflictError: There is one of this kind.
        """
        self._supply.check_template(template)
        chosen = admission.choose_isolation(isolation, self._rules, self._supply.drivers)
        can = await self._supply.capabilities(chosen)
        if not can.can(Ability.PAUSE):
            raise UnsupportedError(
                f"Sandboxes of isolation {chosen!r} cannot wait in a pool: {can.why_not(Ability.PAUSE)}.",
                code=ErrorCode.UNSUPPORTED,
                fields={"ability": str(Ability.PAUSE)},
            )
        self._ledger.check_ever(self._supply.drivers[chosen].takes(limits), await self._ledger.look())
        kind = Kind(template, chosen, limits)
        words = metadata or {}
        admission.check_metadata(words)
        there = self._pools.get(kind.id)
        if there is not None and there.implied:
            return await self._set(there, sizes, words)
        if there is not None:
            raise ConflictError(
                f"There is a pool of {template!r} with these limits already.",
                code=ErrorCode.CONFLICT,
                hint=f"Change it: 'sandlot pool set {kind.id}'.",
                fields={"pool": kind.id},
            )
        await self._say(kind, sizes, words)
        self._pools[kind.id] = Pool(kind, sizes, metadata=words)
        return self._changed(kind.id)

    async def change(self, word: str, *, warm: int | None, most: int | None, blank: int | None, metadata: Mapping[str, str] | None = None) -> Told:
        """Change what a pool holds, also after a restart; what is None stays.

        Raises:
            NotFoundError: ``pool_not_found``.
            InvalidRequestError: The numbers make no sense.
        """
        pool = self.find(word).pool
        admission.check_metadata(metadata or {})
        return await self._set(pool, pool.sizes.changed(warm=warm, most=most, blank=blank), pool.metadata if metadata is None else metadata)

    async def remove(self, word: str) -> None:
        """Have a pool no more, also after a restart; what waits in it is removed.

        Raises:
            NotFoundError: ``pool_not_found``.
        """
        pool = self.find(word).pool
        await self._say(pool.kind, None)
        if self._pools.pop(pool.kind.id, None) is not None:
            for task in (*pool.filling, *pool.filling_blanks):
                task.cancel()
            self._empty(pool)

    async def _set(self, pool: Pool, sizes: Sizes, metadata: Mapping[str, str]) -> Told:
        await self._say(pool.kind, sizes, metadata)
        pool.sizes, pool.metadata, pool.implied, pool.grown = sizes, metadata, False, 0
        return self._changed(pool.kind.id)

    async def _say(self, kind: Kind, sizes: Sizes | None, metadata: Mapping[str, str] | None = None) -> None:
        said, words = {**self._said, kind: sizes}, {**self._words, kind: metadata or {}}
        if sizes is None and kind not in self._wished():
            del said[kind]  # no setting would bring it back
        await asyncio.to_thread(self._kept.write, said, words)
        self._said, self._words = said, words

    def _wished(self) -> dict[Kind, Wish]:
        return {Kind(wish.template, self._rules.isolation_default, Limits()): wish for wish in self._pooling.wishes}

    def _changed(self, id_: str) -> Told:
        self._refill.kick()
        return self._told(self._pools[id_])

    def _told(self, pool: Pool) -> Told:
        look = keys.look(pool.kind)
        return Told(pool, self._snapshots.at_hand(look), pool.error or self._snapshots.error(look))

    # -- what happens -----------------------------------------------------------------------------------------------

    def _came(self, path: str, spec: SandboxSpec, pools: Iterable[Pool]) -> None:
        self._metrics.claimed(path, spec.template)
        for pool in pools:
            pool.claims[path] = pool.claims.get(path, 0) + 1

    def _spoilt(self, member: Member) -> None:
        """One that was claimed is of no use: it is removed, and promised until it is."""
        self._ledger.promised_before(member.holder, self._supply.drivers[member.kind.isolation].takes(member.kind.limits))
        self._refill.dispose(member)
        self._refill.kick()

    def _unusable(self, held: Held, why: str) -> None:
        self._snapshots.failed(held, why)
        self._refill.kick()

    def _empty(self, pool: Pool) -> None:
        self._refill.dispose(*(what for what in list(pool.everything()) if pool.drop(what)))
