"""Warm and prepared sandboxes and template snapshots of all pools, for the start of sandboxes.

Invariants:
- A create request never waits for a pool. It takes a warm sandbox that fits its spec from the owner's private pools first, then from shared pools.
  It takes the youngest warm sandbox of a pool, and never a warm sandbox of another owner.
- Warm and prepared sandboxes have reservations like all sandboxes, and are evicted when another sandbox needs their room. They do not count against
  the maximum number of sandboxes of the service (``max_sandboxes``). Private warm sandboxes use only the part of the owner's quota that the owner's
  live sandboxes leave free (:mod:`sandlot.core.pools.ownership`).
- A service that stops removes all warm and prepared sandboxes. If the service is killed, the next service removes them. They are never reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandlot.core.pools import ownership
from sandlot.core.pools.models import PoolSpec, TemplateSnapshotSpec
from sandlot.core.pools.pool import Pool, WarmSandbox, pool_gauges
from sandlot.core.pools.refill import PoolRefiller
from sandlot.core.pools.registry import PoolRegistry
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.pools.template_snapshots import TemplateSnapshotManager
from sandlot.core.ports import Clock
from sandlot.core.records.metrics import Metrics
from sandlot.model.access import OwnerId
from sandlot.model.pools import StartPath
from sandlot.model.ports import PreparedSandbox
from sandlot.model.specs import Shape


@dataclass(frozen=True, slots=True)
class PoolClaim:
    """Result of a search for a warm sandbox for a create request.

    Args:
        warm: Youngest warm sandbox of the first pool that has one. None: no pool had a warm sandbox for the request.
        searched: Pools that were searched. The start path of the request is counted for each of these pools.
    """

    spec: PoolSpec
    warm: WarmSandbox | None
    searched: Sequence[Pool]


class PooledSandboxes:
    """Sandboxes of the pools that are ready before a request needs them, and the snapshots from which others are restored."""

    def __init__(self, *, registry: PoolRegistry, refiller: PoolRefiller, snapshots: TemplateSnapshotManager, clock: Clock, metrics: Metrics) -> None:
        self._registry = registry
        self._refiller = refiller
        self._snapshots = snapshots
        self._clock = clock
        self._metrics = metrics
        metrics.count_pools(lambda: pool_gauges(registry.pools.values()))

    async def aclose(self) -> None:
        """Stop filling the pools and remove all warm and prepared sandboxes. Idempotent."""
        for pool in tuple(self._registry.pools.values()):
            self._refiller.remove_pool(pool)
        await self._refiller.aclose()
        self._snapshots.close()

    def find_warm(self, spec: PoolSpec, owner: OwnerId, build: str = "") -> PoolClaim:
        """Look for a warm sandbox for a create request, and change nothing. The caller awaits nothing before it takes a found sandbox.

        Args:
            spec: Spec of the request.
            owner: Owner of the request.
            build: Id of the build of a user that the sandbox must have; empty for a built-in template.
        """
        pools = ownership.serving_pools(self._registry.pools.values(), spec, owner)
        for number, pool in enumerate(pools, 1):
            if (warm := pool.youngest(build)) is not None:
                return PoolClaim(spec, warm, pools[:number])
        return PoolClaim(spec, None, pools)

    def take(self, claim: PoolClaim) -> None:
        """Take the found warm sandbox, if there is one, out of its pool. The caller then owns its allocation."""
        self._refiller.notify_after_request()
        for pool in claim.searched:
            pool.take(claim.warm, self._clock.monotonic_s())

    def started(self, path: StartPath, claim: PoolClaim) -> None:
        """Count a started sandbox in the metrics, and in the statistics of the pools in which its claim looked for a warm sandbox.

        Args:
            path: Path by which the sandbox was started.
            claim: Result of :meth:`find_warm` for the sandbox's create request.
        """
        self._metrics.claimed(path, claim.spec.template.label)
        for pool in claim.searched:
            pool.claims[path] = pool.claims.get(path, 0) + 1

    def take_prepared(self, isolation: str, shape: Shape) -> PreparedSandbox | None:
        """Take a prepared sandbox of the given shape out of its pool and release its reservation. Return None if no pool has one.

        The reservation is not needed, because the caller has made one for the sandbox that is restored into the prepared sandbox.
        """
        for pool in self._registry.pools.values():
            for entry in pool.prepared:
                fits = entry.template.root.digest == shape.root.digest and entry.spec.limits == shape.limits
                if fits and entry.spec.isolation == isolation:
                    pool.take_prepared(entry, self._clock.monotonic_s())
                    self._refiller.notify_after_request()
                    entry.allocation.reservation.release()
                    return entry.prepared
        return None

    def current_snapshot(self, spec: PoolSpec, build: str = "") -> TemplateSnapshot | None:
        """Return the template snapshot from which a sandbox of a spec can be restored now, or None if there is none.

        Args:
            spec: Spec of the sandbox.
            build: Id of the build of a user that the snapshot must have; empty for a built-in template.
        """
        wanted = TemplateSnapshotSpec.of(spec)
        return self._snapshots.current(wanted) if self._snapshots.template(wanted).build == build else None

    def discard_snapshot(self, snapshot: TemplateSnapshot, reason: str) -> None:
        """Stop using a template snapshot that could not be restored, and start to make a new one.

        Args:
            snapshot: The template snapshot.
            reason: Reason why the restore failed, for the log and the status of the pools.
        """
        self._snapshots.discard(snapshot, reason)
        self._refiller.notify()
