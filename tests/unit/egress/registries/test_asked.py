"""Paths of requests: what they may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.egress.answers import Refusal
from sandlot.egress.registries.asked import Request, segments


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
def test_a_path(target: bytes, expected: object) -> None:
    assert segments(target) == expected


@pytest.mark.parametrize(
    "target",
    [
        b"", b"*", b"http://host/x", b"pypi", b"//pypi", b"/pypi//simple", b"/..", b"/pypi/../etc", b"/%2e%2e/etc", b"/a/./b", b"/a%2fb", b"/%2fetc",
        b"/@a%2fb%2fc", b"/a%00b", b"/a%0d%0ab", b"/a\\b", b"/a%5cb", b"/%ff", b"/\xc3\xa9", b"/a b", b"/" + b"a" * 256, b"/" + b"a/" * 2000,
    ],
)  # fmt: skip
def test_no_path(target: bytes) -> None:
    with pytest.raises(Refusal) as refusal:
        segments(target)
    assert refusal.value.status == 400


@given(st.binary(max_size=60))
def test_whatever_is_sent_gives_names_only(sent: bytes) -> None:
    try:
        found, _ = segments(b"/" + sent)
    except Refusal:
        return
    for name in found:
        assert name not in {"", ".", ".."}
        assert name.isascii()
        assert name.isprintable()
        assert "\\" not in name
        assert "/" not in name or name.startswith("@")


def test_a_range_of_another_version_is_none() -> None:
    assert Request((), False, {"range": "bytes=1-"}).range('"a"') == "bytes=1-"
    assert Request((), False, {"range": "bytes=1-", "if-range": '"a"'}).range('"a"') == "bytes=1-"
    assert Request((), False, {"range": "bytes=1-", "if-range": '"b"'}).range('"a"') is None
