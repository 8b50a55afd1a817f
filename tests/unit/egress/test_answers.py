"""Ranges, conditions and kinds: what HTTP decides without I/O."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.egress.answers import Refusal, Span, preferred, span, unchanged

OFFERED = ("text/html", "application/json")


@pytest.mark.parametrize(
    "header, expected",
    [
        (None, None),
        ("bytes=0-0", Span(0, 1)),
        ("bytes=0-99", Span(0, 100)),
        ("bytes=10-", Span(10, 90)),
        ("bytes=90-1000", Span(90, 10)),
        ("bytes=-1", Span(99, 1)),
        ("bytes=-1000", Span(0, 100)),
        ("bytes=5-4", None),
        ("bytes=-", None),
        ("bytes=0-1,5-6", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        ("bytes=99999999999999999999-", None),
    ],
)
def test_a_range(header: str | None, expected: Span | None) -> None:
    assert span(header, 100) == expected


@pytest.mark.parametrize("header, size", [("bytes=100-", 100), ("bytes=0-", 0), ("bytes=-5", 0), ("bytes=-0", 100)])
def test_a_range_of_nothing_is_refused(header: str, size: int) -> None:
    with pytest.raises(Refusal) as refusal:
        span(header, size)
    assert refusal.value.status == 416
    assert ("Content-Range", f"bytes */{size}") in refusal.value.headers


@given(st.text(max_size=40), st.integers(0, 10_000))
def test_a_range_is_within_the_file_whatever_is_asked(header: str, size: int) -> None:
    try:
        found = span(f"bytes={header}", size)
    except Refusal:
        return
    assert found is None or (0 <= found.start < size and 1 <= found.length <= size - found.start)


@pytest.mark.parametrize(
    "header, expected", [(None, False), ('"a"', True), ('W/"a"', True), ('"b", "a"', True), ("*", True), ('"b"', False), ("a", False)]
)
def test_what_the_client_has(header: str | None, expected: bool) -> None:  # noqa: FBT001
    assert unchanged(header, '"a"') is expected


@pytest.mark.parametrize(
    "accept, expected",
    [
        (None, "text/html"),
        ("*/*", "text/html"),
        ("application/json", "application/json"),
        ("application/json;q=0.1, text/html;q=0.5", "text/html"),
        ("application/json, text/html;q=0.5", "application/json"),
        ("application/*;q=0.8, text/*;q=0.2", "application/json"),
        ("image/png", "text/html"),
        ("application/json;q=x", "text/html"),
        (";;;,,", "text/html"),
    ],
)
def test_the_kind_that_is_wanted(accept: str | None, expected: str) -> None:
    assert preferred(accept, OFFERED) == expected
