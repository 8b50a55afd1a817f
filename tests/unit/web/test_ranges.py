"""Parts of an answer, as RFC 9110 has them."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from sandlot.web.ranges import wanted


@pytest.mark.parametrize(
    "header,start,length",
    [
        ("bytes=0-0", 0, 1),
        ("bytes=2-4", 2, 3),
        ("bytes=7-", 7, 3),
        ("bytes=7-100", 7, 3),
        ("bytes=-4", 6, 4),
        ("bytes=-100", 0, 10),
        ("bytes= 1 - 2", 1, 2),
    ],
)
def test_a_range_is_a_part(header: str, start: int, length: int) -> None:
    part = wanted(header, 10)
    assert part is not None
    assert (part.start, part.length, part.said) == (start, length, f"bytes {start}-{start + length - 1}/10")


@pytest.mark.parametrize(
    "header", ["", "bytes", "bytes=", "bytes=-", "items=0-1", "bytes=0-1,3-4", "bytes=4-2", "bytes=a-b", "bytes=-1-2", "bytes=" + "9" * 30]
)
def test_what_is_not_understood_is_the_whole(header: str) -> None:
    assert wanted(header, 10) is None


@pytest.mark.parametrize("header,size", [("bytes=10-", 10), ("bytes=10-12", 10), ("bytes=0-", 0), ("bytes=-0", 10), ("bytes=-5", 0)])
def test_what_is_not_there_is_refused_with_the_size(header: str, size: int) -> None:
    with pytest.raises(HTTPException) as refused:
        wanted(header, size)
    assert refused.value.status_code == 416
    assert (refused.value.headers or {})["Content-Range"] == f"bytes */{size}"
