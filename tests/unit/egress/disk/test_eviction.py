"""What goes when room is needed."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sandlot.egress.disk.eviction import Kept, plan

KEPT = st.lists(st.builds(Kept, st.just(Path("x")), st.integers(0, 1000), st.floats(0, 100)), max_size=30)


def test_nothing_goes_while_there_is_room() -> None:
    assert plan([Kept(Path("a"), 50, 1.0)], max_bytes=100, need_bytes=50) == (0, ())


def test_the_longest_unused_goes_first_and_a_little_more_than_must() -> None:
    kept = [Kept(Path(str(age)), 10, float(age)) for age in (3, 1, 2, 5, 4, 9, 8, 7, 6, 10)]
    excess_bytes, order = plan(kept, max_bytes=100, need_bytes=1)
    assert (excess_bytes, [each.path.name for each in order]) == (10, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"])
    assert plan(kept, max_bytes=100, need_bytes=35)[0] == 35


@given(KEPT, st.integers(0, 5000), st.integers(0, 5000))
def test_what_is_left_and_what_is_to_come_fit(kept: list[Kept], max_bytes: int, need_bytes: int) -> None:
    excess_bytes, order = plan(kept, max_bytes=max_bytes, need_bytes=need_bytes)
    total = sum(each.size_bytes for each in kept)
    assert total - excess_bytes + need_bytes <= max_bytes
    assert [each.used_s for each in order] == sorted(each.used_s for each in order)
    assert not excess_bytes or len(order) == len(kept)
