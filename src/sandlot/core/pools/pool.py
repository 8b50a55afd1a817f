"""One pool: its configuration, its entries, its unfinished fills and its statistics.

Invariants:
- An entry leaves its pool before anything is done with it, and never returns. If a claim of the entry fails, no other request gets the entry.
- A warm sandbox that ends leaves its pool at once.
- Each entry has its own reservation until nothing of the entry is left on the host.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sandlot.core.node.disposer import Disposer
from sandlot.core.node.reservations import Reservations
from sandlot.core.pools import policy
from sandlot.core.pools.models import PoolConfig, PoolSizes, PoolSpec, StartPath
from sandlot.core.ports import ResolvedTemplate
from sandlot.link.client import Link
from sandlot.model.access import OwnerId
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Exit, Instance, PreparedSandbox


@dataclass(eq=False, slots=True)
class WarmSandbox:
    """A started sandbox without an owner, whose guest is quiesced. In a pool it is frozen.

    Args:
        id: Id of the sandbox. A claimed sandbox keeps it.
        spec: Spec of the sandbox.
        template: Root file system and environment.
        instance: The driver's side of the sandbox.
        link: Link to the guest.
        exited: Resolves when the processes of the sandbox have ended.
        started_at_s: Monotonic time of the first response of the guest.
        snapshot_key: Key of the template snapshot; empty if the sandbox was booted.
    """

    id: SandboxId
    spec: PoolSpec
    template: ResolvedTemplate
    instance: Instance
    link: Link
    exited: asyncio.Future[Exit]
    started_at_s: float
    snapshot_key: str = ""

    @property
    def reservation_key(self) -> str:
        """Key of the sandbox's reservation until it is claimed."""
        return reservation_key(self.id)

    @property
    def is_alive(self) -> bool:
        """False as soon as the sandbox has ended or its link is closed."""
        return not self.exited.done() and not self.link.closed

    async def destroy(self) -> None:
        """End the sandbox and remove everything that it has on the host. Idempotent."""
        self.exited.cancel()
        await self.link.aclose()
        await self.instance.destroy()


@dataclass(eq=False, slots=True)
class PreparedPoolEntry:
    """A prepared sandbox in a pool.

    Args:
        spec: Spec of the sandbox that can be restored into it.
        template: Root file system and environment.
        prepared: The driver's side of the prepared sandbox.
        reservation_key: Key of the reservation until a request takes the prepared sandbox.
        snapshot_key: Key of the current template snapshot at the time of preparation; empty without one.
    """

    spec: PoolSpec
    template: ResolvedTemplate
    prepared: PreparedSandbox
    reservation_key: str
    snapshot_key: str = ""

    async def destroy(self) -> None:
        """Remove everything that the prepared sandbox has on the host. Idempotent."""
        await self.prepared.destroy()


PoolEntry = WarmSandbox | PreparedPoolEntry


@dataclass(eq=False, slots=True)
class Pool:
    """A pool of warm and prepared sandboxes.

    Args:
        config: Configuration of the pool.
        ready: Warm sandboxes, oldest first.
        prepared: Prepared sandboxes, oldest first.
        filling: Tasks that make warm sandboxes.
        preparing: Tasks that make prepared sandboxes.
        growth: Warm sandboxes beyond ``sizes.warm`` to which the pool has grown.
        last_request_s: Monotonic time of the last request, growth or shrink.
        waiting_since_s: Monotonic time of the first request since a fill was last started. None: there was none.
        claims: Requests for the pool's spec since the service started, by start path.
        failures: Consecutive failed fills.
        not_before_s: Monotonic time before which no fill starts.
        error: Reason of the last failed fill; empty after a successful one.
    """

    config: PoolConfig
    ready: deque[WarmSandbox] = field(default_factory=deque)
    prepared: deque[PreparedPoolEntry] = field(default_factory=deque)
    filling: set[asyncio.Task[None]] = field(default_factory=set)
    preparing: set[asyncio.Task[None]] = field(default_factory=set)
    growth: int = 0
    last_request_s: float = float("-inf")
    waiting_since_s: float | None = None
    claims: dict[StartPath, int] = field(default_factory=dict)
    failures: int = 0
    not_before_s: float = float("-inf")
    error: str = ""

    @property
    def id(self) -> str:
        """Id of the pool in the API."""
        return str(self.config.pool_id)

    @property
    def spec(self) -> PoolSpec:
        """Spec of the pool's sandboxes."""
        return self.config.spec

    @property
    def sizes(self) -> PoolSizes:
        """Sizes of the pool; 0 after its deletion."""
        return self.config.sizes or PoolSizes(warm=0, max=0)

    @property
    def owner(self) -> OwnerId:
        """Owner of the pool; ``LOCAL`` for a shared pool."""
        return self.config.owner

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the owner."""
        return self.config.metadata

    @property
    def unfinished(self) -> int:
        """Number of warm sandboxes that are being made.

        A task that is done stays in ``filling`` until its callback has run, so its sandbox must not be counted a second time.
        """
        return sum(1 for task in self.filling if not task.done())

    @property
    def total_warm(self) -> int:
        """Number of warm sandboxes, unfinished ones included."""
        return len(self.ready) + self.unfinished

    def configure(self, config: PoolConfig) -> None:
        """Apply new sizes and metadata. The pool's growth ends."""
        self.config, self.growth = config, 0

    # Requests ----------------------------------------------------------------------------------------------------------

    def has_warm(self) -> bool:
        """Return whether the pool has a live warm sandbox."""
        return next(self._youngest_first(), None) is not None

    def take(self, now_s: float) -> WarmSandbox | None:
        """Remove a warm sandbox for good and return it, or record a miss and return None.

        The youngest live sandbox is taken: the memory that it touched last is probably still in the processor's caches.
        """
        self._requested(now_s)
        warm = next(self._youngest_first(), None)
        if warm is None:
            self.growth = policy.growth_after_miss(self.sizes, self.growth)
        else:
            self.ready.remove(warm)
        return warm

    def take_prepared(self, entry: PreparedPoolEntry, now_s: float) -> bool:
        """Remove a prepared sandbox for a request. Return False if it has left the pool already."""
        self._requested(now_s)
        return self.drop(entry)

    def _youngest_first(self) -> Iterator[WarmSandbox]:
        # The callback of a sandbox that has ended may not have run yet.
        return (warm for warm in reversed(self.ready) if warm.is_alive)

    def _requested(self, now_s: float) -> None:
        self.last_request_s = now_s
        if self.waiting_since_s is None:
            self.waiting_since_s = now_s

    # Refills -----------------------------------------------------------------------------------------------------------

    def shrink(self, now_s: float) -> None:
        """Reduce the growth by one for each quiet interval since the last request."""
        growth = policy.growth_after_quiet(self.growth, now_s - self.last_request_s) if self.growth else 0
        if growth != self.growth:
            self.growth, self.last_request_s = growth, now_s

    def contents(self, now_s: float) -> policy.PoolContents:
        """Return the contents of the pool."""
        return policy.PoolContents(
            ages_s=[now_s - warm.started_at_s for warm in self.ready],
            filling=len(self.filling),
            prepared=len(self.prepared),
            preparing=len(self.preparing),
            growth=self.growth,
        )

    def fill_started(self) -> None:
        """Record that requests need not wait any longer for a fill to start."""
        self.waiting_since_s = None

    def fill_succeeded(self) -> None:
        """Forget earlier failures."""
        self.failures, self.error = 0, ""

    def fill_failed(self, reason: str, now_s: float) -> None:
        """Record a failed fill. The pause before the next fill grows with the number of consecutive failures."""
        self.failures, self.error = self.failures + 1, reason
        self.postpone(now_s + policy.back_off_s(self.failures))

    def fill_impossible(self, reason: str) -> None:
        """Record that the pool cannot be filled at all for now."""
        self.error = reason

    def postpone(self, until_s: float) -> None:
        """Start no fill before a monotonic time."""
        self.not_before_s = until_s

    # Entries -----------------------------------------------------------------------------------------------------------

    def entries(self) -> list[PoolEntry]:
        """Return all entries."""
        return [*self.prepared, *self.ready]

    def drop(self, entry: PoolEntry) -> bool:
        """Remove an entry for good. Return False if it was not in the pool."""
        entries = self.ready if isinstance(entry, WarmSandbox) else self.prepared
        try:
            entries.remove(entry)  # type: ignore[arg-type] # the type of the entry decides the queue
        except ValueError:
            return False
        return True


class Removals:
    """Removes entries that have left their pool, and releases their reservations.

    Args:
        reservations: Reservations of the node.
        disposer: Destroys what the entries have on the host.
    """

    def __init__(self, reservations: Reservations, disposer: Disposer) -> None:
        self._reservations = reservations
        self._disposer = disposer
        self.tasks: dict[asyncio.Task[None], str] = {}
        """Task of each removal -> key of the reservation that the removal will release."""

    def start(self, *entries: PoolEntry) -> None:
        """Start to remove entries. Each reservation is released when nothing of its entry is left."""
        for entry in entries:
            task = asyncio.create_task(self._remove(entry))
            self.tasks[task] = entry.reservation_key
            task.add_done_callback(self.tasks.pop)

    async def _remove(self, entry: PoolEntry) -> None:
        await self._disposer.destroy(entry, reservation=entry.reservation_key)
        self._reservations.release(entry.reservation_key)


def reservation_key(id_: SandboxId) -> str:
    """Return the reservation key of a pooled sandbox."""
    return f"pool-{id_}"


def pool_gauges(pools: Iterable[Pool]) -> Mapping[tuple[str, str, str], int]:
    """Return the numbers of the metric ``sandlot_pool``: (template, isolation, kind of number) -> number."""
    totals: dict[tuple[str, str, str], int] = {}
    for pool in pools:
        for name, number in (
            ("ready", len(pool.ready)),
            ("filling", len(pool.filling)),
            ("prepared", len(pool.prepared)),
            ("wanted", policy.wanted_warm(pool.sizes, pool.growth)),
        ):
            labels = (pool.spec.template, pool.spec.isolation, name)
            totals[labels] = totals.get(labels, 0) + number
    return totals
