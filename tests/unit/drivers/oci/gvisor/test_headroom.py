"""Headroom for gVisor's own memory, from what a sandbox uses or what a snapshot contains."""

from __future__ import annotations

import pytest

from sandlot.drivers.oci.gvisor.headroom import for_restore, for_snapshot, until_collected
from sandlot.host.cgroups import GroupMemory
from sandlot.model.specs import MIB


def memory(heap: int, shared: int) -> GroupMemory:
    """Return the memory of a sandbox, in MiB, with page cache that the kernel can reclaim."""
    return GroupMemory(charged_bytes=(heap + shared + 500) * MIB, anonymous_bytes=heap * MIB, shared_bytes=shared * MIB)


def test_small_sandbox_needs_little_and_may_use_its_limit_again() -> None:
    for needed in (for_snapshot(memory(13, 40), 1024 * MIB), for_restore(MIB, 40 * MIB, 1024 * MIB)):
        assert needed.least_bytes == 16 * MIB
        assert needed.most_bytes == 1024 * MIB
    assert for_snapshot(memory(13, 40), 64 * MIB).most_bytes == 256 * MIB


FILES = [(80, 240), (84, 232), (124, 226), (140, 444), (290, 937), (313, 885), (446, 858), (885, 1113), (937, 1394)]
PROCESSES = [(30, 105), (39, 103), (105, 137), (103, 153), (26, 65), (65, 86)]
"""Heap before a save, and its peak during the save, in MiB: sandboxes with many files, and with 50 or 100 processes."""


@pytest.mark.parametrize("heap, peak", [*FILES, *PROCESSES])
@pytest.mark.parametrize("limit", [128, 256, 512, 1024])
def test_least_headroom_of_a_snapshot_is_enough_for_what_was_measured(heap: int, peak: int, limit: int) -> None:
    assert limit + for_snapshot(memory(heap, 19), limit * MIB).least_bytes / MIB >= peak + 19


@pytest.mark.parametrize("state, peak", [(30, 130), (125, 471)])
@pytest.mark.parametrize("limit", [128, 256, 512])
def test_least_headroom_of_a_restore_is_enough_for_what_was_measured(state: int, peak: int, limit: int) -> None:
    assert limit + for_restore(state * MIB, 19 * MIB, limit * MIB).least_bytes / MIB >= peak + 19


def test_memory_above_the_limit_is_part_of_the_headroom() -> None:
    needed = for_snapshot(memory(100, 600), 512 * MIB)
    assert needed.least_bytes >= (100 + 600 - 512) * MIB
    assert needed.most_bytes >= needed.least_bytes


@pytest.mark.parametrize("heap, peak", [(223, 320), (346, 347)])
def test_garbage_needs_at_least_what_was_measured_after_a_save(heap: int, peak: int) -> None:
    assert until_collected(memory(heap, 19)) >= (peak + 19) * MIB
    assert until_collected(memory(12, 300)) == 312 * MIB
