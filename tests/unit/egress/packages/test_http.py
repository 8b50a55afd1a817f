"""Rules of HTTP that need no I/O: ranges, conditions, media types and paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.egress.packages.http import ByteRange, HttpError, Request, is_not_modified, parse_range, parse_target, preferred_type

OFFERED = ("text/html", "application/json")


@pytest.mark.parametrize(
    "header, expected",
    [
        (None, None),
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=0-99", ByteRange(0, 100)),
        ("bytes=10-", ByteRange(10, 90)),
        ("bytes=90-1000", ByteRange(90, 10)),
        ("bytes=-1", ByteRange(99, 1)),
        ("bytes=-1000", ByteRange(0, 100)),
        ("bytes=5-4", None),
        ("bytes=-", None),
        ("bytes=0-1,5-6", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        ("bytes=99999999999999999999-", None),
    ],
)
def test_range_header_is_parsed(header: str | None, expected: ByteRange | None) -> None:
    assert parse_range(header, 100) == expected


@pytest.mark.parametrize("header, size", [("bytes=100-", 100), ("bytes=0-", 0), ("bytes=-5", 0), ("bytes=-0", 100)])
def test_empty_range_is_416(header: str, size: int) -> None:
    with pytest.raises(HttpError) as refusal:
        parse_range(header, size)
    assert refusal.value.status == 416
    assert ("Content-Range", f"bytes */{size}") in refusal.value.headers


@given(st.text(max_size=40), st.integers(0, 10_000))
def test_range_is_inside_the_file_for_every_header(header: str, size: int) -> None:
    try:
        found = parse_range(f"bytes={header}", size)
    except HttpError:
        return
    assert found is None or (0 <= found.start < size and 1 <= found.length <= size - found.start)


@pytest.mark.parametrize(
    "header, expected", [(None, False), ('"a"', True), ('W/"a"', True), ('"b", "a"', True), ("*", True), ('"b"', False), ("a", False)]
)
def test_if_none_match_is_compared_with_the_etag(header: str | None, expected: bool) -> None:  # noqa: FBT001
    assert is_not_modified(header, '"a"') is expected


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
def test_preferred_media_type_is_chosen(accept: str | None, expected: str) -> None:
    assert preferred_type(accept, OFFERED) == expected


@pytest.mark.parametrize(
    "target, expected",
    [
        (b"/", ((), True)),
        (b"/pypi/simple/six/", (("pypi", "simple", "six"), True)),
        (b"/pypi/simple/six?x=/../", (("pypi", "simple", "six"), False)),
        (b"/npm/@scope%2fname", (("npm", "@scope/name"), False)),
        (b"/npm/@scope%2Fname/-/a%2bb.tgz", (("npm", "@scope/name", "-", "a+b.tgz"), False)),
        (b"/debian/pool/libstdc%2b%2b6", (("debian", "pool", "libstdc++6"), False)),
    ],
)
def test_target_is_parsed_into_segments(target: bytes, expected: object) -> None:
    assert parse_target(target) == expected


@pytest.mark.parametrize(
    "target",
    [
        b"", b"*", b"http://host/x", b"pypi", b"//pypi", b"/pypi//simple", b"/..", b"/pypi/../etc", b"/%2e%2e/etc", b"/a/./b", b"/a%2fb", b"/%2fetc",
        b"/@a%2fb%2fc", b"/a%00b", b"/a%0d%0ab", b"/a\\b", b"/a%5cb", b"/%ff", b"/\xc3\xa9", b"/a b", b"/" + b"a" * 256, b"/" + b"a/" * 2000,
    ],
)  # fmt: skip
def test_invalid_target_is_400(target: bytes) -> None:
    with pytest.raises(HttpError) as refusal:
        parse_target(target)
    assert refusal.value.status == 400


@given(st.binary(max_size=60))
def test_segments_contain_only_names_for_every_target(sent: bytes) -> None:
    try:
        found, _ = parse_target(b"/" + sent)
    except HttpError:
        return
    for name in found:
        assert name not in {"", ".", ".."}
        assert name.isascii()
        assert name.isprintable()
        assert "\\" not in name
        assert "/" not in name or name.startswith("@")


def test_range_for_another_version_is_ignored() -> None:
    assert Request((), False, {"range": "bytes=1-"}).range_for('"a"') == "bytes=1-"
    assert Request((), False, {"range": "bytes=1-", "if-range": '"a"'}).range_for('"a"') == "bytes=1-"
    assert Request((), False, {"range": "bytes=1-", "if-range": '"b"'}).range_for('"a"') is None


@pytest.mark.parametrize("header, reload", [("no-cache", True), ("No-Cache, max-age=0", True), ("max-age=0", False), ("", False)])
def test_no_cache_sets_reload(header: str, *, reload: bool) -> None:
    assert Request((), is_folder=False, headers={"cache-control": header}).file_request(None).reload is reload
