"""One pool: its configuration, its entries, its unfinished fills and its statistics.

Invariants:
- An entry (a warm or prepared sandbox) is taken out of its pool before it is used or removed, and never returns. If a claim of an entry fails, no
  other request gets the entry.
- A warm sandbox that ends is taken out of its pool at once.
- Each entry has its own allocation, which a request takes over, or which is released when the entry is removed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sandlot.core.pools import policy
from sandlot.core.pools.models import PoolConfig, PoolSpec, TemplateSnapshotSpec
from sandlot.core.ports import ResolvedTemplate
from sandlot.core.resources.allocation import Allocation
from sandlot.link.client import Link
from sandlot.model.access import LOCAL
from sandlot.model.errors import InternalError
from sandlot.model.ids import SandboxId
from sandlot.model.pools import PoolSizes, StartPath
from sandlot.model.ports import Instance, PreparedSandbox


@dataclass(eq=False, slots=True)
class WarmSandbox:
    """A started sandbox without an owner, whose guest is quiesced. A warm sandbox in a pool is also frozen.

    Args:
        id: Id of the sandbox. The sandbox keeps its id when it is claimed.
        allocation: Resources of the sandbox on the host, which a claim takes over.
        started_at_s: Monotonic time of the first response of the guest.
        snapshot_key: Key of the template snapshot from which the sandbox was restored; empty if the sandbox was booted.
        runs_programs: True if the start command of the template runs in the sandbox.
    """

    id: SandboxId
    spec: PoolSpec
    template: ResolvedTemplate
    allocation: Allocation
    started_at_s: float
    snapshot_key: str = ""
    runs_programs: bool = False

    @property
    def instance(self) -> Instance:
        """The driver's object for the sandbox."""
        if self.allocation.instance is None:
            raise InternalError(f"The warm sandbox {self.id} was not started.")
        return self.allocation.instance

    @property
    def link(self) -> Link:
        """Link to the guest."""
        if self.allocation.link is None:
            raise InternalError(f"The warm sandbox {self.id} was not connected.")
        return self.allocation.link


@dataclass(eq=False, slots=True)
class PreparedPoolEntry:
    """A prepared sandbox in a pool: a runtime process on the host that has not booted, in which a create request restores a template snapshot.

    Args:
        spec: Template, isolation and limits for which the runtime process was started.
        allocation: Resources of the prepared sandbox on the host, until a request takes the sandbox.
        snapshot_key: Key of the template snapshot that was current when the sandbox was prepared; empty if the template had no snapshot.
    """

    spec: PoolSpec
    template: ResolvedTemplate
    prepared: PreparedSandbox
    allocation: Allocation
    snapshot_key: str = ""


PoolEntry = WarmSandbox | PreparedPoolEntry


class Pool:
    """A pool of warm and prepared sandboxes.

    Attributes:
        id: Id of the pool in the API.
        snapshot_spec: Spec of the template snapshot from which the sandboxes are restored.
        owner: Owner of the pool; ``LOCAL`` for a shared pool.
        is_private: True unless the pool is shared.
        config: Configuration of the pool; :meth:`configure` replaces it.
        ready: Finished warm sandboxes, oldest first.
        prepared: Finished prepared sandboxes, oldest first.
        filling: Tasks that make warm sandboxes. A task leaves the set in the step in which its sandbox is added to ``ready``.
        preparing: Tasks that make prepared sandboxes. A task leaves the set in the step in which its sandbox is added to ``prepared``.
        growth: Number of warm sandboxes that the pool keeps beyond ``sizes.warm``, because requests found no warm sandbox.
        last_request_s: Monotonic time of the last create request, or of the last change of ``growth`` if this is later.
        waiting_since_s: Monotonic time of the first create request that came after the latest fill had started. None: there was no such request.
        claims: Start path -> number of sandboxes that were started by this path, for create requests that searched this pool for a warm sandbox. The
            numbers begin at 0 when the service starts.
        failures: Number of consecutive failed fills.
        not_before_s: Monotonic time before which no fill starts.
        error: Reason of the last failed fill; empty after a successful fill.
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
        """Apply new sizes and metadata, and reset :attr:`growth` to 0."""
        self.config, self.growth = config, 0
        self.sizes: PoolSizes = config.sizes or PoolSizes(warm=0, max=0)
        self.metadata: Mapping[str, str] = config.metadata

    @property
    def total_warm(self) -> int:
        """Number of warm sandboxes, unfinished ones included."""
        return len(self.ready) + len(self.filling)

    def youngest(self, build: str = "") -> WarmSandbox | None:
        """Return the youngest live warm sandbox, whose memory is most likely still in the processor's caches. Return None if there is none.

        Args:
            build: Id of the build of a user that the sandbox must have; empty for a built-in template.
        """
        for warm in reversed(self.ready):
            if warm.template.build != build:
                continue
            if not warm.allocation.has_exited and not warm.link.closed:  # the callback that removes an ended sandbox may not have run yet
                return warm
        return None

    def take(self, warm: WarmSandbox | None, now_s: float) -> None:
        """Take a warm sandbox out of the pool for a create request.

        If the pool does not have the warm sandbox, increase :attr:`growth` by one, so that the pool keeps one warm sandbox more, up to ``sizes.max``.
        """
        self.last_request_s = now_s
        self.waiting_since_s = now_s if self.waiting_since_s is None else self.waiting_since_s
        if warm is None or not self.drop(warm):
            self.growth = min(self.sizes.max - self.sizes.warm, self.growth + 1)

    def take_prepared(self, entry: PreparedPoolEntry, now_s: float) -> None:
        """Take a prepared sandbox out of the pool for a request."""
        self.last_request_s = now_s
        self.waiting_since_s = now_s if self.waiting_since_s is None else self.waiting_since_s
        self.prepared.remove(entry)

    def entries(self) -> list[PoolEntry]:
        """Return all finished warm and prepared sandboxes of the pool."""
        return [*self.prepared, *self.ready]

    def drop(self, entry: PoolEntry) -> bool:
        """Take an entry out of the pool. Return False if the entry was not in the pool."""
        entries = self.ready if isinstance(entry, WarmSandbox) else self.prepared
        try:
            entries.remove(entry)  # type: ignore[arg-type] # mypy does not know that `entries` has the type of `entry`
        except ValueError:
            return False
        return True


def pool_gauges(pools: Iterable[Pool]) -> Mapping[tuple[str, str, str], int]:
    """Return the values of the metric ``sandlot_pool``. The keys are the labels: template, isolation, and state of the counted sandboxes."""
    totals: dict[tuple[str, str, str], int] = {}
    for pool in pools:
        for name, number in (
            ("ready", len(pool.ready)),
            ("filling", len(pool.filling)),
            ("prepared", len(pool.prepared)),
            ("wanted", policy.wanted_warm(pool.sizes, pool.growth)),
        ):
            labels = (pool.spec.template.label, pool.spec.isolation, name)
            totals[labels] = totals.get(labels, 0) + number
    return totals
