"""Which files of the shelf go when room is needed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

FULL = 0.9
"""What is kept of the bound when room is made: so that not every file makes room for itself alone."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One file of the shelf.

    Args:
        path: Where.
        size_bytes: What it takes of the disk.
        used_s: When it was last used, seconds since the epoch.
    """

    path: Path
    size_bytes: int
    used_s: float


def plan(kept: Iterable[Kept], *, max_bytes: int, need_bytes: int) -> tuple[int, Sequence[Kept]]:
    """How many bytes have to go, so that what is left and what is to come stay within the bound, and in which order to try.

    Args:
        kept: All that there is. Some of it may be in use, and stays.
        max_bytes: The bound.
        need_bytes: What is to come.

    Returns:
        Nothing has to go where all fits. Otherwise a little more than must; the longest unused first.
    """
    found = sorted(kept, key=lambda each: each.used_s)
    total = sum(each.size_bytes for each in found)
    if total + need_bytes <= max_bytes:
        return 0, ()
    return total - min(max_bytes - need_bytes, int(max_bytes * FULL)), found
