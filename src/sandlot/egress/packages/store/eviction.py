"""Choice of the files that are removed from the store to make space for a new file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TARGET_FILL = 0.9
"""Fraction of the store's size limit that stays in use after an eviction. Less than 1, so that not every new file causes an eviction."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the package store: its size and the time of its last use.

    Args:
        path: Path of the file.
        size_bytes: Disk space that the file uses.
        used_s: Time of the last use of the file, in seconds since the epoch.
    """

    path: Path
    size_bytes: int
    used_s: float


def plan_eviction(files: Iterable[StoredFile], *, max_bytes: int, needed_bytes: int) -> tuple[int, Sequence[StoredFile]]:
    """Return how many bytes to remove from the store for a new file, and the order in which to try to remove files.

    Args:
        files: All files of the store. The caller skips files that are in use.
        max_bytes: Size limit of the store.
        needed_bytes: Disk space that the new file needs.

    Returns:
        Zero and no files if the new file fits. If the new file does not fit: the number of bytes to remove, so that the new file fits and
        at most :data:`TARGET_FILL` of the limit is in use afterwards; and all files, the least recently used first.
    """
    found = sorted(files, key=lambda file: file.used_s)
    total = sum(file.size_bytes for file in found)
    if total + needed_bytes <= max_bytes:
        return 0, ()
    return total - min(max_bytes - needed_bytes, int(max_bytes * TARGET_FILL)), found
