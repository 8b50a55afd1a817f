"""Credentials and the places that they belong to."""

from __future__ import annotations

import pytest

from sandlot.egress.packages.config.values import Access, Credential, basic_auth, netloc_of, redacted, split_credential, with_slash


def test_a_url_and_its_credential_are_parted() -> None:
    url, credential = split_credential("https://us%40er:p%2Fw@Host.example:443/simple?x=1")
    assert url == "https://Host.example:443/simple?x=1"
    assert credential == Credential("https", "host.example", "/", basic_auth("us@er", "p/w"))
    assert "p/w" not in repr(credential)
    assert basic_auth("us@er", "p/w") not in repr(Access(credentials=(credential,)))
    assert split_credential("https://host.example/x") == ("https://host.example/x", None)


@pytest.mark.parametrize(
    "url, expected",
    [
        ("https://host.example/simple/x", True),
        ("https://HOST.example:443/simple", True),
        ("http://host.example/simple/x", False),
        ("https://host.example/simplex", False),
        ("https://host.example/", False),
        ("https://host.example:8443/simple/x", False),
        ("https://host.example.evil.example/simple/x", False),
        ("https://evil.example/simple/x?host.example", False),
        ("https://host.example@evil.example/simple/x", False),
        ("https://[bad/simple", False),
    ],
)
def test_a_credential_goes_to_its_place_only(url: str, expected: bool) -> None:  # noqa: FBT001
    access = Access(credentials=(Credential("https", "host.example", "/simple/", "Bearer x"),))
    try:
        assert (access.authorization(url) == "Bearer x") is expected
    except ValueError:
        assert not expected


def test_the_nearest_credential_wins() -> None:
    far, near = Credential("", "h", "/", "far"), Credential("", "h", "/a/b", "near")
    access = Access(credentials=(near, far))
    assert [access.authorization(f"https://h{path}") for path in ("/a/b/c", "/a/b", "/a/bc", "/")] == ["near", "near", "far", "far"]
    assert access.authorization("https://other/") is None


@pytest.mark.parametrize(
    "url, expected",
    [("https://A:443/", "a"), ("http://a:443/", "a:443"), ("http://a:80", "a"), ("file:///x", ""), ("https://a:bad/", ""), ("https://u:p@a/", "a")],
)
def test_a_place(url: str, expected: str) -> None:
    assert netloc_of(url) == expected


def test_what_a_log_may_show() -> None:
    assert redacted("https://u:p@host/path/x?X-Signature=secret#frag") == "https://host/path/x"
    assert with_slash("https://a/b") == with_slash("https://a/b/") == "https://a/b/"
