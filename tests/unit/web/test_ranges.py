"""Range headers (RFC 9110)."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from sandlot.web.ranges import parse_range


def test_range_selects_a_part() -> None:
    expected = {
        "bytes=0-0": (0, 1),
        "bytes=2-4": (2, 3),
        "bytes=7-": (7, 3),
        "bytes=7-100": (7, 3),
        "bytes=-4": (6, 4),
        "bytes=-100": (0, 10),
        "bytes= 1 - 2": (1, 2),
    }
    parts = {header: parse_range(header, 10) for header in expected}
    assert {header: part and (part.start, part.length) for header, part in parts.items()} == expected
    assert {part and part.content_range for part in parts.values()} >= {"bytes 0-0/10", "bytes 7-9/10", "bytes 6-9/10"}


def test_range_that_is_not_understood_selects_everything() -> None:
    headers = ("", "bytes", "bytes=", "bytes=-", "items=0-1", "bytes=0-1,3-4", "bytes=4-2", "bytes=a-b", "bytes=-1-2", "bytes=" + "9" * 30)
    assert [header for header in headers if parse_range(header, 10) is not None] == []


def test_range_outside_is_refused_with_the_size() -> None:
    for header, size in (("bytes=10-", 10), ("bytes=10-12", 10), ("bytes=0-", 0), ("bytes=-0", 10), ("bytes=-5", 0)):
        with pytest.raises(HTTPException) as refused:
            parse_range(header, size)
        assert refused.value.status_code == 416, header
        assert (refused.value.headers or {})["Content-Range"] == f"bytes */{size}", header
