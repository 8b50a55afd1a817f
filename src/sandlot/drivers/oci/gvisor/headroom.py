"""Headroom that gVisor's kernel needs to write and read a snapshot. Pure.

gVisor's kernel has 2.6 to 2.9 KiB of objects on its heap for each file of the sandbox. To save or restore these objects, it allocates as much
again or twice as much: 86 MiB became 232 MiB with 25,000 files, and 275 MiB became 918 MiB with 100,000 files. For 100 processes it takes 96 MiB
more, and 6 MiB for a shell. All figures were measured with runsc 20240729.
"""

from __future__ import annotations

from typing import Final

from sandlot.host.cgroups import GroupMemory
from sandlot.model.ports import HeadroomRange

_BASE_BYTES: Final = 32 * 1024 * 1024
"""Memory for a snapshot or restore of a small sandbox."""
_MOST_BYTES: Final = 256 * 1024 * 1024
"""Most headroom of a small sandbox. The page cache of the snapshot counts against the limit as well, and too little room for it costs time."""
_SNAPSHOT_FACTOR: Final = 2
"""Additional heap for a snapshot, as a multiple of the heap before."""
_RESTORE_FACTOR: Final = 5
"""Additional heap during a restore, as a multiple of the size of the objects in the snapshot: 31 MiB of objects are 86 MiB of heap."""


def for_snapshot(memory: GroupMemory, limit_bytes: int) -> HeadroomRange:
    """Return the headroom for a snapshot. The least amount is what gVisor's heap will need above the limit, with the memory that is in use now."""
    heap = memory.anonymous_bytes
    in_use = heap + memory.shared_bytes
    return _range(in_use + _SNAPSHOT_FACTOR * heap + _BASE_BYTES - limit_bytes, limit_bytes)


def for_restore(state_bytes: int, limit_bytes: int) -> HeadroomRange:
    """Return the headroom for a restore of a snapshot with ``state_bytes`` of objects."""
    return _range(_RESTORE_FACTOR * state_bytes + _BASE_BYTES, limit_bytes)


def _range(needed_bytes: int, limit_bytes: int) -> HeadroomRange:
    least = max(_BASE_BYTES, needed_bytes)
    return HeadroomRange(least, max(least, limit_bytes, _MOST_BYTES))
