"""Headroom for gVisor's own memory, from what a sandbox uses or what a snapshot contains."""

from __future__ import annotations

import pytest

from sandlot.drivers.oci.gvisor.headroom import for_restore, for_snapshot
from sandlot.host.cgroups import GroupMemory
from sandlot.model.specs import MIB


def memory(heap: int, shared: int) -> GroupMemory:
    """Return the memory of a sandbox, in MiB, with page cache that the kernel can reclaim."""
    return GroupMemory(charged_bytes=(heap + shared + 500) * MIB, anonymous_bytes=heap * MIB, shared_bytes=shared * MIB)


def test_small_sandbox_needs_little_and_may_use_its_limit_again() -> None:
    for needed in (for_snapshot(memory(13, 40), 1024 * MIB), for_restore(MIB, 1024 * MIB)):
        assert needed.least_bytes <= 64 * MIB
        assert needed.most_bytes == 1024 * MIB
    assert for_snapshot(memory(13, 40), 64 * MIB).most_bytes == 256 * MIB


@pytest.mark.parametrize("heap, peak", [(86, 232), (275, 918)], ids=["25,000 files", "100,000 files"])
@pytest.mark.parametrize("limit", [256, 512, 1024])
def test_least_headroom_of_a_snapshot_is_enough_for_what_was_measured(heap: int, peak: int, limit: int) -> None:
    assert limit * MIB + for_snapshot(memory(heap, 60), limit * MIB).least_bytes >= 60 + min(peak, 3 * heap)


def test_memory_above_the_limit_is_part_of_the_headroom() -> None:
    needed = for_snapshot(memory(100, 600), 512 * MIB)
    assert needed.least_bytes >= (100 + 600 - 512) * MIB
    assert needed.most_bytes >= needed.least_bytes
