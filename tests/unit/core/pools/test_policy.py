"""Decisions about refills: what a pool makes and removes next, and how it grows and shrinks."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from sandlot.core.pools import policy
from sandlot.core.pools.policy import MAX_AGE_S, MAX_FILLS, MAX_QUIET_WAIT_S, QUIET_S, SHRINK_AFTER_S, PoolContents, RefillStep
from sandlot.model.pools import PoolSizes

OLD_S = MAX_AGE_S + 1


@pytest.mark.parametrize(
    "sizes, contents, max_fills, step",
    [
        (PoolSizes(2, 4), PoolContents(ages_s=()), MAX_FILLS, RefillStep(fill=2)),
        (PoolSizes(9, 9), PoolContents(ages_s=()), MAX_FILLS, RefillStep(fill=2)),
        (PoolSizes(2, 4), PoolContents(ages_s=()), 0, RefillStep()),
        (PoolSizes(2, 4), PoolContents(ages_s=(), filling=2), MAX_FILLS, RefillStep()),
        (PoolSizes(2, 4), PoolContents(ages_s=(5.0, 1.0)), MAX_FILLS, RefillStep()),
        (PoolSizes(2, 4), PoolContents(ages_s=(5.0, 1.0), growth=1), MAX_FILLS, RefillStep(fill=1, growth=1)),
        (PoolSizes(2, 4), PoolContents(ages_s=(5.0, 1.0), growth=9), MAX_FILLS, RefillStep(fill=2, growth=9)),
        (PoolSizes(1, 4), PoolContents(ages_s=(5.0, 4.0, 3.0)), MAX_FILLS, RefillStep(drop=2)),
        (PoolSizes(0, 0), PoolContents(ages_s=(5.0,)), 0, RefillStep(drop=1)),
    ],
)
def test_step_makes_what_is_missing_and_removes_what_is_too_much(sizes: PoolSizes, contents: PoolContents, max_fills: int, step: RefillStep) -> None:
    assert policy.next_step(sizes, contents, max_fills) == step


@pytest.mark.parametrize(
    "sizes, contents, max_fills, step",
    [
        (PoolSizes(1, 4), PoolContents(ages_s=(OLD_S,)), MAX_FILLS, RefillStep(fill=1)),
        (PoolSizes(1, 4), PoolContents(ages_s=(OLD_S,), filling=1), MAX_FILLS, RefillStep(drop=1)),
        (PoolSizes(1, 4), PoolContents(ages_s=(OLD_S, 1.0)), MAX_FILLS, RefillStep(drop=1)),
        (PoolSizes(1, 1), PoolContents(ages_s=(OLD_S,)), MAX_FILLS, RefillStep(drop=1)),
        (PoolSizes(1, 1), PoolContents(ages_s=(OLD_S,)), 0, RefillStep()),
    ],
)
def test_old_warm_sandbox_is_replaced_and_removed_first_only_from_a_full_pool(
    sizes: PoolSizes, contents: PoolContents, max_fills: int, step: RefillStep
) -> None:
    assert policy.next_step(sizes, contents, max_fills) == step


@pytest.mark.parametrize(
    "sizes, contents, step",
    [
        (PoolSizes(1, 1, 3), PoolContents(ages_s=()), RefillStep(fill=1, prepare=1)),
        (PoolSizes(1, 1, 3), PoolContents(ages_s=(1.0,), prepared=1, preparing=1), RefillStep(prepare=1)),
        (PoolSizes(1, 1, 0), PoolContents(ages_s=(1.0,), prepared=2), RefillStep(drop_prepared=2)),
    ],
)
def test_prepared_sandboxes_get_the_fills_that_warm_ones_leave(sizes: PoolSizes, contents: PoolContents, step: RefillStep) -> None:
    assert policy.next_step(sizes, contents, MAX_FILLS) == step


@hypothesis.given(
    warm=st.integers(0, 6),
    more=st.integers(0, 6),
    ages_s=st.lists(st.floats(0, 2 * MAX_AGE_S), max_size=12),
    filling=st.integers(0, 3),
    growth=st.integers(0, 8),
    max_fills=st.integers(0, MAX_FILLS),
)
def test_step_stays_within_sizes_and_fills(warm: int, more: int, ages_s: list[float], filling: int, growth: int, max_fills: int) -> None:
    sizes = PoolSizes(warm, warm + more)

    step = policy.next_step(sizes, PoolContents(ages_s=sorted(ages_s, reverse=True), filling=filling, growth=growth), max_fills)

    assert 0 <= step.fill <= max_fills
    assert 0 <= step.drop <= len(ages_s)
    if step.fill:
        assert len(ages_s) + filling + step.fill <= sizes.max
    if len(ages_s) - step.drop < policy.wanted_warm(sizes, growth) - filling:
        assert step.drop == 0 or any(age_s > MAX_AGE_S for age_s in ages_s)


@pytest.mark.parametrize(
    "ages_s, quota_left, step",
    [
        ((), None, RefillStep(fill=2)),
        ((), 1, RefillStep(fill=1)),
        ((), 0, RefillStep()),
        ((1.0,), 0, RefillStep()),
        ((OLD_S, 1.0), 0, RefillStep(drop=1)),  # removed first: the quota has no room for both
    ],
)
def test_step_fills_no_more_than_the_quota_leaves(ages_s: tuple[float, ...], quota_left: int | None, step: RefillStep) -> None:
    assert policy.next_step(PoolSizes(2, 4), PoolContents(ages_s=ages_s), MAX_FILLS, quota_left) == step


@pytest.mark.parametrize("quiet_s, growth", [(SHRINK_AFTER_S - 1, 3), (SHRINK_AFTER_S, 2), (10 * SHRINK_AFTER_S, 0)])
def test_pool_shrinks_by_one_for_each_quiet_minute(quiet_s: float, growth: int) -> None:
    step = policy.next_step(PoolSizes(1, 4), PoolContents(ages_s=(1.0,) * 4, growth=3, quiet_s=quiet_s), 0)

    assert (step.growth, step.drop) == (growth, 3 - growth)


@pytest.mark.parametrize(
    "quiet_s, waiting_s, step",
    [
        (QUIET_S, QUIET_S, RefillStep(fill=1)),
        (QUIET_S / 2, QUIET_S, RefillStep(is_early=True)),
        (0.0, MAX_QUIET_WAIT_S, RefillStep(fill=1)),  # requests come without a pause
        (float("inf"), 0.0, RefillStep(fill=1)),  # there was no request
    ],
)
def test_fill_waits_for_a_pause_in_the_requests_but_not_forever(quiet_s: float, waiting_s: float, step: RefillStep) -> None:
    assert policy.next_step(PoolSizes(1, 4), PoolContents(ages_s=(), quiet_s=quiet_s, waiting_s=waiting_s), MAX_FILLS) == step
