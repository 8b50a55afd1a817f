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


def victims(kept: Iterable[Kept], *, max_bytes: int, need_bytes: int) -> Sequence[Kept]:
    """What goes, the longest unused first, so that what is left and what is to come stay within the bound; nothing where they do.

    Args:
        kept: All that there is.
        max_bytes: The bound.
        need_bytes: What is to come.
    """
    found = sorted(kept, key=lambda each: each.used_s)
    total = sum(each.size_bytes for each in found)
    if total + need_bytes <= max_bytes:
        return ()
    goal = min(max_bytes - need_bytes, int(max_bytes * FULL))
    going = []
    for each in found:
        if total <= goal:
            break
        going.append(each)
        total -= each.size_bytes
    return going
