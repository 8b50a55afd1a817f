"""Choice of files to evict."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sandlot.egress.packages.store.eviction import StoredFile, plan_eviction

KEPT = st.lists(st.builds(StoredFile, st.just(Path("x")), st.integers(0, 1000), st.floats(0, 100)), max_size=30)


def test_no_file_is_evicted_while_there_is_room() -> None:
    assert plan_eviction([StoredFile(Path("a"), 50, 1.0)], max_bytes=100, needed_bytes=50) == (0, ())


def test_least_recently_used_file_is_evicted_first_and_some_room_is_added() -> None:
    kept = [StoredFile(Path(str(age)), 10, float(age)) for age in (3, 1, 2, 5, 4, 9, 8, 7, 6, 10)]
    excess_bytes, order = plan_eviction(kept, max_bytes=100, needed_bytes=1)
    assert (excess_bytes, [each.path.name for each in order]) == (10, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"])
    assert plan_eviction(kept, max_bytes=100, needed_bytes=35)[0] == 35


@given(KEPT, st.integers(0, 5000), st.integers(0, 5000))
def test_remaining_files_and_the_new_file_fit(kept: list[StoredFile], max_bytes: int, needed_bytes: int) -> None:
    excess_bytes, order = plan_eviction(kept, max_bytes=max_bytes, needed_bytes=needed_bytes)
    total = sum(each.size_bytes for each in kept)
    assert total - excess_bytes + needed_bytes <= max_bytes
    assert [each.used_s for each in order] == sorted(each.used_s for each in order)
    assert not excess_bytes or len(order) == len(kept)
