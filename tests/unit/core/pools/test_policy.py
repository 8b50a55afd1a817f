"""What a pool does next."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from sandlot.core.pools import policy
from sandlot.core.pools.models import PoolSizes
from sandlot.core.pools.policy import COOL_S, OLDEST_S, Step, Stock

HANDS = policy.AT_ONCE
OLD_S = OLDEST_S + 1


@pytest.mark.parametrize(
    "sizes, stock, hands, wanted",
    [
        (PoolSizes(2, 4), Stock(ready=()), HANDS, Step(fill=2)),
        (PoolSizes(9, 9), Stock(ready=()), HANDS, Step(fill=2)),
        (PoolSizes(2, 4), Stock(ready=()), 0, Step()),
        (PoolSizes(2, 4), Stock(ready=(), filling=2), HANDS, Step()),
        (PoolSizes(2, 4), Stock(ready=(5.0, 1.0)), HANDS, Step()),
        (PoolSizes(2, 4), Stock(ready=(5.0, 1.0), grown=1), HANDS, Step(fill=1)),
        (PoolSizes(2, 4), Stock(ready=(5.0, 1.0), grown=9), HANDS, Step(fill=2)),
        (PoolSizes(1, 4), Stock(ready=(5.0, 4.0, 3.0)), HANDS, Step(drop=2)),
        (PoolSizes(0, 0), Stock(ready=(5.0,)), 0, Step(drop=1)),
        # One that is too old stays until its successor is there.
        (PoolSizes(1, 4), Stock(ready=(OLD_S,)), HANDS, Step(fill=1)),
        (PoolSizes(1, 4), Stock(ready=(OLD_S,), filling=1), HANDS, Step(drop=1)),
        (PoolSizes(1, 4), Stock(ready=(OLD_S, 1.0)), HANDS, Step(drop=1)),
        (PoolSizes(1, 1), Stock(ready=(OLD_S,)), HANDS, Step(drop=1)),
        (PoolSizes(1, 1), Stock(ready=(OLD_S,)), 0, Step()),
        # Blanks take the hands that are left.
        (PoolSizes(1, 1, 3), Stock(ready=()), HANDS, Step(fill=1, fill_blank=1)),
        (PoolSizes(1, 1, 3), Stock(ready=(1.0,), blank=1, blank_filling=1), HANDS, Step(fill_blank=1)),
        (PoolSizes(1, 1, 0), Stock(ready=(1.0,), blank=2), HANDS, Step(drop_blank=2)),
    ],
)
def test_it_does_what_is_missing_and_no_more(sizes: PoolSizes, stock: Stock, hands: int, wanted: Step) -> None:
    assert policy.step(sizes, stock, hands) == wanted


@hypothesis.given(
    warm=st.integers(0, 6),
    more=st.integers(0, 6),
    ready=st.lists(st.floats(0, 2 * OLDEST_S), max_size=12),
    filling=st.integers(0, 3),
    grown=st.integers(0, 8),
    hands=st.integers(0, HANDS),
)
def test_it_stays_within_its_bounds(warm: int, more: int, ready: list[float], filling: int, grown: int, hands: int) -> None:
    sizes = PoolSizes(warm, warm + more)
    stock = Stock(ready=sorted(ready, reverse=True), filling=filling, grown=grown)
    step = policy.step(sizes, stock, hands)
    assert 0 <= step.fill <= hands
    assert 0 <= step.drop <= len(ready)
    if step.fill:
        assert len(ready) + filling + step.fill <= sizes.max
    if len(ready) - step.drop < policy.target(sizes, grown) - filling:
        assert step.drop == 0 or any(age_s > OLDEST_S for age_s in ready)


@pytest.mark.parametrize(
    "stock, spare, wanted",
    [
        (Stock(ready=()), None, Step(fill=2)),
        (Stock(ready=()), 1, Step(fill=1)),
        (Stock(ready=()), 0, Step()),
        (Stock(ready=(1.0,)), 0, Step()),
        (Stock(ready=(OLD_S, 1.0)), 0, Step(drop=1)),  # it is replaced where there is no room for both
    ],
)
def test_it_fills_no_further_than_a_quota_leaves(stock: Stock, spare: int | None, wanted: Step) -> None:
    assert policy.step(PoolSizes(2, 4), stock, HANDS, spare) == wanted


def test_it_shrinks_by_one_for_each_time_that_is_quiet() -> None:
    assert policy.shrunk(3, COOL_S - 1) == 3
    assert policy.shrunk(3, COOL_S) == 2
    assert policy.shrunk(3, 10 * COOL_S) == 0
