"""Headroom that gVisor's kernel needs to write and read a snapshot. Pure.

gVisor's kernel is a Go program with 2.9 KiB of live objects for each file of the sandbox. A save allocates about 6 KiB more for each file. Part of it
stays as garbage until the next collection, at most two minutes later. Measured with runsc 20240729, heap with the processes' own 12 to 16 MiB:

=======  ===================  ==================  ==================  =====================
files    heap before a save   peak of the save    peak of a restore   objects in the image
=======  ===================  ==================  ==================  =====================
25,000   80 to 86 MiB         229 to 245 MiB      115 to 130 MiB      30 MiB
50,000   140 MiB              444 MiB
100,000  290 to 313 MiB       878 to 937 MiB      446 to 471 MiB      125 MiB
none     30 to 39 MiB         103 to 105 MiB      39 MiB              13 MiB
=======  ===================  ==================  ==================  =====================

The sandbox without files had 100 processes. The kernel can reclaim the page cache of the image, so with little room a save takes hardly longer.

After a save, the heap contains garbage, and the next save takes less than these figures say: Go's heap grows to at most twice the live objects and
the allocations of a save. How much of the heap is garbage cannot be seen from outside, but both follow from the objects in the last snapshot:

=======  =====================  ===================  ==================
files    objects in a snapshot  heap before a save   peak of the save
=======  =====================  ===================  ==================
25,000   30 MiB                 232 to 356 MiB       245 to 366 MiB
100,000  125 MiB                858 to 1394 MiB      1113 to 1605 MiB
none     13 MiB                 103 to 137 MiB       137 to 153 MiB
=======  =====================  ===================  ==================
"""

from __future__ import annotations

from typing import Final

from sandlot.drivers.oci.runtime import LastSnapshot
from sandlot.host.cgroups import GroupMemory
from sandlot.model.ports import HeadroomRange
from sandlot.model.specs import MIB

_PROCESSES_BYTES: Final = 12 * MIB
"""Heap of gVisor's processes without any file or program."""
_LEAST_BYTES: Final = 16 * MIB
"""Least headroom of every snapshot and restore: memory of the host's kernel, such as for open files."""
_SLACK_BYTES: Final = 48 * MIB
"""Memory of the host's kernel that counts against the limit, and the inaccuracy of the factors."""
_MOST_BYTES: Final = 256 * MIB
"""Most headroom of a small sandbox, with which the image fits into the page cache."""
_SAVE_FACTOR: Final = 3.0
"""Growth of the heap by a save, as a multiple of the heap above ``_PROCESSES_BYTES``. Measured: 2.0 to 2.4 for files, 4.2 for 100 processes, whose
heap is small."""
_PEAK_FACTOR: Final = 15.0
"""Most heap of a save as a multiple of the objects in a snapshot: twice 2.3 for the live objects and 5.2 for what a save allocates. Measured: at most
12.9."""
_WRITTEN_FACTOR: Final = 4.5
"""Most heap of a save for each byte of disk: each new page of 4 KiB can be a file."""
_UNSEEN_BYTES: Final = 128 * MIB
"""Growth of the heap for objects that take no disk, such as 150 processes or 10,000 empty files, and that are newer than the last snapshot."""
_GARBAGE_S: Final = 600.0
"""Seconds after which the garbage of a save is gone. Measured: 100,000 files had 878 MiB of heap after a save and 235 MiB 250 s later."""
_RESTORE_FACTOR: Final = 4.2
"""Heap during a restore as a multiple of the objects in the image. Measured: 3.8 to 4.1."""


def for_snapshot(memory: GroupMemory, limit_bytes: int, last: LastSnapshot | None) -> HeadroomRange:
    """Return the headroom for a snapshot of a running sandbox.

    Args:
        memory: Memory of the sandbox now.
        limit_bytes: Memory limit of the sandbox.
        last: Last snapshot of the running sandbox. None: there is none, and the heap contains no garbage of a save.
    """
    growth = _SAVE_FACTOR * max(0, memory.anonymous_bytes - _PROCESSES_BYTES)
    if last is not None and last.age_s <= _GARBAGE_S:
        peak = _PEAK_FACTOR * last.state_bytes + _WRITTEN_FACTOR * last.written_bytes
        growth = min(growth, max(_UNSEEN_BYTES, peak - memory.anonymous_bytes))
    return _range(memory.anonymous_bytes + memory.shared_bytes + int(growth), limit_bytes)


def for_restore(state_bytes: int, memory_bytes: int, limit_bytes: int) -> HeadroomRange:
    """Return the headroom for a restore.

    Args:
        state_bytes: Size of the objects in the image.
        memory_bytes: Memory of the tenant's programs in the image.
        limit_bytes: Memory limit of the sandbox.
    """
    return _range(_PROCESSES_BYTES + int(_RESTORE_FACTOR * state_bytes) + memory_bytes, limit_bytes)


def until_collected(memory: GroupMemory) -> int:
    """Return the memory in bytes that a sandbox may need until gVisor has collected the garbage of a snapshot or restore.

    The heap grows until the next collection, at most to twice its size: Go begins a collection when the heap is twice as large as what the last one
    kept.

    Args:
        memory: Memory of the sandbox after the snapshot or restore.
    """
    return memory.anonymous_bytes + memory.shared_bytes + max(0, memory.anonymous_bytes - _PROCESSES_BYTES)


def _range(needed_bytes: int, limit_bytes: int) -> HeadroomRange:
    least = max(_LEAST_BYTES, needed_bytes + _SLACK_BYTES - limit_bytes)
    return HeadroomRange(least, max(least, limit_bytes, _MOST_BYTES))
