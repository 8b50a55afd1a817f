"""Credentials and the URLs that they are valid for."""

from __future__ import annotations

import pytest

from sandlot.egress.packages.config.values import Access, Credential, basic_auth, netloc_of, redacted, split_credential, with_slash


def test_credential_is_split_from_a_url() -> None:
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
def test_credential_applies_only_below_its_url_prefix(url: str, expected: bool) -> None:  # noqa: FBT001
    access = Access(credentials=(Credential("https", "host.example", "/simple/", "Bearer x"),))
    try:
        assert (access.authorization(url) == "Bearer x") is expected
    except ValueError:
        assert not expected


def test_credential_with_the_longest_path_is_used() -> None:
    far, near = Credential("", "h", "/", "far"), Credential("", "h", "/a/b", "near")
    access = Access(credentials=(near, far))
    assert [access.authorization(f"https://h{path}") for path in ("/a/b/c", "/a/b", "/a/bc", "/")] == ["near", "near", "far", "far"]
    assert access.authorization("https://other/") is None


@pytest.mark.parametrize(
    "url, expected",
    [("https://A:443/", "a"), ("http://a:443/", "a:443"), ("http://a:80", "a"), ("file:///x", ""), ("https://a:bad/", ""), ("https://u:p@a/", "a")],
)
def test_netloc_is_in_lower_case_without_default_port_and_user(url: str, expected: str) -> None:
    assert netloc_of(url) == expected


def test_redacted_url_has_no_user_query_and_fragment() -> None:
    assert redacted("https://u:p@host/path/x?X-Signature=secret#frag") == "https://host/path/x"
    assert with_slash("https://a/b") == with_slash("https://a/b/") == "https://a/b/"
