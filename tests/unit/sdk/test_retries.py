"""Repetition: when, how long after, and when no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.sdk import retries

LUCK = st.floats(min_value=0, max_value=1)
TRIES = st.integers(min_value=1, max_value=100)


@pytest.mark.parametrize(
    "header, least, most",
    [("2", 2, 2.5), ("0", 0, 0), ("30", 30, 37.5), (None, 0.375, 0.5), ("soon", 0.375, 0.5), ("-1", 0.375, 0.5), ("nan", 0.375, 0.5)],
)
@given(luck=LUCK)
def test_an_answer_that_says_so_is_repeated_not_before_its_time(header: str | None, least: float, most: float, luck: float) -> None:
    wait_s = retries.refused_wait_s(1, retryable=True, retry_after=header, luck=luck)
    assert wait_s is not None
    assert least <= wait_s <= most


@given(tries=TRIES, luck=LUCK)
def test_request_is_not_repeated_without_a_reason(tries: int, luck: float) -> None:
    assert retries.refused_wait_s(tries, retryable=False, retry_after="1", luck=luck) is None
    assert retries.cut_wait_s(tries, once=False, luck=luck) is None
    assert retries.unreached_wait_s(tries, 0, met=False, luck=luck) is None


def test_what_takes_too_long_is_shown_instead() -> None:
    assert retries.refused_wait_s(1, retryable=True, retry_after="31", luck=0) is None
    assert retries.refused_wait_s(1, retryable=True, retry_after="inf", luck=0) is None


@given(luck=LUCK)
def test_repetitions_are_limited(luck: float) -> None:
    assert retries.refused_wait_s(retries.MAX_TRIES, retryable=True, retry_after="0", luck=luck) is None
    assert retries.cut_wait_s(retries.MAX_TRIES, once=True, luck=luck) is None
    waited_s, tries = 0.0, 1
    while (wait_s := retries.unreached_wait_s(tries, waited_s, met=True, luck=luck)) is not None:
        waited_s += wait_s
        tries += 1
    assert retries.RECONNECT_S <= waited_s <= retries.RECONNECT_S + 1
    assert tries < 50
