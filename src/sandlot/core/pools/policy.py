"""Decide from the contents and the sizes of a pool which sandboxes to start for it and which to remove. Pure.

A *fill* is the start of one warm or prepared sandbox for a pool.

Invariants:
- No fill starts while create requests wait for a start slot, while the host is short of memory, or during the pause after a fill or a failure:
  a fill takes at least a tenth of a second of processor time, and create requests have priority.
- A pool has at most ``PoolSizes.max`` warm sandboxes, unfinished ones included. At most :data:`MAX_FILLS` fills run at once.
- A private pool has no more warm sandboxes than the quota of its owner allows (:mod:`sandlot.core.pools.ownership`).
- A pool grows by one for each request that finds no warm sandbox. A pool shrinks by one after each :data:`SHRINK_AFTER_S` without a request.
- A warm sandbox that is older than :data:`MAX_AGE_S` is replaced. If there is room, its replacement is made before it is removed.
- A fill starts only if room for one more sandbox of the same limits remains on the node afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.model.pools import PoolSizes

MAX_FILLS: Final = 2
"""Largest number of concurrent fills of all pools together: as many as a small machine has processors."""
MAX_PRIVATE_FILLS: Final = 1
"""Largest number of concurrent fills of all private pools together, so that slow private fills do not stop the fills of shared pools."""
MAX_BUSY_SHARE: Final = 0.5
"""Largest share of time that is spent on fills of shared pools, and separately on fills of private pools. With a share of 0.5, no shared pool is
filled for 1 s after a fill of a shared pool that took 1 s."""
QUIET_S: Final = 0.5
"""Seconds without a create request before a fill starts: the client of a request is about to use its sandbox, and more requests may follow."""
MAX_QUIET_WAIT_S: Final = 1.0
"""Maximum number of seconds for which uninterrupted create requests can delay a fill."""
SHRINK_AFTER_S: Final = 60.0
"""Seconds without a create request after which a pool that has grown shrinks by one sandbox."""
MAX_AGE_S: Final = 3600.0
"""Maximum age of a warm sandbox in seconds. An older sandbox is replaced, because its view of the host's time and files may be outdated."""

_BACK_OFF_S: Final = (1.0, 5.0, 30.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class PoolContents:
    """Contents of a pool.

    Args:
        ages_s: Ages of the warm sandboxes in seconds, oldest first.
        filling: Number of warm sandboxes that are being made.
        prepared: Number of prepared sandboxes.
        preparing: Number of prepared sandboxes that are being made.
        growth: Number of warm sandboxes that the pool keeps beyond ``PoolSizes.warm``, because requests found no warm sandbox.
        quiet_s: Seconds since the last create request, or since the last change of ``growth`` if this is later.
        waiting_s: Seconds since the first create request that came after the most recent fill had started; 0 if there was no such request.
    """

    ages_s: Sequence[float]
    filling: int = 0
    prepared: int = 0
    preparing: int = 0
    growth: int = 0
    quiet_s: float = QUIET_S
    waiting_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RefillStep:
    """Changes to make to a pool now.

    Args:
        fill: Number of warm sandboxes to start making.
        prepare: Number of prepared sandboxes to start making.
        drop: Number of warm sandboxes to remove, the oldest first.
        drop_prepared: Number of prepared sandboxes to remove, the oldest first.
        growth: New value of :attr:`PoolContents.growth`.
        is_early: True if fills must wait because a create request arrived less than :data:`QUIET_S` ago. Call :func:`next_step` again then.
    """

    fill: int = 0
    prepare: int = 0
    drop: int = 0
    drop_prepared: int = 0
    growth: int = 0
    is_early: bool = False


def wanted_warm(sizes: PoolSizes, growth: int) -> int:
    """Return the number of warm sandboxes that a pool should have."""
    return min(sizes.max, sizes.warm + growth)


def next_step(sizes: PoolSizes, contents: PoolContents, max_fills: int, quota_left: int | None = None) -> RefillStep:
    """Return the changes to make to a pool now.

    Args:
        sizes: Sizes of the pool.
        contents: Contents of the pool.
        max_fills: Maximum number of fills that may start now; 0 if no fill may start.
        quota_left: Number of further warm sandboxes that the owner's quota allows. None: no limit.
    """
    is_early = max_fills > 0 and contents.quiet_s < QUIET_S and contents.waiting_s < MAX_QUIET_WAIT_S
    max_fills = 0 if is_early else max(0, max_fills)
    growth = max(0, contents.growth - int(contents.quiet_s // SHRINK_AFTER_S)) if contents.growth else 0
    wanted = wanted_warm(sizes, growth)
    old = sum(1 for age_s in contents.ages_s if age_s > MAX_AGE_S)
    ready, fresh = len(contents.ages_s), len(contents.ages_s) - old
    drop = max(0, ready - wanted)
    # An old sandbox stays until its replacement is ready, unless the pool is full: then the old sandbox is removed first.
    missing = max(0, wanted - fresh - contents.filling)
    room = max(0, sizes.max - ready - contents.filling)
    room = room if quota_left is None else min(room, max(0, quota_left))
    if old and fresh + contents.filling >= wanted:
        drop = max(drop, old)
    elif old and missing and not room and max_fills:
        drop = max(drop, 1)
    fill = min(missing, room, max_fills)
    prepare = min(max(0, sizes.prepared - contents.prepared - contents.preparing), max_fills - fill)
    return RefillStep(fill, prepare, drop, drop_prepared=max(0, contents.prepared - sizes.prepared), growth=growth, is_early=is_early)


def back_off_s(failures: int) -> float:
    """Return the seconds to wait before the next attempt after a number of consecutive failures."""
    return _BACK_OFF_S[min(failures, len(_BACK_OFF_S)) - 1] if failures else 0.0


def rest_s(worked_s: float) -> float:
    """Return the pause in seconds after a fill that took ``worked_s`` seconds, so that fills take :data:`MAX_BUSY_SHARE` of the time."""
    return worked_s * (1 / MAX_BUSY_SHARE - 1)
