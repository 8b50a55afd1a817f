"""Headroom for gVisor's own memory, from what a sandbox uses or what a snapshot contains."""

from __future__ import annotations

import pytest

from sandlot.drivers.oci.gvisor.headroom import for_restore, for_snapshot, until_collected
from sandlot.drivers.oci.runtime import LastSnapshot
from sandlot.host.cgroups import GroupMemory
from sandlot.model.specs import MIB


def memory(heap: int, shared: int) -> GroupMemory:
    """Return the memory of a sandbox, in MiB, with page cache that the kernel can reclaim."""
    return GroupMemory(charged_bytes=(heap + shared + 500) * MIB, anonymous_bytes=heap * MIB, shared_bytes=shared * MIB)


def test_small_sandbox_needs_little_and_may_use_its_limit_again() -> None:
    for needed in (for_snapshot(memory(13, 40), 1024 * MIB, None), for_restore(MIB, 40 * MIB, 1024 * MIB)):
        assert needed.least_bytes == 16 * MIB
        assert needed.most_bytes == 1024 * MIB
    assert for_snapshot(memory(13, 40), 64 * MIB, None).most_bytes == 256 * MIB


FILES = [(80, 240), (84, 232), (124, 226), (140, 444), (290, 937), (313, 885), (446, 858), (885, 1113), (937, 1394)]
PROCESSES = [(30, 105), (39, 103), (105, 137), (103, 153), (26, 65), (65, 86)]
"""Heap before a save, and its peak during the save, in MiB: sandboxes with many files, and with 50 or 100 processes."""


@pytest.mark.parametrize("heap, peak", [*FILES, *PROCESSES])
@pytest.mark.parametrize("limit", [128, 256, 512, 1024])
def test_least_headroom_of_a_snapshot_is_enough_for_what_was_measured(heap: int, peak: int, limit: int) -> None:
    assert limit + for_snapshot(memory(heap, 19), limit * MIB, None).least_bytes / MIB >= peak + 19


AFTER_SAVES = [
    *[(30, 232, 245), (30, 235, 321), (30, 240, 356), (30, 356, 366), (30, 191, 255), (30, 226, 292), (30, 229, 376)],
    *[(125, 885, 1144), (125, 1113, 1250), (125, 937, 1394), (125, 1394, 1605), (125, 858, 1250)],
    *[(13, 105, 137), (13, 137, 153), (13, 103, 153), (13, 134, 153)],
]
"""Objects in the last snapshot, heap before the next save, and its peak during the save, in MiB."""


@pytest.mark.parametrize("state, heap, peak", AFTER_SAVES)
@pytest.mark.parametrize("limit", [128, 256, 512, 1024])
def test_least_headroom_of_a_second_snapshot_is_enough_for_what_was_measured(state: int, heap: int, peak: int, limit: int) -> None:
    last = LastSnapshot(state * MIB, 0, 1.0)
    assert limit + for_snapshot(memory(heap, 19), limit * MIB, last).least_bytes / MIB >= peak + 19


def test_garbage_of_an_earlier_save_needs_no_headroom() -> None:
    full, last = memory(885, 19), LastSnapshot(125 * MIB, 0, 1.0)
    assert for_snapshot(full, 1024 * MIB, last).least_bytes < for_snapshot(full, 1024 * MIB, None).least_bytes // 2


def test_last_snapshot_says_nothing_about_files_that_were_written_later_and_about_garbage_that_is_gone() -> None:
    full, limit = memory(885, 19), 1024 * MIB
    alone = for_snapshot(full, limit, None)
    few, many = (for_snapshot(full, limit, LastSnapshot(125 * MIB, written * MIB, 1.0)) for written in (10, 4000))
    assert for_snapshot(full, limit, LastSnapshot(125 * MIB, 0, 1.0)).least_bytes + 45 * MIB == few.least_bytes
    assert many == alone == for_snapshot(full, limit, LastSnapshot(125 * MIB, 0, 601.0))


@pytest.mark.parametrize("heap, peak", PROCESSES)
def test_processes_that_are_newer_than_the_last_snapshot_have_headroom(heap: int, peak: int) -> None:
    needed = for_snapshot(memory(heap, 19), 64 * MIB, LastSnapshot(2 * MIB, 0, 1.0))
    assert 64 + needed.least_bytes / MIB >= peak + 19


@pytest.mark.parametrize("state, peak", [(30, 130), (125, 471)])
@pytest.mark.parametrize("limit", [128, 256, 512])
def test_least_headroom_of_a_restore_is_enough_for_what_was_measured(state: int, peak: int, limit: int) -> None:
    assert limit + for_restore(state * MIB, 19 * MIB, limit * MIB).least_bytes / MIB >= peak + 19


def test_memory_above_the_limit_is_part_of_the_headroom() -> None:
    needed = for_snapshot(memory(100, 600), 512 * MIB, None)
    assert needed.least_bytes >= (100 + 600 - 512) * MIB
    assert needed.most_bytes >= needed.least_bytes


@pytest.mark.parametrize("heap, peak", [(223, 320), (346, 347)])
def test_garbage_needs_at_least_what_was_measured_after_a_save(heap: int, peak: int) -> None:
    assert until_collected(memory(heap, 19)) >= (peak + 19) * MIB
    assert until_collected(memory(12, 300)) == 312 * MIB
