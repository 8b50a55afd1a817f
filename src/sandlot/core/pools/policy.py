"""What a pool does next, decided from what it has. Pure.

Laws:
- Nothing is made while requests for sandboxes wait for a turn, while the host is short of memory, or within the pause that follows work or a
  failure: making costs a tenth of a second of a processor and more, and whoever waits goes first.
- No more than ``max`` at once, those in the making included; no more in the making than :data:`AT_ONCE`.
- No more than an owner's quota leaves beside what lives and what waits of his (:mod:`sandlot.core.pools.ownership`).
- A pool grows by one for each request that found it empty, and shrinks by one in each :data:`COOL_S` without any request.
- What is too old, or stale, is replaced: made anew first where there is room, then removed.
- No pool takes the last place of a node: while it fills, room for one more sandbox of that size stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.core.pools.models import PoolSizes

AT_ONCE: Final = 2
"""In the making at once, of all pools together: as many as a small machine has processors."""

OWNERS_AT_ONCE: Final = 1
"""Of these, those in the making for owners, of all of them together: one that is slow leaves a hand to the node's."""

WORK_SHARE: Final = 0.5
"""Of the time, at the most, in which the node's pools are filled, and in which owners' are: after work that took a second, there is none of the same
side for a second."""

CALM_S: Final = 0.5
"""After a request nothing is begun for so long: whoever got a sandbox is about to use it, and more of them may come at once. A restore takes
half of it."""

PATIENT_S: Final = 1.0
"""Requests that keep coming put it off no longer than that."""

COOL_S: Final = 60.0
OLDEST_S: Final = 3600.0
"""After that a sandbox that waits is replaced: what it has of the host's time and files should not be older."""

_BACK_OFF_S: Final = (1.0, 5.0, 30.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Stock:
    """What a pool has.

    Args:
        ready: Ages in seconds of those that wait, oldest first.
        filling: Those in the making.
        blank: Blanks that wait.
        blank_filling: Those in the making.
        grown: By how many it has grown beyond ``warm``.
    """

    ready: Sequence[float]
    filling: int = 0
    blank: int = 0
    blank_filling: int = 0
    grown: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now.

    Args:
        fill: Sandboxes to begin to make.
        fill_blank: Blanks to begin to make.
        drop: Of those that wait, the oldest so many are to go.
        drop_blank: Likewise.
    """

    fill: int = 0
    fill_blank: int = 0
    drop: int = 0
    drop_blank: int = 0


def target(sizes: PoolSizes, grown: int) -> int:
    """How many are to wait."""
    return min(sizes.max, sizes.warm + grown)


def step(sizes: PoolSizes, stock: Stock, free_hands: int, spare: int | None = None) -> Step:
    """What a pool does next.

    Args:
        sizes: What it should have.
        stock: What it has.
        free_hands: How many may be begun now: 0 where making must wait.
        spare: How many more its owner's quota leaves; None where nothing bounds them.
    """
    want = target(sizes, stock.grown)
    old = sum(1 for age_s in stock.ready if age_s > OLDEST_S)
    there, fresh = len(stock.ready), len(stock.ready) - old
    drop = max(0, there - want)
    # An old one stays until its successor is there, unless the pool is full: then it goes first.
    missing = max(0, want - fresh - stock.filling)
    room = max(0, sizes.max - there - stock.filling)
    room = room if spare is None else min(room, max(0, spare))
    if old and fresh + stock.filling >= want:
        drop = max(drop, old)
    elif old and missing and not room and free_hands:
        drop = max(drop, 1)
    fill = min(missing, room, free_hands)
    fill_blank = min(max(0, sizes.blank - stock.blank - stock.blank_filling), free_hands - fill)
    return Step(fill=fill, fill_blank=fill_blank, drop=drop, drop_blank=max(0, stock.blank - sizes.blank))


def is_calm(now_s: float, asked_s: float, hungry_s: float | None) -> bool:
    """Whether making may begin, as far as requests go.

    Args:
        now_s: Now, monotonic.
        asked_s: When there was a request last.
        hungry_s: When there was the first since anything was begun; None where there was none.
    """
    return now_s - asked_s >= CALM_S or (hungry_s is not None and now_s - hungry_s >= PATIENT_S)


def grown_by_miss(sizes: PoolSizes, grown: int) -> int:
    """How far a pool has grown after a request that found it empty."""
    return min(sizes.max - sizes.warm, grown + 1)


def shrunk(grown: int, quiet_s: float) -> int:
    """How far it still is after so long without any request, since it last shrank or was asked."""
    return max(0, grown - int(quiet_s // COOL_S))


def back_off_s(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return _BACK_OFF_S[min(failures, len(_BACK_OFF_S)) - 1] if failures else 0.0


def pause_s(worked_s: float) -> float:
    """How long to rest after work, so that no more than :data:`WORK_SHARE` of the time is worked."""
    return worked_s * (1 / WORK_SHARE - 1)
