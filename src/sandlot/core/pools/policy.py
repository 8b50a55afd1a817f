"""Decide what a pool does next, from its contents and its sizes. Pure.

Invariants:
- Nothing is filled while create requests wait for a start slot, while the host is short of memory, or during the rest after a fill or a failure.
  A fill takes a tenth of a second of a processor and more, and create requests go first.
- At most ``max`` warm sandboxes, unfinished ones included, and at most :data:`MAX_FILLS` fills at once.
- A private pool has no more warm sandboxes than the owner's quota leaves (:mod:`sandlot.core.pools.ownership`).
- A pool grows by one for each request that finds no warm sandbox. A pool shrinks by one after each :data:`SHRINK_AFTER_S` without a request.
- A warm sandbox that is too old or outdated is replaced: the new one is made first if there is room, then the old one is removed.
- A pool never takes the last room of a node: room for one more sandbox of the same limits must remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.core.pools.models import PoolSizes

MAX_FILLS: Final = 2
"""Concurrent fills of all pools together: as many as a small machine has processors."""
MAX_PRIVATE_FILLS: Final = 1
"""Concurrent fills of all private pools together. A slow private fill leaves one fill to the shared pools."""
MAX_BUSY_SHARE: Final = 0.5
"""Largest share of the time in which shared pools are filled, and the same for private pools. After a fill of 1 s, no pool of the same group is
filled for 1 s."""
QUIET_S: Final = 0.5
"""Pause after a request: the client is about to use the sandbox, and more requests may follow. A restore takes half as long."""
MAX_QUIET_WAIT_S: Final = 1.0
"""Longest time for which continuous requests delay a fill."""
SHRINK_AFTER_S: Final = 60.0
"""Time without a request after which a grown pool shrinks by one sandbox."""
MAX_AGE_S: Final = 3600.0
"""Age at which a warm sandbox is replaced, because its view of the host's time and files should not be older."""

_BACK_OFF_S: Final = (1.0, 5.0, 30.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class PoolContents:
    """Contents of a pool.

    Args:
        ages_s: Ages of the warm sandboxes, oldest first.
        filling: Warm sandboxes that are being made.
        prepared: Prepared sandboxes.
        preparing: Prepared sandboxes that are being made.
        growth: Warm sandboxes beyond ``PoolSizes.warm`` to which the pool has grown.
        quiet_s: Seconds since the last request, growth or shrink.
        waiting_s: Seconds since the first request after the last start of a fill; 0 if there was none.
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
        growth: New growth of the pool.
        is_early: True if a fill may start after :data:`QUIET_S`, because requests have not paused long enough.
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
        max_fills: Fills that may start now; 0 while fills must wait.
        quota_left: Further warm sandboxes that the owner's quota allows. None: no limit.
    """
    is_early = max_fills > 0 and contents.quiet_s < QUIET_S and contents.waiting_s < MAX_QUIET_WAIT_S
    max_fills = 0 if is_early else max(0, max_fills)
    growth = max(0, contents.growth - int(contents.quiet_s // SHRINK_AFTER_S)) if contents.growth else 0
    wanted = wanted_warm(sizes, growth)
    old = sum(1 for age_s in contents.ages_s if age_s > MAX_AGE_S)
    ready, fresh = len(contents.ages_s), len(contents.ages_s) - old
    drop = max(0, ready - wanted)
    # An old sandbox stays until its successor is ready, unless the pool is full: then the old one is removed first.
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
    """Return the pause after a number of consecutive failures."""
    return _BACK_OFF_S[min(failures, len(_BACK_OFF_S)) - 1] if failures else 0.0


def rest_s(worked_s: float) -> float:
    """Return the rest after work of ``worked_s`` seconds that keeps the share of work at :data:`MAX_BUSY_SHARE`."""
    return worked_s * (1 / MAX_BUSY_SHARE - 1)
