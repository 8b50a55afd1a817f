"""Choice of the files that are removed from the store when it needs room. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TARGET_FILL = 0.9
"""Fraction of the limit that stays in use after an eviction. Below 1, so that not every new file causes an eviction."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the store.

    Args:
        path: Path of the file.
        size_bytes: Disk space that the file uses.
        used_s: Time of its last use, in seconds since the epoch.
    """

    path: Path
    size_bytes: int
    used_s: float


def plan_eviction(files: Iterable[StoredFile], *, max_bytes: int, needed_bytes: int) -> tuple[int, Sequence[StoredFile]]:
    """Return how many bytes to remove so that a new file fits, and the order in which to remove files.

    Args:
        files: All files of the store. Files in use cannot be removed.
        max_bytes: Limit of the store.
        needed_bytes: Space that the new file needs.

    Returns:
        Zero and no files if the new file fits. Otherwise a little more than necessary, and all files, the least recently used first.
    """
    found = sorted(files, key=lambda file: file.used_s)
    total = sum(file.size_bytes for file in found)
    if total + needed_bytes <= max_bytes:
        return 0, ()
    return total - min(max_bytes - needed_bytes, int(max_bytes * TARGET_FILL)), found
