"""One pool: its configuration, its entries, its unfinished fills and its statistics.

Invariants:
- An entry leaves its pool before anything is done with it, and never returns. If a claim of the entry fails, no other request gets the entry.
- A warm sandbox that ends leaves its pool at once.
- Each entry has its own reservation until nothing of the entry is left on the host.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sandlot.core.pools import policy
from sandlot.core.pools.models import PoolConfig, PoolSizes, PoolSpec, StartPath, TemplateSnapshotSpec
from sandlot.core.ports import ResolvedTemplate
from sandlot.link.client import Link
from sandlot.model.access import LOCAL
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

    Attributes:
        reservation_key: Key of the reservation of the sandbox until the sandbox is claimed.
    """

    id: SandboxId
    spec: PoolSpec
    template: ResolvedTemplate
    instance: Instance
    link: Link
    exited: asyncio.Future[Exit]
    started_at_s: float
    snapshot_key: str = ""
    reservation_key: str = field(init=False)

    def __post_init__(self) -> None:
        """Set the key of the reservation."""
        self.reservation_key = reservation_key(self.id)

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


class Pool:
    """A pool of warm and prepared sandboxes.

    Args:
        config: Configuration of the pool.

    Attributes:
        id: Id of the pool in the API.
        spec: Spec of the pool's sandboxes.
        snapshot_spec: Spec of the template snapshot from which the sandboxes are restored.
        owner: Owner of the pool; ``LOCAL`` for a shared pool.
        is_private: True unless the pool is shared.
        config: Configuration of the pool; :meth:`configure` replaces it.
        sizes: Sizes of the pool.
        metadata: Metadata of the owner.
        ready: Warm sandboxes, oldest first.
        prepared: Prepared sandboxes, oldest first.
        filling: Tasks that make warm sandboxes. A task leaves the set in the step in which its sandbox is added to ``ready``.
        preparing: Tasks that make prepared sandboxes, in the same way.
        growth: Warm sandboxes beyond ``sizes.warm`` to which the pool has grown.
        last_request_s: Monotonic time of the last request, growth or shrink.
        waiting_since_s: Monotonic time of the first request since a fill was last started. None: there was none.
        claims: Requests for the pool's spec since the service started, by start path.
        failures: Consecutive failed fills.
        not_before_s: Monotonic time before which no fill starts.
        error: Reason of the last failed fill; empty after a successful one.
    """

    def __init__(self, config: PoolConfig) -> None:
        self.id = str(config.pool_id)
        self.spec = config.spec
        self.snapshot_spec = TemplateSnapshotSpec.of(config.spec)
        self.owner = config.owner
        self.is_private = config.owner != LOCAL
        self.ready: deque[WarmSandbox] = deque()
        self.prepared: deque[PreparedPoolEntry] = deque()
        self.filling: set[asyncio.Task[None]] = set()
        self.preparing: set[asyncio.Task[None]] = set()
        self.last_request_s = float("-inf")
        self.waiting_since_s: float | None = None
        self.claims: dict[StartPath, int] = {}
        self.failures = 0
        self.not_before_s = float("-inf")
        self.error = ""
        self.configure(config)

    def configure(self, config: PoolConfig) -> None:
        """Apply new sizes and metadata. The growth of the pool ends."""
        self.config, self.growth = config, 0
        self.sizes: PoolSizes = config.sizes or PoolSizes(warm=0, max=0)
        self.metadata: Mapping[str, str] = config.metadata

    @property
    def total_warm(self) -> int:
        """Number of warm sandboxes, unfinished ones included."""
        return len(self.ready) + len(self.filling)

    def youngest(self) -> WarmSandbox | None:
        """Return the youngest live warm sandbox: the memory that it touched last is probably still in the processor's caches."""
        for warm in reversed(self.ready):
            if not warm.exited.done() and not warm.link.closed:  # the callback of a sandbox that has ended may not have run yet
                return warm
        return None

    def take(self, now_s: float) -> WarmSandbox | None:
        """Remove the youngest warm sandbox for a request and return it. A request that finds none grows the pool by one."""
        self.last_request_s = now_s
        self.waiting_since_s = now_s if self.waiting_since_s is None else self.waiting_since_s
        warm = self.youngest()
        if warm is None:
            self.growth = min(self.sizes.max - self.sizes.warm, self.growth + 1)
        else:
            self.ready.remove(warm)
        return warm

    def take_prepared(self, entry: PreparedPoolEntry, now_s: float) -> None:
        """Remove a prepared sandbox for a request."""
        self.last_request_s = now_s
        self.waiting_since_s = now_s if self.waiting_since_s is None else self.waiting_since_s
        self.prepared.remove(entry)

    def entries(self) -> list[PoolEntry]:
        """Return all entries."""
        return [*self.prepared, *self.ready]

    def drop(self, entry: PoolEntry) -> bool:
        """Remove an entry for good. Return False if the entry was not in the pool."""
        entries = self.ready if isinstance(entry, WarmSandbox) else self.prepared
        try:
            entries.remove(entry)  # type: ignore[arg-type] # the type of the entry decides the queue
        except ValueError:
            return False
        return True


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
